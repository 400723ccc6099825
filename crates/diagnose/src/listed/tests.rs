use serde_json::json;

use super::*;

fn listed() -> Listed {
    Listed {
        nodes: vec![json!({
            "metadata": {"name": "n1"},
            "spec": {"podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"]},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "172.18.0.11"},
                {"type": "InternalIP", "address": "fd00:172:18::11"},
                {"type": "Hostname", "address": "n1"},
            ]},
        })],
        pods: vec![
            json!({
                "metadata": {"namespace": "default", "name": "web-1"},
                "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
                "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}, {"ip": "fd00:10:244:1::2"}]},
            }),
            json!({
                "metadata": {"namespace": "default", "name": "done"},
                "spec": {"nodeName": "n1"},
                "status": {"phase": "Failed", "podIPs": [{"ip": "10.244.1.3"}]},
            }),
        ],
        services: vec![json!({
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {
                "clusterIPs": ["10.96.0.10"],
                "externalIPs": ["198.51.100.1"],
                "ports": [
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "nodePort": 30053},
                    {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30153},
                ],
            },
        })],
        ..Listed::default()
    }
}

fn resolve(text: &str, family: Family) -> Result<String, NoAddress> {
    let vip = Saved { addresses: vec!["10.96.0.99".parse().unwrap()], port: Some(81), word: None };
    let saved = BTreeMap::from([("vip".to_owned(), vip)]);
    listed().resolve(&text.parse().unwrap(), family, &saved).map(|address| address.to_string())
}

#[test]
fn destinations_become_addresses() {
    for (text, want) in [
        ("web:53", "10.96.0.10:53"),
        ("web:dns", "10.96.0.10:53"),
        ("web:4711", "10.96.0.10:4711"),
        ("external/web:53", "198.51.100.1:53"),
        ("nodeport/n1/web:53", "172.18.0.11:30053"),
        ("udp://nodeport/n1/web:53", "172.18.0.11:30153"),
        ("nodeport/n1/web:dns", "172.18.0.11:30153"),
        ("node/n1:22", "172.18.0.11:22"),
        ("pod/web-1:http", "10.244.1.2:8080"),
        ("pod/web-1:9", "10.244.1.2:9"),
        ("$vip", "10.96.0.99:81"),
        ("$vip:82", "10.96.0.99:82"),
        ("ping://web", "10.96.0.10:0"),
    ] {
        assert_eq!(resolve(text, Family::Ipv4), Ok(want.to_owned()), "{text}");
    }
    assert_eq!(resolve("pod/web-1:9", Family::Ipv6), Ok("[fd00:10:244:1::2]:9".to_owned()));
}

#[test]
fn what_has_no_address_says_so() {
    assert!(matches!(resolve("shop:80", Family::Ipv4), Err(NoAddress::Missing { what: "Service", .. })));
    assert!(matches!(resolve("web:80", Family::Ipv6), Err(NoAddress::Family { .. })));
    assert!(matches!(resolve("lb/web:53", Family::Ipv4), Err(NoAddress::Without { .. })));
    assert!(matches!(resolve("web:http", Family::Ipv4), Err(NoAddress::Without { .. })));
    assert!(matches!(resolve("$no:80", Family::Ipv4), Err(NoAddress::Missing { .. })));
}

#[test]
fn saving_keeps_the_addresses_of_both_families() {
    let saved = listed().save(&"pod/web-1:9".parse().unwrap(), &BTreeMap::new()).unwrap();
    assert_eq!((saved.addresses.len(), saved.port), (2, Some(9)));
    assert!(listed().save(&"shop:1".parse().unwrap(), &BTreeMap::new()).is_err());
}

#[test]
fn the_view_has_living_pods_with_their_listeners() {
    let bridge = BTreeMap::from([("n1".to_owned(), BTreeSet::from(["10.244.1.1".parse().unwrap()]))]);
    let around = Surroundings { node_addresses: bridge, ..Surroundings::default() };
    let listeners = |pod: &PodName| {
        assert_eq!(*pod, PodName::parse("web-1"), "only what lives is asked for");
        Listeners { listens: Some([(Protocol::Tcp, 8080)].into()), bind: None }
    };
    let view = listed().view(Family::Ipv6, &listeners, &around);
    assert_eq!(view.pods.len(), 1);
    assert_eq!(view.pods[0].listens, Some([(Protocol::Tcp, 8080)].into()));
    assert_eq!(view.pods[0].address, "fd00:10:244:1::2".parse::<IpAddr>().unwrap());
    let view = listed().view(Family::Ipv4, &|_| Listeners::default(), &around);
    assert_eq!(view.nodes[0].addresses.len(), 2);
    assert_eq!(view.pods[0].listens, None);
}

#[test]
fn a_wrong_port_name_is_told_with_those_that_are_there() {
    for to in ["web:dsn", "nodeport/n1/web:dsn"] {
        let error = listed().resolve(&to.parse().unwrap(), Family::Ipv4, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.to_string(), "web has no port named dsn; it has dns-tcp, dns", "{to}");
    }
}

#[test]
fn a_family_that_the_service_names_must_have_an_address() {
    for (families, lacks) in [(json!(["IPv4"]), false), (json!(["IPv4", "IPv6"]), true)] {
        let mut listed = listed();
        listed.services[0]["spec"]["ipFamilies"] = families;
        for to in ["web:53", "external/web:53"] {
            let to = to.parse().unwrap();
            assert!(listed.resolve(&to, Family::Ipv4, &BTreeMap::new()).is_ok());
            let error = listed.resolve(&to, Family::Ipv6, &BTreeMap::new()).unwrap_err();
            assert_eq!(matches!(error, NoAddress::Lacks { .. }), lacks, "{error}");
            assert_eq!(listed.save(&to, &BTreeMap::new()).is_err(), lacks);
        }
    }
}
