//! Plans for the node of `net`.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;
use signpost_core::object::{Family, ObjectName, Protocol, ServicePortName};
use signpost_core::plan::{Backend, Backends, Frontend, FrontendKey, FrontendKind, NodeFacts, NodePlan, Route, Target};

use crate::net::addresses;

pub fn empty(family: Family) -> NodePlan {
    let at = addresses(family);
    let range =
        |v4: &str, v6: &str| -> Vec<IpNet> { vec![if family == Family::Ipv4 { v4 } else { v6 }.parse().unwrap()] };
    let facts = NodeFacts {
        cluster_cidrs: range("10.244.0.0/16", "fd00:10:244::/48"),
        node_addresses: [at.node, at.gateway].into(),
        node_port_addresses: [at.node].into(),
        service_cidrs: range("10.96.0.0/12", "fd00:10:96::/112"),
    };
    let mut plan = NodePlan::empty(family, facts);
    plan.local_endpoints = [at.a, at.b].into();
    plan
}

pub fn cluster_ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [10, 96, 0, number].into(),
        Family::Ipv6 => [0xfd00, 0x10, 0x96, 0, 0, 0, 0, number.into()].into(),
    }
}

fn external_ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [203, 0, 113, number].into(),
        Family::Ipv6 => [0x2001, 0xdb8, 0x113, 0, 0, 0, 0, number.into()].into(),
    }
}

pub fn backends(addresses: &[IpAddr]) -> Backends {
    addresses.iter().map(|address| Backend { address: SocketAddr::new(*address, 8080), local: true }).collect()
}

fn to(target: &Target, masquerade: bool) -> Route {
    Route { target: target.clone(), masquerade }
}

fn frontend(name: &str, kind: FrontendKind, routes: [Route; 3]) -> Frontend {
    let [from_pod, from_node, from_elsewhere] = routes;
    Frontend {
        service_port: ServicePortName { service: ObjectName::new("default", name), port: "http".into() },
        kind,
        from_pod,
        from_node,
        from_elsewhere,
        source_ranges: Arc::new([]),
        affinity: None,
        scheduler: None,
        reset_after: None,
        rebalance: None,
    }
}

/// A Service at its cluster address: pods keep their address, others are masqueraded.
pub fn add_cluster_ip(plan: &mut NodePlan, number: u8, protocol: Protocol, target: Target) {
    let address = cluster_ip(plan.family, number);
    let routes = [to(&target, false), to(&target, true), to(&target, true)];
    plan.frontends.insert(
        FrontendKey::Address { address, protocol, port: port(80) },
        frontend(&format!("cluster-ip-{number}"), FrontendKind::ClusterIp, routes),
    );
    plan.cluster_ips.insert(address);
}

fn add_node_port(plan: &mut NodePlan, number: u16, protocol: Protocol, routes: [Route; 3]) {
    plan.frontends.insert(
        FrontendKey::NodePort { protocol, port: port(number) },
        frontend(&format!("node-port-{number}"), FrontendKind::NodePort, routes),
    );
}

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

/// A frontend of each kind.
pub fn everything(family: Family) -> NodePlan {
    let at = addresses(family);
    let mut plan = empty(family);
    let both = Target::Backends(backends(&[at.a, at.b]));
    let one = Target::Backends(backends(&[at.b]));
    let hairpin = Target::Backends(backends(&[at.a]));
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        add_cluster_ip(&mut plan, 1, protocol, both.clone());
        add_cluster_ip(&mut plan, 2, protocol, one.clone());
        add_cluster_ip(&mut plan, 3, protocol, Target::Reject);
        add_cluster_ip(&mut plan, 4, protocol, hairpin.clone());
        add_node_port(&mut plan, 30_001, protocol, [to(&both, true), to(&both, true), to(&both, true)]);
        // A Local policy with and without an endpoint on the node.
        add_node_port(&mut plan, 30_002, protocol, [to(&both, false), to(&both, true), to(&one, false)]);
        add_node_port(&mut plan, 30_003, protocol, [to(&both, false), to(&both, true), to(&Target::Drop, false)]);
        add_node_port(
            &mut plan,
            30_004,
            protocol,
            [to(&Target::Reject, false), to(&Target::Reject, false), to(&Target::Reject, false)],
        );
    }
    let all = [to(&both, false), to(&both, true), to(&one, false)];
    for (number, source_range) in [(1, None), (2, Some(at.outside)), (3, Some(at.a))] {
        let mut guarded = frontend(&format!("lb-{number}"), FrontendKind::LoadBalancer, all.clone());
        guarded.source_ranges = source_range.map(IpNet::from).into_iter().collect();
        let key =
            FrontendKey::Address { address: external_ip(family, number), protocol: Protocol::Tcp, port: port(80) };
        plan.frontends.insert(key, guarded);
    }
    plan
}
