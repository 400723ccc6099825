//! Pure. The plans that the objects ask for, made here anew: what a node's daemon says is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use k8s_openapi::api::networking::v1 as networking_v1;
use serde::de::DeserializeOwned;
use serde_json::Value;
use signpost_cluster::{Malformed, convert};
use signpost_core::node_cache;
use signpost_core::object::Family;
use signpost_core::plan::{Backend, Frontend, FrontendKey, FrontendKind, NodeFacts, NodePlan, Target};
use signpost_core::planner::{NodeConfig, NodePortAddresses, Planner};
use signpost_core::store::{Dirty, Event, Store};

use crate::listed::Listed;
use crate::snapshot::NodeState;

/// The objects as a node daemon understands them.
#[derive(Debug)]
pub struct Understood {
    /// All of them.
    pub store: Store,
    /// What was wrong with some.
    pub malformed: Vec<Malformed>,
    dirty: Dirty,
}

impl Understood {
    /// From what the API lists. Objects that are none are passed over, as a daemon's client does.
    pub fn of(listed: &Listed) -> Understood {
        let mut store = Store::new();
        let mut malformed = Vec::new();
        for service in typed::<core_v1::Service>(&listed.services) {
            let converted = convert::service(&service);
            malformed.extend(converted.malformed);
            converted.object.into_iter().for_each(|object| store.handle(Event::ServiceApplied(object)));
        }
        for slice in typed::<discovery_v1::EndpointSlice>(&listed.slices) {
            let converted = convert::slice(&slice);
            malformed.extend(converted.malformed);
            converted.object.into_iter().for_each(|object| store.handle(Event::SliceApplied(object)));
        }
        for node in typed::<core_v1::Node>(&listed.nodes) {
            let converted = convert::node(&node);
            malformed.extend(converted.malformed);
            converted.object.into_iter().for_each(|object| store.handle(Event::NodeApplied(object.node)));
        }
        for cidr in typed::<networking_v1::ServiceCIDR>(&listed.service_cidrs) {
            let converted = convert::service_cidr(&cidr);
            malformed.extend(converted.malformed);
            converted.object.into_iter().for_each(|found| {
                store.handle(Event::ServiceCidrsApplied { name: found.name, cidrs: found.cidrs });
            });
        }
        let dirty = store.take_dirty();
        Understood { store, malformed, dirty }
    }

    fn addresses(&self, node: &str) -> BTreeSet<IpAddr> {
        self.store.node(node).map(|node| node.addresses.iter().copied().collect()).unwrap_or_default()
    }

    /// The plan of a node. What is not in the objects is taken from `like`, a plan of this node or of another: the
    /// ranges of pods, whether all is masqueraded, and who may use node ports.
    pub fn plan(&self, node: &str, addresses: &BTreeSet<IpAddr>, like: &NodePlan, own: bool) -> NodePlan {
        let all = like.frontends.values().any(|one| one.kind == FrontendKind::ClusterIp && one.from_pod.masquerade);
        let node_port_addresses = if own {
            NodePortAddresses::Cidrs(like.node_port_addresses.iter().copied().map(IpNet::from).collect())
        } else {
            NodePortAddresses::Primary
        };
        let config = NodeConfig {
            node: node.into(),
            cluster_cidrs: like.cluster_cidrs.clone(),
            masquerade_all: all,
            node_addresses: addresses.iter().copied().filter(|address| Family::of(*address) == like.family).collect(),
            node_port_addresses,
            localhost_node_ports: like.node_port_addresses.iter().any(IpAddr::is_loopback),
            source_ranges_on_node_ports: like.frontends.iter().any(is_guarded_node_port),
            node_cache: own && like.frontends.values().any(leads_to_cache),
        };
        let mut planner = Planner::new(like.family, config);
        planner.update(&self.store, &self.dirty);
        planner.plan().clone()
    }
}

/// Everybody whom some client of a frontend may be led to.
pub(crate) fn backends(frontend: &Frontend) -> BTreeSet<SocketAddr> {
    let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
    let of = |target: &Target| match target {
        Target::Backends(backends) => backends.iter().map(|backend| backend.address).collect::<Vec<_>>(),
        Target::Reject | Target::Drop => Vec::new(),
    };
    routes.into_iter().flat_map(|route| of(&route.target)).collect()
}

/// Whether the node's cache for names is in use: a frontend goes nowhere else.
fn leads_to_cache(frontend: &Frontend) -> bool {
    let is_cache = |backend: &Backend| backend.address == node_cache::socket_address(Family::of(backend.address.ip()));
    matches!(&frontend.from_pod.target, Target::Backends(list) if list.iter().all(is_cache))
}

/// Such a node port stands at an address, see `NodeConfig::source_ranges_on_node_ports`.
fn is_guarded_node_port((key, frontend): (&FrontendKey, &Frontend)) -> bool {
    frontend.kind == FrontendKind::NodePort && matches!(key, FrontendKey::Address { .. })
}

/// Fills in what the objects ask of each node. Of a node that was not reached, the ranges of pods and the node's addresses
/// are assumed: as on another node, or as the Node objects have them.
pub fn plan_anew(objects: &Listed, states: &mut BTreeMap<String, NodeState>) {
    let understood = Understood::of(objects);
    let mut likes: BTreeMap<Family, NodePlan> = BTreeMap::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        likes.insert(family, from_nodes(&understood, family));
    }
    likes.extend(states.values().flat_map(|state| state.plans.clone()));
    for (name, state) in states.iter_mut() {
        let known_by: BTreeSet<IpAddr> = understood.addresses(name);
        let wanted = likes.iter().map(|(family, like)| {
            let own = state.plans.get(family);
            let addresses = own.map_or_else(|| state.addresses(&known_by), |plan| plan.node_addresses.clone());
            (*family, understood.plan(name, &addresses, own.unwrap_or(like), own.is_some()))
        });
        state.wanted = wanted.collect();
    }
}

/// A plan without Services that has what Node objects tell of pods.
fn from_nodes(understood: &Understood, family: Family) -> NodePlan {
    let ranges = understood.store.nodes().flat_map(|node| node.pod_cidrs.clone());
    let facts = NodeFacts {
        cluster_cidrs: ranges.filter(|range| Family::of(range.addr()) == family).collect(),
        node_addresses: BTreeSet::new(),
        node_port_addresses: BTreeSet::new(),
        service_cidrs: Vec::new(),
    };
    NodePlan::empty(family, facts)
}

fn typed<T: DeserializeOwned>(values: &[Value]) -> impl Iterator<Item = T> {
    values.iter().filter_map(|value| T::deserialize(value).ok())
}
