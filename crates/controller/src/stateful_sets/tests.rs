use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::plan::{self, Revisions, Step, ordinal, plan};
use super::revision::{Newest, newest, template};

const OLD: &str = "db-old";
const NEW: &str = "db-new";
const SAME: Revisions<'static> = Revisions { current: NEW, update: NEW };
const UPDATE: Revisions<'static> = Revisions { current: OLD, update: NEW };

fn set(replicas: i32, change: impl FnOnce(&mut Value)) -> StatefulSet {
    let mut object = json!({
        "metadata": {"name": "db", "namespace": "default", "uid": "u1"},
        "spec": {
            "replicas": replicas,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "main", "image": "a"}]}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        },
    });
    change(&mut object);
    serde_json::from_value(object).expect("a StatefulSet")
}

/// `db-0+` is ready, `db-1-` is not, `db-2x` is being deleted, `db-3!` has failed; `o` after that: of the old template.
fn pods(text: &str) -> Vec<Arc<Pod>> {
    text.split_whitespace().map(|word| Arc::new(pod(word))).collect()
}

fn pod(word: &str) -> Pod {
    let (word, revision) = word.strip_suffix('o').map_or((word, NEW), |word| (word, OLD));
    let (name, state) = word.split_at(word.len() - 1);
    let mut object = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "db", "controller-revision-hash": revision}},
        "status": {"phase": if state == "!" { "Failed" } else { "Running" }, "conditions": [
            {"type": "Ready", "status": if state == "+" || state == "x" { "True" } else { "False" }},
        ]},
    });
    if state == "x" {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    serde_json::from_value(object).expect("a Pod")
}

fn steps(set: &StatefulSet, text: &str, revisions: Revisions<'_>) -> Vec<String> {
    let steps = plan(set, &pods(text), revisions, Timestamp::UNIX_EPOCH);
    let shown = |step: &Step| match step {
        Step::Create { ordinal, newest: true } => format!("+{ordinal}"),
        Step::Create { ordinal, newest: false } => format!("+{ordinal}o"),
        Step::Delete(pod) => format!("-{}", pod.metadata.name.clone().unwrap_or_default()),
    };
    steps.iter().map(shown).collect()
}

#[test]
fn pods_are_made_one_after_the_other_each_when_the_last_is_ready() {
    let set = set(3, |_| {});
    for (have, expected) in [
        ("", &["+0"][..]),
        ("db-0-", &[]),
        ("db-0+", &["+1"]),
        ("db-0+ db-1+", &["+2"]),
        ("db-0+ db-1+ db-2+", &[]),
        ("db-0+ db-2+", &["+1"]),
        ("db-0- db-2+", &[]),
        ("db-0x", &[]),
        ("db-0!", &["-db-0"]),
    ] {
        assert_eq!(steps(&set, have, SAME), expected, "{have:?}");
    }
}

#[test]
fn scaling_down_takes_the_highest_first_and_waits_for_it() {
    let set = set(1, |_| {});
    assert_eq!(steps(&set, "db-0+ db-1+ db-2+", SAME), ["-db-2"]);
    assert!(steps(&set, "db-0+ db-1+ db-2x", SAME).is_empty());
    assert_eq!(steps(&set, "db-0+ db-1+", SAME), ["-db-1"]);
    assert!(steps(&set, "db-0- db-1+", SAME).is_empty());
}

#[test]
fn parallel_sets_do_not_wait() {
    let parallel = |replicas| set(replicas, |set| set["spec"]["podManagementPolicy"] = "Parallel".into());
    assert_eq!(steps(&parallel(3), "db-1-", SAME), ["+0", "+2"]);
    assert_eq!(steps(&parallel(1), "db-0- db-1- db-2+ db-3x", SAME), ["-db-2", "-db-1"]);
}

#[test]
fn an_update_goes_from_the_highest_down_one_at_a_time() {
    let set = set(3, |_| {});
    for (have, expected) in [
        ("db-0+o db-1+o db-2+o", &["-db-2"][..]),
        ("db-0+o db-1+o db-2xo", &[]),
        ("db-0+o db-1+o", &["+2"]),
        ("db-0+o db-1+o db-2-", &[]),
        ("db-0+o db-1+o db-2+", &["-db-1"]),
        ("db-0+o db-1+ db-2+", &["-db-0"]),
        ("db-0+ db-1+ db-2+", &[]),
    ] {
        assert_eq!(steps(&set, have, UPDATE), expected, "{have:?}");
    }
}

#[test]
fn pods_below_the_partition_keep_their_template() {
    let set = set(3, |set| set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 2.into());
    assert_eq!(steps(&set, "db-0+o db-1+o db-2+o", UPDATE), ["-db-2"]);
    assert!(steps(&set, "db-0+o db-1+o db-2+", UPDATE).is_empty());
    assert_eq!(steps(&set, "db-0+o db-2+", UPDATE), ["+1o"]);
}

#[test]
fn on_delete_leaves_old_pods_and_makes_new_ones_from_the_newest_template() {
    let set = set(2, |set| set["spec"]["updateStrategy"] = json!({"type": "OnDelete"}));
    assert!(steps(&set, "db-0+o db-1+o", UPDATE).is_empty());
    assert_eq!(steps(&set, "db-0+o", UPDATE), ["+1"]);
}

#[test]
fn ordinals_may_start_elsewhere() {
    let set = set(2, |set| set["spec"]["ordinals"] = json!({"start": 5}));
    assert_eq!(steps(&set, "db-5+", SAME), ["+6"]);
    assert_eq!(steps(&set, "db-0+ db-5+ db-6+", SAME), ["-db-0"]);
}

#[test]
fn only_names_that_the_set_gives_have_an_ordinal() {
    let set = set(1, |_| {});
    for (name, expected) in [
        ("db-7+", Some(7)),
        ("db-07+", None),
        ("db-x+", None),
        ("web-1+", None),
        ("db-extra-1+", None),
        ("db--1+", None),
    ] {
        assert_eq!(ordinal(&set, &pod(name)), expected, "{name}");
    }
}

#[test]
fn a_pod_knows_its_name_its_number_and_its_service() {
    let set = set(1, |set| set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}}]));
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).expect("a template");
    let pod = plan::pod(&set, &template, NEW, 3);
    let spec = pod.spec.clone().expect("a spec");
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-3"), Some("db")));
    let labels = pod.metadata.labels.clone().expect("labels");
    assert_eq!((labels[plan::POD_NAME].as_str(), labels[plan::POD_INDEX].as_str()), ("db-3", "3"));
    let claim = spec.volumes.expect("a volume")[0].persistent_volume_claim.clone().expect("a claim");
    assert_eq!(claim.claim_name, "data-db-3");
}

#[test]
fn the_status_tells_how_far_an_update_is() {
    let set = set(3, |_| {});
    let of = |text: &str| plan::status(&set, &pods(text), UPDATE, Timestamp::UNIX_EPOCH).0;
    let halfway = of("db-0+o db-1+o db-2-");
    assert_eq!((halfway.replicas, halfway.ready_replicas), (3, Some(2)));
    assert_eq!((halfway.current_replicas, halfway.updated_replicas), (Some(2), Some(1)));
    assert_eq!(halfway.current_revision.as_deref(), Some(OLD));
    let done = of("db-0+ db-1+ db-2+");
    assert_eq!((done.current_replicas, done.current_revision.as_deref()), (Some(3), Some(NEW)));
}

#[test]
fn a_template_that_comes_back_gets_the_highest_number_again() {
    let image = |image: &str| set(1, |set| set["spec"]["template"]["spec"]["containers"][0]["image"] = image.into());
    let Newest::Create(first) = newest(&image("a"), &[]) else { panic!("none is there yet") };
    let first = Arc::new(*first);
    assert_eq!(template(&first), image("a").spec.map(|spec| spec.template));
    assert_eq!(newest(&image("a"), std::slice::from_ref(&first)), Newest::Is(first.clone()));
    let Newest::Create(second) = newest(&image("b"), std::slice::from_ref(&first)) else { panic!("another template") };
    assert_eq!(second.revision, 2);
    let both = [first.clone(), Arc::new(*second)];
    assert_eq!(newest(&image("a"), &both), Newest::Raise(first, 3));
}
