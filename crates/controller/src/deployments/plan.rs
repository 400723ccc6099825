//! Pure. The next steps of a Deployment, from what its ReplicaSets are now. Each look takes the steps that are allowed
//! at once; the changes that they cause lead to the next look.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::{revision, rolling};
use crate::replica_sets::plan::replicas as set_replicas;

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A ReplicaSet for the Deployment's template.
    Create(Box<ReplicaSet>),
    /// A change of a ReplicaSet.
    Update(Update),
    /// A ReplicaSet that the history no longer keeps.
    Remove(Arc<ReplicaSet>),
    /// The Deployment's own revision annotation.
    Revise(String),
}

/// What changes of a ReplicaSet.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// The set as it is.
    pub set: Arc<ReplicaSet>,
    /// Its new size, if that changes.
    pub replicas: Option<i32>,
    /// Its annotations, all of them.
    pub annotations: BTreeMap<String, String>,
    /// Its `minReadySeconds`.
    pub min_ready_seconds: Option<i32>,
}

/// The steps that are to be taken now. `old_pods_run`: pods of former templates are not gone yet.
pub fn plan(deployment: &Deployment, sets: &[Arc<ReplicaSet>], old_pods_run: bool) -> Vec<Step> {
    if deployment.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let (new, old) = revision::split(deployment, sets);
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);
    let recreate = rolling::is_recreate(deployment);
    let all: Vec<&Arc<ReplicaSet>> = old.iter().chain(&new).collect();

    let mut sizes = Sizes::default();
    if paused || (!recreate && rolling::was_scaled(deployment, &all)) {
        sizes.extend(rolling::scaled_sizes(deployment, new.as_ref(), &old));
    } else if recreate {
        let standing: Vec<_> = old.iter().filter(|set| set_replicas(set) > 0).collect();
        let waits = !standing.is_empty() || old_pods_run;
        sizes.extend(standing.into_iter().map(|set| (set.clone(), 0)));
        match &new {
            _ if waits => {}
            None => return vec![create(deployment, &old)],
            Some(new) => sizes.extend([(new.clone(), rolling::replicas(deployment))]),
        }
    } else {
        let Some(new) = &new else { return vec![create(deployment, &old)] };
        let size = rolling::new_set_size(deployment, set_replicas(new), &old);
        if size == set_replicas(new) {
            sizes.extend(rolling::old_set_sizes(deployment, new, &old));
        }
        sizes.extend([(new.clone(), size)]);
    }
    let mut steps: Vec<Step> =
        all.iter().filter_map(|set| update(deployment, set, new.as_ref(), &old, &sizes)).map(Step::Update).collect();
    steps.extend(new.as_ref().and_then(|new| revise(deployment, new, &old)));
    if steps.is_empty() && is_complete(deployment) {
        steps.extend(outdated(deployment, &old).into_iter().map(Step::Remove));
    }
    steps
}

/// Sizes by name, for the sets that were sized in this look.
#[derive(Default)]
struct Sizes(BTreeMap<String, i32>);

impl Sizes {
    fn extend(&mut self, sizes: impl IntoIterator<Item = (Arc<ReplicaSet>, i32)>) {
        self.0.extend(sizes.into_iter().map(|(set, size)| (set.metadata.name.clone().unwrap_or_default(), size)));
    }

    fn get(&self, set: &ReplicaSet) -> Option<i32> {
        self.0.get(set.metadata.name.as_deref().unwrap_or_default()).copied()
    }
}

fn create(deployment: &Deployment, old: &[Arc<ReplicaSet>]) -> Step {
    let size = rolling::new_set_size(deployment, 0, old);
    Step::Create(Box::new(revision::new_set(deployment, size, revision::next_revision(old))))
}

fn update(
    deployment: &Deployment,
    set: &Arc<ReplicaSet>,
    new: Option<&Arc<ReplicaSet>>,
    old: &[Arc<ReplicaSet>],
    sizes: &Sizes,
) -> Option<Update> {
    let is_new = new.is_some_and(|new| new.metadata.uid == set.metadata.uid && new.metadata.name == set.metadata.name);
    let had = set.metadata.annotations.clone().unwrap_or_default();
    let mut annotations = had.clone();
    let has_min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    let mut min_ready_seconds = has_min_ready;
    if is_new {
        annotations = revision::new_set_annotations(deployment, set, revision::next_revision(old));
        min_ready_seconds = deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    }
    let size = sizes.get(set);
    if size.is_some() {
        annotations.extend(revision::size_annotations(deployment));
    }
    let replicas = size.filter(|size| set_replicas(set) != *size);
    let ready_changes = min_ready_seconds.unwrap_or(0) != has_min_ready.unwrap_or(0);
    (replicas.is_some() || annotations != had || ready_changes).then(|| Update {
        set: set.clone(),
        replicas,
        annotations,
        min_ready_seconds,
    })
}

fn revise(deployment: &Deployment, new: &ReplicaSet, old: &[Arc<ReplicaSet>]) -> Option<Step> {
    let wanted = revision::revision(&new.metadata).max(revision::next_revision(old)).to_string();
    (revision::annotation(&deployment.metadata, revision::REVISION) != Some(&wanted)).then_some(Step::Revise(wanted))
}

/// Whether all pods are of the newest template and available.
pub fn is_complete(deployment: &Deployment) -> bool {
    let wanted = Some(rolling::replicas(deployment));
    deployment.status.as_ref().is_some_and(|status| {
        let zero = |number: Option<i32>| Some(number.unwrap_or(0));
        zero(status.updated_replicas) == wanted
            && zero(status.replicas) == wanted
            && zero(status.available_replicas) == wanted
            && status.observed_generation >= deployment.metadata.generation
    })
}

/// The old, empty sets beyond the history's limit, the oldest revisions first.
fn outdated(deployment: &Deployment, old: &[Arc<ReplicaSet>]) -> Vec<Arc<ReplicaSet>> {
    let limit = deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    let mut empty: Vec<Arc<ReplicaSet>> =
        old.iter()
            .filter(|set| {
                set_replicas(set) == 0
                    && set.metadata.deletion_timestamp.is_none()
                    && set.status.as_ref().is_some_and(|status| {
                        status.replicas == 0 && status.observed_generation >= set.metadata.generation
                    })
            })
            .cloned()
            .collect();
    empty.sort_by_key(|set| revision::revision(&set.metadata));
    empty.truncate(surplus);
    empty
}
