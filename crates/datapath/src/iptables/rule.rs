//! Pure. Rules, and their text as `iptables-save` writes it and `iptables-restore` reads it.

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use signpost_core::object::{Family, Protocol};

use super::chain::Chain;

/// The bit that marks a packet for masquerade, kube-proxy's bit 14, as value and mask.
pub const MARK: &str = "0x4000/0x4000";
/// The longest comment that the kernel takes is 255 bytes with its end.
const COMMENT_MOST: usize = 250;

/// One rule: if all matches hold, the action is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// For people; empty: none.
    pub comment: String,
    /// In the order in which the kernel tests them, after source and destination.
    pub matches: Vec<Match>,
    /// What is done.
    pub action: Action,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// From this range.
    Source(IpNet),
    /// From outside of this range.
    NotSource(IpNet),
    /// From an address of this machine.
    SourceIsLocal,
    /// To this range.
    Destination(IpNet),
    /// Of this protocol and to this port.
    Port(Protocol, u16),
    /// Of this protocol.
    Protocol(Protocol),
    /// Marked for masquerade.
    Marked,
    /// Not marked.
    NotMarked,
    /// The first packet of a flow.
    New,
    /// Its destination was not rewritten.
    NotTranslated,
    /// Of a flow that is known, or belongs to one.
    Known,
    /// Of no flow that conntrack knows, nor the first of one.
    Invalid,
    /// Of TCP: neither SYN nor RST is set.
    WithinFlow,
    /// The source was sent to this endpoint within the time.
    SentBefore(Chain, Duration),
    /// Always holds, and remembers that the source was sent to this endpoint.
    Remember(Chain),
    /// Holds with this probability, in 2^-31.
    Chance(u32),
    /// It was sent to an address of 127.0.0.0/8, and rewritten to another.
    SentToLoopback,
}

/// What is done to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Goes through another chain, and comes back if nothing there ended its way.
    Jump(Chain),
    /// Goes on behind the rule that jumped here.
    Return,
    /// Ends its way through this table.
    Accept,
    /// Is thrown away.
    Drop,
    /// Is refused with a message of ICMP.
    Reject,
    /// Is refused with a reset of TCP: a client in the middle of connect() may take ICMP's message for a passing trouble.
    Reset,
    /// Gets this destination.
    Dnat(SocketAddr),
    /// Gets the mark.
    Mark,
    /// Loses it.
    Unmark,
    /// Gets the source address of the interface it leaves through.
    Masquerade,
    /// Is counted, and goes on.
    Count,
}

impl Rule {
    /// A rule with a comment; empty: none.
    pub fn new(comment: &str, matches: impl Into<Vec<Match>>, action: Action) -> Rule {
        Rule { comment: comment.to_owned(), matches: matches.into(), action }
    }

    /// Its text without the chain, in the order that `iptables-save` keeps: source, destination, protocol, then the rest.
    pub fn write(&self, family: Family, out: &mut String) {
        for asked in self.matches.iter().filter(|asked| asked.is_source_or_destination()) {
            asked.write(out);
        }
        for protocol in self.matches.iter().filter_map(Match::protocol) {
            push(out, format_args!("-p {protocol} "));
        }
        if !self.comment.is_empty() {
            push(out, format_args!("-m comment --comment \"{}\" ", printable(&self.comment)));
        }
        for asked in self.matches.iter().filter(|asked| !asked.is_source_or_destination()) {
            asked.write_module(family, out);
        }
        self.action.write(family, out);
        out.truncate(out.trim_end().len());
    }
}

impl Match {
    fn is_source_or_destination(&self) -> bool {
        matches!(self, Match::Source(_) | Match::NotSource(_) | Match::Destination(_))
    }

    fn protocol(&self) -> Option<Protocol> {
        match self {
            Match::Port(protocol, _) | Match::Protocol(protocol) => Some(*protocol),
            _ => None,
        }
    }

    /// A range that is everything is no condition, and `iptables-save` leaves it out.
    fn write(&self, out: &mut String) {
        match self {
            Match::Source(range) if range.prefix_len() > 0 => push(out, format_args!("-s {} ", range.trunc())),
            Match::NotSource(range) => push(out, format_args!("! -s {} ", range.trunc())),
            Match::Destination(range) if range.prefix_len() > 0 => push(out, format_args!("-d {} ", range.trunc())),
            _ => {}
        }
    }

    fn write_module(&self, family: Family, out: &mut String) {
        let mask = match family {
            Family::Ipv4 => "255.255.255.255",
            Family::Ipv6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        match self {
            Match::SourceIsLocal => out.push_str("-m addrtype --src-type LOCAL "),
            Match::Port(protocol, port) => push(out, format_args!("-m {protocol} --dport {port} ")),
            Match::Marked => push(out, format_args!("-m mark --mark {MARK} ")),
            Match::NotMarked => push(out, format_args!("-m mark ! --mark {MARK} ")),
            Match::New => out.push_str("-m conntrack --ctstate NEW "),
            Match::NotTranslated => out.push_str("-m conntrack ! --ctstate DNAT "),
            Match::Invalid => out.push_str("-m conntrack --ctstate INVALID "),
            Match::WithinFlow => out.push_str("-m tcp --tcp-flags SYN,RST NONE "),
            Match::Known => out.push_str("-m conntrack --ctstate RELATED,ESTABLISHED "),
            Match::SentBefore(chain, within) => push(
                out,
                format_args!(
                    "-m recent --rcheck --seconds {} --reap --name {} --mask {mask} --rsource ",
                    within.as_secs().max(1),
                    chain.name()
                ),
            ),
            Match::Remember(chain) => {
                push(out, format_args!("-m recent --set --name {} --mask {mask} --rsource ", chain.name()));
            }
            Match::Chance(chance) => {
                let share = f64::from(*chance) / f64::from(1u32 << 31);
                push(out, format_args!("-m statistic --mode random --probability {share:.11} "));
            }
            Match::SentToLoopback => out.push_str("-m conntrack --ctstate DNAT --ctorigdst 127.0.0.0/8 "),
            Match::Source(_) | Match::NotSource(_) | Match::Destination(_) | Match::Protocol(_) => {}
        }
    }
}

impl Action {
    fn write(&self, family: Family, out: &mut String) {
        match self {
            Action::Jump(chain) => push(out, format_args!("-j {}", chain.name())),
            Action::Return => out.push_str("-j RETURN"),
            Action::Accept => out.push_str("-j ACCEPT"),
            Action::Drop => out.push_str("-j DROP"),
            Action::Reject => out.push_str(match family {
                Family::Ipv4 => "-j REJECT --reject-with icmp-port-unreachable",
                Family::Ipv6 => "-j REJECT --reject-with icmp6-port-unreachable",
            }),
            Action::Reset => out.push_str("-j REJECT --reject-with tcp-reset"),
            Action::Dnat(to) => push(out, format_args!("-j DNAT --to-destination {to}")),
            Action::Mark => push(out, format_args!("-j MARK --set-xmark {MARK}")),
            Action::Unmark => out.push_str("-j MARK --set-xmark 0x4000/0x0"),
            Action::Masquerade => out.push_str("-j MASQUERADE --random-fully"),
            Action::Count => {}
        }
    }
}

fn push(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}

/// Only what can't end a quoted word or a line. Kubernetes' names have nothing else; what an object claims may.
fn printable(comment: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || " /:._-,>[]".contains(c);
    comment.chars().take(COMMENT_MOST).map(|c| if allowed(c) { c } else { '_' }).collect()
}

/// A range that is one address.
pub fn single(address: IpAddr) -> IpNet {
    IpNet::from(address)
}
