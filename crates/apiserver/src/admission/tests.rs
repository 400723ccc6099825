//! What the rules of pods, workloads and smaller kinds refuse, and what is filled in.

use serde_json::{Value, json};

use super::{defaults, rules};
use crate::registry;

/// What is said of an object of a kind, defaults filled in first.
fn said(kind: &str, mut object: Value) -> Vec<String> {
    let kind = registry::by_kind(kind).unwrap();
    object["metadata"] = json!({"name": "a"});
    defaults(kind, &mut object);
    rules(kind, &object).iter().map(ToString::to_string).collect()
}

fn container(more: Value) -> Value {
    let mut container = json!({"name": "a", "image": "x"});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"containers": [container]})
}

#[test]
fn what_is_wrong_inside_a_container_is_told() {
    for (more, text) in [
        (json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}]}), "volumeMounts[0].name: Not found: \"v\""),
        (json!({"readinessProbe": {}}), "readinessProbe: Required value: must specify a handler type"),
        (
            json!({"readinessProbe": {"exec": {"command": ["a"]}, "httpGet": {"port": 80}}}),
            "readinessProbe.httpGet: Forbidden: may not specify more than 1 handler type",
        ),
        (
            json!({"readinessProbe": {"httpGet": {"port": 0}}}),
            "readinessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (json!({"startupProbe": {"exec": {}}}), "startupProbe.exec.command: Required value"),
        (
            json!({"livenessProbe": {"successThreshold": 2, "tcpSocket": {"port": 80}}}),
            "livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (json!({"env": [{"value": "a"}]}), "env[0].name: Required value"),
        (
            json!({"env": [{"name": "A", "valueFrom": {}}]}),
            "env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, \
             `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        (
            json!({"imagePullPolicy": "X"}),
            "imagePullPolicy: Unsupported value: \"X\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            json!({"resources": {"requests": {"cpu": "-1"}}}),
            "resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            json!({"resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": "1"}}}),
            "resources.requests: Invalid value: \"1\": must be less than or equal to cpu limit of 500m",
        ),
    ] {
        assert_eq!(said("Pod", json!({"spec": container(more)})), [format!("spec.containers[0].{text}")]);
    }
}

#[test]
fn a_pod_fills_in_volumes_and_requests() {
    let mut spec = container(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}}));
    spec["volumes"] = json!([{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]);
    let mut pod = json!({"metadata": {"name": "a"}, "spec": spec});
    let kind = registry::by_kind("Pod").unwrap();
    defaults(kind, &mut pod);
    assert_eq!(rules(kind, &pod), []);
    assert_eq!(pod["spec"]["volumes"][0], json!({"name": "v", "emptyDir": {}}));
    assert_eq!(pod["spec"]["volumes"][1]["secret"]["defaultMode"], 420);
    let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": "1", "memory": "1Gi"}));
}

#[test]
fn volumes_and_tolerations_are_checked() {
    for (key, value, text) in [
        ("volumes", json!([{"emptyDir": {}}]), "volumes[0].name: Required value"),
        (
            "volumes",
            json!([{"name": "v", "emptyDir": {}, "configMap": {"name": "c"}}]),
            "volumes[0].configMap: Forbidden: may not specify more than 1 volume type",
        ),
        (
            "volumes",
            json!([{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]),
            "volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            "tolerations",
            json!([{"key": "a", "operator": "X"}]),
            "tolerations[0].operator: Unsupported value: \"X\": supported values: \"Equal\", \"Exists\"",
        ),
        (
            "tolerations",
            json!([{"value": "a"}]),
            "tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \
             \"match all values and all keys\"",
        ),
    ] {
        let mut spec = container(json!({}));
        spec[key] = value;
        assert_eq!(said("Pod", json!({"spec": spec})), [format!("spec.{text}")]);
    }
}

#[test]
fn strategies_are_checked() {
    let workload = |more: Value| {
        let mut spec = json!({"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": container(json!({}))}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    for (kind, more, text) in [
        (
            "Deployment",
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}),
            "strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            "Deployment",
            json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
            "strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
        ),
        (
            "Deployment",
            json!({"strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}}),
            "strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
        ),
        (
            "Deployment",
            json!({"minReadySeconds": 9, "progressDeadlineSeconds": 9}),
            "progressDeadlineSeconds: Invalid value: 9: must be greater than minReadySeconds",
        ),
        (
            "StatefulSet",
            json!({"podManagementPolicy": "X"}),
            "podManagementPolicy: Invalid value: \"X\": must be 'OrderedReady' or 'Parallel'",
        ),
        (
            "ReplicaSet",
            json!({"minReadySeconds": -1}),
            "minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
    ] {
        assert_eq!(said(kind, workload(more)), [format!("spec.{text}")], "{kind}");
    }
    for kind in ["Deployment", "ReplicaSet", "StatefulSet"] {
        assert_eq!(said(kind, workload(json!({}))), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn slices_and_networks_are_checked() {
    for (kind, object, text) in [
        (
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}]}),
            "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range \
             (127.0.0.0/8, ::1/128)",
        ),
        (
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [], "ports": [{"port": 1}, {"port": 2}]}),
            "ports[1].name: Duplicate value: \"\"",
        ),
        (
            "Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "0.0.0.0"}]}]}),
            "subsets[0].addresses[0].ip: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)",
        ),
        ("ServiceCIDR", json!({"spec": {"cidrs": []}}), "spec.cidrs: Required value: at least one CIDR required"),
        (
            "ServiceCIDR",
            json!({"spec": {"cidrs": ["x"]}}),
            "spec.cidrs[0]: Invalid value: \"x\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
    ] {
        assert_eq!(said(kind, object), [text], "{kind}");
    }
}
