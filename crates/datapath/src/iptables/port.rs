//! Pure. The chains of one Service port, and its rules in the chains that it shares with others.
//!
//! A frontend's packets take one of two ways. At a cluster address everybody mostly meets the same backends, and the
//! chain of the backends says who is masqueraded. Everywhere else an entry chain (KUBE-EXT-) decides by the client first:
//! a pod, this node, anybody else. Either way the choice among the same backends is written down once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{Backends, Frontend, FrontendKey, FrontendKind, Route, Target};

use super::chain::{Chain, Part, Port, Table};
use super::rule::{Action, Match, Rule, single};

/// What the rules depend on besides the Service port's own frontends.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Addresses of pods; empty: not known.
    pub cluster_cidrs: &'a [IpNet],
    /// Where node ports answer.
    pub node_port_addresses: &'a BTreeSet<IpAddr>,
    /// Endpoints on this node.
    pub local_endpoints: &'a BTreeSet<IpAddr>,
}

/// Where packets end that go nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Reject,
    Drop,
}

/// What one kind of client meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leg {
    /// The number of the set of backends, or the end.
    to: Result<u8, End>,
    masquerade: bool,
}

/// By client; no pods where nobody can tell who is one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Legs {
    pod: Option<Leg>,
    node: Leg,
    elsewhere: Leg,
}

/// The choice among backends, for those whose timeout is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    backends: Backends,
    affinity: Option<Duration>,
}

/// A Service port's rules, in numbers instead of names.
#[derive(Debug)]
pub struct Layout<'a> {
    port: &'a Arc<Port>,
    around: Around<'a>,
    title: String,
    frontends: Vec<(FrontendKey, &'a Frontend, Legs)>,
    choices: Vec<Choice>,
    entries: Vec<Legs>,
    walls: Vec<(&'a [IpNet], Chain)>,
}

/// Rules in the chains that all share.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// In nat's KUBE-SERVICES.
    pub services: Vec<Rule>,
    /// In nat's KUBE-NODEPORTS.
    pub node_ports: Vec<Rule>,
    /// In filter's KUBE-SERVICES.
    pub refused_services: Vec<Rule>,
    /// In filter's KUBE-EXTERNAL-SERVICES.
    pub refused_externals: Vec<Rule>,
    /// In filter's KUBE-NODEPORTS.
    pub refused_node_ports: Vec<Rule>,
    /// In filter's KUBE-PROXY-FIREWALL.
    pub firewall: Vec<Rule>,
}

impl<'a> Layout<'a> {
    /// Of a Service port with these frontends.
    pub fn of(port: &'a Arc<Port>, frontends: &BTreeMap<FrontendKey, &'a Frontend>, around: Around<'a>) -> Layout<'a> {
        let mut layout = Layout {
            port,
            around,
            title: port.name.to_string(),
            frontends: Vec::new(),
            choices: Vec::new(),
            entries: Vec::new(),
            walls: Vec::new(),
        };
        layout.number_choices(frontends);
        for (key, frontend) in frontends {
            let legs = layout.legs(frontend);
            layout.frontends.push((*key, frontend, legs));
        }
        for at in 0..layout.frontends.len() {
            layout.number_entry(at);
        }
        layout
    }

    /// The set for the whole cluster has number 0 (KUBE-SVC-) and the node's own 1 (KUBE-SVL-), as far as a plan tells
    /// them apart: outside addresses lead pods to the first whatever the policy.
    fn number_choices(&mut self, frontends: &BTreeMap<FrontendKey, &'a Frontend>) {
        let is_cluster_ip = |frontend: &&&Frontend| frontend.kind == FrontendKind::ClusterIp;
        let outside = || frontends.values().filter(|frontend| !is_cluster_ip(frontend));
        let inside = frontends.values().filter(is_cluster_ip);
        let pods_are_known = !self.around.cluster_cidrs.is_empty();
        let first = outside().flat_map(|f| [(f, &f.from_pod, pods_are_known), (f, &f.from_node, true)]);
        let second = inside
            .flat_map(|f| [(f, &f.from_pod, pods_are_known), (f, &f.from_node, true), (f, &f.from_elsewhere, true)]);
        let third = outside().map(|f| (f, &f.from_elsewhere, true));
        for (frontend, route, _) in first.chain(second).chain(third).filter(|(.., counts)| *counts) {
            // What leads nowhere has no number.
            let _ = self.choice(frontend, route);
        }
    }

    /// The number of a route's choice, which is new if none is like it.
    fn choice(&mut self, frontend: &Frontend, route: &Route) -> Result<u8, End> {
        let backends = match &route.target {
            Target::Backends(backends) => backends,
            Target::Reject => return Err(End::Reject),
            Target::Drop => return Err(End::Drop),
        };
        let same = |choice: &Choice| {
            choice.affinity == frontend.affinity
                && (Arc::ptr_eq(&choice.backends, backends)
                    || choice.backends.iter().map(|b| b.address).eq(backends.iter().map(|b| b.address)))
        };
        let number = self.choices.iter().position(same).unwrap_or_else(|| {
            self.choices.push(Choice { backends: backends.clone(), affinity: frontend.affinity });
            self.choices.len() - 1
        });
        // Three routes for each of a Service port's addresses, nearly all the same.
        Ok(u8::try_from(number).unwrap_or(u8::MAX))
    }

    fn legs(&mut self, frontend: &Frontend) -> Legs {
        let pods_are_known = !self.around.cluster_cidrs.is_empty();
        let mut leg = |route: &Route| Leg { to: self.choice(frontend, route), masquerade: route.masquerade };
        Legs {
            pod: pods_are_known.then(|| leg(&frontend.from_pod)),
            node: leg(&frontend.from_node),
            elsewhere: leg(&frontend.from_elsewhere),
        }
    }

    fn number_entry(&mut self, at: usize) {
        let (_, frontend, legs) = &self.frontends[at];
        if legs.leads_nowhere() {
            return;
        }
        let legs = legs.clone();
        let is_direct = self.direct(frontend, &legs).is_some();
        if !is_direct && !self.entries.contains(&legs) {
            self.entries.push(legs.clone());
        }
        let (ranges, way) = (&*frontend.source_ranges, self.way(frontend, &legs));
        if !ranges.is_empty() && !self.walls.iter().any(|(others, to)| (*others, to) == (ranges, &way)) {
            self.walls.push((ranges, way));
        }
    }

    /// The set of a cluster address that everybody meets alike, if the set's own chain can say who is masqueraded.
    fn direct(&self, frontend: &Frontend, legs: &Legs) -> Option<u8> {
        if frontend.kind != FrontendKind::ClusterIp || legs.node != legs.elsewhere {
            return None;
        }
        let pod = legs.pod.unwrap_or(legs.elsewhere);
        let by_source = pod.masquerade != legs.elsewhere.masquerade;
        let can_say = !by_source || (!pod.masquerade && self.pod_ranges().len() == 1);
        legs.elsewhere.to.ok().filter(|_| pod.to == legs.elsewhere.to && can_say)
    }

    /// The chain behind a frontend's source ranges.
    fn way(&self, frontend: &Frontend, legs: &Legs) -> Chain {
        match self.direct(frontend, legs) {
            Some(set) => self.chain(Part::Backends(set)),
            None => self.chain(Part::External(number(&self.entries, |entry| entry == legs))),
        }
    }

    fn chain(&self, part: Part) -> Chain {
        Chain::Of(self.port.clone(), part)
    }

    /// Without repetitions.
    fn pod_ranges(&self) -> BTreeSet<IpNet> {
        self.around.cluster_cidrs.iter().map(IpNet::trunc).collect()
    }

    fn rule(&self, what: &str, matches: impl Into<Vec<Match>>, action: Action) -> Rule {
        Rule::new(&format!("{} {what}", self.title), matches, action)
    }

    /// The chains of its own with their rules.
    pub fn chains(&self) -> BTreeMap<(Table, Chain), Vec<Rule>> {
        let mut chains = BTreeMap::new();
        for set in 0..self.choices.len() {
            let set = u8::try_from(set).unwrap_or(u8::MAX);
            chains.insert((Table::Nat, self.chain(Part::Backends(set))), self.choice_rules(set));
        }
        for (entry, legs) in (0..).zip(&self.entries) {
            chains.insert((Table::Nat, self.chain(Part::External(entry))), self.entry_rules(legs));
        }
        for (wall, (ranges, to)) in (0..).zip(&self.walls) {
            let rules = ranges
                .iter()
                .map(|range| self.rule("loadbalancer source range", [Match::Source(*range)], Action::Jump(to.clone())));
            chains.insert((Table::Nat, self.chain(Part::Firewall(wall))), rules.collect());
        }
        for (at, remembers) in self.endpoints() {
            chains.insert((Table::Nat, self.chain(Part::Endpoint(at))), self.endpoint_rules(at, remembers));
        }
        for (number, ranges) in (0..).zip(self.refusing_walls()) {
            let mut rules: Vec<Rule> = ranges
                .iter()
                .map(|range| self.rule("loadbalancer source range", [Match::Source(*range)], Action::Return))
                .collect();
            rules.push(self.rule("traffic from elsewhere", [], Action::Drop));
            chains.insert((Table::Filter, self.chain(Part::Firewall(number))), rules);
        }
        chains
    }

    /// Each endpoint, with whether it is to remember its clients.
    fn endpoints(&self) -> BTreeMap<SocketAddr, bool> {
        let mut endpoints = BTreeMap::new();
        for choice in &self.choices {
            for backend in choice.backends.iter() {
                *endpoints.entry(backend.address).or_default() |= choice.affinity.is_some();
            }
        }
        endpoints
    }

    fn choice_rules(&self, set: u8) -> Vec<Rule> {
        let choice = &self.choices[usize::from(set)];
        let mut rules = Vec::new();
        for (key, frontend, legs) in &self.frontends {
            if self.direct(frontend, legs) != Some(set) {
                continue;
            }
            let pod = legs.pod.unwrap_or(legs.elsewhere);
            let mut matches = Vec::new();
            if legs.elsewhere.masquerade && !pod.masquerade {
                matches.extend(self.pod_ranges().into_iter().map(Match::NotSource));
            }
            if legs.elsewhere.masquerade {
                matches.extend(destination(key));
                rules.push(self.rule("cluster IP", matches, Action::Jump(Chain::MarkMasq)));
            }
        }
        let endpoint = |at| self.chain(Part::Endpoint(at));
        let to =
            |at: SocketAddr, matches: Vec<Match>| self.rule(&format!("-> {at}"), matches, Action::Jump(endpoint(at)));
        if let Some(timeout) = choice.affinity {
            let sticky = choice.backends.iter().map(|backend| backend.address);
            rules.extend(sticky.map(|at| to(at, vec![Match::SentBefore(endpoint(at), timeout)])));
        }
        let all = choice.backends.len();
        for (before, backend) in choice.backends.iter().enumerate() {
            let left = u32::try_from(all - before).unwrap_or(u32::MAX);
            let chance = (left > 1).then(|| Match::Chance(((1 << 31) + left / 2) / left));
            rules.push(to(backend.address, chance.into_iter().collect()));
        }
        rules
    }

    fn endpoint_rules(&self, at: SocketAddr, remembers: bool) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.around.local_endpoints.contains(&at.ip()) {
            let own = [Match::Source(single(at.ip()))];
            rules.push(self.rule("to itself", own, Action::Jump(Chain::MarkMasq)));
        }
        let mut matches = vec![Match::Protocol(self.port.protocol)];
        if remembers {
            matches.push(Match::Remember(self.chain(Part::Endpoint(at))));
        }
        rules.push(Rule::new(&self.title, matches, Action::Dnat(at)));
        rules
    }

    fn entry_rules(&self, legs: &Legs) -> Vec<Rule> {
        let mut rules = Vec::new();
        let mut leg = |who: &str, leg: Leg, source: Option<Match>| {
            let source: Vec<Match> = source.into_iter().collect();
            match leg.to {
                Ok(set) => {
                    if leg.masquerade {
                        let comment = format!("external, masquerade {who}");
                        rules.push(self.rule(&comment, source.clone(), Action::Jump(Chain::MarkMasq)));
                    }
                    let chain = self.chain(Part::Backends(set));
                    rules.push(self.rule(&format!("external, {who}"), source, Action::Jump(chain)));
                }
                Err(_) if source.is_empty() => {}
                Err(_) => rules.push(self.rule(&format!("external, {who}: none"), source, Action::Return)),
            }
        };
        let others_are_alike = legs.node == legs.elsewhere;
        if let Some(pod) = legs.pod.filter(|pod| !(others_are_alike && *pod == legs.elsewhere)) {
            for range in self.pod_ranges() {
                leg("from pods", pod, Some(Match::Source(range)));
            }
        }
        if !others_are_alike {
            leg("from this node", legs.node, Some(Match::SourceIsLocal));
        }
        leg("traffic", legs.elsewhere, None);
        rules
    }

    /// Its rules in the chains that all share.
    pub fn shared(&self) -> Shared {
        let mut shared = Shared::default();
        for (key, frontend, legs) in &self.frontends {
            let at = || destination(key);
            let what = match frontend.kind {
                FrontendKind::ClusterIp => "cluster IP",
                FrontendKind::ExternalIp => "external IP",
                FrontendKind::LoadBalancer => "loadbalancer IP",
                FrontendKind::NodePort => "node port",
            };
            let is_node_port = matches!(key, FrontendKey::NodePort { .. });
            let leading = if is_node_port { &mut shared.node_ports } else { &mut shared.services };
            let is_walled = !frontend.source_ranges.is_empty();
            if !legs.leads_nowhere() {
                let way = self.way(frontend, legs);
                let way = if is_walled {
                    let same = |(ranges, to): &(&[IpNet], Chain)| (*ranges, to) == (&*frontend.source_ranges, &way);
                    self.chain(Part::Firewall(number(&self.walls, same)))
                } else {
                    way
                };
                leading.push(self.rule(what, at(), Action::Jump(way)));
            }
            if self.is_node_port_address(key) && (is_walled || !legs.all_lead_somewhere()) {
                // Whom it does not lead anywhere must not be taken for somebody at a node port of that number.
                leading.push(self.rule(&format!("{what}, no node port"), at(), Action::Accept));
            }
            if is_walled {
                let action = match self.refusing_walls().position(|ranges| ranges == &*frontend.source_ranges) {
                    Some(wall) if some_pass(key, frontend, legs) => {
                        Action::Jump(self.chain(Part::Firewall(u8::try_from(wall).unwrap_or(u8::MAX))))
                    }
                    _ => Action::Drop,
                };
                shared.firewall.push(self.rule("loadbalancer IP, other sources", at(), action));
            }
            let refused = match frontend.kind {
                _ if is_node_port => &mut shared.refused_node_ports,
                FrontendKind::ClusterIp => &mut shared.refused_services,
                _ => &mut shared.refused_externals,
            };
            refused.extend(self.refusals(legs, &at(), leads_to_itself(key, frontend)));
        }
        shared
    }

    fn is_node_port_address(&self, key: &FrontendKey) -> bool {
        matches!(key, FrontendKey::Address { address, .. } if self.around.node_port_addresses.contains(address))
    }

    /// Source ranges of frontends at which an allowed source may get past the walls, each once.
    fn refusing_walls(&self) -> impl Iterator<Item = &'a [IpNet]> {
        let walled = self
            .frontends
            .iter()
            .filter(|(key, frontend, legs)| !frontend.source_ranges.is_empty() && some_pass(key, frontend, legs));
        let mut ranges: Vec<&'a [IpNet]> = walled.map(|(_, frontend, _)| &*frontend.source_ranges).collect();
        ranges.sort();
        ranges.dedup();
        ranges.into_iter()
    }

    /// What is refused of that which nat left alone. Those that were led to backends do not come here, unless `to_itself`.
    fn refusals(&self, legs: &Legs, at: &[Match], to_itself: bool) -> Vec<Rule> {
        let refusal = |leg: Leg, source: Option<Match>| {
            let (comment, action) = match leg.to {
                Ok(_) if to_itself && source.is_some() => ("is its own endpoint", Action::Return),
                Ok(_) => return None,
                Err(End::Reject) if self.port.protocol == Protocol::Tcp => ("has no endpoints", Action::Reset),
                Err(End::Reject) => ("has no endpoints", Action::Reject),
                Err(End::Drop) => ("has no local endpoints", Action::Drop),
            };
            let matches: Vec<Match> = source.into_iter().chain(at.iter().cloned()).collect();
            Some(self.rule(comment, matches, action))
        };
        let ends: Vec<End> = legs.all().filter_map(|leg| leg.to.err()).collect();
        let all_alike = ends.windows(2).all(|pair| pair[0] == pair[1]);
        if let (true, false, Some(end)) = (all_alike, to_itself, ends.first()) {
            return refusal(Leg { to: Err(*end), masquerade: false }, None).into_iter().collect();
        }
        let pods = legs.pod.into_iter().flat_map(|pod| {
            self.pod_ranges().into_iter().filter_map(move |range| refusal(pod, Some(Match::Source(range))))
        });
        let node = refusal(legs.node, Some(Match::SourceIsLocal));
        pods.chain(node).chain(refusal(legs.elsewhere, None)).collect()
    }
}

impl Legs {
    fn all(&self) -> impl Iterator<Item = Leg> {
        self.pod.into_iter().chain([self.node, self.elsewhere])
    }

    fn leads_nowhere(&self) -> bool {
        self.all().all(|leg| leg.to.is_err())
    }

    fn all_lead_somewhere(&self) -> bool {
        self.all().all(|leg| leg.to.is_ok())
    }

    fn some_is_rejected(&self) -> bool {
        self.all().any(|leg| leg.to == Err(End::Reject))
    }
}

fn number<T>(all: &[T], is: impl Fn(&T) -> bool) -> u8 {
    let number = all.iter().position(is).expect("it was numbered when the layout was made");
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Whether packets of allowed sources come to the walls, which else only see those that nat left alone: to be refused
/// behind them, or led to the frontend itself.
fn some_pass(key: &FrontendKey, frontend: &Frontend, legs: &Legs) -> bool {
    legs.some_is_rejected() || leads_to_itself(key, frontend)
}

/// Whether a backend is the frontend itself: a pod in the node's network behind the node's own address. The kernel does not
/// count what it sends there as translated.
fn leads_to_itself(key: &FrontendKey, frontend: &Frontend) -> bool {
    let FrontendKey::Address { address, port, .. } = *key else { return false };
    let itself = SocketAddr::new(address, port.get());
    let leads = |route: &Route| match &route.target {
        Target::Backends(backends) => backends.iter().any(|backend| backend.address == itself),
        Target::Reject | Target::Drop => false,
    };
    [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere].into_iter().any(leads)
}

/// What finds a frontend's packets.
fn destination(key: &FrontendKey) -> Vec<Match> {
    match *key {
        FrontendKey::Address { address, protocol, port } => {
            vec![Match::Destination(single(address)), Match::Port(protocol, port.get())]
        }
        FrontendKey::NodePort { protocol, port } => vec![Match::Port(protocol, port.get())],
    }
}

impl Shared {
    /// Adds those of another Service port.
    pub fn extend(&mut self, other: Shared) {
        self.services.extend(other.services);
        self.node_ports.extend(other.node_ports);
        self.refused_services.extend(other.refused_services);
        self.refused_externals.extend(other.refused_externals);
        self.refused_node_ports.extend(other.refused_node_ports);
        self.firewall.extend(other.firewall);
    }
}

/// Whether an address is of a family; what is not would make the tool refuse the whole table.
pub fn fits(family: Family, address: IpAddr) -> bool {
    Family::of(address) == family
}
