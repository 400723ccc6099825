//! Facts of the choice: kube-proxy 1.36, `TestCategorizeEndpoints`. The node is n1 in zone a.

use super::*;
use crate::fixture::{endpoint, service, slice};
use crate::object::{EndpointSlice, Family, ObjectName};
use crate::service_map::offers;
use crate::store::{Event, Store};

const ZONE_A: Option<&str> = Some("a");

/// The last octets of what is chosen for Cluster and for Local; empty: nothing.
fn chosen(zone: Option<&str>, endpoints: Vec<Endpoint>) -> (Vec<u8>, Vec<u8>) {
    let choice = choose_among(zone, vec![slice("web-1", "web", &[("http", 80)], endpoints)]);
    let octets = |backends: Option<Backends>| -> Vec<u8> {
        let backends = backends.unwrap_or_default();
        backends
            .iter()
            .map(|backend| backend.address.ip().to_string().rsplit('.').next().unwrap().parse().unwrap())
            .collect()
    };
    (octets(choice.cluster), octets(choice.local))
}

fn choose_among(zone: Option<&str>, slices: Vec<EndpointSlice>) -> Choice {
    let mut store = Store::new();
    slices.into_iter().for_each(|slice| store.handle(Event::SliceApplied(slice)));
    let port = &service("web", &[]).port("http", 80).ports[0];
    let site = Site { node: "n1".into(), zone: zone.map(Into::into) };
    choose(&offers(&store, &ObjectName::new("default", "web"), port, Family::Ipv4), &site)
}

fn at(octet: u8, node: &str) -> Endpoint {
    endpoint(&format!("10.1.2.{octet}"), node)
}

/// Three endpoints on other nodes, hinted for zones a, b, a.
fn in_zones() -> Vec<Endpoint> {
    vec![at(3, "n2").for_zones(&["a"]), at(4, "n3").for_zones(&["b"]), at(5, "n4").for_zones(&["a"])]
}

#[test]
fn hints_for_the_own_zone_hold() {
    assert_eq!(chosen(ZONE_A, in_zones()), (vec![3, 5], vec![]));
}

#[test]
fn hints_do_not_hold_on_a_node_without_zone() {
    assert_eq!(chosen(None, in_zones()).0, [3, 4, 5]);
}

#[test]
fn hints_do_not_hold_where_none_is_for_the_own_zone() {
    assert_eq!(chosen(Some("c"), in_zones()).0, [3, 4, 5]);
}

#[test]
fn hints_do_not_hold_when_a_ready_endpoint_has_none() {
    let mut endpoints = in_zones();
    endpoints.push(at(6, "n5"));
    assert_eq!(chosen(ZONE_A, endpoints.clone()).0, [3, 4, 5, 6]);
    endpoints[3] = at(6, "n5").unready();
    assert_eq!(chosen(ZONE_A, endpoints).0, [3, 5], "one that is not ready has no say");
}

#[test]
fn hints_do_not_hold_when_those_of_the_zone_are_not_ready() {
    let endpoints = in_zones().into_iter().map(|e| if e.zone_hints[0] == "a".into() { e.unready() } else { e });
    assert_eq!(chosen(ZONE_A, endpoints.collect()).0, [4]);
}

#[test]
fn an_endpoint_hinted_for_several_zones_serves_each() {
    let endpoints =
        vec![at(3, "n2").for_zones(&["a"]), at(4, "n3").for_zones(&["b", "a"]), at(5, "n4").for_zones(&["c"])];
    assert_eq!(chosen(ZONE_A, endpoints).0, [3, 4]);
}

fn on_nodes() -> Vec<Endpoint> {
    vec![
        at(3, "n2").for_nodes(&["n2"]).for_zones(&["a"]),
        at(4, "n1").for_nodes(&["n1"]).for_zones(&["a"]),
        at(5, "n3").for_nodes(&["n3"]).for_zones(&["b"]),
    ]
}

#[test]
fn hints_for_the_own_node_hold_before_those_for_the_zone() {
    assert_eq!(chosen(ZONE_A, on_nodes()).0, [4]);
}

#[test]
fn without_a_hint_for_the_own_node_those_for_the_zone_hold() {
    let mut endpoints = on_nodes();
    endpoints[1] = at(4, "n4").for_nodes(&["n4"]).for_zones(&["a"]);
    assert_eq!(chosen(ZONE_A, endpoints).0, [3, 4]);
}

#[test]
fn node_hints_do_not_hold_when_a_ready_endpoint_has_none() {
    let mut endpoints = on_nodes();
    endpoints[2] = at(5, "n3").for_zones(&["b"]);
    assert_eq!(chosen(ZONE_A, endpoints).0, [3, 4], "the zone's hold then");
    let mut endpoints = on_nodes();
    endpoints[2] = at(5, "n3");
    assert_eq!(chosen(ZONE_A, endpoints).0, [3, 4, 5]);
}

#[test]
fn the_local_policy_ignores_hints() {
    let endpoints = vec![at(3, "n1").for_zones(&["b"]), at(4, "n2").for_zones(&["a"]), at(5, "n1").for_zones(&["c"])];
    assert_eq!(chosen(ZONE_A, endpoints), (vec![4], vec![3, 5]));
}

#[test]
fn the_local_policy_takes_only_endpoints_of_the_own_node() {
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1"), at(4, "n2")]), (vec![3, 4], vec![3]));
    assert_eq!(chosen(ZONE_A, vec![at(3, "n2"), at(4, "n2")]), (vec![3, 4], vec![]));
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1"), at(4, "n1")]), (vec![3, 4], vec![3, 4]));
    assert_eq!(chosen(ZONE_A, vec![]), (vec![], vec![]));
}

#[test]
fn an_endpoint_without_node_is_nowhere_local() {
    assert_eq!(chosen(ZONE_A, vec![Endpoint { node: None, ..at(3, "n1") }]), (vec![3], vec![]));
}

#[test]
fn unready_endpoints_are_not_chosen() {
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1").unready(), at(4, "n1").unready()]), (vec![], vec![]));
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1"), at(4, "n1").unready()]), (vec![3], vec![3]));
}

#[test]
fn terminating_endpoints_serve_only_when_none_is_ready() {
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1").terminating(), at(4, "n2").terminating()]), (vec![3, 4], vec![3]));
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1").ended(), at(4, "n2").terminating()]), (vec![4], vec![]));
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1").ended()]), (vec![], vec![]));
}

#[test]
fn the_fallback_to_terminating_ones_is_decided_for_each_policy() {
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1").terminating(), at(4, "n2")]), (vec![4], vec![3]));
    assert_eq!(chosen(ZONE_A, vec![at(3, "n1").terminating(), at(4, "n1"), at(5, "n2")]), (vec![4, 5], vec![4]));
}

#[test]
fn serving_alone_is_not_enough() {
    let serving = Endpoint { serving: true, terminating: false, ..at(3, "n1").unready() };
    assert_eq!(chosen(ZONE_A, vec![serving]), (vec![], vec![]));
}

#[test]
fn a_ready_endpoint_counts_as_such_also_while_it_terminates() {
    // publishNotReadyAddresses gives such a one.
    let published = Endpoint { ready: true, terminating: true, ..at(3, "n1") };
    assert_eq!(chosen(ZONE_A, vec![published, at(4, "n2")]), (vec![3, 4], vec![3]));
}

#[test]
fn an_endpoint_in_two_slices_counts_once_as_its_better_self() {
    let port = [("http", 80)];
    for (first, second) in [(at(3, "n1").unready(), at(3, "n1")), (at(3, "n1"), at(3, "n1").terminating())] {
        let choice =
            choose_among(None, vec![slice("a", "web", &port, vec![first]), slice("b", "web", &port, vec![second])]);
        assert_eq!(choice.cluster.as_deref().map(<[Backend]>::len), Some(1));
    }
}

#[test]
fn slice_ports_join_by_name_and_protocol_and_may_differ_in_number() {
    let slices = vec![
        slice("a", "web", &[("http", 8080), ("other", 9)], vec![at(3, "n1")]),
        slice("b", "web", &[("http", 9090)], vec![at(3, "n1")]),
    ];
    let choice = choose_among(None, slices);
    let ports: Vec<u16> = choice.cluster.unwrap().iter().map(|backend| backend.address.port()).collect();
    assert_eq!(ports, [8080, 9090]);
    let mut udp = slice("a", "web", &[("http", 8080)], vec![at(3, "n1")]);
    udp.ports[0].protocol = crate::object::Protocol::Udp;
    assert_eq!(choose_among(None, vec![udp]).cluster, None);
}

#[test]
fn an_address_of_the_other_family_is_left_out() {
    let mixed = slice("a", "web", &[("http", 80)], vec![at(3, "n1"), endpoint("fd00::3", "n1")]);
    assert_eq!(choose_among(None, vec![mixed]).cluster.unwrap().len(), 1);
}
