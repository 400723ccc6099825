//! Pure. The templates that a StatefulSet had, kept as ControllerRevisions: pods outside of an update keep theirs, and
//! `kubectl rollout undo` takes one back.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::deployments::revision::{same_template, template_hash};
use crate::template::controlled_by;

/// The label of a pod with the name of its template's revision.
pub const REVISION_LABEL: &str = "controller-revision-hash";
/// The label of a revision with its template's hash.
const HASH: &str = "controller.kubernetes.io/hash";

/// What is to be done so that the newest template has a revision, the highest of all.
#[derive(Debug, Clone, PartialEq)]
pub enum Newest {
    /// This one is it.
    Is(Arc<ControllerRevision>),
    /// An older template is the newest again: this one gets that number.
    Raise(Arc<ControllerRevision>, i64),
    /// It has none yet.
    Create(Box<ControllerRevision>),
}

/// The revision of a set's template among those there are.
pub fn newest(set: &StatefulSet, revisions: &[Arc<ControllerRevision>]) -> Newest {
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let highest = revisions.iter().map(|revision| revision.revision).max().unwrap_or(0);
    let same = revisions
        .iter()
        .filter(|revision| self::template(revision).is_some_and(|other| same_template(&other, &template)));
    match same.max_by_key(|revision| revision.revision) {
        Some(revision) if revision.revision == highest => Newest::Is(revision.clone()),
        Some(revision) => Newest::Raise(revision.clone(), highest + 1),
        None => Newest::Create(Box::new(create(set, &template, highest + 1))),
    }
}

fn create(set: &StatefulSet, template: &PodTemplateSpec, number: i64) -> ControllerRevision {
    let collisions = set.status.as_ref().and_then(|status| status.collision_count).filter(|count| *count > 0);
    let hash = template_hash(template, collisions);
    let mut labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let mut template = serde_json::to_value(template).expect("an API object is JSON");
    template["$patch"] = "replace".into();
    ControllerRevision {
        metadata: ObjectMeta {
            namespace: set.metadata.namespace.clone(),
            name: Some(format!("{}-{hash}", set.metadata.name.as_deref().unwrap_or_default())),
            labels: Some(labels),
            owner_references: Some(vec![controlled_by(set)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({"spec": {"template": template}}))),
        revision: number,
    }
}

/// The template that a revision keeps.
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template: Value = revision.data.as_ref()?.0.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// The revisions that no pod needs and that the history no longer keeps, the oldest first.
pub fn outdated(
    set: &StatefulSet,
    revisions: &[Arc<ControllerRevision>],
    in_use: &dyn Fn(&str) -> bool,
) -> Vec<Arc<ControllerRevision>> {
    let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
    let name = |revision: &ControllerRevision| revision.metadata.name.clone().unwrap_or_default();
    let mut unused: Vec<Arc<ControllerRevision>> =
        revisions.iter().filter(|revision| !in_use(&name(revision))).cloned().collect();
    unused.sort_by_key(|revision| revision.revision);
    unused.truncate(unused.len().saturating_sub(usize::try_from(limit).unwrap_or(0)));
    unused
}
