//! Pure. Where in the maps a frontend stands, in front of where the rules beneath have it.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::Family;
use signpost_core::plan::FrontendKey;

use super::layout::{FrontendValue, Key, RouteValue, Value};
use super::program::{Program, sets_of, slots};
use super::repair::Observed;
use crate::locate::{End, Found, Location, Place};

/// The entries of some frontends of a program, and whether the kernel holds each.
pub fn locate(
    program: &Program,
    have: &Observed,
    keys: &BTreeSet<FrontendKey>,
) -> BTreeMap<FrontendKey, Vec<Location>> {
    let entries = keys.iter().filter_map(|key| Some((*key, program.frontends.get(key)?)));
    let locations = entries.map(|(key, value)| {
        let sets = sets_of(value).into_iter().filter_map(|id| Some((id, program.sets.get(&id)?)));
        let slots = sets.flat_map(|(id, set)| slots(id, set));
        let frontend = (Key::Frontend(program.family, key), Value::Frontend(*value));
        let all = std::iter::once(frontend).chain(slots);
        (
            key,
            all.map(|(key, value)| {
                let found = have.entries.get(&key) == Some(&value);
                location(key, value, found)
            })
            .collect(),
        )
    });
    locations.collect()
}

/// What the maps say by themselves. They do not know the names of Services.
pub fn found(have: &Observed) -> BTreeMap<FrontendKey, Found> {
    let frontends = have.entries.iter().filter_map(|(key, value)| match (key, value) {
        (Key::Frontend(family, key), Value::Frontend(value)) => Some((*key, frontend(*family, have, *key, value))),
        _ => None,
    });
    frontends.collect()
}

fn frontend(family: Family, have: &Observed, key: FrontendKey, value: &FrontendValue) -> Found {
    let mut found = Found {
        service_port: String::new(),
        backends: BTreeMap::new(),
        ends: value.routes().into_iter().filter_map(end).collect(),
        locations: vec![location(Key::Frontend(family, key), Value::Frontend(*value), true)],
    };
    for id in sets_of(value) {
        for (key, value) in have.entries.range(Key::Slot(id, 0)..=Key::Slot(id, u32::MAX)) {
            if let Value::Backend(to) = value {
                found.backends.insert(*to, 1);
            }
            found.locations.push(location(*key, value.clone(), true));
        }
    }
    found
}

fn end(route: RouteValue) -> Option<End> {
    match route {
        RouteValue::Reject => Some(End::Reject),
        RouteValue::Drop => Some(End::Drop),
        RouteValue::Backends { .. } => None,
    }
}

fn location(key: Key, value: Value, held: bool) -> Location {
    let entry = match key {
        Key::Frontend(_, key) => key.to_string(),
        Key::Slot(set, index) | Key::Chunk(set, index) => format!("{:016x} {index}", set.0),
        Key::NodePortIp(address) | Key::NodeIp(address) | Key::LocalEndpoint(address) => address.to_string(),
        Key::PodNetwork(range) => range.to_string(),
        Key::Source(guard, range) => format!("{:016x} {range}", guard.0),
        Key::Node(family) => family.to_string(),
    };
    let leads_to = match value {
        Value::Frontend(value) => value.routes().map(route).join(", "),
        Value::Backend(to) => to.to_string(),
        Value::Member | Value::Places(_) => String::new(),
        Value::Node(node) => if node.pods_known { "pods known" } else { "pods unknown" }.to_owned(),
    };
    Location { kind: Place::Map, name: format!("bpf {}", key.table().name()), entry, leads_to, held }
}

/// Of a pod, of the node, of others, in this order.
fn route(route: RouteValue) -> String {
    match route {
        RouteValue::Reject => "reject".to_owned(),
        RouteValue::Drop => "drop".to_owned(),
        RouteValue::Backends { set, count, masquerade, .. } => {
            format!("{:016x} ({count}{})", set.0, if masquerade { ", masquerade" } else { "" })
        }
    }
}
