//! Pure. How many pods a ReplicaSet lacks or has too many, which of them go, and its status.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pods;
use crate::selector;

/// Pods made or deleted in one go, at most.
pub const BURST: usize = 500;
/// A pod with a lower number here is deleted before others.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What is to be done about a ReplicaSet's pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scaling {
    /// So many pods are missing.
    pub create: usize,
    /// These are too many.
    pub delete: Vec<Arc<Pod>>,
}

/// Compares the number of pods with the number that should be. `related` are the pods of all ReplicaSets of the same
/// Deployment: where many of them share a node, one of those goes first.
pub fn scaling(set: &ReplicaSet, owned: &[Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) -> Scaling {
    let active: Vec<&Arc<Pod>> = owned.iter().filter(|pod| pods::is_active(pod)).collect();
    let wanted = usize::try_from(replicas(set)).unwrap_or(0);
    if set.metadata.deletion_timestamp.is_some() || active.len() == wanted {
        return Scaling::default();
    }
    if active.len() < wanted {
        return Scaling { create: (wanted - active.len()).min(BURST), delete: Vec::new() };
    }
    let surplus = (active.len() - wanted).min(BURST);
    let mut per_node: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in related.iter().filter(|pod| pods::is_active(pod)) {
        *per_node.entry(pods::node(pod).unwrap_or_default()).or_default() += 1;
    }
    let mut ranked = active;
    ranked.sort_by(|a, b| deletion_order(a, b, &per_node, now));
    Scaling { create: 0, delete: ranked.into_iter().take(surplus).cloned().collect() }
}

/// `spec.replicas`; 1 if it is not set.
pub fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().map_or(0, |spec| spec.replicas.unwrap_or(1)).max(0)
}

/// `spec.minReadySeconds`.
pub fn min_ready(set: &ReplicaSet) -> SignedDuration {
    SignedDuration::from_secs(set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0).into())
}

/// Which of two pods is deleted first: without a node, pending, not ready, cheaper, on a node with more of its kind,
/// ready for a shorter time, restarted more often, younger.
fn deletion_order(a: &Pod, b: &Pod, per_node: &BTreeMap<&str, usize>, now: Timestamp) -> Ordering {
    let crowd = |pod| per_node.get(pods::node(pod).unwrap_or_default()).copied().unwrap_or(0);
    pods::node(a)
        .is_some()
        .cmp(&pods::node(b).is_some())
        .then_with(|| phase_rank(a).cmp(&phase_rank(b)))
        .then_with(|| pods::is_ready(a).cmp(&pods::is_ready(b)))
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| crowd(b).cmp(&crowd(a)))
        .then_with(|| magnitude(ready_for(a, now)).cmp(&magnitude(ready_for(b, now))))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| b.metadata.creation_timestamp.cmp(&a.metadata.creation_timestamp))
        .then_with(|| b.metadata.name.cmp(&a.metadata.name))
}

fn phase_rank(pod: &Pod) -> u8 {
    match pods::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(DELETION_COST)).and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn ready_for(pod: &Pod, now: Timestamp) -> i64 {
    let since = pods::ready_condition(pod)
        .filter(|condition| condition.status == "True")
        .and_then(|condition| condition.last_transition_time.as_ref());
    since.map_or(0, |since| now.duration_since(since.0).as_secs())
}

/// Times of the same order of magnitude count as equal, so that old pods are not always the ones that stay.
fn magnitude(seconds: i64) -> u32 {
    u64::try_from(seconds).unwrap_or(0).checked_ilog2().map_or(0, |log| log + 1)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    statuses.iter().map(|status| status.restart_count).max().unwrap_or(0)
}

/// What failed in the last pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    /// What the API said.
    pub message: String,
}

/// The status as it should be, and when it may change by itself (pods that get available by waiting).
pub fn status(
    set: &ReplicaSet,
    owned: &[Arc<Pod>],
    failure: Option<&Failure>,
    now: Timestamp,
) -> (ReplicaSetStatus, Option<SignedDuration>) {
    let before = set.status.clone().unwrap_or_default();
    let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    let template_labels = template.and_then(|template| template.metadata.as_ref()?.labels.clone()).unwrap_or_default();
    let active: Vec<&Arc<Pod>> = owned.iter().filter(|pod| pods::is_active(pod)).collect();
    let count = |holds: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| holds(pod)).count()).unwrap_or(i32::MAX)
    };
    let min_ready = min_ready(set);
    let status = ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: Some(count(&|pod| selector::has_all(pod.metadata.labels.as_ref(), &template_labels))),
        ready_replicas: Some(count(&pods::is_ready)),
        available_replicas: Some(count(&|pod| pods::is_available(pod, min_ready, now))),
        observed_generation: set.metadata.generation,
        conditions: conditions(&before, failure, now),
        terminating_replicas: before.terminating_replicas,
    };
    let waits = active.iter().filter_map(|pod| pods::until_available(pod, min_ready, now));
    (status, waits.filter(|wait| *wait > SignedDuration::ZERO).min())
}

fn conditions(
    before: &ReplicaSetStatus,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let old =
        conditions.iter().position(|condition| condition.type_ == "ReplicaFailure").map(|at| conditions.remove(at));
    if let Some(failure) = failure {
        let since = old.and_then(|old| old.last_transition_time);
        conditions.push(ReplicaSetCondition {
            type_: "ReplicaFailure".to_owned(),
            status: "True".to_owned(),
            reason: Some(failure.reason.to_owned()),
            message: Some(failure.message.clone()),
            last_transition_time: since.or(Some(Time(now))),
        });
    }
    (!conditions.is_empty()).then_some(conditions)
}

/// Whether two statuses say the same: a number that is not there is zero.
pub fn says_the_same(a: &ReplicaSetStatus, b: &ReplicaSetStatus) -> bool {
    let numbers = |status: &ReplicaSetStatus| {
        let zero = |number: Option<i32>| number.unwrap_or(0);
        let counts =
            (zero(status.fully_labeled_replicas), zero(status.ready_replicas), zero(status.available_replicas));
        (status.replicas, counts, status.observed_generation)
    };
    let conditions = |status: &ReplicaSetStatus| status.conditions.clone().unwrap_or_default();
    numbers(a) == numbers(b) && conditions(a) == conditions(b)
}
