//! Pure. Where a packet goes: every hop, forward and back, the packet before and after, and the rule that did it.
//!
//! ```text
//! Snapshot ─▶ ways (predict) ─▶ hops ─▶ Trace (JSON, versioned) ─▶ text, DOT, SVG
//! ```
//!
//! It is the same walk that scenarios are compared with: the answer to "what should happen" and the picture of it are one.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, Protocol};

use crate::address::{Source, Target};

mod compute;
mod hops;
pub mod kernel_trace;
pub mod measured;
pub mod picture;
#[cfg(test)]
mod tests;
pub mod text;

pub use compute::{Stage, first_packet, trace};

/// The kind in its JSON.
pub const KIND: &str = "Trace";

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// Who sends.
    pub from: Source,
    /// What and where to.
    pub to: Target,
    /// In which family; `None`: the first in which both have an address.
    pub family: Option<Family>,
    /// The protocol, if the target does not say it.
    pub protocol: Option<Protocol>,
}

/// The sender's port in a computed packet: no rule looks at it.
pub const SOME_PORT: u16 = 40_000;

/// Why there is no trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The destination has no address.
    #[error(transparent)]
    NoAddress(#[from] crate::listed::NoAddress),
    /// The sender is not there.
    #[error("there is no {0}, or it has no address")]
    NoSender(String),
    /// An echo has no ports.
    #[error("only TCP, UDP and SCTP can be traced: a Service has no rule for an ICMP echo or a name")]
    NoTransport,
}

/// How far something is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Evidence {
    /// It was seen to happen.
    Measured,
    /// It follows from what was read: rules, plans, routes.
    Computed,
    /// It is taken to be so, as nothing was read there.
    Assumed,
}

/// The way of a packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// [`crate::snapshot::API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Who sends.
    pub from: String,
    /// Where to, as asked.
    pub to: String,
    /// The packet as it is sent.
    pub packet: Header,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its family.
    pub family: Family,
    /// The frontend that it meets first.
    pub frontend: Option<FrontendMet>,
    /// Where the address that was asked for vanishes: the number of a hop of the way shown.
    pub vanishes_at: Option<usize>,
    /// Everybody who may answer, with their share.
    pub backends: Vec<BackendMet>,
    /// How it ends, in words.
    pub outcome: String,
    /// Whether somebody answers on every way.
    pub reached: bool,
    /// The ways, the likeliest first.
    pub ways: Vec<WayTraced>,
    /// What was taken for granted.
    pub assumptions: BTreeSet<String>,
}

/// The frontend that a packet meets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendMet {
    /// The Service port.
    pub service_port: String,
    /// Its key.
    pub key: String,
    /// Which of the Service's addresses it is.
    pub kind: String,
    /// On this node.
    pub node: String,
}

/// Somebody who may answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendMet {
    /// Who: a pod's name, or an address.
    pub name: String,
    /// At which address.
    pub at: SocketAddr,
    /// On which node.
    pub node: Option<String>,
    /// How many of all new flows, from 0 to 1.
    pub share: f64,
    /// Whether an answer comes back.
    pub answers: bool,
}

/// One way of the packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WayTraced {
    /// How many of all new flows take it, from 0 to 1.
    pub share: f64,
    /// How it ends.
    pub fate: String,
    /// Whether an answer comes back.
    pub answers: bool,
    /// There.
    pub forward: Vec<Hop>,
    /// And back; empty if nobody answers.
    pub reply: Vec<Hop>,
}

/// Source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The source.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
}

/// One thing that happens to the packet at one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// Counted from 1, through both directions.
    pub number: usize,
    /// On which node; `None`: between nodes or outside.
    pub node: Option<String>,
    /// Where: a pod, a hook, the wire.
    pub place: String,
    /// As it came.
    pub before: Header,
    /// As it goes on.
    pub after: Header,
    /// What happens.
    pub action: String,
    /// The rules that did it, in the mode's own words, in the order of the packet's way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// How this is known.
    pub evidence: Evidence,
    /// The time since the hop before, when measured, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<f64>,
}

impl Hop {
    /// The fields that it changes.
    pub fn changed(&self) -> (bool, bool) {
        (self.before.source != self.after.source, self.before.destination != self.after.destination)
    }
}

/// The address of a socket, for people: a port 0 is left out.
pub fn socket(address: SocketAddr) -> String {
    if address.port() == 0 { ip(address.ip()) } else { address.to_string() }
}

fn ip(address: IpAddr) -> String {
    address.to_string()
}
