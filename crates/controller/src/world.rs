//! The caches of all kinds that the controllers look at, and what each kind is found by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use signpost_metallb::{
    BGPAdvertisement, ConfigurationState, IPAddressPool, L2Advertisement, ServiceBGPStatus, ServiceL2Status,
};

use crate::ControllerOptions;
use crate::cache::{Cache, Cached, Index};
use crate::wishes;

/// One cache per kind.
#[derive(Default)]
pub struct World {
    /// Pods.
    pub pods: Cache<Pod>,
    /// Services.
    pub services: Cache<Service>,
    /// EndpointSlices.
    pub slices: Cache<EndpointSlice>,
    /// Endpoints, the old form of slices.
    pub endpoints: Cache<Endpoints>,
    /// Nodes.
    pub nodes: Cache<Node>,
    /// ReplicaSets.
    pub replica_sets: Cache<ReplicaSet>,
    /// Deployments.
    pub deployments: Cache<Deployment>,
    /// StatefulSets.
    pub stateful_sets: Cache<StatefulSet>,
    /// The templates that StatefulSets had.
    pub revisions: Cache<ControllerRevision>,
    /// Namespaces.
    pub namespaces: Cache<Namespace>,
    /// Pools of load-balancer addresses.
    pub pools: Cache<IPAddressPool>,
    /// What is told of the configuration.
    pub states: Cache<ConfigurationState>,
    /// Who may announce load-balancer addresses on the nodes' own network.
    pub l2_advertisements: Cache<L2Advertisement>,
    /// Who may announce them to routers.
    pub bgp_advertisements: Cache<BGPAdvertisement>,
    /// Who does so on the nodes' own network.
    pub l2_statuses: Cache<ServiceL2Status>,
    /// Who does so to routers.
    pub bgp_statuses: Cache<ServiceBGPStatus>,
    /// The kinds that are watched; the caches of others stay empty.
    fed: BTreeSet<&'static str>,
}

impl World {
    /// Empty caches for the kinds that the chosen controllers need.
    pub fn new(options: &ControllerOptions) -> World {
        let mut fed = BTreeSet::new();
        if options.endpoint_slices {
            fed.extend(["Pod", "Service", "EndpointSlice", "Endpoints", "Node"]);
        }
        if options.workloads {
            fed.extend(["Pod", "ReplicaSet", "Deployment", "StatefulSet", "ControllerRevision"]);
        }
        if options.scheduler {
            fed.extend(["Pod", "Node"]);
        }
        if options.garbage_collection {
            fed.extend(&KINDS[..9]);
        }
        if options.load_balancers {
            fed.extend(["Service", "Node", "EndpointSlice"]);
            fed.extend(&KINDS[9..]);
        }
        World { fed, ..World::default() }
    }

    /// Whether a kind is watched.
    pub fn is_fed(&self, kind: &str) -> bool {
        self.fed.contains(kind)
    }

    /// By kind, for those that are watched: the revision up to which the watch has told everything.
    pub fn seen(&self) -> BTreeMap<&'static str, Option<u64>> {
        let seen = [
            self.pods.seen(),
            self.services.seen(),
            self.slices.seen(),
            self.endpoints.seen(),
            self.nodes.seen(),
            self.replica_sets.seen(),
            self.deployments.seen(),
            self.stateful_sets.seen(),
            self.revisions.seen(),
            self.namespaces.seen(),
            self.pools.seen(),
            self.states.seen(),
            self.l2_advertisements.seen(),
            self.bgp_advertisements.seen(),
            self.l2_statuses.seen(),
            self.bgp_statuses.seen(),
        ];
        KINDS.into_iter().zip(seen).filter(|(kind, _)| self.is_fed(kind)).collect()
    }
}

/// All kinds, in the order of [`World`]'s caches; the first nine take part in garbage collection, the others are load
/// balancers'.
const KINDS: [&str; 16] = [
    "Pod",
    "Service",
    "EndpointSlice",
    "Endpoints",
    "Node",
    "ReplicaSet",
    "Deployment",
    "StatefulSet",
    "ControllerRevision",
    "Namespace",
    "IPAddressPool",
    "ConfigurationState",
    "L2Advertisement",
    "BGPAdvertisement",
    "ServiceL2Status",
    "ServiceBGPStatus",
];

/// The index entry of a namespace's objects with a label.
pub fn labelled(namespace: &str, key: &str, value: &str) -> Index {
    Index::Label(namespace.into(), key.into(), value.into())
}

/// The index entry of the objects that an owner's uid leads to.
pub fn owned_by(uid: &str) -> Index {
    Index::Owner(uid.into())
}

fn labels(meta: &ObjectMeta) -> impl Iterator<Item = Index> {
    let namespace: Arc<str> = meta.namespace.as_deref().unwrap_or_default().into();
    let labels = meta.labels.iter().flatten();
    labels.map(move |(key, value)| Index::Label(namespace.clone(), key.as_str().into(), value.as_str().into()))
}

fn owners(meta: &ObjectMeta) -> impl Iterator<Item = Index> {
    meta.owner_references.iter().flatten().map(|owner| owned_by(&owner.uid))
}

impl Cached for Pod {
    fn indices(&self) -> Vec<Index> {
        let node = self.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        labels(&self.metadata).chain(owners(&self.metadata)).chain([Index::Node(node.into())]).collect()
    }
}

impl Cached for Service {
    fn indices(&self) -> Vec<Index> {
        let selector = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let first = selector.and_then(|selector| selector.first_key_value()).map(|(key, value)| {
            let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
            Index::Selector(namespace.into(), key.as_str().into(), value.as_str().into())
        });
        first.into_iter().chain(owners(&self.metadata)).chain(wishes::indices(self)).collect()
    }
}

/// Kinds that are found by their labels and their owners.
macro_rules! by_labels_and_owners {
    ($($kind:ty),+) => { $(
        impl Cached for $kind {
            fn indices(&self) -> Vec<Index> {
                labels(self.meta()).chain(owners(self.meta())).collect()
            }
        }
    )+ };
}

by_labels_and_owners!(EndpointSlice, Endpoints, Node, ReplicaSet, Deployment, StatefulSet, ControllerRevision);

/// Kinds that are found by name alone.
macro_rules! by_name {
    ($($kind:ty),+) => { $(
        impl Cached for $kind {
            fn indices(&self) -> Vec<Index> {
                Vec::new()
            }
        }
    )+ };
}

by_name!(
    Namespace,
    IPAddressPool,
    ConfigurationState,
    L2Advertisement,
    BGPAdvertisement,
    ServiceL2Status,
    ServiceBGPStatus
);
