//! What no safe wrapper offers: the cookie of a network namespace.
#![allow(unsafe_code)] // getsockopt(SO_NETNS_COOKIE) has no safe wrapper.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// `SO_NETNS_COOKIE` of `<asm-generic/socket.h>`, Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The number by which kernel programs know the network namespace of a socket.
///
/// # Errors
/// It is no socket, or the kernel is older than 5.14.
pub(super) fn netns_cookie(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = mem::size_of::<u64>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open as long as `socket` is borrowed; the kernel writes at most `length` bytes, the size of
    // `cookie`, and the size that it wrote; both live through the call.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut length)
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn sockets_of_one_network_namespace_have_one_cookie() {
        let cookie = || netns_cookie(&UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_eq!(cookie(), cookie());
        let elsewhere = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            netns_cookie(&UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap()
        });
        assert_ne!(elsewhere.join().unwrap(), cookie());
    }
}
