//! Pure. Session affinity: what holds a client to the backend that it was sent to.
//!
//! ```text
//! spread-tcp-3_HOLD ─▶ affinity-HOLD ── remembered for a backend that is still one? ─▶ that one
//!                           │
//!                           └────────── else one of them, each as likely, and it is remembered
//! ```
//!
//! What is remembered are elements of one set, `client . Service port . backend address . backend port`, that the packets
//! themselves put in and that the kernel lets expire. A backend is named by its address, never by its place in a list, and
//! the rules ask only for those that may be chosen now: one that left or became unready is let go with the rule that
//! named it, and nobody else's backend moves.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use signpost_core::object::{Protocol, ServicePortName};

use super::chain::ChainNameError;
use super::element::comment;
use super::rule::{Action, Match, Rule};

/// Names a hold: the begin of a hash of all that its rules depend on. In names and in JSON 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId(u64);

/// The holds of a program by their names.
pub type Holds = BTreeMap<HoldId, Hold>;

/// Clients of one Service port that choose among the same backends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The Service port, whose frontends remember together.
    pub service_port: ServicePortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// So many seconds after a client's last connection it is forgotten; never 0.
    pub timeout_s: u32,
    /// The backends, sorted.
    pub backends: Arc<[SocketAddr]>,
}

/// A client's place in the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// The protocol that the rule is for.
    pub protocol: Protocol,
    /// The Service port, as a number.
    pub service: u32,
    /// The backend.
    pub to: SocketAddr,
    /// How long it stays.
    pub timeout_s: u32,
}

/// The most that the API allows: a day.
const TIMEOUT_MOST_S: u32 = 86_400;

impl Hold {
    /// The timeout is cut to whole seconds, at least one, at most a day.
    pub fn new(
        service_port: &ServicePortName,
        protocol: Protocol,
        timeout: Duration,
        backends: impl Iterator<Item = SocketAddr>,
    ) -> Hold {
        let timeout_s = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).clamp(1, TIMEOUT_MOST_S);
        Hold { service_port: service_port.clone(), protocol, timeout_s, backends: backends.collect() }
    }

    /// Its name. A good hash, not a quick one: names of objects go into it, and nobody may choose two that agree.
    pub fn id(&self) -> HoldId {
        let mut hash = self.service_hash();
        hash.update(self.timeout_s.to_be_bytes());
        for backend in self.backends.iter() {
            hash.update(format!("{backend} "));
        }
        let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
        HoldId(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The Service port as a number. That two are alike harms only who shares a backend as well.
    fn service(&self) -> u32 {
        let [a, b, c, d, ..] = <[u8; 32]>::from(self.service_hash().finalize());
        u32::from_be_bytes([a, b, c, d]).max(1)
    }

    fn service_hash(&self) -> Sha256 {
        let mut hash = Sha256::new();
        let ServicePortName { service, port } = &self.service_port;
        for part in [&*service.namespace, &*service.name, &**port, &*self.protocol.to_string()] {
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        hash
    }

    /// The rules of its chain. A packet that none of them takes, since the set is full, goes back and is sent on
    /// without being remembered.
    pub fn rules(&self) -> Vec<Rule> {
        let name = comment(&self.service_port);
        let service = self.service();
        let held = self.backends.iter().map(|to| Held {
            protocol: self.protocol,
            service,
            to: *to,
            timeout_s: self.timeout_s,
        });
        let rule = |matches, held| Rule { matches, action: Action::Hold(held), why: name.to_string().into() };
        let known = held.clone().map(|held| rule(Some(Match::Held(held)), held));
        let left = (1..=u32::try_from(self.backends.len()).unwrap_or(u32::MAX)).rev();
        let new = held.zip(left).map(|(held, left)| rule((left > 1).then_some(Match::OneIn(left)), held));
        known.chain(new).collect()
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for HoldId {
    type Err = ChainNameError;

    fn from_str(text: &str) -> Result<HoldId, ChainNameError> {
        let id = u64::from_str_radix(text, 16).map(HoldId).map_err(|_| ChainNameError)?;
        // Only the one spelling that we write.
        if id.to_string() == text { Ok(id) } else { Err(ChainNameError) }
    }
}

impl Serialize for HoldId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HoldId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<HoldId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use signpost_core::object::{Family, ObjectName};

    use super::*;

    fn hold(name: &str, timeout_s: u64, backends: &[&str]) -> Hold {
        let service_port = ServicePortName { service: ObjectName::new("default", name), port: "http".into() };
        let backends = backends.iter().map(|at| at.parse().unwrap());
        Hold::new(&service_port, Protocol::Tcp, Duration::from_secs(timeout_s), backends)
    }

    #[test]
    fn a_name_tells_holds_apart_and_reads_back() {
        let holds = [
            hold("web", 10, &["10.244.1.2:80"]),
            hold("web", 11, &["10.244.1.2:80"]),
            hold("web", 10, &["10.244.1.2:8", "10.244.1.3:80"]),
            hold("we", 10, &["10.244.1.2:80"]),
        ];
        for (at, one) in holds.iter().enumerate() {
            assert_eq!(one.id().to_string().parse(), Ok(one.id()));
            assert!(holds[at + 1..].iter().all(|other| other.id() != one.id()));
        }
        for other in ["", "0", "+000000000000001", "000000000000000G", "000000000000000A"] {
            assert_eq!(other.parse::<HoldId>(), Err(ChainNameError), "{other}");
        }
    }

    #[test]
    fn the_rules_ask_for_each_backend_and_then_choose_among_all() {
        let hold = hold("web", 10, &["10.244.1.2:80", "10.244.1.3:8080"]);
        let service = format!("{:#x}", hold.service());
        let texts: Vec<String> = hold.rules().iter().map(|rule| rule.text(Family::Ipv4)).collect();
        let asks = |address: &str, port: u16| {
            format!(
                "ip saddr . meta mark and 0x0 xor {service} . ip daddr and 0.0.0.0 xor {address} . th dport and 0x0 xor \
                 {port} @affinity "
            )
        };
        let sends = |address: &str, port: u16| {
            format!(
                "meta l4proto tcp update @affinity {{ ip saddr . {service} . {address} . {port} timeout 10s }} dnat ip to \
                 {address}:{port}"
            )
        };
        let (one, two) = (("10.244.1.2", 80), ("10.244.1.3", 8080));
        let wanted = [
            asks(one.0, one.1) + &sends(one.0, one.1),
            asks(two.0, two.1) + &sends(two.0, two.1),
            "numgen random mod 2 == 0 ".to_owned() + &sends(one.0, one.1),
            sends(two.0, two.1),
        ];
        assert_eq!(texts, wanted);
        let texts: Vec<String> =
            self::hold("web", 0, &["[fd00::2]:80"]).rules().iter().map(|rule| rule.text(Family::Ipv6)).collect();
        assert!(texts[0].contains("ip6 daddr and :: xor fd00::2 . th dport"), "{texts:?}");
        assert!(texts[1].ends_with("fd00::2 . 80 timeout 1s } dnat ip6 to [fd00::2]:80"), "{texts:?}");
    }
}
