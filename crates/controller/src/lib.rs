//! The controllers: endpoint slices of Services and addresses for load balancers; for the lab also Deployments, ReplicaSets,
//! StatefulSets, a scheduler and garbage collection.
//!
//! ```text
//!        watch (one per kind)                      worker
//! API ──────────────────────▶ caches ──▶ routes ──▶ queue ──▶ reconcile: plan (pure) ──▶ writes ──▶ API
//!                               ▲                                                          │
//!                               └──────────────────── answers ◀───────────────────────────┘
//! ```
//!
//! Level-triggered: a change only says which object to look at; what to do is planned from what is there. So a missed or
//! merged event costs nothing, and every reconcile may run any number of times.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::{JoinHandle, JoinSet};

use context::Context;
pub use progress::{NotSettled, Progress};

mod announced;
mod busy;
mod cache;
mod claim;
mod context;
mod controller;
mod deployments;
mod endpoint_slices;
mod endpoints;
mod events;
mod feed;
mod garbage;
pub mod leader;
mod load_balancers;
mod lookup;
mod mirroring;
mod nodes;
pub mod pods;
mod progress;
mod queue;
mod queues;
mod replica_sets;
mod routes;
mod scheduler;
mod selector;
mod stateful_sets;
mod template;
mod wishes;
mod workers;
mod world;

/// Which controllers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerOptions {
    /// EndpointSlices and Endpoints of Services with a selector.
    pub endpoint_slices: bool,
    /// Deployments, ReplicaSets and StatefulSets.
    pub workloads: bool,
    /// Nodes for pods.
    pub scheduler: bool,
    /// Objects whose owners are gone.
    pub garbage_collection: bool,
    /// Addresses for Services of type LoadBalancer, out of IPAddressPools.
    pub load_balancers: bool,
    /// Only Services with this `loadBalancerClass`; `None`: only those without one.
    pub load_balancer_class: Option<String>,
    /// So often every object is looked at again, changed or not.
    pub resync: Duration,
}

impl Default for ControllerOptions {
    /// Everything, as the lab needs it.
    fn default() -> Self {
        ControllerOptions {
            endpoint_slices: true,
            workloads: true,
            scheduler: true,
            garbage_collection: true,
            load_balancers: true,
            load_balancer_class: None,
            resync: Duration::from_secs(600),
        }
    }
}

/// The running controllers. Dropping this stops them.
pub struct Controllers {
    progress: Progress,
    task: JoinHandle<()>,
}

impl Controllers {
    /// How far they are.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Waits until they have stopped, after the `shutdown` given to [`run`].
    pub async fn stopped(mut self) {
        // They don't panic on purpose; if one did, the others have stopped too.
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "a controller ended badly");
        }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts the controllers; they run until `shutdown` is done. Must be called within a tokio runtime.
pub fn run(
    client: Client,
    options: ControllerOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Controllers {
    let (context, notes) = Context::new(client.clone(), options);
    let context = Arc::new(context);
    let progress = Progress::new(context.clone());
    let task = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        tasks.spawn(events::write(client, notes));
        workers::feed_caches(&context, &mut tasks);
        workers::start(&context, &mut tasks);
        tokio::select! {
            () = shutdown => {}
            ended = tasks.join_next() => tracing::error!(?ended, "a controller task ended by itself"),
        }
        tasks.shutdown().await;
    });
    Controllers { progress, task }
}
