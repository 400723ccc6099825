//! Pure. What stands in the maps of the kernel programs, and its bytes. The same as `bpf/layout.h` and `bpf/maps.h`; the
//! tests hold sizes and places.
//!
//! Addresses are 16 bytes, IPv4 as `::ffff:a.b.c.d`; so one set of maps serves both families. Ports are in network order, all
//! other numbers in the machine's.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, Protocol, Rebalance};
use signpost_core::plan::FrontendKey;

/// Raised with every change of a structure or a map. Maps of another layout are left behind.
pub const LAYOUT: u32 = 4;

/// So many places of a Maglev table stand in one entry.
pub const CHUNK: usize = 128;

/// A map that the daemon writes and the programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Frontend -> what its clients meet.
    Frontends,
    /// Set and index -> backend.
    Slots,
    /// Addresses of the node at which node ports answer.
    NodePortIps,
    /// Family -> what is known of the node.
    Nodes,
    /// Set and number of chunk -> places of its Maglev table. This and the following are for packets.
    Tables,
    /// All addresses of the node.
    NodeIps,
    /// Addresses of endpoints on this node.
    LocalEndpoints,
    /// The ranges of pods of the whole cluster.
    PodNetworks,
    /// Guard and range -> its sources may use the guard's frontend.
    Sources,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 9] = [
        Table::Frontends,
        Table::Slots,
        Table::NodePortIps,
        Table::Nodes,
        Table::Tables,
        Table::NodeIps,
        Table::LocalEndpoints,
        Table::PodNetworks,
        Table::Sources,
    ];

    /// Whether frontends lead to its entries: they come before those and go after them.
    pub fn is_ground(self) -> bool {
        matches!(self, Table::Slots | Table::Tables | Table::Sources)
    }

    /// Its name in the kernel, and of its pin.
    pub fn name(self) -> &'static str {
        match self {
            Table::Frontends => "frontends",
            Table::Slots => "slots",
            Table::NodePortIps => "node_port_ips",
            Table::Nodes => "nodes",
            Table::Tables => "tables",
            Table::NodeIps => "node_ips",
            Table::LocalEndpoints => "local_endpoints",
            Table::PodNetworks => "pod_networks",
            Table::Sources => "sources",
        }
    }
}

/// A set of backends, named by a hash of what is in it: frontends with the same backends share one, and a set never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SetId(pub u64);

impl SetId {
    /// From a hash. Its last bit tells the family, since a table's entries do not.
    pub fn new(hash: u64, family: Family) -> SetId {
        SetId(hash & !1 | u64::from(family == Family::Ipv6))
    }

    /// Of its backends.
    pub fn family(self) -> Family {
        if self.0 & 1 == 0 { Family::Ipv4 } else { Family::Ipv6 }
    }
}

/// Whose sources may use a frontend: a hash of the frontend's key and of the ranges. So each frontend has its own, and it
/// never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GuardId(pub u64);

/// A place in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Of [`Table::Frontends`], in a family.
    Frontend(Family, FrontendKey),
    /// Of [`Table::Slots`].
    Slot(SetId, u32),
    /// Of [`Table::NodePortIps`].
    NodePortIp(IpAddr),
    /// Of [`Table::Nodes`].
    Node(Family),
    /// Of [`Table::Tables`].
    Chunk(SetId, u32),
    /// Of [`Table::NodeIps`].
    NodeIp(IpAddr),
    /// Of [`Table::LocalEndpoints`].
    LocalEndpoint(IpAddr),
    /// Of [`Table::PodNetworks`].
    PodNetwork(IpNet),
    /// Of [`Table::Sources`].
    Source(GuardId, IpNet),
}

/// What stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// In [`Table::Frontends`].
    Frontend(FrontendValue),
    /// In [`Table::Slots`].
    Backend(SocketAddr),
    /// In tables of addresses and ranges.
    Member,
    /// In [`Table::Nodes`].
    Node(NodeValue),
    /// In [`Table::Tables`]: [`CHUNK`] indices of slots; the last chunk is filled up with 0.
    Places(Arc<[u16]>),
}

/// What the clients of a frontend meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendValue {
    /// Pods.
    pub from_pod: RouteValue,
    /// The node's own processes.
    pub from_node: RouteValue,
    /// All others.
    pub from_elsewhere: RouteValue,
    /// A hash of the Service port's name and the family.
    pub service: u64,
    /// Seconds; 0: no affinity.
    pub affinity_s: u32,
    /// Only some sources may use it.
    pub guarded: bool,
    /// Which, if packets are served by the programs; else 0.
    pub guard: GuardId,
    /// Seconds after which a TCP connection is ended whose endpoint is gone; `None`: never.
    pub reset_after_s: Option<u32>,
    /// Whether connections that live long are spread anew after a scale-up.
    pub rebalance: Option<Rebalance>,
}

/// What one kind of client meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteValue {
    /// Refused.
    Reject,
    /// Dropped.
    Drop,
    /// Led to one of these.
    Backends {
        /// The set.
        set: SetId,
        /// How many it has; never 0.
        count: u32,
        /// How many places its Maglev table has; 0: backends are drawn.
        table: u32,
        /// Whether the source becomes an address of the node.
        masquerade: bool,
    },
}

/// What is known of the node, in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeValue {
    /// Whether the cluster's pod ranges are known.
    pub pods_known: bool,
    /// What masqueraded packets come from, if packets are served by the programs.
    pub masquerade: Option<IpAddr>,
}

impl Key {
    /// The table that it is of.
    pub fn table(&self) -> Table {
        match self {
            Key::Frontend(..) => Table::Frontends,
            Key::Slot(..) => Table::Slots,
            Key::NodePortIp(_) => Table::NodePortIps,
            Key::Node(_) => Table::Nodes,
            Key::Chunk(..) => Table::Tables,
            Key::NodeIp(_) => Table::NodeIps,
            Key::LocalEndpoint(_) => Table::LocalEndpoints,
            Key::PodNetwork(_) => Table::PodNetworks,
            Key::Source(..) => Table::Sources,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match *self {
            Key::Frontend(_, FrontendKey::Address { address, protocol, port }) => {
                frontend(mapped(address), protocol, port, 0)
            }
            Key::Frontend(family, FrontendKey::NodePort { protocol, port }) => {
                frontend(anywhere(family), protocol, port, 1)
            }
            Key::Slot(set, index) | Key::Chunk(set, index) => {
                [&set.0.to_ne_bytes()[..], &index.to_ne_bytes(), &0_u32.to_ne_bytes()].concat()
            }
            Key::NodePortIp(address) | Key::NodeIp(address) | Key::LocalEndpoint(address) => mapped(address).to_vec(),
            Key::PodNetwork(range) => [&prefix(range).to_ne_bytes()[..], &mapped(range.network())].concat(),
            Key::Source(guard, range) => {
                [&(64 + prefix(range)).to_ne_bytes()[..], &guard.0.to_ne_bytes(), &mapped(range.network())].concat()
            }
            Key::Node(family) => u32::from(family == Family::Ipv6).to_ne_bytes().to_vec(),
        }
    }

    /// The key that has these bytes in a table, if we write such.
    pub fn read(table: Table, bytes: &[u8]) -> Option<Key> {
        let mut fields = Fields(bytes);
        let key = match table {
            Table::Frontends => {
                let address = unmapped(fields.take()?);
                let port = NonZeroU16::new(u16::from_be_bytes(fields.take()?))?;
                let [protocol, place] = fields.take()?;
                let protocol = protocol_of(protocol)?;
                let key = match place {
                    0 => FrontendKey::Address { address, protocol, port },
                    _ => FrontendKey::NodePort { protocol, port },
                };
                Key::Frontend(Family::of(address), key)
            }
            Table::Slots => Key::Slot(SetId(u64::from_ne_bytes(fields.take()?)), u32::from_ne_bytes(fields.take()?)),
            Table::NodePortIps => Key::NodePortIp(unmapped(fields.take()?)),
            Table::Tables => Key::Chunk(SetId(u64::from_ne_bytes(fields.take()?)), u32::from_ne_bytes(fields.take()?)),
            Table::NodeIps => Key::NodeIp(unmapped(fields.take()?)),
            Table::LocalEndpoints => Key::LocalEndpoint(unmapped(fields.take()?)),
            Table::PodNetworks => {
                let prefix = u32::from_ne_bytes(fields.take()?);
                Key::PodNetwork(range(unmapped(fields.take()?), prefix)?)
            }
            Table::Sources => {
                let prefix = u32::from_ne_bytes(fields.take()?).checked_sub(64)?;
                let guard = GuardId(u64::from_ne_bytes(fields.take()?));
                Key::Source(guard, range(unmapped(fields.take()?), prefix)?)
            }
            Table::Nodes => {
                let is_ipv6 = u32::from_ne_bytes(fields.take()?) != 0;
                Key::Node(if is_ipv6 { Family::Ipv6 } else { Family::Ipv4 })
            }
        };
        // Only the one spelling that we write.
        (key.bytes() == bytes).then_some(key)
    }
}

impl Value {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Value::Frontend(value) => value.bytes(),
            Value::Backend(address) => endpoint(*address),
            Value::Member => 1_u32.to_ne_bytes().to_vec(),
            Value::Node(node) => {
                let masquerade = node.masquerade.map_or([0; 16], mapped);
                [&u32::from(node.pods_known).to_ne_bytes()[..], &masquerade].concat()
            }
            Value::Places(places) => places.iter().flat_map(|place| place.to_ne_bytes()).collect(),
        }
    }

    /// The value that has these bytes in a table, if we write such.
    pub fn read(table: Table, bytes: &[u8]) -> Option<Value> {
        let mut fields = Fields(bytes);
        let value = match table {
            Table::Frontends => Value::Frontend(frontend_of(&mut fields)?),
            Table::Slots => Value::Backend(endpoint_of(bytes)?),
            Table::NodePortIps | Table::NodeIps | Table::LocalEndpoints | Table::PodNetworks | Table::Sources => {
                Value::Member
            }
            Table::Nodes => {
                let pods_known = u32::from_ne_bytes(fields.take()?) != 0;
                let masquerade: [u8; 16] = fields.take()?;
                let masquerade = (masquerade != [0; 16]).then(|| unmapped(masquerade));
                Value::Node(NodeValue { pods_known, masquerade })
            }
            Table::Tables => {
                let places = bytes.as_chunks::<2>().0.iter().map(|place| u16::from_ne_bytes(*place));
                Value::Places(places.collect::<Vec<u16>>().into()).checked()?
            }
        };
        (value.bytes() == bytes).then_some(value)
    }
}

impl Value {
    fn checked(self) -> Option<Value> {
        match &self {
            Value::Places(places) if places.len() != CHUNK => None,
            _ => Some(self),
        }
    }
}

/// The bits of a range in the form of 16 bytes.
fn prefix(range: IpNet) -> u32 {
    let longer = if range.addr().is_ipv4() { 96 } else { 0 };
    longer + u32::from(range.prefix_len())
}

fn range(address: IpAddr, prefix: u32) -> Option<IpNet> {
    let longer = if address.is_ipv4() { 96 } else { 0 };
    IpNet::new(address, u8::try_from(prefix.checked_sub(longer)?).ok()?).ok()
}

const GUARDED: u32 = 1;
const RESET: u32 = 2;

impl FrontendValue {
    /// In the order of the C array.
    pub fn routes(&self) -> [RouteValue; 3] {
        [self.from_pod, self.from_node, self.from_elsewhere]
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.routes().iter().flat_map(route).collect();
        bytes.extend(self.service.to_ne_bytes());
        bytes.extend(self.guard.0.to_ne_bytes());
        bytes.extend(self.affinity_s.to_ne_bytes());
        let flags = if self.guarded { GUARDED } else { 0 } | if self.reset_after_s.is_some() { RESET } else { 0 };
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(self.reset_after_s.unwrap_or_default().to_ne_bytes());
        let rebalance = |wish: Rebalance| u32::from(wish.within_percent) << 16 | u32::from(wish.rate_percent);
        bytes.extend(self.rebalance.map_or(0, rebalance).to_ne_bytes());
        bytes
    }
}

fn route(route: &RouteValue) -> Vec<u8> {
    let (set, count, table, action, masquerade) = match *route {
        RouteValue::Reject => (0, 0, 0, 0, false),
        RouteValue::Drop => (0, 0, 0, 1, false),
        RouteValue::Backends { set, count, table, masquerade } => (set.0, count, table, 2, masquerade),
    };
    let numbers = [&set.to_ne_bytes()[..], &count.to_ne_bytes(), &table.to_ne_bytes()].concat();
    [&numbers[..], &[action, u8::from(masquerade), 0, 0, 0, 0, 0, 0]].concat()
}

fn route_of(fields: &mut Fields<'_>) -> Option<RouteValue> {
    let set = SetId(u64::from_ne_bytes(fields.take()?));
    let count = u32::from_ne_bytes(fields.take()?);
    let table = u32::from_ne_bytes(fields.take()?);
    let [action, masquerade, ..] = fields.take::<8>()?;
    match action {
        0 => Some(RouteValue::Reject),
        1 => Some(RouteValue::Drop),
        2 => Some(RouteValue::Backends { set, count, table, masquerade: masquerade != 0 }),
        _ => None,
    }
}

fn frontend_of(fields: &mut Fields<'_>) -> Option<FrontendValue> {
    let routes = [route_of(fields)?, route_of(fields)?, route_of(fields)?];
    let service = u64::from_ne_bytes(fields.take()?);
    let guard = GuardId(u64::from_ne_bytes(fields.take()?));
    let affinity_s = u32::from_ne_bytes(fields.take()?);
    let flags = u32::from_ne_bytes(fields.take()?);
    let grace_s = u32::from_ne_bytes(fields.take()?);
    let word = fields.take()?;
    let [rate, within] = [0, 16].map(|shift| (u32::from_ne_bytes(word) >> shift) as u16);
    Some(FrontendValue {
        from_pod: routes[0],
        from_node: routes[1],
        from_elsewhere: routes[2],
        service,
        affinity_s,
        guarded: flags & GUARDED != 0,
        guard,
        reset_after_s: (flags & RESET != 0).then_some(grace_s),
        rebalance: match u8::try_from(rate).ok()? {
            0 => None,
            rate_percent => Some(Rebalance { within_percent: within, rate_percent }),
        },
    })
}

fn frontend(address: [u8; 16], protocol: Protocol, port: NonZeroU16, place: u8) -> Vec<u8> {
    [&address[..], &port.get().to_be_bytes(), &[number(protocol), place]].concat()
}

/// An address and a port, as in `struct endpoint`.
pub fn endpoint(address: SocketAddr) -> Vec<u8> {
    [&mapped(address.ip())[..], &address.port().to_be_bytes(), &[0, 0]].concat()
}

/// What a `struct endpoint` at the begin of some bytes says.
pub fn endpoint_of(bytes: &[u8]) -> Option<SocketAddr> {
    let mut fields = Fields(bytes);
    let address = unmapped(fields.take()?);
    Some(SocketAddr::new(address, u16::from_be_bytes(fields.take()?)))
}

/// The 16 bytes of an address.
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn unmapped(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

/// What stands for the node's address in the key of a node port.
fn anywhere(family: Family) -> [u8; 16] {
    match family {
        Family::Ipv4 => mapped([0, 0, 0, 0].into()),
        Family::Ipv6 => [0; 16],
    }
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| self::number(*protocol) == number)
}

/// The fields of a structure, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_read_back_from_their_bytes() {
        let port = NonZeroU16::new(80).unwrap();
        let protocol = Protocol::Udp;
        for (family, address) in [(Family::Ipv4, "10.96.0.1"), (Family::Ipv6, "fd00::1")] {
            let address: IpAddr = address.parse().unwrap();
            let keys = [
                Key::Frontend(family, FrontendKey::Address { address, protocol, port }),
                Key::Frontend(family, FrontendKey::NodePort { protocol, port }),
                Key::Slot(SetId(7), 3),
                Key::NodePortIp(address),
                Key::Node(family),
                Key::Chunk(SetId(7), 3),
                Key::NodeIp(address),
                Key::LocalEndpoint(address),
                Key::PodNetwork(IpNet::new(address, 24).unwrap().trunc()),
                Key::Source(GuardId(5), IpNet::new(address, 0).unwrap().trunc()),
            ];
            for key in keys {
                assert_eq!(Key::read(key.table(), &key.bytes()), Some(key));
            }
            let routes = [
                RouteValue::Reject,
                RouteValue::Drop,
                RouteValue::Backends { set: SetId(9), count: 4, table: 1_601, masquerade: true },
            ];
            let value = FrontendValue {
                from_pod: routes[0],
                from_node: routes[1],
                from_elsewhere: routes[2],
                service: 11,
                affinity_s: 10_800,
                guarded: true,
                guard: GuardId(13),
                reset_after_s: Some(30),
                rebalance: Some(Rebalance { within_percent: 250, rate_percent: 100 }),
            };
            let values = [
                (Table::Frontends, Value::Frontend(value)),
                (Table::Slots, Value::Backend(SocketAddr::new(address, 8080))),
                (Table::NodePortIps, Value::Member),
                (Table::Nodes, Value::Node(NodeValue { pods_known: true, masquerade: None })),
                (Table::Nodes, Value::Node(NodeValue { pods_known: true, masquerade: Some(address) })),
                (Table::Tables, Value::Places((0..CHUNK as u16).collect())),
            ];
            for (table, value) in values {
                assert_eq!(Value::read(table, &value.bytes()), Some(value));
            }
        }
    }

    #[test]
    fn other_bytes_are_not_ours() {
        for table in Table::ALL {
            assert_eq!(Key::read(table, &[]), None);
            assert_eq!(Key::read(table, &[0xff; 20]), None);
        }
        let mut value = Value::Backend("10.0.0.1:80".parse().unwrap()).bytes();
        *value.last_mut().unwrap() = 1;
        assert_eq!(Value::read(Table::Slots, &value), None);
    }
}
