//! Pure. Small values of the format: modes, family runs, nodes, listeners, durations.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use signpost_core::object::{Family, Protocol};

/// A mode of the node daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// eBPF at the socket and at the interfaces.
    Ebpf,
    /// nftables.
    Nftables,
    /// iptables.
    Iptables,
    /// IPVS.
    Ipvs,
}

/// What the lab's router does besides passing packets on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Router {
    /// Nothing: its routes are those that the lab gave it.
    #[default]
    Static,
    /// It takes routes from nodes by BGP.
    Bgp,
}

impl Mode {
    /// Every mode, in the order in which `auto` prefers them.
    pub const ALL: [Mode; 4] = [Mode::Ebpf, Mode::Nftables, Mode::Iptables, Mode::Ipvs];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Ebpf => "ebpf",
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let known = Mode::ALL.into_iter().find(|mode| mode.to_string() == text);
        known.ok_or_else(|| format!("unknown mode {text}; known are ebpf, nftables, iptables and ipvs"))
    }
}

/// One run of a scenario: with one family in the whole lab, or with both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FamilyRun {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// Both, IPv4 first.
    Dual,
}

impl FamilyRun {
    /// The families of the run, the first one first.
    pub fn families(self) -> &'static [Family] {
        match self {
            FamilyRun::Ipv4 => &[Family::Ipv4],
            FamilyRun::Ipv6 => &[Family::Ipv6],
            FamilyRun::Dual => &[Family::Ipv4, Family::Ipv6],
        }
    }
}

impl fmt::Display for FamilyRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FamilyRun::Ipv4 => "ipv4",
            FamilyRun::Ipv6 => "ipv6",
            FamilyRun::Dual => "dual",
        })
    }
}

impl FromStr for FamilyRun {
    type Err = String;

    fn from_str(text: &str) -> Result<FamilyRun, String> {
        let all = [FamilyRun::Ipv4, FamilyRun::Ipv6, FamilyRun::Dual];
        let known = all.into_iter().find(|run| run.to_string() == text);
        known.ok_or_else(|| format!("unknown family {text}; known are ipv4, ipv6 and dual"))
    }
}

/// A node of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// `nodes: 2` or a list.
#[derive(Debug)]
pub(super) struct Nodes(pub Vec<NodeSpec>);

impl Nodes {
    pub(super) fn numbered(count: u64) -> Nodes {
        Nodes((1..=count).map(|n| NodeSpec { name: format!("n{n}"), labels: BTreeMap::new() }).collect())
    }
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Nodes, D::Error> {
        struct NodesVisitor;
        impl<'de> Visitor<'de> for NodesVisitor {
            type Value = Nodes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of nodes, or a list of {name, labels}")
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Nodes, E> {
                if (1..=50).contains(&count) {
                    Ok(Nodes::numbered(count))
                } else {
                    Err(E::custom("a lab has 1 to 50 nodes"))
                }
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Nodes, E> {
                self.visit_u64(u64::try_from(count).unwrap_or(0))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Nodes, A::Error> {
                let mut nodes = Vec::new();
                while let Some(node) = list.next_element()? {
                    nodes.push(node);
                }
                Ok(Nodes(nodes))
            }
        }
        deserializer.deserialize_any(NodesVisitor)
    }
}

/// A listener of the echo server: `tcp/8080`, or `http=tcp/8080` for a container port with a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listen {
    /// The container port's name.
    pub name: Option<String>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: NonZeroU16,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (Some(name.to_owned()), rest),
            None => (None, text),
        };
        let wanted = || format!("{text} is no listener; write tcp/8080, udp/53 or NAME=tcp/8080");
        let (protocol, port) = rest.split_once('/').ok_or_else(wanted)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(wanted()),
        };
        let port = port.parse().map_err(|_| wanted())?;
        Ok(Listen { name, protocol, port })
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listen, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A duration as the format writes it: `500ms`, `2s`, `1m`, `1h`.
///
/// # Errors
/// A sentence with the text and the forms that are known.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wanted = || format!("{text} is no duration; write 500ms, 2s, 1m or 1h");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wanted)?;
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wanted())?;
    let unit_s = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wanted()),
    };
    Duration::try_from_secs_f64(number * unit_s).map_err(|_| wanted())
}

/// A duration in a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Span).map_err(de::Error::custom)
    }
}
