//! The plan in step with the store: at any time the same as one made from nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::fixture::{Stage, config, endpoint, ip, node, number, service, slice};
use crate::object::{Endpoint, EndpointPort, EndpointSlice, Ingress, Node, Protocol, ServicePort, TrafficPolicy};
use crate::packet::{Entry, Packet, Verdict};
use crate::store::{Event, Kind};
use crate::walk::walk;

fn key(text: &str) -> FrontendKey {
    text.parse().unwrap()
}

fn holder(stage: &Stage, frontend: &str) -> Option<String> {
    stage.plan().frontends.get(&key(frontend)).map(|frontend| frontend.service_port.to_string())
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}

#[test]
fn one_changed_endpoint_changes_the_frontends_of_its_service_alone() {
    let mut stage = Stage::new(Family::Ipv4, config());
    for (name, address) in [("web", "10.96.0.1"), ("db", "10.96.0.2")] {
        let endpoints = vec![endpoint("10.180.0.1", "n1")];
        stage =
            stage.with(service(name, &[address]).port("http", 80), [slice(name, name, &[("http", 8080)], endpoints)]);
    }
    let endpoints = vec![endpoint("10.180.0.1", "n1"), endpoint("10.180.1.1", "n2")];
    let change = stage.tell([Event::SliceApplied(slice("web", "web", &[("http", 8080)], endpoints))]);
    assert_eq!(change.set.keys().copied().collect::<Vec<_>>(), [key("10.96.0.1:80/tcp")]);
    assert!(change.removed.is_empty() && change.node.is_none());
    assert_eq!((change.cluster_ips, change.local_endpoints), (SetChange::default(), SetChange::default()));
}

#[test]
fn a_change_that_does_not_reach_the_plan_is_empty() {
    let mut stage = Stage::new(Family::Ipv4, config()).with(service("web", &["10.96.0.1"]).port("http", 80), []);
    let unready = slice("web-1", "web", &[("http", 8080)], vec![endpoint("10.180.0.1", "n1").unready()]);
    assert!(stage.tell([Event::SliceApplied(unready)]).is_empty());
    assert!(stage.tell([Event::SliceApplied(slice("x", "nobody", &[("http", 1)], vec![]))]).is_empty());
    assert!(stage.tell([Event::NodeApplied(node("n2", Some("b"), &["192.168.0.3"]))]).is_empty());
}

#[test]
fn of_two_services_with_one_address_the_first_by_name_has_it_whatever_the_order() {
    let [a, b] = ["a", "b"].map(|name| service(name, &["10.96.0.1"]).port("http", 80));
    for services in [[&a, &b], [&b, &a]] {
        let mut stage = Stage::new(Family::Ipv4, config());
        stage.tell(services.map(|service| Event::ServiceApplied(service.clone())));
        assert_eq!(holder(&stage, "10.96.0.1:80/tcp").as_deref(), Some("default/a:http"));
        let change = stage.tell([Event::ServiceDeleted(name("a"))]);
        assert_eq!(holder(&stage, "10.96.0.1:80/tcp").as_deref(), Some("default/b:http"));
        assert!(change.cluster_ips == SetChange::default(), "the address is still somebody's");
        let change = stage.tell([Event::ServiceDeleted(name("b"))]);
        assert_eq!((change.removed.len(), change.cluster_ips.removed.len()), (1, 1));
    }
}

#[test]
fn of_two_ports_with_one_number_the_first_that_is_written_counts() {
    let twice = service("web", &["10.96.0.1"]).port("z", 80).port("a", 80);
    let stage = Stage::new(Family::Ipv4, config()).with(twice, []);
    assert_eq!(holder(&stage, "10.96.0.1:80/tcp").as_deref(), Some("default/web:z"));
}

#[test]
fn a_cluster_address_wins_over_an_external_one() {
    let thief = service("a", &["10.96.0.9"]).port("http", 80).external_ip("10.96.0.1");
    let mut stage = Stage::new(Family::Ipv4, config()).with(thief, []);
    assert_eq!(holder(&stage, "10.96.0.1:80/tcp").as_deref(), Some("default/a:http"));
    stage.tell([Event::ServiceApplied(service("b", &["10.96.0.1"]).port("http", 80))]);
    assert_eq!(holder(&stage, "10.96.0.1:80/tcp").as_deref(), Some("default/b:http"));
}

#[test]
fn a_local_endpoint_that_two_services_share_stays_until_both_are_gone() {
    let mut stage = Stage::new(Family::Ipv4, config());
    for (name, address) in [("a", "10.96.0.1"), ("b", "10.96.0.2")] {
        let endpoints = vec![endpoint("10.180.0.1", "n1"), endpoint("10.180.1.1", "n2")];
        stage = stage.with(service(name, &[address]).port("http", 80), [slice(name, name, &[("http", 80)], endpoints)]);
    }
    assert_eq!(stage.plan().local_endpoints, BTreeSet::from([ip("10.180.0.1")]));
    assert!(stage.tell([Event::SliceDeleted(name("a"))]).local_endpoints.removed.is_empty());
    assert_eq!(stage.tell([Event::SliceDeleted(name("b"))]).local_endpoints.removed.len(), 1);
}

#[test]
fn the_nodes_own_facts_come_from_its_object_and_its_configuration() {
    let mut stage = Stage { store: Store::new(), planner: Planner::new(Family::Ipv4, config()) };
    assert!(stage.plan().node_port_addresses.is_empty(), "without the node's object nobody knows the primary address");
    let addresses = ["fd00:168::2", "192.168.1.2", "192.168.0.2"];
    let change = stage.tell([Event::NodeApplied(node("n1", None, &addresses))]);
    assert_eq!(change.node.unwrap().node_port_addresses, BTreeSet::from([ip("192.168.1.2")]));
    stage.tell([Event::NodeApplied(node("n1", None, &["172.16.0.1"]))]);
    assert!(stage.plan().node_port_addresses.is_empty(), "an address that no interface has");
    assert!(stage.plan().cluster_cidrs.iter().all(|range| range.addr().is_ipv4()));
    stage.planner.set_config(NodeConfig { node_addresses: BTreeSet::from([ip("172.16.0.1")]), ..config() });
    let change = stage.tell([]);
    assert_eq!(change.node.unwrap().node_port_addresses, BTreeSet::from([ip("172.16.0.1")]));
}

#[test]
fn a_new_zone_of_the_node_plans_all_services_anew() {
    let hinted = vec![endpoint("10.180.0.1", "n2").for_zones(&["a"]), endpoint("10.180.0.2", "n3").for_zones(&["b"])];
    let mut stage = Stage::new(Family::Ipv4, config())
        .with(service("web", &["10.96.0.1"]).port("http", 80), [slice("web-1", "web", &[("http", 80)], hinted)]);
    let change = stage.tell([Event::NodeApplied(node("n1", Some("b"), &["192.168.0.2", "fd00:168::2"]))]);
    assert_eq!(change.set.len(), 1);
    let Target::Backends(backends) = &stage.plan().frontends[&key("10.96.0.1:80/tcp")].from_pod.target else {
        panic!()
    };
    assert_eq!(backends.iter().map(|backend| backend.address.ip()).collect::<Vec<_>>(), [ip("10.180.0.2")]);
}

#[test]
fn a_planner_that_comes_late_takes_in_the_whole_store() {
    let stage = Stage::new(Family::Ipv4, config()).with(service("web", &["10.96.0.1"]).port("http", 80), []);
    let mut late = Planner::new(Family::Ipv4, config());
    late.update(&stage.store, &Dirty::default());
    assert_eq!(late.plan(), stage.plan());
}

#[test]
fn a_plan_and_a_change_survive_json() {
    let endpoints = vec![endpoint("10.180.0.1", "n1"), endpoint("10.180.1.1", "n2")];
    let web = service("web", &["10.96.0.1"]).port("http", 80).node_port(30_080).ingress("198.51.100.1");
    let web = web.sources("192.0.2.0/24").sticky(60);
    let mut stage = Stage::new(Family::Ipv4, config());
    stage.tell([Event::ServiceApplied(web)]);
    let change = stage.tell([Event::SliceApplied(slice("web-1", "web", &[("http", 8080)], endpoints))]);
    let text = serde_json::to_string(stage.plan()).unwrap();
    assert_eq!(&serde_json::from_str::<NodePlan>(&text).unwrap(), stage.plan());
    let text = serde_json::to_string(&change).unwrap();
    assert_eq!(serde_json::from_str::<PlanChange>(&text).unwrap(), change);
    let value = serde_json::to_value(stage.plan()).unwrap();
    assert_eq!(value["frontends"]["10.96.0.1:80/tcp"]["kind"], "ClusterIp");
}

// --- Random histories ---

const NAMES: [&str; 3] = ["a", "b", "c"];
const CLUSTER_IPS: [&str; 4] = ["10.96.0.1", "10.96.0.2", "fd00:96::1", "fd00:96::2"];
const OTHER_IPS: [&str; 4] = ["192.0.2.1", "10.96.0.1", "198.51.100.1", "fd00:96::1"];
const ENDPOINTS: [&str; 6] = ["10.180.0.1", "10.180.0.2", "10.180.1.1", "10.180.1.2", "fd00:180::1", "fd00:180:1::1"];
const ZONES: [&str; 2] = ["a", "b"];
const NODES: [&str; 2] = ["n1", "n2"];

fn some<T: Clone + std::fmt::Debug + 'static>(of: &'static [T], most: usize) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(prop::sample::select(of), 0..=most)
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    any::<bool>().prop_map(|local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop::sample::select(&[Protocol::Tcp, Protocol::Udp][..])
}

fn any_service() -> impl Strategy<Value = Service> {
    let port = (prop::sample::select(&NAMES[..]), protocol(), 80u16..82, prop::option::of(30_000u16..30_002));
    let port = port.prop_map(|(name, protocol, port, node_port)| ServicePort {
        name: name.into(),
        protocol,
        port: number(port),
        node_port: node_port.map(number),
    });
    let addresses = (some(&CLUSTER_IPS, 2), some(&OTHER_IPS, 2), some(&OTHER_IPS, 2), any::<bool>());
    let ports = prop::collection::vec(port, 0..3);
    let ranges = some(&["192.168.0.0/24", "fd00:168::/64", "0.0.0.0/0"], 2);
    (prop::sample::select(&NAMES[..]), addresses, ports, policy(), policy(), ranges).prop_map(
        |(name, (cluster, external, ingress, vip), ports, external_policy, internal_policy, ranges)| Service {
            external_ips: external.into_iter().map(ip).collect(),
            ingress: ingress.into_iter().map(|address| Ingress { address: ip(address), vip }).collect(),
            source_ranges: ranges.into_iter().map(|range| range.parse().unwrap()).collect(),
            ports,
            external_policy,
            internal_policy,
            ..service(name, &cluster)
        },
    )
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let conditions = (prop::bool::weighted(0.7), any::<bool>(), prop::bool::weighted(0.3));
    let node = prop::option::weighted(0.9, prop::sample::select(&NODES[..]));
    (prop::sample::select(&ENDPOINTS[..]), conditions, node, some(&ZONES, 2), some(&NODES, 1)).prop_map(
        |(address, (ready, serving, terminating), node, zones, nodes)| Endpoint {
            ready,
            serving,
            terminating,
            node: node.map(Into::into),
            ..endpoint(address, "n1").for_zones(&zones).for_nodes(&nodes)
        },
    )
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let port = (prop::sample::select(&NAMES[..]), protocol(), 8080u16..8082);
    let port = port.prop_map(|(name, protocol, port)| EndpointPort { name: name.into(), protocol, port: number(port) });
    let endpoints = prop::collection::vec(any_endpoint(), 0..4);
    let names = (prop::sample::select(&["s1", "s2", "s3", "s4"][..]), prop::sample::select(&NAMES[..]));
    (names, prop::collection::vec(port, 0..3), endpoints)
        .prop_map(|((name, service), ports, endpoints)| EndpointSlice { ports, ..slice(name, service, &[], endpoints) })
}

fn any_node() -> impl Strategy<Value = Node> {
    let addresses = some(&["192.168.0.2", "192.168.1.2", "192.168.0.3", "fd00:168::2"], 2);
    (prop::sample::select(&NODES[..]), prop::option::of(prop::sample::select(&ZONES[..])), addresses)
        .prop_map(|(name, zone, addresses)| node(name, zone, &addresses))
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(&Kind::ALL[..])
}

fn any_event() -> impl Strategy<Value = Event> {
    let name = || prop::sample::select(&["a", "b", "c", "s1", "s2", "s3", "s4"][..]).prop_map(self::name);
    let ranges = some(&["10.96.0.0/12", "fd00:96::/112", "10.0.0.0/8"], 2);
    prop_oneof![
        5 => any_service().prop_map(Event::ServiceApplied),
        1 => name().prop_map(Event::ServiceDeleted),
        6 => any_slice().prop_map(Event::SliceApplied),
        2 => name().prop_map(Event::SliceDeleted),
        1 => any_node().prop_map(Event::NodeApplied),
        1 => prop::sample::select(&NODES[..]).prop_map(|node| Event::NodeDeleted(node.into())),
        1 => ranges.prop_map(|ranges| Event::ServiceCidrsApplied {
            name: "kubernetes".into(),
            cidrs: ranges.into_iter().map(|range| range.parse().unwrap()).collect(),
        }),
        1 => Just(Event::ServiceCidrsDeleted("kubernetes".into())),
        1 => any_kind().prop_map(Event::Reset),
        1 => any_kind().prop_map(Event::Synced),
    ]
}

/// What the store should hold, in the simplest words.
#[derive(Default)]
struct Model {
    /// By kind and name, the event that put the object there, and whether the list that is under way has named it.
    objects: BTreeMap<(Kind, String), (Event, bool)>,
}

impl Model {
    fn handle(&mut self, event: &Event) {
        let put = |kind, name: String| Some(((kind, name), true));
        let gone = |kind, name: String| Some(((kind, name), false));
        let what = match event {
            Event::ServiceApplied(service) => put(Kind::Service, service.name.to_string()),
            Event::SliceApplied(slice) => put(Kind::EndpointSlice, slice.name.to_string()),
            Event::NodeApplied(node) => put(Kind::Node, node.name.to_string()),
            Event::ServiceCidrsApplied { name, .. } => put(Kind::ServiceCidr, name.to_string()),
            Event::ServiceDeleted(name) => gone(Kind::Service, name.to_string()),
            Event::SliceDeleted(name) => gone(Kind::EndpointSlice, name.to_string()),
            Event::NodeDeleted(name) => gone(Kind::Node, name.to_string()),
            Event::ServiceCidrsDeleted(name) => gone(Kind::ServiceCidr, name.to_string()),
            Event::Reset(kind) => {
                self.objects.iter_mut().filter(|((of, _), _)| of == kind).for_each(|(_, (_, named))| *named = false);
                None
            }
            Event::Synced(kind) => {
                self.objects.retain(|(of, _), (_, named)| of != kind || *named);
                None
            }
        };
        match what {
            Some((name, true)) => self.objects.insert(name, (event.clone(), true)),
            Some((name, false)) => self.objects.remove(&name),
            None => None,
        };
    }

    fn plan(&self, family: Family, config: NodeConfig) -> NodePlan {
        let mut store = Store::new();
        self.objects.values().for_each(|(event, _)| store.handle(event.clone()));
        let mut planner = Planner::new(family, config);
        planner.update(&store, &Dirty::default());
        planner.plan().clone()
    }
}

fn check_shape(plan: &NodePlan) -> Result<(), TestCaseError> {
    prop_assert!(plan.node_port_addresses.is_subset(&plan.node_addresses));
    for (key, frontend) in &plan.frontends {
        for route in [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere] {
            if let Target::Backends(backends) = &route.target {
                prop_assert!(!backends.is_empty() && backends.is_sorted_by(|a, b| a.address < b.address));
                prop_assert!(backends.iter().all(|backend| Family::of(backend.address.ip()) == plan.family));
            }
        }
        if let FrontendKey::Address { address, .. } = key {
            prop_assert_eq!(Family::of(*address), plan.family);
        }
    }
    Ok(())
}

/// Any packet has a fate; a rewritten one goes to an endpoint of the plan's family, never nowhere.
fn check_walks(plan: &NodePlan) -> Result<(), TestCaseError> {
    let addresses = || CLUSTER_IPS.into_iter().chain(OTHER_IPS).chain(ENDPOINTS).chain(["192.168.0.2", "fd00:168::2"]);
    for (source, destination) in addresses().flat_map(|source| addresses().map(move |to| (ip(source), ip(to)))) {
        for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Udp, 81), (Protocol::Tcp, 30_000), (Protocol::Sctp, 0)]
        {
            let (source, destination) = (SocketAddr::new(source, 40_000), SocketAddr::new(destination, port));
            let verdict = walk(plan, &Packet { protocol, source, destination, entry: Entry::Interface });
            if let Verdict::Rewrite(rewrites) = verdict {
                prop_assert!(!rewrites.is_empty());
                prop_assert!(rewrites.iter().all(|rewrite| Family::of(rewrite.to.ip()) == plan.family));
                let is_local = plan.local_endpoints.contains(&source.ip());
                let mut hairpins = rewrites.iter().filter(|rewrite| is_local && rewrite.to.ip() == source.ip());
                prop_assert!(hairpins.all(|hairpin| hairpin.masquerade));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens, in whatever portions: the plan is the one made from nothing out of what is there, the change
    /// leads from the plan before to it, and says nothing that was so already.
    #[test]
    fn a_plan_kept_in_step_is_the_plan_made_from_nothing(
        portions in prop::collection::vec((prop::collection::vec(any_event(), 0..5), any::<u8>()), 1..14),
        ipv6: bool,
    ) {
        let family = if ipv6 { Family::Ipv6 } else { Family::Ipv4 };
        let (mut store, mut model, mut config) = (Store::new(), Model::default(), config());
        let mut planner = Planner::new(family, config.clone());
        for (events, dice) in portions {
            for event in events {
                model.handle(&event);
                store.handle(event);
            }
            if dice < 25 {
                config.masquerade_all ^= dice % 2 == 0;
                config.node_port_addresses =
                    if dice % 3 == 0 { NodePortAddresses::All } else { NodePortAddresses::Primary };
                config.cluster_cidrs = if dice % 5 == 0 { vec![] } else { crate::fixture::config().cluster_cidrs };
                planner.set_config(config.clone());
            }
            let before = planner.plan().clone();
            let dirty = store.take_dirty();
            let change = planner.update(&store, &dirty);
            prop_assert_eq!(planner.plan(), &model.plan(family, config.clone()));
            let mut applied = before.clone();
            applied.apply(&change);
            prop_assert_eq!(&applied, planner.plan());
            prop_assert!(change.set.iter().all(|(key, frontend)| before.frontends.get(key) != Some(frontend)));
            prop_assert!(change.removed.iter().all(|key| before.frontends.contains_key(key)));
            prop_assert!(change.local_endpoints.added.is_disjoint(&before.local_endpoints));
            prop_assert!(change.cluster_ips.removed.is_subset(&before.cluster_ips));
            prop_assert_eq!(change.is_empty(), &before == planner.plan());
            check_shape(planner.plan())?;
        }
        check_walks(planner.plan())?;
    }
}
