//! Deployments: ReplicaSets for their templates, and the way from one to the next.
//!
//! ```text
//! Deployment, its ReplicaSets ──▶ plan (steps allowed now) ──▶ writes ──▶ status
//! ```

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;
use serde_json::json;
use signpost_core::object::ObjectName;

use crate::cache::uid_of;
use crate::claim::claimed;
use crate::context::{Context, WriteError};
use crate::controller;
use crate::events::Severity;
use crate::queue::{Outcome, Queue};
use crate::replica_sets::until;
use crate::world::owned_by;
use crate::{lookup, pods};
use plan::{Step, Update};
use status::Happened;

pub mod plan;
pub mod revision;
pub mod rolling;
pub mod status;

#[cfg(test)]
mod tests;

const COMPONENT: &str = "deployment-controller";

/// The controller.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "deployments";
    const WORKERS: usize = 2;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.deployments
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        reconcile(context, key).await
    }
}

/// Takes a Deployment's next steps, then writes its status.
///
/// # Errors
/// The first write that failed.
async fn reconcile(context: &Context, name: &ObjectName) -> Result<Outcome, WriteError> {
    let Some(deployment) = context.world.deployments.get(name) else { return Ok(Outcome::Done) };
    let Some(spec) = deployment.spec.as_ref() else { return Ok(Outcome::Done) };
    let candidates = lookup::candidates(&context.world, deployment.as_ref(), &spec.selector);
    let sets = claimed(context, deployment.as_ref(), &spec.selector, candidates).await?;
    let steps = plan::plan(&deployment, &sets, old_pods_run(context, &deployment, &sets));
    let mut happened = None;
    let mut result = Ok(());
    for step in steps {
        result = take(context, &deployment, step, &mut happened).await;
        if result.is_err() {
            break;
        }
    }
    if result.as_ref().is_err_and(WriteError::is_namespace_ending) {
        return Ok(Outcome::Done);
    }
    let again = write_status(context, name, happened.as_ref()).await;
    result?;
    Ok(again?.map_or(Outcome::Done, |wait| Outcome::After(until(wait))))
}

/// Whether pods of former templates still run, those that are on their way out included.
fn old_pods_run(context: &Context, deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> bool {
    let (_, old) = revision::split(deployment, sets);
    old.iter().any(|set| {
        let pods = context.world.pods.select(&owned_by(uid_of(set.as_ref())));
        pods.iter().any(|pod| !pods::is_finished(pod))
    })
}

async fn take(
    context: &Context,
    deployment: &Deployment,
    step: Step,
    happened: &mut Option<Happened>,
) -> Result<(), WriteError> {
    match step {
        Step::Create(set) => create(context, deployment, &set, happened).await,
        Step::Update(update) => resize(context, deployment, &update).await,
        Step::Remove(set) => context.delete(set.as_ref()).await,
        Step::Revise(revision) => {
            let patch = json!({"metadata": {
                "resourceVersion": deployment.metadata.resource_version,
                "annotations": {revision::REVISION: revision},
            }});
            context.patch(deployment, &patch).await.map(|_| ())
        }
    }
}

async fn create(
    context: &Context,
    deployment: &Deployment,
    set: &ReplicaSet,
    happened: &mut Option<Happened>,
) -> Result<(), WriteError> {
    match context.create(set).await {
        Ok(made) => {
            let size = crate::replica_sets::plan::replicas(&made);
            if size > 0 {
                let message = format!("Scaled up replica set {} from 0 to {size}", made.name_any());
                context.events.tell(COMPONENT, deployment, Severity::Normal, "ScalingReplicaSet", message);
            }
            *happened = Some(Happened::Created(made.name_any()));
            Ok(())
        }
        Err(error) if error.already_exists() => {
            let live: Option<ReplicaSet> = context.live(set).await?;
            let is_ours = live.is_some_and(|live| {
                let owner = pods::controller(live.metadata.owner_references.as_ref());
                owner.is_some_and(|owner| owner.uid == uid_of(deployment)) && revision::runs(deployment, &live)
            });
            if !is_ours {
                // Another template has the same hash, or somebody else has the name: the next look tries another name.
                let count = deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
                let patch = json!({
                    "metadata": {"resourceVersion": deployment.metadata.resource_version},
                    "status": {"collisionCount": count + 1},
                });
                context.patch_status(deployment, &patch).await?;
            }
            Err(error)
        }
        Err(error) => {
            let message = format!("Failed to create new replica set \"{}\": {}", set.name_any(), error.reason());
            if !error.is_namespace_ending() {
                let severity = Severity::Warning;
                context.events.tell(COMPONENT, deployment, severity, "ReplicaSetCreateError", message.clone());
            }
            *happened = Some(Happened::NotCreated(message));
            Err(error)
        }
    }
}

async fn resize(context: &Context, deployment: &Deployment, update: &Update) -> Result<(), WriteError> {
    let mut patch = json!({
        "metadata": {
            "resourceVersion": update.set.metadata.resource_version,
            "annotations": update.annotations,
        },
        "spec": {"minReadySeconds": update.min_ready_seconds},
    });
    // A merge patch removes what it names as null.
    for key in update.set.metadata.annotations.iter().flatten().map(|(key, _)| key) {
        if !update.annotations.contains_key(key) {
            patch["metadata"]["annotations"][key] = serde_json::Value::Null;
        }
    }
    if let Some(replicas) = update.replicas {
        patch["spec"]["replicas"] = replicas.into();
    }
    context.patch(update.set.as_ref(), &patch).await?;
    if let Some(to) = update.replicas {
        let from = crate::replica_sets::plan::replicas(&update.set);
        let way = if to > from { "up" } else { "down" };
        let message = format!("Scaled {way} replica set {} from {from} to {to}", update.set.name_any());
        context.events.tell(COMPONENT, deployment, Severity::Normal, "ScalingReplicaSet", message);
    }
    Ok(())
}

/// Writes the status from what the caches hold by now; says when to look again.
async fn write_status(
    context: &Context,
    name: &ObjectName,
    happened: Option<&Happened>,
) -> Result<Option<jiff::SignedDuration>, WriteError> {
    let Some(deployment) = context.world.deployments.get(name) else { return Ok(None) };
    let sets = lookup::controlled(&context.world, deployment.as_ref());
    let (status, again) = status::status(&deployment, &sets, happened, Timestamp::now());
    if !status::says_the_same(&status, &deployment.status.clone().unwrap_or_default()) {
        let mut wanted = deployment.as_ref().clone();
        wanted.status = Some(status);
        context.replace_status(&wanted).await?;
    }
    Ok(again)
}
