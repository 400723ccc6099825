use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::choose::{Load, choose};

fn node(name: &str, change: impl FnOnce(&mut Value)) -> Arc<Node> {
    let mut object = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "cores": "8"}},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).expect("a Node"))
}

fn two() -> Vec<Arc<Node>> {
    vec![node("n1", |_| {}), node("n2", |_| {})]
}

fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    spec["containers"] = json!([]);
    serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).expect("a Pod")
}

fn free(_: &str) -> Load {
    Load::default()
}

#[test]
fn three_replicas_land_on_both_of_two_nodes() {
    let mut loads: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..3 {
        let load = |node: &str| {
            let count = loads.get(node).copied().unwrap_or(0);
            Load { same_owner: count, all: count }
        };
        let chosen = choose(&pod(json!({})), &two(), &load).expect("a node");
        *loads.entry(chosen).or_default() += 1;
    }
    assert_eq!(loads.values().copied().collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn pods_of_the_same_owner_weigh_more_than_others() {
    let load = |node: &str| match node {
        "n1" => Load { same_owner: 1, all: 1 },
        _ => Load { same_owner: 0, all: 20 },
    };
    assert_eq!(choose(&pod(json!({})), &two(), &load), Ok("n2".to_owned()));
}

#[test]
fn a_node_that_does_not_take_pods_gets_none() {
    let taint = |effect: &str| {
        let effect = effect.to_owned();
        move |node: &mut Value| node["spec"]["taints"] = json!([{"key": "gpu", "value": "yes", "effect": effect}])
    };
    let refused = |node: Arc<Node>| choose(&pod(json!({})), &[node], &free).expect_err("nobody takes it");
    for (node, reason) in [
        (node("n1", |node| node["status"] = json!({})), "1 node(s) were not ready"),
        (node("n1", |node| node["status"]["conditions"][0]["status"] = "Unknown".into()), "1 node(s) were not ready"),
        (node("n1", |node| node["spec"]["unschedulable"] = true.into()), "1 node(s) were unschedulable"),
        (node("n1", taint("NoSchedule")), "1 node(s) had untolerated taint {gpu: yes}"),
        (node("n1", taint("NoExecute")), "1 node(s) had untolerated taint {gpu: yes}"),
    ] {
        assert_eq!(refused(node), format!("0/1 nodes are available: {reason}."));
    }
    assert!(choose(&pod(json!({})), &[node("n1", taint("PreferNoSchedule"))], &free).is_ok());
    assert_eq!(choose(&pod(json!({})), &[], &free), Err("no nodes available to schedule pods".to_owned()));
}

#[test]
fn tolerations_open_tainted_nodes() {
    let tainted =
        [node("n1", |node| node["spec"]["taints"] = json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]))];
    for (toleration, expected) in [
        (json!({"operator": "Exists"}), true),
        (json!({"key": "gpu", "operator": "Exists"}), true),
        (json!({"key": "gpu", "value": "yes"}), true),
        (json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"}), true),
        (json!({"key": "gpu", "value": "no"}), false),
        (json!({"key": "gpu", "value": "yes", "effect": "NoExecute"}), false),
        (json!({"key": "other", "operator": "Exists"}), false),
    ] {
        let chosen = choose(&pod(json!({"tolerations": [toleration]})), &tainted, &free);
        assert_eq!(chosen.is_ok(), expected, "{toleration}");
    }
}

#[test]
fn selectors_and_required_affinity_narrow_the_choice() {
    let requirement = |key: &str, operator: &str, values: Value| {
        let expression = json!({"key": key, "operator": operator, "values": values});
        affinity(&json!([{"matchExpressions": [expression]}]))
    };
    for (spec, expected) in [
        (json!({"nodeSelector": {"kubernetes.io/hostname": "n2"}}), Some("n2")),
        (json!({"nodeSelector": {"kubernetes.io/hostname": "n3"}}), None),
        (requirement("kubernetes.io/hostname", "In", json!(["n2", "n3"])), Some("n2")),
        (requirement("kubernetes.io/hostname", "NotIn", json!(["n1"])), Some("n2")),
        (requirement("gpu", "Exists", Value::Null), None),
        (requirement("gpu", "DoesNotExist", Value::Null), Some("n1")),
        (requirement("cores", "Gt", json!(["4"])), Some("n1")),
        (requirement("cores", "Lt", json!(["4"])), None),
        (
            affinity(&json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}])),
            Some("n2"),
        ),
        (affinity(&json!([{}])), None),
    ] {
        let chosen = choose(&pod(spec.clone()), &two(), &free).ok();
        assert_eq!(chosen.as_deref(), expected, "{spec}");
    }
}

fn affinity(terms: &Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}
