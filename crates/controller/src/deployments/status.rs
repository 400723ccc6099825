//! Pure. A Deployment's status: what `kubectl get deploy` prints and `kubectl rollout status` waits for.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{revision, rolling};

/// What happened in this look that the status tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// A ReplicaSet of this name was created.
    Created(String),
    /// No ReplicaSet could be created, for this reason.
    NotCreated(String),
}

const DONE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";

/// The status as it should be, and when it may change by itself (the progress deadline).
pub fn status(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    happened: Option<&Happened>,
    now: Timestamp,
) -> (DeploymentStatus, Option<SignedDuration>) {
    let (new, old) = revision::split(deployment, sets);
    let before = deployment.status.clone().unwrap_or_default();
    let all: Vec<&Arc<ReplicaSet>> = old.iter().chain(&new).collect();
    let sum = |number: &dyn Fn(&ReplicaSet) -> i32| all.iter().map(|set| number(set)).sum::<i32>();
    let available = sum(&|set| set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0));
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: Some(sum(&|set| set.status.as_ref().map_or(0, |status| status.replicas))),
        updated_replicas: Some(new.as_ref().and_then(|set| set.status.as_ref()).map_or(0, |status| status.replicas)),
        ready_replicas: Some(sum(&|set| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0))),
        available_replicas: Some(available),
        unavailable_replicas: Some((rolling::asked(all.iter().copied()) - available).max(0)),
        collision_count: before.collision_count,
        conditions: None,
        terminating_replicas: before.terminating_replicas,
    };
    let mut conditions = Conditions { list: before.conditions.clone().unwrap_or_default(), now };
    conditions.availability(deployment, available);
    conditions.failure(&all);
    let again = conditions.progress(deployment, &before, &status, new.as_deref(), happened);
    status.conditions = Some(conditions.list);
    (status, again)
}

/// Whether two statuses say the same: a number that is not there is zero.
pub fn says_the_same(a: &DeploymentStatus, b: &DeploymentStatus) -> bool {
    let numbers = |status: &DeploymentStatus| {
        [
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas,
            status.unavailable_replicas,
        ]
        .map(|number| number.unwrap_or(0))
    };
    let conditions = |status: &DeploymentStatus| status.conditions.clone().unwrap_or_default();
    numbers(a) == numbers(b)
        && a.observed_generation == b.observed_generation
        && a.collision_count == b.collision_count
        && conditions(a) == conditions(b)
}

struct Conditions {
    list: Vec<DeploymentCondition>,
    now: Timestamp,
}

impl Conditions {
    fn get(&self, kind: &str) -> Option<&DeploymentCondition> {
        self.list.iter().find(|condition| condition.type_ == kind)
    }

    /// Sets a condition. The times change only when it says something new.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let before = self.get(kind).cloned();
        if let Some(before) = &before
            && before.status == status
            && before.reason.as_deref() == Some(reason)
            && before.message.as_deref() == Some(&message)
        {
            return;
        }
        self.put(kind, status, reason, message, before);
    }

    /// Sets a condition and its update time, even if it says nothing new.
    fn put(&mut self, kind: &str, status: &str, reason: &str, message: String, before: Option<DeploymentCondition>) {
        let same_status = before.filter(|before| before.status == status);
        let since = same_status.and_then(|before| before.last_transition_time).unwrap_or(Time(self.now));
        self.list.retain(|condition| condition.type_ != kind);
        self.list.push(DeploymentCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since),
            last_update_time: Some(Time(self.now)),
        });
        self.list.sort_by(|a, b| a.type_.cmp(&b.type_));
    }

    fn availability(&mut self, deployment: &Deployment, available: i32) {
        if available >= rolling::replicas(deployment) - rolling::max_unavailable(deployment) {
            let message = "Deployment has minimum availability.".to_owned();
            self.set("Available", "True", "MinimumReplicasAvailable", message);
        } else {
            let message = "Deployment does not have minimum availability.".to_owned();
            self.set("Available", "False", "MinimumReplicasUnavailable", message);
        }
    }

    fn failure(&mut self, sets: &[&Arc<ReplicaSet>]) {
        let failing = sets.iter().rev().find_map(|set| {
            let conditions = set.status.as_ref()?.conditions.as_ref()?;
            conditions.iter().find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
        });
        match failing {
            Some(failing) => self.set(
                "ReplicaFailure",
                "True",
                failing.reason.as_deref().unwrap_or_default(),
                failing.message.clone().unwrap_or_default(),
            ),
            None => self.list.retain(|condition| condition.type_ != "ReplicaFailure"),
        }
    }

    /// The condition `Progressing`; gives the time until its deadline.
    fn progress(
        &mut self,
        deployment: &Deployment,
        before: &DeploymentStatus,
        status: &DeploymentStatus,
        new: Option<&ReplicaSet>,
        happened: Option<&Happened>,
    ) -> Option<SignedDuration> {
        const KIND: &str = "Progressing";
        let spec = deployment.spec.as_ref();
        let deadline = spec.and_then(|spec| spec.progress_deadline_seconds).unwrap_or(600);
        if deadline == i32::MAX {
            self.list.retain(|condition| condition.type_ != KIND);
            return None;
        }
        let current = self.get(KIND).cloned();
        let reason = current.as_ref().and_then(|condition| condition.reason.as_deref()).unwrap_or_default().to_owned();
        if spec.and_then(|spec| spec.paused).unwrap_or(false) {
            if reason != TIMED_OUT {
                self.set(KIND, "Unknown", "DeploymentPaused", "Deployment is paused".to_owned());
            }
            return None;
        }
        let subject = new.and_then(|new| new.metadata.name.as_deref()).map_or_else(
            || format!("Deployment \"{}\"", deployment.metadata.name.as_deref().unwrap_or_default()),
            |name| format!("ReplicaSet \"{name}\""),
        );
        match happened {
            Some(Happened::Created(name)) => {
                let message = format!("Created new replica set \"{name}\"");
                self.put(KIND, "True", "NewReplicaSetCreated", message, current);
                return Some(SignedDuration::from_secs(deadline.into()));
            }
            Some(Happened::NotCreated(why)) => {
                self.set(KIND, "False", "ReplicaSetCreateError", why.clone());
                return None;
            }
            None => {}
        }
        if reason == "DeploymentPaused" {
            self.set(KIND, "Unknown", "DeploymentResumed", "Deployment is resumed".to_owned());
        }
        if status.replicas == status.updated_replicas && reason == DONE {
            return None;
        }
        let mut seen = deployment.clone();
        seen.status = Some(status.clone());
        if super::plan::is_complete(&seen) && new.is_some() {
            self.set(KIND, "True", DONE, format!("{subject} has successfully progressed."));
            return None;
        }
        if current.is_none() || has_progressed(before, status) {
            self.put(KIND, "True", "ReplicaSetUpdated", format!("{subject} is progressing."), current);
            return Some(SignedDuration::from_secs(deadline.into()));
        }
        if reason == DONE || reason == TIMED_OUT {
            return None;
        }
        let since =
            self.get(KIND).and_then(|condition| condition.last_update_time.clone()).map_or(self.now, |time| time.0);
        let left = SignedDuration::from_secs(deadline.into()) - self.now.duration_since(since);
        if left <= SignedDuration::ZERO {
            self.set(KIND, "False", TIMED_OUT, format!("{subject} has timed out progressing."));
            return None;
        }
        Some(left)
    }
}

/// More new pods, fewer old ones, more ready, or more available than before.
fn has_progressed(before: &DeploymentStatus, status: &DeploymentStatus) -> bool {
    let zero = |number: Option<i32>| number.unwrap_or(0);
    let old = |status: &DeploymentStatus| zero(status.replicas) - zero(status.updated_replicas);
    zero(status.updated_replicas) > zero(before.updated_replicas)
        || old(status) < old(before)
        || zero(status.ready_replicas) > zero(before.ready_replicas)
        || zero(status.available_replicas) > zero(before.available_replicas)
}
