//! Pure. What the kernel's side is told: where, how much, and what to count.

use std::path::PathBuf;

use crate::ebpf::program::Packets;

/// Where the programs hang, and how much the maps take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelConfig {
    /// A directory in a bpf file system; both are made if they are not there.
    pub pins: PathBuf,
    /// The control group below which all of the node's processes are; `None`: that of the whole machine.
    pub cgroup: Option<PathBuf>,
    /// The most frontends.
    pub frontends: u32,
    /// The most slots of all sets of backends together.
    pub slots: u32,
    /// How many sockets' peers, unconnected sockets' flows and clients' affinities are remembered, of each. Their memory is taken at
    /// the start.
    pub remembered: u32,
    /// What is counted of connections.
    pub counting: Counting,
    /// Who serves packets.
    pub packets: Packets,
    /// How many entries of flows are remembered, where programs serve packets: two of each, or four if its source is rewritten.
    pub tracked: u32,
}

/// What is counted of connections, by Service port and backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Nothing: to measure what counting costs.
    Nothing,
    /// Connections, their failures, and bytes at their end.
    Connections,
    /// At their end also what they had moved in packets.
    Packets,
}

impl Default for KernelConfig {
    fn default() -> KernelConfig {
        KernelConfig {
            pins: "/sys/fs/bpf/signpost".into(),
            cgroup: None,
            frontends: 1 << 17,
            slots: 1 << 20,
            remembered: 1 << 16,
            counting: Counting::Connections,
            packets: Packets::Nftables,
            tracked: 1 << 18,
        }
    }
}

impl KernelConfig {
    /// How many entries a map has; `None`: as many as its source says.
    pub(in crate::ebpf) fn size(&self, map: &str) -> Option<u32> {
        match map {
            "frontends" => Some(self.frontends),
            "slots" | "tables" => Some(self.slots),
            "peers" | "flows" | "affinities" | "counters" => Some(self.remembered),
            "tracked" => Some(self.tracked),
            _ => None,
        }
    }
}

/// As little as can be, to try what the kernel takes.
pub(in crate::ebpf) fn least() -> KernelConfig {
    KernelConfig { frontends: 1, slots: 1, remembered: 64, tracked: 64, ..KernelConfig::default() }
}
