//! Pure. What the rules of a program do to a packet, chain by chain and map by map as the kernel goes through them.
//!
//! It knows nothing of plans and Services: that it comes to the same verdicts as the walk of the plan shows that the
//! rules say what the plan means.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};
use signpost_core::plan::FrontendKey;

use super::chain::{At, Chain, Place, Spread};
use super::element::{Data, Key};
use super::layout::Set;
use super::program::Program;
use super::rule::{Action, Match, offset, rules};

/// The verdict of a program's rules on the first packet of a flow from a client that was last sent to `remembered`.
pub fn walk(program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let (source, destination) = (packet.source.ip(), packet.destination.ip());
    if Family::of(source) != program.family || Family::of(destination) != program.family {
        // The other family's table sees it.
        return Verdict::NotOurs;
    }
    let base = match packet.entry {
        Entry::Interface => Chain::NatPrerouting,
        Entry::Local => Chain::NatOutput,
    };
    let (protocol, destination) = (packet.protocol, packet.destination);
    let mut walker = Walker { program, protocol, source, destination, is_marked: false, remembered };
    match walker.chain(base) {
        None | Some(Fate::Masquerade) => Verdict::NotOurs,
        Some(Fate::Reject) => Verdict::Reject,
        Some(Fate::Drop) => Verdict::Drop,
        Some(Fate::Dnat(to)) => {
            let is_marked = walker.is_marked;
            let rewrites = to.into_iter().map(|to| {
                let mut leaving = Walker { destination: to, is_marked, ..walker };
                let masquerade = leaving.chain(Chain::NatPostrouting) == Some(Fate::Masquerade);
                Rewrite { to, masquerade }
            });
            Verdict::Rewrite(rewrites.collect())
        }
    }
}

/// What ends a packet's way through a hook, if anything does before the base chain's end, where it is accepted.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Drop,
    Reject,
    /// To one of these.
    Dnat(BTreeSet<SocketAddr>),
    Masquerade,
}

/// A packet on its way through one hook.
#[derive(Clone, Copy)]
struct Walker<'a> {
    program: &'a Program,
    protocol: Protocol,
    source: IpAddr,
    destination: SocketAddr,
    is_marked: bool,
    /// The backend that the client was last sent to.
    remembered: Option<SocketAddr>,
}

impl Walker<'_> {
    /// Goes through a chain; `None`: back to where it was jumped to from.
    fn chain(&mut self, chain: Chain) -> Option<Fate> {
        debug_assert!(self.program.has_chain(chain), "the kernel refuses a rule that names a chain that is not there");
        // Where chance may have sent it already.
        let mut sent = BTreeSet::new();
        for rule in rules(chain, &self.program.holds) {
            if !rule.matches.is_none_or(|asked| self.matches(asked)) {
                continue;
            }
            match rule.action {
                Action::Jump(next) => {
                    if let Some(fate) = self.chain(next) {
                        return Some(fate);
                    }
                }
                Action::Goto(next) => return self.chain(next),
                Action::Return => return None,
                Action::Drop => return Some(Fate::Drop),
                Action::Reset | Action::Unreachable => return Some(Fate::Reject),
                Action::Mark => self.is_marked = true,
                Action::Unmark => self.is_marked = false,
                Action::Masquerade => return Some(Fate::Masquerade),
                Action::Vmap(place, map) => match self.verdict(place, map) {
                    Some(Data::Goto(next)) => return self.chain(next),
                    Some(Data::Drop) => return Some(Fate::Drop),
                    Some(Data::Jump(next)) => {
                        if let Some(fate) = self.chain(next) {
                            return Some(fate);
                        }
                    }
                    _ => {}
                },
                Action::Dnat(at, spread) => {
                    let to = self.backends(at, spread);
                    if !to.is_empty() {
                        return Some(Fate::Dnat(to));
                    }
                }
                Action::Hold(held) if held.protocol == self.protocol => {
                    sent.insert(held.to);
                    if !matches!(rule.matches, Some(Match::OneIn(2..))) {
                        return Some(Fate::Dnat(sent));
                    }
                }
                Action::Hold(_) => {}
            }
        }
        None
    }

    fn matches(&self, asked: Match) -> bool {
        match asked {
            Match::Source(set) => self.contains(set, self.source),
            Match::Destination(set) => self.contains(set, self.destination.ip()),
            Match::SourceAndDestination(set) => {
                self.source == self.destination.ip() && self.program.element(set, &Key::Loop(self.source)).is_some()
            }
            Match::FrontendAndSource(set) => self.frontend(Place::Address).is_some_and(|frontend| {
                ranges(self.source).any(|range| self.program.element(set, &Key::Source(frontend, range)).is_some())
            }),
            Match::Marked => self.is_marked,
            Match::Tcp => self.protocol == Protocol::Tcp,
            Match::Held(held) => self.remembered == Some(held.to),
            Match::OneIn(_) => true,
            // The first packet of a flow is none.
            Match::Stray(_) => false,
        }
    }

    fn contains(&self, set: Set, address: IpAddr) -> bool {
        self.program.element(set, &Key::Address(address)).is_some()
            || ranges(address).any(|range| self.program.element(set, &Key::Network(range)).is_some())
    }

    fn frontend(&self, place: Place) -> Option<FrontendKey> {
        let (address, protocol) = (self.destination.ip(), self.protocol);
        let port = NonZeroU16::new(self.destination.port())?;
        Some(match place {
            Place::Address => FrontendKey::Address { address, protocol, port },
            Place::NodePort => FrontendKey::NodePort { protocol, port },
        })
    }

    fn verdict(&self, place: Place, map: Set) -> Option<Data> {
        Some(self.program.element(map, &Key::Frontend(self.frontend(place)?))?.data)
    }

    /// What the endpoint map holds at the indexes that the random number can be.
    fn backends(&self, at: At, spread: Spread) -> BTreeSet<SocketAddr> {
        // The rule asks for the map's protocol.
        let frontend = self.frontend(at.place).filter(|_| self.protocol == at.protocol);
        let Some(frontend) = frontend else { return BTreeSet::new() };
        let first = offset(spread);
        let found = (first..first + spread.count).filter_map(|index| {
            match self.program.element(at.endpoints(), &Key::Endpoint(frontend, index))?.data {
                Data::To(to) => Some(to),
                _ => None,
            }
        });
        found.collect()
    }
}

/// Every range that an address is in, the widest first: an interval set has at most one of them.
fn ranges(address: IpAddr) -> impl Iterator<Item = IpNet> {
    let most = if address.is_ipv4() { 32 } else { 128 };
    (0..=most).filter_map(move |length| Some(IpNet::new(address, length).ok()?.trunc()))
}
