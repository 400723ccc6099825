//! The mode nftables with a kernel in memory: for tests of what drives a datapath, with the faults that a real kernel
//! has. It takes the same changes, keeps the same table, and refuses what the kernel refuses.

mod iptables;

use std::collections::VecDeque;
use std::net::SocketAddr;

use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{NodePlan, PlanChange};

use crate::Datapath;
use crate::nftables::chain::Chain;
use crate::nftables::change::{Change, Load};
use crate::nftables::element::Data;
use crate::nftables::hold::Holds;
use crate::nftables::layout::Set;
use crate::nftables::observed::{ObservedChain, ObservedHook, Table};
use crate::nftables::render::layout_name;
use crate::nftables::rule::{Action, rules};
use crate::nftables::{Nftables, NftablesConfig, NftablesError, Observed, Program};

pub use crate::ipvs::fake::FakeIpvs;
pub use iptables::FakeIptables;

/// What goes wrong with the next call that can meet it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `apply` is refused, and nothing is changed.
    ApplyRefused,
    /// `apply` does its work and says that it did not, as when `nft` is killed after its transaction.
    ApplyUnsure,
    /// `observe` fails.
    ObserveFails,
}

/// The mode nftables, whose kernel is this value.
#[derive(Debug, Clone)]
pub struct FakeNftables {
    decide: Nftables,
    family: Family,
    kernel: Observed,
    faults: VecDeque<Fault>,
    transactions: usize,
}

impl FakeNftables {
    /// An empty kernel.
    pub fn new(family: Family) -> FakeNftables {
        FakeNftables {
            decide: Nftables::new(family, NftablesConfig::default()),
            family,
            kernel: Observed::default(),
            faults: VecDeque::new(),
            transactions: 0,
        }
    }

    /// Lets something go wrong, once; several in the order in which they are given.
    pub fn fail(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    /// What the kernel holds.
    pub fn kernel(&self) -> &Observed {
        &self.kernel
    }

    /// The same, for somebody else who changes it.
    pub fn kernel_mut(&mut self) -> &mut Observed {
        &mut self.kernel
    }

    /// How many changes were carried out that were not empty.
    pub fn transactions(&self) -> usize {
        self.transactions
    }

    fn meets(&mut self, faults: &[Fault]) -> Option<Fault> {
        let at = self.faults.iter().position(|fault| faults.contains(fault))?;
        self.faults.remove(at)
    }

    fn refused(&self, op: &'static str, said: String) -> NftablesError {
        NftablesError::Refused { op, family: self.family, said }
    }
}

impl Datapath for FakeNftables {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = NftablesError;

    fn program(&self, plan: &NodePlan) -> Program {
        self.decide.program(plan)
    }

    fn change(&self, before: &Program, plan: &PlanChange) -> Change {
        self.decide.change(before, plan)
    }

    fn advance(&self, program: &mut Program, change: &Change) {
        self.decide.advance(program, change);
    }

    fn repair(&self, want: &Program, have: &Observed) -> Change {
        self.decide.repair(want, have)
    }

    fn walk(&self, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        self.decide.walk(program, packet, remembered)
    }

    fn is_refusal(&self, error: &NftablesError) -> bool {
        self.decide.is_refusal(error)
    }

    fn observe(&mut self) -> Result<Observed, NftablesError> {
        match self.meets(&[Fault::ObserveFails]) {
            Some(_) => Err(self.refused("list what is there", "a fault for a test".to_owned())),
            None => Ok(self.kernel.clone()),
        }
    }

    fn apply(&mut self, change: &Change) -> Result<(), NftablesError> {
        const OP: &str = "change rules";
        if change.is_empty() {
            return Ok(());
        }
        let fault = self.meets(&[Fault::ApplyRefused, Fault::ApplyUnsure]);
        if fault == Some(Fault::ApplyRefused) {
            return Err(self.refused(OP, "a fault for a test".to_owned()));
        }
        // A transaction: a copy is changed, and taken only if all of it went well.
        let table = transact(self.kernel.table.clone(), change).map_err(|said| self.refused(OP, said))?;
        self.kernel.table = Some(table);
        self.transactions += 1;
        if fault.is_some() { Err(self.refused(OP, "killed after the transaction".to_owned())) } else { Ok(()) }
    }
}

/// What the kernel makes of a change, or its complaint.
fn transact(table: Option<Table>, change: &Change) -> Result<Table, String> {
    let mut table = match &change.load {
        Some(load) => load_table(table.is_some(), load)?,
        None => table.ok_or("No such file or directory: the table")?,
    };
    for chain in change.chains.added.iter().chain(&change.chains.rewritten) {
        if table.chains.contains_key(&chain.to_string()) != change.chains.rewritten.contains(chain) {
            return Err(format!("chain {chain}: there, or not there, against what is thought"));
        }
        table.chains.insert(chain.to_string(), chain_of(change.family, *chain, &change.chains.holds));
    }
    for set in &change.emptied {
        table.sets.insert(*set, Default::default());
    }
    for (set, key) in &change.removed {
        let elements = table.sets.get_mut(set).ok_or_else(|| format!("No such file or directory: {set}"))?;
        elements.known.remove(key).ok_or_else(|| format!("No such file or directory: {set} {key:?}"))?;
    }
    for ((set, key), value) in &change.added {
        let elements = table.sets.get_mut(set).ok_or_else(|| format!("No such file or directory: {set}"))?;
        if elements.known.insert(*key, value.clone()).is_some_and(|was| was != *value) {
            return Err(format!("File exists: {set} {key:?}"));
        }
    }
    for name in &change.chains.removed {
        table.chains.remove(name).ok_or_else(|| format!("No such file or directory: chain {name}"))?;
    }
    all_targets_exist(&table)?;
    Ok(table)
}

fn load_table(is_there: bool, load: &Load) -> Result<Table, String> {
    if is_there && !load.replaces {
        return Err("File exists: the table".to_owned());
    }
    let family = load.program.family;
    let mut table = Table::default();
    table.chains.insert(layout_name(family), ObservedChain::default());
    table.chains.extend(
        load.program.all_chains().map(|chain| (chain.to_string(), chain_of(family, chain, &load.program.holds))),
    );
    table.sets = Set::ALL.map(|set| (set, Default::default())).into();
    for (set, key, value) in load.program.elements() {
        table.sets.entry(set).or_default().known.insert(key, value);
    }
    Ok(table)
}

fn chain_of(family: Family, chain: Chain, holds: &Holds) -> ObservedChain {
    let hook = chain.hook().map(|hook| ObservedHook {
        kind: hook.kind.to_owned(),
        hook: hook.number,
        priority: hook.priority,
        accepts: true,
    });
    ObservedChain { hook, rules: rules(chain, holds).iter().map(|rule| rule.comment(family)).collect() }
}

/// A chain that is jumped to must be there: the kernel removes none that is.
fn all_targets_exist(table: &Table) -> Result<(), String> {
    let exists = |from: String, chain: Chain| {
        let to = chain.to_string();
        if table.chains.contains_key(&to) { Ok(()) } else { Err(format!("{from} leads to {to}, which is not there")) }
    };
    for name in table.chains.keys() {
        // Those of a hold lead to no chain.
        for rule in name.parse().map(|chain| rules(chain, &Holds::new())).unwrap_or_default() {
            if let Action::Jump(chain) | Action::Goto(chain) = rule.action {
                exists(format!("chain {name}"), chain)?;
            }
        }
    }
    for (key, value) in table.sets.values().flat_map(|elements| &elements.known) {
        if let Data::Goto(chain) | Data::Jump(chain) = value.data {
            exists(format!("{key:?}"), chain)?;
        }
    }
    Ok(())
}
