//! Pure. The rules of each chain, as values: what `render` writes and `walk` follows.

use std::borrow::Cow;
use std::net::SocketAddr;

use signpost_core::object::Family;

use super::chain::{At, Chain, Goal, Goals, Place, Spread};
use super::hold::{Held, Holds};
use super::layout::{MASQUERADE_MARK, SET_STRIDE, Set, fingerprint, ip};

/// What a rule asks of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Source address in a set.
    Source(Set),
    /// Destination address in a set.
    Destination(Set),
    /// `source . destination` in a set.
    SourceAndDestination(Set),
    /// `destination . protocol . port . source` in a set.
    FrontendAndSource(Set),
    /// Marked for masquerading.
    Marked,
    /// TCP.
    Tcp,
    /// The client was sent to this backend, and not too long ago.
    Held(Held),
    /// Once in so many times.
    OneIn(u32),
    /// TCP of no flow that conntrack knows, nor the begin or the abrupt end of one, from an address in a set: out of its
    /// flow's window, mostly.
    Stray(Set),
}

/// What a rule does to a packet that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Does what a map says for the packet's frontend; nothing if the map has none.
    Vmap(Place, Set),
    /// To a chain and back.
    Jump(Chain),
    /// To a chain, and not back here.
    Goto(Chain),
    /// Back to where the chain was jumped to from.
    Return,
    /// Dropped.
    Drop,
    /// Refused with a TCP reset.
    Reset,
    /// Refused with ICMP port unreachable.
    Unreachable,
    /// Marked for masquerading.
    Mark,
    /// The mark taken off.
    Unmark,
    /// The source becomes an address of the interface that the packet leaves through.
    Masquerade,
    /// The destination becomes what the map of endpoints holds for it at a random index; nothing if it holds none there.
    Dnat(At, Spread),
    /// The destination becomes this backend, and the client is remembered for it, anew if it was. Nothing if the set is
    /// full.
    Hold(Held),
}

/// A rule: what it asks, what it does, and why, for the reader of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// All must hold. At most one of them, now.
    pub matches: Option<Match>,
    /// What happens then.
    pub action: Action,
    /// In words.
    pub why: Cow<'static, str>,
}

const fn rule(matches: Option<Match>, action: Action, why: &'static str) -> Rule {
    Rule { matches, action, why: Cow::Borrowed(why) }
}

/// The rules of a chain, in order; of a hold's, if it is among `holds`.
pub fn rules(chain: Chain, holds: &Holds) -> Vec<Rule> {
    match chain {
        Chain::NatPrerouting | Chain::NatOutput => {
            vec![rule(None, Action::Jump(Chain::Services), "is it for a Service?")]
        }
        Chain::NatPostrouting => vec![
            rule(
                Some(Match::SourceAndDestination(Set::HairpinConnections)),
                Action::Goto(Chain::Masquerading),
                "a pod that reached itself",
            ),
            rule(Some(Match::Marked), Action::Goto(Chain::Masquerading), "the answer must come back here"),
        ],
        // What conntrack takes for no part of its flow is not rewritten: a client would get an answer from a stranger, whose
        // refusal ends the backend's connection (kubernetes#74839). Of a flow whose begin went another way, SYN-ACK is such
        // a packet, and what follows it is not; so asymmetric routes go on working.
        Chain::FilterForward => vec![
            rule(Some(Match::Stray(Set::PodNetworks)), Action::Drop, "out of its flow, could not be rewritten"),
            rule(Some(Match::Stray(Set::HairpinConnections)), Action::Drop, "out of its flow, could not be rewritten"),
        ],
        Chain::Services => services(),
        Chain::FirewallCheck => vec![
            rule(Some(Match::FrontendAndSource(Set::FirewallSources)), Action::Return, "in a source range"),
            rule(None, Action::Drop, "outside of the source ranges"),
        ],
        // A reset reaches the node's own clients at once; to them, a port unreachable comes while connect() holds the
        // socket, and only the second one, a second later, counts.
        Chain::RejectChain => {
            vec![rule(Some(Match::Tcp), Action::Reset, "refused"), rule(None, Action::Unreachable, "refused")]
        }
        Chain::Masquerading => vec![
            rule(None, Action::Unmark, "the mark has served"),
            rule(None, Action::Masquerade, "as an address of this node"),
        ],
        Chain::Spread(at, spread) => {
            let mark = rule(None, Action::Mark, "to be masqueraded");
            let dnat = rule(None, Action::Dnat(at, spread), "one of so many, each as likely");
            let held = spread.hold.map(|hold| rule(None, Action::Jump(Chain::Affinity(hold)), "was it here before?"));
            let mark = spread.masquerade.then_some(mark);
            mark.into_iter().chain(held).chain([dnat]).collect()
        }
        Chain::Affinity(hold) => holds.get(&hold).map(super::hold::Hold::rules).unwrap_or_default(),
        Chain::BySource(at, goals) => by_source(at, goals),
    }
}

fn services() -> Vec<Rule> {
    let at_node = Some(Match::Destination(Set::NodeportIps));
    vec![
        rule(None, Action::Vmap(Place::Address, Set::FirewallIps), "source ranges"),
        rule(None, Action::Vmap(Place::Address, Set::ServiceIps), "frontends"),
        rule(None, Action::Vmap(Place::Address, Set::NoEndpointServices), "frontends without an endpoint"),
        rule(at_node, Action::Vmap(Place::NodePort, Set::ServiceNodeports), "node ports"),
        rule(at_node, Action::Vmap(Place::NodePort, Set::NoEndpointNodeports), "node ports without an endpoint"),
        rule(
            Some(Match::Destination(Set::ClusterIps)),
            Action::Goto(Chain::RejectChain),
            "a port that the Service does not have",
        ),
        rule(Some(Match::Destination(Set::ServiceCidrs)), Action::Drop, "an address that no Service has"),
    ]
}

fn by_source(at: At, goals: Goals) -> Vec<Rule> {
    let mut rules = Vec::with_capacity(3);
    if goals.pod != goals.node || goals.pod != goals.elsewhere {
        rules.push(rule(Some(Match::Source(Set::PodNetworks)), action(at, goals.pod), "pods"));
    }
    if goals.node != goals.elsewhere {
        rules.push(rule(Some(Match::Source(Set::NodeIps)), action(at, goals.node), "this node"));
    }
    rules.push(rule(None, action(at, goals.elsewhere), "everyone else"));
    rules
}

/// How a rule brings a packet to a goal.
fn action(at: At, goal: Goal) -> Action {
    match goal {
        Goal::Reject => Action::Goto(Chain::RejectChain),
        Goal::Drop => Action::Drop,
        Goal::Spread(spread) => Action::Goto(Chain::Spread(at, spread)),
    }
}

/// The index of the first backend of a spread.
pub fn offset(spread: Spread) -> u32 {
    u32::from(spread.set) * SET_STRIDE
}

impl Rule {
    /// What nft reads, without the comment.
    pub fn text(&self, family: Family) -> String {
        let ip = ip(family);
        let matches = match self.matches {
            None => String::new(),
            Some(Match::Source(set)) => format!("{ip} saddr @{set} "),
            Some(Match::Destination(set)) => format!("{ip} daddr @{set} "),
            Some(Match::SourceAndDestination(set)) => format!("{ip} saddr . {ip} daddr @{set} "),
            Some(Match::FrontendAndSource(set)) => {
                // In a set with ranges nft turns the bytes of `meta l4proto` round, which Linux 6.12.117 refuses for one byte. A packet
                // of IPv6 with extension headers is then in no range, and dropped.
                let protocol = if family == Family::Ipv4 { "ip protocol" } else { "ip6 nexthdr" };
                format!("{ip} daddr . {protocol} . th dport . {ip} saddr @{set} ")
            }
            Some(Match::Marked) => format!("meta mark and {MASQUERADE_MARK:#x} == {MASQUERADE_MARK:#x} "),
            Some(Match::Tcp) => "meta l4proto tcp ".to_owned(),
            Some(Match::Held(held)) => is_held(held, ip),
            Some(Match::Stray(set)) => {
                let source = if set == Set::HairpinConnections {
                    format!("{ip} saddr . {ip} saddr")
                } else {
                    format!("{ip} saddr")
                };
                format!("ct state invalid tcp flags & (syn | rst) == 0 {source} @{set} ")
            }
            Some(Match::OneIn(count)) => format!("numgen random mod {count} == 0 "),
        };
        let action = match self.action {
            Action::Vmap(place, set) => format!("{} vmap @{set}", frontend(place, ip)),
            Action::Jump(chain) => format!("jump {chain}"),
            Action::Goto(chain) => format!("goto {chain}"),
            Action::Return => "return".to_owned(),
            Action::Drop => "drop".to_owned(),
            Action::Reset => "reject with tcp reset".to_owned(),
            Action::Unreachable => "reject".to_owned(),
            Action::Mark => format!("meta mark set mark or {MASQUERADE_MARK:#x}"),
            Action::Unmark => format!("meta mark set mark and {:#x}", !MASQUERADE_MARK),
            Action::Masquerade => "masquerade fully-random".to_owned(),
            Action::Dnat(at, spread) => {
                let (count, offset, map, protocol) = (spread.count, offset(spread), at.endpoints(), at.protocol);
                let offset = if offset == 0 { String::new() } else { format!(" offset {offset}") };
                let address = if at.place == Place::Address { format!("{ip} daddr . ") } else { String::new() };
                format!("dnat {ip} to {address}{protocol} dport . numgen random mod {count}{offset} map @{map}")
            }
            Action::Hold(Held { protocol, service, to, timeout_s }) => {
                let (address, port, set) = (to.ip(), to.port(), Set::Affinity);
                format!(
                    "meta l4proto {protocol} update @{set} {{ {ip} saddr . {service:#x} . {address} . {port} timeout \
                     {timeout_s}s }} dnat {ip} to {to}"
                )
            }
        };
        format!("{matches}{action}")
    }

    /// The comment that it carries in the kernel: why, and a fingerprint of the text. Rules do not read back from nft
    /// as they were written; comments do, and so tell a rule that is ours and as it should be.
    pub fn comment(&self, family: Family) -> String {
        format!("{} #{:08x}", self.why, fingerprint([self.text(family).as_str()]))
    }
}

/// nft takes no constant in a key that is looked up. A field of the packet of which no bit is kept, with the constant put
/// in, is one.
fn is_held(held: Held, ip: &str) -> String {
    let (address, port) = (held.to.ip(), held.to.port());
    let nothing = if matches!(held.to, SocketAddr::V4(_)) { "0.0.0.0" } else { "::" };
    format!(
        "{ip} saddr . meta mark and 0x0 xor {:#x} . {ip} daddr and {nothing} xor {address} . th dport and 0x0 xor {port} \
         @{} ",
        held.service,
        Set::Affinity
    )
}

fn frontend(place: Place, ip: &str) -> String {
    match place {
        Place::Address => format!("{ip} daddr . meta l4proto . th dport"),
        Place::NodePort => "meta l4proto . th dport".to_owned(),
    }
}
