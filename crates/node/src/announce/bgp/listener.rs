//! Where peers connect to: BGP's port, in both families. A connection of somebody who is no peer is closed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use std::os::fd::AsRawFd;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info};

use super::peer::PeerOptions;
use crate::sys;

const PORT: u16 = 179;
const HOPS: u32 = 255;

/// The listening sockets, as far as there are any.
pub struct Listener {
    sockets: Vec<TcpListener>,
    /// The peers that have a password here, each with it.
    passwords: BTreeMap<IpAddr, String>,
}

impl Listener {
    /// Listens, if nobody else does. Must be called inside a tokio runtime.
    pub fn start() -> Listener {
        let mut sockets = Vec::new();
        for address in [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)] {
            match open(SocketAddr::new(address, PORT)) {
                Ok(socket) => sockets.push(socket),
                Err(error) => info!(%address, %error, "peers cannot connect to this node; it connects to them"),
            }
        }
        Listener { sockets, passwords: BTreeMap::new() }
    }

    /// The passwords of these peers hold from now on.
    pub fn guard<'a>(&mut self, peers: impl Iterator<Item = &'a PeerOptions>) {
        let wanted: BTreeMap<IpAddr, String> =
            peers.filter_map(|peer| Some((peer.address.ip(), peer.password.clone()?))).collect();
        let both: BTreeSet<IpAddr> = wanted.keys().chain(self.passwords.keys()).copied().collect();
        for address in both.into_iter().filter(|address| wanted.get(address) != self.passwords.get(address)) {
            // An empty password takes the former one away.
            let password = wanted.get(&address).map_or("", String::as_str);
            for socket in &self.sockets {
                let of_family = socket.local_addr().is_ok_and(|local| local.is_ipv4() == address.is_ipv4());
                if of_family && let Err(error) = sys::set_tcp_md5(socket, SocketAddr::new(address, 0), password) {
                    debug!(%address, %error, "a peer's password does not hold for connections that it makes");
                }
            }
        }
        self.passwords = wanted;
    }

    /// The next connection, with who made it. Never, if nothing is listened at.
    pub async fn accept(&self) -> (TcpStream, IpAddr) {
        loop {
            let waiting = self.sockets.iter().map(|socket| Box::pin(socket.accept())).collect::<Vec<_>>();
            if waiting.is_empty() {
                return std::future::pending().await;
            }
            match futures::future::select_all(waiting).await.0 {
                Ok((stream, from)) => {
                    let prepared = stream.set_nodelay(true).and_then(|()| sys::set_hops(&stream, from.is_ipv4(), HOPS));
                    match prepared {
                        Ok(()) => return (stream, from.ip().to_canonical()),
                        Err(error) => debug!(%from, %error, "a connection went before it could be used"),
                    }
                }
                Err(error) => {
                    debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(super::super::RETRY).await;
                }
            }
        }
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&socket, Backlog::new(64)?)?;
    TcpListener::from_std(socket.into())
}
