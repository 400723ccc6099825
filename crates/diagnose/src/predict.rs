//! Pure. From the walks of single nodes to the fate of a packet in the whole lab.
//!
//! ```text
//! sender ─▶ its node: walk ─▶ rewritten packet ─▶ pod here │ process here │ another node: walk ─▶ ... ─▶ Fate
//! outside ─▶ router ─▶ the node that has the address
//! ```
//!
//! Generic over the walk, so that plan and program are chained by the same code. The answer's way back is looked at
//! too: a node that rewrote a packet without masquerading must see the answer, or the client gets one from a stranger.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use signpost_core::object::Protocol;
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};

use crate::address::{PodName, Source};

/// What is where, for one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The nodes.
    pub nodes: Vec<NodeView>,
    /// The pods, those that are ending too.
    pub pods: Vec<PodView>,
    /// The outside client's address.
    pub outside: Option<IpAddr>,
    /// What else listens in the lab: the API.
    pub others: BTreeSet<SocketAddr>,
    /// Addresses on no interface that the router sends to a node, by its name.
    pub routes: BTreeMap<IpAddr, String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// The address that other nodes and the router know it by.
    pub primary: IpAddr,
    /// All its addresses, `primary` too.
    pub addresses: BTreeSet<IpAddr>,
    /// The ranges of its pods.
    pub pod_cidrs: Vec<IpNet>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    /// Its name.
    pub name: PodName,
    /// Its node.
    pub node: String,
    /// Its address; of its node if it lives in the node's network.
    pub address: IpAddr,
    /// Whether it lives in the node's network.
    pub host_network: bool,
    /// Where it listens; `None`: not known, counts as everywhere.
    pub listens: Option<BTreeSet<(Protocol, u16)>>,
    /// The one address that it listens on; `None`: all.
    pub bind: Option<IpAddr>,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answerer {
    /// A pod.
    Pod(PodName),
    /// Something else at this address.
    Address(SocketAddr),
}

/// What the backend sees as its peer's address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// This one.
    Address(IpAddr),
    /// One of a node's: which of them depends on the way out.
    Node(String),
}

/// How it ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Somebody answers.
    Reached {
        /// Who.
        by: Answerer,
        /// At which address and port, after every rewriting.
        at: SocketAddr,
        /// Whom they think they answer.
        source: Seen,
    },
    /// Refused at once.
    Refused,
    /// Dropped without a word.
    Dropped,
    /// No way to the address, or none back: silence, or "unreachable" after a while.
    Lost,
}

/// Every fate that a packet may have, each with the hops that lead there (those of one way, if there are several).
pub type Prediction = BTreeMap<Fate, Vec<String>>;

/// What one node does to a packet: its name, the packet.
pub type Walk<'a> = dyn Fn(&str, &Packet) -> Verdict + 'a;

/// No path in a lab has more nodes; a longer one goes round in circles.
const MAX_NODES: usize = 6;

/// The fates of the first packet of a flow.
pub fn predict(view: &ClusterView, walk: &Walk<'_>, sender: &Source, packet: Packet) -> Prediction {
    let mut path = Path { view, walk, fates: Prediction::new() };
    path.send(sender, packet);
    path.fates
}

impl ClusterView {
    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// A pod by name.
    pub fn pod(&self, name: &PodName) -> Option<&PodView> {
        self.pods.iter().find(|pod| pod.name == *name)
    }

    /// The address that a sender's packets have towards everything but its own host.
    pub fn address_of(&self, sender: &Source) -> Option<IpAddr> {
        match sender {
            Source::Pod(name) => self.pod(name).map(|pod| pod.address),
            Source::Node(name) => self.node(name).map(|node| node.primary),
            Source::Outside => self.outside,
        }
    }

    /// The node whose own processes send, if the sender is one of them: on a node, or a pod in its network.
    pub fn host_of<'a>(&'a self, sender: &'a Source) -> Option<&'a str> {
        match sender {
            Source::Node(name) => Some(name),
            Source::Pod(name) => self.pod(name).filter(|pod| pod.host_network).map(|pod| pod.node.as_str()),
            Source::Outside => None,
        }
    }

    /// Whether the peer that a backend reports is the one that was predicted.
    pub fn is_seen(&self, seen: &Seen, peer: IpAddr) -> bool {
        match seen {
            Seen::Address(address) => *address == peer,
            Seen::Node(name) => self.node(name).is_some_and(|node| node.addresses.contains(&peer)),
        }
    }
}

struct Path<'a> {
    view: &'a ClusterView,
    walk: &'a Walk<'a>,
    fates: Prediction,
}

#[derive(Clone)]
struct Flow {
    packet: Packet,
    seen: Seen,
    client_node: Option<String>,
    /// Nodes that rewrote the destination and left the source: they must see the answer.
    rewriters: Vec<String>,
    hops: Vec<String>,
    nodes: usize,
}

impl Path<'_> {
    fn send(&mut self, sender: &Source, packet: Packet) {
        let host = self.view.host_of(sender).map(str::to_owned);
        let client_node = match sender {
            Source::Pod(name) => self.view.pod(name).map(|pod| pod.node.clone()),
            _ => host.clone(),
        };
        let seen = host.clone().map_or(Seen::Address(packet.source.ip()), Seen::Node);
        let entry = if host.is_some() { Entry::Local } else { Entry::Interface };
        let flow = Flow {
            packet: Packet { entry, ..packet },
            seen,
            client_node: client_node.clone(),
            rewriters: Vec::new(),
            hops: vec![format!("{sender} sends to {}", packet.destination)],
            nodes: 0,
        };
        // A pod's own address never leaves the pod.
        let own = matches!(sender, Source::Pod(_)) && packet.destination.ip() == packet.source.ip();
        match client_node {
            _ if own && host.is_none() => self.at_pod(flow),
            Some(node) => self.at_node(&node, flow),
            None => self.forward(flow),
        }
    }

    fn end(&mut self, mut flow: Flow, fate: Fate) {
        flow.hops.push(fate.to_string());
        self.fates.entry(fate).or_insert(flow.hops);
    }

    fn at_node(&mut self, name: &str, mut flow: Flow) {
        flow.nodes += 1;
        if flow.nodes > MAX_NODES {
            return self.end(flow, Fate::Lost);
        }
        let verdict = (self.walk)(name, &flow.packet);
        match verdict {
            Verdict::NotOurs => self.route(name, flow),
            Verdict::Reject => {
                flow.hops.push(format!("{name} rejects it"));
                self.end(flow, Fate::Refused);
            }
            Verdict::Drop => {
                flow.hops.push(format!("{name} drops it"));
                self.end(flow, Fate::Dropped);
            }
            Verdict::Rewrite(rewrites) => {
                for rewrite in rewrites {
                    self.rewritten(name, flow.clone(), rewrite);
                }
            }
        }
    }

    fn rewritten(&mut self, name: &str, mut flow: Flow, rewrite: Rewrite) {
        flow.packet.destination = rewrite.to;
        let node = self.view.node(name);
        // The kernel masquerades what leaves a node: what came in and stays never passes that hook.
        let stays = node.is_some_and(|node| node.addresses.contains(&rewrite.to.ip()));
        if rewrite.masquerade && (flow.packet.entry == Entry::Local || !stays) {
            flow.hops.push(format!("{name} rewrites it to {} and masquerades", rewrite.to));
            flow.seen = Seen::Node(name.to_owned());
            if let Some(node) = node {
                flow.packet.source.set_ip(node.primary);
            }
        } else {
            flow.hops.push(format!("{name} rewrites it to {}", rewrite.to));
            flow.rewriters.push(name.to_owned());
        }
        self.route(name, flow);
    }

    /// From a node on, once its rules are through.
    fn route(&mut self, name: &str, flow: Flow) {
        let destination = flow.packet.destination.ip();
        let Some(node) = self.view.node(name) else { return self.end(flow, Fate::Lost) };
        if node.addresses.contains(&destination) {
            return self.at_process(name, flow);
        }
        if node.pod_cidrs.iter().any(|cidr| cidr.contains(&destination)) {
            return self.at_pod(flow);
        }
        self.forward(flow);
    }

    /// On the node segment: to the node that has the address or the pod.
    fn forward(&mut self, mut flow: Flow) {
        let destination = flow.packet.destination.ip();
        flow.packet.entry = Entry::Interface;
        let next =
            self.view.nodes.iter().find(|node| {
                node.primary == destination || node.pod_cidrs.iter().any(|cidr| cidr.contains(&destination))
            });
        let next = next.map(|node| &node.name).or_else(|| self.view.routes.get(&destination));
        match next.cloned() {
            Some(name) => self.at_node(&name, flow),
            None if self.view.others.contains(&flow.packet.destination) => {
                let by = Answerer::Address(flow.packet.destination);
                self.answered(None, by, flow);
            }
            None => self.end(flow, Fate::Lost),
        }
    }

    fn at_pod(&mut self, flow: Flow) {
        let destination = flow.packet.destination;
        let mut pods = self.view.pods.iter().filter(|pod| !pod.host_network);
        match pods.find(|pod| pod.address == destination.ip()) {
            None => self.end(flow, Fate::Lost),
            Some(pod) if pod.answers(&flow.packet) => {
                self.answered(Some(&pod.node), Answerer::Pod(pod.name.clone()), flow);
            }
            Some(_) => self.end(flow, Fate::Refused),
        }
    }

    fn at_process(&mut self, node: &str, flow: Flow) {
        let mut pods = self.view.pods.iter().filter(|pod| pod.host_network && pod.node == node);
        match pods.find(|pod| pod.answers(&flow.packet)) {
            None => self.end(flow, Fate::Refused),
            Some(pod) => self.answered(Some(node), Answerer::Pod(pod.name.clone()), flow),
        }
    }

    fn answered(&mut self, node: Option<&str>, by: Answerer, flow: Flow) {
        let stranger = flow.rewriters.iter().any(|rewriter| {
            Some(rewriter.as_str()) != node
                && Some(rewriter) != flow.client_node.as_ref()
                && !matches!(&flow.seen, Seen::Node(masquerader) if masquerader == rewriter)
        });
        let fate = if stranger {
            Fate::Lost
        } else {
            Fate::Reached { by, at: flow.packet.destination, source: flow.seen.clone() }
        };
        self.end(flow, fate);
    }
}

impl PodView {
    fn answers(&self, packet: &Packet) -> bool {
        let listens = self.listens.as_ref();
        let port = (packet.protocol, packet.destination.port());
        listens.is_none_or(|listens| listens.contains(&port))
            && self.bind.is_none_or(|bind| bind == packet.destination.ip())
    }
}

impl fmt::Display for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answerer::Pod(pod) => write!(f, "{pod}"),
            Answerer::Address(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Reached { by, at, source: Seen::Address(address) } => write!(f, "{by} at {at} sees {address}"),
            Fate::Reached { by, at, source: Seen::Node(node) } => write!(f, "{by} at {at} sees node {node}"),
            Fate::Refused => f.write_str("refused"),
            Fate::Dropped => f.write_str("dropped"),
            Fate::Lost => f.write_str("no way there and back"),
        }
    }
}

#[cfg(test)]
mod tests;
