//! Pure. The whole of what the maps hold for one plan. Sets of backends are shared with the plan and among frontends: two
//! frontends with the same backends have the same set, whatever their Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use signpost_core::object::{Family, Protocol, ServicePortName};
use signpost_core::plan::{Backend, Backends, Frontend, FrontendKey, NodeFacts, NodePlan, Route, Target};

use super::layout::{FrontendValue, Key, NodeValue, RouteValue, SetId, Value, endpoint};

/// The most backends of a set: the kernel programs find one of them in as many halvings as this needs.
pub const MOST_BACKENDS: usize = 1 << 20;

/// The program of one node and one family. Same plan, same program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The family; every address in it is of it.
    pub family: Family,
    /// What it knows of the node.
    pub node: Node,
    /// What the clients of each frontend meet.
    pub frontends: BTreeMap<FrontendKey, FrontendValue>,
    /// The sets that their routes name.
    pub sets: BTreeMap<SetId, Set>,
}

/// The node's own entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What is known of it.
    pub value: NodeValue,
    /// The addresses at which node ports answer.
    pub node_port_ips: BTreeSet<IpAddr>,
}

/// A set of backends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Sorted, of the family, never empty.
    pub backends: Backends,
    /// How many frontends have routes to it.
    pub frontends: u32,
}

/// A frontend with the sets that its routes name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What its clients meet.
    pub value: FrontendValue,
    /// At most three.
    pub sets: BTreeMap<SetId, Backends>,
}

impl Program {
    /// The program of a plan. What is of another family in it is left out, so that it harms only itself.
    pub fn of(plan: &NodePlan) -> Program {
        let facts = NodeFacts {
            cluster_cidrs: plan.cluster_cidrs.clone(),
            node_addresses: BTreeSet::new(),
            node_port_addresses: plan.node_port_addresses.clone(),
            service_cidrs: Vec::new(),
        };
        let mut program = Program { node: Node::of(plan.family, &facts), ..Program::empty(plan.family) };
        for (key, frontend) in &plan.frontends {
            if let Some(entry) = Entry::of(plan.family, key, frontend) {
                program.set_frontend(*key, Some(entry));
            }
        }
        program
    }

    /// A program without Services.
    pub fn empty(family: Family) -> Program {
        let node = Node { value: NodeValue { pods_known: false }, node_port_ips: BTreeSet::new() };
        Program { family, node, frontends: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// Puts a frontend in, or takes it out, and keeps count of the sets.
    pub(super) fn set_frontend(&mut self, key: FrontendKey, entry: Option<Entry>) {
        let before = match entry {
            Some(Entry { value, sets }) => {
                for (id, backends) in sets {
                    self.sets.entry(id).or_insert(Set { backends, frontends: 0 }).frontends += 1;
                }
                self.frontends.insert(key, value)
            }
            None => self.frontends.remove(&key),
        };
        for id in before.iter().flat_map(sets_of) {
            if let Some(set) = self.sets.get_mut(&id) {
                set.frontends -= 1;
                if set.frontends == 0 {
                    self.sets.remove(&id);
                }
            }
        }
    }

    /// Every entry of every map.
    pub fn entries(&self) -> impl Iterator<Item = (Key, Value)> + '_ {
        let frontends = self.frontends.iter();
        let frontends = frontends.map(|(key, value)| (Key::Frontend(self.family, *key), Value::Frontend(*value)));
        let slots = self.sets.iter().flat_map(|(id, set)| slots(*id, &set.backends));
        slots.chain(self.node.entries(self.family)).chain(frontends)
    }

    /// How many slots of all sets there are.
    pub fn slots(&self) -> usize {
        self.sets.values().map(|set| set.backends.len()).sum()
    }
}

/// The slots of a set.
pub fn slots(id: SetId, backends: &Backends) -> impl Iterator<Item = (Key, Value)> + use<'_> {
    (0..).zip(backends.iter()).map(move |(index, backend)| (Key::Slot(id, index), Value::Backend(backend.address)))
}

/// The sets that a frontend's routes name.
pub fn sets_of(frontend: &FrontendValue) -> BTreeSet<SetId> {
    let set = |route: RouteValue| match route {
        RouteValue::Backends { set, .. } => Some(set),
        RouteValue::Reject | RouteValue::Drop => None,
    };
    frontend.routes().into_iter().filter_map(set).collect()
}

impl Node {
    /// From what a plan knows of its node.
    pub fn of(family: Family, facts: &NodeFacts) -> Node {
        let of_family = |address: &&IpAddr| Family::of(**address) == family;
        Node {
            value: NodeValue { pods_known: !facts.cluster_cidrs.is_empty() },
            node_port_ips: facts.node_port_addresses.iter().filter(of_family).copied().collect(),
        }
    }

    /// Its entries.
    pub fn entries(&self, family: Family) -> impl Iterator<Item = (Key, Value)> + use<'_> {
        let addresses = self.node_port_ips.iter().map(|address| (Key::NodePortIp(*address), Value::Member));
        std::iter::once((Key::Node(family), Value::Node(self.value))).chain(addresses)
    }
}

impl Entry {
    /// What stands in the maps for a frontend; `None`: its address is of another family, or its protocol has no such sockets.
    pub fn of(family: Family, key: &FrontendKey, frontend: &Frontend) -> Option<Entry> {
        let protocol = match *key {
            FrontendKey::Address { address, .. } if Family::of(address) != family => return None,
            FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. } => protocol,
        };
        if protocol == Protocol::Sctp {
            return None;
        }
        let mut sets = Vec::new();
        let mut route = |route: &Route| match &route.target {
            Target::Reject => RouteValue::Reject,
            Target::Drop => RouteValue::Drop,
            Target::Backends(backends) => spread(family, backends, route.masquerade, &mut sets),
        };
        let value = FrontendValue {
            from_pod: route(&frontend.from_pod),
            from_node: route(&frontend.from_node),
            from_elsewhere: route(&frontend.from_elsewhere),
            service: service_id(family, &frontend.service_port),
            affinity_s: frontend.affinity.map_or(0, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
            guarded: !frontend.source_ranges.is_empty(),
            reset_after_s: frontend.reset_after.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
            rebalance: frontend.rebalance,
        };
        Some(Entry { value, sets: sets.into_iter().map(|(_, id, backends)| (id, backends)).collect() })
    }
}

/// The route to a list of backends. Lists that are one in memory are hashed once.
fn spread(
    family: Family,
    given: &Backends,
    masquerade: bool,
    sets: &mut Vec<(Backends, SetId, Backends)>,
) -> RouteValue {
    let known = sets.iter().position(|(list, ..)| Arc::ptr_eq(list, given));
    let at = known.unwrap_or_else(|| {
        let fits = |backend: &&Backend| Family::of(backend.address.ip()) == family;
        let backends = if given.iter().all(|backend| fits(&backend)) && given.len() <= MOST_BACKENDS {
            given.clone()
        } else {
            given.iter().filter(fits).take(MOST_BACKENDS).copied().collect()
        };
        sets.push((given.clone(), set_id(&backends), backends));
        sets.len() - 1
    });
    let (_, set, backends) = &sets[at];
    match u32::try_from(backends.len()) {
        Ok(count @ 1..) => RouteValue::Backends { set: *set, count, masquerade },
        _ => RouteValue::Reject,
    }
}

fn set_id(backends: &Backends) -> SetId {
    let mut hash = Sha256::new();
    for backend in backends.iter() {
        hash.update(endpoint(backend.address));
        // Not in the slot, but in the list that goes with the name.
        hash.update([u8::from(backend.local)]);
    }
    SetId(first_8(hash))
}

/// The name under which affinity and counters know a Service port.
pub fn service_id(family: Family, name: &ServicePortName) -> u64 {
    let mut hash = Sha256::new();
    for text in [&*name.service.namespace, &*name.service.name, &*name.port, &family.to_string()] {
        hash.update(text.as_bytes());
        hash.update([0]);
    }
    first_8(hash)
}

fn first_8(hash: Sha256) -> u64 {
    let hash: [u8; 32] = hash.finalize().into();
    u64::from_be_bytes(*hash.first_chunk().expect("a SHA-256 hash has more than eight bytes"))
}
