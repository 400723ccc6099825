//! Pure. The lab's map: who has which address, and the `ip -batch` commands that make each namespace so.
//!
//! ```text
//!   outside ──── router ──── node segment (bridge `nodes` in the router's namespace)
//!  192.0.2.10   .2.1 │ 172.18.0.1           │                │
//!                    │                n1 172.18.0.11   n2 172.18.0.12
//!                    │                      │ cni0           │ cni0
//!             API, port 6443          pods 10.244.1.0/24   pods 10.244.2.0/24
//! ```
//!
//! A pod has its address as a host address (/32, /128) and sends everything to its node: traffic between two pods of a
//! node is routed by the node, so that the node's rules and its connection tracking see both directions, without
//! `br_netfilter`. IPv6 mirrors IPv4, the decimal digits read as they stand: fd00:172:18::11, fd00:10:244:2::7.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use signpost_core::object::Family;

use crate::spec::Families;

/// The port of the API inside the lab.
pub const API_PORT: u16 = 6443;
/// The bridge in the router's namespace that is the node segment.
pub const SEGMENT: &str = "nodes";
/// A node's bridge to its pods.
pub const POD_BRIDGE: &str = "cni0";
/// The first and last host part that a pod may get.
pub const POD_HOSTS: std::ops::RangeInclusive<u8> = 2..=254;

/// The addresses of a lab's parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The families.
    pub families: Families,
    /// How many nodes, numbered from 1.
    pub nodes: u8,
}

impl Topology {
    /// The router's addresses on the node segment, primary family first.
    pub fn router(&self) -> Vec<IpAddr> {
        self.each(|family| segment_address(family, 1))
    }

    /// Where pods and daemons reach the API, primary family first.
    pub fn api(&self) -> Vec<SocketAddr> {
        self.router().into_iter().map(|address| SocketAddr::new(address, API_PORT)).collect()
    }

    /// The router's addresses towards the outside client.
    pub fn router_outside(&self) -> Vec<IpAddr> {
        self.each(|family| outside_address(family, 1))
    }

    /// The outside client's addresses.
    pub fn outside(&self) -> Vec<IpAddr> {
        self.each(|family| outside_address(family, 10))
    }

    /// The addresses of node `n` (from 1), primary family first.
    pub fn node(&self, n: u8) -> Vec<IpAddr> {
        self.each(|family| segment_address(family, 10 + n))
    }

    /// The pod networks of node `n`.
    pub fn pod_cidrs(&self, n: u8) -> Vec<IpNet> {
        self.each(|family| net(pod_address(family, n, 0), prefix(family, 24, 64)))
    }

    /// The addresses of node `n` on its pods' bridge: their gateway.
    pub fn gateways(&self, n: u8) -> Vec<IpAddr> {
        self.each(|family| pod_address(family, n, 1))
    }

    /// The addresses of the pod with host part `host` on node `n`.
    pub fn pod(&self, n: u8, host: u8) -> Vec<IpAddr> {
        self.each(|family| pod_address(family, n, host))
    }

    /// The networks of all pods.
    pub fn cluster_cidrs(&self) -> Vec<IpNet> {
        self.each(|family| match family {
            Family::Ipv4 => net(Ipv4Addr::new(10, 244, 0, 0).into(), 16),
            Family::Ipv6 => net(Ipv6Addr::new(0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0).into(), 48),
        })
    }

    /// The networks of cluster addresses.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        self.each(|family| match family {
            Family::Ipv4 => net(Ipv4Addr::new(10, 96, 0, 0).into(), 12),
            Family::Ipv6 => net(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0).into(), 112),
        })
    }

    /// The cluster addresses of the cluster's name service, primary family first: the tenth of each range.
    pub fn dns(&self) -> Vec<IpAddr> {
        self.service_cidrs().iter().filter_map(|net| nth_address(net, 10)).collect()
    }

    /// The router: the node segment with a port per node, the way outside, and a route to each node's pods. What has
    /// no route is dropped in silence, as beyond a real uplink. `node_namespaces[i]` and `outside_namespace` are paths
    /// that `ip` opens.
    pub fn router_commands(&self, node_namespaces: &[String], outside_namespace: &str) -> Vec<String> {
        let mut batch = vec![
            "link set lo up".to_owned(),
            format!("link add {SEGMENT} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"),
            format!("link add outside type veth peer name eth0 netns {outside_namespace}"),
        ];
        for (n, namespace) in (1u8..).zip(node_namespaces) {
            let port = node_port(n);
            batch.push(format!("link add {port} type veth peer name eth0 netns {namespace}"));
            batch.push(format!("link set {port} master {SEGMENT}"));
            batch.push(format!("link set {port} up"));
        }
        for address in self.router() {
            batch.push(add_address(address, prefix(Family::of(address), 16, 64), SEGMENT));
        }
        for address in self.router_outside() {
            batch.push(add_address(address, prefix(Family::of(address), 24, 64), "outside"));
        }
        batch.push(format!("link set {SEGMENT} up"));
        batch.push("link set outside up".to_owned());
        for family in self.families.list() {
            let any = if *family == Family::Ipv4 { "0.0.0.0/0" } else { "::/0" };
            batch.push(format!("route add blackhole {any}"));
        }
        for n in 1..=self.nodes {
            for (cidr, via) in self.pod_cidrs(n).into_iter().zip(self.node(n)) {
                batch.push(format!("route add {cidr} via {via} dev {SEGMENT}"));
            }
        }
        batch
    }

    /// Node `n`: its addresses, the bridge for its pods, the router as default, the other nodes' pods by those nodes.
    pub fn node_commands(&self, n: u8) -> Vec<String> {
        let mut batch = vec![
            "link set lo up".to_owned(),
            // A bridge without an address of its own takes the lowest of its ports', and another one when that port's pod
            // ends: the other pods would go on sending to the old one.
            format!(
                "link add {POD_BRIDGE} address 02:00:0a:f4:{n:02x}:01 type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
            ),
        ];
        for address in self.node(n) {
            batch.push(add_address(address, prefix(Family::of(address), 16, 64), "eth0"));
        }
        for address in self.gateways(n) {
            batch.push(add_address(address, prefix(Family::of(address), 24, 64), POD_BRIDGE));
        }
        batch.push("link set eth0 up".to_owned());
        batch.push(format!("link set {POD_BRIDGE} up"));
        for via in self.router() {
            batch.push(format!("route add default via {via} dev eth0"));
        }
        for other in (1..=self.nodes).filter(|other| *other != n) {
            for (cidr, via) in self.pod_cidrs(other).into_iter().zip(self.node(other)) {
                batch.push(format!("route add {cidr} via {via} dev eth0"));
            }
        }
        batch
    }

    /// The outside client: its address, and the router for everything else.
    pub fn outside_commands(&self) -> Vec<String> {
        let mut batch = vec!["link set lo up".to_owned()];
        for address in self.outside() {
            batch.push(add_address(address, prefix(Family::of(address), 24, 64), "eth0"));
        }
        batch.push("link set eth0 up".to_owned());
        for via in self.router_outside() {
            batch.push(format!("route add default via {via} dev eth0"));
        }
        batch
    }

    /// A pod's side: `eth0`, whose other end is `port` in the node's namespace.
    pub fn pod_commands(&self, n: u8, host: u8, port: &str, node_namespace: &str) -> Vec<String> {
        let mut batch = vec![
            "link set lo up".to_owned(),
            format!("link add eth0 type veth peer name {port} netns {node_namespace}"),
        ];
        for address in self.pod(n, host) {
            batch.push(add_address(address, prefix(Family::of(address), 32, 128), "eth0"));
        }
        batch.push("link set eth0 up".to_owned());
        for via in self.gateways(n) {
            batch.push(format!("route add {via}/{} dev eth0", prefix(Family::of(via), 32, 128)));
            batch.push(format!("route add default via {via} dev eth0"));
        }
        batch
    }

    /// The node's side of a pod's link.
    pub fn pod_port_commands(&self, port: &str) -> Vec<String> {
        vec![format!("link set {port} master {POD_BRIDGE}"), format!("link set {port} up")]
    }

    fn each<T>(&self, value: impl Fn(Family) -> T) -> Vec<T> {
        self.families.list().iter().map(|family| value(*family)).collect()
    }
}

/// The first address of a network after its own.
pub(crate) fn first_host(net: &IpNet) -> Option<IpAddr> {
    nth_address(net, 1)
}

/// The address so many after a network's own.
pub(crate) fn nth_address(net: &IpNet, n: u8) -> Option<IpAddr> {
    match net {
        IpNet::V4(net) => u32::from(net.network()).checked_add(u32::from(n)).map(|ip| Ipv4Addr::from(ip).into()),
        IpNet::V6(net) => u128::from(net.network()).checked_add(u128::from(n)).map(|ip| Ipv6Addr::from(ip).into()),
    }
}

/// The router's interface to node `n`: a port of the node segment. Down: the node's link is cut.
pub fn node_port(n: u8) -> String {
    format!("node{n}")
}

/// The node's interface to its pod with host part `host`.
pub fn pod_port(host: u8) -> String {
    format!("veth{host}")
}

/// A path below `/proc/sys` and its value.
pub type Sysctl = (&'static str, &'static str);

/// Sysctls of a namespace, as paths below `/proc/sys` and values, to be written before any interface is made: IPv4
/// takes its first values from the machine's namespace, so that each is said here. Those in the second list exist
/// only where the kernel was built for them or a module is loaded.
pub fn sysctls(forwards: bool) -> (Vec<Sysctl>, Vec<Sysctl>) {
    let forward = if forwards { "1" } else { "0" };
    let must = vec![
        ("net/ipv4/ip_forward", forward),
        ("net/ipv6/conf/all/forwarding", forward),
        ("net/ipv6/conf/default/forwarding", forward),
        ("net/ipv6/conf/all/disable_ipv6", "0"),
        ("net/ipv6/conf/default/disable_ipv6", "0"),
        // No duplicate address detection and no router advertisements: an address serves the moment it is there.
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/all/accept_ra", "0"),
        ("net/ipv6/conf/default/accept_ra", "0"),
        // Two pods of a node must not be led past the node's rules.
        ("net/ipv6/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/default/accept_redirects", "0"),
        ("net/ipv4/conf/all/accept_redirects", "0"),
        ("net/ipv4/conf/default/accept_redirects", "0"),
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/default/send_redirects", "0"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        ("net/ipv4/ping_group_range", "0 2147483647"),
        // Every refusal is told: by default one ICMP error per second and peer is, and others look like losses.
        ("net/ipv4/icmp_ratelimit", "0"),
        ("net/ipv6/icmp/ratelimit", "0"),
    ];
    let may = vec![
        ("net/bridge/bridge-nf-call-iptables", "0"),
        ("net/bridge/bridge-nf-call-ip6tables", "0"),
        ("net/bridge/bridge-nf-call-arptables", "0"),
        // Equal routes share flows out by ports too: a lab's clients are few.
        ("net/ipv4/fib_multipath_hash_policy", "1"),
        ("net/ipv6/fib_multipath_hash_policy", "1"),
    ];
    (must, may)
}

fn add_address(address: IpAddr, prefix: u8, device: &str) -> String {
    let nodad = if address.is_ipv6() { " nodad" } else { "" };
    format!("addr add {address}/{prefix} dev {device}{nodad}")
}

fn prefix(family: Family, ipv4: u8, ipv6: u8) -> u8 {
    match family {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    }
}

fn net(address: IpAddr, prefix: u8) -> IpNet {
    match address {
        IpAddr::V4(address) => IpNet::V4(Ipv4Net::new_assert(address, prefix)),
        IpAddr::V6(address) => IpNet::V6(Ipv6Net::new_assert(address, prefix)),
    }
}

fn segment_address(family: Family, host: u8) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::new(172, 18, 0, host).into(),
        Family::Ipv6 => Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, digits(host)).into(),
    }
}

fn outside_address(family: Family, host: u8) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::new(192, 0, 2, host).into(),
        Family::Ipv6 => Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, digits(host)).into(),
    }
}

fn pod_address(family: Family, n: u8, host: u8) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::new(10, 244, n, host).into(),
        Family::Ipv6 => Ipv6Addr::new(0xfd00, 0x10, 0x244, digits(n), 0, 0, 0, digits(host)).into(),
    }
}

/// The number whose hexadecimal digits are the decimal ones of `value`: 254 becomes 0x254.
fn digits(value: u8) -> u16 {
    let value = u16::from(value);
    ((value / 100) << 8) | ((value / 10 % 10) << 4) | (value % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<T: ToString>(items: Vec<T>) -> Vec<String> {
        items.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ipv6_mirrors_the_decimal_digits_of_ipv4() {
        let lab = Topology { families: Families::Dual, nodes: 244 };
        assert_eq!(texts(lab.node(1)), ["172.18.0.11", "fd00:172:18::11"]);
        assert_eq!(texts(lab.node(244)), ["172.18.0.254", "fd00:172:18::254"]);
        assert_eq!(texts(lab.pod(2, 107)), ["10.244.2.107", "fd00:10:244:2::107"]);
        assert_eq!(texts(lab.pod_cidrs(12)), ["10.244.12.0/24", "fd00:10:244:12::/64"]);
        assert_eq!(texts(lab.api()), ["172.18.0.1:6443", "[fd00:172:18::1]:6443"]);
        assert_eq!(texts(lab.outside()), ["192.0.2.10", "2001:db8:2::10"]);
        assert_eq!(texts(lab.cluster_cidrs()), ["10.244.0.0/16", "fd00:10:244::/48"]);
        assert_eq!(texts(lab.service_cidrs()), ["10.96.0.0/12", "fd00:10:96::/112"]);
    }

    #[test]
    fn a_family_that_is_not_asked_for_appears_in_no_command() {
        let commands = |families| {
            let lab = Topology { families, nodes: 2 };
            let mut all = lab.router_commands(&["/a".into(), "/b".into()], "/o");
            all.extend(lab.node_commands(1));
            all.extend(lab.outside_commands());
            all.extend(lab.pod_commands(1, 2, "veth2", "/a"));
            all.join("\n")
        };
        assert!(!commands(Families::Ipv4).contains("::"));
        assert!(!commands(Families::Ipv6).contains("10.244."));
        let dual = commands(Families::Dual);
        assert!(dual.contains("addr add 10.244.1.2/32 dev eth0"));
        assert!(dual.contains("addr add fd00:10:244:1::2/128 dev eth0 nodad"));
        assert!(dual.contains("route add 10.244.2.0/24 via 172.18.0.12 dev eth0"));
    }
}
