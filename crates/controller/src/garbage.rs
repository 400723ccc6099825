//! Garbage collection: objects whose owners are all gone go too; deletion in the foreground and orphaning.
//!
//! ```text
//! owner gone ──▶ its dependents ──▶ verdict (pure) ──▶ delete, or drop the reference
//! owner with a finalizer ──▶ its dependents deleted (foregroundDeletion) or set free (orphan) ──▶ finalizer removed
//! ```
//!
//! Only kinds that are cached take part, as owners and as dependents. An owner of another kind counts as there: what is
//! not known to be garbage stays.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::Api;
use serde_json::json;
use signpost_core::object::ObjectName;

use crate::cache::{Transition, name_of, uid_of};
use crate::claim::owners_patch;
use crate::context::{Context, Watched, WriteError, Written};
use crate::controller;
use crate::queue::{Outcome, Queue};
use crate::queues::{Collected, GarbageKey as Key};
use crate::world::{World, owned_by};
use verdict::{OwnerState, Verdict, verdict};

pub mod verdict;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Runs `$call::<Kind>` for a [`Collected`].
macro_rules! for_kind {
    ($kind:expr, $call:ident($($argument:expr),*)) => {
        match $kind {
            Collected::Pod => $call::<Pod>($($argument),*),
            Collected::Service => $call::<Service>($($argument),*),
            Collected::EndpointSlice => $call::<EndpointSlice>($($argument),*),
            Collected::Endpoints => $call::<Endpoints>($($argument),*),
            Collected::ReplicaSet => $call::<ReplicaSet>($($argument),*),
            Collected::Deployment => $call::<Deployment>($($argument),*),
            Collected::StatefulSet => $call::<StatefulSet>($($argument),*),
            Collected::ControllerRevision => $call::<ControllerRevision>($($argument),*),
        }
    };
}

/// The same for calls that must be awaited.
macro_rules! for_kind_async {
    ($kind:expr, $call:ident($($argument:expr),*)) => {
        match $kind {
            Collected::Pod => $call::<Pod>($($argument),*).await,
            Collected::Service => $call::<Service>($($argument),*).await,
            Collected::EndpointSlice => $call::<EndpointSlice>($($argument),*).await,
            Collected::Endpoints => $call::<Endpoints>($($argument),*).await,
            Collected::ReplicaSet => $call::<ReplicaSet>($($argument),*).await,
            Collected::Deployment => $call::<Deployment>($($argument),*).await,
            Collected::StatefulSet => $call::<StatefulSet>($($argument),*).await,
            Collected::ControllerRevision => $call::<ControllerRevision>($($argument),*).await,
        }
    };
}

/// Names to the queue what a change of an object means for garbage. `kind` is `None` for kinds that only own.
pub fn route<K: Watched>(context: &Context, kind: Option<Collected>, change: &Transition<K>) {
    let queue = &context.queues.garbage;
    match (&change.old, &change.new, kind) {
        (_, Some(new), Some(kind)) => {
            let (meta, old) = (new.meta(), change.old.as_deref().map(Resource::meta));
            let owners = |meta: &ObjectMeta| meta.owner_references.clone().unwrap_or_default();
            let has_owners = meta.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
            let is_ending = meta.deletion_timestamp.is_some();
            let concerns = match old {
                None => has_owners || is_ending,
                Some(old) if std::ptr::eq(old, meta) => has_owners || is_ending,
                Some(old) => owners(old) != owners(meta) || is_ending,
            };
            if concerns {
                queue.add((kind, name_of(new.as_ref())));
            }
            if is_ending && old.is_none_or(|old| old.deletion_timestamp.is_none()) && is_foreground(meta) {
                dependents(&context.world, uid_of(new.as_ref())).into_iter().for_each(|key| queue.add(key));
            }
        }
        (Some(old), None, _) => {
            dependents(&context.world, uid_of(old.as_ref())).into_iter().for_each(|key| queue.add(key));
            // An owner that waits for its dependents has one less.
            for owner in old.meta().owner_references.iter().flatten() {
                let owner_name = ObjectName::new(old.meta().namespace.as_deref().unwrap_or_default(), &owner.name);
                if let Some(kind) = collected(&owner.kind) {
                    queue.add((kind, owner_name));
                }
            }
        }
        _ => {}
    }
}

fn collected(kind: &str) -> Option<Collected> {
    Collected::ALL.into_iter().find(|collected| format!("{collected:?}") == kind)
}

fn is_foreground(meta: &ObjectMeta) -> bool {
    has_finalizer(meta, FOREGROUND)
}

fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.as_ref().is_some_and(|finalizers| finalizers.iter().any(|other| other == finalizer))
}

/// Everything that names this uid as an owner.
fn dependents(world: &World, uid: &str) -> Vec<Key> {
    let named = |kind: Collected| for_kind!(kind, owned_names(world, uid)).into_iter().map(move |name| (kind, name));
    Collected::ALL.into_iter().flat_map(named).collect()
}

fn owned_names<K: Watched>(world: &World, uid: &str) -> Vec<ObjectName> {
    K::cache(world).select(&owned_by(uid)).iter().map(|object| name_of(object.as_ref())).collect()
}

/// The controller.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = Key;
    const NAME: &'static str = "garbage";
    const WORKERS: usize = 4;

    fn queue(context: &Context) -> &Queue<Key> {
        &context.queues.garbage
    }

    async fn reconcile(&self, context: &Context, key: &Key) -> Result<Outcome, WriteError> {
        reconcile(context, key).await
    }
}

/// Looks at one object, as an owner that ends and as a dependent.
///
/// # Errors
/// The write that failed.
async fn reconcile(context: &Context, key: &Key) -> Result<Outcome, WriteError> {
    for_kind_async!(key.0, look_at(context, &key.1))?;
    Ok(Outcome::Done)
}

async fn look_at<K: Written>(context: &Context, name: &ObjectName) -> Result<(), WriteError> {
    let Some(object) = K::cache(&context.world).get(name) else { return Ok(()) };
    if object.meta().deletion_timestamp.is_some() {
        return end_owner(context, object.as_ref()).await;
    }
    let owners = object.meta().owner_references.clone().unwrap_or_default();
    let mut states = Vec::with_capacity(owners.len());
    for owner in owners {
        let state = owner_state(context, &name.namespace, &owner).await?;
        states.push((owner, state));
    }
    match verdict(states) {
        Verdict::Keep => Ok(()),
        Verdict::Delete => context.delete(object.as_ref()).await,
        Verdict::Drop(left) => match context.patch(object.as_ref(), &owners_patch(object.as_ref(), &left)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        },
    }
}

/// An owner that is being deleted and waits for its dependents.
async fn end_owner<K: Written>(context: &Context, owner: &K) -> Result<(), WriteError> {
    let uid = uid_of(owner);
    if has_finalizer(owner.meta(), ORPHAN) {
        for (kind, name) in dependents(&context.world, uid) {
            for_kind_async!(kind, set_free(context, &name, uid))?;
        }
        return remove_finalizer(context, owner, ORPHAN).await;
    }
    if has_finalizer(owner.meta(), FOREGROUND) {
        let dependents = dependents(&context.world, uid);
        let blocked = dependents.iter().any(|(kind, name)| for_kind!(kind, blocks(&context.world, name, uid)));
        if !blocked {
            return remove_finalizer(context, owner, FOREGROUND).await;
        }
    }
    Ok(())
}

/// Whether a dependent holds up its owner's deletion.
fn blocks<K: Watched>(world: &World, name: &ObjectName, owner_uid: &str) -> bool {
    K::cache(world).get(name).is_some_and(|object| {
        let mut owners = object.meta().owner_references.iter().flatten();
        owners.any(|owner| owner.uid == owner_uid && owner.block_owner_deletion == Some(true))
    })
}

async fn set_free<K: Written>(context: &Context, name: &ObjectName, owner_uid: &str) -> Result<(), WriteError> {
    let Some(object) = K::cache(&context.world).get(name) else { return Ok(()) };
    let mut owners = object.meta().owner_references.clone().unwrap_or_default();
    owners.retain(|owner| owner.uid != owner_uid);
    match context.patch(object.as_ref(), &owners_patch(object.as_ref(), &owners)).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

async fn remove_finalizer<K: Written>(context: &Context, owner: &K, finalizer: &str) -> Result<(), WriteError> {
    let mut left = owner.meta().finalizers.clone().unwrap_or_default();
    left.retain(|other| other != finalizer);
    let meta = owner.meta();
    let patch = json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": left}});
    match context.patch(owner, &patch).await {
        Ok(last) if left.is_empty() => {
            // The last finalizer is gone, and the object with it.
            context.absorb_deletion(&last);
            Ok(())
        }
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// What the API knows of an owner. The caches of different kinds run at their own pace: an owner that one lacks is asked
/// for before anything is deleted.
async fn owner_state(
    context: &Context,
    namespace: &Arc<str>,
    owner: &OwnerReference,
) -> Result<OwnerState, WriteError> {
    if owner.kind == "Node" {
        return node_state(context, owner).await;
    }
    let name = ObjectName { namespace: namespace.clone(), name: owner.name.as_str().into() };
    match collected(&owner.kind) {
        Some(kind) => for_kind_async!(kind, state(context, &name, owner)),
        None => Ok(OwnerState::There),
    }
}

async fn state<K: Written>(
    context: &Context,
    name: &ObjectName,
    owner: &OwnerReference,
) -> Result<OwnerState, WriteError> {
    if owner.api_version != K::api_version(&()) {
        return Ok(OwnerState::There);
    }
    let cached = K::cache(&context.world).get(name).filter(|object| uid_of(object.as_ref()) == owner.uid);
    let object = match cached {
        Some(object) => Some(object.as_ref().clone()),
        None => context.live_named::<K>(name).await?.filter(|object| uid_of(object) == owner.uid),
    };
    Ok(match object {
        None => OwnerState::Gone,
        Some(object) if object.meta().deletion_timestamp.is_some() && is_foreground(object.meta()) => OwnerState::Waits,
        Some(_) => OwnerState::There,
    })
}

async fn node_state(context: &Context, owner: &OwnerReference) -> Result<OwnerState, WriteError> {
    if context.world.nodes.has(&ObjectName::new("", &owner.name), &owner.uid) {
        return Ok(OwnerState::There);
    }
    let api: Api<Node> = Api::all(context.client.clone());
    match api.get_opt(&owner.name).await {
        Ok(Some(node)) if uid_of(&node) == owner.uid => Ok(OwnerState::There),
        Ok(_) => Ok(OwnerState::Gone),
        Err(source) => Err(WriteError::getting("Node", &owner.name, source)),
    }
}
