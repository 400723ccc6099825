//! Pure. A change as the text that nft reads: one transaction, whatever its length.

use std::collections::BTreeSet;
use std::io::{self, Write};

use signpost_core::object::Family;

use super::chain::Chain;
use super::change::{Change, Load};
use super::element::{Data, Key, Value};
use super::hold::Holds;
use super::layout::{FORMER_TABLE, Set, TABLE, fingerprint, ip};
use super::rule::rules;

/// Elements of one `add element`. Longer lines save nothing.
const ELEMENTS_PER_LINE: usize = 1_000;

/// The begin of the name of the chain that marks the table as ours.
pub const LAYOUT_PREFIX: &str = "layout-";

/// The name of an empty chain that marks the table as ours and tells which layout it has: a fingerprint of all that
/// cannot be changed in place. A table with another one is replaced as a whole, in one transaction.
pub fn layout_name(family: Family) -> String {
    let sets = Set::ALL.map(|set| format!("{set} {}", set.declaration(family)));
    let hooks = Chain::STATIC.map(|chain| format!("{chain} {:?}", chain.hook()));
    let texts = sets.iter().chain(&hooks).map(String::as_str);
    format!("{LAYOUT_PREFIX}{:08x}", fingerprint(texts))
}

/// Writes a change. A change that is nothing writes nothing.
///
/// # Errors
/// Those of `out`.
pub fn render(change: &Change, out: &mut dyn Write) -> io::Result<()> {
    let table = format!("{} {TABLE}", ip(change.family));
    let mut script = Script { out, table, family: change.family };
    if let Some(load) = &change.load {
        return script.load(load);
    }
    let chains = &change.chains;
    script.add_chains(&chains.added)?;
    for chain in &chains.rewritten {
        script.line(&format!("flush chain {} {chain}", script.table))?;
    }
    script.add_rules(chains.added.iter().chain(&chains.rewritten).copied(), &chains.holds)?;
    for set in &change.emptied {
        let kind = if set.is_map() { "map" } else { "set" };
        script.line(&format!("flush {kind} {} {set}", script.table))?;
    }
    script.elements("delete", change.removed.iter().map(|(set, key)| (*set, *key, None)))?;
    script.elements("add", change.added.iter().map(|((set, key), value)| (*set, *key, Some(value.clone()))))?;
    script.remove_chains(&chains.removed)
}

/// Removes a table of the family, whatever is in it, and is content if there is none.
pub fn render_delete(family: Family, table: &str) -> String {
    let table = format!("{} {table}", ip(family));
    // Of `add` and `delete`, the first makes sure that the second finds one.
    format!("add table {table}\ndelete table {table}\n")
}

/// A table that keeps flows alive which other rules translated: a chain of type nat brings the kernel's hooks that go on
/// translating, and a match of conntrack's state keeps conntrack itself in use.
pub fn render_keep_flows(family: Family) -> String {
    let table = format!("{} {FORMER_TABLE}", ip(family));
    format!(
        "add table {table}\ndelete table {table}\nadd table {table}\n\
         add chain {table} nat-postrouting {{ type nat hook postrouting priority 100; policy accept; }}\n\
         add rule {table} nat-postrouting ct state established accept comment \"flows of a former mode\"\n"
    )
}

struct Script<'a> {
    out: &'a mut dyn Write,
    table: String,
    family: Family,
}

impl Script<'_> {
    fn line(&mut self, line: &str) -> io::Result<()> {
        self.out.write_all(line.as_bytes())?;
        self.out.write_all(b"\n")
    }

    fn load(&mut self, load: &Load) -> io::Result<()> {
        let table = self.table.clone();
        self.line(&format!("add table {table}"))?;
        if load.replaces {
            self.line(&format!("delete table {table}"))?;
            self.line(&format!("add table {table}"))?;
        }
        for set in Set::ALL {
            let kind = if set.is_map() { "map" } else { "set" };
            self.line(&format!("add {kind} {table} {set} {{ {} }}", set.declaration(self.family)))?;
        }
        self.line(&format!("add chain {table} {}", layout_name(self.family)))?;
        let chains: BTreeSet<Chain> = load.program.all_chains().collect();
        self.add_chains(&chains)?;
        self.add_rules(load.program.all_chains(), &load.program.holds)?;
        // A pass per set: long lines of one set, without holding the elements of all.
        for set in Set::ALL {
            let elements = load.program.elements().filter(|(of, ..)| *of == set);
            self.elements("add", elements.map(|(set, key, value)| (set, key, Some(value))))?;
        }
        Ok(())
    }

    fn add_chains(&mut self, chains: &BTreeSet<Chain>) -> io::Result<()> {
        for chain in chains {
            let hook = match chain.hook() {
                Some(hook) => {
                    format!(" {{ type {} hook {} priority {}; policy accept; }}", hook.kind, hook.hook, hook.priority)
                }
                None => String::new(),
            };
            self.line(&format!("add chain {} {chain}{hook}", self.table))?;
        }
        Ok(())
    }

    fn add_rules(&mut self, chains: impl Iterator<Item = Chain>, holds: &Holds) -> io::Result<()> {
        for chain in chains {
            for rule in rules(chain, holds) {
                let (text, comment) = (rule.text(self.family), rule.comment(self.family));
                self.line(&format!("add rule {} {chain} {text} comment \"{comment}\"", self.table))?;
            }
        }
        Ok(())
    }

    fn remove_chains(&mut self, names: &BTreeSet<String>) -> io::Result<()> {
        // Their rules name each other: first all rules go, then the chains.
        for verb in ["flush", "delete"] {
            for name in names {
                self.line(&format!("{verb} chain {} {name}", self.table))?;
            }
        }
        Ok(())
    }

    fn elements(&mut self, verb: &str, elements: impl Iterator<Item = (Set, Key, Option<Value>)>) -> io::Result<()> {
        let mut open: Option<(Set, usize)> = None;
        for (set, key, value) in elements {
            match open {
                Some((current, count)) if current == set && count < ELEMENTS_PER_LINE => {
                    self.out.write_all(b",")?;
                    open = Some((set, count + 1));
                }
                _ => {
                    let close = if open.is_some() { " }\n" } else { "" };
                    write!(self.out, "{close}{verb} element {} {set} {{ ", self.table)?;
                    open = Some((set, 1));
                }
            }
            write!(self.out, "{key}")?;
            if let Some(value) = value {
                self.value(&value)?;
            }
        }
        if open.is_some() { self.line(" }") } else { Ok(()) }
    }

    fn value(&mut self, value: &Value) -> io::Result<()> {
        if let Some(comment) = &value.comment {
            write!(self.out, " comment \"{comment}\"")?;
        }
        match value.data {
            // A foreign verdict is only ever found, never wanted.
            Data::Member | Data::Foreign => Ok(()),
            Data::Goto(chain) => write!(self.out, " : goto {chain}"),
            Data::Jump(chain) => write!(self.out, " : jump {chain}"),
            Data::Drop => self.out.write_all(b" : drop"),
            Data::To(to) => write!(self.out, " : {} . {}", to.ip(), to.port()),
        }
    }
}
