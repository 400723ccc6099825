//! Services through admission and allocation, on a store in memory.

use serde_json::{Value, json};

use crate::admission;
use crate::error::ApiError;
use crate::registry;
use crate::store::Store;
use crate::store::allocations::Allocations;

struct Cluster(Store);

impl Cluster {
    fn new(cidrs: &[&str]) -> Cluster {
        let cidrs: Vec<_> = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        let cluster = Cluster(Store::open(None, Allocations::new(&cidrs, 30000..=32767)).unwrap());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        futures::executor::block_on(cluster.0.write(|transaction| {
            transaction.put(registry::known("Namespace"), namespace);
            Ok(())
        }))
        .unwrap();
        cluster
    }

    fn create(&self, name: &str, spec: Value) -> Result<Value, ApiError> {
        let kind = registry::known("Service");
        let mut service = json!({"metadata": {"name": name}, "spec": spec});
        futures::executor::block_on(self.0.write(|transaction| {
            admission::create(transaction, kind, "default", &mut service)?;
            Ok(transaction.put(kind, service).value["spec"].clone())
        }))
    }

    fn update(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<Value, ApiError> {
        let kind = registry::known("Service");
        futures::executor::block_on(self.0.write(|transaction| {
            let old = transaction.get(kind, "default", name).unwrap();
            let mut service = old.value.clone();
            change(&mut service["spec"]);
            crate::object::drop_nulls(&mut service);
            admission::update(transaction, kind, &old.value, &mut service, false)?;
            Ok(transaction.put(kind, service).value["spec"].clone())
        }))
    }
}

fn v4() -> Cluster {
    Cluster::new(&["10.96.0.0/12"])
}

fn dual() -> Cluster {
    Cluster::new(&["10.96.0.0/12", "fd00:10:96::/112"])
}

fn port80() -> Value {
    json!([{"port": 80}])
}

fn error(result: Result<Value, ApiError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_service_gets_an_address_and_its_defaults() {
    let spec = v4().create("web", json!({"ports": port80()})).unwrap();
    let address: std::net::Ipv4Addr = spec["clusterIP"].as_str().unwrap().parse().unwrap();
    assert!(address.octets()[0] == 10 && u32::from(address) > u32::from(std::net::Ipv4Addr::new(10, 96, 1, 0)));
    assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
    assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
    assert_eq!(spec["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
    for (key, value) in [
        ("type", "ClusterIP"),
        ("sessionAffinity", "None"),
        ("internalTrafficPolicy", "Cluster"),
        ("ipFamilyPolicy", "SingleStack"),
    ] {
        assert_eq!(spec[key], value, "{key}");
    }
    assert_eq!(spec.get("externalTrafficPolicy"), None);
}

#[test]
fn an_address_is_given_once() {
    let cluster = v4();
    let spec = json!({"clusterIP": "10.96.0.10", "ports": port80()});
    cluster.create("a", spec.clone()).unwrap();
    assert_eq!(
        error(cluster.create("b", spec)),
        "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: \
         provided IP is already allocated"
    );
    assert_eq!(
        error(cluster.create("b", json!({"clusterIP": "10.0.0.1", "ports": port80()}))),
        "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.0.0.1\"]: failed to allocate IP 10.0.0.1: the \
         provided network does not match the current range"
    );
}

#[test]
fn a_failed_write_gives_back_what_it_took() {
    let cluster = v4();
    cluster.create("a", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]})).unwrap();
    let both = json!({"type": "NodePort", "clusterIP": "10.96.0.10", "ports": [{"port": 80, "nodePort": 30080}]});
    assert_eq!(
        error(cluster.create("b", both)),
        "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
    );
    cluster.create("c", json!({"clusterIP": "10.96.0.10", "ports": port80()})).unwrap();
}

#[test]
fn dual_stack_follows_policy_and_families() {
    let cluster = dual();
    let single = cluster.create("a", json!({"ports": port80()})).unwrap();
    assert_eq!(single["ipFamilies"], json!(["IPv4"]));
    let both = cluster.create("b", json!({"ipFamilyPolicy": "RequireDualStack", "ports": port80()})).unwrap();
    assert_eq!(both["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert!(both["clusterIPs"][1].as_str().unwrap().starts_with("fd00:10:96::"));
    let turned = json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"], "ports": port80()});
    let turned = cluster.create("c", turned).unwrap();
    assert_eq!(turned["ipFamilies"], json!(["IPv6", "IPv4"]));
    assert_eq!(turned["clusterIP"], turned["clusterIPs"][0]);
    let named = json!({"clusterIP": "fd00:10:96::77", "ports": port80()});
    assert_eq!(cluster.create("d", named).unwrap()["ipFamilies"], json!(["IPv6"]));
    let preferred = v4().create("e", json!({"ipFamilyPolicy": "PreferDualStack", "ports": port80()})).unwrap();
    assert_eq!(preferred["ipFamilies"], json!(["IPv4"]));
    let required = v4().create("e", json!({"ipFamilyPolicy": "RequireDualStack", "ports": port80()}));
    assert!(error(required).contains("this cluster is not configured for dual-stack services"));
    let headless = v4().create("f", json!({"clusterIP": "None"})).unwrap();
    assert_eq!(headless["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(headless["clusterIPs"], json!(["None"]));
}

#[test]
fn the_second_family_comes_and_goes_with_the_policy() {
    let cluster = dual();
    let first = cluster.create("a", json!({"ports": port80()})).unwrap();
    let both = cluster.update("a", |spec| spec["ipFamilyPolicy"] = "PreferDualStack".into()).unwrap();
    assert_eq!(both["clusterIPs"].as_array().unwrap().len(), 2);
    assert_eq!(both["clusterIPs"][0], first["clusterIP"]);
    let kept = error(cluster.update("a", |spec| spec["ipFamilies"] = json!(["IPv4"])));
    assert!(kept.contains("must be 'SingleStack' to release the secondary IP family"), "{kept}");
    let single = cluster.update("a", |spec| spec["ipFamilyPolicy"] = "SingleStack".into()).unwrap();
    assert_eq!(single["clusterIPs"], json!([first["clusterIP"]]));
    cluster.create("b", json!({"clusterIP": both["clusterIPs"][1], "ports": port80()})).unwrap();
}

#[test]
fn a_change_of_type_keeps_or_releases_what_was_given() {
    let cluster = v4();
    let ports = json!([{"name": "t", "port": 53}, {"name": "u", "port": 53, "protocol": "UDP"}]);
    let node = cluster.create("a", json!({"type": "NodePort", "ports": ports})).unwrap();
    let given = node["ports"][0]["nodePort"].clone();
    assert!(given.as_u64().unwrap() >= 30086, "from the upper band");
    assert_eq!(node["ports"][1]["nodePort"], given, "one number for both protocols");
    assert_eq!(node["externalTrafficPolicy"], "Cluster");

    let cluster_ip = cluster.update("a", |spec| spec["type"] = "ClusterIP".into()).unwrap();
    assert_eq!(cluster_ip["clusterIP"], node["clusterIP"]);
    assert_eq!(cluster_ip["ports"][0].get("nodePort"), None);
    assert_eq!(cluster_ip.get("externalTrafficPolicy"), None);
    cluster.create("b", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": given}]})).unwrap();

    let moved = |spec: &mut Value| {
        spec["type"] = "ExternalName".into();
        spec["externalName"] = "example.com".into();
    };
    let external = cluster.update("a", moved).unwrap();
    assert_eq!((external.get("clusterIP"), external.get("ipFamilies")), (None, None));
    cluster.create("c", json!({"clusterIP": node["clusterIP"], "ports": port80()})).unwrap();
    let back = cluster.update("a", |spec| spec["type"] = "ClusterIP".into()).unwrap();
    assert!(back["clusterIP"].is_string() && back["clusterIP"] != node["clusterIP"]);
}

#[test]
fn an_update_that_leaves_out_what_was_given_keeps_it() {
    let cluster = v4();
    let first = cluster.create("a", json!({"type": "NodePort", "ports": port80()})).unwrap();
    let again = cluster
        .update("a", |spec| *spec = json!({"type": "NodePort", "ports": [{"port": 80}, {"name": "x", "port": 81}]}));
    assert!(error(again).contains("spec.ports[0].name: Required value"));
    let again = cluster.update("a", |spec| {
        *spec = json!({"type": "NodePort", "ports": [{"name": "w", "port": 80}, {"name": "x", "port": 81}]});
    });
    let again = again.unwrap();
    assert_eq!(again["clusterIP"], first["clusterIP"]);
    assert_eq!(again["ports"][0]["nodePort"], first["ports"][0]["nodePort"]);
    assert_ne!(again["ports"][1]["nodePort"], first["ports"][0]["nodePort"]);
}

#[test]
fn the_cluster_address_does_not_change() {
    let cluster = v4();
    let first = cluster.create("a", json!({"clusterIP": "10.96.0.5", "ports": port80()})).unwrap();
    assert_eq!(first["clusterIP"], "10.96.0.5");
    assert_eq!(
        error(cluster.update("a", |spec| spec["clusterIP"] = "10.96.0.6".into())),
        "Service \"a\" is invalid: spec.clusterIPs[0]: Invalid value: [\"10.96.0.6\"]: may not change once set"
    );
    let unset = cluster.update("a", |spec| spec["clusterIPs"] = json!(["10.96.0.6"]));
    assert!(error(unset).contains("first value must match `clusterIP`"));
}

#[test]
fn node_ports_lie_in_their_range() {
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    assert_eq!(
        error(v4().create("a", spec)),
        "Service \"a\" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. \
         The range of valid ports is 30000-32767"
    );
}

#[test]
fn a_local_load_balancer_gets_a_health_check_port() {
    let cluster = v4();
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": port80()});
    let given = cluster.create("a", spec).unwrap();
    assert!(given["healthCheckNodePort"].as_u64().unwrap() >= 30000);
    assert_eq!(given["allocateLoadBalancerNodePorts"], true);
    let now = cluster.update("a", |spec| spec["externalTrafficPolicy"] = "Cluster".into()).unwrap();
    assert_eq!(now.get("healthCheckNodePort"), None);
    let spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": port80()});
    assert_eq!(cluster.create("b", spec).unwrap()["ports"][0].get("nodePort"), None);
}

#[test]
fn malformed_services_are_refused_field_by_field() {
    for (spec, text) in [
        (
            json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]}),
            "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\
             \"TargetPort\":0,\"NodePort\":0}",
        ),
        (
            json!({"ports": port80(), "loadBalancerSourceRanges": ["192.0.2.0/24"]}),
            "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (json!({}), "spec.ports: Required value"),
        (
            json!({"ports": [{"port": 0}]}),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            json!({"ports": [{"port": 1, "protocol": "ICMP"}]}),
            "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (json!({"ports": [{"port": 1, "targetPort": "a_b"}]}), "spec.ports[0].targetPort: Invalid value: \"a_b\""),
        (
            json!({"ports": [{"port": 1, "nodePort": 30000}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"ports": port80(), "clusterIP": "x"}),
            "spec.clusterIPs[0]: Invalid value: \"x\": must be a valid IP address",
        ),
        (json!({"ports": port80(), "type": "X"}), "spec.type: Unsupported value: \"X\""),
        (
            json!({"ports": port80(), "type": "NodePort", "clusterIP": "None"}),
            "may not be set to 'None' for NodePort services",
        ),
        (
            json!({"ports": port80(), "sessionAffinity": "X"}),
            "spec.sessionAffinity: Unsupported value: \"X\": supported values: \"ClientIP\", \"None\"",
        ),
        (json!({"ports": port80(), "externalIPs": ["127.0.0.1"]}), "may not be in the loopback range"),
        (
            json!({"ports": port80(), "externalTrafficPolicy": "Local"}),
            "may only be set for externally-accessible services",
        ),
        (json!({"type": "ExternalName"}), "spec.externalName: Required value"),
        (
            json!({"ports": port80(), "ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (json!({"ports": port80(), "loadBalancerSourceRanges": ["10.0.0.0"]}), "must be a valid CIDR value"),
        (json!({"ports": port80(), "selector": {"a b": "c"}}), "spec.selector: Invalid value: \"a b\""),
    ] {
        let refused = error(v4().create("a", spec));
        assert!(refused.contains(text), "{refused}\n  should contain {text}");
    }
}
