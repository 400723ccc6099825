//! How long a large cluster's names take to load, what they take in memory, and what an answer and a change cost.
//!
//! Without arguments: prints one JSON object. `serve ADDRESS:PORT SERVICES`: answers the names of so many Services there,
//! for a load generator, until it is killed.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use signpost_cluster::Told;
use signpost_dns::engine::{Block, Engine};
use signpost_dns::message::{Request, Transport};
use signpost_dns::metrics::Metrics;
use signpost_dns::object::{Change, Kind};
use signpost_dns::random::Random;
use signpost_dns::serve::{Listeners, Shared};
use signpost_dns::source::SharedZone;
use signpost_dns::zone::{Settings, Zone};
use signpost_dns::{convert, corefile};

const SERVICES: usize = 10_000;
const ENDPOINTS_OF_EACH: usize = 10;
/// Every so many Services, one is headless.
const HEADLESS: usize = 5;
/// Objects in one page of a list.
const PAGE: usize = 500;

fn address(n: usize, first: u8) -> String {
    format!("{first}.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255)
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": "default", "uid": format!("00000000-0000-0000-0000-{name:0>12.12}"),
        "resourceVersion": "4711", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": name}})
}

fn service(n: usize) -> Value {
    let name = format!("svc-{n}");
    let ip = if n.is_multiple_of(HEADLESS) { "None".to_owned() } else { address(n, 10) };
    json!({"metadata": metadata(&name), "spec": {"clusterIP": ip, "clusterIPs": [ip], "type": "ClusterIP",
        "selector": {"app": name}, "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}})
}

fn slice(n: usize, shift: usize) -> Value {
    let name = format!("svc-{n}");
    let mut metadata = metadata(&format!("{name}-abcde"));
    metadata["labels"]["kubernetes.io/service-name"] = name.clone().into();
    let endpoint = |e: usize| {
        json!({"addresses": [address(n * ENDPOINTS_OF_EACH + e + shift, 11)], "nodeName": "node-1",
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "name": format!("{name}-{e}"), "namespace": "default", "uid": "0"}})
    };
    json!({"metadata": metadata, "addressType": "IPv4", "endpoints": (0..ENDPOINTS_OF_EACH).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}

/// The text of an API's lists, page by page.
fn pages(services: usize, object: impl Fn(usize) -> Value) -> Vec<String> {
    let numbers: Vec<usize> = (0..services).collect();
    let page = |page: &[usize]| Value::from(page.iter().map(|n| object(*n)).collect::<Vec<_>>()).to_string();
    numbers.chunks(PAGE).map(page).collect()
}

fn load(services: usize, pages: [Vec<String>; 2]) -> Zone {
    let zones =
        vec![Name::from_ascii("cluster.local.").expect("a name"), Name::from_ascii("in-addr.arpa.").expect("a name")];
    let mut zone = Zone::new(Settings::new(zones));
    let mut apply = |changes: Vec<Change>| changes.into_iter().for_each(|change| zone.apply(change, 1));
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("a namespace");
    apply(convert::namespaces(Told::Applied { object: namespace, revision: 1 }));
    let [of_services, of_slices] = pages;
    for page in of_services {
        for object in serde_json::from_str::<Vec<Service>>(&page).expect("Services") {
            apply(convert::services(Told::Applied { object, revision: 1 }));
        }
    }
    for page in of_slices {
        for object in serde_json::from_str::<Vec<EndpointSlice>>(&page).expect("slices") {
            apply(convert::slices(Told::Applied { object, revision: 1 }));
        }
    }
    for kind in Kind::ALL {
        zone.apply(Change::Synced(kind), 1);
    }
    assert_eq!(zone.services(), services);
    zone
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1e3
}

fn question(n: usize) -> Vec<u8> {
    let name = Name::from_ascii(format!("svc-{n}.default.svc.cluster.local.")).expect("a name");
    let mut message = Message::query();
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().expect("it fits")
}

fn measure() {
    let before_mb = resident_mb();
    let text = [pages(SERVICES, service), pages(SERVICES, |n| slice(n, 0))];
    let text_mb = text.iter().flatten().map(String::len).sum::<usize>() as f64 / 1e6;
    let began = Instant::now();
    let mut zone = load(SERVICES, text);
    let load_s = began.elapsed().as_secs_f64();
    let resident = resident_mb();

    let changes: Vec<EndpointSlice> =
        (0..1_000).map(|n| serde_json::from_value(slice(n * 10, 1)).expect("a slice")).collect();
    let began = Instant::now();
    for object in changes {
        for change in convert::slices(Told::Applied { object, revision: 2 }) {
            zone.apply(change, 2);
        }
    }
    let change_us = began.elapsed().as_secs_f64() * 1e6 / 1_000.0;

    let packets: Vec<Vec<u8>> = (0..SERVICES).filter(|n| !n.is_multiple_of(HEADLESS)).map(question).collect();
    let mut random = Random::new(1);
    let (mut answers, mut bytes) = (0u32, 0);
    let began = Instant::now();
    for packet in packets.iter().cycle().take(500_000) {
        let request = Request::read(packet, Transport::Udp).expect("a question");
        let answer = zone.answer(&request.name, request.kind, &mut random, request.most_records()).expect("ours");
        let response = signpost_dns::message::Response {
            answers: answer.answers,
            ..signpost_dns::message::Response::code(hickory_proto::op::ResponseCode::NoError)
        };
        bytes += black_box(request.write(&response)).len();
        answers += 1;
    }
    let answer_us = began.elapsed().as_secs_f64() * 1e6 / f64::from(answers);
    assert!(bytes > 0);
    println!(
        "{{\"bench\":\"dns\",\"services\":{SERVICES},\"endpoints\":{},\"list_mb\":{text_mb:.1},\"load_s\":{load_s:.3},\
         \"resident_mb\":{resident:.1},\"before_mb\":{before_mb:.1},\"change_us\":{change_us:.1},\"answer_us\":{answer_us:.2}}}",
        SERVICES * ENDPOINTS_OF_EACH
    );
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [_, listen_at, services] = &arguments[..] else { return measure() };
    let (listen_at, services): (SocketAddr, usize) =
        (listen_at.parse().expect("ADDRESS:PORT"), services.parse().expect("a number of Services"));
    let zone = load(services, [pages(services, service), pages(services, |n| slice(n, 0))]);
    let config = corefile::read(".:53 {\n kubernetes cluster.local\n loadbalance\n}", |_| None).expect("a Corefile");
    let metrics = Arc::new(Metrics::new());
    let zone = Some(Arc::new(SharedZone::fixed(zone)));
    let block = Block::new(config.servers[0].clone(), &[listen_at], zone, &metrics).expect("a block");
    let engine = Arc::new(Engine::new(vec![Arc::new(block)]));
    let shared = Arc::new(Shared::new(engine, metrics));
    let mut listeners = Listeners::default();
    listeners.listen(&[listen_at], &shared).expect("the address is free");
    println!("ready");
    std::future::pending::<()>().await;
}
