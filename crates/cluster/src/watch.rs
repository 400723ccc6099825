//! Watches the four kinds that a node's plan is made of.
//!
//! ```text
//!            ┌ list, in pages ─▶ Reset, Applied…, Synced ┐
//! per kind ──┤                                           ├─▶ one stream of Observed
//!            └ watch ──────────▶ Applied, Deleted…       ┘
//! ```
//!
//! When the API goes away, nothing is said to the consumer: what it knows stays true until the API says otherwise. A
//! watch goes on where it ended; only if the server has forgotten that point, a new list follows, and the consumer
//! compares it with what it had.

mod backoff;
mod kinds;
mod session;
mod trouble;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Client;
use signpost_core::store::{Event, Kind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::malformed::Malformed;
use kinds::{Watched, observed};
use session::{Session, Subject};
use trouble::Troubles;

pub use session::{Kind as Listed, Told};

/// How many observations may wait for the consumer.
const QUEUE: usize = 1024;

/// What the API said. `revision` is the resourceVersion up to which everything of the kind has now been told.
#[derive(Debug, Clone)]
pub enum Observed {
    /// A change.
    Event {
        /// For the Store.
        event: Event,
        /// Of this kind.
        kind: Kind,
        /// See above. After [`Event::Synced`] it may be lower than before: the server lost its past.
        revision: u64,
        /// When the change that led to this one was made, in milliseconds since 1970: what an EndpointSlice's controller
        /// wrote on it.
        triggered_ms: Option<i64>,
    },
    /// Nothing of this kind changed up to this revision.
    Bookmark {
        /// The kind.
        kind: Kind,
        /// See above.
        revision: u64,
    },
    /// Something is wrong with an object. What is whole of it comes as an event too.
    Malformed(Malformed),
    /// Whether load balancers may send to a node. Told with every state of a Node object.
    Eligible {
        /// The node.
        node: Arc<str>,
        /// Whether.
        eligible: bool,
    },
}

/// Which Node objects are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeScope {
    /// All of them.
    All,
    /// The one with this name: all that a node's own plan needs, and in a cluster of thousands a great deal less.
    Own(Arc<str>),
}

/// Watches until the stream is dropped. Retries for ever; says in the log what is wrong with `server`, once.
///
/// Must be called inside a tokio runtime.
pub fn watch(client: Client, server: &str, nodes: &NodeScope) -> impl Stream<Item = Observed> + Send + Unpin + use<> {
    let own = match nodes {
        NodeScope::All => None,
        NodeScope::Own(name) => Some(format!("metadata.name={name}")),
    };
    let mut watches = Watches::new(client, server);
    watches.add_watched::<Service>(None);
    watches.add_watched::<EndpointSlice>(None);
    watches.add_watched::<Node>(own);
    watches.add_watched::<ServiceCIDR>(None);
    watches.into_stream()
}

/// Watches of any kinds of the API, for a consumer that needs other things of them than a node does. What it gets to hear,
/// it says itself, as values of `O`: they are made where the objects are read, so that no whole object waits in a queue.
pub struct Watches<O> {
    client: Client,
    sender: mpsc::Sender<O>,
    receiver: mpsc::Receiver<O>,
    troubles: Arc<Troubles>,
    tasks: JoinSet<()>,
}

impl<O: Send + 'static> Watches<O> {
    /// None yet. `server` is the API's address, for the log.
    pub fn new(client: Client, server: &str) -> Watches<O> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Watches { client, sender, receiver, troubles: Arc::new(Troubles::new(server)), tasks: JoinSet::new() }
    }

    /// Begins to watch a kind. `name`: as people write it. Must be called inside a tokio runtime.
    pub fn add<K: Listed>(&mut self, name: &'static str, translate: fn(Told<K>) -> Vec<O>) {
        self.start(Subject { name, fields: None, namespace: None, optional: false }, translate);
    }

    /// Begins to watch the objects of a kind that a field selector selects. An API without the kind, or that keeps it from us, has
    /// no objects of it. Must be called inside a tokio runtime.
    pub fn add_optional<K: Listed>(
        &mut self,
        name: &'static str,
        fields: Option<String>,
        translate: fn(Told<K>) -> Vec<O>,
    ) {
        self.start(Subject { name, fields, namespace: None, optional: true }, translate);
    }

    /// Begins to watch the objects of a kind in one namespace, optional as above. A right for that namespace is enough, and what
    /// happens in others is not heard. Must be called inside a tokio runtime.
    pub fn add_namespaced<K: Listed>(
        &mut self,
        name: &'static str,
        namespace: &'static str,
        translate: fn(Told<K>) -> Vec<O>,
    ) {
        self.start(Subject { name, fields: None, namespace: Some(namespace), optional: true }, translate);
    }

    /// What the API's answers say of the API itself.
    pub fn reach(&self) -> Reach {
        Reach(self.troubles.clone())
    }

    /// All that is observed, until it is dropped. Retries for ever; says in the log what is wrong with the server, once.
    pub fn into_stream(self) -> impl Stream<Item = O> + Send + Unpin + use<O> {
        let Watches { mut receiver, mut tasks, .. } = self;
        // The tasks end with the stream that holds them.
        futures::stream::poll_fn(move |context| {
            // One that panicked would leave the consumer with what it knew of its kind, for ever.
            if let Poll::Ready(Some(Err(error))) = tasks.poll_join_next(context)
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
            receiver.poll_recv(context)
        })
    }

    fn start<K: Listed>(&mut self, subject: Subject, translate: fn(Told<K>) -> Vec<O>) {
        let session = Session::new(self.client.clone(), self.sender.clone(), self.troubles.clone(), subject, translate);
        self.tasks.spawn(session.run());
    }
}

impl Watches<Observed> {
    fn add_watched<K: Watched>(&mut self, fields: Option<String>) {
        self.start(Subject { name: K::NAME, fields, namespace: None, optional: K::OPTIONAL }, observed::<K>);
    }
}

/// Whether the API answers. Cheap to clone.
#[derive(Clone)]
pub struct Reach(Arc<Troubles>);

impl Reach {
    /// What is wrong, for a person; `None`: the last answers of all kinds were good, or there were none yet.
    pub fn trouble(&self) -> Option<String> {
        self.0.first()
    }
}

/// After so long without a word of the server (it sends a bookmark every minute), the connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests;
