//! Pure. Where in iptables a frontend stands: its rules in the chains that all share, and the chains that they lead to.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use signpost_core::object::Family;
use signpost_core::plan::FrontendKey;

use super::chain::{Chain, Table};
use super::change::text;
use super::names::is_ours;
use super::observed::{Observed, canonical, option, protocol_and_port, same_rules, words};
use super::port::Shared;
use super::program::Program;
use super::rule::{Action, Match, Rule, single};
use crate::locate::{End, Found, Location, Place};

/// The chains in which frontends have rules, in the order in which packets meet them.
const SHARED: [(Table, Chain); 6] = [
    (Table::Nat, Chain::Services),
    (Table::Nat, Chain::NodePorts),
    (Table::Filter, Chain::ProxyFirewall),
    (Table::Filter, Chain::ExternalServices),
    (Table::Filter, Chain::Services),
    (Table::Filter, Chain::NodePorts),
];

/// The rules and chains of some frontends of a program, and whether the kernel holds each.
pub fn locate(
    program: &Program,
    have: &Observed,
    keys: &BTreeSet<FrontendKey>,
) -> BTreeMap<FrontendKey, Vec<Location>> {
    let shared = SHARED.map(|(table, chain)| {
        let there = have.chain(table, &chain.name()).unwrap_or_default();
        (table, chain, there.lines().map(canonical).collect::<HashSet<_>>())
    });
    let locate_one = |key: &FrontendKey| {
        let layout = program.layout(program.port_of(key)?);
        let (rules, chains) = (layout.shared(), layout.chains());
        let mut locations = Vec::new();
        let mut next = Vec::new();
        for (table, chain, there) in &shared {
            for rule in rules_of(&rules, *table, chain).iter().filter(|rule| is_for(rule, key)) {
                locations.push(shared_rule(program.family(), *table, chain, rule, there));
                next.extend(jump(rule).map(|chain| (*table, chain.clone())));
            }
        }
        locations.extend(chains_behind(program.family(), have, &chains, next));
        Some((*key, locations))
    };
    keys.iter().filter_map(locate_one).collect()
}

fn rules_of<'a>(shared: &'a Shared, table: Table, chain: &Chain) -> &'a [Rule] {
    match (table, chain) {
        (Table::Nat, Chain::Services) => &shared.services,
        (Table::Nat, Chain::NodePorts) => &shared.node_ports,
        (Table::Filter, Chain::ProxyFirewall) => &shared.firewall,
        (Table::Filter, Chain::ExternalServices) => &shared.refused_externals,
        (Table::Filter, Chain::Services) => &shared.refused_services,
        (Table::Filter, Chain::NodePorts) => &shared.refused_node_ports,
        _ => &[],
    }
}

fn shared_rule(family: Family, table: Table, chain: &Chain, rule: &Rule, there: &HashSet<Vec<String>>) -> Location {
    let text = text(family, std::slice::from_ref(rule));
    let text = text.trim_end();
    let (matches, target) = text.rsplit_once(" -j ").unwrap_or((text, ""));
    Location {
        kind: Place::Rule,
        name: format!("{} {}", table.name(), chain.name()),
        entry: matches.to_owned(),
        leads_to: target.to_owned(),
        held: there.contains(&canonical(text)),
    }
}

/// The chains that these lead to, those first that a packet meets first, each once.
fn chains_behind(
    family: Family,
    have: &Observed,
    chains: &BTreeMap<(Table, Chain), Vec<Rule>>,
    mut next: Vec<(Table, Chain)>,
) -> Vec<Location> {
    let mut locations = Vec::new();
    let mut seen = BTreeSet::new();
    while !next.is_empty() {
        let mut further = Vec::new();
        for at in next {
            let Some(rules) = chains.get(&at).filter(|_| seen.insert(at.clone())) else { continue };
            let name = at.1.name();
            let to = rules.iter().find_map(|rule| match rule.action {
                Action::Dnat(to) => Some(to.to_string()),
                _ => None,
            });
            let there = have.chain(at.0, &name);
            locations.push(Location {
                kind: Place::Chain,
                name: format!("{} {name}", at.0.name()),
                entry: String::new(),
                leads_to: to.unwrap_or_default(),
                held: there.is_some_and(|there| same_rules(there, &text(family, rules))),
            });
            further.extend(rules.iter().filter_map(jump).map(|chain| (at.0, chain.clone())));
        }
        next = further;
    }
    locations
}

fn jump(rule: &Rule) -> Option<&Chain> {
    match &rule.action {
        Action::Jump(chain) => Some(chain),
        _ => None,
    }
}

fn is_for(rule: &Rule, key: &FrontendKey) -> bool {
    match *key {
        FrontendKey::Address { address, protocol, port } => {
            rule.matches.contains(&Match::Destination(single(address)))
                && rule.matches.contains(&Match::Port(protocol, port.get()))
        }
        FrontendKey::NodePort { protocol, port } => rule.matches.contains(&Match::Port(protocol, port.get())),
    }
}

/// What the chains say by themselves.
pub fn found(have: &Observed) -> BTreeMap<FrontendKey, Found> {
    let mut all = BTreeMap::new();
    let mut reached = HashMap::new();
    for (table, chain) in SHARED {
        for rule in have.chain(table, &chain.name()).unwrap_or_default().lines() {
            let Some((key, target)) = frontend(&chain, rule) else { continue };
            let found: &mut Found = all.entry(key).or_insert_with(|| Found {
                service_port: title(rule),
                backends: BTreeMap::new(),
                ends: BTreeSet::new(),
                locations: Vec::new(),
            });
            match target {
                "DROP" => found.ends.extend([End::Drop]),
                "REJECT" => found.ends.extend([End::Reject]),
                chain if table == Table::Nat && is_ours(chain) => {
                    let backends = reached.entry(chain.to_owned()).or_insert_with(|| backends(have, chain));
                    found.backends.extend(backends.iter().map(|backend| (*backend, 1)));
                }
                _ => {}
            }
            let (matches, to) = rule.rsplit_once(" -j ").unwrap_or((rule, ""));
            found.locations.push(Location {
                kind: Place::Rule,
                name: format!("{} {}", table.name(), chain.name()),
                entry: matches.to_owned(),
                leads_to: to.to_owned(),
                held: true,
            });
        }
    }
    all
}

/// The frontend that a rule of a shared chain is for, and its target.
fn frontend<'a>(chain: &Chain, rule: &'a str) -> Option<(FrontendKey, &'a str)> {
    let (protocol, port) = protocol_and_port(rule)?;
    let key = match (chain, option(rule, "-d")) {
        (Chain::NodePorts, _) => FrontendKey::NodePort { protocol, port },
        (_, Some(to)) => FrontendKey::Address { address: address(to)?, protocol, port },
        (_, None) => return None,
    };
    Some((key, option(rule, "-j")?))
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpNet>().map(|range| range.addr()).or_else(|_| text.parse()).ok()
}

/// A comment begins with the Service port.
fn title(rule: &str) -> String {
    let mut words = words(rule).into_iter().skip_while(|word| word != "--comment");
    words.nth(1).and_then(|comment| Some(comment.split(' ').next()?.to_owned())).unwrap_or_default()
}

/// All backends that a chain of nat can lead to.
fn backends(have: &Observed, chain: &str) -> BTreeSet<SocketAddr> {
    let mut backends = BTreeSet::new();
    let (mut next, mut seen) = (vec![chain.to_owned()], HashSet::new());
    while let Some(name) = next.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        for rule in have.chain(Table::Nat, &name).unwrap_or_default().lines() {
            match option(rule, "-j") {
                Some("DNAT") => {
                    backends.extend(option(rule, "--to-destination").and_then(|to| to.parse::<SocketAddr>().ok()))
                }
                Some(target) if is_ours(target) => next.push(target.to_owned()),
                _ => {}
            }
        }
    }
    backends
}
