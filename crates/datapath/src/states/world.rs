//! Pure. A small world that changes at random: Services, slices, nodes, ranges and configuration, so few and so close that
//! they meet each other, and the packets that run in it. Cheap, so that ten thousand states take seconds; the same seed
//! gives the same world.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use signpost_core::object::{
    Endpoint, EndpointPort, EndpointSlice, Family, Ingress, Node, ObjectName, Protocol, Rebalance, Service,
    ServicePort, TrafficPolicy,
};
use signpost_core::packet::{Entry, Packet};
use signpost_core::plan::{Frontend, FrontendKey, NodePlan, Target};
use signpost_core::planner::{NodeConfig, NodePortAddresses};
use signpost_core::scheduler::Scheduler;
use signpost_core::store::Event;

/// Numbers at random (splitmix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..sides`.
    pub fn below(&mut self, sides: usize) -> usize {
        (self.next() % sides as u64) as usize
    }

    /// So many times out of a hundred.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Each with a chance of `percent`, in their order.
    fn some<T: Clone>(&mut self, of: &[T], percent: usize) -> Vec<T> {
        of.iter().filter(|_| self.percent(percent)).cloned().collect()
    }
}

const SERVICES: [&str; 4] = ["a", "b", "c", "d"];
const PORT_NAMES: [&str; 3] = ["", "http", "dns"];
const NODES: [&str; 2] = ["n1", "n2"];
const ZONES: [&str; 2] = ["east", "west"];
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The IPv4 address, or its double in the IPv6 world.
fn address(family: Family, [a, b, c, d]: [u8; 4]) -> IpAddr {
    match family {
        Family::Ipv4 => [a, b, c, d].into(),
        Family::Ipv6 => Ipv6Addr::from([0xfd00, a.into(), b.into(), c.into(), 0, 0, 0, d.into()]).into(),
    }
}

fn range(family: Family, at: [u8; 4], bits: u8) -> IpNet {
    let bits = match (family, bits) {
        (Family::Ipv6, 32) => 128,
        (Family::Ipv6, bits) if bits > 0 => 16 + 2 * bits,
        (_, bits) => bits,
    };
    IpNet::new(address(family, at), bits).expect("the length fits the family")
}

fn addresses(family: Family, of: &[[u8; 4]]) -> Vec<IpAddr> {
    of.iter().map(|at| address(family, *at)).collect()
}

fn pods(family: Family) -> Vec<IpAddr> {
    addresses(family, &[[10, 244, 1, 2], [10, 244, 1, 3], [10, 244, 2, 2], [10, 244, 2, 3]])
}

/// Of the node that is planned for; the last is that of its pods' bridge.
fn own(family: Family) -> Vec<IpAddr> {
    addresses(family, &[[172, 18, 0, 11], [192, 0, 2, 11], [10, 244, 1, 1]])
}

fn vips(family: Family) -> Vec<IpAddr> {
    addresses(family, &[[10, 96, 0, 1], [10, 96, 0, 2], [10, 96, 0, 3], [10, 96, 0, 4]])
}

/// Outside of the Service ranges; one is a node's, one a cluster address.
fn externals(family: Family) -> Vec<IpAddr> {
    addresses(family, &[[203, 0, 113, 1], [198, 51, 100, 9], [172, 18, 0, 11], [10, 96, 0, 1]])
}

fn strangers(family: Family) -> Vec<IpAddr> {
    addresses(family, &[[192, 0, 2, 200], [198, 51, 100, 1], [10, 97, 0, 9], [172, 18, 0, 12]])
}

fn sources(family: Family) -> Vec<IpNet> {
    vec![
        range(family, [10, 244, 0, 0], 16),
        range(family, [10, 244, 1, 0], 24),
        range(family, [10, 244, 1, 3], 32),
        range(family, [192, 0, 2, 0], 24),
        range(family, [172, 18, 0, 11], 32),
        range(family, [0, 0, 0, 0], 0),
    ]
}

fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).expect("none is 0")
}

/// A configuration of the node n1.
pub fn config(dice: &mut Dice) -> NodeConfig {
    let cidrs: Vec<IpNet> = FAMILIES
        .into_iter()
        .flat_map(|family| [range(family, [10, 244, 0, 0], 16), range(family, [10, 244, 1, 0], 24)])
        .collect();
    let node_port_addresses = match dice.below(3) {
        0 => NodePortAddresses::Primary,
        1 => NodePortAddresses::All,
        _ => NodePortAddresses::Cidrs(FAMILIES.map(|family| range(family, [172, 18, 0, 0], 16)).to_vec()),
    };
    let node_addresses: BTreeSet<IpAddr> = FAMILIES.into_iter().flat_map(own).collect();
    NodeConfig {
        node: NODES[0].into(),
        cluster_cidrs: dice.some(&cidrs, 70),
        masquerade_all: dice.percent(20),
        node_addresses,
        node_port_addresses,
        // One mode alone can.
        localhost_node_ports: false,
        source_ranges_on_node_ports: dice.percent(30),
        node_cache: false,
    }
}

/// Something that the API may say.
pub fn event(dice: &mut Dice) -> Event {
    match dice.below(100) {
        0..35 => Event::ServiceApplied(service(dice)),
        35..42 => Event::ServiceDeleted(service_name(dice)),
        42..80 => Event::SliceApplied(slice(dice)),
        80..86 => Event::SliceDeleted(slice_name(dice)),
        86..94 => Event::NodeApplied(node(dice)),
        94..96 => Event::NodeDeleted(dice.pick(&NODES).into()),
        96..99 => Event::ServiceCidrsApplied { name: "kubernetes".into(), cidrs: service_cidrs(dice) },
        _ => Event::ServiceCidrsDeleted("kubernetes".into()),
    }
}

fn service_cidrs(dice: &mut Dice) -> Vec<IpNet> {
    let all: Vec<IpNet> = FAMILIES
        .into_iter()
        .flat_map(|family| [range(family, [10, 96, 0, 0], 12), range(family, [10, 96, 0, 0], 24)])
        .collect();
    dice.some(&all, 60)
}

fn service_name(dice: &mut Dice) -> ObjectName {
    ObjectName::new("default", dice.pick(&SERVICES))
}

fn slice_name(dice: &mut Dice) -> ObjectName {
    ObjectName::new("default", &format!("{}-{}", dice.pick(&SERVICES), dice.below(3)))
}

fn policy(dice: &mut Dice) -> TrafficPolicy {
    if dice.percent(40) { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

fn service(dice: &mut Dice) -> Service {
    let mut families = FAMILIES.to_vec();
    if dice.percent(30) {
        families.remove(dice.below(2));
    }
    let of = |dice: &mut Dice, pool: fn(Family) -> Vec<IpAddr>, percent: usize| -> Vec<IpAddr> {
        families.iter().flat_map(|family| dice.some(&pool(*family), percent)).collect()
    };
    let external_ips = of(dice, externals, 15);
    let ingress = of(dice, externals, 25);
    let ranges = families.iter().flat_map(|family| sources(*family)).collect::<Vec<_>>();
    let count = 1 + dice.below(PORT_NAMES.len());
    Service {
        name: service_name(dice),
        cluster_ips: families.iter().map(|family| dice.pick(&vips(*family))).collect(),
        external_ips,
        ingress: ingress.into_iter().map(|address| Ingress { address, vip: dice.percent(80) }).collect(),
        source_ranges: if dice.percent(30) { dice.some(&ranges, 30) } else { Vec::new() },
        ports: PORT_NAMES.iter().take(count).map(|name| service_port(dice, name)).collect(),
        external_policy: policy(dice),
        internal_policy: policy(dice),
        affinity: dice.percent(30).then(|| Duration::from_secs(10 + dice.below(2) as u64)),
        rebalance: dice.percent(20).then(|| Rebalance { within_percent: 20, rate_percent: 1 + dice.below(2) as u8 }),
        reset_after: dice.percent(20).then(|| Duration::from_secs(dice.below(3) as u64)),
        health_check_node_port: dice.percent(10).then(|| number(32_000)),
        scheduler: dice.percent(20).then(|| dice.pick(&Scheduler::ALL)),
    }
}

fn service_port(dice: &mut Dice, name: &str) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol: dice.pick(&PROTOCOLS),
        port: number(dice.pick(&[80, 53])),
        node_port: dice.percent(50).then(|| number(dice.pick(&[30080, 30053]))),
    }
}

fn slice(dice: &mut Dice) -> EndpointSlice {
    let name = slice_name(dice);
    let service = &name.name[..1];
    let family = dice.pick(&FAMILIES);
    let ports = dice.some(&PORT_NAMES, 70);
    let pool = [pods(family), own(family)].concat();
    EndpointSlice {
        service: ObjectName::new("default", service),
        family,
        ports: ports.iter().map(|name| endpoint_port(dice, name)).collect(),
        endpoints: (0..dice.below(5)).map(|_| endpoint(dice, &pool)).collect(),
        name,
    }
}

fn endpoint_port(dice: &mut Dice, name: &str) -> EndpointPort {
    EndpointPort { name: name.into(), protocol: dice.pick(&PROTOCOLS), port: number(dice.pick(&[80, 8080])) }
}

fn endpoint(dice: &mut Dice, pool: &[IpAddr]) -> Endpoint {
    let terminating = dice.percent(25);
    let serving = dice.percent(75);
    let hints = |dice: &mut Dice, of: &[&str]| -> Vec<Arc<str>> {
        if dice.percent(50) { dice.some(of, 60).into_iter().map(Into::into).collect() } else { Vec::new() }
    };
    Endpoint {
        address: dice.pick(pool),
        ready: serving && !terminating,
        serving,
        terminating,
        node: dice.percent(90).then(|| dice.pick(&NODES).into()),
        zone_hints: hints(dice, &ZONES),
        node_hints: hints(dice, &NODES),
    }
}

fn node(dice: &mut Dice) -> Node {
    let all: Vec<IpAddr> = FAMILIES.into_iter().flat_map(|family| own(family)[..2].to_vec()).collect();
    let zone = dice.percent(70).then(|| dice.pick(&ZONES));
    Node {
        name: dice.pick(&NODES).into(),
        addresses: dice.some(&all, 80),
        pod_cidrs: Vec::new(),
        labels: zone.into_iter().map(|zone| ("topology.kubernetes.io/zone".into(), zone.into())).collect(),
    }
}

/// A packet, mostly to something that the plan has a frontend for; and the backend that is remembered of its client.
pub fn packet(dice: &mut Dice, plan: &NodePlan) -> (Packet, Option<SocketAddr>) {
    let family = plan.family;
    let keys: Vec<(&FrontendKey, &Frontend)> = plan.frontends.iter().collect();
    let chosen = if keys.is_empty() || dice.percent(15) { None } else { Some(dice.pick(&keys)) };
    let everywhere = [vips(family), externals(family), own(family), strangers(family)].concat();
    let (protocol, destination) = match chosen {
        Some((FrontendKey::Address { address, protocol, port }, _)) => {
            (*protocol, SocketAddr::new(*address, port.get()))
        }
        Some((FrontendKey::NodePort { protocol, port }, _)) => {
            (*protocol, SocketAddr::new(dice.pick(&own(family)), port.get()))
        }
        None => (dice.pick(&PROTOCOLS), SocketAddr::new(dice.pick(&everywhere), dice.pick(&[80, 53, 30080, 9]))),
    };
    let clients = [pods(family), own(family), strangers(family)].concat();
    let packet = Packet {
        protocol,
        source: SocketAddr::new(dice.pick(&clients), 40_000),
        destination,
        entry: dice.pick(&[Entry::Local, Entry::Interface]),
    };
    let remembered = chosen.filter(|_| dice.percent(50)).and_then(|(_, frontend)| remembered(dice, family, frontend));
    (packet, remembered)
}

/// One of the frontend's backends, or one that it never had.
fn remembered(dice: &mut Dice, family: Family, frontend: &Frontend) -> Option<SocketAddr> {
    let route = dice.pick(&[&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere]);
    match &route.target {
        Target::Backends(backends) if dice.percent(80) => Some(dice.pick(backends).address),
        _ => Some(SocketAddr::new(dice.pick(&pods(family)), 8080)),
    }
}
