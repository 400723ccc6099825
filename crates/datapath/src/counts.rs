//! Pure. What became of the connections that came through a Service port, in modes that count them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use signpost_core::object::Rebalance;

/// Of one Service port, in one family, on this node, since the counting began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortCounts {
    /// Connections and datagrams for which there was no endpoint.
    pub refused: u64,
    /// Connections that were closed so that their clients reach new backends; since the daemon began.
    #[serde(default)]
    pub rebalanced: u64,
    /// By backend, also such as are none any more.
    pub backends: BTreeMap<SocketAddr, BackendCounts>,
}

/// Of one backend of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendCounts {
    /// TCP connections, connected UDP sockets, and unconnected ones that began to send there.
    pub connections: u64,
    /// TCP connections that it refused or did not answer.
    pub unanswered: u64,
    /// What TCP connections that are over had sent, as TCP counts: their opening and end are a byte each.
    pub sent_bytes: u64,
    /// The same for what they received.
    pub received_bytes: u64,
    /// The same in packets, where those are counted.
    #[serde(default)]
    pub sent_packets: u64,
    /// And received.
    #[serde(default)]
    pub received_packets: u64,
}

/// What becomes of a Service port's connections after a scale-up, where it asks that they be spread anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebalancing {
    /// The first is closed, by this wish.
    Begun(Rebalance),
    /// None is left to be closed.
    Ended {
        /// So many were.
        closed: u64,
    },
}

/// Packets that rules of no Service counted, in one family, since the rules were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Connections to node ports at loopback.
    pub localhost_node_ports: u64,
    /// Packets that conntrack took for no part of their flow, and that were dropped.
    pub out_of_flow: u64,
}

impl std::ops::AddAssign for PacketCounts {
    fn add_assign(&mut self, other: PacketCounts) {
        self.localhost_node_ports += other.localhost_node_ports;
        self.out_of_flow += other.out_of_flow;
    }
}

/// How full a map of the kernel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Its name.
    pub map: &'static str,
    /// Entries of one family.
    pub used: u64,
    /// The most that both families may have together.
    pub most: u64,
    /// The flag that gives more.
    pub flag: &'static str,
}

impl PortCounts {
    /// All backends together.
    pub fn total(&self) -> BackendCounts {
        let mut total = BackendCounts::default();
        self.backends.values().for_each(|counts| total.add(counts));
        total
    }

    /// Adds another's.
    pub fn add(&mut self, other: &PortCounts) {
        self.refused += other.refused;
        self.rebalanced += other.rebalanced;
        for (backend, counts) in &other.backends {
            self.backends.entry(*backend).or_default().add(counts);
        }
    }
}

impl BackendCounts {
    /// Adds another's.
    pub fn add(&mut self, other: &BackendCounts) {
        self.connections += other.connections;
        self.unanswered += other.unanswered;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.sent_packets += other.sent_packets;
        self.received_packets += other.received_packets;
    }
}
