//! Pure. From one program to another: the entries that differ, in an order in which no connection meets half a state.
//!
//! ```text
//! before, PlanChange ─▶ change() ─┐               1 new slots        3 frontends and entries that go
//! before, after ──────▶ diff() ───┼─▶ Change ─▶   2 all other new    4 slots that go
//! want, Observed ─────▶ repair() ─┘                 or changed ones
//! ```
//!
//! A set of backends never changes, so a frontend goes over from one set to the next in one write. A connection that
//! looked the frontend up before that write, and for a slot after step 4, looks again.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{FrontendKey, PlanChange};

use super::layout::{Key, SetId, Table, Value};
use super::program::{Entry, Node, Program, Set, sets_of, slots};

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
            Key::Slot(..) | Key::Node(_) => false,
            Key::NodePortIp(_) => true,
        };
        self.set.keys().chain(&self.removed).any(is_its)
    }

    /// The writes, in their order; each may be carried out twice.
    pub fn writes(&self) -> impl Iterator<Item = Write<'_>> {
        let set = |slots: bool| self.set.iter().filter(move |(key, _)| (key.table() == Table::Slots) == slots);
        let gone = |slots: bool| self.removed.iter().filter(move |key| (key.table() == Table::Slots) == slots);
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
        builder.frontend(*key, Entry::of(before.family, key, frontend));
    }
    for key in plan.removed.iter().filter(|key| !plan.set.contains_key(key)) {
        builder.frontend(*key, None);
    }
    builder.node(plan.node.as_ref().map(|facts| Node::of(before.family, facts)));
    builder.finish()
}

/// From one program to another, by comparing the whole of them.
pub fn diff(before: &Program, after: &Program) -> Change {
    let mut builder = Builder::new(before);
    for (key, value) in &after.frontends {
        let set = |id: SetId| Some((id, after.sets.get(&id)?.backends.clone()));
        let sets = sets_of(value).into_iter().filter_map(set).collect();
        builder.frontend(*key, Some(Entry { value: *value, sets }));
    }
    for key in before.frontends.keys().filter(|key| !after.frontends.contains_key(key)) {
        builder.frontend(*key, None);
    }
    builder.node(Some(after.node.clone()));
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
        for (id, backends) in after.iter().flat_map(|entry| &entry.sets) {
            let (more, set) = self.sets.entry(*id).or_default();
            *more += 1;
            *set = Some(Set { backends: backends.clone(), frontends: 0 });
        }
        let value = after.as_ref().map(|entry| Value::Frontend(entry.value));
        self.change.entry(Key::Frontend(self.before.family, key), before.map(Value::Frontend), value);
        self.change.step.frontends.insert(key, after);
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
                (None, Some(set)) if more > 0 => self.change.set.extend(slots(id, &set.backends)),
                (Some(before), _) if i64::from(before.frontends) + more == 0 => {
                    self.change.removed.extend(slots(id, &before.backends).map(|(key, _)| key));
                }
                _ => {}
            }
        }
        self.change
    }
}
