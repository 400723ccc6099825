//! Pure. Interfaces, routes and neighbours, as `ip -json` tells them, and sockets, as `/proc/net` does.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use signpost_core::object::{Family, Protocol};

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// The largest packet, in bytes.
    pub mtu_bytes: u32,
    /// What sort it is (`veth`, `bridge`), if it is a made one.
    pub kind: Option<String>,
    /// The bridge that it is a port of.
    pub bridge: Option<String>,
    /// Whether that bridge sends packets back through it.
    pub hairpin: Option<bool>,
    /// Its addresses with the length of their network.
    pub addresses: Vec<IpNet>,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destinations.
    pub to: IpNet,
    /// The next router, if there is one.
    pub via: Option<IpAddr>,
    /// The interface.
    pub device: Option<String>,
    /// `unicast`, or what else becomes of packets: `blackhole`, `unreachable`, `prohibit`.
    pub kind: String,
}

/// A neighbour of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// The interface.
    pub device: String,
    /// Its hardware address, if known.
    pub hardware: Option<String>,
    /// `REACHABLE`, `STALE`, `FAILED`, ...
    pub state: String,
}

/// A socket that waits for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Listener {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its address; unspecified: all.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// From `ip -json -details address`.
pub fn interfaces(value: &Value) -> Vec<Interface> {
    let interface = |link: &Value| {
        let flags = link.get("flags").map_or(&[][..], items);
        let is_on = |flag: &str| flags.iter().any(|found| found.as_str() == Some(flag));
        let addresses = link.get("addr_info").map_or(&[][..], items);
        let port = link.pointer("/linkinfo/info_slave_data");
        Some(Interface {
            name: text(link, "ifname")?.to_owned(),
            up: is_on("UP") && (is_on("LOWER_UP") || is_on("LOOPBACK")),
            mtu_bytes: link.get("mtu").and_then(Value::as_u64).and_then(|mtu| u32::try_from(mtu).ok()).unwrap_or(0),
            kind: link.pointer("/linkinfo/info_kind").and_then(Value::as_str).map(str::to_owned),
            bridge: text(link, "master").map(str::to_owned),
            hairpin: port.and_then(|port| port.get("hairpin")).and_then(Value::as_bool),
            addresses: addresses
                .iter()
                .filter_map(|address| {
                    let length = address.get("prefixlen").and_then(Value::as_u64)?;
                    IpNet::new(text(address, "local")?.parse().ok()?, u8::try_from(length).ok()?).ok()
                })
                .collect(),
        })
    };
    items(value).iter().filter_map(interface).collect()
}

/// From `ip -json route` of one family.
pub fn routes(value: &Value, family: Family) -> Vec<Route> {
    let route = |route: &Value| {
        let everything: IpNet = match family {
            Family::Ipv4 => IpNet::new(Ipv4Addr::UNSPECIFIED.into(), 0).ok()?,
            Family::Ipv6 => IpNet::new(Ipv6Addr::UNSPECIFIED.into(), 0).ok()?,
        };
        let to = match text(route, "dst")? {
            "default" => everything,
            written => written.parse().or_else(|_| written.parse::<IpAddr>().map(IpNet::from)).ok()?,
        };
        Some(Route {
            to,
            via: text(route, "gateway").and_then(|via| via.parse().ok()),
            device: text(route, "dev").map(str::to_owned),
            kind: text(route, "type").unwrap_or("unicast").to_owned(),
        })
    };
    items(value).iter().filter_map(route).collect()
}

/// From `ip -json neighbour`.
pub fn neighbours(value: &Value) -> Vec<Neighbour> {
    let neighbour = |found: &Value| {
        Some(Neighbour {
            address: text(found, "dst")?.parse().ok()?,
            device: text(found, "dev")?.to_owned(),
            hardware: text(found, "lladdr").map(str::to_owned),
            state: found.get("state").map_or(&[][..], items).first().and_then(Value::as_str).unwrap_or("").to_owned(),
        })
    };
    items(value).iter().filter_map(neighbour).collect()
}

/// The route that a packet to an address takes: the longest that fits.
pub fn route_to(routes: &[Route], address: IpAddr) -> Option<&Route> {
    routes.iter().filter(|route| route.to.contains(&address)).max_by_key(|route| route.to.prefix_len())
}

/// The sockets that wait for clients, from a table such as `/proc/net/tcp6`.
pub fn listeners(table: &str, protocol: Protocol) -> BTreeSet<Listener> {
    // TCP_LISTEN; a UDP socket without a peer is in TCP_CLOSE.
    let waiting = if protocol == Protocol::Tcp { "0A" } else { "07" };
    let socket = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, state) = (words.next()?, words.next()?, words.next()?);
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok().filter(|port| *port != 0)?;
        let listener = Listener { protocol, address: hexadecimal(address)?, port };
        (state == waiting).then_some(listener)
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// An address as `/proc/net` writes it: words of four bytes, each in the machine's order.
fn hexadecimal(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for number in 0..4 {
                bytes[4 * number..4 * number + 4].copy_from_slice(&word(8 * number)?);
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn listening_sockets_are_read_and_others_are_not() {
        let tcp = "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:1F90 00000000:0000 0A 0\n   1: 0201F40A:0050 0A01F40A:9C40 01 0\n";
        let found: Vec<_> = listeners(tcp, Protocol::Tcp).into_iter().collect();
        assert_eq!((found.len(), found[0].address, found[0].port), (1, "127.0.0.1".parse().unwrap(), 8080));
        let udp = "sl\n 5: 000000FD000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0\n";
        let found: Vec<_> = listeners(udp, Protocol::Udp).into_iter().collect();
        assert_eq!(found[0].address, "fd00::1".parse::<IpAddr>().unwrap());
        assert!(listeners("garbage\nmore garbage\n x: y:z a b\n", Protocol::Tcp).is_empty());
    }

    #[test]
    fn the_longest_route_is_taken() {
        let value = json!([
            {"dst": "default", "gateway": "172.18.0.1", "dev": "eth0"},
            {"dst": "10.244.2.0/24", "gateway": "172.18.0.12", "dev": "eth0"},
            {"type": "blackhole", "dst": "10.244.3.0/24"},
            {"dst": "nonsense"},
        ]);
        let routes = routes(&value, Family::Ipv4);
        assert_eq!(routes.len(), 3);
        let via = route_to(&routes, "10.244.2.7".parse().unwrap()).and_then(|route| route.via);
        assert_eq!(via, Some("172.18.0.12".parse().unwrap()));
        assert_eq!(
            route_to(&routes, "10.244.3.7".parse().unwrap()).map(|route| route.kind.as_str()),
            Some("blackhole")
        );
        assert_eq!(route_to(&routes, "fd00::1".parse().unwrap()), None);
    }
}
