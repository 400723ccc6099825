//! What no safe wrapper offers: how the C library's allocator keeps memory, waiting for a bare file descriptor, the priority of a thread, and packet
//! sockets with the addresses of their frames.
#![allow(unsafe_code)] // mallopt, malloc_trim, AsyncFd::register and sockaddr_ll have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for what comes in. Must be called inside a tokio runtime.
///
/// # Errors
/// The runtime cannot take the descriptor.
pub(crate) fn watch_readable(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd gives the same open descriptor as long as it lives, and AsyncFd keeps it.
    unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }.map_err(io::Error::from)
}

/// What stands around a packet that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The interface that it came in by.
    pub interface: u32,
    /// Who sent it.
    pub sender: [u8; 6],
    /// It was sent to this host, to a group or to everybody; not by this host, and not to another one.
    pub is_for_us: bool,
    /// Bytes of the packet.
    pub length: usize,
}

/// A socket that gets each packet of an Ethernet protocol from every interface, without the Ethernet header.
///
/// # Errors
/// No CAP_NET_RAW.
pub(crate) fn packet_socket(protocol: u16) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes three integers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol.to_be())) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Lets a packet socket for IPv6 keep neighbour solicitations and advertisements alone.
///
/// # Errors
/// The kernel refused.
pub(crate) fn keep_neighbour_discovery(socket: &OwnedFd) -> io::Result<()> {
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_BYTE, 0, 0, 6), // the next header is ICMPv6,
        step(JUMP_IF_EQUAL, 0, 4, 58),
        step(LOAD_BYTE, 0, 0, 40), // and its type a solicitation
        step(JUMP_IF_EQUAL, 1, 0, 135),
        step(JUMP_IF_EQUAL, 0, 1, 136), // or an advertisement
        step(RETURN, 0, 0, 0xffff),
        step(RETURN, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: 7, filter: steps.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the program points to seven steps and is of the length that is said; both live during the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A packet that waits. What does not fit into the buffer is cut off.
///
/// # Errors
/// `WouldBlock` if there is none; or the kernel's.
pub(crate) fn receive_frame(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Frame> {
    // SAFETY: sockaddr_ll is integers only, for which zeros are a value.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: buffer and address are writable for the lengths that are said, during the call.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            (&raw mut from).cast(),
            &raw mut length,
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let [a, b, c, d, e, f, ..] = from.sll_addr;
    let kinds = [libc::PACKET_HOST, libc::PACKET_BROADCAST, libc::PACKET_MULTICAST];
    Ok(Frame {
        interface: u32::try_from(from.sll_ifindex).unwrap_or_default(),
        sender: [a, b, c, d, e, f],
        is_for_us: kinds.contains(&from.sll_pkttype),
        length: received,
    })
}

/// Sends a packet out of an interface; the kernel writes the Ethernet header.
///
/// # Errors
/// The interface is gone or down.
pub(crate) fn send_frame(socket: &OwnedFd, interface: u32, to: [u8; 6], protocol: u16, bytes: &[u8]) -> io::Result<()> {
    let [a, b, c, d, e, f] = to;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: i32::try_from(interface).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [a, b, c, d, e, f, 0, 0],
    };
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: bytes and address are readable for the lengths that are said, during the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            (&raw const address).cast(),
            length,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How many routers what a socket sends may pass.
///
/// # Errors
/// The kernel refused.
pub(crate) fn set_hops(socket: &impl AsRawFd, is_ipv4: bool, hops: u32) -> io::Result<()> {
    let (level, option) =
        if is_ipv4 { (libc::IPPROTO_IP, libc::IP_TTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) };
    let hops = i32::try_from(hops).map_err(io::Error::other)?;
    set_option(socket, level, option, &hops)
}

/// Signs what a TCP socket sends to a peer, and demands that of the peer (RFC 2385). Before it connects.
///
/// # Errors
/// The kernel refused: it has no MD5 for TCP, or the password is too long.
pub(crate) fn set_tcp_md5(socket: &impl AsRawFd, peer: std::net::SocketAddr, password: &str) -> io::Result<()> {
    /// linux/tcp.h
    #[repr(C)]
    struct Signature {
        address: libc::sockaddr_storage,
        flags: u8,
        prefix_length: u8,
        key_length: u16,
        interface: libc::c_int,
        key: [u8; libc::TCP_MD5SIG_MAXKEYLEN],
    }
    let mut key = [0; libc::TCP_MD5SIG_MAXKEYLEN];
    let place = key.get_mut(..password.len()).ok_or_else(|| io::Error::other("a password has at most 80 bytes"))?;
    place.copy_from_slice(password.as_bytes());
    // SAFETY: sockaddr_storage is integers only, for which zeros are a value.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match peer {
        std::net::SocketAddr::V4(v4) => {
            let inner = (&raw mut address).cast::<libc::sockaddr_in>();
            // SAFETY: a sockaddr_storage has room and alignment for a sockaddr_in; nobody else knows it yet.
            unsafe {
                (*inner).sin_family = libc::AF_INET as u16;
                (*inner).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
        }
        std::net::SocketAddr::V6(v6) => {
            let inner = (&raw mut address).cast::<libc::sockaddr_in6>();
            // SAFETY: a sockaddr_storage has room and alignment for a sockaddr_in6; nobody else knows it yet.
            unsafe {
                (*inner).sin6_family = libc::AF_INET6 as u16;
                (*inner).sin6_addr.s6_addr = v6.ip().octets();
            }
        }
    }
    let key_length = password.len() as u16;
    let signature = Signature { address, flags: 0, prefix_length: 0, key_length, interface: 0, key };
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG, &signature)
}

fn set_option<T>(socket: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is readable for its own length during the call; the kernel copies it.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const *value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the calling thread go before others when the machine is busy.
///
/// # Errors
/// No CAP_SYS_NICE.
pub(crate) fn raise_priority() -> io::Result<()> {
    const URGENT: i32 = -19;
    // SAFETY: setpriority takes three integers; 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, URGENT) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// One heap for all threads. Threads of their own heaps keep what a big list once took.
pub(crate) fn share_one_heap() {
    // SAFETY: mallopt takes two integers and changes the allocator's settings under its own lock.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives the memory back that is free.
pub(crate) fn give_memory_back() {
    // SAFETY: malloc_trim takes an integer and works on the allocator's own free memory under its own lock.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_free_goes_back_to_the_system() {
        share_one_heap();
        let blocks: Vec<Vec<u8>> = (0..50_000).map(|_| vec![1; 1000]).collect();
        let full = crate::process::usage().unwrap().resident_bytes;
        drop(blocks);
        give_memory_back();
        let after = crate::process::usage().unwrap().resident_bytes;
        assert!(after + 30_000_000 < full, "{full} to {after} bytes");
    }
}
