//! Pure. The rules of a node, whatever its mode.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use signpost_core::packet::{Packet, Verdict};
use signpost_datapath::{iptables, nftables};

/// The program of one node and one family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "mode", content = "rules")]
pub enum Program {
    /// Maps and chains of nftables.
    Nftables(nftables::Program),
    /// Chains of iptables.
    Iptables(iptables::Program),
}

impl Program {
    /// The fate of a packet by the rules; `remembered` as in [`signpost_core::walk::walk_remembering`].
    pub fn walk(&self, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        match self {
            Program::Nftables(program) => nftables::walk::walk(program, packet, remembered),
            Program::Iptables(program) => iptables::walk::walk(program, packet, remembered),
        }
    }
}
