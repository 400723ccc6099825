//! Pure. Where in the table a frontend stands: elements of maps, and the chains that they lead to.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::Family;
use signpost_core::plan::FrontendKey;

use super::chain::Chain;
use super::element::{Data, Key, Value};
use super::layout::{Set, TABLE, ip};
use super::observed::{Observed, Table};
use super::program::Program;
use super::rule::rules;
use crate::locate::{End, Found, Location, Place};

/// The maps in which a packet's frontend is looked up.
const FRONTENDS: [Set; 4] = [Set::ServiceIps, Set::ServiceNodeports, Set::NoEndpointServices, Set::NoEndpointNodeports];

/// The elements and chains of some frontends of a program, and whether the kernel holds each.
pub fn locate(
    program: &Program,
    have: &Observed,
    keys: &BTreeSet<FrontendKey>,
) -> BTreeMap<FrontendKey, Vec<Location>> {
    let entries = keys.iter().filter_map(|key| Some((*key, program.frontends.get(key)?)));
    let locations = entries.map(|(key, entry)| {
        let elements = entry.elements(&key).map(|(set, name, value)| element(program.family, have, set, name, &value));
        let chains = entry.chains(&key).into_iter().map(|chain| self::chain(program, have, chain));
        // Endpoints come last in the kernel's way and are many: chains stand before them.
        let (first, last): (Vec<Location>, Vec<Location>) = elements.partition(|at| !at.name.contains("-endpoints-"));
        (key, first.into_iter().chain(chains).chain(last).collect())
    });
    locations.collect()
}

fn element(family: Family, have: &Observed, set: Set, key: Key, value: &Value) -> Location {
    let found = have.table.as_ref().and_then(|table| table.sets.get(&set));
    let held = found.is_some_and(|elements| elements.known.get(&key) == Some(value));
    location(family, set, key, value.data, held)
}

fn location(family: Family, set: Set, key: Key, data: Data, held: bool) -> Location {
    let leads_to = match data {
        Data::Member => String::new(),
        Data::Goto(chain) | Data::Jump(chain) => chain.to_string(),
        Data::Drop => "drop".to_owned(),
        Data::To(to) => to.to_string(),
        Data::Foreign => "something that is not signpost's".to_owned(),
    };
    let name = format!("{} {TABLE} {set}", ip(family));
    Location { kind: Place::Map, name, entry: key.to_string(), leads_to, held }
}

fn chain(program: &Program, have: &Observed, chain: Chain) -> Location {
    let family = program.family;
    let found = have.table.as_ref().and_then(|table| table.chains.get(&chain.to_string()));
    let held = found.is_some_and(|found| found.rules.iter().eq(&comments(program, chain)));
    let name = format!("{} {TABLE} {chain}", ip(family));
    Location { kind: Place::Chain, name, entry: String::new(), leads_to: String::new(), held }
}

fn comments(program: &Program, chain: Chain) -> Vec<String> {
    rules(chain, &program.holds).iter().map(|rule| rule.comment(program.family)).collect()
}

/// What the table says by itself.
pub fn found(family: Family, have: &Observed) -> BTreeMap<FrontendKey, Found> {
    let Some(table) = &have.table else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for set in FRONTENDS {
        for (name, value) in table.sets.get(&set).into_iter().flat_map(|elements| &elements.known) {
            if let Key::Frontend(key) = name {
                all.insert(*key, frontend(family, table, set, *key, value));
            }
        }
    }
    all
}

fn frontend(family: Family, table: &Table, set: Set, key: FrontendKey, value: &Value) -> Found {
    let endpoints = super::chain::At::of(&key).endpoints();
    let endpoints_of = Key::Endpoint(key, 0)..=Key::Endpoint(key, u32::MAX);
    let elements =
        table.sets.get(&endpoints).into_iter().flat_map(|elements| elements.known.range(endpoints_of.clone()));
    let mut found = Found {
        service_port: value.comment.as_deref().unwrap_or_default().to_owned(),
        backends: BTreeMap::new(),
        ends: ends(value.data),
        locations: vec![location(family, set, Key::Frontend(key), value.data, true)],
    };
    for (name, value) in elements {
        if let Data::To(to) = value.data {
            found.backends.insert(to, 1);
        }
        found.locations.push(location(family, endpoints, *name, value.data, true));
    }
    found
}

fn ends(data: Data) -> BTreeSet<End> {
    use super::chain::Goal;
    let of = |goal: Goal| match goal {
        Goal::Reject => Some(End::Reject),
        Goal::Drop => Some(End::Drop),
        Goal::Spread(_) => None,
    };
    match data {
        Data::Drop => BTreeSet::from([End::Drop]),
        Data::Goto(Chain::RejectChain) => BTreeSet::from([End::Reject]),
        Data::Goto(Chain::BySource(_, goals)) => goals.all().into_iter().filter_map(of).collect(),
        _ => BTreeSet::new(),
    }
}
