//! Pure. What the rules, sets and virtual servers of a program do to a packet, hook by hook as the kernel goes through them.
//!
//! It knows nothing of plans and Services: that it comes to the same verdicts as the walk of the plan shows that the program
//! says what the plan means.
//!
//! ```text
//! comes in  ─▶ mangle, nat PREROUTING ─▶ for this machine? ─▶ filter INPUT ─▶ IPVS ─▶ nat POSTROUTING
//!                                         else             ─▶ filter FORWARD
//! made here ─▶ mangle, nat OUTPUT ─▶ IPVS ─▶ nat POSTROUTING, or filter OUTPUT if IPVS has no server for it
//! ```

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use signpost_core::object::Family;
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};

use super::layout::MASQUERADE;
use super::program::Program;
use super::rule::{Action, Match, Table, rules};
use super::server::{Place, Stickiness};
use super::set::{Element, Set};

/// The verdict of a program on the first packet of a flow from a client that was last sent to `remembered`. A server that
/// is not sticky sends it anywhere all the same.
pub fn walk(program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let family = program.family();
    if Family::of(packet.source.ip()) != family || Family::of(packet.destination.ip()) != family {
        return Verdict::NotOurs;
    }
    let mut walker = Walker { program, source: packet.source.ip(), at: None, mark: 0, is_translated: false };
    walker.at = place(packet, packet.destination);
    let Some(place) = walker.at else { return Verdict::NotOurs };
    let first = if packet.entry == Entry::Interface { "PREROUTING" } else { "OUTPUT" };
    for table in [Table::Mangle, Table::Nat] {
        if let Some(end) = walker.chain(table, first).and_then(End::verdict) {
            return end;
        }
    }
    if packet.entry == Entry::Interface {
        let is_local = program.is_local(place.address);
        if let Some(end) =
            walker.chain(Table::Filter, if is_local { "INPUT" } else { "FORWARD" }).and_then(End::verdict)
        {
            return end;
        }
        if !is_local {
            return Verdict::NotOurs;
        }
    }
    if let Some((_, server)) = program.server(walker.mark, place) {
        let is_sticky = server.settings.stickiness != Stickiness::None;
        let bound = remembered.filter(|to| is_sticky && server.destinations.contains(to));
        let to = server.destinations.iter().filter(|to| bound.is_none_or(|bound| bound == **to));
        return Verdict::Rewrite(to.map(|to| walker.translated(packet, *to)).collect());
    }
    if packet.entry == Entry::Local
        && let Some(end) = walker.chain(Table::Filter, "OUTPUT").and_then(End::verdict)
    {
        return end;
    }
    Verdict::NotOurs
}

fn place(packet: &Packet, to: SocketAddr) -> Option<Place> {
    Some(Place { address: to.ip(), protocol: packet.protocol, port: NonZeroU16::new(to.port())? })
}

/// What ended a packet's way through a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Accepted,
    Dropped,
    Rejected,
    Masqueraded,
}

impl End {
    fn verdict(self) -> Option<Verdict> {
        match self {
            End::Dropped => Some(Verdict::Drop),
            End::Rejected => Some(Verdict::Reject),
            End::Accepted | End::Masqueraded => None,
        }
    }
}

/// A packet on its way.
#[derive(Debug, Clone, Copy)]
struct Walker<'a> {
    program: &'a Program,
    source: IpAddr,
    /// Where it goes.
    at: Option<Place>,
    mark: u32,
    is_translated: bool,
}

impl Walker<'_> {
    fn translated(self, packet: &Packet, to: SocketAddr) -> Rewrite {
        let mut leaving = Walker { at: place(packet, to), is_translated: true, ..self };
        // Its second way through OUTPUT, as one of IPVS's, changes nothing; nat has its mind made up already.
        let masquerade = leaving.chain(Table::Nat, "POSTROUTING") == Some(End::Masqueraded);
        Rewrite { to, masquerade }
    }

    /// Goes through a chain; `None`: to its end, or back.
    fn chain(&mut self, table: Table, chain: &str) -> Option<End> {
        for rule in rules(self.program.plan(), table, chain) {
            if !rule.matches.iter().all(|asked| self.holds(asked)) {
                continue;
            }
            match rule.action {
                Action::Jump(to) => {
                    if let Some(end) = self.chain(table, to) {
                        return Some(end);
                    }
                }
                Action::Return => return None,
                Action::Accept => return Some(End::Accepted),
                Action::Drop => return Some(End::Dropped),
                Action::Reject | Action::Reset => return Some(End::Rejected),
                Action::Masquerade => return Some(End::Masqueraded),
                Action::MarkFrom(set) => self.mark = self.mark_from(set).unwrap_or(self.mark),
                Action::Mark => self.mark |= MASQUERADE,
                Action::Unmark => self.mark ^= MASQUERADE,
            }
        }
        None
    }

    fn mark_from(&self, set: Set) -> Option<u32> {
        self.program.mark(set, Element::Place(self.at?))
    }

    fn holds(&self, asked: &Match) -> bool {
        let Some(at) = self.at else { return false };
        match asked {
            Match::Source(range) => range.contains(&self.source),
            Match::SourceIsLocal => self.program.is_local(self.source),
            Match::Destination(range) => range.contains(&at.address),
            Match::Protocol(protocol) => at.protocol == *protocol,
            Match::In(set) => self.is_in(*set, at),
            Match::NotIn(set) => !self.is_in(*set, at),
            Match::SourceIn(set) => self.program.has(*set, Element::Address(self.source)),
            Match::Mark(value, mask) => self.mark & mask == *value,
            Match::NotMark(value, mask) => self.mark & mask != *value,
            Match::New => true,
            Match::Known => false,
            Match::Translated => self.is_translated,
            Match::NotTranslated => !self.is_translated,
        }
    }

    /// As the set looks it up, by its directions.
    fn is_in(&self, set: Set, at: Place) -> bool {
        match set {
            Set::LoopBack => self.program.has(set, Element::PlaceAndClient(at, self.source)),
            Set::LoadBalancerSources => self.program.sources(at).any(|range| range.contains(&self.source)),
            Set::IpvsIps => self.program.has(set, Element::Address(at.address)),
            _ => self.program.has(set, Element::Place(at)) || self.program.has(set, Element::Port(at.port)),
        }
    }
}
