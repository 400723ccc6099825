//! What waits for each controller.

use std::sync::Arc;

use signpost_core::object::ObjectName;

use crate::ControllerOptions;
use crate::busy::Busy;
use crate::queue::Queue;

/// One queue per controller.
pub struct Queues {
    /// Services whose slices are to be looked at.
    pub slices: Queue<ObjectName>,
    /// Endpoints made by hand, and the Services of their name.
    pub mirrored: Queue<ObjectName>,
    /// Services whose Endpoints are to be looked at.
    pub endpoints: Queue<ObjectName>,
    /// ReplicaSets.
    pub replica_sets: Queue<ObjectName>,
    /// Deployments.
    pub deployments: Queue<ObjectName>,
    /// StatefulSets.
    pub stateful_sets: Queue<ObjectName>,
    /// Pods without a node.
    pub scheduler: Queue<ObjectName>,
    /// Services that want addresses, and the pools.
    pub load_balancers: Queue<LoadBalancerKey>,
    /// Services of which is told who announces them.
    pub announced: Queue<ObjectName>,
    /// Owners and dependents.
    pub garbage: Queue<GarbageKey>,
}

impl Queues {
    /// Empty queues; those of controllers that don't run take nothing.
    pub fn new(options: &ControllerOptions, busy: &Arc<Busy>) -> Queues {
        Queues {
            slices: Queue::new(busy.clone(), options.endpoint_slices),
            mirrored: Queue::new(busy.clone(), options.endpoint_slices),
            endpoints: Queue::new(busy.clone(), options.endpoint_slices),
            replica_sets: Queue::new(busy.clone(), options.workloads),
            deployments: Queue::new(busy.clone(), options.workloads),
            stateful_sets: Queue::new(busy.clone(), options.workloads),
            scheduler: Queue::new(busy.clone(), options.scheduler),
            load_balancers: Queue::new(busy.clone(), options.load_balancers),
            announced: Queue::new(busy.clone(), options.load_balancers),
            garbage: Queue::new(busy.clone(), options.garbage_collection),
        }
    }
}

impl Queues {
    /// What waits or is worked on.
    pub fn pending(&self) -> Vec<String> {
        let by_name = [
            ("endpoint slices of", &self.slices),
            ("endpoints of", &self.endpoints),
            ("mirror of endpoints", &self.mirrored),
            ("replica set", &self.replica_sets),
            ("deployment", &self.deployments),
            ("stateful set", &self.stateful_sets),
            ("node for pod", &self.scheduler),
            ("announcers of", &self.announced),
        ];
        let named = by_name
            .into_iter()
            .flat_map(|(what, queue)| queue.pending().into_iter().map(move |key| format!("{what} {key}")));
        let garbage = self.garbage.pending().into_iter().map(|(kind, name)| format!("owners of {kind:?} {name}"));
        let addresses = self.load_balancers.pending().into_iter().map(|key| format!("load balancer {key:?}"));
        named.chain(addresses).chain(garbage).collect()
    }
}

/// What the controller of load-balancer addresses looks at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoadBalancerKey {
    /// A Service.
    Service(ObjectName),
    /// What is told of all pools.
    Pools,
}

/// A kind that takes part as a dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collected {
    /// Pods.
    Pod,
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
    /// Endpoints.
    Endpoints,
    /// ReplicaSets.
    ReplicaSet,
    /// Deployments.
    Deployment,
    /// StatefulSets.
    StatefulSet,
    /// ControllerRevisions.
    ControllerRevision,
}

impl Collected {
    /// All of them.
    pub const ALL: [Collected; 8] = [
        Collected::Pod,
        Collected::Service,
        Collected::EndpointSlice,
        Collected::Endpoints,
        Collected::ReplicaSet,
        Collected::Deployment,
        Collected::StatefulSet,
        Collected::ControllerRevision,
    ];
}

/// An object that garbage collection is to look at.
pub type GarbageKey = (Collected, ObjectName);
