//! Questions by UDP: a socket for each core, which the kernel spreads clients over. What is known is answered where it is read.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use futures::FutureExt;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType,
    SockaddrStorage, bind, listen, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use signpost_core::node_cache;
use signpost_core::object::Family;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tracing::{debug, warn};

use super::{Origin, Shared};
use crate::message::Transport;

/// The largest question that is read. EDNS0 makes some longer than 512 bytes; none that is sensible is longer than this.
const LONGEST_QUESTION: usize = 4096;
/// What waits in the kernel while all threads are busy, in bytes.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Packets that are answered before other tasks of the thread get their turn.
const AT_ONCE: usize = 64;

/// The address of ours that a packet was sent to; the answer has to come from there.
#[derive(Clone, Copy)]
enum Local {
    /// The socket has only one.
    Bound,
    Ipv4(in_addr),
    Ipv6(in6_addr, u32),
}

struct Socket {
    socket: UdpSocket,
    /// It is bound to no address: which one was meant comes with each packet.
    any_address: bool,
}

/// As many sockets as there are cores. Must be called inside a tokio runtime.
pub(super) fn sockets(address: SocketAddr) -> io::Result<Vec<UdpSocket>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let first = one(address)?;
    // The others share the port that the first one got.
    let shared = first.local_addr()?;
    let others: io::Result<Vec<UdpSocket>> = (1..cores).map(|_| one(shared)).collect();
    Ok(std::iter::once(first).chain(others?).collect())
}

/// A TCP listener of the same kind: IPv6 alone where it says so.
pub(super) fn stream_listener(address: SocketAddr, backlog: i32) -> io::Result<std::net::TcpListener> {
    let listener = bound(address, SockType::Stream, SockProtocol::Tcp)?;
    listen(&listener, Backlog::new(backlog)?)?;
    Ok(listener.into())
}

fn one(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bound(address, SockType::Datagram, SockProtocol::Udp)?;
    if address.ip().is_unspecified() {
        match address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
        }
    }
    // Root may have more than the system's limit; others get what they may.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    }
    UdpSocket::from_std(socket.into())
}

fn bound(address: SocketAddr, kind: SockType, protocol: SockProtocol) -> io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, kind, flags, protocol)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::ReusePort, &(kind == SockType::Datagram))?;
    if address.is_ipv6() {
        // IPv4 has sockets of its own.
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    if [Family::Ipv4, Family::Ipv6].map(node_cache::address).contains(&address.ip()) {
        // The node daemon gives the node this address when it hears that somebody answers there.
        setsockopt(&socket, sockopt::IpFreebind, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

/// Answers for ever.
pub(super) async fn serve(socket: UdpSocket, listener: SocketAddr, shared: Arc<Shared>) {
    let socket = Arc::new(Socket { socket, any_address: listener.ip().is_unspecified() });
    let mut buffer = vec![0; LONGEST_QUESTION];
    loop {
        if let Err(error) = socket.socket.readable().await {
            warn!(%listener, %error, "the socket cannot be waited for any more");
            return;
        }
        let engine = shared.engine();
        for _ in 0..AT_ONCE {
            let (length, client, local) = match socket.receive(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    // An error of an earlier answer, such as "port unreachable".
                    debug!(%listener, %error, "cannot receive");
                    continue;
                }
            };
            let origin = Origin { listener, client, transport: Transport::Udp };
            match shared.read(&buffer[..length], origin) {
                Err(None) => {}
                Err(Some(reply)) => socket.send(&reply, client, local),
                Ok(request) => {
                    let (shared, engine) = (shared.clone(), engine.clone());
                    let mut answering = Box::pin(async move { shared.answer(engine, request, origin).await });
                    match answering.as_mut().now_or_never() {
                        Some(Some(packet)) => socket.send(&packet, client, local),
                        Some(None) => {}
                        None => {
                            let socket = socket.clone();
                            tokio::spawn(async move {
                                if let Some(packet) = answering.await {
                                    socket.send(&packet, client, local);
                                }
                            });
                        }
                    }
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

impl Socket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, Local)> {
        if !self.any_address {
            let (length, client) = self.socket.try_recv_from(buffer)?;
            return Ok((length, client, Local::Bound));
        }
        self.socket.try_io(Interest::READABLE, || {
            let mut control = nix::cmsg_space!(in6_pktinfo);
            let mut parts = [IoSliceMut::new(buffer)];
            let descriptor = self.socket.as_raw_fd();
            let message = recvmsg::<SockaddrStorage>(descriptor, &mut parts, Some(&mut control), MsgFlags::empty())?;
            let client = message.address.as_ref().and_then(address).ok_or(io::ErrorKind::InvalidData)?;
            let local = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::Ipv4PacketInfo(info) => Some(Local::Ipv4(info.ipi_addr)),
                ControlMessageOwned::Ipv6PacketInfo(info) => Some(Local::Ipv6(info.ipi6_addr, info.ipi6_ifindex)),
                _ => None,
            });
            Ok((message.bytes, client, local.unwrap_or(Local::Bound)))
        })
    }

    /// What cannot be sent at once is lost, as packets are; the client asks again.
    fn send(&self, packet: &[u8], client: SocketAddr, local: Local) {
        let sent = match local {
            Local::Bound => self.socket.try_send_to(packet, client),
            Local::Ipv4(address) => {
                let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: in_addr { s_addr: 0 } };
                self.send_from(packet, client, ControlMessage::Ipv4PacketInfo(&info))
            }
            Local::Ipv6(address, interface) => {
                // Only a link-local address needs to say through which link.
                let is_link_local = address.s6_addr[0] == 0xfe && address.s6_addr[1] & 0xc0 == 0x80;
                let info = in6_pktinfo { ipi6_addr: address, ipi6_ifindex: if is_link_local { interface } else { 0 } };
                self.send_from(packet, client, ControlMessage::Ipv6PacketInfo(&info))
            }
        };
        if let Err(error) = sent {
            debug!(%client, %error, "cannot send an answer");
        }
    }

    fn send_from(&self, packet: &[u8], client: SocketAddr, from: ControlMessage) -> io::Result<usize> {
        let to = SockaddrStorage::from(client);
        self.socket.try_io(Interest::WRITABLE, || {
            let parts = [IoSlice::new(packet)];
            Ok(sendmsg(self.socket.as_raw_fd(), &parts, &[from], MsgFlags::empty(), Some(&to))?)
        })
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(ipv4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::new(IpAddr::V4(ipv4.ip()), ipv4.port()));
    }
    storage.as_sockaddr_in6().map(|ipv6| SocketAddr::V6((*ipv6).into()))
}
