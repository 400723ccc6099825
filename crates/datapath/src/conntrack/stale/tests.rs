//! Flows of a small node: which go, which stay. The faults of others that this must not have are named in the tests.

use std::collections::HashSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use signpost_core::object::{Family, ObjectName};
use signpost_core::plan::{Backend, FrontendKind, NodeFacts, Route};

use super::*;
use crate::conntrack::flow::Tuple;

const DNS: &str = "10.96.0.10:53";
const NODE_PORT: u16 = 30_053;
const NODE: &str = "172.18.0.11";
const CLIENT: &str = "10.244.1.2:4000";
const ONE: &str = "10.244.1.9:5353";
const TWO: &str = "10.244.2.9:5353";

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn flow(to: &str, answered_by: &str) -> Flow {
    Flow {
        original: Tuple { source: socket(CLIENT), destination: socket(to) },
        reply: Tuple { source: socket(answered_by), destination: socket(CLIENT) },
        id: 1,
        zone: 0,
        established: false,
    }
}

fn untranslated(to: &str) -> Flow {
    flow(to, to)
}

fn node() -> NodePlan {
    let node: IpAddr = NODE.parse().unwrap();
    let other: IpAddr = "10.244.1.1".parse().unwrap();
    NodePlan::empty(
        Family::Ipv4,
        NodeFacts {
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            node_addresses: [node, other].into(),
            node_port_addresses: [node].into(),
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        },
    )
}

fn frontend(kind: FrontendKind, backends: &[&str]) -> Frontend {
    let backends = backends.iter().map(|at| Backend { address: socket(at), local: false });
    let backends: Arc<[Backend]> = backends.collect();
    let target = if backends.is_empty() { Target::Reject } else { Target::Backends(backends) };
    let route = Route { target, masquerade: false };
    Frontend {
        service_port: ServicePortName { service: ObjectName::new("kube-system", "dns"), port: "dns".into() },
        kind,
        from_pod: route.clone(),
        from_node: route.clone(),
        from_elsewhere: route,
        source_ranges: Arc::new([]),
        affinity: None,
        scheduler: None,
        reset_after: None,
        rebalance: None,
    }
}

fn at(address: &str, protocol: Protocol) -> FrontendKey {
    let at = socket(address);
    FrontendKey::Address { address: at.ip(), protocol, port: NonZeroU16::new(at.port()).unwrap() }
}

fn node_port() -> FrontendKey {
    FrontendKey::NodePort { protocol: Protocol::Udp, port: NonZeroU16::new(NODE_PORT).unwrap() }
}

/// A Service with a cluster address and a node port.
fn dns(backends: &[&str]) -> NodePlan {
    let mut plan = node();
    plan.frontends.insert(at(DNS, Protocol::Udp), frontend(FrontendKind::ClusterIp, backends));
    plan.frontends.insert(node_port(), frontend(FrontendKind::NodePort, backends));
    plan
}

fn wanted(plan: &NodePlan) -> Wanted {
    Wanted::with(plan, |_| HashSet::new())
}

/// After these plans, one after the other, by a process that knows what was before it.
fn after(plans: &[NodePlan]) -> History {
    let mut history = History::default();
    history.remember([]);
    plans.iter().for_each(|plan| history.want(wanted(plan)));
    history
}

fn node_port_at(address: &str) -> String {
    format!("{address}:{NODE_PORT}")
}

#[test]
fn a_flow_to_an_endpoint_that_serves_stays_and_to_one_that_is_gone_goes() {
    let history = after(&[dns(&[ONE])]);
    for to in [DNS.to_owned(), node_port_at(NODE)] {
        assert!(!history.is_stale(&flow(&to, ONE)), "{to}");
        assert!(history.is_stale(&flow(&to, TWO)), "{to}");
    }
}

#[test]
fn a_flow_to_another_port_of_an_endpoint_goes_when_the_target_port_changes() {
    assert!(after(&[dns(&["10.244.1.9:5454"])]).is_stale(&flow(DNS, ONE)));
}

/// kubernetes#139628: kube-proxy passes over Services without endpoints.
#[test]
fn flows_of_a_service_that_lost_its_last_endpoint_go() {
    let history = after(&[dns(&[])]);
    assert!(history.is_stale(&flow(DNS, ONE)));
    assert!(history.is_stale(&flow(&node_port_at(NODE), ONE)));
}

/// kubernetes#141371.
#[test]
fn flows_of_a_deleted_service_go() {
    let history = after(&[dns(&[ONE]), node()]);
    assert!(history.is_stale(&flow(DNS, ONE)));
    assert!(history.is_stale(&flow(&node_port_at(NODE), ONE)));
}

#[test]
fn flows_from_before_a_frontend_was_programmed_go() {
    let history = after(&[node(), dns(&[ONE])]);
    assert!(history.is_stale(&untranslated(DNS)));
    assert!(history.is_stale(&untranslated(&node_port_at(NODE))));
}

/// kubernetes#49881: kube-proxy matches a node port by its number alone.
#[test]
fn flows_to_the_number_of_a_node_port_elsewhere_stay() {
    let history = after(&[dns(&[ONE])]);
    for address in ["172.18.0.12", "8.8.8.8", "10.244.1.1"] {
        assert!(!history.is_stale(&untranslated(&node_port_at(address))), "{address}");
        assert!(!history.is_stale(&flow(&node_port_at(address), TWO)), "{address}");
    }
}

#[test]
fn flows_that_are_nobodys_stay() {
    let history = after(&[dns(&[ONE]), node()]);
    for other in [untranslated("8.8.8.8:53"), flow("172.18.0.11:8053", ONE), untranslated("10.96.0.10:54")] {
        assert!(!history.is_stale(&other), "{other:?}");
    }
    // A host port that a network plugin translates, and another Service proxy's address.
    assert!(!history.is_stale(&flow("172.18.0.11:53", TWO)));
    assert!(!history.is_stale(&flow("10.96.0.99:53", TWO)));
}

#[test]
fn a_service_of_tcp_with_the_same_port_keeps_no_udp_flow_and_costs_none() {
    let mut plan = node();
    plan.frontends.insert(at(DNS, Protocol::Tcp), frontend(FrontendKind::ClusterIp, &[ONE]));
    let history = after(&[plan]);
    assert!(!history.is_stale(&flow(DNS, TWO)));
    assert!(!history.needs_sweep());
}

#[test]
fn an_endpoint_that_serves_while_it_terminates_keeps_its_flows() {
    let mut history = History::default();
    history.want(Wanted::with(&dns(&[ONE]), |_| [socket(TWO)].into()));
    assert!(!history.is_stale(&flow(DNS, TWO)));
}

#[test]
fn policies_are_for_new_flows() {
    let mut plan = dns(&[ONE]);
    let local = plan.frontends.get_mut(&node_port()).unwrap();
    local.from_elsewhere.target = Target::Drop;
    assert!(!after(&[plan]).is_stale(&flow(&node_port_at(NODE), ONE)));
}

#[test]
fn a_backend_at_the_frontend_itself_is_no_flow_from_before() {
    let own = node_port_at(NODE);
    assert!(!after(&[dns(&[&own])]).is_stale(&untranslated(&own)));
}

#[test]
fn an_address_of_a_service_comes_before_a_node_port() {
    let mut plan = dns(&[ONE]);
    let mut external = frontend(FrontendKind::ExternalIp, &[TWO]);
    external.service_port.port = "other".into();
    plan.frontends.insert(at(&node_port_at(NODE), Protocol::Udp), external);
    let history = after(&[plan]);
    assert!(history.is_stale(&flow(&node_port_at(NODE), ONE)));
    assert!(!history.is_stale(&flow(&node_port_at(NODE), TWO)));
}

#[test]
fn flows_of_other_conntrack_zones_stay() {
    let mut other = flow(DNS, TWO);
    other.zone = 7;
    assert!(!after(&[dns(&[ONE])]).is_stale(&other));
}

#[test]
fn what_a_former_process_served_is_known_after_a_restart() {
    let mut history = History::default();
    history.remember([socket(&node_port_at(NODE)), socket("192.0.2.1:53")]);
    history.want(wanted(&node()));
    assert!(history.is_stale(&flow(&node_port_at(NODE), ONE)));
    assert!(history.is_stale(&flow("192.0.2.1:53", ONE)));
    assert!(!history.is_stale(&untranslated(&node_port_at(NODE))), "the port is free for others now");
}

#[test]
fn without_knowledge_of_the_past_only_cluster_addresses_count_as_ours() {
    let mut history = History::default();
    history.want(wanted(&node()));
    assert!(history.needs_sweep());
    assert!(history.is_stale(&flow(DNS, ONE)));
    assert!(!history.is_stale(&untranslated(DNS)));
    assert!(!history.is_stale(&flow(&node_port_at(NODE), ONE)));
    history.swept();
    history.swept();
    assert!(!history.is_stale(&flow(DNS, ONE)));
}

#[test]
fn a_frontend_that_comes_back_is_no_former_one() {
    let history = after(&[dns(&[ONE]), node(), dns(&[ONE])]);
    assert!(!history.is_stale(&flow(DNS, ONE)));
}

#[test]
fn each_change_is_followed_by_two_sweeps_and_then_by_none() {
    let mut history = after(&[dns(&[ONE]), node()]);
    for _ in 0..2 {
        assert!(history.needs_sweep());
        history.swept();
    }
    assert!(!history.needs_sweep());
    assert!(!history.is_stale(&flow(DNS, ONE)), "what was is forgotten then");
    history.want(wanted(&node()));
    assert!(!history.needs_sweep());
    history.want(wanted(&dns(&[ONE])));
    assert!(history.needs_sweep());
}

#[test]
fn a_node_port_that_no_longer_answers_at_an_address_is_a_former_one_there() {
    let mut fewer = dns(&[ONE]);
    fewer.node_port_addresses.clear();
    let history = after(&[dns(&[ONE]), fewer]);
    assert!(history.is_stale(&flow(&node_port_at(NODE), ONE)));
}
