//! Pure. The whole of what this mode holds in the kernel for one plan: virtual servers, elements of sets, addresses. The
//! rules, which are the same at any number of Services, are made when somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{Frontend, FrontendKey, FrontendKind, NodePlan, PlanChange, Route, Target};
use signpost_core::walk::Origin;

use super::layout::{DROP_MARK, Layout, MarkKey, Marked, REJECT_MARK, Refusal, marks, protocol};
use super::server::{Place, Scheduler, Server, ServerKey, Settings, Stickiness, timeout_s};
use super::set::{Element, Set, halves};

/// The program of one node and one family. Same plan and scheduler, same program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Source", into = "Source")]
pub struct Program {
    plan: NodePlan,
    scheduler: Scheduler,
    /// The marks of frontends that need some.
    marks: BTreeMap<MarkKey, u32>,
    /// The frontends that lead to an endpoint of this address.
    by_endpoint: BTreeMap<IpAddr, BTreeSet<FrontendKey>>,
    /// The virtual servers.
    pub(super) servers: BTreeMap<ServerKey, Server>,
    /// Elements of sets with their mark, if the set has marks, and how often they are wanted.
    pub(super) elements: BTreeMap<(Set, Element), (u32, usize)>,
}

/// What a program is made of.
#[derive(Serialize, Deserialize)]
struct Source {
    plan: NodePlan,
    scheduler: Scheduler,
}

impl From<Source> for Program {
    fn from(source: Source) -> Program {
        Program::of(&source.plan, source.scheduler)
    }
}

impl From<Program> for Source {
    fn from(program: Program) -> Source {
        Source { plan: program.plan, scheduler: program.scheduler }
    }
}

/// What one frontend brings in: elements with their marks, and servers.
pub type Brought = (Vec<(Set, Element, u32)>, Vec<(ServerKey, Server)>);

/// A part of a program, as one frontend or address brings it in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Server(ServerKey, Server),
    Element(Set, Element, u32),
}

/// What differs between two programs. Elements come with their mark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// Servers before and after, of those that differ.
    pub servers: BTreeMap<ServerKey, (Option<Server>, Option<Server>)>,
    /// Elements that are new or have another mark.
    pub added: BTreeMap<(Set, Element), u32>,
    /// Elements that go.
    pub removed: BTreeSet<(Set, Element)>,
}

impl Program {
    /// The program of a plan. What is of another family in it is left out, so that it harms only itself.
    pub fn of(plan: &NodePlan, scheduler: Scheduler) -> Program {
        let mut program = Program {
            plan: NodePlan::empty(plan.family, plan.facts()),
            scheduler,
            marks: BTreeMap::new(),
            by_endpoint: BTreeMap::new(),
            servers: BTreeMap::new(),
            elements: BTreeMap::new(),
        };
        let added =
            |set: &BTreeSet<IpAddr>| signpost_core::plan::SetChange { added: set.clone(), ..Default::default() };
        program.apply(&PlanChange {
            set: plan.frontends.clone(),
            node: Some(plan.facts()),
            cluster_ips: added(&plan.cluster_ips),
            local_endpoints: added(&plan.local_endpoints),
            ..PlanChange::default()
        });
        program
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.plan.family
    }

    /// What it knows of the node.
    pub fn plan(&self) -> &NodePlan {
        &self.plan
    }

    /// The addresses that the device has.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let address = |(element, _)| if let Element::Address(ip) = element { Some(ip) } else { None };
        self.of_set(Set::IpvsIps).filter_map(address).collect()
    }

    /// The elements of a set with their marks.
    pub fn of_set(&self, set: Set) -> impl Iterator<Item = (Element, u32)> {
        let all = self.elements.range((set, Element::FIRST)..).take_while(move |((of, _), _)| *of == set);
        all.map(|((_, element), (mark, _))| (*element, *mark))
    }

    /// Whether an address is on this machine, the Services' included.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.plan.node_addresses.contains(&address) || self.has(Set::IpvsIps, Element::Address(address))
    }

    /// Whether a set has an element.
    pub fn has(&self, set: Set, element: Element) -> bool {
        self.elements.contains_key(&(set, element))
    }

    /// The mark of an element.
    pub fn mark(&self, set: Set, element: Element) -> Option<u32> {
        self.elements.get(&(set, element)).map(|(mark, _)| *mark)
    }

    /// The ranges that a load-balancer place is for.
    pub fn sources(&self, place: Place) -> impl Iterator<Item = ipnet::IpNet> {
        let first = Element::PlaceAndClients(place, "0.0.0.0/0".parse().expect("it is a range"));
        let from = self.elements.range((Set::LoadBalancerSources, first)..);
        let of_place = move |element: &Element| match element {
            Element::PlaceAndClients(at, range) if *at == place => Some(*range),
            _ => None,
        };
        from.map_while(
            move |((set, element), _)| {
                if *set == Set::LoadBalancerSources { of_place(element) } else { None }
            },
        )
    }

    /// What a frontend brings in; `None`: there is no such frontend.
    pub fn of_frontend(&self, key: &FrontendKey) -> Option<Brought> {
        self.plan.frontends.get(key)?;
        let (mut elements, mut servers) = (Vec::new(), Vec::new());
        for part in self.parts(key) {
            match part {
                Part::Element(set, element, mark) => elements.push((set, element, mark)),
                Part::Server(key, server) => servers.push((key, server)),
            }
        }
        Some((elements, servers))
    }

    /// The server that a packet with this mark to this place meets.
    pub fn server(&self, mark: u32, place: Place) -> Option<(ServerKey, &Server)> {
        let found = |key| self.servers.get(&key).map(|server| (key, server));
        let by_mark = if mark == 0 { None } else { found(ServerKey::Marked(mark)) };
        by_mark.or_else(|| found(ServerKey::At(place)))
    }

    /// What a change of the plan changes. Costs in proportion to what it touches, unless it is about the node itself.
    pub(super) fn difference_by(&self, change: &PlanChange) -> Difference {
        if change.node.is_some() {
            return self.clone().apply(change);
        }
        let mut part = self.part(&self.fitted(change));
        let known: BTreeSet<(Set, Element)> = part.elements.keys().copied().collect();
        let mut difference = part.apply(change);
        // What others have brought in already is not new.
        difference.added.retain(|key, mark| known.contains(key) || self.mark(key.0, key.1) != Some(*mark));
        difference
    }

    /// The program with only what a change touches.
    fn part(&self, change: &PlanChange) -> Program {
        let (touched, _) = self.touched_with_marks(change);
        let mut part = Program {
            plan: NodePlan::empty(self.plan.family, self.plan.facts()),
            scheduler: self.scheduler,
            marks: self.marks.clone(),
            by_endpoint: BTreeMap::new(),
            servers: BTreeMap::new(),
            elements: BTreeMap::new(),
        };
        // A node's own pods: a few hundred at most.
        part.plan.local_endpoints.clone_from(&self.plan.local_endpoints);
        let named = change.cluster_ips.added.iter().chain(&change.cluster_ips.removed);
        part.plan.cluster_ips = named.filter(|address| self.plan.cluster_ips.contains(address)).copied().collect();
        let shadows = touched.iter().flat_map(|key| self.addresses_of_node_port(key));
        for key in touched.iter().copied().chain(shadows) {
            if let Some(frontend) = self.plan.frontends.get(&key) {
                part.plan.frontends.insert(key, frontend.clone());
            }
        }
        for key in touched {
            part.index(&key, true);
            self.parts(&key).into_iter().for_each(|one| self.copy(one, &mut part));
        }
        self.address_parts(change).into_iter().for_each(|one| self.copy(one, &mut part));
        part
    }

    fn copy(&self, one: Part, to: &mut Program) {
        match one {
            Part::Server(key, server) => {
                to.servers.insert(key, server);
            }
            Part::Element(set, element, _) => {
                if let Some(found) = self.elements.get(&(set, element)) {
                    to.elements.insert((set, element), *found);
                }
            }
        }
    }

    /// The Services' own addresses that would come before a node port.
    fn addresses_of_node_port(&self, key: &FrontendKey) -> Vec<FrontendKey> {
        let FrontendKey::NodePort { protocol, port } = *key else { return Vec::new() };
        let at = |address: &IpAddr| FrontendKey::Address { address: *address, protocol, port };
        self.plan.node_port_addresses.iter().map(at).collect()
    }

    /// Turns this program into that of the plan after the change, and tells what differs.
    pub(super) fn apply(&mut self, change: &PlanChange) -> Difference {
        let change = self.fitted(change);
        let (touched, marks) = self.touched_with_marks(&change);
        let mut noted = Difference::default();
        let mut before: Vec<Part> = touched.iter().flat_map(|key| self.parts(key)).collect();
        before.extend(self.address_parts(&change));
        for key in &touched {
            self.index(key, false);
        }
        self.plan.apply(&change);
        self.marks = marks.unwrap_or_else(|| std::mem::take(&mut self.marks));
        for key in &touched {
            self.index(key, true);
        }
        let mut after: Vec<Part> = touched.iter().flat_map(|key| self.parts(key)).collect();
        after.extend(self.address_parts(&change));
        before.into_iter().for_each(|part| self.take_out(part, &mut noted));
        after.into_iter().for_each(|part| self.put_in(part, &mut noted));
        self.difference(noted)
    }

    /// The change without what is of another family.
    fn fitted(&self, change: &PlanChange) -> PlanChange {
        let fits = |address: &IpAddr| Family::of(*address) == self.plan.family;
        let mut fitting = PlanChange { set: BTreeMap::new(), ..change.clone() };
        for (key, frontend) in &change.set {
            if matches!(key, FrontendKey::Address { address, .. } if !fits(address)) {
                continue;
            }
            let mut frontend = frontend.clone();
            for route in [&mut frontend.from_pod, &mut frontend.from_node, &mut frontend.from_elsewhere] {
                fit_route(self.plan.family, route);
            }
            if !frontend.source_ranges.iter().all(|range| fits(&range.addr())) {
                frontend.source_ranges =
                    frontend.source_ranges.iter().copied().filter(|range| fits(&range.addr())).collect();
            }
            fitting.set.insert(*key, frontend);
        }
        fitting.cluster_ips.added.retain(fits);
        fitting.local_endpoints.added.retain(fits);
        if let Some(facts) = &mut fitting.node {
            facts.cluster_cidrs.retain(|range| fits(&range.addr()));
            facts.service_cidrs.retain(|range| fits(&range.addr()));
            facts.node_addresses.retain(fits);
            facts.node_port_addresses.retain(fits);
        }
        fitting
    }

    /// The frontends whose parts may change, and the marks after the change, if they may differ.
    fn touched_with_marks(&self, change: &PlanChange) -> (BTreeSet<FrontendKey>, Option<BTreeMap<MarkKey, u32>>) {
        let mut touched = self.touched(change);
        let marks = self.marks_after(change, &touched);
        if let Some(marks) = &marks {
            // Those whose mark another takes are touched too.
            let moved = self.marks.iter().filter(|(key, mark)| marks.get(key) != Some(mark));
            touched.extend(moved.map(|((key, ..), _)| *key));
        }
        (touched, marks)
    }

    /// The frontends whose parts may change.
    fn touched(&self, change: &PlanChange) -> BTreeSet<FrontendKey> {
        let named = change.removed.iter().chain(change.set.keys()).copied();
        if change.node.is_some() {
            return named.chain(self.plan.frontends.keys().copied()).collect();
        }
        let mut touched: BTreeSet<FrontendKey> = named.collect();
        // At a node's own address a Service's comes before the node port of that number.
        let node_ports: Vec<FrontendKey> = touched.iter().filter_map(|key| self.node_port_of(key)).collect();
        touched.extend(node_ports);
        let locals = change.local_endpoints.added.iter().chain(&change.local_endpoints.removed);
        touched.extend(locals.filter_map(|address| self.by_endpoint.get(address)).flatten());
        touched
    }

    fn node_port_of(&self, key: &FrontendKey) -> Option<FrontendKey> {
        let FrontendKey::Address { address, protocol, port } = *key else { return None };
        self.plan.node_port_addresses.contains(&address).then_some(FrontendKey::NodePort { protocol, port })
    }

    /// The marks after a change, if they may differ.
    fn marks_after(&self, change: &PlanChange, touched: &BTreeSet<FrontendKey>) -> Option<BTreeMap<MarkKey, u32>> {
        if let Some(facts) = &change.node {
            let mut plan = self.plan.clone();
            plan.apply(change);
            let knows_pods = !facts.cluster_cidrs.is_empty();
            return Some(marks(
                plan.frontends.iter().flat_map(|(key, frontend)| mark_keys(*key, frontend, knows_pods)),
            ));
        }
        let knows_pods = knows_pods(&self.plan);
        let added: Vec<MarkKey> =
            change.set.iter().flat_map(|(key, frontend)| mark_keys(*key, frontend, knows_pods)).collect();
        let is_touched =
            |key: &FrontendKey| self.marks.range((*key, 0, false)..).next().is_some_and(|((one, ..), _)| one == key);
        if added.is_empty() && !touched.iter().any(is_touched) {
            return None;
        }
        let stays = |key: &&MarkKey| !change.set.contains_key(&key.0) && !change.removed.contains(&key.0);
        Some(marks(self.marks.keys().filter(stays).copied().chain(added)))
    }

    /// Keeps the way from endpoints to frontends.
    fn index(&mut self, key: &FrontendKey, is_there: bool) {
        let Some(frontend) = self.plan.frontends.get(key) else { return };
        for address in endpoints(frontend).map(|at| at.ip()).collect::<BTreeSet<_>>() {
            if is_there {
                self.by_endpoint.entry(address).or_default().insert(*key);
            } else if let Some(keys) = self.by_endpoint.get_mut(&address) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_endpoint.remove(&address);
                }
            }
        }
    }

    /// The places at which a frontend answers.
    fn places(&self, key: &FrontendKey) -> Vec<Place> {
        match *key {
            FrontendKey::Address { address, protocol, port } => vec![Place { address, protocol, port }],
            FrontendKey::NodePort { protocol, port } => {
                let places =
                    self.plan.node_port_addresses.iter().map(|address| Place { address: *address, protocol, port });
                let is_free = |place: &Place| {
                    let Place { address, protocol, port } = *place;
                    !self.plan.frontends.contains_key(&FrontendKey::Address { address, protocol, port })
                };
                places.filter(is_free).collect()
            }
        }
    }

    /// What a frontend brings in.
    fn parts(&self, key: &FrontendKey) -> Vec<Part> {
        let Some(frontend) = self.plan.frontends.get(key) else { return Vec::new() };
        let layout = Layout::of(frontend, knows_pods(&self.plan));
        let places = self.places(key);
        let mut parts = self.server_parts(key, frontend, &layout, &places);
        parts.extend(self.mark_parts(key, &layout, &places));
        parts.extend(kind_parts(key, frontend, &layout, &places));
        parts.extend(self.loop_back_parts(key, frontend));
        if let FrontendKey::Address { address, .. } = key {
            parts.extend(self.address_part(*address));
        }
        parts
    }

    fn server_parts(&self, key: &FrontendKey, frontend: &Frontend, layout: &Layout, places: &[Place]) -> Vec<Part> {
        let server = |backends: &[signpost_core::plan::Backend], stickiness| Server {
            settings: Settings { scheduler: frontend.scheduler.unwrap_or(self.scheduler), stickiness },
            protocol: protocol(key),
            destinations: backends.iter().map(|backend| backend.address).collect(),
        };
        let mut parts = Vec::new();
        if let Some(backends) = &layout.main {
            let stickiness = frontend.affinity.map_or(Stickiness::None, |time| Stickiness::Persistent(timeout_s(time)));
            let server = server(backends, stickiness);
            parts.extend(places.iter().map(|place| Part::Server(ServerKey::At(*place), server.clone())));
        }
        if places.is_empty() {
            return parts;
        }
        for (number, (backends, masquerades)) in layout.servers.iter().enumerate() {
            let stickiness = frontend.affinity.map_or(Stickiness::None, |_| Stickiness::BySource);
            if let Some(mark) = self.marks.get(&(*key, number, *masquerades)) {
                parts.push(Part::Server(ServerKey::Marked(*mark), server(backends, stickiness)));
            }
        }
        parts
    }

    fn mark_parts(&self, key: &FrontendKey, layout: &Layout, places: &[Place]) -> Vec<Part> {
        let mut parts = Vec::new();
        for (origin, marked) in &layout.marked {
            let mark = match marked {
                Marked::Server(number) => self.marks.get(&(*key, *number, layout.servers[*number].1)).copied(),
                Marked::Refused(Refusal::Drop) => Some(DROP_MARK),
                Marked::Refused(Refusal::Reject) => Some(REJECT_MARK),
            };
            let set = match origin {
                Origin::Pod => Set::FromPod,
                Origin::Node => Set::FromNode,
                Origin::Elsewhere => Set::FromElsewhere,
            };
            let element = |place: &Place| Some(Part::Element(set, Element::Place(*place), mark?));
            parts.extend(places.iter().filter_map(element));
        }
        parts
    }

    fn loop_back_parts(&self, key: &FrontendKey, frontend: &Frontend) -> Vec<Part> {
        let local: BTreeSet<SocketAddr> =
            endpoints(frontend).filter(|at| self.plan.local_endpoints.contains(&at.ip())).collect();
        let part = |at: SocketAddr| {
            let port = std::num::NonZeroU16::new(at.port())?;
            let place = Place { address: at.ip(), protocol: protocol(key), port };
            Some(Part::Element(Set::LoopBack, Element::PlaceAndClient(place, at.ip()), 0))
        };
        local.into_iter().filter_map(part).collect()
    }

    /// An address that the device is to have, and that refuses what is no port of a Service.
    fn address_part(&self, address: IpAddr) -> Option<Part> {
        let is_nodes = self.plan.node_addresses.contains(&address);
        (!is_nodes).then_some(Part::Element(Set::IpvsIps, Element::Address(address), 0))
    }

    /// What cluster addresses bring in, of those that a change touches.
    fn address_parts(&self, change: &PlanChange) -> Vec<Part> {
        let there = |address: &&IpAddr| self.plan.cluster_ips.contains(*address);
        let named: BTreeSet<IpAddr> = if change.node.is_some() {
            self.plan.cluster_ips.clone()
        } else {
            let named = change.cluster_ips.added.iter().chain(&change.cluster_ips.removed);
            named.filter(there).copied().collect()
        };
        named.into_iter().filter_map(|address| self.address_part(address)).collect()
    }

    fn take_out(&mut self, part: Part, before: &mut Difference) {
        match part {
            Part::Server(key, _) => {
                let was = self.servers.remove(&key);
                before.servers.entry(key).or_insert((was, None));
            }
            Part::Element(set, element, _) => {
                let key = (set, element);
                let Some((mark, count)) = self.elements.get_mut(&key) else { return };
                before.added.entry(key).or_insert(*mark);
                *count -= 1;
                if *count == 0 {
                    self.elements.remove(&key);
                }
            }
        }
    }

    fn put_in(&mut self, part: Part, before: &mut Difference) {
        match part {
            Part::Server(key, server) => {
                before.servers.entry(key).or_insert((None, None));
                self.servers.insert(key, server);
            }
            Part::Element(set, element, mark) => {
                let key = (set, element);
                match self.elements.get_mut(&key) {
                    Some((_, count)) => *count += 1,
                    None => {
                        // Was it there before? If so, it was noted when it was taken out.
                        if !before.added.contains_key(&key) {
                            before.removed.insert(key);
                        }
                        self.elements.insert(key, (mark, 1));
                    }
                }
            }
        }
    }

    /// What differs now from what was noted: servers as they were, elements that were there with their mark, and
    /// elements that were not.
    fn difference(&self, before: Difference) -> Difference {
        let mut difference = Difference::default();
        for (key, (was, _)) in before.servers {
            let now = self.servers.get(&key).cloned();
            if was != now {
                difference.servers.insert(key, (was, now));
            }
        }
        for (key, was) in before.added {
            match self.elements.get(&key) {
                Some((mark, _)) if *mark != was => {
                    difference.added.insert(key, *mark);
                }
                Some(_) => {}
                None => {
                    difference.removed.insert(key);
                }
            }
        }
        for key in before.removed {
            if let Some((mark, _)) = self.elements.get(&key) {
                difference.added.insert(key, *mark);
            }
        }
        difference
    }
}

/// Elements by which the kind of a frontend is known, and by which it is masqueraded, walled and refused.
fn kind_parts(key: &FrontendKey, frontend: &Frontend, layout: &Layout, places: &[Place]) -> Vec<Part> {
    let protocol = protocol(key);
    // A node port at one address alone is none of the numbers that hold for all of them.
    let kind = match (frontend.kind, key) {
        (FrontendKind::NodePort, FrontendKey::Address { .. }) => FrontendKind::ExternalIp,
        (kind, _) => kind,
    };
    let mut sets = match kind {
        FrontendKind::ClusterIp => vec![Set::ClusterIp],
        FrontendKind::ExternalIp if layout.second_way => vec![Set::ExternalIpLocal],
        FrontendKind::ExternalIp => vec![Set::ExternalIp],
        FrontendKind::LoadBalancer => vec![Set::LoadBalancer],
        FrontendKind::NodePort => vec![Set::NodePort(protocol)],
    };
    if layout.second_way {
        sets.extend(match kind {
            FrontendKind::ClusterIp => Some(Set::ClusterIpMasquerade),
            FrontendKind::ExternalIp => None,
            FrontendKind::LoadBalancer => Some(Set::LoadBalancerLocal),
            FrontendKind::NodePort => Some(Set::NodePortLocal(protocol)),
        });
    }
    let mut parts = Vec::new();
    for set in sets {
        match (set, key) {
            (Set::NodePort(Protocol::Tcp | Protocol::Udp) | Set::NodePortLocal(Protocol::Tcp | Protocol::Udp), key) => {
                let (FrontendKey::NodePort { port, .. } | FrontendKey::Address { port, .. }) = key;
                parts.push(Part::Element(set, Element::Port(*port), 0));
            }
            _ => parts.extend(places.iter().map(|place| Part::Element(set, Element::Place(*place), 0))),
        }
    }
    let refused = layout.refusal.map(|refusal| match refusal {
        Refusal::Reject => Set::NoEndpoints,
        Refusal::Drop => Set::NoLocalEndpoints,
    });
    let walled = (!frontend.source_ranges.is_empty()).then_some(Set::LoadBalancerFirewall);
    for set in refused.into_iter().chain(walled) {
        parts.extend(places.iter().map(|place| Part::Element(set, Element::Place(*place), 0)));
    }
    let ranges: BTreeSet<ipnet::IpNet> = frontend.source_ranges.iter().copied().flat_map(halves).collect();
    for range in ranges {
        let element =
            |place: &Place| Part::Element(Set::LoadBalancerSources, Element::PlaceAndClients(*place, range), 0);
        parts.extend(places.iter().map(element));
    }
    parts
}

fn knows_pods(plan: &NodePlan) -> bool {
    !plan.cluster_cidrs.is_empty()
}

fn mark_keys(key: FrontendKey, frontend: &Frontend, knows_pods: bool) -> impl Iterator<Item = MarkKey> {
    let servers = Layout::of(frontend, knows_pods).servers;
    servers.into_iter().enumerate().map(move |(number, (_, masquerades))| (key, number, masquerades))
}

fn endpoints(frontend: &Frontend) -> impl Iterator<Item = SocketAddr> + '_ {
    let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
    let backends = routes.into_iter().filter_map(|route| match &route.target {
        Target::Backends(backends) => Some(backends),
        Target::Reject | Target::Drop => None,
    });
    backends.flat_map(|backends| backends.iter().map(|backend| backend.address))
}

fn fit_route(family: Family, route: &mut Route) {
    let Target::Backends(backends) = &route.target else { return };
    let fits = |at: &SocketAddr| Family::of(at.ip()) == family && at.port() != 0;
    if backends.iter().all(|backend| fits(&backend.address)) && !backends.is_empty() {
        return;
    }
    let fitting: signpost_core::plan::Backends =
        backends.iter().filter(|backend| fits(&backend.address)).copied().collect();
    route.target = if fitting.is_empty() { Target::Reject } else { Target::Backends(fitting) };
}
