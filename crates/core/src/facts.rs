//! Pure. What a plan needs to know of its own node: from configuration and from the node's object.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::object::Family;
use crate::plan::NodeFacts;
use crate::plan::backends::Site;
use crate::plan::frontend::Surroundings;
use crate::plan::policy::Masquerade;
use crate::store::Store;

/// What the node daemon knows besides API objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// The node's name, as its object has it.
    pub node: Arc<str>,
    /// The addresses of all pods of the cluster, both families; empty in a family: not known.
    pub cluster_cidrs: Vec<IpNet>,
    /// Masquerade whatever goes to a cluster address.
    pub masquerade_all: bool,
    /// The addresses of the node's interfaces, both families.
    pub node_addresses: BTreeSet<IpAddr>,
    /// At which of them node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// Whether they may answer at IPv4's loopback too, if `node_port_addresses` has it: a mode must be able to.
    pub localhost_node_ports: bool,
    /// Whether `loadBalancerSourceRanges` guard a Service's node ports, too.
    pub source_ranges_on_node_ports: bool,
    /// Whether this node's cache for names is ready: the cluster's name service is then reached there, see [`crate::node_cache`].
    pub node_cache: bool,
}

/// `nodePortAddresses`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodePortAddresses {
    /// The first InternalIP of each family that the node's object names.
    #[default]
    Primary,
    /// Every address of the node.
    All,
    /// Those in these ranges.
    Cidrs(Vec<IpNet>),
}

/// The node's own part of the plan.
pub(crate) fn node_facts(config: &NodeConfig, store: &Store, family: Family) -> NodeFacts {
    let node_addresses: BTreeSet<IpAddr> =
        config.node_addresses.iter().copied().filter(|address| Family::of(*address) == family).collect();
    NodeFacts {
        cluster_cidrs: cluster_cidrs(config, family),
        node_port_addresses: node_port_addresses(config, store, family, &node_addresses),
        node_addresses,
        service_cidrs: store.service_cidrs(family),
    }
}

/// What every Service's frontends depend on.
pub(crate) fn surroundings(config: &NodeConfig, store: &Store, family: Family) -> Surroundings {
    let zone = store.node(&config.node).and_then(|node| node.zone());
    let not_pods = !cluster_cidrs(config, family).is_empty();
    Surroundings {
        family,
        site: Site { node: config.node.clone(), zone: zone.filter(|zone| !zone.is_empty()).cloned() },
        masquerade: Masquerade { all: config.masquerade_all, not_pods },
        primary: primary(config, store, family),
        node_cache: config.node_cache,
        guarded: config.source_ranges_on_node_ports.then(|| {
            let addresses = config.node_addresses.iter().copied().filter(|address| Family::of(*address) == family);
            node_port_addresses(config, store, family, &addresses.collect())
        }),
    }
}

fn cluster_cidrs(config: &NodeConfig, family: Family) -> Vec<IpNet> {
    let ranges = config.cluster_cidrs.iter().filter(|range| Family::of(range.addr()) == family);
    ranges.map(IpNet::trunc).collect::<BTreeSet<IpNet>>().into_iter().collect()
}

fn primary(config: &NodeConfig, store: &Store, family: Family) -> Option<IpAddr> {
    let addresses = &store.node(&config.node)?.addresses;
    addresses.iter().copied().find(|address| Family::of(*address) == family)
}

/// Loopback answers only where it may: a packet that leaves the machine with such a source, or comes in for such a
/// destination, is thrown away by the kernel unless it is told otherwise, which IPv6 cannot be. Link-local addresses are no addresses without their interface, so they have to be asked for.
fn node_port_addresses(
    config: &NodeConfig,
    store: &Store,
    family: Family,
    node_addresses: &BTreeSet<IpAddr>,
) -> BTreeSet<IpAddr> {
    let may_answer = |address: &IpAddr| !address.is_loopback() || (config.localhost_node_ports && address.is_ipv4());
    let candidates = node_addresses.iter().copied().filter(may_answer);
    match &config.node_port_addresses {
        NodePortAddresses::Primary => {
            let primary = primary(config, store, family);
            candidates.filter(|address| Some(*address) == primary).collect()
        }
        NodePortAddresses::All => candidates.filter(|address| !is_link_local(*address)).collect(),
        NodePortAddresses::Cidrs(ranges) => {
            candidates.filter(|address| ranges.iter().any(|range| range.contains(address))).collect()
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => Ipv6Addr::is_unicast_link_local(&address),
    }
}
