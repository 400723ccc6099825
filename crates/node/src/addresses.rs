//! The addresses of this network namespace's interfaces, who is behind some of them, and when that changes.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use ipnet::IpNet;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use signpost_core::node_cache;
use signpost_core::object::Family;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::config::PodInterfaces;
use crate::{routes, sys};

/// Multicast groups of addresses that come and go: RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR (linux/rtnetlink.h).
const GROUPS: u32 = 0x10 | 0x100;
/// And of routes: RTMGRP_IPV4_ROUTE and RTMGRP_IPV6_ROUTE.
const ROUTE_GROUPS: u32 = 0x40 | 0x400;
/// Should a message have been lost.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// Where the mode IPVS keeps the Services' addresses, and kube-proxy too: they are not the node's own.
const SERVICES: &str = signpost_datapath::ipvs::link::DEVICE;

/// What is known of this network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Local {
    /// See [`read`].
    pub addresses: BTreeSet<IpAddr>,
    /// Ranges behind the interfaces that were asked for.
    pub behind: BTreeSet<IpNet>,
}

/// All addresses but those of Services and of the node's cache for names, and without the link-local ones of IPv6: those come and go with every pod, and no
/// Service is reached from one.
///
/// # Errors
/// The kernel refused.
pub fn read() -> io::Result<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    for interface in getifaddrs()? {
        let Some(storage) = interface.address.filter(|_| interface.interface_name != SERVICES) else { continue };
        if let Some(v4) = storage.as_sockaddr_in() {
            addresses.insert(IpAddr::V4(v4.ip()));
        } else if let Some(v6) = storage.as_sockaddr_in6()
            && !v6.ip().is_unicast_link_local()
        {
            addresses.insert(IpAddr::V6(v6.ip()));
        }
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        addresses.remove(&node_cache::address(family));
    }
    Ok(addresses)
}

fn read_all(interfaces: Option<&PodInterfaces>) -> io::Result<Local> {
    let behind = match interfaces {
        None => BTreeSet::new(),
        Some(interfaces) => {
            let ipv4 = std::fs::read_to_string("/proc/thread-self/net/route")?;
            // A kernel may have no IPv6.
            let ipv6 = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
            routes::behind(interfaces, &ipv4, &ipv6)
        }
    };
    Ok(Local { addresses: read()?, behind })
}

/// Follows the addresses, and who is behind some interfaces. The task behind it ends with the receiver. Must be called inside a tokio runtime.
///
/// # Errors
/// The addresses cannot be read, or the kernel gives no socket.
pub fn follow(interfaces: Option<PodInterfaces>) -> io::Result<watch::Receiver<Local>> {
    // Subscribed first, so that no change falls between.
    let groups = GROUPS | if interfaces.is_some() { ROUTE_GROUPS } else { 0 };
    let changes = sys::watch_readable(subscribe(groups)?)?;
    let (sender, receiver) = watch::channel(read_all(interfaces.as_ref())?);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(READ_AGAIN) => {}
                ready = changes.readable() => match ready {
                    Ok(mut ready) => {
                        drain(changes.get_ref());
                        ready.clear_ready();
                    }
                    Err(error) => {
                        warn!(%error, "changes of addresses are seen only every half minute");
                        tokio::time::sleep(READ_AGAIN).await;
                    }
                },
            }
            match read_all(interfaces.as_ref()) {
                Ok(now) => {
                    sender.send_if_modified(|known| {
                        let changed = *known != now;
                        *known = now;
                        changed
                    });
                }
                Err(error) => debug!(%error, "the addresses cannot be read"),
            }
        }
    });
    Ok(receiver)
}

fn subscribe(groups: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// What the messages say is read afresh anyway; a lost one (ENOBUFS) is as good as any.
fn drain(socket: &OwnedFd) {
    let mut buffer = [0; 8192];
    while let Ok(1..) | Err(Errno::ENOBUFS | Errno::EINTR) =
        recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_addresses_and_link_local_is_not() {
        let addresses = read().unwrap();
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])));
        assert!(addresses.iter().all(|address| !address.to_string().starts_with("fe80")));
    }
}
