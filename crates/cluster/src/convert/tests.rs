//! Tables of objects and what becomes of them.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use signpost_core::object::{Family, Protocol, Rebalance, TrafficPolicy};
use signpost_core::scheduler::Scheduler;

use super::*;

fn service_of(spec: Value) -> Converted<Service> {
    labelled(json!({}), spec, json!({}))
}

fn labelled(labels: Value, spec: Value, status: Value) -> Converted<Service> {
    let object = json!({"metadata": {"namespace": "default", "name": "web", "uid": "u", "labels": labels}, "spec": spec, "status": status});
    service(&serde_json::from_value(object).unwrap())
}

fn slice_of(body: Value) -> Converted<EndpointSlice> {
    let mut object = json!({
        "metadata": {"namespace": "default", "name": "web-1", "labels": {SERVICE_NAME: "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": [],
    });
    object.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    slice(&serde_json::from_value(object).unwrap())
}

fn problems<T>(converted: &Converted<T>) -> Vec<String> {
    let malformed = converted.malformed.iter().flat_map(|malformed| &malformed.problems);
    malformed.map(ToString::to_string).collect()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_whole_service_becomes_one_of_ours() {
    let converted = labelled(
        json!({"app": "web"}),
        json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:10:96::a"],
            "externalIPs": ["192.0.2.50"], "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "loadBalancerSourceRanges": [" 10.1.2.3/8 ", "192.0.2.0/24"],
            "ports": [{"name": "http", "port": 80, "nodePort": 30080, "targetPort": 8080},
                      {"name": "dns", "port": 53, "protocol": "UDP"}],
        }),
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.60"}, {"ip": "192.0.2.61", "ipMode": "Proxy"}, {"hostname": "x"}]}}),
    );
    assert_eq!(problems(&converted), Vec::<String>::new());
    let service = converted.object.unwrap();
    assert_eq!(service.cluster_ips, addresses(&["10.96.0.10", "fd00:10:96::a"]));
    assert_eq!(service.external_ips, addresses(&["192.0.2.50"]));
    assert_eq!(service.ingress.iter().map(|entry| entry.vip).collect::<Vec<_>>(), [true, false]);
    assert_eq!(service.source_ranges, ["10.0.0.0/8".parse().unwrap(), "192.0.2.0/24".parse::<IpNet>().unwrap()]);
    assert_eq!((service.external_policy, service.internal_policy), (TrafficPolicy::Local, TrafficPolicy::Local));
    assert_eq!(service.affinity, Some(Duration::from_secs(60)));
    assert_eq!(service.health_check_node_port.map(u16::from), Some(31000));
    let ports: Vec<_> = service.ports.iter().map(|p| (&*p.name, p.protocol, p.node_port.map(u16::from))).collect();
    assert_eq!(ports, [("http", Protocol::Tcp, Some(30080)), ("dns", Protocol::Udp, None)]);
}

#[test]
fn services_that_no_node_serves_are_left_out_without_a_complaint() {
    let port = json!([{"port": 80}]);
    for spec in [
        json!({"clusterIP": "None", "ports": port}),
        json!({"clusterIPs": ["None"], "ports": port}),
        json!({"type": "ExternalName", "externalName": "example.org"}),
        json!({"ports": port}),
        json!({"clusterIP": "", "ports": port}),
    ] {
        let converted = service_of(spec.clone());
        assert!(converted.object.is_none() && converted.malformed.is_none(), "{spec}: {converted:?}");
    }
    for label in [SERVICE_PROXY_NAME, HEADLESS] {
        let spec = json!({"clusterIP": "10.96.0.10", "ports": port});
        let converted = labelled(json!({label: ""}), spec, json!({}));
        assert!(converted.object.is_none() && converted.malformed.is_none(), "{label}: {converted:?}");
    }
}

#[test]
fn affinity_lasts_three_hours_unless_it_says_otherwise() {
    let of = |config: Value| {
        service_of(json!({"clusterIP": "10.96.0.10", "sessionAffinity": "ClientIP", "sessionAffinityConfig": config}))
    };
    assert_eq!(of(Value::Null).object.unwrap().affinity, Some(Duration::from_secs(10_800)));
    let converted = of(json!({"clientIP": {"timeoutSeconds": 86_401}}));
    assert_eq!(converted.object.as_ref().unwrap().affinity, Some(Duration::from_secs(10_800)));
    assert_eq!(
        problems(&converted),
        ["spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is not in 1-86400 seconds; 10800 is taken"]
    );
}

#[test]
fn a_scheduler_that_is_not_known_is_named_and_the_nodes_own_taken() {
    let asking = |scheduler: &str| {
        let spec = json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]});
        let metadata = json!({"name": "web", "namespace": "default", "annotations": {IPVS_SCHEDULER: scheduler}});
        service(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    };
    let converted = asking("wlc");
    assert_eq!(converted.object.as_ref().unwrap().scheduler, Some(Scheduler::Wlc));
    assert_eq!(problems(&converted), Vec::<String>::new());
    let converted = asking("fastest");
    assert_eq!(converted.object.as_ref().unwrap().scheduler, None);
    assert_eq!(
        problems(&converted),
        [
            "metadata.annotations[signpost.dev/ipvs-scheduler]: \"fastest\" is not known here; the node's own scheduler is taken"
        ]
    );
}

#[test]
fn what_becomes_of_tcp_when_its_endpoint_is_gone_is_said_by_annotation() {
    let asking = |asked: &str| {
        let spec = json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]});
        let metadata = json!({"name": "web", "namespace": "default", "annotations": {TCP_WHEN_ENDPOINT_GONE: asked}});
        service(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    };
    for (asked, after_s) in [("leave", None), ("reset", Some(0)), ("30s", Some(30)), ("24h", Some(86_400))] {
        let converted = asking(asked);
        assert_eq!(converted.object.as_ref().unwrap().reset_after, after_s.map(Duration::from_secs), "{asked}");
        assert_eq!(problems(&converted), Vec::<String>::new(), "{asked}");
    }
    for asked in ["", "s", "+3s", "25h", "99999999999999999999s", "kill", "1\u{e4}"] {
        let converted = asking(asked);
        assert_eq!(converted.object.as_ref().unwrap().reset_after, None, "{asked}");
        let problem =
            format!("metadata.annotations[{TCP_WHEN_ENDPOINT_GONE}]: {asked:?} is not known here; leave is taken");
        assert_eq!(problems(&converted), [problem]);
    }
}

#[test]
fn a_bad_part_of_a_service_is_left_out_and_named() {
    let converted = service_of(json!({
        "type": "NodePort", "clusterIPs": ["10.96.0.10", "10.96.0.11", "nonsense\u{1b}[2J"],
        "externalIPs": ["127.0.0.1", "224.0.0.1", "192.0.2.1", "192.0.2.1"],
        "externalTrafficPolicy": "Nearby",
        "ports": [{"name": "a", "port": 0}, {"name": "b", "port": 70000}, {"name": "c", "port": 80, "nodePort": -1},
                  {"name": "d", "port": 80}, {"name": "c", "port": 81}, {"name": "E\"; drop", "port": 82},
                  {"name": "f", "port": 83, "protocol": "GRE"}],
    }));
    let service = converted.object.as_ref().unwrap();
    assert_eq!(service.cluster_ips, addresses(&["10.96.0.10"]));
    assert_eq!(service.external_ips, addresses(&["192.0.2.1"]));
    assert_eq!(service.external_policy, TrafficPolicy::Cluster);
    assert_eq!(service.ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["c"]);
    assert_eq!(service.ports[0].node_port, None);
    let told = problems(&converted);
    assert!(told.iter().any(|text| text == "spec.ports[0].port: 0 is not in 1-65535; ignored"), "{told:#?}");
    assert!(told.iter().all(|text| !text.contains('\u{1b}')), "control characters are shown escaped: {told:#?}");
    assert!(told.len() <= 8, "no more is told than fits into an event");
}

#[test]
fn a_service_without_a_usable_address_is_not_served() {
    let converted = service_of(json!({"clusterIP": "10.96.0.300", "ports": [{"port": 80}]}));
    assert!(converted.object.is_none());
    assert_eq!(
        problems(&converted),
        [
            "spec.clusterIPs[0]: \"10.96.0.300\" is not an IP address; ignored",
            "spec.clusterIPs: no usable value is left; the object is not served"
        ]
    );
}

#[test]
fn source_ranges_that_cannot_be_read_never_open_the_load_balancer() {
    let converted = labelled(
        json!({}),
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.10", "loadBalancerSourceRanges": ["10.0.0.0"]}),
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.60"}]}}),
    );
    let service = converted.object.as_ref().unwrap();
    assert!(service.source_ranges.is_empty() && service.ingress.is_empty());
    assert_eq!(problems(&converted).len(), 2);
}

#[test]
fn addresses_are_read_as_kubernetes_reads_them() {
    for (text, read) in [
        ("10.0.0.1", Some("10.0.0.1")),
        ("010.000.000.001", Some("10.0.0.1")),
        ("::ffff:10.0.0.1", Some("10.0.0.1")),
        ("FD00::A", Some("fd00::a")),
        ("10.0.0", None),
        ("10.0.0.1.2", None),
        ("10.0.0.0001", None),
        ("+1.0.0.1", None),
        ("10.0.0.1 ", None),
        ("fe80::1%eth0", None),
        ("", None),
    ] {
        assert_eq!(parse_address(text), read.map(|read| read.parse().unwrap()), "{text}");
    }
}

#[test]
fn a_slice_keeps_its_good_endpoints() {
    let converted = slice_of(json!({
        "ports": [{"name": "http", "port": 8080}, {"name": "any"}, {"name": "bad", "port": 65_536}],
        "endpoints": [
            {"addresses": ["10.244.1.7"], "nodeName": "n1", "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]}},
            {"addresses": ["fd00::1"]}, {"addresses": ["nope"]}, {"addresses": []}, {"addresses": ["169.254.169.254"]},
            {"addresses": ["10.244.1.8"], "conditions": {"ready": false, "terminating": true}},
            {"addresses": ["10.244.1.9"], "conditions": {"ready": false, "serving": true, "terminating": true}},
        ],
    }));
    let slice = converted.object.as_ref().unwrap();
    assert_eq!((slice.family, &*slice.service.name), (Family::Ipv4, "web"));
    assert_eq!(slice.ports.len(), 1);
    let endpoints: Vec<_> =
        slice.endpoints.iter().map(|e| (e.address.to_string(), e.ready, e.serving, e.terminating)).collect();
    let expected =
        [("10.244.1.7", true, true, false), ("10.244.1.8", false, false, true), ("10.244.1.9", false, true, true)];
    assert_eq!(endpoints, expected.map(|(address, r, s, t)| (address.to_owned(), r, s, t)));
    assert_eq!(slice.endpoints[0].node.as_deref(), Some("n1"));
    assert_eq!((&*slice.endpoints[0].zone_hints[0], &*slice.endpoints[0].node_hints[0]), ("a", "n1"));
    assert_eq!(
        problems(&converted),
        [
            "ports[2].port: 65536 is not in 1-65535; ignored",
            "endpoints[1].addresses[0]: \"fd00::1\" is not ipv4; ignored",
            "endpoints[2].addresses[0]: \"nope\" is not an IP address; ignored",
            "endpoints[3].addresses: is missing; ignored",
            "endpoints[4].addresses[0]: \"169.254.169.254\" is a link-local address, which cannot be served; ignored",
        ]
    );
}

#[test]
fn slices_that_no_node_serves_are_left_out() {
    for (labels, address_type, complaints) in [
        (json!({}), "IPv4", 0),
        (json!({SERVICE_NAME: ""}), "IPv4", 0),
        (json!({SERVICE_NAME: "web"}), "FQDN", 0),
        (json!({SERVICE_NAME: "web", HEADLESS: ""}), "IPv4", 0),
        (json!({SERVICE_NAME: "web", SERVICE_PROXY_NAME: "other"}), "IPv4", 0),
        (json!({SERVICE_NAME: "web/../.."}), "IPv4", 1),
        (json!({SERVICE_NAME: "web"}), "IPX", 1),
    ] {
        let metadata = json!({"namespace": "default", "name": "web-1", "labels": labels});
        let converted = slice_of(json!({"metadata": metadata, "addressType": address_type}));
        assert!(converted.object.is_none(), "{labels} {address_type}");
        assert_eq!(problems(&converted).len(), complaints, "{labels} {address_type}");
    }
}

#[test]
fn objects_with_names_that_kubernetes_forbids_are_refused() {
    for (namespace, name) in [("default", "a b"), ("de{fault", "web"), ("", "web"), ("default", ""), ("a.b", "web")] {
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterIP": "10.96.0.1"}});
        let converted = service(&serde_json::from_value(object).unwrap());
        assert!(converted.object.is_none() && converted.malformed.is_some(), "{namespace}/{name}");
    }
}

#[test]
fn a_node_gives_its_internal_addresses_in_order_and_whether_it_stays() {
    let of = |taints: Value, deleted: Value| {
        node(
            &serde_json::from_value(json!({
                "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}, "deletionTimestamp": deleted},
                "spec": {"podCIDR": "10.244.1.0/24", "taints": taints},
                "status": {"addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "172.18.0.11"},
                    {"type": "ExternalIP", "address": "192.0.2.9"}, {"type": "InternalIP", "address": "fd00:172:18::11"}]},
            }))
            .unwrap(),
        )
    };
    let plain = of(Value::Null, Value::Null).object.unwrap();
    assert_eq!(plain.node.addresses, addresses(&["172.18.0.11", "fd00:172:18::11"]));
    assert_eq!(plain.node.pod_cidrs, ["10.244.1.0/24".parse::<IpNet>().unwrap()]);
    assert_eq!(plain.node.zone().map(|zone| &**zone), Some("a"));
    assert!(plain.eligible);
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    assert!(!of(taint, Value::Null).object.unwrap().eligible);
    assert!(!of(Value::Null, json!("2026-01-01T00:00:00Z")).object.unwrap().eligible);
}

#[test]
fn addresses_that_would_take_the_nodes_own_traffic_are_refused() {
    let external = json!(["127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "fe80::1", "255.255.255.255", "192.0.2.1"]);
    let converted = service_of(json!({"clusterIP": "10.96.0.10", "externalIPs": external}));
    assert_eq!(converted.object.as_ref().unwrap().external_ips, addresses(&["192.0.2.1"]));
    let told = problems(&converted);
    assert_eq!(told.len(), 6);
    assert_eq!(told[0], "spec.externalIPs[0]: \"127.0.0.1\" is a loopback address, which cannot be served; ignored");
}

/// Values that a hostile or broken client may put anywhere.
fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-2..70_000).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9a-f.:/%]{0,24}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["", "None", "10.0.0.1"])),
        prop::sample::select(vec![
            "None",
            "Local",
            "ClientIP",
            "IPv6",
            "FQDN",
            "::ffff:1.2.3.4",
            "fe80::1",
            "ExternalName"
        ])
        .prop_map(Value::from),
    ]
}

/// Every place in a value, as a path.
fn places(value: &Value, path: String, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, inner)| places(inner, format!("{path}/{key}"), into)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, inner)| places(inner, format!("{path}/{at}"), into))
        }
        _ => {}
    }
    into.push(path);
}

/// The object with some places changed to odd values.
fn changed(mut object: Value, changes: &[(usize, Value)]) -> Value {
    for (at, odd) in changes {
        let mut all = Vec::new();
        places(&object, String::new(), &mut all);
        let path = all[at % all.len()].clone();
        if let Some(place) = object.pointer_mut(&path) {
            *place = odd.clone();
        }
    }
    object
}

proptest! {
    #[test]
    fn whatever_stands_in_a_service_what_is_served_is_sound(changes in prop::collection::vec((any::<usize>(), odd()), 1..5)) {
        let whole = json!({
            "metadata": {"namespace": "default", "name": "web", "labels": {"a": "b"}},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:10:96::a"],
                "externalIPs": ["192.0.2.50"], "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.60", "ipMode": "VIP"}]}},
        });
        let object = changed(whole, &changes);
        let Ok(parsed) = serde_json::from_value(object.clone()) else { return Ok(()) };
        let Some(served) = service(&parsed).object else { return Ok(()) };
        let families: Vec<Family> = served.cluster_ips.iter().map(|address| Family::of(*address)).collect();
        prop_assert!(matches!(families.as_slice(), [_] | [Family::Ipv4, Family::Ipv6] | [Family::Ipv6, Family::Ipv4]));
        let numbers: BTreeSet<_> = served.ports.iter().map(|port| (port.protocol.to_string(), port.port)).collect();
        prop_assert_eq!(numbers.len(), served.ports.len());
        let all = served.cluster_ips.iter().chain(&served.external_ips).chain(served.ingress.iter().map(|i| &i.address));
        for address in all {
            prop_assert!(!address.is_loopback() && !address.is_multicast() && !address.is_unspecified());
        }
        let ranges = object.pointer("/spec/loadBalancerSourceRanges").and_then(Value::as_array);
        if ranges.is_some_and(|ranges| !ranges.is_empty()) && !served.ingress.is_empty() {
            prop_assert!(!served.source_ranges.is_empty(), "ranges were given, and everyone is let in");
        }
    }

    #[test]
    fn whatever_stands_in_a_slice_what_is_served_is_sound(changes in prop::collection::vec((any::<usize>(), odd()), 1..5)) {
        let whole = json!({
            "metadata": {"namespace": "default", "name": "web-1", "labels": {SERVICE_NAME: "web"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.1.7"], "nodeName": "n1", "conditions": {"ready": true, "serving": true},
                "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]}}, {"addresses": ["10.244.1.8"]}],
        });
        let Ok(parsed) = serde_json::from_value(changed(whole, &changes)) else { return Ok(()) };
        let Some(served) = slice(&parsed).object else { return Ok(()) };
        for endpoint in &served.endpoints {
            prop_assert_eq!(Family::of(endpoint.address), served.family);
        }
    }
}

#[test]
fn spreading_anew_is_asked_for_by_rate_and_bound_and_off_if_it_cannot_be_read() {
    let asking = |asked: &str, affinity: &str| {
        let spec = json!({"clusterIP": "10.96.0.10", "sessionAffinity": affinity, "ports": [{"port": 80}]});
        let metadata = json!({"name": "web", "namespace": "default", "annotations": {REBALANCE: asked}});
        service(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    };
    let field = format!("metadata.annotations[{REBALANCE}]");
    let wish = |rate_percent, within_percent| Some(Rebalance { within_percent, rate_percent });
    for (asked, read) in [
        ("10%/s within 20%", wish(10, 20)),
        ("100%/s within 0%", wish(100, 0)),
        ("1%/s within 1000%", wish(1, 1_000)),
        ("off", None),
    ] {
        let converted = asking(asked, "None");
        assert_eq!(converted.object.as_ref().unwrap().rebalance, read, "{asked}");
        assert_eq!(problems(&converted), Vec::<String>::new(), "{asked}");
    }
    for asked in [
        "",
        "on",
        "0%/s within 20%",
        "101%/s within 20%",
        "10%/s within 1001%",
        "10%/s",
        "+1%/s within 2%",
        "1%/s within -2%",
        "1%/s within 99999999999%",
        "1%/s within 2%%",
        "\u{e4}%",
    ] {
        let converted = asking(asked, "None");
        assert_eq!(converted.object.as_ref().unwrap().rebalance, None, "{asked}");
        assert_eq!(problems(&converted), [format!("{field}: {asked:?} is not known here; off is taken")]);
    }
    let converted = asking("10%/s within 20%", "ClientIP");
    assert_eq!(converted.object.as_ref().unwrap().rebalance, None);
    let problem = format!("{field}: clients with sessionAffinity would be led back to where they were; off is taken");
    assert_eq!(problems(&converted), [problem]);
}
