//! Pure. The chains of the table, and their names: a name says all that the chain's rules depend on, so that a chain
//! found in the kernel tells what it must hold.
//!
//! ```text
//! nat-prerouting ─┐                ┌─▶ spread-tcp-3            one of three backends
//!                 ├▶ services ─────┼─▶ spread-tcp-3m           ... and the source becomes the node's
//! nat-output ─────┘  (looks the    ├─▶ by-source-tcp-3-3m-3m   pods, this node, others: each its own
//!                     frontend up) ├─▶ reject-chain
//! nat-postrouting ─▶ masquerading  └─▶ drop
//! ```
//!
//! A chain serves every frontend with that *number* of backends: there are as many as numbers, not as Services. Only
//! Services with session affinity have chains of their own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use signpost_core::object::Protocol;
use signpost_core::plan::FrontendKey;

use super::hold::HoldId;
use super::layout::Set;

/// Where a frontend is, which decides the key of its maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// At an address of its own.
    Address,
    /// At a port of the node.
    NodePort,
}

/// The place and the protocol of a frontend, which decide the map of its endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct At {
    /// Where.
    pub place: Place,
    /// With which protocol.
    pub protocol: Protocol,
}

impl At {
    /// That of a frontend.
    pub fn of(key: &FrontendKey) -> At {
        match *key {
            FrontendKey::Address { protocol, .. } => At { place: Place::Address, protocol },
            FrontendKey::NodePort { protocol, .. } => At { place: Place::NodePort, protocol },
        }
    }

    /// The map of endpoints there.
    pub fn endpoints(self) -> Set {
        match self.place {
            Place::Address => Set::ServiceEndpoints(self.protocol),
            Place::NodePort => Set::NodeportEndpoints(self.protocol),
        }
    }
}

/// An equal choice among the backends of one of a frontend's sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spread {
    /// Which of the frontend's sets of backends: 0, 1 or 2.
    pub set: u8,
    /// How many backends it has; never 0.
    pub count: u32,
    /// Whether the source becomes an address of the node.
    pub masquerade: bool,
    /// What holds clients to the backend that they were sent to, if they are held.
    pub hold: Option<HoldId>,
}

/// What one kind of client meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Refused.
    Reject,
    /// Dropped.
    Drop,
    /// Sent to a backend.
    Spread(Spread),
}

/// What the three kinds of clients meet at a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Goals {
    /// Pods of the cluster.
    pub pod: Goal,
    /// This node's own processes.
    pub node: Goal,
    /// Everyone else.
    pub elsewhere: Goal,
}

/// A chain. In JSON a string, its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chain {
    /// Base chain: what comes in through an interface.
    NatPrerouting,
    /// Base chain: what this node's processes send.
    NatOutput,
    /// Base chain: what leaves.
    NatPostrouting,
    /// Base chain: what is forwarded.
    FilterForward,
    /// Looks a packet's frontend up.
    Services,
    /// Drops those that a frontend's source ranges leave out.
    FirewallCheck,
    /// Refuses.
    RejectChain,
    /// Gives the packet an address of the node as its source.
    Masquerading,
    /// One chain per number of backends, set, place, protocol and masquerade.
    Spread(At, Spread),
    /// Sends a client to the backend that it was sent to before, or to one of all. One chain per Service port with
    /// session affinity and list of backends.
    Affinity(HoldId),
    /// One chain per combination of what the three kinds of clients meet.
    BySource(At, Goals),
}

/// A name that is none of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a chain of this table")]
pub struct ChainNameError;

impl Chain {
    /// The chains that are always there, in an order in which each comes after those that its rules name.
    pub const STATIC: [Chain; 8] = [
        Chain::RejectChain,
        Chain::FirewallCheck,
        Chain::Masquerading,
        Chain::Services,
        Chain::NatPrerouting,
        Chain::NatOutput,
        Chain::NatPostrouting,
        Chain::FilterForward,
    ];

    /// Where it hangs, if it is a base chain.
    pub fn hook(self) -> Option<Hook> {
        let (kind, hook, number, priority) = match self {
            Chain::NatPrerouting => ("nat", "prerouting", 0, -100),
            Chain::NatOutput => ("nat", "output", 3, -100),
            Chain::NatPostrouting => ("nat", "postrouting", 4, 100),
            Chain::FilterForward => ("filter", "forward", 2, 0),
            _ => return None,
        };
        Some(Hook { kind, hook, number, priority })
    }
}

/// Where a base chain hangs. All accept what they do not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// `nat` or `filter`.
    pub kind: &'static str,
    /// The hook's name.
    pub hook: &'static str,
    /// The hook's number in the kernel (`NF_INET_...`).
    pub number: u32,
    /// The priority: destinations are rewritten at -100, packets filtered at 0, sources rewritten at 100.
    pub priority: i32,
}

impl Goal {
    /// Whether it leads to a backend.
    pub fn is_spread(self) -> bool {
        matches!(self, Goal::Spread(_))
    }
}

impl Goals {
    /// The three, in the order in which sources are compared.
    pub fn all(self) -> [Goal; 3] {
        [self.pod, self.node, self.elsewhere]
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::Reject => f.write_str("reject"),
            Goal::Drop => f.write_str("drop"),
            Goal::Spread(spread) => {
                write!(f, "{}", spread.count)?;
                if spread.set > 0 {
                    write!(f, ".{}", spread.set + 1)?;
                }
                f.write_str(if spread.masquerade { "m" } else { "" })?;
                spread.hold.map_or(Ok(()), |hold| write!(f, "_{hold}"))
            }
        }
    }
}

impl FromStr for Goal {
    type Err = ChainNameError;

    fn from_str(text: &str) -> Result<Goal, ChainNameError> {
        match text {
            "reject" => return Ok(Goal::Reject),
            "drop" => return Ok(Goal::Drop),
            _ => {}
        }
        let (text, hold) = text.split_once('_').map_or((text, None), |(text, hold)| (text, Some(hold)));
        let hold = hold.map(HoldId::from_str).transpose()?;
        let (text, masquerade) = text.strip_suffix('m').map_or((text, false), |text| (text, true));
        let (count, set) = text.split_once('.').unwrap_or((text, "1"));
        let count = count.parse().map_err(|_| ChainNameError)?;
        let set = set.parse::<u8>().ok().and_then(|set| set.checked_sub(1)).ok_or(ChainNameError)?;
        if count == 0 || set > 2 {
            Err(ChainNameError)
        } else {
            Ok(Goal::Spread(Spread { set, count, masquerade, hold }))
        }
    }
}

impl Place {
    fn prefix(self) -> &'static str {
        match self {
            Place::Address => "",
            Place::NodePort => "nodeport-",
        }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chain::NatPrerouting => f.write_str("nat-prerouting"),
            Chain::NatOutput => f.write_str("nat-output"),
            Chain::NatPostrouting => f.write_str("nat-postrouting"),
            Chain::FilterForward => f.write_str("filter-forward"),
            Chain::Services => f.write_str("services"),
            Chain::FirewallCheck => f.write_str("firewall-check"),
            Chain::RejectChain => f.write_str("reject-chain"),
            Chain::Masquerading => f.write_str("masquerading"),
            Chain::Spread(At { place, protocol }, spread) => {
                write!(f, "{}spread-{protocol}-{}", place.prefix(), Goal::Spread(*spread))
            }
            Chain::Affinity(hold) => write!(f, "affinity-{hold}"),
            Chain::BySource(At { place, protocol }, Goals { pod, node, elsewhere }) => {
                write!(f, "{}by-source-{protocol}-{pod}-{node}-{elsewhere}", place.prefix())
            }
        }
    }
}

impl FromStr for Chain {
    type Err = ChainNameError;

    fn from_str(name: &str) -> Result<Chain, ChainNameError> {
        if let Some(chain) = Chain::STATIC.into_iter().find(|chain| chain.to_string() == name) {
            return Ok(chain);
        }
        if let Some(hold) = name.strip_prefix("affinity-") {
            return hold.parse().map(Chain::Affinity);
        }
        let (rest, place) =
            name.strip_prefix("nodeport-").map_or((name, Place::Address), |rest| (rest, Place::NodePort));
        let chain = if let Some(rest) = rest.strip_prefix("spread-") {
            let (at, goal) = at(place, rest)?;
            let Goal::Spread(spread) = goal.parse()? else { return Err(ChainNameError) };
            Chain::Spread(at, spread)
        } else {
            let (at, goals) = at(place, rest.strip_prefix("by-source-").ok_or(ChainNameError)?)?;
            let mut goals = goals.splitn(3, '-').map(str::parse);
            let mut next = || goals.next().unwrap_or(Err(ChainNameError));
            Chain::BySource(at, Goals { pod: next()?, node: next()?, elsewhere: next()? })
        };
        // Only the one spelling that we write: `spread-03` or `spread-3.1` would be the same chain under another name.
        if chain.to_string() == name { Ok(chain) } else { Err(ChainNameError) }
    }
}

/// Splits a protocol off.
fn at(place: Place, text: &str) -> Result<(At, &str), ChainNameError> {
    let (protocol, rest) = text.split_once('-').ok_or(ChainNameError)?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return Err(ChainNameError),
    };
    Ok((At { place, protocol }, rest))
}

impl Serialize for Chain {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Chain {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Chain, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let hold = "00c0ffee00c0ffee".parse().ok();
        let goals = [
            Goal::Reject,
            Goal::Drop,
            Goal::Spread(Spread { set: 0, count: 1, masquerade: false, hold: None }),
            Goal::Spread(Spread { set: 1, count: 250, masquerade: true, hold }),
            Goal::Spread(Spread { set: 2, count: 7, masquerade: false, hold }),
        ];
        let mut chains = Chain::STATIC.to_vec();
        chains.extend(hold.map(Chain::Affinity));
        for place in [Place::Address, Place::NodePort] {
            for (pod, protocol) in
                goals.into_iter().zip([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().cycle())
            {
                let at = At { place, protocol };
                if let Goal::Spread(spread) = pod {
                    chains.push(Chain::Spread(at, spread));
                }
                for node in goals {
                    chains.extend(goals.map(|elsewhere| Chain::BySource(at, Goals { pod, node, elsewhere })));
                }
            }
        }
        for chain in chains {
            assert_eq!(chain.to_string().parse(), Ok(chain), "{chain}");
        }
    }

    #[test]
    fn other_names_are_not_ours() {
        let spreads =
            ["", "0", "03", "3.1", "3.4", "reject", "3-3", "3_", "3_c0ffee"].map(|goal| format!("spread-tcp-{goal}"));
        let others = ["", "x", "spread-", "spread-tcp", "spread-icmp-3", "by-source-tcp-1-1", "nodeport-services"];
        for name in spreads.iter().map(String::as_str).chain(others) {
            assert_eq!(name.parse::<Chain>(), Err(ChainNameError), "{name}");
        }
    }

    #[test]
    fn names_say_what_the_chain_does() {
        let spread = Spread { set: 1, count: 3, masquerade: true, hold: None };
        let at = |place, protocol| At { place, protocol };
        let chain = Chain::Spread(at(Place::NodePort, Protocol::Udp), spread);
        assert_eq!(chain.to_string(), "nodeport-spread-udp-3.2m");
        let goals = Goals { pod: Goal::Reject, node: Goal::Drop, elsewhere: Goal::Spread(spread) };
        let chain = Chain::BySource(at(Place::Address, Protocol::Tcp), goals);
        assert_eq!(chain.to_string(), "by-source-tcp-reject-drop-3.2m");
    }
}
