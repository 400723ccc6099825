use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::plan::{Failure, says_the_same, scaling, status};

fn set(replicas: i32) -> ReplicaSet {
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "generation": 4},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web", "tier": "front"}}},
        },
    });
    serde_json::from_value(object).expect("a ReplicaSet")
}

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut object = json!({
        "metadata": {"name": name, "uid": name, "labels": {"app": "web", "tier": "front"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]},
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).expect("a Pod"))
}

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("a time")
}

fn deleted(replicas: i32, pods: &[Arc<Pod>]) -> Vec<String> {
    let scaling = scaling(&set(replicas), pods, pods, now());
    scaling.delete.iter().map(|pod| pod.metadata.name.clone().unwrap_or_default()).collect()
}

#[test]
fn finished_and_terminating_pods_do_not_count() {
    let pods = [
        pod("a", |_| {}),
        pod("ended", |pod| pod["status"]["phase"] = "Failed".into()),
        pod("ending", |pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()),
    ];
    assert_eq!(scaling(&set(3), &pods, &pods, now()).create, 2);
    assert_eq!(scaling(&set(1), &pods, &pods, now()), super::plan::Scaling::default());
}

#[test]
fn a_set_that_is_being_deleted_does_nothing() {
    let mut set = set(3);
    set.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(scaling(&set, &[], &[], now()), super::plan::Scaling::default());
}

#[test]
fn the_pods_that_are_least_missed_go_first() {
    let good = |name: &str| pod(name, |_| {});
    for (least_missed, why) in [
        (pod("x", |pod| pod["spec"]["nodeName"] = Value::Null), "it has no node"),
        (pod("x", |pod| pod["status"]["phase"] = "Pending".into()), "it is pending"),
        (pod("x", |pod| pod["status"]["conditions"][0]["status"] = "False".into()), "it is not ready"),
        (
            pod("x", |pod| {
                pod["metadata"]["annotations"] = json!({"controller.kubernetes.io/pod-deletion-cost": "-5"})
            }),
            "it costs less",
        ),
        (
            pod("x", |pod| pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:59:58Z".into()),
            "it has just got ready",
        ),
        (
            pod("x", |pod| {
                pod["status"]["containerStatuses"] =
                    json!([{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 3}]);
            }),
            "it was restarted",
        ),
        (pod("x", |pod| pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z".into()), "it is younger"),
    ] {
        assert_eq!(deleted(2, &[good("a"), least_missed, good("b")]), ["x"], "{why}");
    }
}

#[test]
fn the_fuller_node_gives_a_pod() {
    let on = |name: &str, node: &str| pod(name, |pod| pod["spec"]["nodeName"] = node.into());
    assert_eq!(deleted(2, &[on("a", "n1"), on("b", "n2"), on("c", "n2")]), ["c"]);
}

#[test]
fn the_status_counts_ready_available_and_fully_labelled_pods() {
    let pods = [
        pod("a", |_| {}),
        pod("b", |pod| pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:59:55Z".into()),
        pod("c", |pod| pod["status"]["conditions"][0]["status"] = "False".into()),
        pod("d", |pod| pod["metadata"]["labels"] = json!({"app": "web"})),
    ];
    let mut set = set(4);
    set.spec.as_mut().expect("a spec").min_ready_seconds = Some(30);
    let (status, again) = status(&set, &pods, None, now());
    assert_eq!((status.replicas, status.ready_replicas), (4, Some(3)));
    assert_eq!((status.available_replicas, status.fully_labeled_replicas), (Some(2), Some(3)));
    assert_eq!((status.observed_generation, again), (Some(4), Some(SignedDuration::from_secs(25))));
}

#[test]
fn a_failure_is_a_condition_until_it_is_over() {
    let mut set = set(1);
    let failure = Failure { reason: "FailedCreate", message: "no".to_owned() };
    let failed = status(&set, &[], Some(&failure), now()).0;
    assert_eq!(failed.conditions.as_ref().map(|conditions| conditions[0].type_.as_str()), Some("ReplicaFailure"));
    set.status = Some(failed.clone());
    let later = "2026-01-01T02:00:00Z".parse().expect("a time");
    assert!(says_the_same(&status(&set, &[], Some(&failure), later).0, &failed), "it keeps its time");
    assert_eq!(status(&set, &[], None, now()).0.conditions, None);
}
