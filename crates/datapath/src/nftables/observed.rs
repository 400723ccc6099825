//! Pure. What the kernel holds, read from what `nft -j list table` prints.
//!
//! The listing of 10,000 Services is 10 MB: elements become keys and values while they are read, no tree is built.
//! What we never write is not understood but noticed ([`Data::Foreign`], [`Elements::foreign`]), so that `repair` puts
//! it right.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use signpost_core::object::Protocol;
use signpost_core::plan::FrontendKey;

use super::element::{Data, Key, Value};
use super::layout::{Set, TABLE};
use super::render::LAYOUT_PREFIX;

/// What the kernel holds of one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The table, if there is one.
    pub table: Option<Table>,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// By name: its chains, with the comments of their rules in order (empty: a rule without one).
    pub chains: BTreeMap<String, ObservedChain>,
    /// Its sets and maps that have a name of ours.
    pub sets: BTreeMap<Set, Elements>,
}

/// A chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedChain {
    /// Type, hook, priority and policy, of a base chain.
    pub hook: Option<(String, String, i32, String)>,
    /// The comment of each rule; empty if it has none.
    pub rules: Vec<String>,
}

/// The elements of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Elements {
    /// Those that we can name.
    pub known: BTreeMap<Key, Value>,
    /// Whether there are others.
    pub foreign: bool,
}

impl Table {
    /// The name of the chain that marks the layout, if there is one.
    pub fn layout(&self) -> Option<&str> {
        self.chains.keys().map(String::as_str).find(|name| name.starts_with(LAYOUT_PREFIX))
    }

    /// Whether kube-proxy made it: it has chains that we never make, and not our mark.
    pub fn is_foreign(&self) -> bool {
        let is_kube_proxys = ["service-endpoints-check", "nodeport-endpoints-check", "cluster-ips-check"];
        self.layout().is_none() && is_kube_proxys.iter().any(|name| self.chains.contains_key(*name))
    }
}

/// Reads what `nft -j list table FAMILY kube-proxy` prints.
///
/// # Errors
/// It is no JSON, or not of nft's form.
pub fn read(json: impl Read) -> Result<Observed, serde_json::Error> {
    let listing: Listing = serde_json::from_reader(json)?;
    let mut table = Table::default();
    let mut is_there = false;
    for item in listing.nftables {
        is_there |= item.table.is_some_and(|found| found.name == TABLE);
        if let Some(chain) = item.chain {
            let hook = chain.hook.map(|hook| {
                (chain.kind.unwrap_or_default(), hook, chain.prio.unwrap_or_default(), chain.policy.unwrap_or_default())
            });
            table.chains.entry(chain.name).or_default().hook = hook;
        }
        if let Some(rule) = item.rule {
            table.chains.entry(rule.chain).or_default().rules.push(rule.comment.unwrap_or_default());
        }
        if let Some(listed) = item.set.or(item.map)
            && let Some(set) = Set::from_name(&listed.name)
        {
            table.sets.insert(set, listed.elem.unwrap_or_default().of(set));
        }
    }
    Ok(Observed { table: is_there.then_some(table) })
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Item>,
}

/// One of these is there; others, like `metainfo`, are left out.
#[derive(Deserialize)]
struct Item {
    table: Option<Named>,
    chain: Option<ListedChain>,
    rule: Option<ListedRule>,
    set: Option<ListedSet>,
    map: Option<ListedSet>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct ListedChain {
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    hook: Option<String>,
    prio: Option<i32>,
    policy: Option<String>,
}

#[derive(Deserialize)]
struct ListedRule {
    chain: String,
    comment: Option<String>,
}

#[derive(Deserialize)]
struct ListedSet {
    name: String,
    elem: Option<ListedElements>,
}

/// Keys by their form alone: which set they are of is known only when all are read.
#[derive(Default)]
struct ListedElements(Vec<(Option<Key>, Value)>);

impl ListedElements {
    fn of(self, set: Set) -> Elements {
        let mut elements = Elements::default();
        for (key, value) in self.0 {
            match key.and_then(|key| fit(set, key)) {
                Some(key) => {
                    elements.known.insert(key, value);
                }
                None => elements.foreign = true,
            }
        }
        elements
    }
}

/// A key in the form that a set's keys have. In an interval set, nft lists a range of one address as that address.
fn fit(set: Set, key: Key) -> Option<Key> {
    match (set, key) {
        (Set::PodNetworks | Set::ServiceCidrs, Key::Address(address)) => Some(Key::Network(address.into())),
        (Set::PodNetworks | Set::ServiceCidrs, Key::Network(_))
        | (Set::NodeIps | Set::NodeportIps | Set::ClusterIps, Key::Address(_))
        | (Set::HairpinConnections, Key::Loop(_))
        | (Set::FirewallSources, Key::Source(..))
        | (Set::FirewallIps | Set::ServiceIps | Set::NoEndpointServices, Key::Frontend(FrontendKey::Address { .. }))
        | (Set::ServiceNodeports | Set::NoEndpointNodeports, Key::Frontend(FrontendKey::NodePort { .. })) => Some(key),
        (Set::ServiceEndpoints(protocol), Key::Endpoint(FrontendKey::Address { address, port, .. }, index)) => {
            Some(Key::Endpoint(FrontendKey::Address { address, protocol, port }, index))
        }
        (Set::NodeportEndpoints(protocol), Key::Endpoint(FrontendKey::NodePort { port, .. }, index)) => {
            Some(Key::Endpoint(FrontendKey::NodePort { protocol, port }, index))
        }
        _ => None,
    }
}

impl<'de> Deserialize<'de> for ListedElements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ListedElements, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ListedElements;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ListedElements, A::Error> {
                let mut elements = Vec::new();
                while let Some(part) = seq.next_element::<Part>()? {
                    elements.push(element(part));
                }
                Ok(ListedElements(elements))
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

/// An element: `KEY` of a set, `[KEY, DATA]` of a map.
fn element(part: Part) -> (Option<Key>, Value) {
    let (key, data) = match part {
        Part::List(parts) => match <[Part; 2]>::try_from(parts) {
            Ok([key, data]) => (key, to_data(data)),
            Err(_) => return (None, Value::plain(Data::Foreign)),
        },
        key => (key, Data::Member),
    };
    match key {
        Part::Commented(key, comment) => (to_key(*key), Value { data, comment: comment.map(String::into_boxed_str) }),
        key => (to_key(key), Value::plain(data)),
    }
}

fn to_key(part: Part) -> Option<Key> {
    let parts = match part {
        Part::Address(address) => return Some(Key::Address(address)),
        Part::Network(range) => return Some(Key::Network(range)),
        Part::Concat(parts) => parts,
        _ => return None,
    };
    match *parts.as_slice() {
        [Part::Address(one), Part::Address(other)] => (one == other).then_some(Key::Loop(one)),
        [Part::Protocol(protocol), Part::Number(port)] => Some(Key::Frontend(at_node(protocol, port)?)),
        // The protocol is that of the map, and filled in with the map's name.
        [Part::Number(port), Part::Number(index)] => {
            Some(Key::Endpoint(at_node(Protocol::Tcp, port)?, index.try_into().ok()?))
        }
        [Part::Address(address), Part::Protocol(protocol), Part::Number(port)] => {
            Some(Key::Frontend(at(address, protocol, port)?))
        }
        [Part::Address(address), Part::Number(port), Part::Number(index)] => {
            Some(Key::Endpoint(at(address, Protocol::Tcp, port)?, index.try_into().ok()?))
        }
        [Part::Address(address), Part::Protocol(protocol), Part::Number(port), Part::Address(source)] => {
            Some(Key::Source(at(address, protocol, port)?, source.into()))
        }
        [Part::Address(address), Part::Protocol(protocol), Part::Number(port), Part::Network(range)] => {
            Some(Key::Source(at(address, protocol, port)?, range))
        }
        _ => None,
    }
}

fn at(address: IpAddr, protocol: Protocol, port: u64) -> Option<FrontendKey> {
    Some(FrontendKey::Address { address, protocol, port: NonZeroU16::new(port.try_into().ok()?)? })
}

fn at_node(protocol: Protocol, port: u64) -> Option<FrontendKey> {
    Some(FrontendKey::NodePort { protocol, port: NonZeroU16::new(port.try_into().ok()?)? })
}

fn to_data(part: Part) -> Data {
    match part {
        Part::Verdict(data) => data,
        Part::Concat(parts) => match *parts.as_slice() {
            [Part::Address(address), Part::Number(port)] => {
                port.try_into().map_or(Data::Foreign, |port| Data::To(SocketAddr::new(address, port)))
            }
            _ => Data::Foreign,
        },
        _ => Data::Foreign,
    }
}

/// A piece of an element.
#[derive(Debug)]
enum Part {
    Address(IpAddr),
    Network(IpNet),
    Protocol(Protocol),
    Number(u64),
    Concat(Vec<Part>),
    List(Vec<Part>),
    Commented(Box<Part>, Option<String>),
    Verdict(Data),
    Foreign,
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Part, D::Error> {
        deserializer.deserialize_any(PartReader)
    }
}

struct PartReader;

impl<'de> Visitor<'de> for PartReader {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an element or a part of one")
    }

    fn visit_str<E>(self, text: &str) -> Result<Part, E> {
        Ok(match text {
            "tcp" => Part::Protocol(Protocol::Tcp),
            "udp" => Part::Protocol(Protocol::Udp),
            "sctp" => Part::Protocol(Protocol::Sctp),
            text => text.parse().map_or(Part::Foreign, Part::Address),
        })
    }

    fn visit_u64<E>(self, number: u64) -> Result<Part, E> {
        Ok(Part::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Part, E> {
        Ok(Part::Foreign)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Part, E> {
        Ok(Part::Foreign)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Part, E> {
        Ok(Part::Foreign)
    }

    fn visit_unit<E>(self) -> Result<Part, E> {
        Ok(Part::Foreign)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Part, A::Error> {
        let mut parts = Vec::with_capacity(2);
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(Part::List(parts))
    }

    /// `{"concat": [..]}`, `{"prefix": {..}}`, `{"elem": {..}}`, `{"goto": {..}}` and so on: one key each.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
        let mut part = Part::Foreign;
        while let Some(key) = map.next_key::<String>()? {
            part = match key.as_str() {
                "concat" => Part::Concat(map.next_value()?),
                "prefix" => {
                    let Prefix { addr, len } = map.next_value()?;
                    IpNet::new(addr, len).map_or(Part::Foreign, Part::Network)
                }
                "elem" => {
                    let Commented { val, comment } = map.next_value()?;
                    Part::Commented(Box::new(val), comment)
                }
                "goto" => Part::Verdict(map.next_value::<To>()?.chain().map_or(Data::Foreign, Data::Goto)),
                "jump" => Part::Verdict(map.next_value::<To>()?.chain().map_or(Data::Foreign, Data::Jump)),
                "drop" => {
                    map.next_value::<IgnoredAny>()?;
                    Part::Verdict(Data::Drop)
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    Part::Foreign
                }
            };
        }
        Ok(part)
    }
}

#[derive(Deserialize)]
struct Prefix {
    addr: IpAddr,
    len: u8,
}

#[derive(Deserialize)]
struct Commented {
    val: Part,
    comment: Option<String>,
}

#[derive(Deserialize)]
struct To {
    target: String,
}

impl To {
    fn chain(&self) -> Option<super::chain::Chain> {
        self.target.parse().ok()
    }
}
