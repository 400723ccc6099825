//! StatefulSets: pods with ordinal names, made and deleted in order.
//!
//! ```text
//! StatefulSet ──▶ revisions of its template ──▶ plan (next pods) ──▶ writes ──▶ status
//! ```

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::ResourceExt;
use serde_json::json;
use signpost_core::object::ObjectName;

use crate::cache::uid_of;
use crate::claim::claimed;
use crate::context::{Context, WriteError};
use crate::events::Severity;
use crate::queue::{Outcome, Queue};
use crate::replica_sets::until;
use crate::world::owned_by;
use crate::{controller, lookup, pods};
use plan::{Revisions, Step};
use revision::Newest;

pub mod plan;
pub mod revision;

#[cfg(test)]
mod tests;

const COMPONENT: &str = "statefulset-controller";

/// The controller.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "stateful sets";
    const WORKERS: usize = 2;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.stateful_sets
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        match reconcile(context, key).await {
            Err(error) if error.is_namespace_ending() => Ok(Outcome::Done),
            other => other,
        }
    }
}

/// Takes a StatefulSet's next steps, then writes its status.
async fn reconcile(context: &Context, name: &ObjectName) -> Result<Outcome, WriteError> {
    let Some(set) = context.world.stateful_sets.get(name) else { return Ok(Outcome::Done) };
    let Some(spec) = set.spec.as_ref() else { return Ok(Outcome::Done) };
    let mut candidates = lookup::candidates(&context.world, set.as_ref(), &spec.selector);
    candidates.retain(|pod| plan::ordinal(&set, pod).is_some());
    let owned = claimed(context, set.as_ref(), &spec.selector, candidates).await?;
    let templates = templates(context, &set).await?;
    let steps = plan::plan(&set, &owned, templates.revisions(), Timestamp::now());
    let mut result = Ok(());
    for step in steps {
        result = take(context, &set, &templates, step).await;
        if result.is_err() {
            break;
        }
    }
    let again = write_status(context, name, &templates).await;
    result?;
    let again = again?;
    clean_up(context, &set, &owned, &templates).await?;
    Ok(again.map_or(Outcome::Done, |wait| Outcome::After(until(wait))))
}

/// The two templates that pods are made from.
struct Templates {
    current: (String, PodTemplateSpec),
    newest: (String, PodTemplateSpec),
}

impl Templates {
    fn revisions(&self) -> Revisions<'_> {
        Revisions { current: &self.current.0, update: &self.newest.0 }
    }
}

async fn templates(context: &Context, set: &StatefulSet) -> Result<Templates, WriteError> {
    let revisions = context.world.revisions.select(&owned_by(uid_of(set)));
    let newest = match revision::newest(set, &revisions) {
        Newest::Is(revision) => revision,
        Newest::Raise(revision, number) => {
            let patch = json!({
                "metadata": {"resourceVersion": revision.metadata.resource_version},
                "revision": number,
            });
            Arc::new(context.patch(revision.as_ref(), &patch).await?)
        }
        Newest::Create(revision) => Arc::new(create_revision(context, set, &revision).await?),
    };
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let newest = (newest.name_any(), template);
    let name = set.status.as_ref().and_then(|status| status.current_revision.clone()).unwrap_or_default();
    let current = revisions.iter().find(|revision| revision.name_any() == name);
    let current = current.and_then(|revision| Some((revision.name_any(), revision::template(revision)?)));
    Ok(Templates { current: current.unwrap_or_else(|| newest.clone()), newest })
}

/// Creates a revision. When the name is taken by another template, the next look tries another name.
async fn create_revision(
    context: &Context,
    set: &StatefulSet,
    revision: &ControllerRevision,
) -> Result<ControllerRevision, WriteError> {
    match context.create(revision).await {
        Err(error) if error.already_exists() => {
            let live: Option<ControllerRevision> = context.live(revision).await?;
            if let Some(live) = live.filter(|live| live.data == revision.data) {
                return Ok(live);
            }
            let count = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
            let patch = json!({
                "metadata": {"resourceVersion": set.metadata.resource_version},
                "status": {"collisionCount": count + 1},
            });
            context.patch_status(set, &patch).await?;
            Err(error)
        }
        other => other,
    }
}

async fn take(context: &Context, set: &StatefulSet, templates: &Templates, step: Step) -> Result<(), WriteError> {
    let (verb, pod, result) = match step {
        Step::Create { ordinal, newest } => {
            let (revision, template) = if newest { &templates.newest } else { &templates.current };
            let pod = plan::pod(set, template, revision, ordinal);
            let created = context.create(&pod).await.map(|_| ());
            ("create", pod.name_any(), created)
        }
        Step::Delete(pod) => {
            if pods::is_finished(&pod) {
                let message = format!("StatefulSet {} is recreating failed Pod {}", name(set), pod.name_any());
                context.events.tell(COMPONENT, set, Severity::Warning, "RecreatingFailedPod", message);
            }
            ("delete", pod.name_any(), context.delete(pod.as_ref()).await)
        }
    };
    let (severity, reason, message) = match (&result, verb) {
        (Ok(()), "create") => (
            Severity::Normal,
            "SuccessfulCreate",
            format!("create Pod {pod} in StatefulSet {} successful", set.name_any()),
        ),
        (Ok(()), _) => (
            Severity::Normal,
            "SuccessfulDelete",
            format!("delete Pod {pod} in StatefulSet {} successful", set.name_any()),
        ),
        (Err(error), _) if error.is_namespace_ending() => return result,
        (Err(error), verb) => {
            let reason = if verb == "create" { "FailedCreate" } else { "FailedDelete" };
            let message =
                format!("{verb} Pod {pod} in StatefulSet {} failed error: {}", set.name_any(), error.reason());
            (Severity::Warning, reason, message)
        }
    };
    context.events.tell(COMPONENT, set, severity, reason, message);
    result
}

fn name(set: &StatefulSet) -> String {
    format!("{}/{}", set.namespace().unwrap_or_default(), set.name_any())
}

/// Writes the status from what the caches hold by now; says when to look again.
async fn write_status(
    context: &Context,
    name: &ObjectName,
    templates: &Templates,
) -> Result<Option<jiff::SignedDuration>, WriteError> {
    let Some(set) = context.world.stateful_sets.get(name) else { return Ok(None) };
    let mut owned = lookup::controlled(&context.world, set.as_ref());
    owned.retain(|pod| plan::ordinal(&set, pod).is_some());
    let (status, again) = plan::status(&set, &owned, templates.revisions(), Timestamp::now());
    if !plan::says_the_same(&status, &set.status.clone().unwrap_or_default()) {
        let mut wanted = set.as_ref().clone();
        wanted.status = Some(status);
        context.replace_status(&wanted).await?;
    }
    Ok(again)
}

async fn clean_up(
    context: &Context,
    set: &StatefulSet,
    owned: &[Arc<Pod>],
    templates: &Templates,
) -> Result<(), WriteError> {
    let in_use = |name: &str| {
        let label =
            |pod: &Pod| pod.metadata.labels.as_ref().and_then(|labels| labels.get(revision::REVISION_LABEL).cloned());
        name == templates.current.0
            || name == templates.newest.0
            || owned.iter().any(|pod| label(pod).as_deref() == Some(name))
    };
    let revisions = context.world.revisions.select(&owned_by(uid_of(set)));
    for outdated in revision::outdated(set, &revisions, &in_use) {
        context.delete(outdated.as_ref()).await?;
    }
    Ok(())
}
