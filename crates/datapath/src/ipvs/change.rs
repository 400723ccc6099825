//! Pure. From one program to another, as steps in the order in which no packet meets half a state: a server, its
//! destinations, then the address and the sets that lead to it; what goes, goes the other way round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use signpost_core::object::{Family, Protocol};
use signpost_core::plan::PlanChange;

use super::message::{ObservedServer, Request};
use super::observed::Observed;
use super::program::Program;
use super::rule::{CHAINS, CLUSTER_IPS, Chain, Table, bases, is_of_this_mode, is_ours, rules, text};
use super::server::{Scheduler, Server, ServerKey};
use super::set::{Element, Set};

/// What is done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// What the plan's change was: leads the program on.
    pub(super) plan: PlanChange,
    /// Sysctls that are written, by path below `/proc/sys`.
    pub settings: Vec<(String, String)>,
    /// Whether the device is made.
    pub makes_device: bool,
    /// Whether this program's own chain is made first, by which what follows is known as its own if it stops half way.
    pub claims: bool,
    /// Servers and destinations that come.
    pub coming: Vec<Request>,
    /// Addresses that come.
    pub bound: Vec<IpAddr>,
    /// Lines for `ipset restore`: what comes first, then what goes.
    pub sets: String,
    /// What `iptables-restore` reads.
    pub rules: String,
    /// Addresses that go.
    pub unbound: Vec<IpAddr>,
    /// Destinations that take no new connections; those that have none are removed at once, the others later.
    pub draining: Vec<(ServerKey, SocketAddr)>,
    /// Servers and destinations that go.
    pub going: Vec<Request>,
    /// Lines for `ipset restore`, after the rules that named the sets are gone.
    pub last_sets: String,
}

impl Change {
    /// Whether nothing is done.
    pub fn is_empty(&self) -> bool {
        *self == Change { plan: self.plan.clone(), ..Change::default() }
    }

    /// Messages of netlink to IPVS and to the device, and lines to the tools.
    pub fn size(&self) -> usize {
        self.coming.len()
            + self.going.len()
            + self.draining.len()
            + self.bound.len()
            + self.unbound.len()
            + self.sets.lines().count()
            + self.last_sets.lines().count()
            + self.rules.lines().count()
    }
}

/// What a change of the plan changes.
pub fn change(before: &Program, plan: &PlanChange) -> Change {
    let difference = before.difference_by(plan);
    let mut change = Change { plan: plan.clone(), ..Change::default() };
    for (key, (was, now)) in difference.servers {
        let was = was.map(|server| Before::of(&server));
        change.server(key, was, now.as_ref());
    }
    let family = before.family();
    let mut sets = SetLines::new(family);
    for ((set, element), mark) in difference.added {
        if let (Set::IpvsIps, Element::Address(address)) = (set, element) {
            change.bound.push(address);
        }
        sets.add(set, element, mark);
    }
    for (set, element) in difference.removed {
        if let (Set::IpvsIps, Element::Address(address)) = (set, element) {
            change.unbound.push(address);
        }
        sets.remove(set, &element.to_string());
    }
    change.sets = sets.finish();
    if plan.node.is_some() {
        let mut after = before.clone();
        after.apply(plan);
        let chains = CHAINS.into_iter().filter(|(table, chain)| {
            let of = |program: &Program| rules(program.plan(), *table, chain);
            of(before) != of(&after)
        });
        change.rules = RuleLines::of(&after, &chains.collect::<Vec<_>>()).finish();
    }
    change
}

/// Leads a program on.
pub fn advance(program: &mut Program, change: &Change) {
    program.apply(&change.plan);
}

/// A server as it is before a change.
struct Before {
    parts: (String, u32, u32),
    /// With their weights.
    destinations: BTreeMap<SocketAddr, u32>,
}

impl Before {
    fn of(server: &Server) -> Before {
        let (scheduler, flags, timeout_s) = server.settings.parts();
        let destinations = server.destinations.iter().map(|at| (*at, 1)).collect();
        Before { parts: (scheduler.to_string(), flags, timeout_s), destinations }
    }

    fn observed(server: &ObservedServer) -> Before {
        let destinations = server.destinations.iter().map(|(at, found)| (*at, found.weight)).collect();
        Before { parts: (server.scheduler.clone(), server.flags, server.timeout_s), destinations }
    }
}

impl Change {
    fn server(&mut self, key: ServerKey, was: Option<Before>, now: Option<&Server>) {
        let Some(now) = now else {
            if was.is_some() {
                self.going.push(Request::DeleteServer(key));
            }
            return;
        };
        let (scheduler, flags, timeout_s) = now.settings.parts();
        match &was {
            None => self.coming.push(Request::NewServer(key, now.settings)),
            Some(was) if was.parts != (scheduler.to_string(), flags, timeout_s) => {
                self.coming.push(Request::SetServer(key, now.settings));
            }
            Some(_) => {}
        }
        let there = was.map(|was| was.destinations).unwrap_or_default();
        for at in &now.destinations {
            match there.get(at) {
                None => self.coming.push(Request::NewDestination(key, *at)),
                Some(1) => {}
                Some(_) => self.coming.push(Request::SetWeight(key, *at, 1)),
            }
        }
        // One without weight is on its way out: [`repair`] looks after those.
        for (at, _) in there.iter().filter(|(at, weight)| **weight > 0 && !now.destinations.contains(at)) {
            if now.protocol == Protocol::Udp || now.settings.parts().0 == Scheduler::Dh {
                // UDP has no connections that end. And dh gives up on a client whose destination has no weight.
                self.going.push(Request::DeleteDestination(key, *at));
            } else {
                self.draining.push((key, *at));
            }
        }
    }
}

/// Lines for `ipset restore -exist`.
struct SetLines {
    family: Family,
    coming: String,
    going: String,
}

impl SetLines {
    fn new(family: Family) -> SetLines {
        SetLines { family, coming: String::new(), going: String::new() }
    }

    fn create(&mut self, set: Set) {
        line(&mut self.coming, format_args!("create {} {}", set.name(self.family), set.header(self.family)));
    }

    fn add(&mut self, set: Set, element: Element, mark: u32) {
        let name = set.name(self.family);
        match mark {
            0 => line(&mut self.coming, format_args!("add {name} {element}")),
            mark => line(&mut self.coming, format_args!("add {name} {element} skbmark {mark:#x}")),
        }
    }

    fn remove(&mut self, set: Set, element: &str) {
        line(&mut self.going, format_args!("del {} {element}", set.name(self.family)));
    }

    fn finish(self) -> String {
        self.coming + &self.going
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
    out.push('\n');
}

/// Text for `iptables-restore --noflush`, per table.
#[derive(Default)]
struct RuleLines {
    tables: BTreeMap<Table, [String; 3]>,
}

impl RuleLines {
    fn of(program: &Program, chains: &[(Table, Chain)]) -> RuleLines {
        let mut lines = RuleLines::default();
        for (table, chain) in chains {
            lines.set(*table, chain, &text(program.family(), &rules(program.plan(), *table, chain)));
        }
        lines
    }

    fn set(&mut self, table: Table, chain: &str, rules: &str) {
        let [heads, body, _] = self.tables.entry(table).or_default();
        line(heads, format_args!(":{chain} - [0:0]"));
        rules.lines().for_each(|rule| line(body, format_args!("-A {chain} {rule}")));
    }

    fn base(&mut self, table: Table, lines: Vec<String>) {
        if !lines.is_empty() {
            let [_, body, _] = self.tables.entry(table).or_default();
            lines.iter().for_each(|one| line(body, format_args!("{one}")));
        }
    }

    fn remove(&mut self, table: Table, chain: &str) {
        let [heads, _, tail] = self.tables.entry(table).or_default();
        line(heads, format_args!(":{chain} - [0:0]"));
        line(tail, format_args!("-X {chain}"));
    }

    fn finish(self) -> String {
        let table = |(table, parts): (Table, [String; 3])| format!("*{}\n{}COMMIT\n", table.name(), parts.concat());
        self.tables.into_iter().map(table).collect()
    }
}

/// What must be done so that the kernel holds `want`, whatever it holds now. `is_excluded`: whose servers are left alone.
pub fn repair(want: &Program, have: &Observed, is_excluded: impl Fn(IpAddr) -> bool) -> Change {
    let mut change = Change {
        settings: have.settings.clone(),
        makes_device: have.addresses.is_none(),
        claims: have.chain(Table::Filter, CLUSTER_IPS).is_none(),
        rules: repaired_rules(want, have),
        ..Change::default()
    };
    repair_servers(&mut change, want, have, is_excluded);
    repair_sets(&mut change, want, have);
    let (wanted, there) = (want.addresses(), have.addresses.clone().unwrap_or_default());
    change.bound = wanted.difference(&there).copied().collect();
    change.unbound = there.difference(&wanted).copied().collect();
    change
}

fn repair_servers(change: &mut Change, want: &Program, have: &Observed, is_excluded: impl Fn(IpAddr) -> bool) {
    for (key, server) in &want.servers {
        let was = have.servers.get(key);
        change.server(*key, was.map(Before::observed), Some(server));
        let Some(was) = was else { continue };
        // Those on their way out, that have arrived or had their time.
        for (at, found) in &was.destinations {
            let is_due = found.connections == 0
                || have.overdue.contains(&(*key, *at))
                || server.protocol == Protocol::Udp
                || server.settings.scheduler == Scheduler::Dh;
            if found.weight == 0 && is_due && !server.destinations.contains(at) {
                change.going.push(Request::DeleteDestination(*key, *at));
            }
        }
    }
    let excluded = |key: &ServerKey| matches!(key, ServerKey::At(place) if is_excluded(place.address));
    let gone = have.servers.keys().filter(|key| !want.servers.contains_key(key));
    let gone = gone.filter(|key| have.is_to_remove(key) && !excluded(key));
    change.going.extend(gone.map(|key| Request::DeleteServer(*key)));
}

fn repair_sets(change: &mut Change, want: &Program, have: &Observed) {
    let family = want.family();
    let mut lines = SetLines::new(family);
    let mut renewed = String::new();
    for set in Set::ALL {
        let wanted = want.of_set(set);
        let Some(there) = have.sets.get(&set) else {
            lines.create(set);
            wanted.for_each(|(element, mark)| lines.add(set, element, mark));
            continue;
        };
        if !set.is_made_as(family, &there.header) {
            // Made otherwise, by another program. A new one is made beside it and takes its place at once, under the
            // rules that look into it.
            renew(&mut renewed, set, family, wanted);
            continue;
        }
        let mut gone: BTreeSet<Element> = there.elements.keys().copied().collect();
        for (element, mark) in wanted {
            gone.remove(&element);
            if there.elements.get(&element) != Some(&mark) {
                lines.add(set, element, mark);
            }
        }
        gone.iter().for_each(|element| lines.remove(set, &element.to_string()));
        there.others.iter().for_each(|other| lines.remove(set, other));
    }
    change.sets = renewed + &lines.finish();
}

fn renew(out: &mut String, set: Set, family: Family, wanted: impl Iterator<Item = (Element, u32)>) {
    // A name of its own for each: with another's it would have another's type.
    let beside = format!("{}-NEW", set.name(family).replace("KUBE-", "SP-").chars().take(27).collect::<String>());
    line(out, format_args!("create {beside} {}", set.header(family)));
    line(out, format_args!("flush {beside}"));
    for (element, mark) in wanted {
        match mark {
            0 => line(out, format_args!("add {beside} {element}")),
            mark => line(out, format_args!("add {beside} {element} skbmark {mark:#x}")),
        }
    }
    line(out, format_args!("swap {beside} {}", set.name(family)));
    line(out, format_args!("destroy {beside}"));
}

fn repaired_rules(want: &Program, have: &Observed) -> String {
    let wrong = CHAINS.into_iter().filter(|(table, chain)| !have.has_rules_of(want.plan(), *table, chain));
    let mut lines = RuleLines::of(want, &wrong.collect::<Vec<_>>());
    for table in Table::ALL {
        for base in bases(table) {
            let wanted = text(want.family(), &rules(want.plan(), table, base));
            lines.base(table, have.put_right(table, base, &wanted, is_ours));
        }
        let is_wanted = |name: &str| CHAINS.iter().any(|(of, chain)| *of == table && *chain == name);
        have.ours(table).filter(|name| !is_wanted(name)).for_each(|name| lines.remove(table, name));
    }
    lines.finish()
}

/// What takes everything of this mode out of the kernel, but for the device. `keeps_shared`: chains stay
/// whose names the mode iptables has too, since it may serve now. Servers in `kept` stay without weight, with their
/// addresses: packets of their connections need both.
pub fn cleanup(have: &Observed, family: Family, keeps_shared: bool, kept: &BTreeSet<ServerKey>) -> Change {
    let mut rules = RuleLines::default();
    for table in Table::ALL {
        // One of a shared name is still this mode's if it looks into sets; that of the mode iptables does not.
        let looks = |name: &str| have.chain(table, name).is_some_and(|rules| rules.contains("-set KUBE-"));
        let goes = |name: &str| is_ours(name) && (!keeps_shared || is_of_this_mode(table, name) || looks(name));
        for base in ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"] {
            rules.base(table, have.put_right(table, base, "", goes));
        }
        have.ours(table).filter(|name| goes(name)).for_each(|name| rules.remove(table, name));
    }
    let mut last_sets = String::new();
    for set in have.sets.keys() {
        line(&mut last_sets, format_args!("destroy {}", set.name(family)));
    }
    let going = have.servers.keys().filter(|key| have.is_to_remove(key) && !kept.contains(key));
    let still = have.addresses_of(kept);
    let unbound = have.addresses.iter().flatten().filter(|address| !still.contains(address));
    let mut change = Change { rules: rules.finish(), last_sets, ..Change::default() };
    change.going = going.map(|key| Request::DeleteServer(*key)).collect();
    change.unbound = unbound.copied().collect();
    for key in kept {
        let destinations = have.servers.get(key).into_iter().flat_map(|server| &server.destinations);
        let weighty = destinations.filter(|(_, found)| found.weight > 0);
        change.coming.extend(weighty.map(|(at, _)| Request::SetWeight(*key, *at, 0)));
    }
    change
}

/// The servers of this program that have live connections: for a mode that follows this one.
pub fn busy(have: &Observed) -> BTreeSet<ServerKey> {
    let ours = have.servers.iter().filter(|(key, _)| have.is_to_remove(key));
    let busy = ours.filter(|(_, server)| server.destinations.values().any(|found| found.active > 0));
    busy.map(|(key, _)| *key).collect()
}
