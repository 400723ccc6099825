//! Pure. From one program to another: the elements and the few chains that differ, and nothing else.
//!
//! ```text
//! before, PlanChange ─▶ change() ─┐
//! before, after ──────▶ diff() ───┼─▶ Change ─▶ render (kernel), advance (program)
//! want, Observed ─────▶ repair() ─┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use signpost_core::object::Family;
use signpost_core::plan::{FrontendKey, PlanChange, SetChange};

use super::chain::Chain;
use super::element::{Data, Key, Value};
use super::hold::Holds;
use super::layout::Set;
use super::program::{Entry, Node, Program};

/// A step from one program to another: one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The family, whose table it changes.
    pub family: Family,
    /// The whole table anew. Then nothing below is set.
    pub load: Option<Load>,
    /// Chains that come, that go, or whose rules are written anew.
    pub chains: ChainChange,
    /// Sets that are emptied first, since the kernel has something in them that we cannot name.
    pub emptied: BTreeSet<Set>,
    /// Elements that go, or come back with other data.
    pub removed: BTreeSet<(Set, Key)>,
    /// Elements that come.
    pub added: BTreeMap<(Set, Key), Value>,
    /// The same step for the program. A repair has none: it starts from the kernel.
    pub step: Step,
}

/// The whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// What it holds then.
    pub program: Program,
    /// Whether there is a table, to be removed in the same transaction.
    pub replaces: bool,
}

/// What becomes of chains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainChange {
    /// New ones.
    pub added: BTreeSet<Chain>,
    /// Emptied and written anew.
    pub rewritten: BTreeSet<Chain>,
    /// Names of those that go. Names, as the kernel may hold one that is none of ours.
    pub removed: BTreeSet<String>,
    /// What the rules of those that come or are written anew depend on.
    pub holds: Holds,
}

/// What becomes of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Frontends that are new, differ, or are gone.
    pub frontends: BTreeMap<FrontendKey, Option<Entry>>,
    /// The node's own sets, if any differs.
    pub node: Option<Node>,
    /// Cluster addresses.
    pub cluster_ips: SetChange,
    /// Endpoints on this node.
    pub hairpins: SetChange,
}

impl Change {
    /// Nothing to do.
    pub fn none(family: Family) -> Change {
        Change {
            family,
            load: None,
            chains: ChainChange::default(),
            emptied: BTreeSet::new(),
            removed: BTreeSet::new(),
            added: BTreeMap::new(),
            step: Step::default(),
        }
    }

    /// The whole of a program.
    pub fn load(program: &Program, replaces: bool) -> Change {
        let load = Some(Load { program: program.clone(), replaces });
        Change { load, ..Change::none(program.family) }
    }

    /// Whether the kernel has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.load.is_none()
            && self.chains == ChainChange::default()
            && self.emptied.is_empty()
            && self.removed.is_empty()
            && self.added.is_empty()
    }

    /// An element that was there and one that shall be.
    pub(super) fn element(&mut self, set: Set, key: Key, before: Option<&Value>, after: Option<Value>) {
        if before == after.as_ref() {
            return;
        }
        if before.is_some() {
            self.removed.insert((set, key));
        }
        if let Some(after) = after {
            self.added.insert((set, key), after);
        }
    }

    fn elements(
        &mut self,
        before: impl Iterator<Item = (Set, Key, Value)>,
        after: impl Iterator<Item = (Set, Key, Value)>,
    ) {
        let by_key = |(set, key, value)| ((set, key), value);
        let mut before: BTreeMap<(Set, Key), Value> = before.map(by_key).collect();
        for (set, key, value) in after {
            let was = before.remove(&(set, key));
            self.element(set, key, was.as_ref(), Some(value));
        }
        for ((set, key), value) in before {
            self.element(set, key, Some(&value), None);
        }
    }
}

/// What a change of the plan changes; costs in proportion to it.
pub fn change(before: &Program, plan: &PlanChange) -> Change {
    let family = before.family;
    let mut builder = Builder::new(before);
    for (key, frontend) in &plan.set {
        builder.frontend(*key, Entry::of(family, key, frontend));
    }
    for key in plan.removed.iter().filter(|key| !plan.set.contains_key(key)) {
        builder.frontend(*key, None);
    }
    builder.node(plan.node.as_ref().map(|facts| Node::of_facts(family, facts)));
    builder.addresses(&plan.cluster_ips, &plan.local_endpoints);
    builder.finish()
}

/// From one program to another, by comparing the whole of them.
pub fn diff(before: &Program, after: &Program) -> Change {
    let mut builder = Builder::new(before);
    for (key, entry) in &after.frontends {
        builder.frontend(*key, Some(entry.clone()));
    }
    for key in before.frontends.keys().filter(|key| !after.frontends.contains_key(key)) {
        builder.frontend(*key, None);
    }
    builder.node(Some(after.node.clone()));
    let step = |before: &BTreeSet<IpAddr>, after: &BTreeSet<IpAddr>| SetChange {
        added: after - before,
        removed: before - after,
    };
    builder.addresses(&step(&before.cluster_ips, &after.cluster_ips), &step(&before.hairpins, &after.hairpins));
    builder.finish()
}

/// Turns a program into the one that a change leads to.
pub fn advance(program: &mut Program, change: &Change) {
    if let Some(load) = &change.load {
        *program = load.program.clone();
    }
    for (key, entry) in &change.step.frontends {
        program.set_frontend(*key, entry.clone());
    }
    if let Some(node) = &change.step.node {
        program.node = node.clone();
    }
    for (set, step) in
        [(&mut program.cluster_ips, &change.step.cluster_ips), (&mut program.hairpins, &change.step.hairpins)]
    {
        step.removed.iter().for_each(|address| {
            set.remove(address);
        });
        set.extend(&step.added);
    }
}

/// Gathers a change from the parts of a program that differ.
struct Builder<'a> {
    before: &'a Program,
    change: Change,
    /// How many frontends more, or fewer, need a chain.
    needs: BTreeMap<Chain, i64>,
    /// Those that changed frontends need.
    holds: Holds,
}

impl Builder<'_> {
    fn new(before: &Program) -> Builder<'_> {
        Builder { before, change: Change::none(before.family), needs: BTreeMap::new(), holds: Holds::new() }
    }

    fn frontend(&mut self, key: FrontendKey, after: Option<Entry>) {
        let before = self.before.frontends.get(&key);
        if before == after.as_ref() {
            return;
        }
        for (entry, more) in [(before, -1), (after.as_ref(), 1)] {
            for chain in entry.iter().flat_map(|entry| entry.chains(&key)) {
                *self.needs.entry(chain).or_default() += more;
            }
        }
        self.holds.extend(after.iter().flat_map(|entry| &entry.holds).map(|(id, hold)| (*id, hold.clone())));
        let elements = |entry: Option<&Entry>| -> Vec<_> {
            entry.iter().flat_map(|entry| entry.elements(&key).collect::<Vec<_>>()).collect()
        };
        self.change.elements(elements(before).into_iter(), elements(after.as_ref()).into_iter());
        self.change.step.frontends.insert(key, after);
    }

    fn node(&mut self, after: Option<Node>) {
        let Some(after) = after.filter(|after| *after != self.before.node) else { return };
        self.change.elements(self.before.node.elements(), after.elements());
        self.change.step.node = Some(after);
    }

    fn addresses(&mut self, cluster_ips: &SetChange, hairpins: &SetChange) {
        let before = self.before;
        let step = effective(before.family, &before.cluster_ips, cluster_ips);
        self.members(&step, |address| (Set::ClusterIps, Key::Address(address)));
        self.change.step.cluster_ips = step;
        let step = effective(before.family, &before.hairpins, hairpins);
        self.members(&step, |address| (Set::HairpinConnections, Key::Loop(address)));
        self.change.step.hairpins = step;
    }

    fn members(&mut self, step: &SetChange, element: impl Fn(IpAddr) -> (Set, Key)) {
        self.change.removed.extend(step.removed.iter().map(|address| element(*address)));
        let added = step.added.iter().map(|address| (element(*address), Value::plain(Data::Member)));
        self.change.added.extend(added);
    }

    fn finish(mut self) -> Change {
        for (chain, more) in self.needs {
            let before = i64::from(self.before.chains.get(&chain).copied().unwrap_or_default());
            if before == 0 && more > 0 {
                self.change.chains.added.insert(chain);
                if let Chain::Affinity(id) = chain {
                    self.change.chains.holds.extend(self.holds.remove(&id).map(|hold| (id, hold)));
                }
            } else if before > 0 && before + more == 0 {
                self.change.chains.removed.insert(chain.to_string());
            }
        }
        self.change
    }
}

/// The part of a step that is one: additions of what is not there, removals of what is. What is in both is added.
fn effective(family: Family, before: &BTreeSet<IpAddr>, step: &SetChange) -> SetChange {
    let added = step.added.iter().copied();
    let removed = step.removed.iter().copied();
    SetChange {
        added: added.filter(|address| Family::of(*address) == family && !before.contains(address)).collect(),
        removed: removed.filter(|address| before.contains(address) && !step.added.contains(address)).collect(),
    }
}
