//! Pure. Everything that a verdict is made of, as one value that can be saved, sent to somebody else, and judged there.
//!
//! ```text
//! API objects ─┐
//! each node ───┼─▶ Snapshot (JSON, versioned) ─┬─▶ trace: hops
//! each pod ────┘        ▲                      └─▶ doctor: findings
//!                    --from-file
//! ```
//!
//! What could not be read is said so: a verdict never takes what is unknown for what is well.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::NodePlan;

use crate::firewall::Chain;
use crate::listed::{Listed, Surroundings};
use crate::network::{Interface, Listener, Neighbour, Route};
use crate::program::Program;

/// The version of the form. A reader refuses a later one.
pub const API_VERSION: &str = "signpost.io/v1";
/// The kind in a saved file.
pub const KIND: &str = "Snapshot";

/// A cluster at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// When, as RFC 3339 has it.
    #[serde(default)]
    pub taken_at: String,
    /// The version of the program that took it.
    #[serde(default)]
    pub taken_by: String,
    /// How often it was looked until objects, plans and kernels agreed, or were given up on.
    #[serde(default)]
    pub looks: usize,
    /// Of what: `lab NAME`, or the API's address.
    #[serde(default)]
    pub origin: String,
    /// Whether it is one of a lab: then what the lab's network is like is known.
    #[serde(default)]
    pub lab: bool,
    /// The API's objects.
    #[serde(default)]
    pub objects: Listed,
    /// What of the cluster as a whole could not be read.
    #[serde(default)]
    pub unknown: Vec<Unknown>,
    /// Nodes, by name.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeState>,
    /// Pods in networks of their own, by `namespace/name`.
    #[serde(default)]
    pub pods: BTreeMap<String, PodState>,
    /// The addresses of a client outside, if there is one.
    #[serde(default)]
    pub outside: Vec<IpAddr>,
    /// What else listens on the nodes' network.
    #[serde(default)]
    pub others: BTreeSet<SocketAddr>,
    /// Addresses on no interface that the router sends to a node, by its name.
    #[serde(default)]
    pub routes: BTreeMap<IpAddr, String>,
}

/// What could not be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// What.
    pub what: String,
    /// Why; with the right that is missing, if one is.
    pub why: String,
}

/// What was read on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeState {
    /// Why nothing was read there; then nothing below is set.
    pub unreached: Option<String>,
    /// What else could not be read.
    pub unknown: Vec<Unknown>,
    /// The node daemon.
    pub daemon: DaemonState,
    /// What the daemon says must happen to packets.
    pub plans: BTreeMap<Family, NodePlan>,
    /// The rules that it made of that.
    pub programs: BTreeMap<Family, Program>,
    /// What the objects ask for, made of them anew: see [`crate::planned::plan_anew`].
    #[serde(skip)]
    pub wanted: BTreeMap<Family, NodePlan>,
    /// What the kernel holds, compared with the programs.
    pub kernel: BTreeMap<Family, KernelState>,
    /// Switches of the kernel, by their names with dots.
    pub sysctls: BTreeMap<String, String>,
    /// Connection tracking.
    pub conntrack: ConntrackState,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its routes.
    pub routes: Vec<Route>,
    /// Its neighbours.
    pub neighbours: Vec<Neighbour>,
    /// Where its own processes listen.
    pub listeners: BTreeSet<Listener>,
    /// Rules that are none of ours, in the hooks that packets pass.
    pub firewall: Vec<Chain>,
    /// Traces of Service proxies and of other modes.
    pub proxies: Vec<ProxyTrace>,
}

/// The node daemon, as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonState {
    /// Whether it answers.
    pub answers: bool,
    /// Why not.
    pub problem: Option<String>,
    /// Its mode.
    pub mode: Option<String>,
    /// Whether it says that it is not behind.
    pub live: Option<bool>,
    /// What it says that it waits for.
    pub waiting_for: Option<String>,
    /// When the kernel was last known to hold the plan.
    pub last_updated: Option<String>,
    /// Per kind, the resourceVersion up to which everything is in the kernel.
    pub programmed: BTreeMap<String, u64>,
}

/// What the kernel holds of our rules, of one family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelState {
    /// What it was compared with.
    pub compared_with: ComparedWith,
    /// What differs.
    pub differences: Vec<Difference>,
    /// How many more differ.
    pub more: usize,
}

/// What the kernel was compared with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ComparedWith {
    /// The rules that the daemon says it has programmed.
    #[default]
    Program,
    /// Rules made of the objects, as no daemon answers.
    Objects,
}

/// Something in the kernel that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// How it differs.
    pub kind: DifferenceKind,
    /// Where: a table, a chain, a map.
    pub place: String,
    /// What: an element, rules.
    pub what: String,
    /// The frontend that it serves, if one can be told.
    pub frontend: Option<String>,
    /// The Service port, if one can be told.
    pub service_port: Option<String>,
}

/// How something differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DifferenceKind {
    /// It is not in the kernel.
    Missing,
    /// It is, but otherwise.
    Changed,
    /// Nobody wants it.
    Extra,
}

/// Connection tracking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConntrackState {
    /// Entries.
    pub count: Option<u64>,
    /// The most that fit.
    pub max: Option<u64>,
    /// Counters, summed over processors.
    pub counters: BTreeMap<String, u64>,
    /// UDP flows whose destination was rewritten.
    pub translated_udp: Vec<UdpFlow>,
    /// How many flows take a port of an address that the node masquerades with, towards one backend: the most first.
    pub masqueraded: Vec<PortUse>,
    /// How many TCP connections are established to one address and port: the most first.
    pub established: Vec<Held>,
}

/// Ports that are taken of one address, towards one destination: each must differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortUse {
    /// The node's address.
    pub by: IpAddr,
    /// The destination, after all rewriting.
    pub backend: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// So many.
    pub flows: usize,
}

/// Connections to one address and port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The destination, after all rewriting.
    pub backend: SocketAddr,
    /// So many.
    pub flows: usize,
}

/// A UDP flow that was rewritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpFlow {
    /// The client.
    pub client: SocketAddr,
    /// Where it sends to.
    pub to: SocketAddr,
    /// Where that leads.
    pub backend: SocketAddr,
}

/// A trace of a Service proxy that is not the one in charge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyTrace {
    /// The mode whose rules these are, or another product's name.
    pub of: String,
    /// What was found.
    pub found: String,
    /// Whether rules of this sort catch packets.
    pub acts: bool,
}

/// What was read in a pod's network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodState {
    /// Why nothing was.
    pub unreached: Option<String>,
    /// Where its processes listen.
    pub listeners: BTreeSet<Listener>,
}

/// Why a file is no snapshot for this program.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It is no JSON, or not of this form.
    #[error("this is no snapshot: {reason}")]
    Form {
        /// Where it goes wrong.
        reason: String,
    },
    /// It is something else.
    #[error("this is no snapshot but a {kind} of {api_version}; `signpost doctor --save FILE` writes one")]
    Other {
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
    /// Written by a later version.
    #[error("this snapshot has the form {api_version}, which a newer signpost wrote; this one reads {API_VERSION}")]
    Newer {
        /// Its version.
        api_version: String,
    },
}

impl NodeState {
    /// Whether anything differs between objects, plan and kernel.
    pub fn differs(&self) -> bool {
        let plans = self.plans.iter().any(|(family, plan)| self.wanted.get(family).is_some_and(|want| want != plan));
        plans || self.kernel.values().any(|kernel| !kernel.differences.is_empty())
    }

    /// The addresses of its interfaces, and those that it is known by.
    pub fn addresses(&self, known_by: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let own = self.interfaces.iter().flat_map(|interface| interface.addresses.iter().map(ipnet::IpNet::addr));
        // An address that is none without its interface is no address of the node for a plan.
        let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        own.filter(|address| !is_link_local(address)).chain(known_by.iter().copied()).collect()
    }

    /// The mode of a daemon that is silent, by what it left in the kernel; `None`: nothing, or of several.
    pub fn silent_mode(&self) -> Option<&str> {
        let mut modes: BTreeSet<&str> = self.proxies.iter().filter(|one| one.acts).map(|one| one.of.as_str()).collect();
        if modes.contains("ipvs") {
            // It has a few rules of iptables around it.
            modes.remove("iptables");
        }
        let mut modes = modes.into_iter();
        modes.next().filter(|_| modes.next().is_none())
    }
}

impl Snapshot {
    /// From the text of a file.
    ///
    /// # Errors
    /// It is none, or one of a version that is not known here.
    pub fn parse(text: &str) -> Result<Snapshot, SnapshotError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            api_version: String,
            kind: String,
        }
        let form = |error: serde_json::Error| SnapshotError::Form { reason: error.to_string() };
        let head: Head = serde_json::from_str(text).map_err(form)?;
        if head.kind != KIND || !head.api_version.starts_with("signpost.io/") {
            return Err(SnapshotError::Other { kind: head.kind, api_version: head.api_version });
        }
        if head.api_version != API_VERSION {
            return Err(SnapshotError::Newer { api_version: head.api_version });
        }
        serde_json::from_str(text).map_err(form)
    }

    /// What the objects do not tell.
    pub fn surroundings(&self) -> Surroundings {
        let addresses = |node: &NodeState| {
            node.interfaces.iter().flat_map(|interface| interface.addresses.iter().map(ipnet::IpNet::addr)).collect()
        };
        Surroundings {
            node_addresses: self.nodes.iter().map(|(name, node)| (name.clone(), addresses(node))).collect(),
            outside: self.outside.clone(),
            others: self.others.clone(),
            routes: self.routes.clone(),
        }
    }

    /// The families that the nodes have addresses of.
    pub fn families(&self) -> Vec<Family> {
        let has = |family: &Family| {
            self.objects.nodes.iter().any(|node| {
                crate::listed::internal_addresses(node).into_iter().any(|address| Family::of(address) == *family)
            })
        };
        [Family::Ipv4, Family::Ipv6].into_iter().filter(has).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_snapshot_is_read_back_as_it_was() {
        let mut snapshot =
            Snapshot { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), ..Snapshot::default() };
        let listener = Listener { protocol: Protocol::Tcp, address: [0; 4].into(), port: 80 };
        let node = NodeState { listeners: [listener].into(), ..NodeState::default() };
        snapshot.nodes.insert("n1".to_owned(), node);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(Snapshot::parse(&text).unwrap(), snapshot);
    }

    #[test]
    fn other_files_are_refused_in_words_that_say_what_they_are() {
        for (text, words) in [
            ("", "no snapshot"),
            ("[1]", "no snapshot"),
            (r#"{"apiVersion":"v1","kind":"Pod"}"#, "a Pod of v1"),
            (r#"{"apiVersion":"signpost.io/v9","kind":"Snapshot","x":1}"#, "newer"),
            (r#"{"apiVersion":"signpost.io/v1","kind":"Snapshot","nodes":7}"#, "no snapshot"),
        ] {
            let error = Snapshot::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
