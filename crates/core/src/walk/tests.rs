//! Facts of the fates: kube-proxy 1.36's packet tables (`TestClusterIPGeneral`, `TestNoEndpointsReject`, `TestNodePorts`,
//! `TestLoadBalancer`, `Test{External,Internal}TrafficPolicy…`, `TestTerminatingEndpoints…`, `TestInternalExternalMasquerade`),
//! each in both families. The node is n1; A stands for an IPv4 address of the table and its IPv6 twin.

use proptest::prelude::*;

use super::*;
use crate::fixture::{Stage, config, endpoint, ip, masqueraded, packet, service, slice, to};
use crate::object::{Endpoint, Protocol, Service};
use crate::packet::Entry;
use crate::planner::{NodeConfig, NodePortAddresses};
use crate::store::Event;

const POD: &str = "10.180.0.9";
const REMOTE_POD: &str = "10.180.1.9";
const NODE: &str = "192.168.0.2";
const OUTSIDE: &str = "203.0.113.9";
const LOCAL: &str = "10.180.0.1:8080";
const REMOTE: &str = "10.180.1.1:8080";

/// One port, all kinds of frontends: cluster, node port, external and load-balancer address.
fn web() -> Service {
    let service = service("web", &["10.96.0.1", "fd00:96::1"]).port("http", 80).node_port(30_080);
    service.external_ip("192.0.2.1").ingress("198.51.100.1")
}

fn stage(config: NodeConfig, service: Service, endpoints: Vec<Endpoint>) -> Stage {
    Stage::new(Family::Ipv4, config).with(service, [slice("web-1", "web", &[("http", 8080)], endpoints)])
}

fn one_local_one_remote() -> Vec<Endpoint> {
    vec![endpoint("10.180.0.1", "n1"), endpoint("10.180.1.1", "n2")]
}

const CLUSTER_IP: &str = "10.96.0.1:80";
const NODE_PORT: &str = "192.168.0.2:30080";
const EXTERNAL: [&str; 3] = [NODE_PORT, "192.0.2.1:80", "198.51.100.1:80"];

#[track_caller]
fn expect(stage: &Stage, source: &str, destination: &str, fate: Verdict) {
    assert_eq!(stage.walk(source, destination), fate, "{source} to {destination}");
}

#[test]
fn a_cluster_address_leads_to_every_endpoint_and_masquerades_who_is_no_pod() {
    let stage = stage(config(), web(), one_local_one_remote());
    expect(&stage, POD, CLUSTER_IP, to(&[LOCAL, REMOTE]));
    expect(&stage, REMOTE_POD, CLUSTER_IP, to(&[LOCAL, REMOTE]));
    expect(&stage, NODE, CLUSTER_IP, masqueraded(&[LOCAL, REMOTE]));
    expect(&stage, OUTSIDE, CLUSTER_IP, masqueraded(&[LOCAL, REMOTE]));
}

#[test]
fn a_hairpin_is_masqueraded() {
    let stage = stage(config(), web(), one_local_one_remote());
    let mut fates = BTreeSet::from([Rewrite { to: LOCAL.parse().unwrap(), masquerade: true }]);
    fates.insert(Rewrite { to: REMOTE.parse().unwrap(), masquerade: false });
    expect(&stage, "10.180.0.1", CLUSTER_IP, Verdict::Rewrite(fates));
}

#[test]
fn each_protocol_of_a_port_is_a_frontend_of_its_own() {
    let service =
        service("web", &["10.96.0.1"]).protocol_port("t", Protocol::Tcp, 80).protocol_port("u", Protocol::Udp, 80);
    let mut slice = slice("web-1", "web", &[("t", 8080), ("u", 8081)], one_local_one_remote());
    slice.ports[1].protocol = Protocol::Udp;
    let stage = Stage::new(Family::Ipv4, config()).with(service, [slice]);
    assert_eq!(stage.walk_protocol(Protocol::Udp, POD, CLUSTER_IP), to(&["10.180.0.1:8081", "10.180.1.1:8081"]));
    assert_eq!(stage.walk_protocol(Protocol::Sctp, POD, CLUSTER_IP), Verdict::Reject);
}

#[test]
fn a_port_that_a_cluster_address_lacks_is_rejected_and_an_address_nobody_has_is_dropped() {
    let mut stage = stage(config(), web(), one_local_one_remote());
    expect(&stage, POD, "10.96.0.1:81", Verdict::Reject);
    expect(&stage, POD, "10.96.9.9:80", Verdict::NotOurs);
    let cidrs = vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()];
    stage.tell([Event::ServiceCidrsApplied { name: "kubernetes".into(), cidrs }]);
    expect(&stage, POD, "10.96.9.9:80", Verdict::Drop);
    expect(&stage, POD, "10.96.0.1:81", Verdict::Reject);
    expect(&stage, POD, "10.180.0.1:8080", Verdict::NotOurs);
    expect(&stage, POD, "198.51.100.1:81", Verdict::NotOurs);
    stage.tell([Event::ServiceDeleted(crate::object::ObjectName::new("default", "web"))]);
    expect(&stage, POD, CLUSTER_IP, Verdict::Drop);
    expect(&stage, OUTSIDE, NODE_PORT, Verdict::NotOurs);
}

#[test]
fn without_endpoints_every_frontend_rejects() {
    for policy in [|s: Service| s, Service::external_local, Service::internal_local] {
        for endpoints in [vec![], vec![endpoint("10.180.0.1", "n1").unready(), endpoint("10.180.1.1", "n2").ended()]] {
            let stage = stage(config(), policy(web()), endpoints);
            for destination in [CLUSTER_IP].into_iter().chain(EXTERNAL) {
                for source in [POD, NODE, OUTSIDE] {
                    expect(&stage, source, destination, Verdict::Reject);
                }
            }
        }
    }
}

#[test]
fn external_policy_cluster_leads_to_every_endpoint_masqueraded() {
    let stage = stage(config(), web(), one_local_one_remote());
    for destination in EXTERNAL {
        for source in [POD, NODE, OUTSIDE] {
            expect(&stage, source, destination, masqueraded(&[LOCAL, REMOTE]));
        }
    }
}

#[test]
fn external_policy_local_keeps_outside_clients_on_the_node_and_lets_the_clusters_own_anywhere() {
    let stage = stage(config(), web().external_local(), one_local_one_remote());
    expect(&stage, POD, CLUSTER_IP, to(&[LOCAL, REMOTE]));
    expect(&stage, OUTSIDE, CLUSTER_IP, masqueraded(&[LOCAL, REMOTE]));
    for destination in EXTERNAL {
        expect(&stage, POD, destination, to(&[LOCAL, REMOTE]));
        expect(&stage, NODE, destination, masqueraded(&[LOCAL, REMOTE]));
        expect(&stage, OUTSIDE, destination, to(&[LOCAL]));
    }
}

#[test]
fn external_policy_local_without_local_endpoint_drops_outside_clients_only() {
    let stage = stage(config(), web().external_local(), vec![endpoint("10.180.1.1", "n2")]);
    for destination in EXTERNAL {
        expect(&stage, OUTSIDE, destination, Verdict::Drop);
        expect(&stage, POD, destination, to(&[REMOTE]));
        expect(&stage, NODE, destination, masqueraded(&[REMOTE]));
    }
}

#[test]
fn internal_policy_local_concerns_the_cluster_address_alone() {
    let stage = stage(config(), web().internal_local(), one_local_one_remote());
    expect(&stage, POD, CLUSTER_IP, to(&[LOCAL]));
    expect(&stage, NODE, CLUSTER_IP, masqueraded(&[LOCAL]));
    expect(&stage, OUTSIDE, CLUSTER_IP, masqueraded(&[LOCAL]));
    expect(&stage, OUTSIDE, NODE_PORT, masqueraded(&[LOCAL, REMOTE]));
    expect(&stage, POD, NODE_PORT, masqueraded(&[LOCAL, REMOTE]));
}

#[test]
fn internal_policy_local_without_local_endpoint_drops() {
    let stage = stage(config(), web().internal_local(), vec![endpoint("10.180.1.1", "n2")]);
    expect(&stage, POD, CLUSTER_IP, Verdict::Drop);
    expect(&stage, NODE, CLUSTER_IP, Verdict::Drop);
    expect(&stage, POD, NODE_PORT, masqueraded(&[REMOTE]));
}

#[test]
fn terminating_endpoints_serve_under_local_policies_while_the_node_has_no_ready_one() {
    let ends = vec![endpoint("10.180.0.1", "n1").terminating(), endpoint("10.180.1.1", "n2")];
    let stage = stage(config(), web().external_local().internal_local(), ends);
    expect(&stage, POD, CLUSTER_IP, to(&[LOCAL]));
    expect(&stage, OUTSIDE, NODE_PORT, to(&[LOCAL]));
    expect(&stage, POD, NODE_PORT, to(&[REMOTE]));
}

#[test]
fn a_terminating_endpoint_elsewhere_makes_a_local_policy_drop_instead_of_reject() {
    let stage =
        stage(config(), web().external_local().internal_local(), vec![endpoint("10.180.1.1", "n2").terminating()]);
    expect(&stage, POD, CLUSTER_IP, Verdict::Drop);
    expect(&stage, OUTSIDE, NODE_PORT, Verdict::Drop);
}

#[test]
fn when_the_clusters_ranges_are_unknown_nobody_is_a_pod() {
    let stage = stage(NodeConfig { cluster_cidrs: vec![], ..config() }, web().external_local(), one_local_one_remote());
    for source in [POD, NODE, OUTSIDE] {
        expect(&stage, source, CLUSTER_IP, to(&[LOCAL, REMOTE]));
    }
    expect(&stage, POD, NODE_PORT, to(&[LOCAL]));
    expect(&stage, NODE, NODE_PORT, masqueraded(&[LOCAL, REMOTE]));
}

#[test]
fn masquerade_all_concerns_the_cluster_address_alone() {
    for cluster_cidrs in [vec![], config().cluster_cidrs] {
        let config = NodeConfig { masquerade_all: true, cluster_cidrs, ..config() };
        let stage = stage(config, web().external_local(), one_local_one_remote());
        for source in [POD, NODE, OUTSIDE] {
            expect(&stage, source, CLUSTER_IP, masqueraded(&[LOCAL, REMOTE]));
        }
        expect(&stage, OUTSIDE, NODE_PORT, to(&[LOCAL]));
    }
}

#[test]
fn node_ports_answer_at_the_addresses_that_are_configured() {
    let at = |addresses| NodeConfig { node_port_addresses: addresses, ..config() };
    let cidrs = |range: &str| at(NodePortAddresses::Cidrs(vec![range.parse().unwrap()]));
    let both = masqueraded(&[LOCAL, REMOTE]);
    for (config, primary, secondary) in [
        (at(NodePortAddresses::Primary), true, false),
        (at(NodePortAddresses::All), true, true),
        (cidrs("192.168.1.0/24"), false, true),
        (cidrs("192.168.0.0/16"), true, true),
        (cidrs("fd00::/8"), false, false),
    ] {
        let stage = stage(config, web(), one_local_one_remote());
        let fate = |answers: bool| if answers { both.clone() } else { Verdict::NotOurs };
        expect(&stage, OUTSIDE, NODE_PORT, fate(primary));
        expect(&stage, OUTSIDE, "192.168.1.2:30080", fate(secondary));
        expect(&stage, NODE, "127.0.0.1:30080", Verdict::NotOurs);
        expect(&stage, OUTSIDE, "192.168.0.3:30080", Verdict::NotOurs);
    }
}

#[test]
fn the_second_family_has_frontends_of_its_own() {
    let slice = slice("web-6", "web", &[("http", 8080)], vec![endpoint("fd00:180::1", "n1")]);
    let stage = Stage::new(Family::Ipv6, config()).with(web(), [slice]);
    expect(&stage, "fd00:180::9", "[fd00:96::1]:80", to(&["[fd00:180::1]:8080"]));
    expect(&stage, "2001:db8::9", "[fd00:168::2]:30080", masqueraded(&["[fd00:180::1]:8080"]));
    expect(&stage, "2001:db8::9", "[fe80::2]:30080", Verdict::NotOurs);
    expect(&stage, POD, CLUSTER_IP, Verdict::NotOurs);
    assert!(stage.plan().frontends.keys().all(|key| !key.to_string().contains("192.0.2.1")));
}

#[test]
fn a_service_without_a_cluster_address_in_the_family_is_not_there_in_it() {
    let single = service("web", &["10.96.0.1"]).port("http", 80).node_port(30_080).external_ip("2001:db8::1");
    let stage = Stage::new(Family::Ipv6, config()).with(single.ingress("2001:db8::2"), []);
    for destination in ["[fd00:168::2]:30080", "[2001:db8::1]:80", "[2001:db8::2]:80"] {
        expect(&stage, "2001:db8::9", destination, Verdict::NotOurs);
    }
}

#[test]
fn source_ranges_guard_load_balancer_addresses_alone() {
    let guarded = web().sources("192.168.0.0/24").sources("203.0.113.0/25").sources("2001:db8::/32");
    let stage = stage(config(), guarded, one_local_one_remote());
    let both = || masqueraded(&[LOCAL, REMOTE]);
    expect(&stage, "203.0.113.9", "198.51.100.1:80", both());
    expect(&stage, "203.0.113.200", "198.51.100.1:80", Verdict::Drop);
    expect(&stage, POD, "198.51.100.1:80", Verdict::Drop);
    expect(&stage, NODE, "198.51.100.1:80", both());
    expect(&stage, "198.51.100.1", "198.51.100.1:80", both());
    for open in [NODE_PORT, "192.0.2.1:80", CLUSTER_IP] {
        expect(&stage, "203.0.113.200", open, both());
    }
}

#[test]
fn source_ranges_guard_node_ports_when_asked() {
    let asked = NodeConfig { source_ranges_on_node_ports: true, ..config() };
    let stage = self::stage(asked.clone(), web().sources("203.0.113.0/25"), one_local_one_remote());
    expect(&stage, "203.0.113.9", NODE_PORT, masqueraded(&[LOCAL, REMOTE]));
    for denied in ["203.0.113.200", POD, NODE] {
        expect(&stage, denied, NODE_PORT, Verdict::Drop);
    }
    expect(&stage, "203.0.113.9", "192.168.1.2:30080", Verdict::NotOurs);
    expect(&stage, "203.0.113.200", CLUSTER_IP, masqueraded(&[LOCAL, REMOTE]));
    let open = self::stage(asked, web(), one_local_one_remote());
    expect(&open, "203.0.113.200", NODE_PORT, masqueraded(&[LOCAL, REMOTE]));
}

#[test]
fn node_ports_answer_at_loopback_where_they_may_and_are_to() {
    let at = |may, addresses| NodeConfig { localhost_node_ports: may, node_port_addresses: addresses, ..config() };
    let ranges = || NodePortAddresses::Cidrs(vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
    let fate = |config| {
        let stage = stage(config, web(), one_local_one_remote());
        walk(stage.plan(), &packet(Protocol::Tcp, "127.0.0.1", "127.0.0.1:30080"))
    };
    assert_eq!(fate(at(true, ranges())), masqueraded(&[LOCAL, REMOTE]));
    assert_eq!(fate(at(true, NodePortAddresses::All)), masqueraded(&[LOCAL, REMOTE]));
    assert_eq!(fate(at(true, NodePortAddresses::Primary)), Verdict::NotOurs);
    assert_eq!(fate(at(false, ranges())), Verdict::NotOurs);
}

#[test]
fn source_ranges_without_the_node_shut_out_its_load_balancer_address_as_a_source() {
    let stage = stage(config(), web().sources("203.0.113.0/25"), one_local_one_remote());
    expect(&stage, "198.51.100.1", "198.51.100.1:80", Verdict::Drop);
}

#[test]
fn source_ranges_of_the_other_family_guard_nothing() {
    let stage = stage(config(), web().sources("2001:db8::/32"), one_local_one_remote());
    expect(&stage, "203.0.113.200", "198.51.100.1:80", masqueraded(&[LOCAL, REMOTE]));
}

#[test]
fn source_ranges_drop_also_what_would_be_rejected() {
    let stage = stage(config(), web().sources("203.0.113.0/25"), vec![]);
    expect(&stage, "203.0.113.200", "198.51.100.1:80", Verdict::Drop);
    expect(&stage, "203.0.113.9", "198.51.100.1:80", Verdict::Reject);
}

#[test]
fn a_load_balancer_in_proxy_mode_gets_its_packets() {
    let mut service = web();
    service.ingress[0].vip = false;
    let stage = stage(config(), service, one_local_one_remote());
    expect(&stage, POD, "198.51.100.1:80", Verdict::NotOurs);
}

#[test]
fn affinity_is_in_the_plan() {
    let stage = stage(config(), web().sticky(10_800), one_local_one_remote());
    assert!(stage.plan().frontends.values().all(|f| f.affinity == Some(std::time::Duration::from_secs(10_800))));
}

#[test]
fn a_client_is_bound_to_what_is_remembered_while_it_may_be_sent_there() {
    let sticky = stage(config(), web().sticky(10_800), one_local_one_remote());
    let walk_to = |stage: &Stage, source, destination, remembered: &str| {
        let packet = packet(Protocol::Tcp, source, destination);
        walk_remembering(stage.plan(), &packet, Some(remembered.parse().unwrap()))
    };
    assert_eq!(walk_to(&sticky, POD, CLUSTER_IP, REMOTE), to(&[REMOTE]));
    assert_eq!(walk_to(&sticky, OUTSIDE, NODE_PORT, LOCAL), masqueraded(&[LOCAL]));
    // Gone, or never there, or at another port.
    for stranger in ["10.180.9.9:8080", "10.180.0.1:9"] {
        assert_eq!(walk_to(&sticky, POD, CLUSTER_IP, stranger), to(&[LOCAL, REMOTE]));
    }
    let plain = stage(config(), web(), one_local_one_remote());
    assert_eq!(walk_to(&plain, POD, CLUSTER_IP, REMOTE), to(&[LOCAL, REMOTE]));
}

#[test]
fn an_external_address_never_takes_a_cluster_address_from_its_service() {
    let thief = service("a-thief", &["10.96.0.66"]).port("http", 80).external_ip("10.96.0.1");
    let mut stage = stage(config(), web(), one_local_one_remote());
    stage.tell([Event::ServiceApplied(thief)]);
    expect(&stage, POD, CLUSTER_IP, to(&[LOCAL, REMOTE]));
}

#[test]
fn a_packet_to_port_0_or_of_two_families_harms_nobody() {
    let stage = stage(config(), web(), one_local_one_remote());
    expect(&stage, POD, "10.96.0.1:0", Verdict::Reject);
    expect(&stage, POD, "192.168.0.2:0", Verdict::NotOurs);
    expect(&stage, "fd00:180::9", CLUSTER_IP, Verdict::NotOurs);
    let mut local = packet(Protocol::Tcp, NODE, CLUSTER_IP);
    local.entry = Entry::Local;
    assert_eq!(walk(stage.plan(), &local), masqueraded(&[LOCAL, REMOTE]));
    assert_eq!(Origin::of(stage.plan(), ip(NODE)), Origin::Node);
}

proptest! {
    #[test]
    fn no_packet_makes_it_panic(source: (u32, u128), destination: (u32, u128), ports: (u16, u16), families: (bool, bool), udp: bool) {
        let address = |(v4, v6): (u32, u128), first: bool| if first { IpAddr::from(v4.to_be_bytes()) } else { IpAddr::from(v6.to_be_bytes()) };
        let packet = Packet {
            protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
            source: SocketAddr::new(address(source, families.0), ports.0),
            destination: SocketAddr::new(address(destination, families.1), ports.1),
            entry: Entry::Interface,
        };
        let stage = stage(config(), web(), one_local_one_remote());
        walk(stage.plan(), &packet);
    }
}
