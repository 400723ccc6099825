//! Pure. What a probe must meet, and what a mode or a family does differently.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::values::{FamilyRun, Mode};
use super::{Problem, raw};

/// How a probe fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fails {
    /// Refused at once: a TCP reset to the opening packet, or ICMP port unreachable.
    Refused,
    /// No answer at all.
    Timeout,
    /// No way there: host or network unreachable.
    Unreachable,
    /// A connection that stood was reset.
    Reset,
    /// Any of these.
    Any,
}

impl fmt::Display for Fails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fails::Refused => "refused",
            Fails::Timeout => "timeout",
            Fails::Unreachable => "unreachable",
            Fails::Reset => "reset",
            Fails::Any => "any failure",
        })
    }
}

/// What the backend must see as its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerExpect {
    /// The sender's own address.
    Client,
    /// An address of a node.
    Node,
    /// This address.
    Address(IpAddr),
}

/// How many of the answers each backend gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Fraction of all answers by pod.
    pub of: BTreeMap<String, f64>,
    /// How far from it is still right.
    pub within: f64,
}

/// What a probe must meet. All parts that are set must hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expect {
    /// Every answer is from this set and each member answered.
    pub reach: Option<Vec<String>>,
    /// Every answer is from this set.
    pub only: Option<Vec<String>>,
    /// How the answers are shared out.
    pub share: Option<Share>,
    /// All answers from one backend (`true`).
    pub sticky: Option<bool>,
    /// The peer that the backend saw.
    pub source: Option<PeerExpect>,
    /// Every try fails like this.
    pub fails: Option<Fails>,
    /// Tried again until it holds, at most so long.
    pub within: Option<Duration>,
    /// Answers of a name lookup.
    pub answers: Option<Vec<String>>,
    /// Result code of a name lookup.
    pub rcode: Option<String>,
    /// HTTP status.
    pub status: Option<u16>,
    /// HTTP headers: name to regular expression.
    pub header: BTreeMap<String, String>,
    /// Regular expression on the HTTP body.
    pub body: Option<String>,
    /// What one mode does differently.
    pub mode: BTreeMap<Mode, Deviation>,
    /// What one family does differently.
    pub family: BTreeMap<FamilyRun, Deviation>,
}

/// A deviation: a way to fail in short, or a whole expectation.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation(pub Box<Expect>);

impl Expect {
    /// What is expected in one mode and family: the fields of a deviation take the place of those beside it, and a way
    /// to fail takes the place of every answer, as an answer does of a failure.
    pub fn in_run(&self, mode: Mode, family: FamilyRun) -> Expect {
        let plain = Expect { mode: BTreeMap::new(), family: BTreeMap::new(), ..self.clone() };
        let deviations = [self.family.get(&family), self.mode.get(&mode)];
        deviations.into_iter().flatten().fold(plain, |expect, deviation| expect.but(&deviation.0))
    }

    fn but(self, other: &Expect) -> Expect {
        if other.fails.is_some() {
            return Expect { within: other.within.or(self.within), ..other.clone() };
        }
        let answered = other.reach.is_some() || other.only.is_some() || other.share.is_some();
        Expect {
            reach: other.reach.clone().or(if other.only.is_some() { None } else { self.reach }),
            only: other.only.clone().or(if other.reach.is_some() { None } else { self.only }),
            share: other.share.clone().or(self.share),
            sticky: other.sticky.or(self.sticky),
            source: other.source.or(self.source),
            fails: self.fails.filter(|_| !answered),
            within: other.within.or(self.within),
            answers: other.answers.clone().or(self.answers),
            rcode: other.rcode.clone().or(self.rcode),
            status: other.status.or(self.status),
            header: if other.header.is_empty() { self.header } else { other.header.clone() },
            body: other.body.clone().or(self.body),
            mode: BTreeMap::new(),
            family: BTreeMap::new(),
        }
    }

    /// Whether anything is expected at all.
    pub fn is_empty(&self) -> bool {
        *self == Expect { within: self.within, ..Expect::default() }
    }

    /// From the fields of a file.
    pub(super) fn from_raw(raw: raw::Expect) -> Result<Expect, Problem> {
        let foreign = [
            ("refused", raw.refused.is_some()),
            ("object", raw.object.is_some()),
            ("path", raw.path.is_some()),
            ("equals", raw.equals.is_some()),
            ("matches", raw.matches.is_some()),
            ("event", raw.event.is_some()),
        ];
        if let Some((field, _)) = foreign.into_iter().find(|(_, set)| *set) {
            return Err(Problem::new(field, "a probe cannot expect this"));
        }
        let answered = [raw.reach.is_some(), raw.only.is_some(), raw.share.is_some(), raw.sticky.is_some()];
        if raw.fails.is_some() && answered.into_iter().any(|set| set) {
            return Err(Problem::new("fails", "a probe cannot fail and be answered"));
        }
        if raw.reach.as_ref().is_some_and(Vec::is_empty) {
            return Err(Problem::new("reach", "must not be empty; for no answer write fails"));
        }
        Ok(Expect {
            reach: raw.reach,
            only: raw.only,
            share: raw.share.map(share).transpose()?,
            sticky: raw.sticky,
            source: raw.source.as_deref().map(peer).transpose()?,
            fails: raw.fails,
            within: raw.within.map(|within| within.0),
            answers: raw.answers,
            rcode: raw.rcode,
            status: raw.status,
            header: checked_patterns(raw.header.unwrap_or_default())?,
            body: raw.body.map(|body| pattern("body", body)).transpose()?,
            mode: raw.mode,
            family: raw.family,
        })
    }
}

/// A regular expression that compiles.
pub(super) fn pattern(field: &'static str, text: String) -> Result<String, Problem> {
    match regex::Regex::new(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Problem::new(field, error.to_string())),
    }
}

fn checked_patterns(headers: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
    headers.into_iter().map(|(name, text)| Ok((name, pattern("header", text)?))).collect()
}

fn share(mut fractions: BTreeMap<String, f64>) -> Result<Share, Problem> {
    let within = fractions.remove("within").unwrap_or(0.1);
    let whole: f64 = fractions.values().sum();
    if fractions.is_empty() || (whole - 1.0).abs() > 0.01 {
        return Err(Problem::new("share", "the shares must add up to 1"));
    }
    Ok(Share { of: fractions, within })
}

fn peer(text: &str) -> Result<PeerExpect, Problem> {
    match text {
        "client" => Ok(PeerExpect::Client),
        "node" => Ok(PeerExpect::Node),
        address => address
            .parse()
            .map(PeerExpect::Address)
            .map_err(|_| Problem::new("source", format!("{address} is neither client, node nor an address"))),
    }
}

impl<'de> Deserialize<'de> for Deviation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Deviation, D::Error> {
        struct DeviationVisitor;
        impl<'de> Visitor<'de> for DeviationVisitor {
            type Value = Deviation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("refused, timeout, unreachable, reset or any, or a whole expectation")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Deviation, E> {
                let fails = Fails::deserialize(de::value::StrDeserializer::<E>::new(text))?;
                Ok(Deviation(Box::new(Expect { fails: Some(fails), ..Expect::default() })))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Deviation, A::Error> {
                let raw = raw::Expect::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let expect = Expect::from_raw(raw)
                    .map_err(|problem| de::Error::custom(format!("{}: {}", problem.field, problem.problem)))?;
                Ok(Deviation(Box::new(expect)))
            }
        }
        deserializer.deserialize_any(DeviationVisitor)
    }
}
