//! What all controllers share: the client, the caches, the queues, and the way a write goes.
//!
//! Every write's answer is put into the cache and routed like a change from the watch, before the worker gives its key
//! back: what follows from a write starts at once, and [`crate::progress`] never sees a gap between the two.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_core::object::ObjectName;
use tokio::sync::mpsc;

use crate::ControllerOptions;
use crate::busy::Busy;
use crate::cache::{Cache, Cached, Transition, name_of, uid_of};
use crate::events::{Note, Recorder};
use crate::queues::Queues;
use crate::world::World;

/// Shared by all controllers.
pub struct Context {
    /// The API.
    pub client: Client,
    /// What is known of it.
    pub world: World,
    /// What is to be looked at.
    pub queues: Queues,
    /// Tells users.
    pub events: Recorder,
    /// What runs.
    pub options: ControllerOptions,
    pub(crate) busy: Arc<Busy>,
}

/// Writes that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Create.
    Create,
    /// Replace it whole.
    Replace,
    /// Replace its status.
    ReplaceStatus,
    /// Merge patch.
    Patch,
    /// Delete.
    Delete,
    /// Look it up.
    Get,
    /// Give a pod its node.
    Bind,
}

/// A write that the API refused or that did not reach it.
#[derive(Debug, thiserror::Error)]
#[error("{op:?} {kind} {name}: {source}")]
pub struct WriteError {
    /// What was tried.
    pub op: Op,
    /// On which kind.
    pub kind: String,
    /// On which object (`namespace/name`).
    pub name: String,
    /// What came back.
    #[source]
    pub source: kube::Error,
}

impl WriteError {
    /// A look-up that failed.
    pub fn getting(kind: &str, name: &str, source: kube::Error) -> WriteError {
        WriteError { op: Op::Get, kind: kind.to_owned(), name: name.to_owned(), source }
    }

    fn status(&self) -> Option<&kube::core::Status> {
        match &self.source {
            kube::Error::Api(status) => Some(status),
            _ => None,
        }
    }

    /// Somebody else wrote first: the next look will see it.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// The object is gone.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }

    /// The name is taken.
    pub fn already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.reason == "AlreadyExists")
    }

    /// The namespace is being deleted: nothing can be made in it any more.
    pub fn is_namespace_ending(&self) -> bool {
        self.status().is_some_and(|status| status.code == 403 && status.message.contains("being terminated"))
    }

    /// What the API said, for people.
    pub fn reason(&self) -> String {
        self.status().map_or_else(|| self.source.to_string(), |status| status.message.clone())
    }
}

/// A kind that the controllers watch.
pub trait Watched: Cached + Clone + Debug + DeserializeOwned {
    /// Its cache.
    fn cache(world: &World) -> &Cache<Self>;

    /// Names to the queues what a change of an object may concern.
    fn route(context: &Context, change: &Transition<Self>);
}

/// A kind that the controllers write.
pub trait Written: Watched + Serialize + Resource<Scope = NamespaceResourceScope> {}

impl<K: Watched + Serialize + Resource<Scope = NamespaceResourceScope>> Written for K {}

impl Context {
    /// Empty caches and queues, and the notes that are to become Events.
    pub fn new(client: Client, options: ControllerOptions) -> (Context, mpsc::Receiver<Note>) {
        let busy = Arc::new(Busy::default());
        let world = World::new(&options);
        let queues = Queues::new(&options, &busy);
        let (events, notes) = Recorder::new();
        (Context { client, world, queues, events, options, busy }, notes)
    }

    fn api<K: Written>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Waits until every cache has had its first list.
    pub async fn synced(&self) {
        let mut changed = self.busy.subscribe();
        while self.world.seen().values().any(Option::is_none) {
            // The sender lives as long as this context.
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes the API's answer as news.
    fn absorb<K: Watched>(&self, object: &K) {
        if let Some(change) = K::cache(&self.world).absorb(object.clone()) {
            K::route(self, &change);
        }
    }

    /// Takes as news that an object is gone.
    pub fn absorb_deletion<K: Watched>(&self, object: &K) {
        if let Some(change) = K::cache(&self.world).absorb_deletion(object) {
            K::route(self, &change);
        }
    }

    /// Creates an object; gives what the API made of it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn create<K: Written>(&self, object: &K) -> Result<K, WriteError> {
        let created = self.api::<K>(namespace_of(object)).create(&PostParams::default(), object).await;
        let created = created.map_err(|source| failed(Op::Create, object, source))?;
        self.absorb(&created);
        Ok(created)
    }

    /// The object of this name as the API has it now.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn live<K: Written>(&self, object: &K) -> Result<Option<K>, WriteError> {
        let got = self.api::<K>(namespace_of(object)).get_opt(plain_name(object)).await;
        got.map_err(|source| failed(Op::Get, object, source))
    }

    /// The object of a name as the API has it now.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn live_named<K: Written>(&self, name: &ObjectName) -> Result<Option<K>, WriteError> {
        let got = self.api::<K>(&name.namespace).get_opt(&name.name).await;
        got.map_err(|source| WriteError::getting(&K::kind(&()), &name.to_string(), source))
    }

    /// Replaces an object as of its resource version.
    ///
    /// # Errors
    /// See [`WriteError`]; a conflict if it changed meanwhile.
    pub async fn replace<K: Written>(&self, object: &K) -> Result<K, WriteError> {
        let api = self.api::<K>(namespace_of(object));
        let replaced = api.replace(plain_name(object), &PostParams::default(), object).await;
        let replaced = self.noted(Op::Replace, object, replaced)?;
        self.absorb(&replaced);
        Ok(replaced)
    }

    /// Replaces an object's status as of its resource version.
    ///
    /// # Errors
    /// See [`WriteError`]; a conflict if it changed meanwhile.
    pub async fn replace_status<K: Written>(&self, object: &K) -> Result<K, WriteError> {
        let api = self.api::<K>(namespace_of(object));
        let replaced = api.replace_status(plain_name(object), &PostParams::default(), object).await;
        let replaced = self.noted(Op::ReplaceStatus, object, replaced)?;
        self.absorb(&replaced);
        Ok(replaced)
    }

    /// Merges `patch` into an object. The patch names the resource version or uid that it is meant for, if that matters.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn patch<K: Written>(&self, object: &K, patch: &Value) -> Result<K, WriteError> {
        let api = self.api::<K>(namespace_of(object));
        let patched = api.patch(plain_name(object), &PatchParams::default(), &Patch::Merge(patch)).await;
        let patched = self.noted(Op::Patch, object, patched)?;
        self.absorb(&patched);
        Ok(patched)
    }

    /// Merges `patch` into an object's status.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn patch_status<K: Written>(&self, object: &K, patch: &Value) -> Result<K, WriteError> {
        let api = self.api::<K>(namespace_of(object));
        let patched = api.patch_status(plain_name(object), &PatchParams::default(), &Patch::Merge(patch)).await;
        let patched = self.noted(Op::ReplaceStatus, object, patched)?;
        self.absorb(&patched);
        Ok(patched)
    }

    /// Deletes this very object (by uid). That it is gone already is no error.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete<K: Written>(&self, object: &K) -> Result<(), WriteError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid_of(object).to_owned()), resource_version: None }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let deleted = self.api::<K>(namespace_of(object)).delete(plain_name(object), &params).await;
        match self.noted(Op::Delete, object, deleted) {
            Ok(either) => {
                match either.left() {
                    Some(last) if last.meta().deletion_timestamp.is_some() => self.absorb(&last),
                    _ => self.absorb_deletion(object),
                }
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives a pod its node, through its `binding`.
    ///
    /// # Errors
    /// See [`WriteError`]; a conflict if the pod has a node already.
    pub async fn bind(&self, pod: &Pod, node: &str) -> Result<(), WriteError> {
        let api = self.api::<Pod>(namespace_of(pod));
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let bound = api.create_subresource("binding", plain_name(pod), &PostParams::default(), &binding).await;
        let _status: Value = bound.map_err(|source| failed(Op::Bind, pod, source))?;
        // The answer to a binding is not the pod; the next choice must see this one.
        let got = api.get(plain_name(pod)).await;
        self.absorb(&self.noted(Op::Get, pod, got)?);
        Ok(())
    }

    /// Notes in the cache that an object was not found.
    fn noted<K: Written, T>(&self, op: Op, object: &K, result: Result<T, kube::Error>) -> Result<T, WriteError> {
        result.map_err(|source| {
            let error = failed(op, object, source);
            if error.is_not_found() {
                self.absorb_deletion(object);
            }
            error
        })
    }
}

fn failed<K: Resource<DynamicType = ()>>(op: Op, object: &K, source: kube::Error) -> WriteError {
    WriteError { op, kind: K::kind(&()).into_owned(), name: name_of(object).to_string(), source }
}

fn namespace_of<K: Resource>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

fn plain_name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}
