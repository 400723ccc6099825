//! The rows of the specification, asked of a small cluster that is told as the API tells it.

use hickory_proto::rr::RecordType;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use serde_json::{Value, json};
use signpost_cluster::Told;

use super::*;
use crate::convert;
use crate::random::Random;

mod properties;

const NOW_S: u32 = 1_700_000_000;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn settings() -> Settings {
    Settings::new(vec![name("cluster.local."), name("in-addr.arpa."), name("ip6.arpa.")])
}

fn applied<K: k8s_openapi::serde::de::DeserializeOwned>(object: &Value) -> Told<K> {
    Told::Applied { object: serde_json::from_value(object.clone()).unwrap(), revision: 1 }
}

fn tell(zone: &mut Zone, object: &Value) {
    let changes = match object["kind"].as_str().unwrap() {
        "Service" => convert::services(applied::<core_v1::Service>(object)),
        "EndpointSlice" => convert::slices(applied::<discovery_v1::EndpointSlice>(object)),
        "Namespace" => convert::namespaces(applied::<core_v1::Namespace>(object)),
        "Pod" => convert::pods(applied::<core_v1::Pod>(object)),
        other => panic!("{other}"),
    };
    for change in changes {
        zone.apply(change, NOW_S);
    }
}

fn forget<K: kube::Resource>(object: &Value, told: impl FnOnce(Told<K>) -> Vec<Change>, zone: &mut Zone) {
    let metadata = serde_json::from_value(object["metadata"].clone()).unwrap();
    for change in told(Told::Deleted { metadata: Box::new(metadata), revision: 2 }) {
        zone.apply(change, NOW_S);
    }
}

fn sync(zone: &mut Zone) {
    for kind in Kind::ALL {
        zone.apply(Change::Synced(kind), NOW_S);
    }
}

fn service(name: &str, spec: Value) -> Value {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": spec})
}

fn slice(name: &str, service: &str, family: &str, endpoints: Value) -> Value {
    let labels = json!({"kubernetes.io/service-name": service});
    let ports = json!([{"name": "sql", "port": 5432, "protocol": "TCP"}, {"name": "", "port": 9, "protocol": "UDP"}]);
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": family,
        "metadata": {"name": name, "namespace": "default", "labels": labels}, "endpoints": endpoints, "ports": ports})
}

fn objects() -> Vec<Value> {
    vec![
        json!({"kind": "Namespace", "metadata": {"name": "default"}}),
        json!({"kind": "Namespace", "metadata": {"name": "empty"}}),
        service(
            "web",
            json!({"clusterIP": "10.96.132.41", "clusterIPs": ["10.96.132.41", "fd00:10:96::41"], "ports": [
            {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]}),
        ),
        slice(
            "web-a",
            "web",
            "IPv4",
            json!([{"addresses": ["10.244.1.5"]}, {"addresses": ["10.244.1.6"], "conditions": {"ready": false}}]),
        ),
        service("four", json!({"clusterIP": "10.96.0.4", "clusterIPs": ["10.96.0.4"], "ports": [{"port": 80}]})),
        service("1digit", json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80}]})),
        service("db", json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"name": "sql", "port": 5432}]})),
        slice(
            "db-a",
            "db",
            "IPv4",
            json!([
            {"addresses": ["10.244.1.7"], "hostname": "db-0", "conditions": {"ready": true}},
            {"addresses": ["10.244.2.9"], "hostname": "db-1"},
            {"addresses": ["10.244.3.4"]},
            {"addresses": ["10.244.3.5"], "hostname": "db-3", "conditions": {"ready": false}}]),
        ),
        slice("db-b", "db", "IPv6", json!([{"addresses": ["fd00:10:244::7"], "hostname": "db-0"}])),
        // Endpoints that move between slices stand in both for a while.
        slice("db-c", "db", "IPv4", json!([{"addresses": ["10.244.2.9"], "hostname": "db-1"}])),
        service("none", json!({"clusterIP": "None"})),
        slice("none-a", "none", "IPv4", json!([{"addresses": ["10.244.9.9"], "conditions": {"ready": false}}])),
        service("early", json!({"clusterIP": "None", "publishNotReadyAddresses": true})),
        slice(
            "early-a",
            "early",
            "IPv4",
            json!([{"addresses": ["10.244.8.8"], "hostname": "e-0", "conditions": {"ready": false}}]),
        ),
        service("out", json!({"type": "ExternalName", "externalName": "www.example.com"})),
        service("inner", json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"})),
        service("digits", json!({"type": "ExternalName", "externalName": "192.0.2.1"})),
        service("pending", json!({"ports": [{"port": 80}]})),
        json!({"kind": "Pod", "metadata": {"name": "client.x", "namespace": "default"},
            "status": {"phase": "Running", "podIP": "10.244.1.2", "podIPs": [{"ip": "10.244.1.2"}, {"ip": "fd00:10:244::2"}]}}),
        json!({"kind": "Pod", "metadata": {"name": "done", "namespace": "default"},
            "status": {"phase": "Succeeded", "podIPs": [{"ip": "10.244.1.3"}]}}),
    ]
}

fn zone(settings: Settings) -> Zone {
    let mut zone = Zone::new(settings);
    for object in objects() {
        tell(&mut zone, &object);
    }
    sync(&mut zone);
    zone
}

/// `OUTCOME | record, record | additional`, sorted.
fn ask_many(zone: &Zone, question: &str, most: usize) -> String {
    let (asked, kind) = question.split_once(' ').unwrap();
    let kind: RecordType = kind.parse().unwrap();
    let Some(answer) = zone.answer(&name(asked), kind, &mut Random::new(7), most) else { return "not ours".to_owned() };
    let lines = |records: &[hickory_proto::rr::Record]| {
        let mut lines: Vec<String> =
            records.iter().map(|record| format!("{} {}", record.record_type(), record.data)).collect();
        lines.sort();
        lines.join(", ")
    };
    assert!(answer.answers.iter().all(|record| record.name.eq_case(&name(asked))), "{question}: the case is not kept");
    let mut text = format!("{:?}", answer.outcome);
    for records in [&answer.answers, &answer.additionals] {
        if !records.is_empty() {
            text = format!("{text} | {}", lines(records));
        }
    }
    text
}

fn ask(zone: &Zone, question: &str) -> String {
    ask_many(zone, question, usize::MAX)
}

fn check(zone: &Zone, rows: &[(&str, &str)]) {
    for (question, expected) in rows {
        assert_eq!(ask(zone, question), *expected, "{question}");
    }
}

#[test]
fn the_schema_version_has_its_record() {
    let zone = zone(settings());
    check(
        &zone,
        &[
            ("dns-version.cluster.local. TXT", "Found | TXT 1.1.0"),
            ("dns-version.cluster.local. A", "NoData"),
            ("x.dns-version.cluster.local. TXT", "NoName"),
        ],
    );
    let answer = zone.answer(&name("dns-version.cluster.local."), RecordType::TXT, &mut Random::new(1), 1).unwrap();
    assert_eq!(answer.answers[0].ttl, 28_800);
}

#[test]
fn services_with_addresses_have_those_of_each_family_and_srv_and_ptr_records() {
    check(
        &zone(settings()),
        &[
            ("web.default.svc.cluster.local. A", "Found | A 10.96.132.41"),
            ("WEB.Default.sVc.cLuster.LOCAL. A", "Found | A 10.96.132.41"),
            ("web.default.svc.cluster.local. AAAA", "Found | AAAA fd00:10:96::41"),
            ("1digit.default.svc.cluster.local. A", "Found | A 10.96.0.9"),
            ("four.default.svc.cluster.local. AAAA", "NoData"),
            ("web.default.svc.cluster.local. MX", "NoData"),
            ("pending.default.svc.cluster.local. A", "NoName"),
            (
                "_http._tcp.web.default.svc.cluster.local. SRV",
                "Found | SRV 0 100 80 web.default.svc.cluster.local. | A 10.96.132.41, AAAA fd00:10:96::41",
            ),
            (
                "_dns._udp.web.default.svc.cluster.local. SRV",
                "Found | SRV 0 100 53 web.default.svc.cluster.local. | A 10.96.132.41, AAAA fd00:10:96::41",
            ),
            ("_http._udp.web.default.svc.cluster.local. SRV", "NoName"),
            ("_http._tcp.web.default.svc.cluster.local. A", "NoData"),
            ("_tcp.web.default.svc.cluster.local. A", "NoData"),
            ("_sctp.web.default.svc.cluster.local. A", "NoName"),
            ("_tcp.four.default.svc.cluster.local. A", "NoName"),
            ("_._tcp.four.default.svc.cluster.local. SRV", "NoName"),
            ("a._http._tcp.web.default.svc.cluster.local. SRV", "NoName"),
            ("41.132.96.10.in-addr.arpa. PTR", "Found | PTR web.default.svc.cluster.local."),
            (
                "1.4.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa. PTR",
                "Found | PTR web.default.svc.cluster.local.",
            ),
            // An endpoint of a Service with an address has a name as well.
            ("10-244-1-5.web.default.svc.cluster.local. A", "Found | A 10.244.1.5"),
            ("10-244-1-6.web.default.svc.cluster.local. A", "NoName"),
        ],
    );
}

#[test]
fn headless_services_have_their_ready_endpoints() {
    check(
        &zone(settings()),
        &[
            ("db.default.svc.cluster.local. A", "Found | A 10.244.1.7, A 10.244.2.9, A 10.244.3.4"),
            ("db.default.svc.cluster.local. AAAA", "Found | AAAA fd00:10:244::7"),
            ("db.default.svc.cluster.local. TXT", "NoData"),
            ("db-0.db.default.svc.cluster.local. A", "Found | A 10.244.1.7"),
            ("db-0.db.default.svc.cluster.local. AAAA", "Found | AAAA fd00:10:244::7"),
            ("db-1.db.default.svc.cluster.local. A", "Found | A 10.244.2.9"),
            ("db-1.db.default.svc.cluster.local. AAAA", "NoData"),
            ("db-3.db.default.svc.cluster.local. A", "NoName"),
            ("10-244-3-4.db.default.svc.cluster.local. A", "Found | A 10.244.3.4"),
            // One with a hostname goes by that alone.
            ("10-244-1-7.db.default.svc.cluster.local. A", "NoName"),
            (
                "_sql._tcp.db.default.svc.cluster.local. SRV",
                "Found | SRV 0 33 5432 10-244-3-4.db.default.svc.cluster.local., SRV 0 33 5432 db-0.db.default.svc.cluster.local., \
                 SRV 0 33 5432 db-1.db.default.svc.cluster.local. | A 10.244.1.7, A 10.244.2.9, A 10.244.3.4, AAAA fd00:10:244::7",
            ),
            ("_sql._tcp.db.default.svc.cluster.local. A", "NoData"),
            ("_none._tcp.db.default.svc.cluster.local. SRV", "NoName"),
            ("_udp.db.default.svc.cluster.local. A", "NoName"),
            ("7.1.244.10.in-addr.arpa. PTR", "Found | PTR db-0.db.default.svc.cluster.local."),
            ("4.3.244.10.in-addr.arpa. PTR", "Found | PTR 10-244-3-4.db.default.svc.cluster.local."),
            ("5.3.244.10.in-addr.arpa. PTR", "NoName"),
            // None is ready.
            ("none.default.svc.cluster.local. A", "NoName"),
            ("early.default.svc.cluster.local. A", "Found | A 10.244.8.8"),
            ("e-0.early.default.svc.cluster.local. A", "Found | A 10.244.8.8"),
            ("8.8.244.10.in-addr.arpa. PTR", "Found | PTR e-0.early.default.svc.cluster.local."),
        ],
    );
}

#[test]
fn external_names_are_aliases_for_every_type() {
    let zone = zone(settings());
    check(
        &zone,
        &[
            ("out.default.svc.cluster.local. A", "Found | CNAME www.example.com."),
            ("out.default.svc.cluster.local. TXT", "Found | CNAME www.example.com."),
            ("x.out.default.svc.cluster.local. A", "NoName"),
            ("_a._tcp.out.default.svc.cluster.local. SRV", "NoName"),
            ("digits.default.svc.cluster.local. A", "NoName"),
        ],
    );
    let chased = |kind| {
        let asked = name("inner.default.svc.cluster.local.");
        zone.answer(&asked, kind, &mut Random::new(1), 9).unwrap().chase.map(|name| name.to_string())
    };
    assert_eq!(chased(RecordType::A).as_deref(), Some("web.default.svc.cluster.local."));
    assert_eq!(chased(RecordType::CNAME), None);
}

#[test]
fn names_between_exist_and_others_do_not() {
    check(
        &zone(settings()),
        &[
            ("cluster.local. A", "NoData"),
            ("cluster.local. NS", "Found | NS ns.dns.cluster.local."),
            ("svc.cluster.local. A", "NoData"),
            ("default.svc.cluster.local. A", "NoData"),
            ("empty.svc.cluster.local. A", "NoData"),
            ("other.svc.cluster.local. A", "NoName"),
            ("web.empty.svc.cluster.local. A", "NoName"),
            ("nobody.default.svc.cluster.local. A", "NoName"),
            ("web.default.cluster.local. A", "NoName"),
            ("pod.cluster.local. A", "NoName"),
            ("www.example.com. A", "not ours"),
            ("local. A", "not ours"),
            ("96.10.in-addr.arpa. PTR", "NoData"),
            ("97.10.in-addr.arpa. PTR", "NoName"),
            ("41.132.96.10.in-addr.arpa. A", "NoData"),
            ("41.132.96.10.in-addr.arpa. SOA", "NoData"),
            ("in-addr.arpa. PTR", "NoData"),
            ("x.in-addr.arpa. PTR", "NoName"),
        ],
    );
    let zone = zone(settings());
    let soa = zone.answer(&name("Cluster.local."), RecordType::SOA, &mut Random::new(1), 1).unwrap();
    assert_eq!(
        soa.answers[0].data.to_string(),
        format!("ns.dns.Cluster.local. hostmaster.Cluster.local. {} 7200 1800 86400 5", zone.serial())
    );
}

#[test]
fn pods_are_found_by_address_as_the_mode_says() {
    let asked = [
        "10-244-1-2.default.pod.cluster.local. A",
        "fd00-10-244--2.default.pod.cluster.local. AAAA",
        "10-244-1-2.default.pod.cluster.local. AAAA",
        "10-9-9-9.default.pod.cluster.local. A",
        "10-244-1-2.empty.pod.cluster.local. A",
        "10-244-1-2.nowhere.pod.cluster.local. A",
        "10-244-1-3.default.pod.cluster.local. A",
        "x.default.pod.cluster.local. A",
        "default.pod.cluster.local. A",
        "pod.cluster.local. A",
    ];
    let found = ["Found | A 10.244.1.2", "Found | AAAA fd00:10:244::2", "NoData"];
    let insecure =
        ["Found | A 10.9.9.9", "Found | A 10.244.1.2", "NoName", "Found | A 10.244.1.3", "NoName", "NoData", "NoData"];
    let verified = ["NoName", "NoName", "NoName", "NoName", "NoName", "NoData", "NoData"];
    for (mode, expected) in [
        (PodNames::Off, ["NoName"; 10].to_vec()),
        (PodNames::Insecure, [&found[..], &insecure[..]].concat()),
        (PodNames::Verified, [&found[..], &verified[..]].concat()),
    ] {
        let zone = zone(Settings { pods: mode, ..settings() });
        let got: Vec<String> = asked.iter().map(|question| ask(&zone, question)).collect();
        assert_eq!(got, expected, "{mode:?}");
    }
    let zone = zone(Settings { pods: PodNames::Verified, ..settings() });
    let reverse = "2.1.244.10.in-addr.arpa. PTR";
    assert_eq!(ask(&zone, reverse), "Found | PTR 10-244-1-2.default.pod.cluster.local.");
    assert_eq!(zone.namespace_of("10.244.1.2".parse().unwrap()), Some("default"));
}

#[test]
fn options_narrow_what_is_seen() {
    let only = Settings { namespaces: vec!["empty".into()], ..settings() };
    check(
        &zone(only),
        &[
            ("web.default.svc.cluster.local. A", "NoName"),
            ("default.svc.cluster.local. A", "NoName"),
            ("empty.svc.cluster.local. A", "NoData"),
            ("41.132.96.10.in-addr.arpa. PTR", "NoName"),
        ],
    );
    let ignoring = Settings { ignore_empty_service: true, ..settings() };
    check(
        &zone(ignoring),
        &[
            ("web.default.svc.cluster.local. A", "Found | A 10.96.132.41"),
            ("four.default.svc.cluster.local. A", "NoName"),
        ],
    );
}

#[test]
fn what_is_not_known_yet_is_not_denied() {
    let mut zone = Zone::new(settings());
    assert_eq!(ask(&zone, "web.default.svc.cluster.local. A"), "NotReady");
    tell(&mut zone, &objects()[2]);
    assert_eq!(ask(&zone, "web.default.svc.cluster.local. A"), "Found | A 10.96.132.41");
    assert_eq!(zone.waits_for(), [Kind::Service, Kind::EndpointSlice, Kind::Namespace]);
    sync(&mut zone);
    assert_eq!(ask(&zone, "db.default.svc.cluster.local. A"), "NoName");
}

#[test]
fn changes_take_effect_and_leave_nothing_behind() {
    let mut zone = zone(settings());
    let serial = zone.serial();
    let rescaled = slice("db-a", "db", "IPv4", json!([{"addresses": ["10.244.1.8"], "hostname": "db-0"}]));
    tell(&mut zone, &rescaled);
    assert!(zone.serial() > serial);
    let asked = "db.default.svc.cluster.local. A";
    assert_eq!(ask(&zone, asked), "Found | A 10.244.1.8, A 10.244.2.9");
    assert_eq!(ask(&zone, "7.1.244.10.in-addr.arpa. PTR"), "NoName");
    assert_eq!(ask(&zone, "9.2.244.10.in-addr.arpa. PTR"), "Found | PTR db-1.db.default.svc.cluster.local.");
    // A slice may be given to another Service.
    tell(&mut zone, &slice("db-a", "none", "IPv4", json!([{"addresses": ["10.244.1.8"]}])));
    assert_eq!(ask(&zone, asked), "Found | A 10.244.2.9");
    assert_eq!(ask(&zone, "none.default.svc.cluster.local. A"), "Found | A 10.244.1.8");
    // A Service may change its kind.
    tell(&mut zone, &service("web", json!({"type": "ExternalName", "externalName": "x.org"})));
    assert_eq!(ask(&zone, "web.default.svc.cluster.local. A"), "Found | CNAME x.org.");
    assert_eq!(ask(&zone, "41.132.96.10.in-addr.arpa. PTR"), "NoName");
    for object in objects() {
        match object["kind"].as_str().unwrap() {
            "Service" => forget(&object, convert::services, &mut zone),
            "EndpointSlice" => forget(&object, convert::slices, &mut zone),
            "Namespace" => forget(&object, convert::namespaces, &mut zone),
            _ => forget(&object, convert::pods, &mut zone),
        }
    }
    assert_eq!(zone.services(), 0);
    assert!(zone.services.is_empty_inside(), "places, names or addresses are left");
}

#[test]
fn a_new_list_replaces_what_it_does_not_hold() {
    let mut zone = zone(settings());
    for kind in [Kind::Service, Kind::EndpointSlice] {
        zone.apply(Change::Reset(kind), NOW_S);
    }
    let asked = "db.default.svc.cluster.local. A";
    let kept = [&objects()[6], &objects()[8]];
    for object in kept {
        tell(&mut zone, object);
    }
    assert_eq!(
        ask(&zone, asked),
        "Found | A 10.244.1.7, A 10.244.2.9, A 10.244.3.4",
        "in force until the list is whole"
    );
    sync(&mut zone);
    assert_eq!(ask(&zone, asked), "NoData");
    assert_eq!(ask(&zone, "db.default.svc.cluster.local. AAAA"), "Found | AAAA fd00:10:244::7");
    assert_eq!((ask(&zone, "web.default.svc.cluster.local. A").as_str(), zone.services()), ("NoName", 1));
}

#[test]
fn answers_come_in_random_order_and_not_in_greater_number_than_is_of_use() {
    let mut zone = zone(settings());
    let many: Vec<Value> = (1..=100).map(|n| json!({"addresses": [format!("10.244.7.{n}")]})).collect();
    tell(&mut zone, &slice("db-a", "db", "IPv4", many.into()));
    let mut random = Random::new(1);
    let mut first = std::collections::HashSet::new();
    for _ in 0..1_000 {
        let answer = zone.answer(&name("db.default.svc.cluster.local."), RecordType::A, &mut random, 10).unwrap();
        assert_eq!(answer.answers.len(), 10);
        first.insert(answer.answers[0].data.to_string());
    }
    // 101 addresses with db-c's own: that one is never first in 1,000 tries is less likely than 1 in 20,000 for each.
    assert!(first.len() > 95, "only {} of 101 were ever first", first.len());
}

#[test]
fn names_that_are_no_labels_get_no_records() {
    let mut zone = zone(settings());
    let odd = json!([{"addresses": ["10.244.1.70", "no", "fd00::1"], "hostname": "a.b"}]);
    tell(&mut zone, &slice("db-a", "db", "IPv4", odd));
    assert_eq!(ask(&zone, "70.1.244.10.in-addr.arpa. PTR"), "Found | PTR 10-244-1-70.db.default.svc.cluster.local.");
    let dotted = service("a.b", json!({"clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"]}));
    tell(&mut zone, &dotted);
    assert_eq!(ask(&zone, "a\\.b.default.svc.cluster.local. A"), "NoName");
    let long = "x".repeat(64);
    tell(&mut zone, &service(&long, json!({"clusterIP": "10.96.7.8", "clusterIPs": ["10.96.7.8"]})));
    assert_eq!(ask(&zone, "8.7.96.10.in-addr.arpa. PTR"), "NoName");
}

#[test]
fn a_hundred_thousand_services_are_answered_and_a_change_is_one_of_its_own() {
    use crate::object::{Service, StandsFor};
    use signpost_core::object::ObjectName;
    const SERVICES: u32 = 100_000;
    let mut zone = Zone::new(settings());
    zone.apply(Change::Namespace("default".into()), 1);
    let of = |n: u32, address: u32| Service {
        name: ObjectName { namespace: "default".into(), name: format!("svc-{n}").into() },
        publish_not_ready: false,
        stands_for: StandsFor::ClusterIps {
            addresses: vec![std::net::Ipv4Addr::from(0x0a60_0000 + address).into()],
            ports: Vec::new(),
        },
    };
    for n in 0..SERVICES {
        zone.apply(Change::Service(of(n, n)), 1);
    }
    sync(&mut zone);
    zone.apply(Change::Service(of(70_000, SERVICES)), 2);
    check(
        &zone,
        &[
            ("svc-0.default.svc.cluster.local. A", "Found | A 10.96.0.0"),
            ("svc-99999.default.svc.cluster.local. A", "Found | A 10.97.134.159"),
            ("svc-70000.default.svc.cluster.local. A", "Found | A 10.97.134.160"),
            ("svc-100000.default.svc.cluster.local. A", "NoName"),
            ("159.134.97.10.in-addr.arpa. PTR", "Found | PTR svc-99999.default.svc.cluster.local."),
            ("112.17.97.10.in-addr.arpa. PTR", "NoName"),
        ],
    );
}
