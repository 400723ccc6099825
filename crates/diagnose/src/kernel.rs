//! Pure. What differs between the rules that a node should have and those that its kernel holds: what a repair would
//! change, in words, each with the Service port that it serves.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::plan::FrontendKey;
use signpost_datapath::iptables::chain::Table;
use signpost_datapath::{iptables, nftables};

use crate::snapshot::{ComparedWith, Difference, DifferenceKind, KernelState};

/// So many are kept; a kernel that lacks everything lacks ten thousand elements for one reason.
const MOST: usize = 100;

/// What a repair of nftables would change.
pub fn nftables(program: &nftables::Program, change: &nftables::Change, with: ComparedWith) -> KernelState {
    let table = format!("{} {}", nftables::layout::ip(program.family), nftables::layout::TABLE);
    let mut found = Vec::new();
    let mut tell = |kind, place: String, what: String, frontend: Option<FrontendKey>| {
        let entry = frontend.and_then(|key| program.frontends.get(&key));
        found.push(Difference {
            kind,
            place,
            what,
            frontend: frontend.map(|key| key.to_string()),
            service_port: entry.map(|entry| entry.service_port.to_string()),
        });
    };
    if let Some(load) = &change.load {
        let (kind, what) = if load.replaces {
            (DifferenceKind::Changed, "the table has another layout than this version's")
        } else {
            (DifferenceKind::Missing, "the table is not there")
        };
        tell(kind, format!("table {table}"), what.to_owned(), None);
    }
    for chain in &change.chains.added {
        tell(DifferenceKind::Missing, format!("table {table}"), format!("chain {chain}"), None);
    }
    for chain in &change.chains.rewritten {
        tell(DifferenceKind::Changed, format!("table {table}"), format!("rules of chain {chain}"), None);
    }
    for chain in &change.chains.removed {
        tell(DifferenceKind::Extra, format!("table {table}"), format!("chain {}", plain(chain)), None);
    }
    for set in &change.emptied {
        tell(
            DifferenceKind::Extra,
            format!("{} {set}", sort(*set)),
            "elements of a form that is not ours".to_owned(),
            None,
        );
    }
    for (set, key) in &change.removed {
        let kind =
            if change.added.contains_key(&(*set, *key)) { DifferenceKind::Changed } else { DifferenceKind::Extra };
        let (what, frontend) = element(key);
        tell(kind, format!("{} {set}", sort(*set)), what, frontend);
    }
    for (set, key) in change.added.keys().filter(|key| !change.removed.contains(key)) {
        // An emptied set is told as such.
        if !change.emptied.contains(set) {
            let (what, frontend) = element(key);
            tell(DifferenceKind::Missing, format!("{} {set}", sort(*set)), what, frontend);
        }
    }
    state(found, with)
}

fn sort(set: nftables::layout::Set) -> &'static str {
    if set.is_map() { "map" } else { "set" }
}

fn element(key: &nftables::element::Key) -> (String, Option<FrontendKey>) {
    use nftables::element::Key;
    match key {
        Key::Address(address) | Key::Loop(address) => (address.to_string(), None),
        Key::Network(range) => (range.to_string(), None),
        Key::Frontend(frontend) => (frontend.to_string(), Some(*frontend)),
        Key::Endpoint(frontend, index) => (format!("endpoint {index} of {frontend}"), Some(*frontend)),
        Key::Source(frontend, range) => (format!("{range} of {frontend}"), Some(*frontend)),
    }
}

/// What a repair of iptables would change.
pub fn iptables(
    program: &iptables::Program,
    change: &iptables::Change,
    have: &iptables::Observed,
    with: ComparedWith,
) -> KernelState {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for port in program.ports() {
        for (_, chain) in program.layout(port).chains().into_keys() {
            owners.insert(chain.name(), port.name.to_string());
        }
    }
    let mut found = Vec::new();
    for table in Table::ALL {
        let Some(batch) = change.table(table) else { continue };
        let mut tell = |kind, what: String, chain: &str| {
            found.push(Difference {
                kind,
                place: format!("table {}", table.name()),
                what,
                frontend: None,
                service_port: owners.get(chain).cloned(),
            });
        };
        for chain in batch.set.keys() {
            let kind =
                if have.chain(table, chain).is_some() { DifferenceKind::Changed } else { DifferenceKind::Missing };
            tell(kind, format!("chain {chain}"), chain);
        }
        for chain in &batch.removed {
            tell(DifferenceKind::Extra, format!("chain {}", plain(chain)), chain);
        }
        let bases: BTreeSet<&str> = batch.base.iter().filter_map(|line| line.split(' ').nth(1)).collect();
        for base in bases {
            tell(DifferenceKind::Changed, format!("jumps of {base} to our chains"), base);
        }
    }
    state(found, with)
}

fn state(mut differences: Vec<Difference>, compared_with: ComparedWith) -> KernelState {
    differences.sort();
    let more = differences.len().saturating_sub(MOST);
    differences.truncate(MOST);
    KernelState { compared_with, differences, more }
}

/// A kernel takes any bytes as names.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).take(64).collect()
}

#[cfg(test)]
mod tests {
    use signpost_core::object::Family;
    use signpost_datapath::nftables::Observed;
    use signpost_datapath::nftables::observed::Table as ObservedTable;
    use signpost_datapath::nftables::repair::repair;

    use super::*;

    #[test]
    fn a_table_that_is_not_there_is_one_difference() {
        let program = nftables::Program::empty(Family::Ipv4);
        let change = repair(&program, &Observed { table: None });
        let state = nftables(&program, &change, ComparedWith::Program);
        assert_eq!(state.differences.len(), 1);
        assert_eq!(state.differences[0].kind, DifferenceKind::Missing);
        assert_eq!(state.differences[0].place, "table ip kube-proxy");
        let other = Observed { table: Some(ObservedTable::default()) };
        let state = nftables(&program, &repair(&program, &other), ComparedWith::Program);
        assert_eq!(state.differences[0].kind, DifferenceKind::Changed);
    }

    #[test]
    fn chains_that_lack_in_iptables_are_named() {
        let plan = signpost_core::plan::NodePlan::empty(
            Family::Ipv4,
            signpost_core::plan::NodeFacts {
                cluster_cidrs: Vec::new(),
                node_addresses: BTreeSet::new(),
                node_port_addresses: BTreeSet::new(),
                service_cidrs: Vec::new(),
            },
        );
        let program = iptables::Program::of(&plan);
        let have = iptables::Observed::of("*nat\n:KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]\nCOMMIT\n");
        let state = iptables(&program, &iptables::change::repair(&program, &have), &have, ComparedWith::Program);
        let told: Vec<String> = state.differences.iter().map(|one| format!("{:?} {}", one.kind, one.what)).collect();
        assert!(told.contains(&"Extra chain KUBE-SVC-CDGGSHYLG3RE2FKL".to_owned()), "{told:?}");
        assert!(told.contains(&"Missing chain KUBE-SERVICES".to_owned()), "{told:?}");
        assert!(told.contains(&"Changed jumps of PREROUTING to our chains".to_owned()), "{told:?}");
    }
}
