//! The mode eBPF: the application's `connect()` is answered with a pod's address, so that packets inside of the cluster need no
//! rewriting. What the sockets of this node cannot do (clients from elsewhere, sources to be rewritten, drops) is done to the
//! packets, by the rules of the mode nftables beneath.
//!
//! ```text
//! NodePlan ─┬▶ program ─▶ change, repair ─▶ kernel (maps, links)     sockets
//!           │     │           ▲
//!           │    walk      observe
//!           └▶ nftables::Program ─▶ ...                              packets
//! ```
//!
//! A packet meets the two in this order: first the socket that makes it, then the rules. What a socket rewrote goes to a
//! pod's address, which the rules leave alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, ServicePortName};
use signpost_core::packet::{Entry, Packet, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange};

use self::layout::Table;
use crate::Datapath;
use crate::counts::{PortCounts, Rebalancing, Room};
use crate::locate::{Found, Locate, Location};
use crate::nftables::{self, Nftables, NftablesConfig, NftablesError};

pub mod change;
mod count;
mod diag;
pub mod features;
pub mod kernel;
pub mod layout;
mod links;
mod locate;
mod migrate;
mod packets;
pub mod pods;
mod ports;
pub mod program;
pub mod rebalance;
pub mod repair;
mod rest;
mod scaled;
mod stale;
mod sys;
pub mod walk;

#[cfg(test)]
mod frame;
#[cfg(test)]
mod packet_tests;
#[cfg(test)]
mod tests;

pub use kernel::{Counting, Kernel, KernelConfig, KernelError};
pub use packets::try_load as try_packets;
pub use program::Packets;

/// What one plan is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The maps of the socket hooks.
    pub sockets: program::Program,
    /// The rules for packets.
    pub packets: nftables::Program,
}

/// A step from one program to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// In the maps.
    pub sockets: change::Change,
    /// In the rules.
    pub packets: nftables::Change,
}

/// What the kernel holds.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// In the maps.
    pub sockets: repair::Observed,
    /// In the rules.
    pub packets: nftables::Observed,
}

/// Why the kernel could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// The socket hooks.
    #[error(transparent)]
    Sockets(#[from] KernelError),
    /// The rules for packets.
    #[error(transparent)]
    Packets(#[from] NftablesError),
}

/// What both families share: one set of programs and maps.
#[derive(Debug, Clone)]
pub struct Node {
    kernel: Arc<Mutex<Kernel>>,
    /// How many changes touched the maps and not the rules.
    maps_alone: Arc<AtomicU32>,
}

impl Node {
    /// Of the node that the calling thread is on.
    pub fn new(config: KernelConfig) -> Node {
        Node { kernel: Arc::new(Mutex::new(Kernel::new(config))), maps_alone: Arc::default() }
    }

    /// Of a node whose daemon is another process: only looks at what that one pinned.
    pub fn reader(config: KernelConfig) -> Node {
        Node { kernel: Arc::new(Mutex::new(Kernel::reader(config))), maps_alone: Arc::default() }
    }

    /// The programs and maps.
    pub fn kernel(&self) -> MutexGuard<'_, Kernel> {
        // After a panic the next comparison puts right what was left half done.
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mode, for one family, in the network namespace of the thread that calls it.
#[derive(Debug)]
pub struct Ebpf {
    family: Family,
    node: Node,
    packets: Nftables,
    packets_by: Packets,
}

impl Ebpf {
    /// For one family of a node.
    pub fn new(family: Family, node: Node, packets: NftablesConfig) -> Ebpf {
        let packets_by = {
            let mut kernel = node.kernel();
            kernel.expect(family);
            kernel.packets()
        };
        Ebpf { family, node, packets: Nftables::new(family, packets), packets_by }
    }

    /// What the socket hooks do to a first connection or datagram of a process on this node or in one of its pods.
    pub fn walk_socket(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        walk::walk(&program.sockets, packet, remembered)
    }
}

/// What becomes of a packet: at an interface, and then by the rules.
pub fn walk_packet(program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let crosses = program.sockets.serves_packets() && packet.entry == Entry::Interface;
    match walk::walk_packet(&program.sockets, packet, remembered) {
        verdict if crosses && verdict != Verdict::NotOurs => verdict,
        _ => nftables::walk::walk(&program.packets, packet, remembered),
    }
}

impl Datapath for Ebpf {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = EbpfError;

    fn program(&self, plan: &NodePlan) -> Program {
        let sockets = program::Program::of(plan, self.packets_by);
        let rules = if sockets.serves_packets() {
            nftables::Program::of(&rest::plan(plan))
        } else {
            nftables::Program::of(plan)
        };
        Program { sockets, packets: rules }
    }

    fn change(&self, before: &Program, plan: &PlanChange) -> Change {
        let sockets = change::change(&before.sockets, plan);
        let packets = if before.sockets.serves_packets() {
            self.packets.change(&before.packets, &rest::change(plan))
        } else {
            self.packets.change(&before.packets, plan)
        };
        Change { sockets, packets }
    }

    fn advance(&self, program: &mut Program, change: &Change) {
        change::advance(&mut program.sockets, &change.sockets);
        self.packets.advance(&mut program.packets, &change.packets);
    }

    fn repair(&self, want: &Program, have: &Observed) -> Change {
        Change {
            sockets: repair::repair(&want.sockets, &have.sockets),
            packets: self.packets.repair(&want.packets, &have.packets),
        }
    }

    /// What becomes of a packet. See [`Ebpf::walk_socket`] for what comes before.
    fn walk(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        walk_packet(program, packet, remembered)
    }

    fn udp_frontends(&self, have: &Observed) -> Vec<SocketAddr> {
        self.packets.udp_frontends(&have.packets)
    }

    fn observe(&mut self) -> Result<Observed, EbpfError> {
        let packets = self.packets.observe()?;
        Ok(Observed { sockets: self.node.kernel().observe(self.family)?, packets })
    }

    /// Before the programs are attached the rules are there: what a socket leaves alone must be served. Else the maps are first: they take
    /// a change in microseconds, and until the rules have it, too, packets meet what was before, whole.
    fn apply(&mut self, change: &Change) -> Result<(), EbpfError> {
        if !change.sockets.attach && !change.sockets.is_empty() {
            self.node.kernel().apply(&change.sockets)?;
        }
        self.packets.apply(&change.packets)?;
        if change.sockets.is_empty() {
            return Ok(());
        }
        if change.sockets.attach {
            self.node.kernel().apply(&change.sockets)?;
        }
        if change.packets.is_empty() {
            self.node.maps_alone.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn counts(&mut self, plan: &NodePlan) -> Result<BTreeMap<ServicePortName, PortCounts>, EbpfError> {
        let mut all = self.node.kernel().counts()?;
        let ports: BTreeSet<_> = plan.frontends.values().map(|frontend| &frontend.service_port).collect();
        let of_port =
            |port: &ServicePortName| Some((port.clone(), all.remove(&program::service_id(self.family, port))?));
        Ok(ports.into_iter().filter_map(of_port).collect())
    }

    fn take_rebalancing(&mut self, plan: &NodePlan) -> Vec<(ServicePortName, Rebalancing)> {
        let kernel = self.node.kernel();
        if !kernel.has_rebalancing() {
            return Vec::new();
        }
        let asks = plan.frontends.values().filter(|frontend| frontend.rebalance.is_some());
        let names: BTreeMap<u64, &ServicePortName> = asks
            .map(|frontend| (program::service_id(self.family, &frontend.service_port), &frontend.service_port))
            .collect();
        kernel.take_rebalancing(|service| names.get(&service).map(|name| (*name).clone()))
    }

    fn room(&self, program: &Program) -> Vec<Room> {
        let (frontends, slots) = self.node.kernel().sizes();
        let room = |map: Table, used: usize, most, flag| Room {
            map: map.name(),
            used: used as u64,
            most: u64::from(most),
            flag,
        };
        vec![
            room(Table::Frontends, program.sockets.frontends.len(), frontends, "--ebpf-frontends"),
            room(Table::Slots, program.sockets.slots(), slots, "--ebpf-backends"),
            room(Table::Tables, program.sockets.chunks(), slots, "--ebpf-backends"),
        ]
    }

    fn generation(&mut self) -> Option<u32> {
        // Changes of the maps alone count as if they were the rules'.
        let maps = self.node.maps_alone.load(Ordering::Relaxed);
        self.packets.generation().map(|rules| rules.wrapping_add(maps))
    }
}

impl Locate for Ebpf {
    fn locate(
        &self,
        program: &Program,
        have: &Observed,
        keys: &BTreeSet<FrontendKey>,
    ) -> BTreeMap<FrontendKey, Vec<Location>> {
        let mut all = locate::locate(&program.sockets, &have.sockets, keys);
        for (key, rules) in self.packets.locate(&program.packets, &have.packets, keys) {
            all.entry(key).or_default().extend(rules);
        }
        all
    }

    fn found(&self, family: Family, have: &Observed) -> BTreeMap<FrontendKey, Found> {
        let mut all = self.packets.found(family, &have.packets);
        for (key, sockets) in locate::found(&have.sockets) {
            match all.get_mut(&key) {
                Some(found) => {
                    found.backends.extend(sockets.backends);
                    found.locations.splice(0..0, sockets.locations);
                }
                None => drop(all.insert(key, sockets)),
            }
        }
        all
    }
}
