//! Pure. A packet as the walk sees it, and what can happen to it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::object::Protocol;

/// The first packet of a flow, as it meets a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Packet {
    /// Its protocol.
    pub protocol: Protocol,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port, before any rewriting.
    pub destination: SocketAddr,
    /// How it came to the node.
    pub entry: Entry,
}

/// How a packet meets a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// Made by a process in the node's own network namespace (netfilter: output).
    Local,
    /// Came in through an interface: from a pod of this node, from another node, or from outside (netfilter: prerouting).
    Interface,
}

/// What the rewriting does to a packet that goes to one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rewrite {
    /// The new destination.
    pub to: SocketAddr,
    /// Whether the source becomes an address of the node.
    pub masquerade: bool,
}

/// A packet's fate on one node. `walk(plan)`, `walk(program)` and the kernel must give the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// No frontend: the packet goes on as it is.
    NotOurs,
    /// Rewritten to one of these, each as likely as the others (but for affinity). Never empty.
    Rewrite(BTreeSet<Rewrite>),
    /// Refused at once: TCP reset or ICMP port unreachable.
    Reject,
    /// Dropped without a word.
    Drop,
}

impl Packet {
    /// The destination's address.
    pub fn destination_ip(&self) -> IpAddr {
        self.destination.ip()
    }
}
