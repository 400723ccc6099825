//! Pure. Which pod of a StatefulSet is made or deleted next, and its status.
//!
//! ```text
//! first what is missing, in rising order ──▶ then what is too many, in falling order ──▶ then one pod of an old template
//! ```
//! With `OrderedReady` every step waits until the pods before it are available; with `Parallel` only updates wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};

use super::revision::REVISION_LABEL;
use crate::{pods, template};

/// The label with a pod's own name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// The label with its ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The pod of this ordinal, from the newest template or from the one that most pods still have.
    Create {
        /// Its number.
        ordinal: i32,
        /// From the newest template.
        newest: bool,
    },
    /// A pod goes: it is too many, ended, or of an old template.
    Delete(Arc<Pod>),
}

/// Names of the two templates' revisions; the same when no update is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revisions<'a> {
    /// Of the template that pods outside of the update keep.
    pub current: &'a str,
    /// Of the newest template.
    pub update: &'a str,
}

/// The number in a pod's name, if it is one that this set gives.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let name = pod.metadata.name.as_deref()?.strip_prefix(set.metadata.name.as_deref()?)?;
    let number = name.strip_prefix('-')?;
    (number == "0" || !number.starts_with('0')).then(|| number.parse().ok()).flatten().filter(|number| *number >= 0)
}

/// `spec.replicas`; 1 if it is not set.
pub fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().map_or(0, |spec| spec.replicas.unwrap_or(1)).max(0)
}

fn first_ordinal(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.ordinals.as_ref()).and_then(|ordinals| ordinals.start).unwrap_or(0)
}

fn is_parallel(set: &StatefulSet) -> bool {
    set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref()) == Some("Parallel")
}

fn updates_by_itself(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
}

/// Pods with a lower ordinal keep their template.
fn partition(set: &StatefulSet) -> i32 {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
}

fn min_ready(set: &StatefulSet) -> SignedDuration {
    SignedDuration::from_secs(set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0).into())
}

fn revision(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(REVISION_LABEL).map(String::as_str)
}

fn is_healthy(set: &StatefulSet, pod: &Pod, now: Timestamp) -> bool {
    pods::phase(pod) == "Running" && !pods::is_terminating(pod) && pods::is_available(pod, min_ready(set), now)
}

/// The steps that may be taken now. `owned`: the pods of the set.
pub fn plan(set: &StatefulSet, owned: &[Arc<Pod>], revisions: Revisions<'_>, now: Timestamp) -> Vec<Step> {
    if set.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let by_ordinal: BTreeMap<i32, &Arc<Pod>> = owned.iter().filter_map(|pod| Some((ordinal(set, pod)?, pod))).collect();
    let parallel = is_parallel(set);
    let wanted = first_ordinal(set)..first_ordinal(set).saturating_add(replicas(set));
    let mut steps = Vec::new();
    for ordinal in wanted.clone() {
        match by_ordinal.get(&ordinal) {
            None => steps.push(Step::Create { ordinal, newest: is_newest(set, ordinal) }),
            Some(pod) if pods::is_finished(pod) && !pods::is_terminating(pod) => {
                steps.push(Step::Delete(Arc::clone(pod)));
            }
            Some(pod) if !parallel && !is_healthy(set, pod, now) => return steps,
            Some(_) => {}
        }
        if !parallel && !steps.is_empty() {
            return steps;
        }
    }
    let condemned: Vec<&Arc<Pod>> =
        by_ordinal.iter().rev().filter(|(ordinal, _)| !wanted.contains(ordinal)).map(|(_, pod)| *pod).collect();
    if parallel {
        let going = condemned.into_iter().filter(|pod| !pods::is_terminating(pod));
        steps.extend(going.cloned().map(Step::Delete));
    } else if let Some(last) = condemned.first() {
        // One at a time, the highest first; the next when that one is gone.
        return if pods::is_terminating(last) { steps } else { vec![Step::Delete(Arc::clone(last))] };
    }
    if steps.is_empty() && updates_by_itself(set) {
        steps.extend(outdated(set, &by_ordinal, wanted, revisions, now).map(Step::Delete));
    }
    steps
}

/// Whether a pod that is missing is made from the newest template.
fn is_newest(set: &StatefulSet, ordinal: i32) -> bool {
    !updates_by_itself(set) || ordinal >= first_ordinal(set).max(partition(set))
}

/// The highest pod of an old template, if all above it are healthy.
fn outdated(
    set: &StatefulSet,
    by_ordinal: &BTreeMap<i32, &Arc<Pod>>,
    wanted: std::ops::Range<i32>,
    revisions: Revisions<'_>,
    now: Timestamp,
) -> Option<Arc<Pod>> {
    for ordinal in wanted.rev().take_while(|ordinal| *ordinal >= partition(set)) {
        let pod = by_ordinal.get(&ordinal)?;
        if pods::is_terminating(pod) {
            return None;
        }
        if revision(pod) != Some(revisions.update) {
            return Some(Arc::clone(pod));
        }
        if !is_healthy(set, pod, now) {
            return None;
        }
    }
    None
}

/// The pod of an ordinal.
pub fn pod(set: &StatefulSet, from: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let mut pod = template::pod(from, set);
    let set_name = set.metadata.name.clone().unwrap_or_default();
    let name = format!("{set_name}-{ordinal}");
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(REVISION_LABEL.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
    for claim in set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten()) {
        let volume = claim.metadata.name.clone().unwrap_or_default();
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|other| other.name != volume);
        let claim_name = format!("{volume}-{name}");
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
            ..Volume::default()
        });
    }
    pod.metadata.name = Some(name);
    pod
}

/// The status as it should be, and when it may change by itself (pods that get available by waiting).
pub fn status(
    set: &StatefulSet,
    owned: &[Arc<Pod>],
    revisions: Revisions<'_>,
    now: Timestamp,
) -> (StatefulSetStatus, Option<SignedDuration>) {
    let count =
        |holds: &dyn Fn(&Pod) -> bool| i32::try_from(owned.iter().filter(|pod| holds(pod)).count()).unwrap_or(i32::MAX);
    let runs = |pod: &Pod| pods::phase(pod) == "Running" && pods::is_ready(pod);
    let of = |name: &str| count(&|pod| !pods::is_terminating(pod) && revision(pod) == Some(name));
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: Some(count(&runs)),
        available_replicas: Some(count(&|pod| runs(pod) && pods::is_available(pod, min_ready(set), now))),
        current_replicas: Some(of(revisions.current)),
        updated_replicas: Some(of(revisions.update)),
        current_revision: Some(revisions.current.to_owned()),
        update_revision: Some(revisions.update.to_owned()),
        collision_count: set.status.as_ref().and_then(|status| status.collision_count).or(Some(0)),
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
    };
    let all = Some(status.replicas);
    if updates_by_itself(set) && status.updated_replicas == all && status.ready_replicas == all {
        // The update is over: its template is the one that all have.
        status.current_revision.clone_from(&status.update_revision);
        status.current_replicas = status.updated_replicas;
    }
    let waits = owned.iter().filter_map(|pod| pods::until_available(pod, min_ready(set), now));
    (status, waits.filter(|wait| *wait > SignedDuration::ZERO).min())
}

/// Whether two statuses say the same: a number that is not there is zero.
pub fn says_the_same(a: &StatefulSetStatus, b: &StatefulSetStatus) -> bool {
    let numbers = |status: &StatefulSetStatus| {
        [
            status.ready_replicas,
            status.available_replicas,
            status.current_replicas,
            status.updated_replicas,
            status.collision_count,
        ]
        .map(|number| number.unwrap_or(0))
    };
    a.replicas == b.replicas
        && numbers(a) == numbers(b)
        && a.observed_generation == b.observed_generation
        && a.current_revision == b.current_revision
        && a.update_revision == b.update_revision
}
