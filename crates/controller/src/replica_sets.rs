//! ReplicaSets: as many pods as they say.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use signpost_core::object::ObjectName;

use crate::cache::uid_of;
use crate::claim::claimed;
use crate::context::{Context, WriteError};
use crate::controller;
use crate::events::Severity;
use crate::queue::{Outcome, Queue};
use crate::world::owned_by;
use crate::{lookup, pods, template};
use plan::Failure;

pub mod plan;

#[cfg(test)]
mod tests;

const COMPONENT: &str = "replicaset-controller";

/// The controller.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "replica sets";
    const WORKERS: usize = 4;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.replica_sets
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        reconcile(context, key).await
    }
}

/// Makes one ReplicaSet's pods as many as they should be, then its status what is.
///
/// # Errors
/// The first write that failed.
async fn reconcile(context: &Context, name: &ObjectName) -> Result<Outcome, WriteError> {
    let Some(set) = context.world.replica_sets.get(name) else { return Ok(Outcome::Done) };
    let owned = owned_pods(context, &set).await?;
    let scaling = plan::scaling(&set, &owned, &related_pods(context, &set, &owned), Timestamp::now());
    let made = create(context, &set, scaling.create).await;
    let deleted = delete(context, &set, &scaling.delete).await;
    let result = made.and(deleted);
    let failure = match &result {
        Err(error) if error.is_conflict() || error.is_namespace_ending() => None,
        Err(error) => {
            let reason = if scaling.create > 0 { "FailedCreate" } else { "FailedDelete" };
            Some(Failure { reason, message: error.reason() })
        }
        Ok(()) => None,
    };
    let again = write_status(context, name, failure.as_ref()).await?;
    match result {
        Err(error) if error.is_namespace_ending() => Ok(Outcome::Done),
        Err(error) => Err(error),
        Ok(()) => Ok(again.map_or(Outcome::Done, Outcome::After)),
    }
}

async fn owned_pods(context: &Context, set: &ReplicaSet) -> Result<Vec<Arc<Pod>>, WriteError> {
    let Some(spec) = set.spec.as_ref() else { return Ok(Vec::new()) };
    claimed(context, set, &spec.selector, lookup::candidates(&context.world, set, &spec.selector)).await
}

/// The pods of all ReplicaSets of the same Deployment.
fn related_pods(context: &Context, set: &ReplicaSet, owned: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let Some(owner) = pods::controller(set.metadata.owner_references.as_ref()) else { return owned.to_vec() };
    let siblings = context.world.replica_sets.select(&owned_by(&owner.uid));
    siblings.iter().flat_map(|sibling| context.world.pods.select(&owned_by(uid_of(sibling.as_ref())))).collect()
}

/// Makes pods, a few first and then twice as many each time: a template that the API refuses is not sent 500 times.
async fn create(context: &Context, set: &ReplicaSet, count: usize) -> Result<(), WriteError> {
    let Some(spec) = set.spec.as_ref() else { return Ok(()) };
    let mut pod = template::pod(&spec.template.clone().unwrap_or_default(), set);
    pod.metadata.generate_name = Some(template::name_prefix(&set.name_any()));
    let (mut left, mut batch) = (count, 1);
    while left > 0 {
        let now = batch.min(left);
        let made = join_all((0..now).map(|_| context.create(&pod))).await;
        for made in made {
            match made {
                Ok(made) => {
                    let message = format!("Created pod: {}", made.name_any());
                    context.events.tell(COMPONENT, set, Severity::Normal, "SuccessfulCreate", message);
                }
                Err(error) => {
                    if !error.is_namespace_ending() {
                        let message = format!("Error creating: {}", error.reason());
                        context.events.tell(COMPONENT, set, Severity::Warning, "FailedCreate", message);
                    }
                    return Err(error);
                }
            }
        }
        left -= now;
        batch *= 2;
    }
    Ok(())
}

async fn delete(context: &Context, set: &ReplicaSet, surplus: &[Arc<Pod>]) -> Result<(), WriteError> {
    let deleted = join_all(surplus.iter().map(|pod| context.delete(pod.as_ref()))).await;
    let mut first = Ok(());
    for (pod, deleted) in surplus.iter().zip(deleted) {
        let name = pod.name_any();
        match deleted {
            Ok(()) => {
                let message = format!("Deleted pod: {name}");
                context.events.tell(COMPONENT, set, Severity::Normal, "SuccessfulDelete", message);
            }
            Err(error) => {
                let message = format!("Error deleting {name}: {}", error.reason());
                context.events.tell(COMPONENT, set, Severity::Warning, "FailedDelete", message);
                first = first.and(Err(error));
            }
        }
    }
    first
}

/// Writes the status from what the caches hold by now; says when to look again.
async fn write_status(
    context: &Context,
    name: &ObjectName,
    failure: Option<&Failure>,
) -> Result<Option<Duration>, WriteError> {
    let Some(set) = context.world.replica_sets.get(name) else { return Ok(None) };
    let owned = lookup::controlled(&context.world, set.as_ref());
    let (status, again) = plan::status(&set, &owned, failure, Timestamp::now());
    if !plan::says_the_same(&status, &set.status.clone().unwrap_or_default()) {
        let mut wanted = set.as_ref().clone();
        wanted.status = Some(status);
        context.replace_status(&wanted).await?;
    }
    Ok(again.map(until))
}

/// A wait for the queue, never shorter than what a clock that ticks in seconds can tell.
pub fn until(wait: SignedDuration) -> Duration {
    wait.unsigned_abs().max(Duration::from_millis(50))
}
