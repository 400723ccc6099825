//! Plans for tests: random ones, with changes and packets, for property tests, and large ones of a given size. What is
//! random is drawn from a small world, so that frontends, node addresses, backends and packets meet each other often.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use signpost_core::object::{Family, ObjectName, Protocol, Rebalance, ServicePortName};
use signpost_core::packet::{Entry, Packet};
use signpost_core::plan::{
    Backend, Backends, Frontend, FrontendKey, FrontendKind, NodeFacts, NodePlan, PlanChange, Route, SetChange, Target,
};
use signpost_core::scheduler::Scheduler;

/// Either family.
pub fn family() -> impl Strategy<Value = Family> {
    select(&[Family::Ipv4, Family::Ipv6][..])
}

/// Any protocol.
pub fn protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp][..])
}

/// The IPv4 address, or its double in the IPv6 world.
fn address(family: Family, [a, b, c, d]: [u8; 4]) -> IpAddr {
    match family {
        Family::Ipv4 => [a, b, c, d].into(),
        Family::Ipv6 => Ipv6Addr::from([0xfd00, a.into(), b.into(), c.into(), 0, 0, 0, d.into()]).into(),
    }
}

fn range(family: Family, at: [u8; 4], bits: u8) -> IpNet {
    let bits = match (family, bits) {
        (Family::Ipv4, bits) => bits,
        (Family::Ipv6, 0) => 0,
        (Family::Ipv6, 32) => 128,
        (Family::Ipv6, bits) => 16 + 2 * bits,
    };
    IpNet::new(address(family, at), bits).expect("the length fits the family")
}

/// Pods of this node and another, one of them at the edge of its range.
fn pods(family: Family) -> Vec<IpAddr> {
    [[10, 244, 1, 2], [10, 244, 1, 3], [10, 244, 2, 2], [10, 244, 255, 255]].map(|at| address(family, at)).to_vec()
}

/// Addresses of this node; the last is one of a pod range, as a bridge has it.
fn nodes(family: Family) -> Vec<IpAddr> {
    [[172, 18, 0, 11], [192, 0, 2, 11], [10, 244, 1, 1]].map(|at| address(family, at)).to_vec()
}

/// Addresses that Services have, inside and outside of the Service ranges.
fn vips(family: Family) -> Vec<IpAddr> {
    [[10, 96, 0, 1], [10, 96, 0, 2], [10, 111, 0, 1], [203, 0, 113, 1], [172, 18, 0, 11]]
        .map(|at| address(family, at))
        .to_vec()
}

/// All of them, and some that are nobody's.
fn everybody(family: Family) -> Vec<IpAddr> {
    let others = [[198, 51, 100, 1], [10, 97, 0, 1], [10, 245, 0, 1]].map(|at| address(family, at));
    [pods(family), nodes(family), vips(family), others.to_vec()].concat()
}

fn ranges(family: Family) -> Vec<IpNet> {
    vec![
        range(family, [10, 244, 0, 0], 16),
        range(family, [10, 244, 1, 0], 24),
        range(family, [10, 244, 1, 3], 32),
        range(family, [10, 96, 0, 0], 12),
        range(family, [198, 51, 100, 7], 24),
        range(family, [0, 0, 0, 0], 0),
    ]
}

fn port() -> impl Strategy<Value = NonZeroU16> {
    select(&[80, 443, 30080][..]).prop_map(|port| NonZeroU16::new(port).expect("none is 0"))
}

/// What a frontend may be found by.
pub fn key(family: Family) -> impl Strategy<Value = FrontendKey> {
    let place = option::weighted(0.7, select(vips(family)));
    (place, protocol(), port()).prop_map(|(place, protocol, port)| match place {
        Some(address) => FrontendKey::Address { address, protocol, port },
        None => FrontendKey::NodePort { protocol, port },
    })
}

/// Sorted, without duplicates, not empty.
fn backends(family: Family) -> impl Strategy<Value = Backends> {
    let backend = (select([pods(family), nodes(family)].concat()), select(&[80, 8080][..]));
    (btree_set(backend, 1..6), any::<bool>()).prop_map(|(addresses, local)| {
        addresses.iter().map(|at| Backend { address: SocketAddr::from(*at), local }).collect()
    })
}

/// Where backends are, some of which a plan has.
pub fn places(family: Family) -> Vec<SocketAddr> {
    let addresses = [pods(family), nodes(family)].concat();
    addresses.into_iter().flat_map(|address| [80, 8080].map(|port| SocketAddr::new(address, port))).collect()
}

/// A frontend for a key. Its routes lead to few different sets, as those of a real one do. Source ranges are only at
/// addresses, as in real plans.
pub fn frontend(family: Family, key: FrontendKey) -> impl Strategy<Value = Frontend> {
    let sets = vec(backends(family), 3);
    let route = (0..6usize, any::<bool>());
    let source_ranges = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(ranges(family), 0..3)];
    let affinity = option::weighted(0.3, select(&[10, 10_800][..]).prop_map(Duration::from_secs));
    let scheduler = option::weighted(0.2, select(&Scheduler::ALL[..]));
    (sets, vec(route, 3), source_ranges, "[a-z]{1,3}", affinity, scheduler).prop_map(
        move |(sets, routes, source_ranges, name, affinity, scheduler)| {
            let route = |(goal, masquerade): (usize, bool)| {
                let target = match goal {
                    0 => Target::Reject,
                    1 => Target::Drop,
                    2 => Target::Backends(sets[1].clone()),
                    3 => Target::Backends(sets[2].clone()),
                    _ => Target::Backends(sets[0].clone()),
                };
                Route { target, masquerade }
            };
            let is_node_port = matches!(key, FrontendKey::NodePort { .. });
            Frontend {
                service_port: ServicePortName { service: ObjectName::new("default", &name), port: "".into() },
                kind: if is_node_port { FrontendKind::NodePort } else { FrontendKind::LoadBalancer },
                from_pod: route(routes[0]),
                from_node: route(routes[1]),
                from_elsewhere: route(routes[2]),
                source_ranges: if is_node_port { Arc::new([]) } else { source_ranges.into() },
                affinity,
                scheduler,
                reset_after: affinity,
                rebalance: affinity.map(|_| Rebalance { within_percent: 20, rate_percent: 10 }),
            }
        },
    )
}

fn frontends(family: Family) -> impl Strategy<Value = BTreeMap<FrontendKey, Frontend>> {
    let one = key(family).prop_flat_map(move |key| (Just(key), frontend(family, key)));
    vec(one, 0..8).prop_map(|all| all.into_iter().collect())
}

fn some(of: Vec<IpAddr>) -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let most = of.len();
    subsequence(of, 0..=most).prop_map(|some| some.into_iter().collect())
}

/// What a plan knows of its node; ranges may overlap and repeat.
pub fn facts(family: Family) -> impl Strategy<Value = NodeFacts> {
    let pods = vec![ranges(family)[0], ranges(family)[1], ranges(family)[2], ranges(family)[0]];
    let services = vec![range(family, [10, 96, 0, 0], 16), ranges(family)[3]];
    (subsequence(pods, 0..=4), subsequence(services, 0..=2), some(nodes(family)), some(nodes(family))).prop_map(
        |(cluster_cidrs, service_cidrs, node_addresses, node_port_addresses)| NodeFacts {
            cluster_cidrs,
            node_port_addresses: &node_port_addresses & &node_addresses,
            node_addresses,
            service_cidrs,
        },
    )
}

/// A plan of a family.
pub fn plan_of(family: Family) -> impl Strategy<Value = NodePlan> {
    (facts(family), frontends(family), some(vips(family)), some([pods(family), nodes(family)].concat())).prop_map(
        move |(facts, frontends, cluster_ips, local_endpoints)| NodePlan {
            frontends,
            cluster_ips,
            local_endpoints,
            ..NodePlan::empty(family, facts)
        },
    )
}

/// A plan.
pub fn plan() -> impl Strategy<Value = NodePlan> {
    family().prop_flat_map(plan_of)
}

fn set_change(of: Vec<IpAddr>) -> impl Strategy<Value = SetChange> {
    (some(of.clone()), some(of)).prop_map(|(added, removed)| SetChange { added, removed })
}

/// A change of a plan of a family, which need not fit: it may set what is there and remove what is not.
pub fn plan_change(family: Family) -> impl Strategy<Value = PlanChange> {
    let node = option::weighted(0.3, facts(family));
    let removed = btree_set(key(family), 0..8);
    let addresses = (set_change(vips(family)), set_change(pods(family)));
    (frontends(family), removed, addresses, node).prop_map(|(set, removed, (cluster_ips, local_endpoints), node)| {
        PlanChange { set, removed, cluster_ips, local_endpoints, node }
    })
}

/// A plan and some changes, one after the other.
pub fn plan_and_changes() -> impl Strategy<Value = (NodePlan, Vec<PlanChange>)> {
    family().prop_flat_map(|family| (plan_of(family), vec(plan_change(family), 1..4)))
}

/// A packet in the world of a family.
pub fn packet(family: Family) -> impl Strategy<Value = Packet> {
    let all = everybody(family);
    let entry = select(&[Entry::Local, Entry::Interface][..]);
    (protocol(), select(all.clone()), select(all), select(&[80, 443, 30080, 9][..]), entry).prop_map(
        |(protocol, source, destination, port, entry)| Packet {
            protocol,
            source: SocketAddr::new(source, 40_000),
            destination: SocketAddr::new(destination, port),
            entry,
        },
    )
}

/// One change that leads from a plan to another, as a planner gives it.
pub fn between(before: &NodePlan, after: &NodePlan) -> PlanChange {
    let facts = |plan: &NodePlan| NodeFacts {
        cluster_cidrs: plan.cluster_cidrs.clone(),
        node_addresses: plan.node_addresses.clone(),
        node_port_addresses: plan.node_port_addresses.clone(),
        service_cidrs: plan.service_cidrs.clone(),
    };
    let sets = |before: &BTreeSet<IpAddr>, after: &BTreeSet<IpAddr>| SetChange {
        added: after - before,
        removed: before - after,
    };
    let set = after.frontends.iter().filter(|(key, frontend)| before.frontends.get(key) != Some(frontend));
    PlanChange {
        set: set.map(|(key, frontend)| (*key, frontend.clone())).collect(),
        removed: before.frontends.keys().filter(|key| !after.frontends.contains_key(key)).copied().collect(),
        cluster_ips: sets(&before.cluster_ips, &after.cluster_ips),
        local_endpoints: sets(&before.local_endpoints, &after.local_endpoints),
        node: (facts(before) != facts(after)).then(|| facts(after)),
    }
}

/// A plan with so many Services, each at its cluster address, with so many endpoints.
pub fn services(family: Family, count: u32, endpoints: u32) -> NodePlan {
    let facts = NodeFacts {
        cluster_cidrs: vec![
            if family == Family::Ipv4 { "10.128.0.0/9" } else { "fd00:80::/32" }.parse().expect("it is a range"),
        ],
        node_addresses: [numbered(family, 172, 1)].into(),
        node_port_addresses: [numbered(family, 172, 1)].into(),
        service_cidrs: Vec::new(),
    };
    let mut plan = NodePlan::empty(family, facts);
    for number in 0..count {
        let address = cluster_ip(family, number);
        plan.cluster_ips.insert(address);
        let (key, frontend) = service(family, number, (0..endpoints).map(|one| number * endpoints + one));
        plan.frontends.insert(key, frontend);
    }
    plan
}

fn numbered(family: Family, net: u8, number: u32) -> IpAddr {
    let [_, b, c, d] = number.to_be_bytes();
    match family {
        Family::Ipv4 => [10, net + b, c, d].into(),
        Family::Ipv6 => [0xfd00, net.into(), 0, 0, 0, 0, u16::from(b), u16::from_be_bytes([c, d])].into(),
    }
}

/// The cluster address of the Service of a number.
pub fn cluster_ip(family: Family, number: u32) -> IpAddr {
    numbered(family, 96, number + 1)
}

/// The Service of a number, at endpoints of these numbers.
pub fn service(family: Family, number: u32, endpoints: impl Iterator<Item = u32>) -> (FrontendKey, Frontend) {
    let backend = |one| Backend { address: SocketAddr::new(numbered(family, 128, one), 8080), local: false };
    let target = Target::Backends(endpoints.map(backend).collect());
    let route = |masquerade| Route { target: target.clone(), masquerade };
    let port = NonZeroU16::new(80).expect("it is not 0");
    let key = FrontendKey::Address { address: cluster_ip(family, number), protocol: Protocol::Tcp, port };
    let service = ObjectName::new(&format!("namespace-{}", number % 100), &format!("service-{number}"));
    let frontend = Frontend {
        service_port: ServicePortName { service, port: "http".into() },
        kind: FrontendKind::ClusterIp,
        from_pod: route(false),
        from_node: route(true),
        from_elsewhere: route(true),
        source_ranges: Arc::new([]),
        affinity: None,
        scheduler: None,
        reset_after: None,
        rebalance: None,
    };
    (key, frontend)
}
