//! Pure. Which ReplicaSet runs a Deployment's template, and the revision numbers that `kubectl rollout` reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::Value;

use super::rolling;
use crate::template::controlled_by;

/// The label that tells the pods of one template from those of another.
pub const HASH: &str = "pod-template-hash";
/// The annotation with the revision.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// The annotation with the revisions that a ReplicaSet had before.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The annotation with the Deployment's replicas when a ReplicaSet was last scaled.
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The same with surge.
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Splits a Deployment's ReplicaSets into the one that runs its template and the others, oldest first.
pub fn split(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> (Option<Arc<ReplicaSet>>, Vec<Arc<ReplicaSet>>) {
    let mut sets = sets.to_vec();
    sets.sort_by(|a, b| {
        let age = |set: &ReplicaSet| (set.metadata.creation_timestamp.clone(), set.metadata.name.clone());
        age(a).cmp(&age(b))
    });
    // The oldest of several equal ones, so that every look finds the same.
    let new = sets.iter().position(|set| runs(deployment, set)).map(|at| sets.remove(at));
    (new, sets)
}

/// Whether a ReplicaSet runs the Deployment's template.
pub fn runs(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
    let runs = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    matches!((wanted, runs), (Some(wanted), Some(runs)) if same_template(wanted, runs))
}

/// Whether two templates make the same pods.
pub fn same_template(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    normal(a) == normal(b)
}

/// A template as JSON without its hash label and without empty or null members: what two that mean the same share.
fn normal(template: &PodTemplateSpec) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(HASH);
    }
    let mut value = serde_json::to_value(template).expect("an API object is JSON");
    prune(&mut value);
    value
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(prune);
            members.retain(|_, member| !is_empty(member));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The hash of a template, as it stands in names and labels. `collisions` makes another one of the same template.
pub fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let mut text = normal(template).to_string();
    if let Some(collisions) = collisions {
        text.push_str(&collisions.to_string());
    }
    safe_text(fnv1a(text.as_bytes()))
}

/// FNV-1a, 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A number in letters and digits that make no words.
fn safe_text(number: u32) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let digits = number.to_string();
    digits.bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

/// The ReplicaSet that a Deployment's template needs.
pub fn new_set(deployment: &Deployment, replicas: i32, revision: i64) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template_hash(&spec.template, collisions);
    let mut template = spec.template.clone();
    template.metadata.get_or_insert_default().labels.get_or_insert_default().insert(HASH.to_owned(), hash.clone());
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH.to_owned(), hash.clone());
    let mut annotations = copied(deployment);
    annotations.insert(REVISION.to_owned(), revision.to_string());
    annotations.extend(size_annotations(deployment));
    ReplicaSet {
        metadata: ObjectMeta {
            namespace: deployment.metadata.namespace.clone(),
            name: Some(format!("{}-{hash}", deployment.metadata.name.as_deref().unwrap_or_default())),
            labels: template.metadata.as_ref().and_then(|meta| meta.labels.clone()),
            annotations: Some(annotations),
            owner_references: Some(vec![controlled_by(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(k8s_openapi::api::apps::v1::ReplicaSetSpec {
            min_ready_seconds: spec.min_ready_seconds,
            replicas: Some(replicas),
            selector: LabelSelector { ..selector },
            template: Some(template),
        }),
        status: None,
    }
}

/// The annotations that a ReplicaSet has from its Deployment.
fn copied(deployment: &Deployment) -> BTreeMap<String, String> {
    let mut annotations = deployment.metadata.annotations.clone().unwrap_or_default();
    for own in [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED, MAX] {
        annotations.remove(own);
    }
    annotations
}

/// The annotations by which a later look sees that the Deployment was scaled meanwhile.
pub fn size_annotations(deployment: &Deployment) -> [(String, String); 2] {
    let replicas = rolling::replicas(deployment);
    [
        (DESIRED.to_owned(), replicas.to_string()),
        (MAX.to_owned(), (replicas + rolling::max_surge(deployment)).to_string()),
    ]
}

/// An object's revision; 0 if it has none.
pub fn revision(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The revision that the newest template gets.
pub fn next_revision(old: &[Arc<ReplicaSet>]) -> i64 {
    old.iter().map(|set| revision(&set.metadata)).max().unwrap_or(0) + 1
}

/// The new ReplicaSet's annotations as they should be: an old template that is the new one again gets the newest revision.
pub fn new_set_annotations(deployment: &Deployment, set: &ReplicaSet, wanted: i64) -> BTreeMap<String, String> {
    let mut annotations = set.metadata.annotations.clone().unwrap_or_default();
    let has = revision(&set.metadata);
    if has < wanted {
        annotations.insert(REVISION.to_owned(), wanted.to_string());
        if has > 0 {
            let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
            if !history.is_empty() {
                history.push(',');
            }
            history.push_str(&has.to_string());
        }
    }
    annotations.extend(copied(deployment));
    annotations
}

/// One annotation.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}
