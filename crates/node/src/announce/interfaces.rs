//! The interfaces of this network namespace on which an address can be answered for, and when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ipnet::IpNet;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recv, socket,
};
use signpost_wire::mac::Mac;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR (linux/rtnetlink.h).
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// An interface with an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: Arc<str>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// It is up and has a carrier.
    pub is_up: bool,
    /// The networks that it is on.
    pub networks: Vec<IpNet>,
}

/// All of them, by number.
///
/// # Errors
/// The kernel refused.
pub fn read() -> io::Result<Vec<Interface>> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    let mut networks: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
    for entry in getifaddrs()? {
        let Some(address) = entry.address else { continue };
        if let Some(link) = address.as_link_addr() {
            let speaks_arp = !entry.flags.intersects(InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_NOARP);
            let (Some(mac), Ok(index)) = (link.addr().map(Mac), u32::try_from(link.ifindex())) else { continue };
            if speaks_arp && link.halen() == 6 && mac.is_unicast() {
                let is_up = entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
                let name: Arc<str> = entry.interface_name.as_str().into();
                found.insert(entry.interface_name, Interface { index, name, mac, is_up, networks: Vec::new() });
            }
        } else if let Some(network) = network(&address, entry.netmask.as_ref()) {
            networks.entry(entry.interface_name).or_default().push(network);
        }
    }
    for (name, networks) in networks {
        if let Some(interface) = found.get_mut(&name) {
            interface.networks = networks;
        }
    }
    let mut interfaces: Vec<Interface> = found.into_values().collect();
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

fn network(address: &SockaddrStorage, mask: Option<&SockaddrStorage>) -> Option<IpNet> {
    let ip = |storage: &SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    IpNet::with_netmask(ip(address)?, ip(mask?)?).ok()
}

/// Those on which an address is to be answered for: of those that are named, or that have the address' network; if none has
/// it, those that have one of the node's own addresses.
pub fn for_address<'a>(
    interfaces: &'a [Interface],
    address: IpAddr,
    named: &BTreeSet<Arc<str>>,
    own: &[IpAddr],
) -> Vec<&'a Interface> {
    let up = || interfaces.iter().filter(|interface| interface.is_up);
    let is_on = |interface: &Interface, address: &IpAddr| interface.networks.iter().any(|net| net.contains(address));
    if !named.is_empty() {
        return up().filter(|interface| named.contains(&interface.name)).collect();
    }
    let exact: Vec<&Interface> = up().filter(|interface| is_on(interface, &address)).collect();
    // A network that is there, but down, is not replaced by another one.
    if !exact.is_empty() || interfaces.iter().any(|interface| is_on(interface, &address)) {
        return exact;
    }
    up().filter(|interface| own.iter().any(|own| is_on(interface, own))).collect()
}

/// Tells that something about interfaces or addresses changed.
///
/// # Errors
/// The kernel gives no socket. Must be called inside a tokio runtime.
pub fn changes() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    sys::watch_readable(socket)
}

/// Takes the messages away: what they say is read afresh anyway.
pub fn drain(socket: &OwnedFd) {
    let mut buffer = [0; 8192];
    while let Ok(1..) | Err(Errno::ENOBUFS | Errno::EINTR) =
        recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, is_up: bool, network: &str) -> Interface {
        let networks = vec![network.parse().unwrap()];
        Interface { index, name: name.into(), mac: Mac([2, 0, 0, 0, 0, 1]), is_up, networks }
    }

    #[test]
    fn an_address_belongs_to_the_interface_of_its_network() {
        let interfaces = [
            interface(2, "eth0", true, "172.18.0.11/16"),
            interface(3, "eth1", true, "10.0.0.1/24"),
            interface(4, "eth2", false, "10.9.0.1/24"),
        ];
        let own: Vec<IpAddr> = vec!["172.18.0.11".parse().unwrap()];
        let names = |address: &str, named: &[&str]| -> Vec<String> {
            let named = named.iter().map(|name| Arc::from(*name)).collect();
            let found = for_address(&interfaces, address.parse().unwrap(), &named, &own);
            found.iter().map(|interface| interface.name.to_string()).collect()
        };
        assert_eq!(names("172.18.15.200", &[]), ["eth0"]);
        assert_eq!(names("10.0.0.7", &[]), ["eth1"]);
        assert_eq!(names("192.0.2.1", &[]), ["eth0"], "of no network: where the node itself is known");
        assert_eq!(names("10.9.0.7", &[]), Vec::<String>::new(), "its network has no carrier");
        assert_eq!(names("172.18.15.200", &["eth1", "eth7"]), ["eth1"]);
    }
}
