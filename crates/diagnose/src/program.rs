//! Pure. The rules of a node, whatever its mode.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan};
use signpost_core::walk::{walk_remembering, walk_with_addresses};
use signpost_datapath::ebpf::{self, Ebpf, KernelConfig};
use signpost_datapath::iptables::{self, Iptables, IptablesConfig};
use signpost_datapath::ipvs::{self, Ipvs, IpvsConfig};
use signpost_datapath::locate::{Locate, Location};
use signpost_datapath::nftables::{self, Nftables, NftablesConfig};

/// The program of one node and one family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "mode", content = "rules")]
pub enum Program {
    /// Maps of the socket hooks, and maps and chains of nftables.
    Ebpf(ebpf::Program),
    /// Maps and chains of nftables.
    Nftables(nftables::Program),
    /// Chains of iptables.
    Iptables(iptables::Program),
    /// Virtual servers of IPVS.
    Ipvs(ipvs::Program),
}

impl Program {
    /// The fate of a packet by the rules; `remembered` as in [`signpost_core::walk::walk_remembering`].
    pub fn walk(&self, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        match self {
            Program::Ebpf(program) => ebpf::walk_packet(program, packet, remembered),
            Program::Nftables(program) => nftables::walk::walk(program, packet, remembered),
            Program::Iptables(program) => iptables::walk::walk(program, packet, remembered),
            Program::Ipvs(program) => ipvs::walk::walk(program, packet, remembered),
        }
    }

    /// The fate that a plan wants for a packet, where the mode is this one.
    pub fn walk_plan(&self, plan: &NodePlan, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        match self {
            Program::Ipvs(_) => walk_with_addresses(plan, packet, remembered),
            Program::Ebpf(_) | Program::Nftables(_) | Program::Iptables(_) => {
                walk_remembering(plan, packet, remembered)
            }
        }
    }

    /// What becomes of a connection of this node before there is a packet, as in [`signpost_core::walk::walk_socket`].
    pub fn walk_socket(&self, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        match self {
            Program::Ebpf(program) => ebpf::walk::walk(&program.sockets, packet, remembered),
            Program::Nftables(_) | Program::Iptables(_) | Program::Ipvs(_) => Verdict::NotOurs,
        }
    }

    /// Whether connections are rewritten before there is a packet.
    pub fn has_sockets(&self) -> bool {
        matches!(self, Program::Ebpf(_))
    }

    /// Where in the kernel a frontend stands, in the mode's own words, what a packet meets first before the rest.
    pub fn locate(&self, family: Family, key: FrontendKey) -> Vec<Location> {
        let keys = [key].into();
        let mut found = match self {
            Program::Ebpf(program) => {
                let mode = Ebpf::new(family, ebpf::Node::reader(KernelConfig::default()), NftablesConfig::default());
                mode.locate(program, &ebpf::Observed::default(), &keys)
            }
            Program::Nftables(program) => {
                let mode = Nftables::new(family, NftablesConfig::default());
                mode.locate(program, &nftables::Observed::default(), &keys)
            }
            Program::Iptables(program) => {
                let mode = Iptables::new(family, IptablesConfig::default());
                mode.locate(program, &iptables::Observed::default(), &keys)
            }
            Program::Ipvs(program) => {
                let mode = Ipvs::new(family, IpvsConfig::default());
                mode.locate(program, &ipvs::Observed::default(), &keys)
            }
        };
        found.remove(&key).unwrap_or_default()
    }

    /// The mode's name.
    pub fn mode(&self) -> &'static str {
        match self {
            Program::Ebpf(_) => "ebpf",
            Program::Nftables(_) => "nftables",
            Program::Iptables(_) => "iptables",
            Program::Ipvs(_) => "ipvs",
        }
    }
}
