//! Pure. From what the kernel holds to what it should hold: the difference, and no more. A process that starts anew
//! adopts in this way what the one before it left.

use super::chain::Chain;
use super::change::Change;
use super::observed::{Elements, Observed, ObservedChain, Table};
use super::program::Program;
use super::render::{LAYOUT_PREFIX, layout_name};
use super::rule::rules;

/// What must be done so that the kernel holds `want`. The whole table is written only if there is none, or one of
/// another layout; even then in one transaction.
pub fn repair(want: &Program, have: &Observed) -> Change {
    let Some(table) = &have.table else { return Change::load(want, false) };
    if !has_layout(want, table) {
        return Change::load(want, true);
    }
    let mut change = Change::none(want.family);
    chains(&mut change, want, table);
    elements(&mut change, want, table);
    change
}

/// Whether the table has all that cannot be put right in place: our mark, the sets, and base chains at their hooks; and
/// nothing that cannot be taken away by name.
fn has_layout(want: &Program, table: &Table) -> bool {
    let wanted = layout_name(want.family);
    let is_marked = table.layout() == Some(wanted.as_str());
    let has_sets = super::layout::Set::ALL.iter().all(|set| table.sets.contains_key(set));
    let is_hooked = Chain::STATIC.iter().all(|chain| {
        let name = chain.to_string();
        table.chains.get(&name).is_some_and(|found| is_hooked(*chain, found))
    });
    is_marked && has_sets && is_hooked && table.chains.keys().all(|name| is_plain(name))
}

fn is_hooked(chain: Chain, found: &ObservedChain) -> bool {
    match (chain.hook(), &found.hook) {
        (None, None) => true,
        (Some(want), Some(found)) => {
            found.kind == want.kind && found.hook == want.number && found.priority == want.priority && found.accepts
        }
        _ => false,
    }
}

/// Whether a name can stand in a script. Ours can; a kernel takes any bytes from others.
fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
}

fn chains(change: &mut Change, want: &Program, table: &Table) {
    for chain in want.all_chains() {
        let wanted = rules(chain, &want.holds).into_iter().map(|rule| rule.comment(want.family));
        match table.chains.get(&chain.to_string()) {
            None => {
                change.chains.added.insert(chain);
            }
            Some(found) if found.hook.is_none() == chain.hook().is_none() && wanted.eq(found.rules.iter().cloned()) => {
            }
            Some(_) => {
                change.chains.rewritten.insert(chain);
            }
        }
    }
    let written = change.chains.added.iter().chain(&change.chains.rewritten);
    let holds = written.filter_map(|chain| match chain {
        Chain::Affinity(id) => want.holds.get_key_value(id),
        _ => None,
    });
    let holds = holds.map(|(id, hold)| (*id, hold.clone())).collect();
    change.chains.holds = holds;
    let is_wanted = |name: &str| name.parse().is_ok_and(|chain| want.has_chain(chain));
    let others = table.chains.keys().filter(|name| !name.starts_with(LAYOUT_PREFIX) && !is_wanted(name));
    change.chains.removed.extend(others.cloned());
}

fn elements(change: &mut Change, want: &Program, table: &Table) {
    let none = Elements::default();
    for (set, found) in table.sets.iter().filter(|(set, _)| !set.is_dynamic()) {
        if found.foreign {
            change.emptied.insert(*set);
            continue;
        }
        for (key, value) in &found.known {
            if want.element(*set, key).is_none() {
                change.element(*set, *key, Some(value), None);
            }
        }
    }
    for (set, key, value) in want.elements() {
        let found = table.sets.get(&set).filter(|found| !found.foreign).unwrap_or(&none);
        change.element(set, key, found.known.get(&key), Some(value));
    }
}
