//! Pure. What the kernel holds: virtual servers, addresses, sets and rules, read from what it and its tools say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use signpost_core::object::Family;

use super::message::ObservedServer;
use super::rule::{CLUSTER_IPS, Table, is_ours, rules, text};
use super::server::{Place, ServerKey};
use super::set::{Element, Set, element};
use crate::iptables::observed::same_rules;
use signpost_core::plan::NodePlan;

/// All that the mode looks at, of one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The virtual servers, whoever's.
    pub servers: BTreeMap<ServerKey, ObservedServer>,
    /// Addresses of `kube-ipvs0`; `None`: there is no such device.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// The sets of the mode's names.
    pub sets: BTreeMap<Set, ObservedSet>,
    /// The rules of every chain of ours and of the kernel's own, a line each.
    pub rules: BTreeMap<(Table, String), String>,
    /// Sysctls that are not as they should be, with what they should be.
    pub settings: Vec<(String, String)>,
    /// Destinations without weight that have had their time.
    pub overdue: BTreeSet<(ServerKey, SocketAddr)>,
}

/// A set as `ipset save` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedSet {
    /// How it was made.
    pub header: String,
    /// Its elements with their marks.
    pub elements: BTreeMap<Element, u32>,
    /// Elements that this mode never makes, as they are written.
    pub others: Vec<String>,
}

const BASES: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

impl Observed {
    /// Takes in what `ipset save` prints. Other sets are passed over.
    pub fn read_sets(&mut self, saved: &str, family: Family) {
        for line in saved.lines() {
            let mut words = line.splitn(3, ' ');
            let (verb, name, rest) = (words.next(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let Some(set) = Set::named(name, family) else { continue };
            let found = self.sets.entry(set).or_default();
            match verb {
                Some("create") => found.header = rest.to_owned(),
                Some("add") => {
                    let mut words = rest.split(' ');
                    let value = words.next().unwrap_or_default();
                    let mark = words.find(|word| *word == "skbmark").and_then(|_| words.next()).and_then(mark);
                    match element(set, value) {
                        Some(element) => {
                            found.elements.insert(element, mark.unwrap_or_default());
                        }
                        None => found.others.push(value.to_owned()),
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes in what `iptables-save -t TABLE` prints. Others' chains are passed over.
    pub fn read_rules(&mut self, table: Table, saved: &str) {
        for line in saved.lines() {
            if let Some((name, _)) = line.strip_prefix(':').and_then(|chain| chain.split_once(' ')) {
                self.chain_mut(table, name);
            } else if let Some((name, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
                && let Some(rules) = self.chain_mut(table, name)
            {
                rules.push_str(rule);
                rules.push('\n');
            }
        }
    }

    fn chain_mut(&mut self, table: Table, name: &str) -> Option<&mut String> {
        let counts = is_ours(name) || BASES.contains(&name);
        counts.then(|| self.rules.entry((table, name.to_owned())).or_default())
    }

    /// The rules of a chain; `None`: there is no such chain.
    pub fn chain(&self, table: Table, name: &str) -> Option<&str> {
        self.rules.get(&(table, name.to_owned())).map(String::as_str)
    }

    /// Names of chains of a Service proxy.
    pub fn ours(&self, table: Table) -> impl Iterator<Item = &str> {
        let of_table = self.rules.keys().filter(move |(of, _)| *of == table);
        of_table.map(|(_, name)| name.as_str()).filter(|name| is_ours(name))
    }

    /// Whether this program's rules are there, of this mode or of the mode iptables, or servers of its own: those come first.
    pub fn is_own(&self) -> bool {
        self.chain(Table::Filter, CLUSTER_IPS).is_some() || self.servers.values().any(ObservedServer::is_own)
    }

    /// Whether a Service proxy that is not this program left something. The device alone says nothing: the families share it.
    pub fn is_foreign(&self) -> bool {
        let has_addresses = self.addresses.as_ref().is_some_and(|all| !all.is_empty());
        (has_addresses || self.chain(Table::Nat, "KUBE-SERVICES").is_some()) && !self.is_own()
    }

    /// Whether a server that is not wanted is this program's to remove: it is at an address of the device, in one of the
    /// sets, or found by a mark as this program makes them.
    pub fn is_to_remove(&self, key: &ServerKey) -> bool {
        match key {
            ServerKey::Marked(mark) => mark & super::layout::SERVER_MARK_MASK == super::layout::SERVER_MARK,
            ServerKey::At(place) => {
                let at_device = self.addresses.as_ref().is_some_and(|all| all.contains(&place.address));
                at_device || self.is_in_a_set(place) || self.servers.get(key).is_some_and(ObservedServer::is_own)
            }
        }
    }

    /// The addresses that packets to these servers go to. Those of a server that is found by a mark are not known once the
    /// sets are gone: then all there are.
    pub fn addresses_of(&self, servers: &BTreeSet<ServerKey>) -> BTreeSet<IpAddr> {
        let mut found = BTreeSet::new();
        for key in servers {
            match key {
                ServerKey::At(place) => {
                    found.insert(place.address);
                }
                ServerKey::Marked(mark) => {
                    let elements = self.sets.values().flat_map(|set| &set.elements);
                    let marked = elements.filter_map(|(element, of)| match element {
                        Element::Place(place) if of == mark => Some(place.address),
                        _ => None,
                    });
                    let before = found.len();
                    found.extend(marked);
                    if found.len() == before {
                        found.extend(self.addresses.iter().flatten());
                    }
                }
            }
        }
        found
    }

    fn is_in_a_set(&self, place: &Place) -> bool {
        let elements = [Element::Place(*place), Element::Port(place.port)];
        let fits = |set: &Set| match set {
            Set::NodePort(protocol) | Set::NodePortLocal(protocol) => *protocol == place.protocol,
            _ => true,
        };
        let sets = self.sets.iter().filter(|(set, _)| fits(set)).map(|(_, found)| found);
        let mut sets = sets.filter(|found| elements.iter().any(|element| found.elements.contains_key(element)));
        sets.next().is_some()
    }

    /// The lines that make the rules of ours in a chain of the kernel's own what is wanted: all together, in order, each
    /// once. None if they are. Rules of others keep their place; those of ours come before them.
    pub fn put_right(&self, table: Table, base: &str, wanted: &str, is_one: impl Fn(&str) -> bool) -> Vec<String> {
        let there = self.chain(table, base).unwrap_or_default();
        let ours: Vec<&str> = there.lines().filter(|rule| target(rule).is_some_and(&is_one)).collect();
        if same_rules(&ours.join("\n"), wanted.trim_end()) {
            return Vec::new();
        }
        let wanted = wanted.lines().rev();
        let deleted = ours.into_iter().map(|rule| format!("-D {base} {rule}"));
        deleted.chain(wanted.map(|rule| format!("-I {base} 1 {rule}"))).collect()
    }

    /// Whether a chain of ours has the rules that a plan gives it.
    pub fn has_rules_of(&self, plan: &NodePlan, table: Table, chain: &str) -> bool {
        let wanted = text(plan.family, &rules(plan, table, chain));
        self.chain(table, chain).is_some_and(|there| same_rules(there, &wanted))
    }

    /// Where UDP servers were.
    pub fn udp_frontends(&self) -> Vec<SocketAddr> {
        let places = self.servers.keys().filter_map(|key| match key {
            ServerKey::At(place) if self.is_to_remove(key) => Some(place),
            _ => None,
        });
        let udp = places.filter(|place| place.protocol == signpost_core::object::Protocol::Udp);
        udp.map(Place::socket).collect()
    }
}

fn mark(text: &str) -> Option<u32> {
    let value = text.split('/').next()?;
    u32::from_str_radix(value.strip_prefix("0x").unwrap_or(value), 16).ok()
}

/// The chain that a rule jumps to.
fn target(rule: &str) -> Option<&str> {
    rule.rsplit_once("-j ").and_then(|(_, target)| target.split(' ').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_ipset_saves_them() {
        let mut observed = Observed::default();
        observed.read_sets(
            "create KUBE-FROM-POD hash:ip,port family inet hashsize 1024 maxelem 1048576 skbinfo bucketsize 12\n\
             add KUBE-FROM-POD 203.0.113.1,tcp:80 skbmark 0x49001234\n\
             create KUBE-CLUSTER-IP hash:ip,port family inet\nadd KUBE-CLUSTER-IP 10.96.0.1,icmp:0/0\n\
             create theirs hash:ip\nadd theirs 10.0.0.1\n",
            Family::Ipv4,
        );
        assert_eq!(observed.sets.len(), 2);
        let marked = &observed.sets[&Set::FromPod];
        assert_eq!(marked.elements.values().collect::<Vec<_>>(), [&0x4900_1234]);
        assert!(Set::FromPod.is_made_as(Family::Ipv4, &marked.header));
        assert_eq!(observed.sets[&Set::ClusterIp].others, ["10.96.0.1,icmp:0/0"]);
    }

    #[test]
    fn rules_of_others_keep_their_place() {
        let mut observed = Observed::default();
        let saved = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:CNI-HOSTPORT - [0:0]\n\
            -A PREROUTING -j CNI-HOSTPORT\n-A PREROUTING -m comment --comment \"x y\" -j KUBE-SERVICES\nCOMMIT\n";
        observed.read_rules(Table::Nat, saved);
        assert_eq!(observed.ours(Table::Nat).collect::<Vec<_>>(), ["KUBE-SERVICES"]);
        let wanted = "-m comment --comment \"x y\" -j KUBE-SERVICES\n";
        assert!(observed.put_right(Table::Nat, "PREROUTING", wanted, is_ours).is_empty());
        let lines = observed.put_right(Table::Nat, "PREROUTING", "", is_ours);
        assert_eq!(lines, ["-D PREROUTING -m comment --comment \"x y\" -j KUBE-SERVICES"]);
    }
}
