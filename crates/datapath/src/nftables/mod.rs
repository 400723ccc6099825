//! The mode nftables: one table per family, named as kube-proxy's, whose rules hardly ever change. Services are
//! elements of its maps.
//!
//! ```text
//! NodePlan ──▶ program ──▶ change, repair ──▶ render ──▶ apply (nft -f -)
//!                 │           ▲
//!                 walk     observed ◀── observe (netlink)
//! ```
//!
//! A packet's frontend is looked up in one map and leads to a chain for its *number* of backends; that chain draws a
//! number below it, and a second map gives the backend of that frontend and number. So there are two lookups for any
//! number of Services, an exactly equal choice, and a few hundred chains at most; a change of a Service touches elements
//! only. A Service with session affinity has chains of its own besides, see [`hold`]. All of it is in the nat hooks, which see the first packet of a flow alone: no change cuts an established flow.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;

use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange};

use crate::Datapath;
use crate::locate::{Found, Locate, Location};
use layout::{FORMER_TABLE, TABLE};

pub mod addresses;
mod apply;
pub mod chain;
pub mod change;
pub mod element;
pub(crate) mod generation;
pub mod hold;
pub mod layout;
mod locate;
pub mod netlink;
mod observe;
pub mod observed;
pub mod program;
pub mod render;
pub mod repair;
pub mod rule;
pub mod walk;

#[cfg(test)]
mod tests;

pub use apply::NftablesError;
pub use change::Change;
pub use observed::Observed;
pub use program::Program;

/// How the mode is run.
#[derive(Debug, Clone)]
pub struct NftablesConfig {
    /// The program `nft`: a path, or a name to look for.
    pub nft: OsString,
    /// Whether a table that kube-proxy left is replaced; otherwise it is an error to find one.
    pub take_over: bool,
}

impl Default for NftablesConfig {
    fn default() -> NftablesConfig {
        NftablesConfig { nft: "nft".into(), take_over: false }
    }
}

/// The mode, for one family, in the network namespace of the thread that calls it.
#[derive(Debug, Clone)]
pub struct Nftables {
    nft: apply::Nft,
    take_over: bool,
    generation: generation::Generation,
}

impl Nftables {
    /// For one family.
    pub fn new(family: Family, config: NftablesConfig) -> Nftables {
        Nftables {
            nft: apply::Nft { program: config.nft, family },
            take_over: config.take_over,
            generation: generation::Generation::default(),
        }
    }

    /// Removes the family's table, if there is one. Established flows lose their rewriting with it.
    ///
    /// # Errors
    /// The kernel or nft refused, or the table is kube-proxy's.
    pub fn cleanup(&mut self) -> Result<(), NftablesError> {
        let table = observe::Socket::open(self.nft.family)?.outline()?;
        self.refuse_foreign(table.as_ref())?;
        if table.is_none() {
            return Ok(());
        }
        self.delete(TABLE)
    }

    fn refuse_foreign(&self, table: Option<&observed::Table>) -> Result<(), NftablesError> {
        let is_foreign = table.is_some_and(observed::Table::is_foreign);
        if is_foreign && !self.take_over { Err(NftablesError::Foreign { family: self.nft.family }) } else { Ok(()) }
    }
}

impl Nftables {
    /// Removes what a former daemon left, for another mode that serves now; tells whether there was anything. What
    /// kube-proxy left stays, unless `with_foreign`.
    ///
    /// # Errors
    /// The kernel or nft refused.
    pub fn remove_former(&mut self, with_foreign: bool) -> Result<bool, NftablesError> {
        match self.outline() {
            Ok(Some(table)) if with_foreign || !table.is_foreign() => self.delete(TABLE).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a table that kube-proxy made.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn has_foreign(&self) -> Result<bool, NftablesError> {
        Ok(self.outline()?.is_some_and(|table| table.is_foreign()))
    }

    /// Before the rules of a mode go whose flows must live on, where no other mode has rules of type nat: makes a table
    /// that translates nothing, but keeps the kernel's nat hooks and conntrack in use. A second call changes nothing.
    ///
    /// # Errors
    /// The kernel or nft refused.
    pub fn keep_flows(&self) -> Result<(), NftablesError> {
        let script = render::render_keep_flows(self.nft.family);
        self.nft.run("keep flows alive", |out| out.write_all(script.as_bytes()))
    }

    /// Takes away what [`Nftables::keep_flows`] made; tells whether it was there. Flows that nobody else's rules keep
    /// alive lose their rewriting.
    ///
    /// # Errors
    /// The kernel or nft refused.
    pub fn release_flows(&mut self) -> Result<bool, NftablesError> {
        if !observe::Socket::open(self.nft.family)?.has_table(FORMER_TABLE)? {
            return Ok(false);
        }
        self.delete(FORMER_TABLE).map(|()| true)
    }

    fn outline(&self) -> Result<Option<observed::Table>, NftablesError> {
        match observe::Socket::open(self.nft.family)?.outline() {
            // A kernel without nf_tables has no table.
            Err(NftablesError::Netlink {
                source: nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::EINVAL, ..
            }) => Ok(None),
            outline => outline,
        }
    }

    fn delete(&self, table: &str) -> Result<(), NftablesError> {
        let script = render::render_delete(self.nft.family, table);
        self.nft.run("remove the table", |out| out.write_all(script.as_bytes()))
    }
}

impl Datapath for Nftables {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = NftablesError;

    fn program(&self, plan: &NodePlan) -> Program {
        Program::of(plan)
    }

    fn change(&self, before: &Program, plan: &PlanChange) -> Change {
        change::change(before, plan)
    }

    fn advance(&self, program: &mut Program, change: &Change) {
        change::advance(program, change);
    }

    fn repair(&self, want: &Program, have: &Observed) -> Change {
        repair::repair(want, have)
    }

    fn walk(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        walk::walk(program, packet, remembered)
    }

    fn is_refusal(&self, error: &NftablesError) -> bool {
        matches!(error, NftablesError::Refused { .. })
    }

    fn udp_frontends(&self, have: &Observed) -> Vec<SocketAddr> {
        have.table.as_ref().map(observed::Table::udp_frontends).unwrap_or_default()
    }

    fn observe(&mut self) -> Result<Observed, NftablesError> {
        let observed = observe::observe(self.nft.family)?;
        self.refuse_foreign(observed.table.as_ref())?;
        Ok(observed)
    }

    fn apply(&mut self, change: &Change) -> Result<(), NftablesError> {
        if change.is_empty() {
            return Ok(());
        }
        self.nft.run("change rules", |out| render::render(change, out))
    }

    fn generation(&mut self) -> Option<u32> {
        self.generation.read()
    }
}

impl Locate for Nftables {
    fn locate(
        &self,
        program: &Program,
        have: &Observed,
        keys: &BTreeSet<FrontendKey>,
    ) -> BTreeMap<FrontendKey, Vec<Location>> {
        locate::locate(program, have, keys)
    }

    fn found(&self, family: Family, have: &Observed) -> BTreeMap<FrontendKey, Found> {
        locate::found(family, have)
    }
}
