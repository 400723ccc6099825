//! The mode iptables: the chains that kube-proxy's users know, written chain by chain.
//!
//! ```text
//! NodePlan ──▶ program ──▶ change, repair ──▶ apply (iptables-restore --noflush)
//!                 │           ▲
//!                 walk     observed ◀── iptables-save
//! ```
//!
//! The drawing in [`chain`] shows how the chains hang together. A Service's packets go through a list as long as there are
//! Services, so this is the mode for small clusters and for kernels without nftables. Two tables are two transactions:
//! nat is written before filter, so for the moment between them what has just lost its last endpoint may pass by; its
//! flows are swept away by [`crate::conntrack`].
//!
//! iptables-nft (1.8.9) lists in a time that grows with the square of the number of chains, nearly all of it spent comparing
//! names: of processor time 1 s at 1,000 Services of 10 endpoints, 10 s at 3,000. It loads 3,000 in 2.4 s, see
//! [`Change::write_for_nft`]. iptables-legacy loads 1,000 in 0.3 s, but every change rewrites the kernel's whole table, 0.13 s
//! there (`cargo bench --bench modes`, docs/figures.md). Who has thousands of Services wants nftables.
//!
//! Where it falls short of the plan: `recent` remembers the last 100 clients of an endpoint, so that with more of them
//! affinity ends early.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange};

use crate::Datapath;
use crate::counts::PacketCounts;
use crate::locate::{Found, Locate, Location};
use crate::nftables::generation::Watch;

mod apply;
pub mod chain;
pub mod change;
mod locate;
pub mod names;
pub mod observed;
pub mod port;
pub mod program;
pub mod rule;
pub mod walk;

#[cfg(test)]
mod tests;

pub use apply::{IptablesError, Variant};
pub use change::Change;
pub use observed::Observed;
pub use program::Program;

pub(crate) use apply::Tool;

use chain::{Chain, Table};

/// How the mode is run.
#[derive(Debug, Clone)]
pub struct IptablesConfig {
    /// `None`: the one that is in use on this machine, see [`Iptables`].
    pub variant: Option<Variant>,
    /// So long it is waited for the lock that all of iptables' users share.
    pub lock_wait: Duration,
    /// Another lock file than the machine's.
    pub lock_file: Option<PathBuf>,
    /// Whether chains that kube-proxy left are replaced; otherwise it is an error to find some.
    pub take_over: bool,
    /// Tells that others changed rules, where iptables is the one on nf_tables. Both families of a node share it.
    pub watch: Arc<Watch>,
}

impl Default for IptablesConfig {
    fn default() -> IptablesConfig {
        IptablesConfig {
            variant: None,
            lock_wait: Duration::from_secs(5),
            lock_file: None,
            take_over: false,
            watch: Arc::default(),
        }
    }
}

/// The mode, for one family, in the network namespace of the thread that calls it.
///
/// Of the two iptables it uses the one in which there are chains of a Service proxy or of kubelet already; else the
/// one that the plain name means.
#[derive(Debug, Clone)]
pub struct Iptables {
    family: Family,
    config: IptablesConfig,
    tool: Option<Tool>,
    /// Whether that is the one on nf_tables, once that was looked at.
    is_nft: Option<bool>,
}

/// Chains by which it is told which iptables a node uses: kubelet makes them for that purpose.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// kube-proxy's chain in the table mangle, by which it notices that somebody flushed everything.
const CANARY: &str = ":KUBE-PROXY-CANARY ";
const REMOVE_CANARY: &str = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n";

impl Iptables {
    /// For one family.
    pub fn new(family: Family, config: IptablesConfig) -> Iptables {
        Iptables { family, config, tool: None, is_nft: None }
    }

    /// Removes every chain and rule of a Service proxy, in both iptables. Established flows lose their rewriting with them.
    ///
    /// # Errors
    /// The kernel or its tool refused.
    pub fn cleanup(&mut self) -> Result<(), IptablesError> {
        self.remove_former(true).map(|_| ())
    }

    /// Removes what a former daemon left, for another mode that serves now; tells whether there was anything. What
    /// kube-proxy left stays, unless `with_foreign`.
    ///
    /// # Errors
    /// The kernel or its tool refused.
    pub fn remove_former(&self, with_foreign: bool) -> Result<bool, IptablesError> {
        let mut removed = false;
        for (tool, have) in self.all_observed()? {
            let change = change::cleanup(&have);
            if (with_foreign || !have.is_foreign()) && !change.is_empty() {
                tool.restore("remove the rules", &change)?;
                removed = true;
            }
            if with_foreign && self.mangle(&tool)?.lines().any(|line| line.starts_with(CANARY)) {
                tool.restore_text("remove the canary of kube-proxy", REMOVE_CANARY)?;
                removed = true;
            }
        }
        Ok(removed)
    }

    /// Whether kube-proxy's chains are there, in either iptables.
    ///
    /// # Errors
    /// The kernel or its tool refused.
    pub fn has_foreign(&self) -> Result<bool, IptablesError> {
        Ok(self.all_observed()?.iter().any(|(_, have)| have.is_foreign()))
    }

    /// What each iptables has that is installed.
    fn all_observed(&self) -> Result<Vec<(Tool, Observed)>, IptablesError> {
        let mut all = Vec::new();
        for mut tool in self.tools() {
            let mut have = tool.observe();
            if let (Err(IptablesError::Missing { .. }), Variant::Nft) = (&have, tool.variant) {
                // An iptables from before there were two.
                tool.variant = Variant::Plain;
                have = tool.observe();
            }
            match have {
                Ok(have) => all.push((tool, have)),
                Err(IptablesError::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// The variant that is used, once that was looked at.
    pub fn variant(&self) -> Option<Variant> {
        self.tool.as_ref().map(|tool| tool.variant)
    }

    fn with_variant(&self, variant: Variant) -> Tool {
        let IptablesConfig { lock_wait, lock_file, .. } = self.config.clone();
        Tool { family: self.family, variant, lock_wait, lock_file }
    }

    fn tools(&self) -> Vec<Tool> {
        let variants = match self.config.variant {
            Some(variant) => vec![variant],
            None if self.legacy_is_in_use() => vec![Variant::Nft, Variant::Legacy],
            None => vec![Variant::Nft],
        };
        variants.into_iter().map(|variant| self.with_variant(variant)).collect()
    }

    /// Whether the kernel's old tables are there: to list one that is not makes it.
    fn legacy_is_in_use(&self) -> bool {
        !self.legacy_tables().trim().is_empty()
    }

    /// One name a line; none where the kernel has no old tables.
    fn legacy_tables(&self) -> String {
        let names = match self.family {
            Family::Ipv4 => "/proc/thread-self/net/ip_tables_names",
            Family::Ipv6 => "/proc/thread-self/net/ip6_tables_names",
        };
        std::fs::read_to_string(names).unwrap_or_default()
    }

    /// The table mangle, in which this mode has nothing: it is not made by looking.
    fn mangle(&self, tool: &Tool) -> Result<String, IptablesError> {
        if tool.variant == Variant::Legacy && !self.legacy_tables().lines().any(|name| name == "mangle") {
            return Ok(String::new());
        }
        tool.save("mangle")
    }

    /// The programs that are used, once that was looked at: another mode has rules of its own to write.
    pub(crate) fn tool(&mut self) -> Result<&Tool, IptablesError> {
        let tool = match self.tool.take() {
            Some(tool) => tool,
            None => self.detect()?,
        };
        Ok(self.tool.insert(tool))
    }

    fn detect(&self) -> Result<Tool, IptablesError> {
        if let Some(variant) = self.config.variant {
            return Ok(self.with_variant(variant));
        }
        for tool in self.tools() {
            let in_use = tool.observe().and_then(|have| {
                let mangle = self.mangle(&tool)?;
                Ok(!have.is_empty() || mangle.lines().any(|line| HINTS.iter().any(|hint| line.starts_with(hint))))
            });
            match in_use {
                Ok(true) => return Ok(tool),
                Ok(false) | Err(IptablesError::Missing { .. } | IptablesError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.with_variant(Variant::Plain))
    }
}

impl Datapath for Iptables {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = IptablesError;

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
        change::repair(want, have)
    }

    fn walk(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        walk::walk(program, packet, remembered)
    }

    fn is_refusal(&self, error: &IptablesError) -> bool {
        matches!(error, IptablesError::Refused { .. })
    }

    fn udp_frontends(&self, have: &Observed) -> Vec<SocketAddr> {
        have.udp_frontends()
    }

    fn observe(&mut self) -> Result<Observed, IptablesError> {
        let (family, take_over) = (self.family, self.config.take_over);
        let observed = self.tool()?.observe()?;
        if observed.is_foreign() && !take_over {
            return Err(IptablesError::Foreign { family });
        }
        Ok(observed)
    }

    fn packets(&mut self) -> Result<Option<PacketCounts>, IptablesError> {
        let family = self.family;
        let tool = self.tool()?;
        let localhost = match family {
            Family::Ipv4 => {
                let chain = Chain::Postrouting.name();
                tool.packets(Table::Nat, &chain, program::LOCALHOST_NODE_PORTS)?
            }
            Family::Ipv6 => 0,
        };
        let out_of_flow = tool.packets(Table::Filter, &Chain::Forward.name(), program::OUT_OF_FLOW)?;
        Ok(Some(PacketCounts { localhost_node_ports: localhost, out_of_flow }))
    }

    fn apply(&mut self, change: &Change) -> Result<(), IptablesError> {
        if change.is_empty() {
            return Ok(());
        }
        let watch = self.config.watch.clone();
        let tool = self.tool()?;
        watch.own(|| tool.restore("change the rules", change))
    }

    fn generation(&mut self) -> Option<u32> {
        let is_nft = match self.is_nft {
            Some(is_nft) => is_nft,
            None => self.tool().ok()?.is_nft(),
        };
        self.is_nft = Some(is_nft);
        if is_nft { self.config.watch.number() } else { None }
    }
}

impl Locate for Iptables {
    fn locate(
        &self,
        program: &Program,
        have: &Observed,
        keys: &BTreeSet<FrontendKey>,
    ) -> BTreeMap<FrontendKey, Vec<Location>> {
        locate::locate(program, have, keys)
    }

    fn found(&self, _family: Family, have: &Observed) -> BTreeMap<FrontendKey, Found> {
        locate::found(have)
    }
}
