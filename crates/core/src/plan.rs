//! Pure. The plan of one node and one family: what its kernel must do, in the words of Services, in no mode's words.
//!
//! A plan is a value. A [`PlanChange`] turns one plan into the next and touches only what it names, so that a change of
//! one endpoint costs the same at any number of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::object::{Family, Protocol, Rebalance, ServicePortName};
use crate::scheduler::Scheduler;

pub mod backends;
pub mod frontend;
mod key;
pub mod policy;

pub use key::FrontendKeyError;

/// What a packet's destination is compared with. In JSON a string, as its `Display` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKey {
    /// An address that is on no interface: cluster, external or load-balancer address.
    Address {
        /// The address.
        address: IpAddr,
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: NonZeroU16,
    },
    /// A port at each of [`NodePlan::node_port_addresses`].
    NodePort {
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: NonZeroU16,
    },
}

/// Which field of the Service a frontend comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.ports[].nodePort`.
    NodePort,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
}

/// A chosen endpoint. Ordered by address, then port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Backend {
    /// The pod's address and port.
    pub address: SocketAddr,
    /// Whether the pod is on this node.
    pub local: bool,
}

/// Backends of one frontend for one kind of client: sorted, without duplicates, never empty. Shared, since a Service's
/// frontends mostly have the same.
pub type Backends = Arc<[Backend]>;

/// Where a packet goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// To one of these, each as likely.
    Backends(Backends),
    /// No endpoint anywhere in the cluster: refused.
    Reject,
    /// Endpoints exist, but none that the policy allows on this node: dropped.
    Drop,
}

/// What one kind of client meets at a frontend.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// Where its packets go.
    pub target: Target,
    /// Whether their source becomes an address of the node. A hairpin (a backend that is the client itself) is
    /// masqueraded whatever this says.
    pub masquerade: bool,
}

/// What a packet to one [`FrontendKey`] meets, by where it comes from. The first that holds decides:
/// source in [`NodePlan::cluster_cidrs`]: `from_pod`; source an address of this node: `from_node`; else `from_elsewhere`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frontend {
    /// The Service port it stands for.
    pub service_port: ServicePortName,
    /// Which of its addresses.
    pub kind: FrontendKind,
    /// For pods, of this node or another.
    pub from_pod: Route,
    /// For this node's own processes.
    pub from_node: Route,
    /// For everyone else.
    pub from_elsewhere: Route,
    /// Sources allowed to use a load-balancer address; empty: all. Others are dropped.
    pub source_ranges: Arc<[IpNet]>,
    /// `sessionAffinity: ClientIP` with its timeout.
    pub affinity: Option<Duration>,
    /// How the mode IPVS chooses, if the Service says. The others choose at random, and pass over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
    /// How long after its endpoint is gone a TCP connection is reset, if the Service asks for that. Only the mode eBPF does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_after: Option<Duration>,
    /// Whether connections that live long are spread anew after a scale-up. Only the mode eBPF does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebalance: Option<Rebalance>,
}

/// The whole of what one node does for one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    /// The family; every address in the plan is of it.
    pub family: Family,
    /// Pod addresses of the whole cluster; empty: not known, and then nobody counts as a pod.
    pub cluster_cidrs: Vec<IpNet>,
    /// Every address of this node: a packet from one of these counts as the node's own.
    pub node_addresses: BTreeSet<IpAddr>,
    /// The addresses at which node ports answer. A subset of `node_addresses`.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// The ranges that cluster addresses are given out of: an address of one that no Service has is dropped.
    pub service_cidrs: Vec<IpNet>,
    /// The frontends.
    pub frontends: BTreeMap<FrontendKey, Frontend>,
    /// Cluster addresses in use: a port of one that is no frontend is rejected.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Addresses of endpoints on this node: a flow from one of these to itself through a frontend is a hairpin.
    pub local_endpoints: BTreeSet<IpAddr>,
}

/// From one plan to the next. Empty: nothing changed. What is set replaces what was there under the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanChange {
    /// Frontends that are new or differ.
    pub set: BTreeMap<FrontendKey, Frontend>,
    /// Frontends that are gone.
    pub removed: BTreeSet<FrontendKey>,
    /// Additions to and removals from [`NodePlan::cluster_ips`].
    pub cluster_ips: SetChange,
    /// Additions to and removals from [`NodePlan::local_endpoints`].
    pub local_endpoints: SetChange,
    /// The node's own facts changed (its addresses, the cluster's ranges): the new ones.
    pub node: Option<NodeFacts>,
}

/// A change of a set of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetChange {
    /// Now in it.
    pub added: BTreeSet<IpAddr>,
    /// No longer in it.
    pub removed: BTreeSet<IpAddr>,
}

/// What a plan knows of its node besides Services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// See [`NodePlan::cluster_cidrs`].
    pub cluster_cidrs: Vec<IpNet>,
    /// See [`NodePlan::node_addresses`].
    pub node_addresses: BTreeSet<IpAddr>,
    /// See [`NodePlan::node_port_addresses`].
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// See [`NodePlan::service_cidrs`].
    pub service_cidrs: Vec<IpNet>,
}

impl NodePlan {
    /// A plan without Services.
    pub fn empty(family: Family, facts: NodeFacts) -> NodePlan {
        NodePlan {
            family,
            cluster_cidrs: facts.cluster_cidrs,
            node_addresses: facts.node_addresses,
            node_port_addresses: facts.node_port_addresses,
            service_cidrs: facts.service_cidrs,
            frontends: BTreeMap::new(),
            cluster_ips: BTreeSet::new(),
            local_endpoints: BTreeSet::new(),
        }
    }

    /// What it knows besides Services.
    pub fn facts(&self) -> NodeFacts {
        NodeFacts {
            cluster_cidrs: self.cluster_cidrs.clone(),
            node_addresses: self.node_addresses.clone(),
            node_port_addresses: self.node_port_addresses.clone(),
            service_cidrs: self.service_cidrs.clone(),
        }
    }

    /// Turns this plan into the next one.
    pub fn apply(&mut self, change: &PlanChange) {
        for key in &change.removed {
            self.frontends.remove(key);
        }
        self.frontends.extend(change.set.iter().map(|(key, frontend)| (*key, frontend.clone())));
        change.cluster_ips.apply(&mut self.cluster_ips);
        change.local_endpoints.apply(&mut self.local_endpoints);
        if let Some(facts) = &change.node {
            self.cluster_cidrs.clone_from(&facts.cluster_cidrs);
            self.node_addresses.clone_from(&facts.node_addresses);
            self.node_port_addresses.clone_from(&facts.node_port_addresses);
            self.service_cidrs.clone_from(&facts.service_cidrs);
        }
    }
}

impl PlanChange {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == PlanChange::default()
    }
}

impl SetChange {
    fn apply(&self, set: &mut BTreeSet<IpAddr>) {
        for address in &self.removed {
            set.remove(address);
        }
        set.extend(&self.added);
    }
}
