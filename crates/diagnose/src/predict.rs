//! Pure. From the walks of single nodes to the ways of a packet through the whole cluster.
//!
//! ```text
//! sender ─▶ its node: walk ─▶ rewritten packet ─▶ pod here │ process here │ another node: walk ─▶ ... ─▶ Fate
//! outside ─▶ router ─▶ the node that has the address
//! ```
//!
//! Generic over the walk, so that plan and program are chained by the same code. The answer's way back is looked at
//! too: a node that rewrote a packet without masquerading must see the answer, or the client gets one from a stranger.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use signpost_core::object::Protocol;
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};

use crate::address::{PodName, Source};
pub use index::Indexed;

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

/// Where a node meets what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// At the socket of a process of the node or of its pods, before there is a packet.
    Socket,
    /// As a packet.
    Packet,
}

/// What one node does: its name, where, the packet.
pub type Walk<'a> = dyn Fn(&str, At, &Packet) -> Verdict + 'a;

/// One thing that happens to a packet.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// It is sent.
    Sent {
        /// By whom.
        by: Source,
        /// As it is.
        packet: Packet,
    },
    /// The socket that sends it does something to it.
    AtSocket {
        /// The node.
        node: String,
        /// As the process asked for it.
        before: Packet,
        /// As it is sent.
        after: Packet,
        /// What was done: rewritten, refused or dropped.
        done: Done,
    },
    /// It meets the rules of a node.
    Ruled {
        /// The node.
        node: String,
        /// As it came.
        before: Packet,
        /// As it goes on.
        after: Packet,
        /// What they did.
        done: Done,
    },
    /// It goes over the node segment.
    Carried {
        /// From this node; `None`: from the router.
        from: Option<String>,
        /// To this node.
        to: String,
        /// As it is.
        packet: Packet,
    },
    /// It comes to where its destination is, or should be.
    Arrived {
        /// On this node; `None`: beyond the nodes.
        node: Option<String>,
        /// Who is there; `None`: nobody, or nobody who listens.
        by: Option<Answerer>,
        /// The pod that has the address, whether or not it listens.
        pod: Option<PodName>,
        /// As it is.
        packet: Packet,
    },
}

/// What rules did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Nothing: it is none of theirs.
    Untouched,
    /// Refused it.
    Rejected,
    /// Dropped it.
    Dropped,
    /// Rewrote it.
    Rewritten {
        /// The new destination.
        to: SocketAddr,
        /// Whether its source became the node's.
        masqueraded: bool,
        /// Whether the rules asked for that; what came in and stays on the node keeps its source.
        asked_to_masquerade: bool,
    },
}

/// One of the ways that a packet may take.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// What happens, in order.
    pub steps: Vec<Step>,
    /// How it ends.
    pub fate: Fate,
    /// How likely it is, from 0 to 1: each backend of a choice counts as much as the others.
    pub share: f64,
}

/// No path in a lab has more nodes; a longer one goes round in circles.
const MAX_NODES: usize = 6;

/// The fates of the first packet of a flow.
pub fn predict(view: &ClusterView, walk: &Walk<'_>, sender: &Source, packet: Packet) -> Prediction {
    let mut fates = Prediction::new();
    for way in ways(&Indexed::of(view), walk, sender, packet) {
        let mut hops: Vec<String> = way.steps.iter().filter_map(Step::told).collect();
        hops.push(way.fate.to_string());
        fates.entry(way.fate).or_insert(hops);
    }
    fates
}

/// Every way that the first packet of a flow may take.
pub fn ways(view: &Indexed<'_>, walk: &Walk<'_>, sender: &Source, packet: Packet) -> Vec<Way> {
    let mut path = Path { index: view, view: view.view, walk, ways: Vec::new() };
    path.send(sender, packet);
    path.ways
}

impl Step {
    /// The packet as it goes on.
    pub fn packet(&self) -> &Packet {
        match self {
            Step::Sent { packet, .. } | Step::Carried { packet, .. } | Step::Arrived { packet, .. } => packet,
            Step::AtSocket { after, .. } | Step::Ruled { after, .. } => after,
        }
    }

    /// For a scenario's report; `None`: not worth a word.
    fn told(&self) -> Option<String> {
        match self {
            Step::Sent { by, packet } => Some(format!("{by} sends to {}", packet.destination)),
            Step::Ruled { node, done, .. } => match done {
                Done::Untouched => None,
                Done::Rejected => Some(format!("{node} rejects it")),
                Done::Dropped => Some(format!("{node} drops it")),
                Done::Rewritten { to, masqueraded: true, .. } => {
                    Some(format!("{node} rewrites it to {to} and masquerades"))
                }
                Done::Rewritten { to, .. } => Some(format!("{node} rewrites it to {to}")),
            },
            Step::AtSocket { node, done, .. } => match done {
                Done::Untouched => None,
                Done::Rejected => Some(format!("{node} refuses it at the socket")),
                Done::Dropped => Some(format!("{node} drops it at the socket")),
                Done::Rewritten { to, .. } => Some(format!("{node} connects the socket to {to}")),
            },
            Step::Carried { .. } | Step::Arrived { .. } => None,
        }
    }
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
    index: &'a Indexed<'a>,
    view: &'a ClusterView,
    walk: &'a Walk<'a>,
    ways: Vec<Way>,
}

#[derive(Clone)]
struct Flow {
    packet: Packet,
    seen: Seen,
    client_node: Option<String>,
    /// Nodes that rewrote the destination and left the source: they must see the answer.
    rewriters: Vec<String>,
    steps: Vec<Step>,
    nodes: usize,
    share: f64,
}

impl Path<'_> {
    fn send(&mut self, sender: &Source, packet: Packet) {
        let host = self.index.host_of(sender).map(str::to_owned);
        let client_node = match sender {
            Source::Pod(name) => self.index.pod(name).map(|pod| pod.node.clone()),
            _ => host.clone(),
        };
        let seen = host.clone().map_or(Seen::Address(packet.source.ip()), Seen::Node);
        let entry = if host.is_some() { Entry::Local } else { Entry::Interface };
        let packet = Packet { entry, ..packet };
        let flow = Flow {
            packet,
            seen,
            client_node: client_node.clone(),
            rewriters: Vec::new(),
            steps: vec![Step::Sent { by: sender.clone(), packet }],
            nodes: 0,
            share: 1.0,
        };
        match client_node {
            Some(node) => self.at_socket(&node, host.is_none(), flow),
            None => self.forward(None, flow),
        }
    }

    fn at_socket(&mut self, name: &str, is_pod: bool, mut flow: Flow) {
        let before = flow.packet;
        let step = |after, done| Step::AtSocket { node: name.to_owned(), before, after, done };
        match (self.walk)(name, At::Socket, &flow.packet) {
            Verdict::NotOurs => self.sent(name, is_pod, flow),
            Verdict::Reject => {
                flow.steps.push(step(before, Done::Rejected));
                self.end(flow, Fate::Refused);
            }
            Verdict::Drop => {
                flow.steps.push(step(before, Done::Dropped));
                self.end(flow, Fate::Dropped);
            }
            Verdict::Rewrite(rewrites) => {
                let share = flow.share / rewrites.len() as f64;
                for Rewrite { to, .. } in rewrites {
                    let mut flow = Flow { share, ..flow.clone() };
                    flow.packet.destination = to;
                    let done = Done::Rewritten { to, masqueraded: false, asked_to_masquerade: false };
                    flow.steps.push(step(flow.packet, done));
                    self.sent(name, is_pod, flow);
                }
            }
        }
    }

    /// From the socket on. A pod's own address never leaves the pod.
    fn sent(&mut self, name: &str, is_pod: bool, flow: Flow) {
        if is_pod && flow.packet.destination.ip() == flow.packet.source.ip() {
            self.at_pod(name, flow);
        } else {
            self.at_node(name, flow);
        }
    }

    fn end(&mut self, flow: Flow, fate: Fate) {
        self.ways.push(Way { steps: flow.steps, fate, share: flow.share });
    }

    fn at_node(&mut self, name: &str, mut flow: Flow) {
        flow.nodes += 1;
        if flow.nodes > MAX_NODES {
            return self.end(flow, Fate::Lost);
        }
        let before = flow.packet;
        let ruled = |done| Step::Ruled { node: name.to_owned(), before, after: before, done };
        match (self.walk)(name, At::Packet, &flow.packet) {
            Verdict::NotOurs => {
                flow.steps.push(ruled(Done::Untouched));
                self.route(name, flow);
            }
            Verdict::Reject => {
                flow.steps.push(ruled(Done::Rejected));
                self.end(flow, Fate::Refused);
            }
            Verdict::Drop => {
                flow.steps.push(ruled(Done::Dropped));
                self.end(flow, Fate::Dropped);
            }
            Verdict::Rewrite(rewrites) => {
                let share = flow.share / rewrites.len() as f64;
                for rewrite in rewrites {
                    self.rewritten(name, Flow { share, ..flow.clone() }, rewrite);
                }
            }
        }
    }

    fn rewritten(&mut self, name: &str, mut flow: Flow, rewrite: Rewrite) {
        let before = flow.packet;
        flow.packet.destination = rewrite.to;
        let node = self.index.node(name);
        // The kernel masquerades what leaves a node: what came in and stays never passes that hook.
        let stays = node.is_some_and(|node| node.addresses.contains(&rewrite.to.ip()));
        let masqueraded = rewrite.masquerade && (flow.packet.entry == Entry::Local || !stays);
        if masqueraded {
            flow.seen = Seen::Node(name.to_owned());
            if let Some(node) = node {
                flow.packet.source.set_ip(node.primary);
            }
        } else {
            flow.rewriters.push(name.to_owned());
        }
        let done = Done::Rewritten { to: rewrite.to, masqueraded, asked_to_masquerade: rewrite.masquerade };
        flow.steps.push(Step::Ruled { node: name.to_owned(), before, after: flow.packet, done });
        self.route(name, flow);
    }

    /// From a node on, once its rules are through.
    fn route(&mut self, name: &str, flow: Flow) {
        let destination = flow.packet.destination.ip();
        let Some(node) = self.index.node(name) else { return self.end(flow, Fate::Lost) };
        if node.addresses.contains(&destination) {
            return self.at_process(name, flow);
        }
        let here = node.pod_cidrs.iter().any(|cidr| cidr.contains(&destination));
        if here || self.node_of_pod(destination).is_some_and(|node| node == name) {
            return self.at_pod(name, flow);
        }
        self.forward(Some(name), flow);
    }

    /// On the node segment: to the node that has the address or the pod.
    fn forward(&mut self, from: Option<&str>, mut flow: Flow) {
        let destination = flow.packet.destination.ip();
        flow.packet.entry = Entry::Interface;
        let packet = flow.packet;
        let next =
            self.view.nodes.iter().find(|node| {
                node.primary == destination || node.pod_cidrs.iter().any(|cidr| cidr.contains(&destination))
            });
        let next = next.map(|node| node.name.clone()).or_else(|| self.view.routes.get(&destination).cloned());
        let next = next.or_else(|| self.node_of_pod(destination).map(str::to_owned));
        match next.filter(|next| from != Some(next.as_str())) {
            Some(name) => {
                flow.steps.push(Step::Carried { from: from.map(str::to_owned), to: name.clone(), packet });
                self.at_node(&name, flow);
            }
            None if self.view.others.contains(&packet.destination) => {
                let by = Answerer::Address(packet.destination);
                self.answered(None, by, None, flow);
            }
            None => self.end(flow, Fate::Lost),
        }
    }

    /// Not every network gives each node a range of its own.
    fn node_of_pod(&self, address: IpAddr) -> Option<&str> {
        self.index.pods_at(address).find(|pod| !pod.host_network).map(|pod| pod.node.as_str())
    }

    fn at_pod(&mut self, node: &str, mut flow: Flow) {
        let destination = flow.packet.destination;
        let found = self.index.pods_at(destination.ip()).find(|pod| !pod.host_network);
        let (node, packet) = (Some(node.to_owned()), flow.packet);
        match found {
            Some(pod) if pod.answers(&flow.packet) => {
                self.answered(Some(&pod.node), Answerer::Pod(pod.name.clone()), Some(pod.name.clone()), flow);
            }
            Some(pod) => {
                flow.steps.push(Step::Arrived { node, by: None, pod: Some(pod.name.clone()), packet });
                self.end(flow, Fate::Refused);
            }
            None => {
                flow.steps.push(Step::Arrived { node, by: None, pod: None, packet });
                self.end(flow, Fate::Lost);
            }
        }
    }

    fn at_process(&mut self, node: &str, mut flow: Flow) {
        match self.index.pods_in_network_of(node).find(|pod| pod.answers(&flow.packet)) {
            None => {
                let packet = flow.packet;
                flow.steps.push(Step::Arrived { node: Some(node.to_owned()), by: None, pod: None, packet });
                self.end(flow, Fate::Refused);
            }
            Some(pod) => self.answered(Some(node), Answerer::Pod(pod.name.clone()), Some(pod.name.clone()), flow),
        }
    }

    fn answered(&mut self, node: Option<&str>, by: Answerer, pod: Option<PodName>, mut flow: Flow) {
        let packet = flow.packet;
        flow.steps.push(Step::Arrived { node: node.map(str::to_owned), by: Some(by.clone()), pod, packet });
        let stranger = flow.rewriters.iter().any(|rewriter| {
            Some(rewriter.as_str()) != node
                && Some(rewriter) != flow.client_node.as_ref()
                && !matches!(&flow.seen, Seen::Node(masquerader) if masquerader == rewriter)
        });
        let fate =
            if stranger { Fate::Lost } else { Fate::Reached { by, at: packet.destination, source: flow.seen.clone() } };
        self.end(flow, fate);
    }
}

impl PodView {
    fn answers(&self, packet: &Packet) -> bool {
        let listens = self.listens.as_ref();
        let port = (packet.protocol, packet.destination.port());
        listens.is_none_or(|listens| listens.contains(&port))
            && self.bind.is_none_or(|bind| serves(bind, packet.destination.ip()))
    }
}

/// Whether a socket at one address gets what is for another: at all IPv4 addresses, or at all of both families.
fn serves(bind: IpAddr, destination: IpAddr) -> bool {
    bind == destination || (bind.is_unspecified() && (bind.is_ipv6() || destination.is_ipv4()))
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
