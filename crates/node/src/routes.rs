//! Pure. Who is reached through which interface, from the kernel's lists of routes: `/proc/net/route` and
//! `/proc/net/ipv6_route` (net/ipv4/fib_trie.c, net/ipv6/route.c in Linux).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::config::PodInterfaces;

/// The ranges behind some interfaces, without default routes, the node's own addresses, multicast and link-local.
pub fn behind(interfaces: &PodInterfaces, ipv4: &str, ipv6: &str) -> BTreeSet<IpNet> {
    let routes = ipv4.lines().filter_map(route_v4).chain(ipv6.lines().filter_map(route_v6));
    let behind = routes.filter(|(interface, range)| interfaces.has(interface) && range.prefix_len() > 0);
    behind.map(|(_, range)| range).filter(is_usual).collect()
}

fn is_usual(range: &IpNet) -> bool {
    match range.addr() {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_multicast(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_multicast(),
    }
}

/// Interface, destination, gateway, flags, three counters, mask: numbers as the machine has them in memory.
fn route_v4(line: &str) -> Option<(&str, IpNet)> {
    let mut words = line.split_whitespace();
    let (interface, destination, mask) = (words.next()?, number(words.next()?)?, number(words.nth(5)?)?);
    let length = u8::try_from(u32::from_be_bytes(mask).leading_ones()).ok()?;
    Some((interface, IpNet::new(IpAddr::from(destination), length).ok()?))
}

fn number(word: &str) -> Option<[u8; 4]> {
    u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
}

/// Destination, its length, source, its length, next hop, three counters, flags, interface.
fn route_v6(line: &str) -> Option<(&str, IpNet)> {
    const LOCAL: u32 = 0x8000_0000;
    const ANYCAST: u32 = 0x0010_0000;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [destination, length, _, _, _, _, _, _, flags, interface] = words[..] else { return None };
    if u32::from_str_radix(flags, 16).ok()? & (LOCAL | ANYCAST) != 0 {
        return None;
    }
    let address = Ipv6Addr::from(u128::from_str_radix(destination, 16).ok()?);
    let length = u8::from_str_radix(length, 16).ok()?;
    Some((interface, IpNet::new(address.into(), length).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a machine of the lab has them.
    const IPV4: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0
cni0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
cali7\t0902F40A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
eth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
";
    const IPV6: &str = "\
fd000010024400010000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     cni0
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     cni0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000172001800000000000000000001 00000400 00000001 00000000 00000003     eth0
fd000010024400010000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001     cni0
ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     cni0
";

    fn found(interfaces: PodInterfaces) -> Vec<String> {
        behind(&interfaces, IPV4, IPV6).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_bridge_has_its_pods_behind_it() {
        assert_eq!(found(PodInterfaces::Bridge("cni0".into())), ["10.244.1.0/24", "fd00:10:244:1::/64"]);
        assert_eq!(found(PodInterfaces::Bridge("cni".into())), Vec::<String>::new());
    }

    #[test]
    fn each_interface_with_a_prefix_has_its_pod_behind_it() {
        assert_eq!(found(PodInterfaces::Prefix("cali".into())), ["10.244.2.9/32"]);
        assert_eq!(found(PodInterfaces::Prefix("c".into())).len(), 3);
    }

    #[test]
    fn default_routes_count_for_nobody_and_nonsense_harms_nothing() {
        assert_eq!(found(PodInterfaces::Bridge("eth0".into())), ["172.18.0.0/16"]);
        let all = PodInterfaces::Prefix(String::new());
        assert!(behind(&all, "x\na b c d e f g h\n\u{fc}", "0 0 0 0 0 0 0 0 0\nz 80 0 0 0 0 0 0 0 a\n").is_empty());
    }
}
