//! From a plan to the kernel. Each mode is a folder: `program.rs`, `change.rs`, `walk.rs` are pure; `apply.rs` acts.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;

use signpost_core::object::ServicePortName;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{NodePlan, PlanChange};

use counts::{PacketCounts, PortCounts, Rebalancing, Room};

pub mod conntrack;
pub mod counts;
pub mod ebpf;
pub mod fake;
pub mod iptables;
pub mod ipvs;
pub mod locate;
pub mod nftables;
#[cfg(test)]
mod pretend;
pub mod probe;
#[cfg(test)]
mod states;
#[cfg(any(test, feature = "strategies"))]
pub mod strategies;

/// One mode, for one family of one node. Deciding is pure; only `observe` and `apply` touch the kernel.
pub trait Datapath {
    /// The whole of what the mode writes into the kernel for one plan: same plan, same program.
    type Program: Clone + PartialEq + Debug;
    /// A step from one program to another.
    type Change: Clone + PartialEq + Debug;
    /// What is in the kernel now.
    type Observed: Debug;
    /// Why the kernel could not be read or written.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The program of a plan.
    fn program(&self, plan: &NodePlan) -> Self::Program;
    /// What a change of the plan changes in `before`; costs in proportion to the change.
    fn change(&self, before: &Self::Program, plan: &PlanChange) -> Self::Change;
    /// Turns a program into the one that a change leads to.
    fn advance(&self, program: &mut Self::Program, change: &Self::Change);
    /// What must be done so that the kernel holds `want`. Used at start, after an error and on a slow timer.
    fn repair(&self, want: &Self::Program, have: &Self::Observed) -> Self::Change;
    /// What the rules of a program do to a packet. `remembered`: the backend that the client's living affinity entry for
    /// the packet's Service port names, as in [`signpost_core::walk::walk_remembering`].
    fn walk(&self, program: &Self::Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict;
    /// Reads what this mode has in the kernel.
    ///
    /// # Errors
    /// The kernel or its tool refused.
    fn observe(&mut self) -> Result<Self::Observed, Self::Error>;
    /// Carries a change out. After an error the kernel's state is unknown: `observe`, then `repair`.
    ///
    /// # Errors
    /// The kernel or its tool refused; in a mode with transactions nothing was changed.
    fn apply(&mut self, change: &Self::Change) -> Result<(), Self::Error>;
    /// Whether an error says that a change was looked at and refused, so that a smaller one may pass; not that the kernel
    /// cannot be reached now.
    fn is_refusal(&self, _error: &Self::Error) -> bool {
        false
    }
    /// Whether a change that was refused has left the kernel as it was. If not, the kernel is compared before something smaller
    /// is tried.
    fn is_atomic(&self) -> bool {
        true
    }
    /// Where the rules that were found serve UDP, so that flows to what a former process served can be told from others'.
    /// Empty: not known.
    fn udp_frontends(&self, _have: &Self::Observed) -> Vec<SocketAddr> {
        Vec::new()
    }
    /// What became of connections through a plan's Service ports; those of which nothing was counted are left out, and a mode
    /// that does not count leaves out all.
    ///
    /// # Errors
    /// The kernel does not say.
    fn counts(&mut self, _plan: &NodePlan) -> Result<BTreeMap<ServicePortName, PortCounts>, Self::Error> {
        Ok(BTreeMap::new())
    }
    /// What became of connections that are spread anew since the last call, in the order in which it happened.
    fn take_rebalancing(&mut self, _plan: &NodePlan) -> Vec<(ServicePortName, Rebalancing)> {
        Vec::new()
    }
    /// What rules counted that concern no Service; `None`: this mode has none such.
    ///
    /// # Errors
    /// The kernel does not say.
    fn packets(&mut self) -> Result<Option<PacketCounts>, Self::Error> {
        Ok(None)
    }
    /// How full the kernel's maps are with a program; none, in a mode without maps of a size.
    fn room(&self, _program: &Self::Program) -> Vec<Room> {
        Vec::new()
    }
    /// A number that each transaction of the kernel's rules raises by one, whoever makes it and whatever it touches; an
    /// [`Datapath::apply`] that changes anything makes one transaction. Cheap: it tells that someone else was there.
    /// `None`: this mode cannot tell.
    fn generation(&mut self) -> Option<u32> {
        None
    }
}
