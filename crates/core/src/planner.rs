//! Pure. Keeps the plan of one node and one family in step with the store, at a cost in proportion to what changed.
//!
//! Per Service it remembers which frontends it claimed and which addresses it brought in, so that a dirty Service is
//! taken out and put in again without a look at any other. Two Services may claim one frontend (an external IP that is
//! somebody's cluster address): the lower [`FrontendKind`] wins, then the name that comes first; the loser waits.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

pub use crate::facts::{NodeConfig, NodePortAddresses};
use crate::facts::{node_facts, surroundings};
use crate::object::{Family, ObjectName, Service, ServicePortName};
use crate::plan::frontend::{Surroundings, frontends};
use crate::plan::{Frontend, FrontendKey, FrontendKind, NodeFacts, NodePlan, PlanChange, Route, SetChange, Target};
use crate::store::{Dirty, Store};

/// Plans for one node and one family.
#[derive(Debug)]
pub struct Planner {
    config: NodeConfig,
    /// What every Service's frontends were last planned with; `None`: all have to be planned anew.
    around: Option<Surroundings>,
    plan: NodePlan,
    planned: BTreeMap<ObjectName, Planned>,
    /// Claims on frontends that another Service holds, each higher than the holder's. Nearly always empty.
    waiting: BTreeMap<FrontendKey, BTreeMap<Claim, Frontend>>,
    cluster_ips: Counted,
    local_endpoints: Counted,
}

/// Orders those who claim the same frontend: the first has it.
type Claim = (FrontendKind, ServicePortName);

/// What one Service brought into the plan: lists without spare room, since there is one of these per Service.
#[derive(Debug, Default)]
struct Planned {
    /// The frontends with what it claimed them as: kind and port.
    claims: Box<[(FrontendKey, FrontendKind, Arc<str>)]>,
    /// Sorted, each once.
    cluster_ips: Box<[IpAddr]>,
    /// Sorted, each once.
    local_endpoints: Box<[IpAddr]>,
}

impl Planner {
    /// Starts with a plan without Services. The first update takes in the whole store, whatever is dirty.
    pub fn new(family: Family, config: NodeConfig) -> Planner {
        Planner {
            plan: NodePlan::empty(family, node_facts(&config, &Store::new(), family)),
            config,
            around: None,
            planned: BTreeMap::new(),
            waiting: BTreeMap::new(),
            cluster_ips: Counted::default(),
            local_endpoints: Counted::default(),
        }
    }

    /// The next update plans everything anew with this.
    pub fn set_config(&mut self, config: NodeConfig) {
        self.config = config;
        self.around = None;
    }

    /// The plan after the last update.
    pub fn plan(&self) -> &NodePlan {
        &self.plan
    }

    /// Brings the plan in step with the store. `dirty` must name all that changed in the store since the last update.
    /// The change that comes back leads from the plan before to the plan now.
    pub fn update(&mut self, store: &Store, dirty: &Dirty) -> PlanChange {
        let facts = node_facts(&self.config, store, self.plan.family);
        let around = surroundings(&self.config, store, self.plan.family);
        let all = self.around.as_ref() != Some(&around);
        let mut before = Before::default();
        if all {
            let gone: Vec<ObjectName> =
                self.planned.keys().filter(|name| store.service(name).is_none()).cloned().collect();
            gone.iter().for_each(|name| self.replan(name, None, &mut before, store, &around));
            for service in store.services() {
                self.replan(&service.name, Some(service), &mut before, store, &around);
            }
        } else {
            for name in &dirty.services {
                self.replan(name, store.service(name), &mut before, store, &around);
            }
        }
        self.around = Some(around);
        self.change(before, facts)
    }

    fn replan(
        &mut self,
        name: &ObjectName,
        service: Option<&Arc<Service>>,
        before: &mut Before,
        store: &Store,
        around: &Surroundings,
    ) {
        let old = self.planned.remove(name).unwrap_or_default();
        let new = service.map(|service| frontends(store, service, around)).unwrap_or_default();
        let cluster_ips = service.iter().flat_map(|service| &service.cluster_ips).copied();
        let planned = Planned {
            claims: new.iter().map(|(key, to)| (*key, to.kind, to.service_port.port.clone())).collect(),
            cluster_ips: sorted(cluster_ips.filter(|address| Family::of(*address) == around.family)),
            local_endpoints: sorted(new.values().flat_map(local_endpoints)),
        };
        for (key, kind, port) in old.claims {
            let claim = (kind, ServicePortName { service: name.clone(), port });
            if new.get(&key).is_none_or(|frontend| !is_claim_of(&claim, frontend)) {
                self.withdraw(key, &claim, before);
            }
        }
        for (key, frontend) in new {
            self.put(key, frontend, before);
        }
        self.cluster_ips.exchange(&old.cluster_ips, &planned.cluster_ips, &mut before.cluster_ips);
        self.local_endpoints.exchange(&old.local_endpoints, &planned.local_endpoints, &mut before.local_endpoints);
        if service.is_some() {
            self.planned.insert(name.clone(), planned);
        }
    }

    /// Puts a claim in, or renews it.
    fn put(&mut self, key: FrontendKey, frontend: Frontend, before: &mut Before) {
        let claim = claim(&frontend);
        let Some(holder) = self.plan.frontends.get_mut(&key) else {
            before.note(key, None);
            self.plan.frontends.insert(key, frontend);
            return;
        };
        let held_by = self::claim(holder);
        if held_by < claim {
            self.waiting.entry(key).or_default().insert(claim, frontend);
            return;
        }
        if *holder == frontend {
            return;
        }
        let loser = mem::replace(holder, frontend);
        before.note(key, Some(&loser));
        if claim < held_by {
            self.waiting.entry(key).or_default().insert(held_by, loser);
        }
    }

    /// Takes a claim out; whoever waits next gets the frontend.
    fn withdraw(&mut self, key: FrontendKey, claim: &Claim, before: &mut Before) {
        self.stop_waiting(key, claim);
        let Some(holder) = self.plan.frontends.get(&key).filter(|holder| is_claim_of(claim, holder)) else { return };
        before.note(key, Some(holder));
        match self.next_waiting(key) {
            Some(frontend) => self.plan.frontends.insert(key, frontend),
            None => self.plan.frontends.remove(&key),
        };
    }

    fn next_waiting(&mut self, key: FrontendKey) -> Option<Frontend> {
        let (claim, frontend) = self.waiting.get(&key)?.first_key_value()?;
        let (claim, frontend) = (claim.clone(), frontend.clone());
        self.stop_waiting(key, &claim);
        Some(frontend)
    }

    fn stop_waiting(&mut self, key: FrontendKey, claim: &Claim) {
        let Some(claims) = self.waiting.get_mut(&key) else { return };
        claims.remove(claim);
        if claims.is_empty() {
            self.waiting.remove(&key);
        }
    }

    /// Compares what was touched with what was there.
    fn change(&mut self, before: Before, facts: NodeFacts) -> PlanChange {
        let mut change = PlanChange::default();
        for (key, before) in before.frontends {
            match self.plan.frontends.get(&key) {
                Some(now) if before.as_deref() != Some(now) => {
                    change.set.insert(key, now.clone());
                }
                None if before.is_some() => {
                    change.removed.insert(key);
                }
                _ => {}
            }
        }
        change.cluster_ips = self.cluster_ips.change(before.cluster_ips);
        change.local_endpoints = self.local_endpoints.change(before.local_endpoints);
        change.node = (facts != self.plan.facts()).then_some(facts);
        // The frontends are in already; applying them again would only repeat it.
        let rest = PlanChange { set: BTreeMap::new(), removed: BTreeSet::new(), ..change.clone() };
        self.plan.apply(&rest);
        change
    }
}

fn claim(frontend: &Frontend) -> Claim {
    (frontend.kind, frontend.service_port.clone())
}

fn is_claim_of(claim: &Claim, frontend: &Frontend) -> bool {
    claim.0 == frontend.kind && claim.1 == frontend.service_port
}

fn sorted(addresses: impl Iterator<Item = IpAddr>) -> Box<[IpAddr]> {
    let addresses: BTreeSet<IpAddr> = addresses.collect();
    addresses.into_iter().collect()
}

/// The addresses on this node that any client is led to.
fn local_endpoints(frontend: &Frontend) -> impl Iterator<Item = IpAddr> {
    let routes: [&Route; 3] = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
    let backends = routes.into_iter().filter_map(|route| match &route.target {
        Target::Backends(backends) => Some(backends),
        Target::Reject | Target::Drop => None,
    });
    backends.flat_map(|backends| backends.iter()).filter(|backend| backend.local).map(|backend| backend.address.ip())
}

/// What the plan held, before an update, under every key that the update touched.
#[derive(Debug, Default)]
struct Before {
    /// Boxed, as nearly all are `None` when a plan is made from nothing.
    frontends: BTreeMap<FrontendKey, Option<Box<Frontend>>>,
    cluster_ips: BTreeMap<IpAddr, bool>,
    local_endpoints: BTreeMap<IpAddr, bool>,
}

impl Before {
    fn note(&mut self, key: FrontendKey, frontend: Option<&Frontend>) {
        self.frontends.entry(key).or_insert_with(|| frontend.cloned().map(Box::new));
    }
}

/// A set of addresses, each as often as Services bring it in.
#[derive(Debug, Default)]
struct Counted {
    counts: BTreeMap<IpAddr, usize>,
}

impl Counted {
    /// Exchanges what one Service brings in, noting for every address that comes or goes whether it was there.
    fn exchange(&mut self, old: &[IpAddr], new: &[IpAddr], before: &mut BTreeMap<IpAddr, bool>) {
        let lacks = |list: &[IpAddr], address: &&IpAddr| list.binary_search(address).is_err();
        for address in new.iter().filter(|address| lacks(old, address)) {
            let count = self.counts.entry(*address).or_default();
            before.entry(*address).or_insert(*count > 0);
            *count += 1;
        }
        for address in old.iter().filter(|address| lacks(new, address)) {
            before.entry(*address).or_insert(true);
            if let Some(count) = self.counts.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(address);
                }
            }
        }
    }

    fn change(&self, before: BTreeMap<IpAddr, bool>) -> SetChange {
        let mut change = SetChange::default();
        for (address, was_there) in before {
            match (was_there, self.counts.contains_key(&address)) {
                (false, true) => change.added.insert(address),
                (true, false) => change.removed.insert(address),
                _ => false,
            };
        }
        change
    }
}

#[cfg(test)]
mod tests;
