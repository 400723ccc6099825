//! Pure. What differs between the rules that a node should have and those that its kernel holds: what a repair would
//! change, in words, each with the Service port that it serves.

use std::collections::{BTreeMap, BTreeSet};

use signpost_core::plan::FrontendKey;
use signpost_datapath::iptables::chain::Table;
use signpost_datapath::ipvs::message::Request;
use signpost_datapath::ipvs::server::ServerKey;
use signpost_datapath::{iptables, ipvs, nftables};

use crate::snapshot::{ComparedWith, Difference, DifferenceKind, KernelState};

/// So many are kept; a kernel that lacks everything lacks ten thousand elements for one reason.
const MOST: usize = 100;

/// What a repair of nftables would change.
pub fn nftables(program: &nftables::Program, change: &nftables::Change, with: ComparedWith) -> KernelState {
    let table = format!("{} {}", nftables::layout::ip(program.family), nftables::layout::TABLE);
    let mut found = Vec::new();
    let mut tell = |kind, place: String, what: String, frontend: Option<FrontendKey>| {
        let entry = frontend.and_then(|key| program.frontends.get(&key));
        found.push(Difference {
            kind,
            place,
            what,
            frontend: frontend.map(|key| key.to_string()),
            service_port: entry.map(|entry| entry.service_port.to_string()),
        });
    };
    if let Some(load) = &change.load {
        let (kind, what) = if load.replaces {
            (DifferenceKind::Changed, "the table has another layout than this version's")
        } else {
            (DifferenceKind::Missing, "the table is not there")
        };
        tell(kind, format!("table {table}"), what.to_owned(), None);
    }
    for chain in &change.chains.added {
        tell(DifferenceKind::Missing, format!("table {table}"), format!("chain {chain}"), None);
    }
    for chain in &change.chains.rewritten {
        tell(DifferenceKind::Changed, format!("table {table}"), format!("rules of chain {chain}"), None);
    }
    for chain in &change.chains.removed {
        tell(DifferenceKind::Extra, format!("table {table}"), format!("chain {}", plain(chain)), None);
    }
    for set in &change.emptied {
        tell(
            DifferenceKind::Extra,
            format!("{} {set}", sort(*set)),
            "elements of a form that is not ours".to_owned(),
            None,
        );
    }
    for (set, key) in &change.removed {
        let kind =
            if change.added.contains_key(&(*set, *key)) { DifferenceKind::Changed } else { DifferenceKind::Extra };
        let (what, frontend) = element(key);
        tell(kind, format!("{} {set}", sort(*set)), what, frontend);
    }
    for (set, key) in change.added.keys().filter(|key| !change.removed.contains(key)) {
        // An emptied set is told as such.
        if !change.emptied.contains(set) {
            let (what, frontend) = element(key);
            tell(DifferenceKind::Missing, format!("{} {set}", sort(*set)), what, frontend);
        }
    }
    state(found, with)
}

fn sort(set: nftables::layout::Set) -> &'static str {
    if set.is_map() { "map" } else { "set" }
}

fn element(key: &nftables::element::Key) -> (String, Option<FrontendKey>) {
    use nftables::element::Key;
    match key {
        Key::Address(address) | Key::Loop(address) => (address.to_string(), None),
        Key::Network(range) => (range.to_string(), None),
        Key::Frontend(frontend) => (frontend.to_string(), Some(*frontend)),
        Key::Endpoint(frontend, index) => (format!("endpoint {index} of {frontend}"), Some(*frontend)),
        Key::Source(frontend, range) => (format!("{range} of {frontend}"), Some(*frontend)),
    }
}

/// What a repair of iptables would change.
pub fn iptables(
    program: &iptables::Program,
    change: &iptables::Change,
    have: &iptables::Observed,
    with: ComparedWith,
) -> KernelState {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for port in program.ports() {
        for (_, chain) in program.layout(port).chains().into_keys() {
            owners.insert(chain.name(), port.name.to_string());
        }
    }
    let mut found = Vec::new();
    for table in Table::ALL {
        let Some(batch) = change.table(table) else { continue };
        let mut tell = |kind, what: String, chain: &str| {
            found.push(Difference {
                kind,
                place: format!("table {}", table.name()),
                what,
                frontend: None,
                service_port: owners.get(chain).cloned(),
            });
        };
        for chain in batch.set.keys() {
            let kind =
                if have.chain(table, chain).is_some() { DifferenceKind::Changed } else { DifferenceKind::Missing };
            tell(kind, format!("chain {chain}"), chain);
        }
        for chain in &batch.removed {
            tell(DifferenceKind::Extra, format!("chain {}", plain(chain)), chain);
        }
        let bases: BTreeSet<&str> = batch.base.iter().filter_map(|line| line.split(' ').nth(1)).collect();
        for base in bases {
            tell(DifferenceKind::Changed, format!("jumps of {base} to our chains"), base);
        }
    }
    state(found, with)
}

/// What a repair of IPVS would change.
pub fn ipvs(program: &ipvs::Program, change: &ipvs::Change, with: ComparedWith) -> KernelState {
    let owner = |key: &ServerKey| {
        let ServerKey::At(place) = key else { return None };
        let at = FrontendKey::Address { address: place.address, protocol: place.protocol, port: place.port };
        let on_nodes = FrontendKey::NodePort { protocol: place.protocol, port: place.port };
        let frontends = &program.plan().frontends;
        frontends.get_key_value(&at).or_else(|| frontends.get_key_value(&on_nodes))
    };
    let mut found = Vec::new();
    let mut tell = |kind, place: &str, what: String, key: Option<&ServerKey>| {
        let frontend = key.and_then(owner);
        found.push(Difference {
            kind,
            place: place.to_owned(),
            what,
            frontend: frontend.map(|(key, _)| key.to_string()),
            service_port: frontend.map(|(_, frontend)| frontend.service_port.to_string()),
        });
    };
    for request in change.coming.iter().chain(&change.going) {
        let Some((kind, key, what)) = request_in_words(request) else { continue };
        tell(kind, "virtual servers", what, Some(&key));
    }
    for (key, at) in &change.draining {
        let what = format!("destination {at} of {}", ipvs::locate::name(key));
        tell(DifferenceKind::Extra, "virtual servers", what, Some(key));
    }
    for (kind, addresses) in [(DifferenceKind::Missing, &change.bound), (DifferenceKind::Extra, &change.unbound)] {
        addresses.iter().for_each(|address| tell(kind, "device kube-ipvs0", address.to_string(), None));
    }
    for line in change.sets.lines() {
        let mut words = line.splitn(3, ' ');
        let (verb, name) = (words.next().unwrap_or_default(), plain(words.next().unwrap_or_default()));
        let kind = if verb == "del" { DifferenceKind::Extra } else { DifferenceKind::Missing };
        let what = if verb == "create" { "the set" } else { words.next().unwrap_or_default() };
        tell(kind, &format!("ipset {name}"), what.to_owned(), None);
    }
    let mut table = "";
    for line in change.rules.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some((chain, _)) = line.strip_prefix(':').and_then(|line| line.split_once(' ')) {
            tell(DifferenceKind::Changed, &format!("table {table}"), format!("chain {}", plain(chain)), None);
        }
    }
    for (path, _) in &change.settings {
        tell(DifferenceKind::Changed, "sysctl", path.replace('/', "."), None);
    }
    state(found, with)
}

fn request_in_words(request: &Request) -> Option<(DifferenceKind, ServerKey, String)> {
    let name = ipvs::locate::name;
    Some(match request {
        Request::NewServer(key, _) => (DifferenceKind::Missing, *key, name(key)),
        Request::SetServer(key, _) => {
            (DifferenceKind::Changed, *key, format!("scheduler or affinity of {}", name(key)))
        }
        Request::DeleteServer(key) => (DifferenceKind::Extra, *key, name(key)),
        Request::NewDestination(key, at) => {
            (DifferenceKind::Missing, *key, format!("destination {at} of {}", name(key)))
        }
        Request::SetWeight(key, at, _) => (DifferenceKind::Changed, *key, format!("weight of {at} of {}", name(key))),
        Request::DeleteDestination(key, at) => {
            (DifferenceKind::Extra, *key, format!("destination {at} of {}", name(key)))
        }
        Request::SetTimeouts { .. } => return None,
    })
}

fn state(mut differences: Vec<Difference>, compared_with: ComparedWith) -> KernelState {
    differences.sort();
    let more = differences.len().saturating_sub(MOST);
    differences.truncate(MOST);
    KernelState { compared_with, differences, more }
}

/// A kernel takes any bytes as names.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).take(64).collect()
}

#[cfg(test)]
mod tests {
    use signpost_core::object::Family;
    use signpost_datapath::nftables::Observed;
    use signpost_datapath::nftables::observed::Table as ObservedTable;
    use signpost_datapath::nftables::repair::repair;

    use super::*;

    #[test]
    fn a_table_that_is_not_there_is_one_difference() {
        let program = nftables::Program::empty(Family::Ipv4);
        let change = repair(&program, &Observed { table: None });
        let state = nftables(&program, &change, ComparedWith::Program);
        assert_eq!(state.differences.len(), 1);
        assert_eq!(state.differences[0].kind, DifferenceKind::Missing);
        assert_eq!(state.differences[0].place, "table ip kube-proxy");
        let other = Observed { table: Some(ObservedTable::default()) };
        let state = nftables(&program, &repair(&program, &other), ComparedWith::Program);
        assert_eq!(state.differences[0].kind, DifferenceKind::Changed);
    }

    #[test]
    fn chains_that_lack_in_iptables_are_named() {
        let plan = signpost_core::plan::NodePlan::empty(
            Family::Ipv4,
            signpost_core::plan::NodeFacts {
                cluster_cidrs: Vec::new(),
                node_addresses: BTreeSet::new(),
                node_port_addresses: BTreeSet::new(),
                service_cidrs: Vec::new(),
            },
        );
        let program = iptables::Program::of(&plan);
        let have = iptables::Observed::of("*nat\n:KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]\nCOMMIT\n");
        let state = iptables(&program, &iptables::change::repair(&program, &have), &have, ComparedWith::Program);
        let told: Vec<String> = state.differences.iter().map(|one| format!("{:?} {}", one.kind, one.what)).collect();
        assert!(told.contains(&"Extra chain KUBE-SVC-CDGGSHYLG3RE2FKL".to_owned()), "{told:?}");
        assert!(told.contains(&"Missing chain KUBE-SERVICES".to_owned()), "{told:?}");
        assert!(told.contains(&"Changed jumps of PREROUTING to our chains".to_owned()), "{told:?}");
    }
}
