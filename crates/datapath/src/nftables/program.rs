//! Pure. The whole of what this mode holds in the kernel for one plan.
//!
//! The elements are not spelled out: a program keeps, per frontend, what they follow from, and shares the lists of
//! backends with the plan. 100,000 endpoints cost a program next to nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, ServicePortName};
use signpost_core::plan::{Backend, Backends, Frontend, FrontendKey, NodeFacts, NodePlan, Route, Target};

use super::chain::{At, Chain, Goal, Goals, Place, Spread};
use super::element::{Data, Key, Value, comment, disjoint};
use super::hold::{Hold, HoldId, Holds};
use super::layout::{SET_STRIDE, Set};

/// The program of one node and one family. Same plan, same program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The family; every address in it is of it.
    pub family: Family,
    /// What it knows of the node.
    pub node: Node,
    /// Cluster addresses in use.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Endpoints on this node.
    pub hairpins: BTreeSet<IpAddr>,
    /// What each frontend's elements follow from.
    pub frontends: BTreeMap<FrontendKey, Entry>,
    /// The chains that frontends need, and how many need each.
    pub chains: BTreeMap<Chain, u32>,
    /// What holds clients to backends, for the chains that need it.
    pub holds: Holds,
}

/// The node's own sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Disjoint ranges, sorted.
    pub pod_networks: Vec<IpNet>,
    /// Disjoint ranges, sorted.
    pub service_cidrs: Vec<IpNet>,
    /// All addresses of the node.
    pub node_ips: BTreeSet<IpAddr>,
    /// Those at which node ports answer.
    pub nodeport_ips: BTreeSet<IpAddr>,
}

/// What a frontend's elements follow from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Named in the comments.
    pub service_port: ServicePortName,
    /// What its clients meet.
    pub goals: Goals,
    /// The different lists of backends that its goals choose from: at most three, in practice the cluster's and the
    /// node's.
    pub sets: Vec<Backends>,
    /// Disjoint ranges that may use it; `None`: everyone.
    pub sources: Option<Arc<[IpNet]>>,
    /// What its goals name; empty without session affinity.
    pub holds: Holds,
}

impl Program {
    /// The program of a plan. What is of another family in it is left out, so that it harms only itself.
    pub fn of(plan: &NodePlan) -> Program {
        let family = plan.family;
        let mut program = Program {
            family,
            node: Node::of(
                family,
                &plan.cluster_cidrs,
                &plan.service_cidrs,
                &plan.node_addresses,
                &plan.node_port_addresses,
            ),
            cluster_ips: of_family(family, &plan.cluster_ips),
            hairpins: of_family(family, &plan.local_endpoints),
            frontends: BTreeMap::new(),
            chains: BTreeMap::new(),
            holds: Holds::new(),
        };
        for (key, frontend) in &plan.frontends {
            if let Some(entry) = Entry::of(family, key, frontend) {
                program.set_frontend(*key, Some(entry));
            }
        }
        program
    }

    /// A program without Services.
    pub fn empty(family: Family) -> Program {
        let none = BTreeSet::new();
        Program {
            family,
            node: Node::of(family, &[], &[], &none, &none),
            cluster_ips: BTreeSet::new(),
            hairpins: BTreeSet::new(),
            frontends: BTreeMap::new(),
            chains: BTreeMap::new(),
            holds: Holds::new(),
        }
    }

    /// Puts a frontend in, or takes it out, and keeps count of the chains.
    pub(super) fn set_frontend(&mut self, key: FrontendKey, entry: Option<Entry>) {
        for (id, hold) in entry.iter().flat_map(|entry| &entry.holds) {
            self.holds.entry(*id).or_insert_with(|| hold.clone());
        }
        for chain in entry.iter().flat_map(|entry| entry.chains(&key)) {
            *self.chains.entry(chain).or_default() += 1;
        }
        let before = match entry {
            Some(entry) => self.frontends.insert(key, entry),
            None => self.frontends.remove(&key),
        };
        for chain in before.iter().flat_map(|before| before.chains(&key)) {
            if let Some(count) = self.chains.get_mut(&chain) {
                *count -= 1;
                if *count == 0 {
                    self.chains.remove(&chain);
                    if let Chain::Affinity(hold) = chain {
                        self.holds.remove(&hold);
                    }
                }
            }
        }
    }

    /// Every element of every set, by set and then by key within the node's sets and each frontend.
    pub fn elements(&self) -> impl Iterator<Item = (Set, Key, Value)> + '_ {
        let addresses = |set, addresses: &'_ BTreeSet<IpAddr>| -> Vec<(Set, Key, Value)> {
            addresses.iter().map(|address| (set, Key::Address(*address), Value::plain(Data::Member))).collect()
        };
        let hairpins = self.hairpins.iter();
        self.node
            .elements()
            .chain(addresses(Set::ClusterIps, &self.cluster_ips))
            .chain(hairpins.map(|address| (Set::HairpinConnections, Key::Loop(*address), Value::plain(Data::Member))))
            .chain(self.frontends.iter().flat_map(|(key, entry)| entry.elements(key)))
    }

    /// The element of a set with that key, as a lookup in the kernel finds it: exact, or the range itself.
    pub fn element(&self, set: Set, key: &Key) -> Option<Value> {
        match (set, key) {
            (Set::PodNetworks, Key::Network(range)) => member(self.node.pod_networks.contains(range)),
            (Set::ServiceCidrs, Key::Network(range)) => member(self.node.service_cidrs.contains(range)),
            (Set::NodeIps, Key::Address(address)) => member(self.node.node_ips.contains(address)),
            (Set::NodeportIps, Key::Address(address)) => member(self.node.nodeport_ips.contains(address)),
            (Set::ClusterIps, Key::Address(address)) => member(self.cluster_ips.contains(address)),
            (Set::HairpinConnections, Key::Loop(address)) => member(self.hairpins.contains(address)),
            (_, Key::Frontend(frontend) | Key::Endpoint(frontend, _) | Key::Source(frontend, _)) => {
                self.frontends.get(frontend)?.element(frontend, set, key)
            }
            _ => None,
        }
    }

    /// Whether a chain is in the table.
    pub fn has_chain(&self, chain: Chain) -> bool {
        Chain::STATIC.contains(&chain) || self.chains.contains_key(&chain)
    }

    /// Every chain of the table.
    pub fn all_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        Chain::STATIC.into_iter().chain(self.chains.keys().copied())
    }
}

fn member(is: bool) -> Option<Value> {
    is.then(|| Value::plain(Data::Member))
}

fn of_family(family: Family, addresses: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    addresses.iter().copied().filter(|address| Family::of(*address) == family).collect()
}

impl Node {
    fn of(
        family: Family,
        cluster_cidrs: &[IpNet],
        service_cidrs: &[IpNet],
        node_ips: &BTreeSet<IpAddr>,
        nodeport_ips: &BTreeSet<IpAddr>,
    ) -> Node {
        Node {
            pod_networks: disjoint(family, cluster_cidrs),
            service_cidrs: disjoint(family, service_cidrs),
            node_ips: of_family(family, node_ips),
            nodeport_ips: of_family(family, nodeport_ips),
        }
    }

    /// From what a plan knows of its node.
    pub fn of_facts(family: Family, facts: &NodeFacts) -> Node {
        Node::of(family, &facts.cluster_cidrs, &facts.service_cidrs, &facts.node_addresses, &facts.node_port_addresses)
    }

    /// The elements of its sets.
    pub fn elements(&self) -> impl Iterator<Item = (Set, Key, Value)> + '_ {
        let networks = [(Set::PodNetworks, &self.pod_networks), (Set::ServiceCidrs, &self.service_cidrs)];
        let addresses = [(Set::NodeIps, &self.node_ips), (Set::NodeportIps, &self.nodeport_ips)];
        let networks = networks.into_iter().flat_map(|(set, all)| all.iter().map(move |one| (set, Key::Network(*one))));
        let addresses =
            addresses.into_iter().flat_map(|(set, all)| all.iter().map(move |one| (set, Key::Address(*one))));
        networks.chain(addresses).map(|(set, key)| (set, key, Value::plain(Data::Member)))
    }
}

impl Entry {
    /// What a frontend's elements follow from; `None` if its address is of another family.
    pub fn of(family: Family, key: &FrontendKey, frontend: &Frontend) -> Option<Entry> {
        if matches!(key, FrontendKey::Address { address, .. } if Family::of(*address) != family) {
            return None;
        }
        let (mut sets, mut holds) = (Vec::new(), Holds::new());
        let mut goal = |route: &Route| match &route.target {
            Target::Reject => Goal::Reject,
            Target::Drop => Goal::Drop,
            Target::Backends(backends) => {
                let goal = spread(family, backends, route.masquerade, &mut sets);
                hold(goal, key, frontend, &sets, &mut holds)
            }
        };
        let goals = Goals {
            pod: goal(&frontend.from_pod),
            node: goal(&frontend.from_node),
            elsewhere: goal(&frontend.from_elsewhere),
        };
        let sources = (!frontend.source_ranges.is_empty()).then(|| disjoint(family, &frontend.source_ranges).into());
        Some(Entry { service_port: frontend.service_port.clone(), goals, sets, sources, holds })
    }

    /// Its elements, in order of the sets' use.
    pub fn elements(&self, key: &FrontendKey) -> impl Iterator<Item = (Set, Key, Value)> + use<'_> {
        let key = *key;
        let at = At::of(&key);
        let endpoints = self.sets.iter().enumerate().flat_map(move |(number, backends)| {
            let first = u32::try_from(number).unwrap_or_default() * SET_STRIDE;
            (first..).zip(backends.iter()).map(move |(index, backend)| {
                (at.endpoints(), Key::Endpoint(key, index), Value::plain(Data::To(backend.address)))
            })
        });
        let frontend = (self.map(at.place), Key::Frontend(key), self.verdict(at));
        let check = (Set::FirewallIps, Key::Frontend(key), Data::Jump(Chain::FirewallCheck));
        let checked = self.checked_sources(at.place);
        let ranges = checked.into_iter().flatten();
        let ranges =
            ranges.map(move |range| (Set::FirewallSources, Key::Source(key, *range), Value::plain(Data::Member)));
        let named = std::iter::once(frontend).chain(checked.map(|_| check));
        named.map(|(set, key, data)| (set, key, self.named(data))).chain(ranges).chain(endpoints)
    }

    fn named(&self, data: Data) -> Value {
        Value { data, comment: Some(comment(&self.service_port)) }
    }

    /// Source ranges guard addresses: a node port is open to whoever reaches the node, as with kube-proxy.
    fn checked_sources(&self, place: Place) -> Option<&[IpNet]> {
        self.sources.as_deref().filter(|_| place == Place::Address)
    }

    /// The element of a set with that key.
    fn element(&self, frontend: &FrontendKey, set: Set, key: &Key) -> Option<Value> {
        let at = At::of(frontend);
        match key {
            Key::Endpoint(_, index) if set == at.endpoints() => {
                let backends = self.sets.get(usize::try_from(index / SET_STRIDE).ok()?)?;
                let backend = backends.get(usize::try_from(index % SET_STRIDE).ok()?)?;
                Some(Value::plain(Data::To(backend.address)))
            }
            Key::Source(_, range) if set == Set::FirewallSources => {
                member(self.checked_sources(at.place)?.contains(range))
            }
            Key::Frontend(_) if set == self.map(at.place) => Some(self.named(self.verdict(at))),
            Key::Frontend(_) if set == Set::FirewallIps => {
                self.checked_sources(at.place).map(|_| self.named(Data::Jump(Chain::FirewallCheck)))
            }
            _ => None,
        }
    }

    /// The map that its verdict is in: a person who looks for frontends without endpoints finds them by themselves.
    fn map(&self, place: Place) -> Set {
        match (place, self.goals.all().iter().any(|goal| goal.is_spread())) {
            (Place::Address, true) => Set::ServiceIps,
            (Place::Address, false) => Set::NoEndpointServices,
            (Place::NodePort, true) => Set::ServiceNodeports,
            (Place::NodePort, false) => Set::NoEndpointNodeports,
        }
    }

    fn verdict(&self, at: At) -> Data {
        let Goals { pod, node, elsewhere } = self.goals;
        if pod != node || node != elsewhere {
            return Data::Goto(Chain::BySource(at, self.goals));
        }
        match elsewhere {
            Goal::Reject => Data::Goto(Chain::RejectChain),
            Goal::Drop => Data::Drop,
            Goal::Spread(spread) => Data::Goto(Chain::Spread(at, spread)),
        }
    }

    /// The chains that it needs besides those that are always there.
    pub fn chains(&self, key: &FrontendKey) -> BTreeSet<Chain> {
        let at = At::of(key);
        let spreads = self.goals.all().into_iter().filter_map(|goal| match goal {
            Goal::Spread(spread) => Some(Chain::Spread(at, spread)),
            _ => None,
        });
        let first = match self.verdict(at) {
            Data::Goto(chain @ Chain::BySource(..)) => Some(chain),
            _ => None,
        };
        let holds = self.holds.keys().map(|hold: &HoldId| Chain::Affinity(*hold));
        spreads.chain(first).chain(holds).collect()
    }
}

/// The goal of a list of backends, which becomes one of the frontend's sets unless an equal one is there.
fn spread(family: Family, backends: &Backends, masquerade: bool, sets: &mut Vec<Backends>) -> Goal {
    let fits = |backend: &&Backend| Family::of(backend.address.ip()) == family;
    let most = usize::try_from(SET_STRIDE).unwrap_or(usize::MAX);
    let backends = if backends.iter().all(|backend| fits(&backend)) && backends.len() <= most {
        backends.clone()
    } else {
        backends.iter().filter(fits).take(most).copied().collect()
    };
    let Ok(count @ 1..) = u32::try_from(backends.len()) else { return Goal::Reject };
    let same = |set: &Backends| set.iter().map(|one| one.address).eq(backends.iter().map(|one| one.address));
    let number = sets.iter().position(same).unwrap_or_else(|| {
        sets.push(backends.clone());
        sets.len() - 1
    });
    Goal::Spread(Spread { set: u8::try_from(number).unwrap_or_default(), count, masquerade, hold: None })
}

/// The same goal with what holds clients to one of its backends, if the frontend asks for that.
fn hold(goal: Goal, key: &FrontendKey, frontend: &Frontend, sets: &[Backends], holds: &mut Holds) -> Goal {
    let (Goal::Spread(spread), Some(timeout)) = (goal, frontend.affinity) else { return goal };
    let Some(backends) = sets.get(usize::from(spread.set)) else { return goal };
    let backends = backends.iter().map(|backend| backend.address);
    let hold = Hold::new(&frontend.service_port, At::of(key).protocol, timeout, backends);
    let id = hold.id();
    holds.insert(id, hold);
    Goal::Spread(Spread { hold: Some(id), ..spread })
}
