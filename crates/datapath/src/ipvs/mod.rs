//! The mode IPVS: the kernel's own virtual servers, with ipsets and a few rules of iptables around them, as kube-proxy has
//! it. Names and places are kube-proxy's, so that `ipvsadm -Ln`, `ipset list` and `ip addr show kube-ipvs0` print what
//! people expect.
//!
//! ```text
//! NodePlan ──▶ layout ─▶ program ──▶ change, repair ──▶ apply ──▶ Kernel: netlink, ipset, iptables-restore
//!                          │           ▲
//!                         walk      observed ◀── netlink, ipset save, iptables-save
//! ```
//!
//! There is no transaction over all of it. Steps are ordered so that no packet meets half a state, and each can be
//! repeated: after an error, or a death in the middle, the next [`Datapath::observe`] and [`Datapath::repair`] end it.
//!
//! A destination that goes takes no new connections first (weight 0) and is removed when it has none left, or after a
//! time; UDP's are removed at once. Where this mode does otherwise than the others stands in docs/ipvs.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange};

use crate::Datapath;
use crate::iptables::IptablesConfig;
use crate::locate::{Found, Locate, Location};

mod apply;
pub mod change;
pub(crate) mod fake;
mod kernel;
pub mod layout;
pub mod link;
pub mod locate;
pub mod message;
pub mod observed;
pub mod program;
pub mod rule;
pub mod server;
pub mod set;
mod socket;
mod system;
pub mod walk;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;

pub use apply::IpvsError;
pub use change::Change;
pub use observed::Observed;
pub use program::Program;
pub use server::Scheduler;

use apply::Draining;
use kernel::Kernel;
use rule::Table;
use system::System;

/// Whether the kernel has IPVS, in the network namespace of the calling thread. Loads the module.
///
/// # Errors
/// The kernel refused to say.
pub fn is_there() -> std::io::Result<bool> {
    match socket::Ipvs::open(Family::Ipv4) {
        Ok(_) => Ok(true),
        Err(IpvsError::Kernel { source, .. }) => Err(source),
        Err(_) => Ok(false),
    }
}

/// What this mode left for another that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// Nothing.
    Nothing,
    /// Some, all of which is gone now.
    Removed,
    /// Servers with live connections, which stay.
    Busy,
}

/// How the mode is run.
#[derive(Debug, Clone)]
pub struct IpvsConfig {
    /// For Services that name no other.
    pub scheduler: Scheduler,
    /// Whether the node answers ARP for addresses of the asked device alone, and asks with those: who announces
    /// load-balancer addresses needs it.
    pub strict_arp: bool,
    /// Servers at these addresses are left alone.
    pub exclude: Vec<IpNet>,
    /// How long connections without packets are remembered: TCP, TCP after a FIN, UDP. Zero: as the kernel has it.
    pub timeouts: [Duration; 3],
    /// How long a destination may take to lose its connections.
    pub drain: Duration,
    /// How iptables is run.
    pub iptables: IptablesConfig,
    /// Whether what kube-proxy left is replaced; otherwise it is an error to find some.
    pub take_over: bool,
}

impl Default for IpvsConfig {
    fn default() -> IpvsConfig {
        IpvsConfig {
            scheduler: Scheduler::Rr,
            strict_arp: false,
            exclude: Vec::new(),
            timeouts: [Duration::ZERO; 3],
            drain: Duration::from_secs(15 * 60),
            iptables: IptablesConfig::default(),
            take_over: false,
        }
    }
}

impl IpvsConfig {
    /// Sysctls with the values that they should have.
    fn settings(&self, family: Family) -> Vec<(&'static str, String)> {
        let one = || "1".to_owned();
        let mut settings = vec![
            // So that netfilter sees the translated flows: it masquerades them and lets their answers through.
            ("net/ipv4/vs/conntrack", one()),
            // A flow to a destination that is gone is led anew, not held.
            ("net/ipv4/vs/expire_nodest_conn", one()),
            // A client whose destination takes no new connections is led to another, affinity or not.
            ("net/ipv4/vs/expire_quiescent_template", one()),
        ];
        if family == Family::Ipv4 {
            settings.push(("net/ipv4/ip_forward", one()));
            if self.strict_arp {
                settings.push(("net/ipv4/conf/all/arp_ignore", one()));
                settings.push(("net/ipv4/conf/all/arp_announce", "2".to_owned()));
            }
        }
        settings
    }
}

/// The mode, for one family, in the network namespace of the thread that calls it.
pub struct Ipvs {
    family: Family,
    config: IpvsConfig,
    kernel: Box<dyn Kernel + Send>,
    draining: Draining,
}

impl fmt::Debug for Ipvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ipvs").field("family", &self.family).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Ipvs {
    /// For one family.
    pub fn new(family: Family, config: IpvsConfig) -> Ipvs {
        let kernel = Box::new(System::new(family, config.clone()));
        Ipvs::with(family, config, kernel)
    }

    fn with(family: Family, config: IpvsConfig, kernel: Box<dyn Kernel + Send>) -> Ipvs {
        Ipvs { family, config, kernel, draining: Draining::new() }
    }

    /// Removes every virtual server, set, chain and rule of a Service proxy in this mode, and the device with the addresses
    /// of both families. Connections through Services end with them.
    ///
    /// # Errors
    /// The kernel or a tool refused.
    pub fn cleanup(&mut self) -> Result<(), IpvsError> {
        self.remove(false, false).map(|_| ())
    }

    /// Removes what this program left in this mode, for another mode that serves now; tells what there was. With
    /// `take_over` also what kube-proxy left. Chains whose names other modes share stay as those made them.
    ///
    /// With `keeps_busy` servers with live connections stay, without weight, and so do their addresses: to be called again
    /// until nothing is left, and at last without.
    ///
    /// # Errors
    /// The kernel or a tool refused.
    pub fn remove_former(&mut self, take_over: bool, keeps_busy: bool) -> Result<Former, IpvsError> {
        if !take_over && self.has_foreign()? {
            return Ok(Former::Nothing);
        }
        self.remove(true, keeps_busy)
    }

    /// Whether kube-proxy left something in this mode.
    ///
    /// # Errors
    /// The kernel or a tool refused.
    pub fn has_foreign(&mut self) -> Result<bool, IpvsError> {
        let addresses = self.kernel.addresses()?;
        if addresses.as_ref().is_none_or(BTreeSet::is_empty) {
            return Ok(false);
        }
        let servers = match self.kernel.servers() {
            Ok(servers) => servers,
            Err(IpvsError::NoIpvs) => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let mut have = Observed { addresses, servers, ..Observed::default() };
        have.read_rules(Table::Filter, &self.kernel.save_rules(Table::Filter)?);
        Ok(have.is_foreign())
    }

    fn remove(&mut self, is_succeeded: bool, keeps_busy: bool) -> Result<Former, IpvsError> {
        // To look closer would load modules that were never needed.
        if !self.was_here()? {
            return Ok(Former::Nothing);
        }
        let have = match self.look() {
            Ok(have) => have,
            Err(IpvsError::NoIpvs | IpvsError::Missing { .. }) => return Ok(Former::Nothing),
            Err(error) => return Err(error),
        };
        let kept = if keeps_busy { change::busy(&have) } else { BTreeSet::new() };
        let change = change::cleanup(&have, self.family, is_succeeded, &kept);
        apply::clean(&mut *self.kernel, &change)?;
        Ok(if kept.is_empty() { Former::Removed } else { Former::Busy })
    }

    /// Whether this mode, or kube-proxy in it, ever was here.
    fn was_here(&mut self) -> Result<bool, IpvsError> {
        if self.kernel.addresses()?.is_some() {
            return Ok(true);
        }
        let mut have = Observed::default();
        match self.kernel.save_sets() {
            Ok(sets) => have.read_sets(&sets, self.family),
            // Without the device, no more is asked of a kernel or machine without sets.
            Err(IpvsError::Missing { .. } | IpvsError::Tool { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(!have.sets.is_empty())
    }

    fn look(&mut self) -> Result<Observed, IpvsError> {
        let settings = self.config.settings(self.family);
        apply::observe(&mut *self.kernel, self.family, &settings, &mut self.draining, self.config.drain)
    }

    fn is_excluded(&self, address: IpAddr) -> bool {
        self.config.exclude.iter().any(|range| range.contains(&address))
    }
}

impl Datapath for Ipvs {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = IpvsError;

    fn program(&self, plan: &NodePlan) -> Program {
        Program::of(plan, self.config.scheduler)
    }

    fn change(&self, before: &Program, plan: &PlanChange) -> Change {
        change::change(before, plan)
    }

    fn advance(&self, program: &mut Program, change: &Change) {
        change::advance(program, change);
    }

    fn repair(&self, want: &Program, have: &Observed) -> Change {
        change::repair(want, have, |address| self.is_excluded(address))
    }

    fn walk(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        walk::walk(program, packet, remembered)
    }

    fn is_refusal(&self, error: &IpvsError) -> bool {
        error.is_refusal()
    }

    fn is_atomic(&self) -> bool {
        false
    }

    fn udp_frontends(&self, have: &Observed) -> Vec<SocketAddr> {
        have.udp_frontends()
    }

    fn observe(&mut self) -> Result<Observed, IpvsError> {
        let observed = self.look()?;
        if observed.is_foreign() && !self.config.take_over {
            return Err(IpvsError::Foreign { family: self.family });
        }
        Ok(observed)
    }

    fn apply(&mut self, change: &Change) -> Result<(), IpvsError> {
        let watch = self.config.iptables.watch.clone();
        watch.own(|| apply::apply(&mut *self.kernel, change, &mut self.draining))
    }

    fn generation(&mut self) -> Option<u32> {
        self.kernel.generation()
    }
}

impl Locate for Ipvs {
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
