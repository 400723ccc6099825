//! Tables of patches, and properties over random objects.

use super::{PatchError, strategic_merge};
use serde_json::{Value, json};

fn merged(kind: &str, original: Value, patch: Value) -> Value {
    strategic_merge(kind, original, patch).unwrap()
}

fn refused(kind: &str, original: Value, patch: Value) -> PatchError {
    strategic_merge(kind, original, patch).unwrap_err()
}

fn pod(containers: Value) -> Value {
    json!({ "spec": { "containers": containers } })
}

#[test]
fn scalars_are_set_and_nulls_delete() {
    let original = json!({ "metadata": { "labels": { "a": "1", "b": "2" } }, "spec": { "nodeName": "n1" } });
    let patch = json!({ "metadata": { "labels": { "a": null, "c": "3", "d": null } }, "spec": { "nodeName": "n2" } });
    let expected = json!({ "metadata": { "labels": { "b": "2", "c": "3" } }, "spec": { "nodeName": "n2" } });
    assert_eq!(merged("Pod", original, patch), expected);
}

#[test]
fn nulls_below_a_new_map_leave_nothing() {
    let patch = json!({ "metadata": { "labels": { "a": null, "b": "1" } } });
    assert_eq!(merged("Pod", json!({}), patch), json!({ "metadata": { "labels": { "b": "1" } } }));
}

#[test]
fn containers_merge_by_name_and_new_ones_come_last() {
    let original = pod(json!([{ "name": "a", "image": "x" }, { "name": "b", "image": "y" }]));
    let patch = pod(json!([{ "name": "b", "image": "z" }, { "name": "c", "image": "w" }]));
    let expected =
        pod(json!([{ "name": "a", "image": "x" }, { "name": "b", "image": "z" }, { "name": "c", "image": "w" }]));
    assert_eq!(merged("Pod", original, patch), expected);
}

#[test]
fn lists_merge_inside_lists() {
    let original = pod(json!([{ "name": "a", "env": [{ "name": "X", "value": "1" }, { "name": "Y", "value": "2" }],
        "ports": [{ "containerPort": 80 }], "volumeMounts": [{ "mountPath": "/a", "name": "v" }] }]));
    let patch = pod(json!([{ "name": "a", "env": [{ "name": "Y", "value": "3" }], "ports": [{ "containerPort": 81 }],
        "volumeMounts": [{ "mountPath": "/a", "name": "w" }] }]));
    let expected = pod(json!([{ "name": "a", "env": [{ "name": "X", "value": "1" }, { "name": "Y", "value": "3" }],
        "ports": [{ "containerPort": 81 }, { "containerPort": 80 }],
        "volumeMounts": [{ "mountPath": "/a", "name": "w" }] }]));
    assert_eq!(merged("Pod", original, patch), expected);
}

#[test]
fn templates_know_their_lists_too() {
    let template = |containers: Value| json!({ "spec": { "template": pod(containers) } });
    for kind in ["Deployment", "ReplicaSet", "StatefulSet"] {
        let original = template(json!([{ "name": "a", "image": "x" }]));
        let patch = template(json!([{ "name": "b", "image": "y" }]));
        let expected = template(json!([{ "name": "b", "image": "y" }, { "name": "a", "image": "x" }]));
        let got = merged(kind, original, patch);
        // Without an order the server's elements and the new ones cannot be compared: the patch's come first.
        assert_eq!(got, expected, "{kind}");
    }
}

#[test]
fn service_ports_merge_by_port() {
    let ports = |ports: Value| json!({ "spec": { "ports": ports } });
    let original = ports(json!([{ "port": 80, "nodePort": 30080 }, { "port": 443 }]));
    let patch = ports(json!([{ "port": 80, "targetPort": "http" }]));
    let expected = ports(json!([{ "port": 80, "nodePort": 30080, "targetPort": "http" }, { "port": 443 }]));
    assert_eq!(merged("Service", original, patch), expected);
}

#[test]
fn lists_without_a_key_are_replaced() {
    let spec = |spec: Value| json!({ "spec": spec });
    let original = spec(json!({ "tolerations": [{ "key": "a" }], "externalIPs": ["192.0.2.1"] }));
    let patch = spec(json!({ "tolerations": [{ "key": "b" }] }));
    let expected = spec(json!({ "tolerations": [{ "key": "b" }], "externalIPs": ["192.0.2.1"] }));
    assert_eq!(merged("Pod", original, patch), expected);
    let original = spec(json!({ "externalIPs": ["192.0.2.1"] }));
    let patch = spec(json!({ "externalIPs": ["192.0.2.2"] }));
    assert_eq!(merged("Service", original, patch.clone()), patch);
}

#[test]
fn finalizers_are_a_set_and_scalars_can_be_taken_out() {
    let meta = |meta: Value| json!({ "metadata": meta });
    let original = meta(json!({ "finalizers": ["a", "b"] }));
    let patch = meta(json!({ "finalizers": ["b", "c"] }));
    assert_eq!(merged("Pod", original.clone(), patch), meta(json!({ "finalizers": ["a", "b", "c"] })));
    let patch = meta(json!({ "$deleteFromPrimitiveList/finalizers": ["a", "x"] }));
    assert_eq!(merged("Pod", original, patch.clone()), meta(json!({ "finalizers": ["b"] })));
    assert_eq!(merged("Pod", meta(json!({})), patch), meta(json!({})));
}

#[test]
fn delete_directive_takes_an_element_out() {
    let original = pod(json!([{ "name": "a" }, { "name": "b" }]));
    let patch = pod(json!([{ "$patch": "delete", "name": "a" }]));
    assert_eq!(merged("Pod", original, patch.clone()), pod(json!([{ "name": "b" }])));
    assert_eq!(merged("Pod", json!({}), patch), pod(json!([])));
}

#[test]
fn replace_directive_replaces_a_list() {
    let original = pod(json!([{ "name": "a" }, { "name": "b" }]));
    let patch = pod(json!([{ "name": "c" }, { "$patch": "replace" }]));
    assert_eq!(merged("Pod", original, patch), pod(json!([{ "name": "c" }])));
}

#[test]
fn directives_replace_and_empty_maps() {
    let original = json!({ "spec": { "selector": { "app": "a", "tier": "x" } } });
    let patch = json!({ "spec": { "selector": { "$patch": "replace", "app": "b" } } });
    assert_eq!(merged("Service", original.clone(), patch), json!({ "spec": { "selector": { "app": "b" } } }));
    let patch = json!({ "spec": { "selector": { "$patch": "delete" } } });
    assert_eq!(merged("Service", original.clone(), patch), json!({ "spec": { "selector": {} } }));
    let patch = json!({ "spec": { "selector": { "$patch": "merge", "app": "b" } } });
    let expected = json!({ "spec": { "selector": { "app": "b", "tier": "x" } } });
    assert_eq!(merged("Service", original, patch), expected);
}

#[test]
fn element_order_wins_and_foreign_elements_keep_their_place() {
    let named = |names: &[&str]| json!(names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>());
    let cases: [[&[&str]; 4]; 5] = [
        [&["a", "b", "c"], &[], &["c", "a", "b"], &["c", "a", "b"]],
        [&["a", "b"], &["c"], &["a", "c", "b"], &["a", "c", "b"]],
        [&["a", "sidecar", "b"], &["c"], &["a", "b", "c"], &["a", "sidecar", "b", "c"]],
        [&["sidecar", "a", "b"], &[], &["b", "a"], &["sidecar", "b", "a"]],
        [&["a", "b", "sidecar"], &["c"], &["c", "a", "b"], &["c", "a", "b", "sidecar"]],
    ];
    for [original, patch, order, expected] in cases {
        let mut change = pod(named(patch));
        change["spec"]["$setElementOrder/containers"] = named(order);
        if patch.is_empty() {
            change["spec"].as_object_mut().unwrap().remove("containers");
        }
        assert_eq!(merged("Pod", pod(named(original)), change), pod(named(expected)), "{original:?} {order:?}");
    }
}

#[test]
fn element_order_of_scalars() {
    let meta = |meta: Value| json!({ "metadata": meta });
    let original = meta(json!({ "finalizers": ["a", "b", "server"] }));
    let patch = meta(json!({ "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"],
        "$deleteFromPrimitiveList/finalizers": ["a"] }));
    assert_eq!(merged("Pod", original, patch), meta(json!({ "finalizers": ["c", "b", "server"] })));
}

#[test]
fn retain_keys_changes_a_unions_member() {
    let original = json!({ "spec": { "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1 } } } });
    let patch = json!({ "spec": { "strategy": { "$retainKeys": ["type"], "type": "Recreate" } } });
    assert_eq!(merged("Deployment", original, patch), json!({ "spec": { "strategy": { "type": "Recreate" } } }));
    let volumes = |volumes: Value| json!({ "spec": { "volumes": volumes } });
    let original = volumes(json!([{ "name": "v", "emptyDir": {} }]));
    let patch = volumes(json!([{ "$retainKeys": ["name", "configMap"], "name": "v", "configMap": { "name": "c" } }]));
    assert_eq!(merged("Pod", original, patch.clone()), volumes(json!([{ "name": "v", "configMap": { "name": "c" } }])));
    assert_eq!(merged("Pod", json!({}), patch), volumes(json!([{ "name": "v", "configMap": { "name": "c" } }])));
}

#[test]
fn conditions_addresses_owners_and_references_merge_by_their_keys() {
    let cases = [
        (
            "Node",
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "x" }] } }),
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "x" }] } }),
        ),
        (
            "Node",
            json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] } }),
            json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.2" }] } }),
            json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.2" }] } }),
        ),
        (
            "Pod",
            json!({ "metadata": { "ownerReferences": [{ "uid": "1", "name": "a" }] } }),
            json!({ "metadata": { "ownerReferences": [{ "uid": "1", "controller": true }] } }),
            json!({ "metadata": { "ownerReferences": [{ "uid": "1", "name": "a", "controller": true }] } }),
        ),
        (
            "ServiceAccount",
            json!({ "secrets": [{ "name": "a" }], "imagePullSecrets": [{ "name": "x" }] }),
            json!({ "secrets": [{ "name": "b", "$patch": "delete" }], "imagePullSecrets": [{ "name": "y" }] }),
            json!({ "secrets": [{ "name": "a" }], "imagePullSecrets": [{ "name": "y" }] }),
        ),
        (
            "Pod",
            json!({ "spec": { "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["a"] }] } }),
            json!({ "spec": { "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["b"] }] } }),
            json!({ "spec": { "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["b"] }] } }),
        ),
        (
            "EndpointSlice",
            json!({ "endpoints": [{ "addresses": ["192.0.2.1"] }] }),
            json!({ "endpoints": [{ "addresses": ["192.0.2.2"] }] }),
            json!({ "endpoints": [{ "addresses": ["192.0.2.2"] }] }),
        ),
    ];
    for (kind, original, patch, expected) in cases {
        assert_eq!(merged(kind, original, patch), expected, "{kind}");
    }
}

#[test]
fn bad_patches_are_refused_with_the_servers_texts() {
    let one = || pod(json!([{ "name": "a" }]));
    let cases = [
        (refused("Nothing", json!({}), json!({})), 415, "strategic merge patch format is not supported"),
        (refused("Pod", json!({}), json!([])), 400, "invalid JSON document"),
        (
            refused("Pod", one(), pod(json!([{ "image": "x" }]))),
            500,
            r#"map: {"image":"x"} does not contain declared merge key: name"#,
        ),
        (
            refused("Pod", one(), json!({ "spec": { "$setElementOrder/containers": 1 } })),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            refused("Pod", one(), json!({ "spec": { "$setElementOrder/foo": [] } })),
            500,
            r#"unable to find api field in struct PodSpec for the json field "foo""#,
        ),
        (refused("Pod", one(), json!({ "spec": { "$patch": "x" } })), 500, r#"unknown patch type: "x" in map: {}"#),
        (
            refused("Pod", one(), json!({ "spec": { "$retainKeys": ["a"], "b": 1 } })),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            refused(
                "Pod",
                json!({ "metadata": {} }),
                json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": "x" } }),
            ),
            400,
            "invalid patch format of primitive list",
        ),
        (refused("Pod", one(), pod(json!([[]]))), 422, "lists of lists are not supported"),
    ];
    for (error, status, text) in cases {
        assert_eq!((error.http_status(), error.to_string()), (status, text.to_owned()));
    }
}

/// A body of a few megabytes may hold that many: looking for each in all would hold the server for minutes.
#[test]
fn long_lists_merge_in_time_of_their_length() {
    let ports = |from: u32| (from..from + 10_000).map(|port| json!({ "port": port })).collect::<Vec<_>>();
    let order: Vec<Value> = ports(5_000).into_iter().rev().collect();
    let mut changed = ports(5_000);
    changed.reverse();
    let original = json!({ "spec": { "ports": ports(0) }, "metadata": { "finalizers": names(0) } });
    let patch = json!({ "spec": { "ports": changed, "$setElementOrder/ports": order },
        "metadata": { "finalizers": names(20_000), "$deleteFromPrimitiveList/finalizers": names(5_000) } });
    let merged = merged("Service", original, patch);
    assert_eq!(merged["spec"]["ports"].as_array().unwrap().len(), 15_000);
    assert_eq!(merged["metadata"]["finalizers"].as_array().unwrap().len(), 15_000);
}

fn names(from: u32) -> Vec<String> {
    (from..from + 10_000).map(|number| format!("a/{number}")).collect()
}
