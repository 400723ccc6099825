//! How long the plan takes at a size, as one line of JSON: `plan_speed [SERVICES [ENDPOINTS]]` (10,000 and 10).
//!
//! Reports the plan from nothing, one changed endpoint from event to change (median and worst of many), one new Service,
//! and the memory that store and plan take (growth of the resident set).

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use signpost_core::object::{
    Endpoint, EndpointPort, EndpointSlice, Family, Node, ObjectName, Protocol, Service, ServicePort, TrafficPolicy,
};
use signpost_core::plan::PlanChange;
use signpost_core::planner::{NodeConfig, NodePortAddresses, Planner};
use signpost_core::store::{Event, Store};

const NODES: u32 = 100;
const ROUNDS: u32 = 1000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u32>().expect("sizes are numbers"));
    let services = arguments.next().unwrap_or(10_000);
    let endpoints = arguments.next().unwrap_or(10);
    assert!(services > 0 && endpoints > 0, "a size of 0 measures nothing");

    let memory_before_kb = resident_kb();
    let mut store = Store::new();
    let node =
        Node { name: "n1".into(), addresses: vec![node_address()], pod_cidrs: vec![], labels: Default::default() };
    store.handle(Event::NodeApplied(node));
    for number in 0..services {
        store.handle(Event::ServiceApplied(service(number)));
        store.handle(Event::SliceApplied(slice(number, endpoints, 0)));
    }
    let mut planner = Planner::new(Family::Ipv4, config());
    let (whole, from_nothing) = timed(&mut store, &mut planner, vec![]);
    assert_eq!(whole.set.len(), 2 * services as usize);
    let memory_kb = resident_kb().saturating_sub(memory_before_kb);

    let step = |round: u32| Event::SliceApplied(slice(round * 7 % services, endpoints, 1 + round / services));
    let mut steps: Vec<Duration> = Vec::new();
    for round in 0..ROUNDS {
        let (change, took) = timed(&mut store, &mut planner, vec![step(round)]);
        assert_eq!(change.set.len(), 2, "one Service's frontends");
        steps.push(took);
    }
    steps.sort();
    let new = vec![Event::ServiceApplied(service(services)), Event::SliceApplied(slice(services, endpoints, 0))];
    let (_, one_more) = timed(&mut store, &mut planner, new);

    println!(
        "{{\"services\":{services},\"endpoints_each\":{endpoints},\"from_nothing_ms\":{:.2},\"changed_endpoint_median_us\":{:.1},\
         \"changed_endpoint_worst_us\":{:.1},\"one_more_service_us\":{:.1},\"store_and_plan_kb\":{memory_kb}}}",
        millis(from_nothing),
        1e3 * millis(steps[steps.len() / 2]),
        1e3 * millis(steps[steps.len() - 1]),
        1e3 * millis(one_more),
    );
}

fn millis(duration: Duration) -> f64 {
    1e3 * duration.as_secs_f64()
}

fn timed(store: &mut Store, planner: &mut Planner, events: Vec<Event>) -> (PlanChange, Duration) {
    let start = Instant::now();
    events.into_iter().for_each(|event| store.handle(event));
    let dirty = store.take_dirty();
    let change = planner.update(store, &dirty);
    (change, start.elapsed())
}

/// Of this process, as Linux tells it; 0 where it does not.
fn resident_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

fn node_address() -> IpAddr {
    IpAddr::from([172, 18, 0, 11])
}

fn config() -> NodeConfig {
    NodeConfig {
        node: "n1".into(),
        cluster_cidrs: vec!["10.128.0.0/9".parse().expect("a range")],
        masquerade_all: false,
        node_addresses: [node_address()].into(),
        node_port_addresses: NodePortAddresses::Primary,
        localhost_node_ports: false,
        source_ranges_on_node_ports: false,
        node_cache: false,
    }
}

fn name(number: u32) -> ObjectName {
    ObjectName::new("bench", &format!("service-{number}"))
}

fn port(number: u32) -> NonZeroU16 {
    NonZeroU16::new((number % 32_000) as u16 + 1).expect("not 0")
}

/// A cluster address and a node port (as far as these are enough): two frontends.
fn service(number: u32) -> Service {
    let http = ServicePort {
        name: "http".into(),
        protocol: if number < 32_000 { Protocol::Tcp } else { Protocol::Udp },
        port: port(80),
        node_port: Some(port(number)),
    };
    Service {
        name: name(number),
        cluster_ips: vec![Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).into()],
        external_ips: vec![],
        ingress: vec![],
        source_ranges: vec![],
        ports: vec![http],
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity: None,
        reset_after: None,
        rebalance: None,
        health_check_node_port: None,
        scheduler: None,
    }
}

/// All of a Service's endpoints; each `generation` exchanges one of them.
fn slice(service: u32, endpoints: u32, generation: u32) -> EndpointSlice {
    let endpoint = |index: u32| {
        let number = service * endpoints + index + if index == 0 { generation << 20 } else { 0 };
        Endpoint {
            address: Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + number % (1 << 23)).into(),
            ready: true,
            serving: true,
            terminating: false,
            node: Some(format!("n{}", 1 + number % NODES).into()),
            zone_hints: vec![],
            node_hints: vec![],
        }
    };
    EndpointSlice {
        name: ObjectName::new("bench", &format!("service-{service}-abcde")),
        service: name(service),
        family: Family::Ipv4,
        ports: vec![EndpointPort {
            name: "http".into(),
            protocol: if service < 32_000 { Protocol::Tcp } else { Protocol::Udp },
            port: port(8080),
        }],
        endpoints: (0..endpoints).map(endpoint).collect(),
    }
}
