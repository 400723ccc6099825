//! Pure. From one program to another: the chains that differ, whole, and those that go.
//!
//! A chain is the smallest thing that is written: `iptables-restore --noflush` empties a chain that it is told of and
//! leaves the others alone. A change of an endpoint writes the chains of its Service port; one that brings or takes a
//! frontend also the list that all share, which is as long as there are Services.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;

use signpost_core::object::Family;
use signpost_core::plan::PlanChange;

use super::chain::{Chain, Port, Table, base_rules, bases};
use super::observed::{Observed, same_rules};
use super::program::Program;
use super::rule::Rule;

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What the plan's change was: leads the program on.
    pub(super) plan: PlanChange,
    /// Per table, in order.
    pub(super) tables: BTreeMap<Table, Batch>,
}

/// What is written into one table, in one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Chains by name, with their rules as text without the chain's name, a line each.
    pub set: BTreeMap<String, String>,
    /// Chains that go.
    pub removed: BTreeSet<String>,
    /// Lines for the kernel's own chains, in order.
    pub base: Vec<String>,
}

impl Change {
    /// Nothing.
    pub fn none() -> Change {
        Change { plan: PlanChange::default(), tables: BTreeMap::new() }
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// What is written into a table.
    pub fn table(&self, table: Table) -> Option<&Batch> {
        self.tables.get(&table)
    }

    fn batch(&mut self, table: Table) -> &mut Batch {
        self.tables.entry(table).or_default()
    }

    /// As `iptables-restore --noflush` reads it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_with(out, false)
    }

    /// The same for iptables-nft (seen in 1.8.9), which keeps the names of the chains that a batch mentions in a sorted list and
    /// goes through it from the begin for each line: that takes a time with the square of the chains, 20 s for 3,000
    /// Services of 10 endpoints. A command for all chains of the table, as `-S`, lets it do without that list: 2 s. The
    /// kernel's own chains have to be made before, which the first rule for them does. What `-S` prints nobody reads.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_for_nft(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_with(out, true)
    }

    fn write_with(&self, out: &mut dyn Write, for_nft: bool) -> io::Result<()> {
        for (table, batch) in &self.tables {
            writeln!(out, "*{}", table.name())?;
            let is_large = for_nft && batch.set.len() >= MANY_CHAINS;
            let entries = if is_large { batch.write_entries(out)? } else { BTreeSet::new() };
            batch.write_chains(out, &entries)?;
            if !is_large {
                batch.write_base(out)?;
            }
            for chain in &batch.removed {
                writeln!(out, "-X {chain}")?;
            }
            writeln!(out, "COMMIT")?;
        }
        Ok(())
    }
}

/// From so many chains on a batch is large: for fewer, iptables-nft reads less of the kernel without `-S`.
const MANY_CHAINS: usize = 100;

impl Batch {
    /// The lines for the kernel's own chains, with the chains that they lead to, and what ends the search for names. Gives
    /// those chains.
    fn write_entries(&self, out: &mut dyn Write) -> io::Result<BTreeSet<String>> {
        let added = self.base.iter().filter(|line| line.starts_with("-I "));
        let targets = added.filter_map(|line| Some(line.rsplit_once("-j ")?.1.to_owned()));
        // One that is there and right is neither written nor emptied.
        let entries: BTreeSet<String> = targets.filter(|chain| self.set.contains_key(chain)).collect();
        entries.iter().try_for_each(|chain| writeln!(out, ":{chain} - [0:0]"))?;
        self.write_base(out)?;
        writeln!(out, "-S")?;
        Ok(entries)
    }

    fn write_chains(&self, out: &mut dyn Write, made: &BTreeSet<String>) -> io::Result<()> {
        for chain in self.set.keys().chain(&self.removed).filter(|chain| !made.contains(*chain)) {
            writeln!(out, ":{chain} - [0:0]")?;
        }
        for (chain, rules) in &self.set {
            for rule in rules.lines() {
                writeln!(out, "-A {chain} {rule}")?;
            }
        }
        Ok(())
    }

    fn write_base(&self, out: &mut dyn Write) -> io::Result<()> {
        self.base.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

/// The text of a chain's rules.
pub fn text(family: Family, rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        rule.write(family, &mut text);
        text.push('\n');
    }
    text
}

type Chains = BTreeMap<(Table, Chain), Vec<Rule>>;

fn chains(program: &Program, ports: &BTreeSet<Arc<Port>>) -> Chains {
    ports.iter().flat_map(|port| program.layout(port).chains()).collect()
}

/// What a change of the plan changes. Costs in proportion to the Service ports that it touches, unless a frontend comes,
/// goes or leads elsewhere.
pub fn change(before: &Program, plan: &PlanChange) -> Change {
    let mut change = Change { plan: plan.clone(), tables: BTreeMap::new() };
    let ports = if plan.node.is_some() {
        // All rules name the node's ranges, or may.
        before.ports().cloned().chain(before.touched(plan)).collect()
    } else {
        before.touched(plan)
    };
    let after = &before.part(&ports).after(plan);
    let before_part = &before.part(&ports);
    let (old, new) = (chains(before_part, &ports), chains(after, &ports));
    differ(&mut change, before.family(), &old, &new);
    let shared_differ = ports.iter().any(|port| before_part.layout(port).shared() != after.layout(port).shared());
    if shared_differ || plan.node.is_some() || plan.cluster_ips != Default::default() {
        let whole = before.clone().after(plan);
        differ(&mut change, before.family(), &before.shared_rules(), &whole.shared_rules());
    }
    change
}

fn differ(change: &mut Change, family: Family, old: &Chains, new: &Chains) {
    for ((table, chain), rules) in new {
        if old.get(&(*table, chain.clone())) != Some(rules) {
            change.batch(*table).set.insert(chain.name(), text(family, rules));
        }
    }
    for (table, chain) in old.keys().filter(|key| !new.contains_key(key)) {
        change.batch(*table).removed.insert(chain.name());
    }
}

/// Leads a program on.
pub fn advance(program: &mut Program, change: &Change) {
    program.apply(&change.plan);
}

/// What must be written so that the kernel holds `want`, whatever it holds now. Chains that are right are left alone, and
/// so are all that are not ours.
pub fn repair(want: &Program, have: &Observed) -> Change {
    let family = want.family();
    let mut change = Change::none();
    let mut wanted: BTreeSet<(Table, String)> = BTreeSet::new();
    want.each_chain(|table, chain, rules| {
        let (name, rules) = (chain.name(), text(family, rules));
        if !have.chain(table, &name).is_some_and(|there| same_rules(there, &rules)) {
            change.batch(table).set.insert(name.clone(), rules);
        }
        wanted.insert((table, name));
    });
    for table in Table::ALL {
        let gone = have.ours(table).filter(|name| !wanted.contains(&(table, (*name).to_owned())));
        let gone: BTreeSet<String> = gone.map(str::to_owned).collect();
        if !gone.is_empty() {
            change.batch(table).removed = gone;
        }
        for base in bases(table) {
            let wanted = text(family, &base_rules(table, *base));
            let lines = have.put_right(table, *base, &wanted);
            if !lines.is_empty() {
                change.batch(table).base.extend(lines);
            }
        }
    }
    change
}

/// What takes everything of ours out of the kernel.
pub fn cleanup(have: &Observed) -> Change {
    let mut change = Change::none();
    for table in Table::ALL {
        let gone: BTreeSet<String> = have.ours(table).map(str::to_owned).collect();
        let lines: Vec<String> = have.all_bases(table).flat_map(|base| have.put_right(table, base, "")).collect();
        if !gone.is_empty() || !lines.is_empty() {
            change.tables.insert(table, Batch { set: BTreeMap::new(), removed: gone, base: lines });
        }
    }
    change
}
