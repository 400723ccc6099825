//! Pure. The whole of what the maps hold for one plan. Sets of backends are shared with the plan and among frontends: two
//! frontends with the same backends have the same set, whatever their Services.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use signpost_core::maglev;
use signpost_core::object::{Family, Protocol, ServicePortName};
use signpost_core::plan::{Backend, Backends, Frontend, FrontendKey, FrontendKind, NodeFacts, NodePlan, Route, Target};

use super::layout::{CHUNK, FrontendValue, GuardId, Key, NodeValue, RouteValue, SetId, Table, Value, endpoint};

/// The most backends of a set: the kernel programs find one of them in as many halvings as this needs.
pub const MOST_BACKENDS: usize = 1 << 20;

/// Who serves the packets that no socket of this node rewrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packets {
    /// The rules beneath, all of them.
    #[default]
    Nftables,
    /// Programs at the node's interfaces; the rules beneath have what those leave.
    Tc {
        /// Whether flows from outside find their backend in a table that all nodes have alike; else it is drawn.
        maglev: bool,
    },
}

impl FromStr for Packets {
    type Err = String;

    fn from_str(text: &str) -> Result<Packets, String> {
        match text {
            "nftables" => Ok(Packets::Nftables),
            "tc" => Ok(Packets::Tc { maglev: true }),
            "tc-random" => Ok(Packets::Tc { maglev: false }),
            other => Err(format!("{other:?} serves no packets: there are nftables, tc and tc-random")),
        }
    }
}

impl fmt::Display for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Packets::Nftables => "nftables",
            Packets::Tc { maglev: true } => "tc",
            Packets::Tc { maglev: false } => "tc-random",
        })
    }
}

/// The program of one node and one family. Same plan, same program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The family; every address in it is of it.
    pub family: Family,
    /// Who serves packets. What only packets need is left out where the rules do.
    pub packets: Packets,
    /// Addresses of endpoints on this node.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// Who may use the frontends that are not for all: each has its own.
    pub guards: BTreeMap<GuardId, Arc<[IpNet]>>,
    /// What it knows of the node.
    pub node: Node,
    /// What the clients of each frontend meet.
    pub frontends: BTreeMap<FrontendKey, FrontendValue>,
    /// The sets that their routes name.
    pub sets: BTreeMap<SetId, Set>,
}

/// The node's own entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What is known of it.
    pub value: NodeValue,
    /// The addresses at which node ports answer.
    pub node_port_ips: BTreeSet<IpAddr>,
    /// All addresses of the node.
    pub node_ips: BTreeSet<IpAddr>,
    /// The ranges of pods of the whole cluster.
    pub pod_networks: BTreeSet<IpNet>,
}

/// A set of backends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Sorted, of the family, never empty.
    pub backends: Backends,
    /// How many frontends have routes to it.
    pub frontends: u32,
    /// Whether it has a Maglev table.
    pub has_table: bool,
}

/// A frontend with the sets that its routes name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What its clients meet.
    pub value: FrontendValue,
    /// At most three, without a count of frontends.
    pub sets: BTreeMap<SetId, Set>,
    /// Whom its guard lets in.
    pub sources: Option<Arc<[IpNet]>>,
}

impl Program {
    /// The program of a plan. What is of another family in it is left out, so that it harms only itself.
    pub fn of(plan: &NodePlan, packets: Packets) -> Program {
        let mut program = Program::empty(plan.family, packets);
        program.node = Node::of(plan.family, packets, &plan.facts());
        if program.serves_packets() {
            let of_family = |address: &&IpAddr| Family::of(**address) == plan.family;
            program.local_endpoints = plan.local_endpoints.iter().filter(of_family).copied().collect();
        }
        for (key, frontend) in &plan.frontends {
            if let Some(entry) = Entry::of(plan.family, packets, key, frontend) {
                program.set_frontend(*key, Some(entry));
            }
        }
        program
    }

    /// A program without Services.
    pub fn empty(family: Family, packets: Packets) -> Program {
        Program {
            family,
            packets,
            local_endpoints: BTreeSet::new(),
            guards: BTreeMap::new(),
            node: Node::default(),
            frontends: BTreeMap::new(),
            sets: BTreeMap::new(),
        }
    }

    /// Whether packets are served by the programs, not by rules.
    pub fn serves_packets(&self) -> bool {
        matches!(self.packets, Packets::Tc { .. })
    }

    /// Puts a frontend in, or takes it out, and keeps count of the sets.
    pub(super) fn set_frontend(&mut self, key: FrontendKey, entry: Option<Entry>) {
        let after = entry.as_ref().map(|entry| entry.value.guard);
        if let Some(before) = self.frontends.get(&key).filter(|before| Some(before.guard) != after) {
            self.guards.remove(&before.guard);
        }
        let before = match entry {
            Some(Entry { value, sets, sources }) => {
                for (id, set) in sets {
                    self.sets.entry(id).or_insert(set).frontends += 1;
                }
                self.guards.extend(sources.map(|sources| (value.guard, sources)));
                self.frontends.insert(key, value)
            }
            None => self.frontends.remove(&key),
        };
        for id in before.iter().flat_map(sets_of) {
            if let Some(set) = self.sets.get_mut(&id) {
                set.frontends -= 1;
                if set.frontends == 0 {
                    self.sets.remove(&id);
                }
            }
        }
    }

    /// Every entry of every map.
    pub fn entries(&self) -> impl Iterator<Item = (Key, Value)> + '_ {
        let frontends = self.frontends.iter();
        let frontends = frontends.map(|(key, value)| (Key::Frontend(self.family, *key), Value::Frontend(*value)));
        let sets = self.sets.iter().flat_map(|(id, set)| set_entries(*id, set));
        let guards = self.guards.iter().flat_map(|(id, ranges)| guard_entries(*id, ranges));
        let endpoints = self.local_endpoints.iter().map(|address| (Key::LocalEndpoint(*address), Value::Member));
        sets.chain(guards).chain(endpoints).chain(self.node.entries(self.family)).chain(frontends)
    }

    /// Whether it has an entry at a key.
    pub fn has(&self, key: &Key) -> bool {
        match key {
            Key::Frontend(family, key) => *family == self.family && self.frontends.contains_key(key),
            Key::Slot(set, index) => self.sets.get(set).is_some_and(|set| (*index as usize) < set.backends.len()),
            Key::Chunk(set, index) => self.sets.get(set).is_some_and(|set| *index < set.chunks()),
            Key::NodePortIp(address) => self.node.node_port_ips.contains(address),
            Key::Node(family) => *family == self.family,
            Key::NodeIp(address) => self.node.node_ips.contains(address),
            Key::LocalEndpoint(address) => self.local_endpoints.contains(address),
            Key::PodNetwork(range) => self.node.pod_networks.contains(range),
            Key::Source(guard, range) => self.guards.get(guard).is_some_and(|ranges| ranges.contains(range)),
        }
    }

    /// How many slots of all sets there are.
    pub fn slots(&self) -> usize {
        self.sets.values().map(|set| set.backends.len()).sum()
    }

    /// How many entries all Maglev tables have.
    pub fn chunks(&self) -> usize {
        self.sets.values().map(|set| set.chunks() as usize).sum()
    }
}

impl Set {
    /// How many places its Maglev table has.
    pub fn table_size(&self) -> u32 {
        if self.has_table { maglev::size(self.backends.len()) } else { 0 }
    }

    /// How many entries those are.
    fn chunks(&self) -> u32 {
        self.table_size().div_ceil(CHUNK as u32)
    }

    /// The places: each an index of a slot.
    fn table(&self) -> Vec<u16> {
        if !self.has_table {
            return Vec::new();
        }
        let backends: Vec<SocketAddr> = self.backends.iter().map(|backend| backend.address).collect();
        maglev::table(&backends)
    }

    /// The places as they stand in the map.
    pub(super) fn places(&self) -> Vec<Arc<[u16]>> {
        let filled = |chunk: &[u16]| chunk.iter().copied().chain(std::iter::repeat(0)).take(CHUNK).collect();
        self.table().chunks(CHUNK).map(filled).collect()
    }
}

/// The slots of a set and its table.
pub(super) fn set_entries(id: SetId, set: &Set) -> impl Iterator<Item = (Key, Value)> + use<'_> {
    let chunks = (0..).zip(set.places()).map(move |(index, places)| (Key::Chunk(id, index), Value::Places(places)));
    slots(id, set).chain(chunks)
}

/// The slots of a set.
pub(super) fn slots(id: SetId, set: &Set) -> impl Iterator<Item = (Key, Value)> + use<'_> {
    let backends = (0..).zip(set.backends.iter());
    backends.map(move |(index, backend)| (Key::Slot(id, index), Value::Backend(backend.address)))
}

/// The keys of a set's entries.
pub(super) fn set_keys(id: SetId, set: &Set) -> impl Iterator<Item = Key> + use<> {
    let slots = (0..).take(set.backends.len()).map(move |index| Key::Slot(id, index));
    slots.chain((0..set.chunks()).map(move |index| Key::Chunk(id, index)))
}

/// Whom a guard lets in.
pub(super) fn guard_entries(id: GuardId, ranges: &Arc<[IpNet]>) -> impl Iterator<Item = (Key, Value)> + use<'_> {
    ranges.iter().map(move |range| (Key::Source(id, *range), Value::Member))
}

/// The sets that a frontend's routes name.
pub fn sets_of(frontend: &FrontendValue) -> BTreeSet<SetId> {
    let set = |route: RouteValue| match route {
        RouteValue::Backends { set, .. } => Some(set),
        RouteValue::Reject | RouteValue::Drop => None,
    };
    frontend.routes().into_iter().filter_map(set).collect()
}

impl Default for Node {
    fn default() -> Node {
        Node {
            value: NodeValue { pods_known: false, masquerade: None },
            node_port_ips: BTreeSet::new(),
            node_ips: BTreeSet::new(),
            pod_networks: BTreeSet::new(),
        }
    }
}

impl Node {
    /// From what a plan knows of its node.
    pub fn of(family: Family, packets: Packets, facts: &NodeFacts) -> Node {
        let of_family = |address: &&IpAddr| Family::of(**address) == family;
        let mut node = Node {
            value: NodeValue { pods_known: !facts.cluster_cidrs.is_empty(), masquerade: None },
            node_port_ips: facts.node_port_addresses.iter().filter(of_family).copied().collect(),
            ..Node::default()
        };
        if let Packets::Tc { .. } = packets {
            let of_family = |range: &&IpNet| Family::of(range.addr()) == family;
            node.node_ips = facts.node_addresses.iter().filter(|ip| Family::of(**ip) == family).copied().collect();
            node.pod_networks = facts.cluster_cidrs.iter().filter(of_family).map(IpNet::trunc).collect();
            node.value.masquerade = node.masquerade();
        }
        node
    }

    /// What others may answer to: an address at which node ports answer, else any of the node's, but none of this machine or
    /// link alone, nor of the pods.
    fn masquerade(&self) -> Option<IpAddr> {
        let reachable = |address: &&IpAddr| match address {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let not_pods = |address: &&IpAddr| !self.pod_networks.iter().any(|range| range.contains(*address));
        let mut all = self.node_port_ips.iter().chain(&self.node_ips).filter(reachable);
        all.clone().find(not_pods).or_else(|| all.next()).copied()
    }

    /// Its entries.
    pub fn entries(&self, family: Family) -> impl Iterator<Item = (Key, Value)> + use<'_> {
        let node_ports = self.node_port_ips.iter().map(|address| Key::NodePortIp(*address));
        let addresses = self.node_ips.iter().map(|address| Key::NodeIp(*address));
        let members = node_ports.chain(addresses).chain(self.pod_networks.iter().map(|range| Key::PodNetwork(*range)));
        let members = members.map(|key| (key, Value::Member));
        std::iter::once((Key::Node(family), Value::Node(self.value))).chain(members)
    }
}

impl Entry {
    /// What stands in the maps for a frontend; `None`: its address is of another family, or its protocol has no such sockets.
    pub fn of(family: Family, packets: Packets, key: &FrontendKey, frontend: &Frontend) -> Option<Entry> {
        let protocol = match *key {
            FrontendKey::Address { address, .. } if Family::of(address) != family => return None,
            FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. } => protocol,
        };
        if protocol == Protocol::Sctp {
            return None;
        }
        let has_table = packets == Packets::Tc { maglev: true } && frontend.kind != FrontendKind::ClusterIp;
        let mut sets = Sets { family, has_table, all: Vec::new() };
        let mut route = |route: &Route| match &route.target {
            Target::Reject => RouteValue::Reject,
            Target::Drop => RouteValue::Drop,
            Target::Backends(backends) => sets.route(backends, route.masquerade),
        };
        let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere].map(&mut route);
        let sources = guard(family, packets, frontend);
        let value = FrontendValue {
            from_pod: routes[0],
            from_node: routes[1],
            from_elsewhere: routes[2],
            service: service_id(family, &frontend.service_port),
            affinity_s: frontend.affinity.map_or(0, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
            guarded: !frontend.source_ranges.is_empty(),
            guard: sources.as_ref().map_or(GuardId(0), |ranges| guard_id(family, key, ranges)),
            reset_after_s: frontend.reset_after.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
            rebalance: frontend.rebalance,
        };
        Some(Entry { value, sets: sets.all.into_iter().map(|(_, id, set)| (id, set)).collect(), sources })
    }
}

/// The sets of one frontend. Lists that are one in memory are hashed once.
struct Sets {
    family: Family,
    has_table: bool,
    all: Vec<(Backends, SetId, Set)>,
}

impl Sets {
    /// The route to a list of backends.
    fn route(&mut self, given: &Backends, masquerade: bool) -> RouteValue {
        let known = self.all.iter().position(|(list, ..)| Arc::ptr_eq(list, given));
        let at = known.unwrap_or_else(|| {
            let fits = |backend: &&Backend| Family::of(backend.address.ip()) == self.family;
            let backends: Backends = if given.iter().all(|backend| fits(&backend)) && given.len() <= MOST_BACKENDS {
                given.clone()
            } else {
                given.iter().filter(fits).take(MOST_BACKENDS).copied().collect()
            };
            // One alone, or too many, need none: so that such a set is the same whoever asks.
            let has_table = self.has_table && maglev::size(backends.len()) > 0;
            let id = set_id(self.family, &backends, has_table);
            self.all.push((given.clone(), id, Set { backends, frontends: 0, has_table }));
            self.all.len() - 1
        });
        let (_, id, set) = &self.all[at];
        match u32::try_from(set.backends.len()) {
            Ok(count @ 1..) => RouteValue::Backends { set: *id, count, table: set.table_size(), masquerade },
            _ => RouteValue::Reject,
        }
    }
}

/// Whom a frontend that is not for all lets in. None of the family may be among them: then nobody is.
fn guard(family: Family, packets: Packets, frontend: &Frontend) -> Option<Arc<[IpNet]>> {
    if frontend.source_ranges.is_empty() || packets == Packets::Nftables {
        return None;
    }
    let ranges = frontend.source_ranges.iter().filter(|range| Family::of(range.addr()) == family);
    let ranges: BTreeSet<IpNet> = ranges.map(IpNet::trunc).collect();
    Some(ranges.into_iter().collect())
}

fn guard_id(family: Family, key: &FrontendKey, ranges: &[IpNet]) -> GuardId {
    let mut hash = Sha256::new();
    hash.update(Key::Frontend(family, *key).bytes());
    for range in ranges {
        hash.update(Key::PodNetwork(*range).bytes());
    }
    GuardId(first_8(hash))
}

fn set_id(family: Family, backends: &Backends, has_table: bool) -> SetId {
    let mut hash = Sha256::new();
    for backend in backends.iter() {
        hash.update(endpoint(backend.address));
        // Not in the slot, but in the list that goes with the name.
        hash.update([u8::from(backend.local)]);
    }
    if has_table {
        hash.update(Table::Tables.name());
    }
    SetId::new(first_8(hash), family)
}

/// The name under which affinity and counters know a Service port.
pub fn service_id(family: Family, name: &ServicePortName) -> u64 {
    let mut hash = Sha256::new();
    for text in [&*name.service.namespace, &*name.service.name, &*name.port, &family.to_string()] {
        hash.update(text.as_bytes());
        hash.update([0]);
    }
    first_8(hash)
}

fn first_8(hash: Sha256) -> u64 {
    let hash: [u8; 32] = hash.finalize().into();
    u64::from_be_bytes(*hash.first_chunk().expect("a SHA-256 hash has more than eight bytes"))
}
