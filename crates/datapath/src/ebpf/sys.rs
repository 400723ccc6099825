//! What no safe wrapper offers: the cookie of a network namespace, and a program in a link at an interface.
#![allow(unsafe_code)] // getsockopt(SO_NETNS_COOKIE) and BPF_LINK_CREATE with tcx have no safe wrapper.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::libbpf_sys;
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

/// Which way packets cross an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Into the node.
    Ingress,
    /// Out of it.
    Egress,
}

/// Hangs a program at an interface, behind those that are there. It hangs as long as the link is open or pinned.
///
/// # Errors
/// The kernel refused; `EINVAL`: it is older than 6.6 and has no such links.
pub(super) fn attach_tcx(program: &impl AsFd, interface: u32, way: Way) -> io::Result<OwnedFd> {
    let kind = match way {
        Way::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Way::Egress => libbpf_sys::BPF_TCX_EGRESS,
    };
    let interface = libc::c_int::try_from(interface).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open as long as `program` is borrowed, the second number names an interface and is no descriptor
    // with this kind, and without options the kernel reads nothing else.
    let link = unsafe { libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), interface, kind, ptr::null()) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call just gave this descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Puts another program into a link, in one step.
///
/// # Errors
/// The kernel refused.
pub(super) fn update_link(link: &impl AsFd, program: &impl AsFd) -> io::Result<()> {
    let (link, program) = (link.as_fd().as_raw_fd(), program.as_fd().as_raw_fd());
    // SAFETY: both descriptors are open as long as they are borrowed; without options the kernel reads nothing else.
    let result = unsafe { libbpf_sys::bpf_link_update(link, program, ptr::null()) };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-result)) }
}

/// Gives an object of the kernel a name in a bpf file system.
///
/// # Errors
/// The kernel refused.
pub(super) fn pin(object: &impl AsFd, path: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as `object` is borrowed, and the path is ended by a zero.
    let result = unsafe { libbpf_sys::bpf_obj_pin(object.as_fd().as_raw_fd(), path.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-result)) }
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
