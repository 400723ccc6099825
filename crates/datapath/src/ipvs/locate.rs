//! Pure. Where in IPVS a frontend stands: its elements of sets and its virtual servers.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::object::Family;
use signpost_core::plan::FrontendKey;

use super::observed::Observed;
use super::program::Program;
use super::server::{Place, Server, ServerKey};
use super::set::{Element, Set};
use crate::locate::{End, Found, Location, Place as Sort};

/// Elements and servers of some frontends of a program, and whether the kernel holds each.
pub fn locate(
    program: &Program,
    have: &Observed,
    keys: &BTreeSet<FrontendKey>,
) -> BTreeMap<FrontendKey, Vec<Location>> {
    let family = program.family();
    let locate_one = |key: &FrontendKey| {
        let (elements, servers) = program.of_frontend(key)?;
        let elements = elements.iter().map(|(set, element, mark)| {
            let there = have.sets.get(set).and_then(|found| found.elements.get(element));
            element_location(family, *set, element, *mark, there == Some(mark))
        });
        let servers = servers.iter().map(|(key, server)| server_location(key, server, have));
        Some((*key, elements.chain(servers).collect()))
    };
    keys.iter().filter_map(locate_one).collect()
}

fn element_location(family: Family, set: Set, element: &Element, mark: u32, held: bool) -> Location {
    Location {
        kind: Sort::Map,
        name: set.name(family),
        entry: element.to_string(),
        leads_to: if mark == 0 { String::new() } else { format!("mark {mark:#x}") },
        held,
    }
}

fn server_location(key: &ServerKey, server: &Server, have: &Observed) -> Location {
    let (scheduler, flags, timeout_s) = server.settings.parts();
    let held = have.servers.get(key).is_some_and(|found| {
        let serving = found.destinations.iter().filter(|(_, one)| one.weight > 0).map(|(at, _)| at);
        (found.scheduler.as_str(), found.flags, found.timeout_s) == (scheduler.name(), flags, timeout_s)
            && serving.eq(&server.destinations)
    });
    let to: Vec<String> = server.destinations.iter().map(ToString::to_string).collect();
    Location { kind: Sort::VirtualServer, name: name(key), entry: scheduler.to_string(), leads_to: to.join(", "), held }
}

/// As `ipvsadm -Ln` begins a server's line.
pub fn name(key: &ServerKey) -> String {
    match key {
        ServerKey::At(place) => format!("{} {}", place.protocol.to_string().to_uppercase(), place.socket()),
        ServerKey::Marked(mark) => format!("FWM {mark}"),
    }
}

/// What servers and sets say by themselves. They name no Services.
pub fn found(family: Family, have: &Observed) -> BTreeMap<FrontendKey, Found> {
    let mut all: BTreeMap<FrontendKey, Found> = BTreeMap::new();
    for (set, found_set) in &have.sets {
        let end = match set {
            Set::NoEndpoints => Some(End::Reject),
            Set::NoLocalEndpoints => Some(End::Drop),
            _ => None,
        };
        for (element, mark) in &found_set.elements {
            let (Element::Place(place), true) = (element, end.is_some() || *mark != 0) else { continue };
            let Some(found) = at(&mut all, have, place) else { continue };
            found.ends.extend(end);
            found.locations.push(element_location(family, *set, element, *mark, true));
            if let Some(server) = have.servers.get(&ServerKey::Marked(*mark)) {
                found.backends.extend(server.destinations.iter().map(|(at, one)| (*at, one.weight)));
            }
        }
    }
    for (key, server) in &have.servers {
        let ServerKey::At(place) = key else { continue };
        let Some(found) = at(&mut all, have, place) else { continue };
        found.backends.extend(server.destinations.iter().map(|(at, one)| (*at, one.weight)));
        found.locations.push(Location {
            kind: Sort::VirtualServer,
            name: name(key),
            entry: server.scheduler.clone(),
            leads_to: String::new(),
            held: true,
        });
    }
    all
}

fn at<'a>(all: &'a mut BTreeMap<FrontendKey, Found>, have: &Observed, place: &Place) -> Option<&'a mut Found> {
    let new = || Found {
        service_port: String::new(),
        backends: BTreeMap::new(),
        ends: BTreeSet::new(),
        locations: Vec::new(),
    };
    Some(all.entry(key_of(have, place)?).or_insert_with(new))
}

/// Which frontend a place is, if it is a Service's.
fn key_of(have: &Observed, place: &Place) -> Option<FrontendKey> {
    let Place { address, protocol, port } = *place;
    let node_ports = have.sets.get(&Set::NodePort(protocol));
    let is_node_port = node_ports.is_some_and(|found| {
        found.elements.contains_key(&Element::Port(port)) || found.elements.contains_key(&Element::Place(*place))
    });
    if have.addresses.as_ref().is_some_and(|all| all.contains(&address)) {
        Some(FrontendKey::Address { address, protocol, port })
    } else if is_node_port {
        Some(FrontendKey::NodePort { protocol, port })
    } else {
        // An external address that is the node's own.
        let sets = [Set::ExternalIp, Set::ExternalIpLocal, Set::LoadBalancer];
        let mut found = sets.iter().filter_map(|set| have.sets.get(set));
        let is_there = found.any(|found| found.elements.contains_key(&Element::Place(*place)));
        is_there.then_some(FrontendKey::Address { address, protocol, port })
    }
}
