//! The mode iptables with a kernel in memory: tables and chains as text, which takes what `iptables-restore --noflush` takes
//! and refuses what the real one refuses.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{NodePlan, PlanChange};

use crate::Datapath;
use crate::iptables::chain::Table;
use crate::iptables::{Change, Iptables, IptablesConfig, IptablesError, Observed, Program};

/// The kernel's own chains.
const OWN: [(&str, &[&str]); 2] =
    [("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]), ("filter", &["INPUT", "FORWARD", "OUTPUT"])];

type Tables = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// The mode iptables, whose kernel is this value.
#[derive(Debug, Clone)]
pub struct FakeIptables {
    decide: Iptables,
    family: Family,
    /// Rules by table and chain, without the chain's name.
    tables: Tables,
}

impl FakeIptables {
    /// A kernel with its own chains alone.
    pub fn new(family: Family) -> FakeIptables {
        let chains = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
        let tables = OWN.iter().map(|(table, names)| ((*table).to_owned(), chains(names))).collect();
        FakeIptables { decide: Iptables::new(family, IptablesConfig::default()), family, tables }
    }

    /// Takes what `iptables-restore --noflush` reads: per table all of it or nothing.
    ///
    /// # Errors
    /// What the real one would complain of. Tables before the refused one are changed.
    pub fn restore(&mut self, text: &str) -> Result<(), IptablesError> {
        let mut open: Option<(String, BTreeMap<String, Vec<String>>)> = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                open = Some((name.to_owned(), self.tables.get(name).cloned().unwrap_or_default()));
            } else if let ("COMMIT", Some((table, chains))) = (line, &open) {
                check(chains).map_err(|said| self.refused(said))?;
                self.tables.insert(table.clone(), chains.clone());
            } else if let Some((_, chains)) = &mut open {
                take(chains, line).map_err(|said| self.refused(said))?;
            }
        }
        Ok(())
    }

    /// Carries out what a change does to the first table that it touches, as when the process dies before the second.
    ///
    /// # Errors
    /// As [`FakeIptables::restore`].
    pub fn apply_first_table(&mut self, change: &Change) -> Result<(), IptablesError> {
        let text = text(change);
        let end = text.find("COMMIT\n").map_or(text.len(), |at| at + "COMMIT\n".len());
        self.restore(&text[..end])
    }

    /// As `iptables-save` prints it.
    pub fn save(&self) -> String {
        let mut saved = String::new();
        for (table, chains) in &self.tables {
            saved.push_str(&format!("*{table}\n"));
            chains.keys().for_each(|name| saved.push_str(&format!(":{name} - [0:0]\n")));
            for (name, rules) in chains {
                rules.iter().for_each(|rule| saved.push_str(&format!("-A {name} {rule}\n")));
            }
            saved.push_str("COMMIT\n");
        }
        saved
    }

    /// The rules of a chain.
    pub fn rules(&self, table: Table, chain: &str) -> Option<&[String]> {
        self.tables.get(table.name())?.get(chain).map(Vec::as_slice)
    }

    fn refused(&self, said: String) -> IptablesError {
        IptablesError::Refused { op: "change the rules", program: format!("a fake of {}", self.family), said }
    }
}

fn text(change: &Change) -> String {
    let mut bytes = Vec::new();
    change.write(&mut bytes).expect("a Vec takes everything");
    String::from_utf8(bytes).expect("rules are text")
}

fn take(chains: &mut BTreeMap<String, Vec<String>>, line: &str) -> Result<(), String> {
    if line.len() >= 1024 || !line.is_ascii() {
        return Err(format!("line too long, or not plain: {line}"));
    }
    if let Some(chain) = line.strip_prefix(':') {
        chains.insert(chain.split(' ').next().unwrap_or_default().to_owned(), Vec::new());
        return Ok(());
    }
    if line == "-S" {
        return Ok(()); // it prints
    }
    let (verb, rest) = line.split_once(' ').ok_or_else(|| format!("no verb: {line}"))?;
    let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    let rules = chains.get_mut(name).ok_or_else(|| format!("no chain of that name: {line}"))?;
    match verb {
        "-A" => rules.push(rule.to_owned()),
        "-I" => rules.insert(0, rule.strip_prefix("1 ").unwrap_or(rule).to_owned()),
        "-D" => {
            let at = rules.iter().position(|there| there == rule).ok_or_else(|| format!("no such rule: {line}"))?;
            rules.remove(at);
        }
        "-X" if rules.is_empty() => {
            chains.remove(name);
        }
        _ => return Err(format!("refused: {line}")),
    }
    Ok(())
}

/// Every jump leads to a chain.
fn check(chains: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for rule in chains.values().flatten() {
        let target = rule.rsplit_once("-j ").and_then(|(_, target)| target.split(' ').next()).unwrap_or_default();
        if target.starts_with("KUBE-") && !chains.contains_key(target) {
            return Err(format!("no chain of that name: {rule}"));
        }
    }
    Ok(())
}

impl Datapath for FakeIptables {
    type Program = Program;
    type Change = Change;
    type Observed = Observed;
    type Error = IptablesError;

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

    fn is_refusal(&self, error: &IptablesError) -> bool {
        self.decide.is_refusal(error)
    }

    /// Another proxy's chains are an error, as in the real mode.
    fn observe(&mut self) -> Result<Observed, IptablesError> {
        let observed = Observed::of(&self.save());
        if observed.is_foreign() { Err(IptablesError::Foreign { family: self.family }) } else { Ok(observed) }
    }

    fn apply(&mut self, change: &Change) -> Result<(), IptablesError> {
        self.restore(&text(change))
    }
}
