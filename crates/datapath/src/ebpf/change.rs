//! Pure. From one program to another: the entries that differ, in an order in which no connection meets half a state.
//!
//! ```text
//! before, PlanChange ─▶ change() ─┐               1 new slots        3 frontends and entries that go
//! before, after ──────▶ diff() ───┼─▶ Change ─▶   2 all other new    4 slots that go
//! want, Observed ─────▶ repair() ─┘                 or changed ones
//!
//! With the slots go the Maglev tables and the ranges of guards.
//! ```
//!
//! A set of backends never changes, so a frontend goes over from one set to the next in one write. A connection that
//! looked the frontend up before that write, and for a slot after step 4, looks again.

use std::collections::{BTreeMap, BTreeSet};

use std::net::IpAddr;

use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{FrontendKey, PlanChange, SetChange};

use super::layout::{GuardId, Key, SetId, Table, Value};
use super::program::{Entry, Node, Program, Set, guard_entries, set_entries, set_keys, sets_of};

/// A step from one program to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The family whose entries it changes.
    pub family: Family,
    /// Entries that are new, or whose value differs.
    pub set: BTreeMap<Key, Value>,
    /// Entries that go.
    pub removed: BTreeSet<Key>,
    /// Entries that go and are none that we would write: table and bytes.
    pub foreign: BTreeSet<(Table, Vec<u8>)>,
    /// Whether the programs are to be attached, after all else.
    pub attach: bool,
    /// The same step for the program. A repair has none: it starts from the kernel.
    pub step: Step,
}

/// What becomes of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Frontends that are new, differ, or are gone.
    pub frontends: BTreeMap<FrontendKey, Option<Entry>>,
    /// The node's own entries, if any differs.
    pub node: Option<Node>,
    /// Endpoints of this node.
    pub local_endpoints: SetChange,
}

/// One write of the kernel's maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write<'a> {
    /// This value at this key, whatever was there.
    Set(&'a Key, &'a Value),
    /// Nothing at this key; it may be gone already.
    Remove(&'a Key),
}

impl Change {
    /// Nothing to do.
    pub fn none(family: Family) -> Change {
        Change {
            family,
            set: BTreeMap::new(),
            removed: BTreeSet::new(),
            foreign: BTreeSet::new(),
            attach: false,
            step: Step::default(),
        }
    }

    /// Whether the kernel has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.removed.is_empty() && self.foreign.is_empty() && !self.attach
    }

    /// Whether sockets of a protocol may be left without their backend: something about its frontends differs.
    pub fn touches(&self, protocol: Protocol) -> bool {
        let is_its = |key: &Key| match key {
            Key::Frontend(
                _,
                FrontendKey::Address { protocol: its, .. } | FrontendKey::NodePort { protocol: its, .. },
            ) => *its == protocol,
            Key::NodePortIp(_) => true,
            Key::Slot(..) | Key::Chunk(..) | Key::Node(_) | Key::NodeIp(_) => false,
            Key::LocalEndpoint(_) | Key::PodNetwork(_) | Key::Source(..) => false,
        };
        self.set.keys().chain(&self.removed).any(is_its)
    }

    /// The writes, in their order; each may be carried out twice.
    pub fn writes(&self) -> impl Iterator<Item = Write<'_>> {
        let set = |ground: bool| self.set.iter().filter(move |(key, _)| key.table().is_ground() == ground);
        let gone = |ground: bool| self.removed.iter().filter(move |key| key.table().is_ground() == ground);
        let sets = set(true).chain(set(false)).map(|(key, value)| Write::Set(key, value));
        sets.chain(gone(false).chain(gone(true)).map(Write::Remove))
    }

    fn entry(&mut self, key: Key, before: Option<Value>, after: Option<Value>) {
        match after {
            _ if before == after => {}
            Some(after) => {
                self.set.insert(key, after);
            }
            None => {
                self.removed.insert(key);
            }
        }
    }
}

/// What a change of the plan changes; costs in proportion to it.
pub fn change(before: &Program, plan: &PlanChange) -> Change {
    let mut builder = Builder::new(before);
    for (key, frontend) in &plan.set {
        builder.frontend(*key, Entry::of(before.family, before.packets, key, frontend));
    }
    for key in plan.removed.iter().filter(|key| !plan.set.contains_key(key)) {
        builder.frontend(*key, None);
    }
    builder.node(plan.node.as_ref().map(|facts| Node::of(before.family, before.packets, facts)));
    builder.local_endpoints(&plan.local_endpoints);
    builder.finish()
}

/// From one program to another, by comparing the whole of them.
pub fn diff(before: &Program, after: &Program) -> Change {
    let mut builder = Builder::new(before);
    for (key, value) in &after.frontends {
        let set = |id: SetId| Some((id, Set { frontends: 0, ..after.sets.get(&id)?.clone() }));
        let sets = sets_of(value).into_iter().filter_map(set).collect();
        let sources = after.guards.get(&value.guard).cloned();
        builder.frontend(*key, Some(Entry { value: *value, sets, sources }));
    }
    for key in before.frontends.keys().filter(|key| !after.frontends.contains_key(key)) {
        builder.frontend(*key, None);
    }
    builder.node(Some(after.node.clone()));
    builder.local_endpoints(&SetChange {
        added: &after.local_endpoints - &before.local_endpoints,
        removed: &before.local_endpoints - &after.local_endpoints,
    });
    builder.finish()
}

/// Turns a program into the one that a change leads to.
pub fn advance(program: &mut Program, change: &Change) {
    for (key, entry) in &change.step.frontends {
        program.set_frontend(*key, entry.clone());
    }
    if let Some(node) = &change.step.node {
        program.node = node.clone();
    }
    let SetChange { added, removed } = &change.step.local_endpoints;
    program.local_endpoints.retain(|address| !removed.contains(address));
    program.local_endpoints.extend(added);
}

/// Gathers a change from the parts of a program that differ.
struct Builder<'a> {
    before: &'a Program,
    change: Change,
    /// How many frontends more, or fewer, have a set; with what is in it, if one that comes has it.
    sets: BTreeMap<SetId, (i64, Option<Set>)>,
}

impl Builder<'_> {
    fn new(before: &Program) -> Builder<'_> {
        Builder { before, change: Change::none(before.family), sets: BTreeMap::new() }
    }

    fn frontend(&mut self, key: FrontendKey, after: Option<Entry>) {
        let before = self.before.frontends.get(&key).copied();
        if before == after.as_ref().map(|entry| entry.value) {
            return;
        }
        for id in before.iter().flat_map(sets_of) {
            self.sets.entry(id).or_default().0 -= 1;
        }
        for (id, set) in after.iter().flat_map(|entry| &entry.sets) {
            let (more, known) = self.sets.entry(*id).or_default();
            *more += 1;
            *known = Some(set.clone());
        }
        self.guard(before.map(|before| before.guard), after.as_ref());
        let value = after.as_ref().map(|entry| Value::Frontend(entry.value));
        self.change.entry(Key::Frontend(self.before.family, key), before.map(Value::Frontend), value);
        self.change.step.frontends.insert(key, after);
    }

    /// A frontend's guard is its own, and another one if it lets in others.
    fn guard(&mut self, before: Option<GuardId>, after: Option<&Entry>) {
        if before == after.map(|entry| entry.value.guard) {
            return;
        }
        let ranges = before.and_then(|before| Some((before, self.before.guards.get(&before)?)));
        self.change
            .removed
            .extend(ranges.iter().flat_map(|(id, ranges)| guard_entries(*id, ranges)).map(|(key, _)| key));
        let sources = after.and_then(|entry| Some((entry.value.guard, entry.sources.as_ref()?)));
        self.change.set.extend(sources.iter().flat_map(|(id, ranges)| guard_entries(*id, ranges)));
    }

    /// What is added and removed at once is there.
    fn local_endpoints(&mut self, change: &SetChange) {
        if !self.before.serves_packets() {
            return;
        }
        let of_family = |address: &IpAddr| Family::of(*address) == self.before.family;
        let known = &self.before.local_endpoints;
        let added = change.added.iter().filter(|ip| of_family(ip) && !known.contains(ip)).copied();
        let gone = change.removed.iter().filter(|ip| known.contains(ip) && !change.added.contains(ip)).copied();
        let step = SetChange { added: added.collect(), removed: gone.collect() };
        self.change.set.extend(step.added.iter().map(|ip| (Key::LocalEndpoint(*ip), Value::Member)));
        self.change.removed.extend(step.removed.iter().map(|ip| Key::LocalEndpoint(*ip)));
        self.change.step.local_endpoints = step;
    }

    fn node(&mut self, after: Option<Node>) {
        let Some(after) = after.filter(|after| *after != self.before.node) else { return };
        let family = self.before.family;
        let mut before: BTreeMap<Key, Value> = self.before.node.entries(family).collect();
        for (key, value) in after.entries(family) {
            let was = before.remove(&key);
            self.change.entry(key, was, Some(value));
        }
        self.change.removed.extend(before.into_keys());
        self.change.step.node = Some(after);
    }

    fn finish(mut self) -> Change {
        for (id, (more, set)) in self.sets {
            let before = self.before.sets.get(&id);
            match (before, set) {
                (None, Some(set)) if more > 0 => self.change.set.extend(set_entries(id, &set)),
                (Some(before), _) if i64::from(before.frontends) + more == 0 => {
                    self.change.removed.extend(set_keys(id, before));
                }
                _ => {}
            }
        }
        self.change
    }
}
