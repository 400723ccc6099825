//! Pure. The whole of what this mode holds in the kernel for one plan.
//!
//! Rules are not kept: a program keeps what they follow from, grouped by Service port, and writes the rules of a chain
//! when somebody asks. 100,000 endpoints make 300,000 rules, but cost a program no more than the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{Backend, Backends, Frontend, FrontendKey, NodeFacts, NodePlan, PlanChange, Route, Target};

use super::chain::{Chain, Port, Table};
use super::port::{Around, Layout, Shared, fits};
use super::rule::{Action, Match, Rule, single};

/// What the rules say of themselves that count packets for metrics.
pub(super) const LOCALHOST_NODE_PORTS: &str = "kubernetes localhost nodeports, counted";
/// See [`LOCALHOST_NODE_PORTS`].
pub(super) const OUT_OF_FLOW: &str = "kubernetes forwarding, out of its flow";

/// The program of one node and one family. Same plan, same program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NodePlan", into = "NodePlan")]
pub struct Program {
    plan: NodePlan,
    /// The frontends of each Service port.
    ports: BTreeMap<Arc<Port>, BTreeSet<FrontendKey>>,
    /// The Service ports that have an endpoint with this address.
    by_endpoint: BTreeMap<IpAddr, BTreeSet<Arc<Port>>>,
}

/// The chains that Service ports share.
pub const SHARED: [(Table, Chain); 7] = [
    (Table::Nat, Chain::Services),
    (Table::Nat, Chain::NodePorts),
    (Table::Filter, Chain::Services),
    (Table::Filter, Chain::ExternalServices),
    (Table::Filter, Chain::NodePorts),
    (Table::Filter, Chain::ProxyFirewall),
    (Table::Filter, Chain::ClusterIps),
];

/// The chains that are the same for every plan.
pub const FIXED: [(Table, Chain); 4] = [
    (Table::Nat, Chain::MarkMasq),
    (Table::Nat, Chain::Postrouting),
    (Table::Filter, Chain::Forward),
    (Table::Filter, Chain::Refusal),
];

impl From<NodePlan> for Program {
    fn from(plan: NodePlan) -> Program {
        Program::of(&plan)
    }
}

impl From<Program> for NodePlan {
    fn from(program: Program) -> NodePlan {
        program.plan
    }
}

impl Program {
    /// The program of a plan. What is of another family in it is left out, so that it harms only itself.
    pub fn of(plan: &NodePlan) -> Program {
        let mut program = Program {
            plan: NodePlan::empty(plan.family, plan.facts()),
            ports: BTreeMap::new(),
            by_endpoint: BTreeMap::new(),
        };
        program.apply(&PlanChange { set: plan.frontends.clone(), node: Some(plan.facts()), ..PlanChange::default() });
        program.plan.cluster_ips = plan.cluster_ips.iter().copied().filter(|ip| fits(plan.family, *ip)).collect();
        program.plan.local_endpoints.clone_from(&plan.local_endpoints);
        program
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.plan.family
    }

    /// What it knows of the node.
    pub fn is_node_address(&self, address: IpAddr) -> bool {
        self.plan.node_addresses.contains(&address)
    }

    /// The Service port that a frontend stands for, if it is there.
    pub fn port_of(&self, key: &FrontendKey) -> Option<&Arc<Port>> {
        let port = owner(*key, self.plan.frontends.get(key)?);
        self.ports.get_key_value(&port).map(|(port, _)| port)
    }

    /// Every Service port.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.ports.keys()
    }

    /// The Service ports that a change of the plan touches, before or after it.
    pub(super) fn touched(&self, change: &PlanChange) -> BTreeSet<Arc<Port>> {
        let keys = change.removed.iter().chain(change.set.keys());
        let before = keys.filter_map(|key| Some(owner(*key, self.plan.frontends.get(key)?)));
        let after = change.set.iter().map(|(key, frontend)| owner(*key, frontend));
        let locals = change.local_endpoints.added.iter().chain(&change.local_endpoints.removed);
        let hairpins = locals.filter_map(|address| self.by_endpoint.get(address)).flatten().cloned();
        before.chain(after).map(Arc::new).chain(hairpins).collect()
    }

    /// Turns this program into that of the plan after the change.
    pub(super) fn apply(&mut self, change: &PlanChange) {
        for key in change.removed.iter().chain(change.set.keys()) {
            self.take_out(key);
        }
        let mut fitting = PlanChange { set: BTreeMap::new(), ..change.clone() };
        for (key, frontend) in &change.set {
            if let Some(frontend) = fitted(self.plan.family, key, frontend) {
                self.put_in(*key, &frontend);
                fitting.set.insert(*key, frontend);
            } else {
                fitting.removed.insert(*key);
            }
        }
        fitting.cluster_ips.added.retain(|address| fits(self.plan.family, *address));
        if let Some(facts) = &mut fitting.node {
            keep_fitting(self.plan.family, facts);
        }
        self.plan.apply(&fitting);
    }

    /// The program after a change.
    pub(super) fn after(mut self, change: &PlanChange) -> Program {
        self.apply(change);
        self
    }

    /// The program with only these Service ports: enough to write their chains.
    pub(super) fn part(&self, ports: &BTreeSet<Arc<Port>>) -> Program {
        let mut part = Program {
            plan: NodePlan::empty(self.plan.family, self.plan.facts()),
            ports: BTreeMap::new(),
            by_endpoint: BTreeMap::new(),
        };
        let keys = ports.iter().filter_map(|port| self.ports.get(port)).flatten();
        for (key, frontend) in keys.filter_map(|key| Some((*key, self.plan.frontends.get(key)?))) {
            part.put_in(key, frontend);
        }
        // A node's own pods: a few hundred at most.
        part.plan.local_endpoints.clone_from(&self.plan.local_endpoints);
        part
    }

    fn take_out(&mut self, key: &FrontendKey) {
        let Some(frontend) = self.plan.frontends.get(key) else { return };
        let port = owner(*key, frontend);
        let Some(keys) = self.ports.get_mut(&port) else { return };
        keys.remove(key);
        let still: BTreeSet<IpAddr> =
            keys.iter().filter_map(|key| self.plan.frontends.get(key)).flat_map(endpoints).collect();
        for address in endpoints(frontend).filter(|address| !still.contains(address)) {
            if let Some(ports) = self.by_endpoint.get_mut(&address) {
                ports.remove(&port);
                if ports.is_empty() {
                    self.by_endpoint.remove(&address);
                }
            }
        }
        if keys.is_empty() {
            self.ports.remove(&port);
        }
    }

    fn put_in(&mut self, key: FrontendKey, frontend: &Frontend) {
        let port = owner(key, frontend);
        let port = match self.ports.get_key_value(&port) {
            Some((port, _)) => port.clone(),
            None => Arc::new(port),
        };
        for address in endpoints(frontend) {
            self.by_endpoint.entry(address).or_default().insert(port.clone());
        }
        self.ports.entry(port).or_default().insert(key);
        // The layout of the port reads it from here.
        self.plan.frontends.insert(key, frontend.clone());
    }

    fn around(&self) -> Around<'_> {
        Around {
            cluster_cidrs: &self.plan.cluster_cidrs,
            node_port_addresses: &self.plan.node_port_addresses,
            local_endpoints: &self.plan.local_endpoints,
        }
    }

    /// The rules of a Service port; one without frontends has none.
    pub fn layout<'a>(&'a self, port: &'a Arc<Port>) -> Layout<'a> {
        let keys = self.ports.get(port).into_iter().flatten();
        let frontends = keys.filter_map(|key| Some((*key, self.plan.frontends.get(key)?))).collect();
        Layout::of(port, &frontends, self.around())
    }

    /// The rules of a chain of ours; none if there is no such chain.
    pub fn rules(&self, table: Table, chain: &Chain) -> Vec<Rule> {
        match chain {
            Chain::Base(base) => super::chain::base_rules(table, *base),
            Chain::Of(port, _) => self.layout(port).chains().remove(&(table, chain.clone())).unwrap_or_default(),
            _ if FIXED.contains(&(table, chain.clone())) => fixed_rules(chain, self.family()),
            _ => self.shared_rules().remove(&(table, chain.clone())).unwrap_or_default(),
        }
    }

    /// The rules of all the chains that Service ports share.
    pub fn shared_rules(&self) -> BTreeMap<(Table, Chain), Vec<Rule>> {
        let mut all = Shared::default();
        for port in self.ports.keys() {
            all.extend(self.layout(port).shared());
        }
        let node_ports = |to: Chain| {
            let addresses = self.plan.node_port_addresses.iter();
            addresses.map(move |address| {
                let at = [Match::Destination(single(*address))];
                Rule::new("kubernetes service nodeports, after all addresses", at, Action::Jump(to.clone()))
            })
        };
        if self.plan.node_port_addresses.iter().any(IpAddr::is_loopback) {
            // The kernel lets strangers' packets to loopback in then (CVE-2020-8558).
            let loopback: IpNet = "127.0.0.0/8".parse().expect("it is a range");
            let strangers = [Match::NotSource(loopback), Match::Destination(loopback)];
            all.firewall.push(Rule::new("block incoming localnet connections", strangers, Action::Drop));
        }
        all.services.extend(node_ports(Chain::NodePorts));
        all.refused_services.extend(node_ports(Chain::NodePorts));
        all.refused_services.extend(self.outside_cluster_ips());
        let [services, node_ports, refused, externals, refused_node_ports, firewall, cluster_ips] = SHARED;
        BTreeMap::from([
            (services, all.services),
            (node_ports, all.node_ports),
            (refused, all.refused_services),
            (externals, all.refused_externals),
            (refused_node_ports, all.refused_node_ports),
            (firewall, all.firewall),
            (cluster_ips, self.cluster_ip_rules()),
        ])
    }

    fn service_ranges(&self) -> BTreeSet<IpNet> {
        self.plan.service_cidrs.iter().map(IpNet::trunc).collect()
    }

    fn is_in_service_range(&self, address: &IpAddr) -> bool {
        self.plan.service_cidrs.iter().any(|range| range.contains(address))
    }

    /// At the end of filter's KUBE-SERVICES: cluster addresses of no range that is known, and the way to the others. So
    /// only who sends into a range goes through the long list.
    fn outside_cluster_ips(&self) -> Vec<Rule> {
        let outside = self.plan.cluster_ips.iter().filter(|address| !self.is_in_service_range(address));
        let ranges = self.service_ranges().into_iter().map(|range| {
            let to = [Match::Destination(range)];
            Rule::new("kubernetes cluster IPs", to, Action::Jump(Chain::ClusterIps))
        });
        outside.map(|address| no_such_port(*address)).chain(ranges).collect()
    }

    fn cluster_ip_rules(&self) -> Vec<Rule> {
        let inside = self.plan.cluster_ips.iter().filter(|address| self.is_in_service_range(address));
        let nobodys = self.service_ranges().into_iter().map(|range| {
            Rule::new("kubernetes cluster IPs that no service has", [Match::Destination(range)], Action::Drop)
        });
        inside.map(|address| no_such_port(*address)).chain(nobodys).collect()
    }

    /// Every chain with its rules, the kernel's own left out.
    pub fn each_chain(&self, mut each: impl FnMut(Table, &Chain, &[Rule])) {
        for (table, chain) in FIXED {
            each(table, &chain, &fixed_rules(&chain, self.family()));
        }
        for ((table, chain), rules) in self.shared_rules() {
            each(table, &chain, &rules);
        }
        for port in self.ports.keys() {
            for ((table, chain), rules) in self.layout(port).chains() {
                each(table, &chain, &rules);
            }
        }
    }
}

fn no_such_port(address: IpAddr) -> Rule {
    Rule::new("cluster IP without such a port", [Match::Destination(single(address))], Action::Jump(Chain::Refusal))
}

fn fixed_rules(chain: &Chain, family: Family) -> Vec<Rule> {
    match chain {
        Chain::MarkMasq => vec![Rule::new("", [], Action::Mark)],
        Chain::Postrouting => {
            let counted = Rule::new(LOCALHOST_NODE_PORTS, [Match::SentToLoopback], Action::Count);
            let masquerade = [
                Rule::new("", [Match::NotMarked], Action::Return),
                // So that a packet which meets these rules again, inside a tunnel, is not masqueraded twice.
                Rule::new("", [], Action::Unmark),
                Rule::new("kubernetes masquerade", [], Action::Masquerade),
            ];
            // IPv6's kernel lets nobody out of loopback.
            (family == Family::Ipv4).then_some(counted).into_iter().chain(masquerade).collect()
        }
        Chain::Refusal => {
            vec![Rule::new("", [Match::Protocol(Protocol::Tcp)], Action::Reset), Rule::new("", [], Action::Reject)]
        }
        Chain::Forward => vec![
            // What conntrack takes for no part of its flow is not rewritten: a client would get an answer from a stranger,
            // whose refusal ends the backend's connection (kubernetes#74839). Of a flow whose begin went another way,
            // SYN-ACK is such a packet, and what follows it is not; so asymmetric routes go on working.
            Rule::new(OUT_OF_FLOW, [Match::Protocol(Protocol::Tcp), Match::WithinFlow, Match::Invalid], Action::Drop),
            Rule::new("kubernetes forwarding, masqueraded", [Match::Marked], Action::Accept),
            Rule::new("kubernetes forwarding, known flows", [Match::Known], Action::Accept),
        ],
        _ => Vec::new(),
    }
}

/// Whose a frontend is.
fn owner(key: FrontendKey, frontend: &Frontend) -> Port {
    let (FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. }) = key;
    Port { name: frontend.service_port.clone(), protocol }
}

fn endpoints(frontend: &Frontend) -> impl Iterator<Item = IpAddr> + '_ {
    let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
    let backends = routes.into_iter().filter_map(|route| match &route.target {
        Target::Backends(backends) => Some(backends),
        Target::Reject | Target::Drop => None,
    });
    backends.flat_map(|backends| backends.iter().map(|backend| backend.address.ip()))
}

/// The frontend without what is of another family.
fn fitted(family: Family, key: &FrontendKey, frontend: &Frontend) -> Option<Frontend> {
    if matches!(key, FrontendKey::Address { address, .. } if !fits(family, *address)) {
        return None;
    }
    let mut frontend = frontend.clone();
    for route in [&mut frontend.from_pod, &mut frontend.from_node, &mut frontend.from_elsewhere] {
        fit_route(family, route);
    }
    if frontend.source_ranges.iter().any(|range| !fits(family, range.addr())) {
        let ranges = frontend.source_ranges.iter().copied().filter(|range| fits(family, range.addr()));
        frontend.source_ranges = ranges.collect();
    }
    Some(frontend)
}

fn fit_route(family: Family, route: &mut Route) {
    let Target::Backends(backends) = &route.target else { return };
    let is_fit = |backend: &&Backend| fits(family, backend.address.ip());
    if backends.iter().all(|backend| is_fit(&backend)) && !backends.is_empty() {
        return;
    }
    let fitting: Backends = backends.iter().filter(is_fit).copied().collect();
    route.target = if fitting.is_empty() { Target::Reject } else { Target::Backends(fitting) };
}

fn keep_fitting(family: Family, facts: &mut NodeFacts) {
    facts.cluster_cidrs.retain(|range| fits(family, range.addr()));
    facts.service_cidrs.retain(|range| fits(family, range.addr()));
    facts.node_addresses.retain(|address| fits(family, *address));
    facts.node_port_addresses.retain(|address| fits(family, *address));
}
