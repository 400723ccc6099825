//! Pure. The ipsets, by kube-proxy's names, and their text as `ipset save` writes it and `ipset restore` reads it.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;
use signpost_core::object::{Family, Protocol};

use super::server::Place;

/// A set. The first part are kube-proxy's own, in name and meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Cluster addresses with their ports.
    ClusterIp,
    /// External addresses of Services whose external policy is Cluster.
    ExternalIp,
    /// Those whose external policy is Local.
    ExternalIpLocal,
    /// Load-balancer addresses.
    LoadBalancer,
    /// Of these, those whose external policy is Local.
    LoadBalancerLocal,
    /// Load-balancer addresses that are not for everybody.
    LoadBalancerFirewall,
    /// Who may use those.
    LoadBalancerSources,
    /// Node ports.
    NodePort(Protocol),
    /// Of these, those whose external policy is Local.
    NodePortLocal(Protocol),
    /// Endpoints of this node, each with itself as a client: they are masqueraded on the way to themselves.
    LoopBack,
    /// All addresses of Services: what is no port of one is refused.
    IpvsIps,
    /// Cluster addresses at which everybody is masqueraded, pods too.
    ClusterIpMasquerade,
    /// Frontends without any endpoint.
    NoEndpoints,
    /// Frontends without endpoints on this node.
    NoLocalEndpoints,
    /// Frontends at which pods meet something else than others do, with the mark of what they meet.
    FromPod,
    /// The same for the node itself.
    FromNode,
    /// The same for all others.
    FromElsewhere,
}

/// What a set's elements are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    IpPort,
    IpPortMark,
    IpPortIp,
    IpPortNet,
    Port,
    Ip,
}

/// The kernel's default of 65,536 elements is too few for a large cluster. It is a bound alone: it costs nothing.
const MOST_ELEMENTS: u32 = 1 << 20;
/// The kernel's longest name.
const MOST_LETTERS: usize = 31;

impl Set {
    /// All of them.
    pub const ALL: [Set; 21] = [
        Set::ClusterIp,
        Set::ExternalIp,
        Set::ExternalIpLocal,
        Set::LoadBalancer,
        Set::LoadBalancerLocal,
        Set::LoadBalancerFirewall,
        Set::LoadBalancerSources,
        Set::NodePort(Protocol::Tcp),
        Set::NodePort(Protocol::Udp),
        Set::NodePort(Protocol::Sctp),
        Set::NodePortLocal(Protocol::Tcp),
        Set::NodePortLocal(Protocol::Udp),
        Set::NodePortLocal(Protocol::Sctp),
        Set::LoopBack,
        Set::IpvsIps,
        Set::ClusterIpMasquerade,
        Set::NoEndpoints,
        Set::NoLocalEndpoints,
        Set::FromPod,
        Set::FromNode,
        Set::FromElsewhere,
    ];

    fn kind(self) -> Kind {
        match self {
            Set::NodePort(Protocol::Tcp | Protocol::Udp) | Set::NodePortLocal(Protocol::Tcp | Protocol::Udp) => {
                Kind::Port
            }
            Set::LoopBack => Kind::IpPortIp,
            Set::LoadBalancerSources => Kind::IpPortNet,
            Set::IpvsIps => Kind::Ip,
            Set::FromPod | Set::FromNode | Set::FromElsewhere => Kind::IpPortMark,
            _ => Kind::IpPort,
        }
    }

    /// What rules look up in it: `dst,dst`.
    pub fn directions(self) -> &'static str {
        match self.kind() {
            Kind::IpPort | Kind::IpPortMark => "dst,dst",
            Kind::IpPortIp | Kind::IpPortNet => "dst,dst,src",
            Kind::Port | Kind::Ip => "dst",
        }
    }

    /// Its name. Those of IPv6 begin with `KUBE-6-` and are cut, as kube-proxy cuts them.
    pub fn name(self, family: Family) -> String {
        let name = self.short_name();
        match family {
            Family::Ipv4 => format!("KUBE-{name}"),
            Family::Ipv6 => format!("KUBE-6-{name}").chars().take(MOST_LETTERS).collect(),
        }
    }

    fn short_name(self) -> &'static str {
        match self {
            Set::ClusterIp => "CLUSTER-IP",
            Set::ExternalIp => "EXTERNAL-IP",
            Set::ExternalIpLocal => "EXTERNAL-IP-LOCAL",
            Set::LoadBalancer => "LOAD-BALANCER",
            Set::LoadBalancerLocal => "LOAD-BALANCER-LOCAL",
            Set::LoadBalancerFirewall => "LOAD-BALANCER-FW",
            Set::LoadBalancerSources => "LOAD-BALANCER-SOURCE-CIDR",
            Set::NodePort(Protocol::Tcp) => "NODE-PORT-TCP",
            Set::NodePort(Protocol::Udp) => "NODE-PORT-UDP",
            Set::NodePort(Protocol::Sctp) => "NODE-PORT-SCTP-HASH",
            Set::NodePortLocal(Protocol::Tcp) => "NODE-PORT-LOCAL-TCP",
            Set::NodePortLocal(Protocol::Udp) => "NODE-PORT-LOCAL-UDP",
            Set::NodePortLocal(Protocol::Sctp) => "NODE-PORT-LOCAL-SCTP-HASH",
            Set::LoopBack => "LOOP-BACK",
            Set::IpvsIps => "IPVS-IPS",
            Set::ClusterIpMasquerade => "CLUSTER-IP-MASQ",
            Set::NoEndpoints => "NO-ENDPOINTS",
            Set::NoLocalEndpoints => "NO-LOCAL-ENDPOINTS",
            Set::FromPod => "FROM-POD",
            Set::FromNode => "FROM-NODE",
            Set::FromElsewhere => "FROM-ELSEWHERE",
        }
    }

    /// The set of a name of a family.
    pub fn named(name: &str, family: Family) -> Option<Set> {
        Set::ALL.into_iter().find(|set| set.name(family) == name)
    }

    /// How it is made, behind `create NAME`.
    pub fn header(self, family: Family) -> String {
        let kind = match self.kind() {
            Kind::Port => return "bitmap:port range 0-65535".to_owned(),
            Kind::IpPort | Kind::IpPortMark => "hash:ip,port",
            Kind::IpPortIp => "hash:ip,port,ip",
            Kind::IpPortNet => "hash:ip,port,net",
            Kind::Ip => "hash:ip",
        };
        let family = if family == Family::Ipv4 { "inet" } else { "inet6" };
        let marks = if self.kind() == Kind::IpPortMark { " skbinfo" } else { "" };
        format!("{kind} family {family} hashsize 1024 maxelem {MOST_ELEMENTS}{marks}")
    }

    /// Whether what `ipset save` says behind `create NAME` is such a set. What grows by itself does not count.
    pub fn is_made_as(self, family: Family, saved: &str) -> bool {
        let has_marks = saved.split(' ').any(|word| word == "skbinfo");
        let has_room = word_behind(saved, "maxelem").is_none_or(|most| most == MOST_ELEMENTS.to_string());
        let wanted = self.header(family);
        let same = |behind: &str| word_behind(saved, behind) == word_behind(&wanted, behind);
        saved.split(' ').next() == wanted.split(' ').next()
            && same("family")
            && same("range")
            && has_room
            && has_marks == (self.kind() == Kind::IpPortMark)
    }
}

fn word_behind<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let mut words = text.split(' ');
    words.find(|one| *one == word)?;
    words.next()
}

/// What is in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// A port of the set's own protocol.
    Port(NonZeroU16),
    /// An address with protocol and port.
    Place(Place),
    /// The same, and a client.
    PlaceAndClient(Place, IpAddr),
    /// The same, and clients.
    PlaceAndClients(Place, IpNet),
    /// An address.
    Address(IpAddr),
}

impl Element {
    /// Before all others in order.
    pub const FIRST: Element = Element::Port(NonZeroU16::MIN);
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |f: &mut fmt::Formatter<'_>, place: &Place| {
            write!(f, "{},{}:{}", place.address, place.protocol, place.port)
        };
        match self {
            Element::Place(at) => place(f, at),
            Element::PlaceAndClient(at, client) => {
                place(f, at)?;
                write!(f, ",{client}")
            }
            Element::PlaceAndClients(at, clients) if clients.prefix_len() == clients.max_prefix_len() => {
                place(f, at)?;
                write!(f, ",{}", clients.addr())
            }
            Element::PlaceAndClients(at, clients) => {
                place(f, at)?;
                write!(f, ",{}", clients.trunc())
            }
            Element::Port(port) => write!(f, "{port}"),
            Element::Address(address) => write!(f, "{address}"),
        }
    }
}

/// One element of a set out of its text; `None`: it is none that the set can have from here.
pub fn element(set: Set, text: &str) -> Option<Element> {
    let mut parts = text.split(',');
    let mut place = || {
        let address = parts.next()?.parse().ok()?;
        let (protocol, port) = parts.next()?.split_once(':')?;
        let protocol =
            [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|one| one.to_string() == protocol)?;
        Some(Place { address, protocol, port: port.parse().ok()? })
    };
    let element = match set.kind() {
        Kind::IpPort | Kind::IpPortMark => Element::Place(place()?),
        Kind::IpPortIp => Element::PlaceAndClient(place()?, parts.next()?.parse().ok()?),
        Kind::IpPortNet => {
            let place = place()?;
            let clients = parts.next()?;
            let range = clients.parse().or_else(|_| clients.parse::<IpAddr>().map(IpNet::from)).ok()?;
            Element::PlaceAndClients(place, range)
        }
        Kind::Port => Element::Port(text.parse().ok()?),
        Kind::Ip => Element::Address(text.parse().ok()?),
    };
    Some(element)
}

/// Ranges without the one of length 0, which the kernel's sets do not take.
pub fn halves(range: IpNet) -> Vec<IpNet> {
    if range.prefix_len() > 0 {
        return vec![range.trunc()];
    }
    range.subnets(1).map(Iterator::collect).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_fits_and_is_its_own() {
        for family in [Family::Ipv4, Family::Ipv6] {
            for set in Set::ALL {
                assert!(set.name(family).len() <= MOST_LETTERS);
                assert_eq!(Set::named(&set.name(family), family), Some(set));
            }
        }
        assert_eq!(Set::LoadBalancerSources.name(Family::Ipv6), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
    }

    #[test]
    fn elements_read_back_as_they_are_written() {
        let at = |address: &str| Place {
            address: address.parse().unwrap(),
            protocol: Protocol::Udp,
            port: NonZeroU16::new(53).unwrap(),
        };
        for (set, value, text) in [
            (Set::ClusterIp, Element::Place(at("10.96.0.10")), "10.96.0.10,udp:53"),
            (Set::FromPod, Element::Place(at("fd00::1")), "fd00::1,udp:53"),
            (
                Set::LoopBack,
                Element::PlaceAndClient(at("10.244.1.2"), [10, 244, 1, 2].into()),
                "10.244.1.2,udp:53,10.244.1.2",
            ),
            (
                Set::LoadBalancerSources,
                Element::PlaceAndClients(at("10.1.1.1"), "10.0.0.0/8".parse().unwrap()),
                "10.1.1.1,udp:53,10.0.0.0/8",
            ),
            (
                Set::LoadBalancerSources,
                Element::PlaceAndClients(at("10.1.1.1"), "10.0.0.7/32".parse().unwrap()),
                "10.1.1.1,udp:53,10.0.0.7",
            ),
            (Set::NodePort(Protocol::Udp), Element::Port(NonZeroU16::new(30_001).unwrap()), "30001"),
            (Set::IpvsIps, Element::Address([10, 96, 0, 10].into()), "10.96.0.10"),
        ] {
            assert_eq!(value.to_string(), text);
            assert_eq!(element(set, text), Some(value));
        }
        assert_eq!(element(Set::ClusterIp, "10.96.0.10"), None);
        assert_eq!(halves("0.0.0.0/0".parse().unwrap()).len(), 2);
    }

    #[test]
    fn a_set_that_somebody_made_otherwise_is_told_apart() {
        let saved = "hash:ip,port family inet hashsize 4096 maxelem 1048576 bucketsize 12 initval 0x5f1976b9";
        assert!(Set::ClusterIp.is_made_as(Family::Ipv4, saved));
        assert!(!Set::ClusterIp.is_made_as(Family::Ipv6, saved) && !Set::FromPod.is_made_as(Family::Ipv4, saved));
        assert!(!Set::ClusterIp.is_made_as(Family::Ipv4, &saved.replace("1048576", "65536")));
        assert!(Set::NodePort(Protocol::Tcp).is_made_as(Family::Ipv4, "bitmap:port range 0-65535"));
    }
}
