//! Gives pods their nodes. For the lab: it knows readiness, taints, selectors and spreading, and nothing of resources.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use signpost_core::object::ObjectName;

use crate::cache::Index;
use crate::context::{Context, WriteError};
use crate::controller;
use crate::events::Severity;
use crate::pods;
use crate::queue::{Outcome, Queue};
use choose::{Load, choose};

pub mod choose;

#[cfg(test)]
mod tests;

const COMPONENT: &str = "default-scheduler";

/// The controller.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "scheduler";
    const WORKERS: usize = 1;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.scheduler
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        reconcile(context, key).await
    }
}

/// Whether a pod waits for this scheduler.
pub fn is_waiting(pod: &Pod) -> bool {
    let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or("default-scheduler");
    pods::node(pod).is_none() && pods::is_active(pod) && scheduler == "default-scheduler"
}

/// The pods that have no node.
pub fn waiting(context: &Context) -> Vec<Arc<Pod>> {
    let mut pods = context.world.pods.select(&Index::Node("".into()));
    pods.retain(|pod| is_waiting(pod));
    pods
}

/// Gives one pod its node. There must be one worker only, so that each choice knows the ones before.
///
/// # Errors
/// The write that failed.
async fn reconcile(context: &Context, name: &ObjectName) -> Result<Outcome, WriteError> {
    let Some(pod) = context.world.pods.get(name).filter(|pod| is_waiting(pod)) else { return Ok(Outcome::Done) };
    match choose(&pod, &context.world.nodes.all(), &|node| load(context, &pod, node)) {
        Ok(node) => {
            context.bind(&pod, &node).await?;
            let message = format!("Successfully assigned {name} to {node}");
            context.events.tell(COMPONENT, pod.as_ref(), Severity::Normal, "Scheduled", message);
        }
        Err(reason) => refuse(context, &pod, reason).await?,
    }
    Ok(Outcome::Done)
}

fn load(context: &Context, pod: &Pod, node: &str) -> Load {
    let owner = pods::controller(pod.metadata.owner_references.as_ref()).map(|owner| &owner.uid);
    let mut on_node = context.world.pods.select(&Index::Node(node.into()));
    on_node.retain(|pod| pods::is_active(pod));
    let same_owner = on_node.iter().filter(|other| {
        owner.is_some() && pods::controller(other.metadata.owner_references.as_ref()).map(|owner| &owner.uid) == owner
    });
    Load { same_owner: same_owner.count(), all: on_node.len() }
}

/// Says on the pod why it waits; the next change of a node leads here again.
async fn refuse(context: &Context, pod: &Pod, reason: String) -> Result<(), WriteError> {
    let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let said = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
    if said.is_some_and(|said| said.status == "False" && said.message.as_deref() == Some(&reason)) {
        return Ok(());
    }
    conditions.retain(|condition| condition.type_ != "PodScheduled");
    conditions.push(PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("Unschedulable".to_owned()),
        message: Some(reason.clone()),
        last_transition_time: Some(Time(Timestamp::now())),
        ..PodCondition::default()
    });
    let patch = json!({
        "metadata": {"resourceVersion": pod.metadata.resource_version},
        "status": {"conditions": conditions},
    });
    context.patch_status(pod, &patch).await?;
    tracing::debug!(pod = %pod.name_any(), reason, "no node takes this pod");
    context.events.tell(COMPONENT, pod, Severity::Warning, "FailedScheduling", reason);
    Ok(())
}
