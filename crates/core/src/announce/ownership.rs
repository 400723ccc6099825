//! Pure. Which node owns each address, and what this node is to do about it.
//!
//! The API keeps one record per address: its holder. Whoever writes it as of the version that he has seen has the address, so
//! that two nodes never both believe they got it. Heartbeats say who is dead. An owner that lives and may have its
//! address keeps it, however many nodes come back: a move is a break for clients.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::hash;

/// For so long the first choice may take to claim an address that nobody holds, before the next one does.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// For so long a node waits that hears less than half of the others: they may be well, and out of its sight.
pub const MINORITY_PATIENCE: Duration = Duration::from_secs(10);

/// What a node knows when it decides.
pub struct Situation<'a> {
    /// This node.
    pub me: &'a Arc<str>,
    /// It is about to end: it keeps nothing that another can have.
    pub leaving: bool,
    /// Who may have each address that is to be announced.
    pub candidates: &'a BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Who has each address by its record; an empty name: nobody.
    pub holders: &'a BTreeMap<IpAddr, Arc<str>>,
    /// The addresses that this node could answer for now: its kernel serves them, and an interface for them is up.
    pub able: &'a BTreeSet<IpAddr>,
    /// Which nodes live. Of itself a node knows it.
    pub lives: &'a dyn Fn(&str) -> bool,
    /// Whether this node hears less than half of all.
    pub in_minority: bool,
    /// For how long an address has been without an owner that lives.
    pub ownerless: &'a dyn Fn(IpAddr) -> Duration,
}

/// What to do about an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Write this node into the record.
    Claim(IpAddr),
    /// Write another node into the record of an address that is this node's; `None`: nobody.
    HandOver(IpAddr, Option<Arc<str>>),
    /// Delete the record: the address is announced no more.
    Forget(IpAddr),
}

/// The addresses without an owner that lives and may have them.
pub fn ownerless(situation: &Situation<'_>) -> BTreeSet<IpAddr> {
    let is_owned = |(address, candidates): &(&IpAddr, &BTreeSet<Arc<str>>)| {
        situation.holders.get(*address).is_some_and(|holder| situation.holds(holder, candidates))
    };
    situation.candidates.iter().filter(|entry| !is_owned(entry)).map(|(address, _)| *address).collect()
}

/// What this node is to do now. Every node decides for itself; those that know the same decide alike.
pub fn steps(situation: &Situation<'_>) -> Vec<Step> {
    let mut loads: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    for (address, candidates) in situation.candidates {
        if let Some(holder) = situation.holders.get(address)
            && situation.holds(holder, candidates)
        {
            *loads.entry(holder).or_default() += 1;
        }
    }
    let mut steps = Vec::new();
    for (address, candidates) in situation.candidates {
        let holder = situation.holders.get(address).filter(|holder| !holder.is_empty());
        let is_mine = holder == Some(situation.me);
        let stays = holder.is_some_and(|holder| situation.holds(holder, candidates));
        if stays && (!is_mine || situation.able.contains(address)) {
            continue;
        }
        let mut living: Vec<&Arc<str>> = candidates.iter().filter(|node| situation.is_up(node)).collect();
        living.retain(|node| !(is_mine && *node == situation.me));
        living.sort_by_key(|node| (loads.get(node).copied().unwrap_or(0), rank(node, *address)));
        let first = living.first().copied();
        if let Some(first) = first {
            *loads.entry(first).or_default() += 1;
        }
        if is_mine {
            // A node that ends leaves the address to its record if nobody else can have it: when it comes back, it has it.
            if first.is_some() || !situation.leaving {
                steps.push(Step::HandOver(*address, first.cloned()));
            }
            continue;
        }
        // One that lives but may no longer have the address hands it over itself, to whom it thinks best.
        let waits_for_holder = holder.is_some_and(|holder| situation.is_up(holder));
        let place = living.iter().position(|node| *node == situation.me);
        let Some(place) = place.filter(|_| situation.able.contains(address)) else { continue };
        let alone = if situation.in_minority && holder.is_some() { MINORITY_PATIENCE } else { Duration::ZERO };
        let turn = alone + PATIENCE * (place as u32 + u32::from(waits_for_holder));
        if (situation.ownerless)(*address) >= turn {
            steps.push(Step::Claim(*address));
        }
    }
    let forgotten = situation.holders.iter().filter(|(address, _)| !situation.candidates.contains_key(*address));
    steps.extend(forgotten.filter(|(_, holder)| *holder == situation.me).map(|(address, _)| Step::Forget(*address)));
    steps
}

impl Situation<'_> {
    fn is_up(&self, node: &Arc<str>) -> bool {
        if node == self.me { !self.leaving } else { (self.lives)(node) }
    }

    fn holds(&self, holder: &Arc<str>, candidates: &BTreeSet<Arc<str>>) -> bool {
        candidates.contains(holder) && self.is_up(holder)
    }
}

/// Orders equally loaded nodes differently for each address.
fn rank(node: &str, address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => hash(&[node.as_bytes(), &address.octets()]),
        IpAddr::V6(address) => hash(&[node.as_bytes(), &address.octets()]),
    }
}

#[cfg(test)]
mod tests;
