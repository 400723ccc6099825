//! Pure. Which flows can't be right any more.
//!
//! | the flow's original destination | stale if |
//! |---|---|
//! | a UDP frontend | its answers come from no serving endpoint of that Service port: gone, moved to another port, or the flow was never translated since it is older than the rules |
//! | was a frontend, is none | it is translated |
//! | anything else | never |
//!
//! Policies and hints are for new flows: one that goes to an endpoint which still serves stays, as with TCP. A node port
//! is a frontend at the addresses where node ports answer and nowhere else (kubernetes#49881), and a Service without
//! endpoints has frontends like any other (kubernetes#139628). What was a frontend is known from the plans before, and after a
//! restart from what the former process left in the kernel. If it left nothing, a translated flow to the range of
//! cluster addresses counts as a Service's: nobody but a Service proxy translates that.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use signpost_core::object::{Protocol, ServicePort, ServicePortName};
use signpost_core::plan::{Frontend, FrontendKey, NodePlan, Target};
use signpost_core::service_map::offers;
use signpost_core::store::Store;

use super::flow::Flow;

/// What flows should be like: the UDP part of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Where a frontend answers, and the number of its Service port in `serving`.
    frontends: HashMap<SocketAddr, usize>,
    /// Per Service port the endpoints that may have flows.
    serving: Vec<HashSet<SocketAddr>>,
    service_cidrs: Vec<IpNet>,
}

impl Wanted {
    /// What a plan wants of flows, with the store that it was made from: a plan names chosen endpoints only, and one
    /// that still serves while it terminates may keep its flows.
    pub fn of(plan: &NodePlan, store: &Store) -> Wanted {
        Wanted::with(plan, |name| {
            let ports = store.service(&name.service).map(|service| service.ports.as_slice()).unwrap_or_default();
            let is_named = |port: &&ServicePort| port.name == name.port && port.protocol == Protocol::Udp;
            let offers = ports.iter().filter(is_named).flat_map(|port| offers(store, &name.service, port, plan.family));
            offers.filter(|offer| offer.endpoint.serving).map(|offer| offer.address).collect()
        })
    }

    /// With the endpoints of a Service port that serve, besides those that the plan names.
    pub fn with(plan: &NodePlan, serving: impl Fn(&ServicePortName) -> HashSet<SocketAddr>) -> Wanted {
        let mut wanted = Wanted { service_cidrs: plan.service_cidrs.clone(), ..Wanted::default() };
        let mut numbers: HashMap<&ServicePortName, usize> = HashMap::new();
        // The order of the keys puts addresses first: one of a Service comes before a node port.
        for (key, frontend) in &plan.frontends {
            for place in places(plan, key) {
                let number = *numbers.entry(&frontend.service_port).or_insert_with(|| {
                    wanted.serving.push(serving(&frontend.service_port));
                    wanted.serving.len() - 1
                });
                wanted.serving[number].extend(chosen(frontend));
                wanted.frontends.entry(place).or_insert(number);
            }
        }
        wanted
    }
}

/// Where a UDP frontend answers; nowhere if it is of another protocol.
pub fn places(plan: &NodePlan, key: &FrontendKey) -> Vec<SocketAddr> {
    match *key {
        FrontendKey::Address { address, port, protocol: Protocol::Udp } => vec![SocketAddr::new(address, port.get())],
        FrontendKey::NodePort { port, protocol: Protocol::Udp } => {
            plan.node_port_addresses.iter().map(|address| SocketAddr::new(*address, port.get())).collect()
        }
        _ => Vec::new(),
    }
}

fn chosen(frontend: &Frontend) -> impl Iterator<Item = SocketAddr> + '_ {
    let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
    let backends = routes.into_iter().filter_map(|route| match &route.target {
        Target::Backends(backends) => Some(backends),
        Target::Reject | Target::Drop => None,
    });
    backends.flat_map(|backends| backends.iter().map(|backend| backend.address))
}

/// So many sweeps follow a change: a packet that was on its way through the old rules may make its flow after the first.
const SWEEPS: u8 = 2;

/// What is wanted now, and what was before as far as flows may still remember it.
#[derive(Debug, Clone, Default)]
pub struct History {
    wanted: Wanted,
    /// Where frontends were that are no more, with the number of sweeps after which they are forgotten.
    former: BTreeMap<SocketAddr, u8>,
    /// Sweeps that are still needed.
    due: u8,
    /// Somebody said what a former process had served, or it does not matter any more.
    past_is_known: bool,
}

impl History {
    /// Adds places where frontends of a former process were.
    pub fn remember(&mut self, served: impl IntoIterator<Item = SocketAddr>) {
        self.former.extend(served.into_iter().map(|place| (place, SWEEPS)));
        self.past_is_known = true;
        self.due = SWEEPS;
    }

    /// From now on this is wanted: what was before, and is not any more, is former.
    pub fn want(&mut self, wanted: Wanted) {
        if self.wanted == wanted {
            return;
        }
        let before = std::mem::replace(&mut self.wanted, wanted);
        let gone = before.frontends.into_keys();
        self.former.extend(gone.map(|place| (place, SWEEPS)));
        self.former.retain(|place, _| !self.wanted.frontends.contains_key(place));
        self.due = SWEEPS;
    }

    /// Whether a sweep can find anything: something changed and not enough sweeps have followed, and there is a Service
    /// with UDP, or was.
    pub fn needs_sweep(&self) -> bool {
        let can_find = !self.wanted.frontends.is_empty() || !self.former.is_empty() || !self.past_is_known;
        self.due > 0 && can_find
    }

    /// A sweep has passed.
    pub fn swept(&mut self) {
        self.due = self.due.saturating_sub(1);
        self.past_is_known |= self.due == 0;
        self.former.retain(|_, sweeps| {
            *sweeps = sweeps.saturating_sub(1);
            *sweeps > 0
        });
    }

    /// Whether a flow can't be right any more.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        if flow.zone != 0 {
            return false;
        }
        let place = flow.original.destination;
        match self.wanted.frontends.get(&place) {
            Some(number) => !self.wanted.serving[*number].contains(&flow.reply.source),
            None => flow.is_translated() && (self.former.contains_key(&place) || self.may_have_been_ours(place)),
        }
    }

    fn may_have_been_ours(&self, place: SocketAddr) -> bool {
        !self.past_is_known && self.wanted.service_cidrs.iter().any(|range| range.contains(&place.ip()))
    }
}

#[cfg(test)]
mod tests;
