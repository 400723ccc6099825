//! Pure. What the rules of a program do to a packet, table by table, chain by chain and rule by rule as the kernel goes
//! through them.
//!
//! It knows nothing of plans and Services: that it comes to the same verdicts as the walk of the plan shows that the rules
//! say what the plan means. Where a rule depends on chance, both ways are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};

use super::chain::{Base, Chain, Table};
use super::program::Program;
use super::rule::{Action, Match, Rule};

/// The verdict of a program's rules on the first packet of a flow from a client that was last sent to `remembered`.
pub fn walk(program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let fates = fates(program, packet, remembered);
    let rewrites: BTreeSet<Rewrite> = fates.keys().filter_map(Fate::rewrite).collect();
    // No packet of a right program has more than one kind of fate.
    if fates.contains_key(&Fate::Drop) {
        Verdict::Drop
    } else if fates.contains_key(&Fate::Reject) {
        Verdict::Reject
    } else if !rewrites.is_empty() {
        Verdict::Rewrite(rewrites)
    } else {
        Verdict::NotOurs
    }
}

/// What can become of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It goes on as it is.
    NotOurs,
    /// It is refused.
    Reject,
    /// It is thrown away.
    Drop,
    /// It goes to a backend.
    Rewritten(Rewrite),
}

impl Fate {
    fn rewrite(&self) -> Option<Rewrite> {
        match self {
            Fate::Rewritten(rewrite) => Some(*rewrite),
            _ => None,
        }
    }
}

/// How likely each fate of the first packet of a flow is, from a client that was last sent to `remembered`.
pub fn fates(program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> BTreeMap<Fate, f64> {
    let mut fates = BTreeMap::new();
    let family = program.family();
    if Family::of(packet.source.ip()) != family || Family::of(packet.destination.ip()) != family {
        // The other family's tables see it.
        fates.insert(Fate::NotOurs, 1.0);
        return fates;
    }
    let walker = Walker { program, remembered };
    let base = match packet.entry {
        Entry::Interface => Base::Prerouting,
        Entry::Local => Base::Output,
    };
    for state in walker.hook(Table::Nat, base, State::of(packet)) {
        let passing = match packet.entry {
            Entry::Local => Base::Output,
            Entry::Interface if program.is_node_address(state.destination.ip()) => Base::Input,
            Entry::Interface => Base::Forward,
        };
        for state in walker.hook(Table::Filter, passing, state) {
            let fate = match state.end {
                Some(Ended::Dropped) => Fate::Drop,
                Some(Ended::Rejected) => Fate::Reject,
                _ if !state.is_sent_on => Fate::NotOurs,
                _ => {
                    let leaving = walker.hook(Table::Nat, Base::Postrouting, state);
                    let masquerade = leaving.iter().any(|state| state.end == Some(Ended::Masqueraded));
                    Fate::Rewritten(Rewrite { to: state.destination, masquerade })
                }
            };
            *fates.entry(fate).or_default() += state.chance;
        }
    }
    fates
}

/// A packet on its way.
#[derive(Debug, Clone, Copy)]
struct State {
    protocol: Protocol,
    source: SocketAddr,
    destination: SocketAddr,
    is_marked: bool,
    /// Its destination became another.
    is_translated: bool,
    /// A rule gave it its destination, which may be the one that it had.
    is_sent_on: bool,
    /// How likely it is to be on this way.
    chance: f64,
    /// What ended its way through the table, if anything did.
    end: Option<Ended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Accepted,
    Dropped,
    Rejected,
    SentOn,
    Masqueraded,
    /// Back to the chain that jumped here.
    Returned,
}

impl State {
    fn of(packet: &Packet) -> State {
        State {
            protocol: packet.protocol,
            source: packet.source,
            destination: packet.destination,
            is_marked: false,
            is_translated: false,
            is_sent_on: false,
            chance: 1.0,
            end: None,
        }
    }

    fn ended(self, end: Ended) -> State {
        State { end: Some(end), ..self }
    }
}

struct Walker<'a> {
    program: &'a Program,
    remembered: Option<SocketAddr>,
}

impl Walker<'_> {
    /// All the ways out of a hook's chain.
    fn hook(&self, table: Table, base: Base, state: State) -> Vec<State> {
        self.chain(table, &Chain::Base(base), State { end: None, ..state })
    }

    /// All the ways out of a chain.
    fn chain(&self, table: Table, chain: &Chain, state: State) -> Vec<State> {
        let (mut within, mut out) = (vec![state], Vec::new());
        for rule in self.program.rules(table, chain) {
            let mut next = Vec::new();
            for state in std::mem::take(&mut within) {
                let chance = self.chance(&rule, &state);
                if chance > 0.0 {
                    let met = State { chance: state.chance * chance, ..state };
                    for after in self.act(table, &rule.action, met) {
                        if after.end.is_none() { next.push(after) } else { out.push(after) }
                    }
                }
                if chance < 1.0 {
                    next.push(State { chance: state.chance * (1.0 - chance), ..state });
                }
            }
            within = next;
        }
        out.iter_mut().filter(|state| state.end == Some(Ended::Returned)).for_each(|state| state.end = None);
        out.extend(within);
        out
    }

    fn act(&self, table: Table, action: &Action, state: State) -> Vec<State> {
        let after = match action {
            Action::Jump(chain) => return self.chain(table, chain, state),
            Action::Return => state.ended(Ended::Returned),
            Action::Accept => state.ended(Ended::Accepted),
            Action::Drop => state.ended(Ended::Dropped),
            Action::Reject | Action::Reset => state.ended(Ended::Rejected),
            Action::Masquerade => state.ended(Ended::Masqueraded),
            Action::Mark => State { is_marked: true, ..state },
            Action::Unmark => State { is_marked: false, ..state },
            Action::Count => state,
            Action::Dnat(to) => State {
                is_translated: *to != state.destination,
                is_sent_on: true,
                destination: *to,
                ..state.ended(Ended::SentOn)
            },
        };
        vec![after]
    }

    /// How likely it is that all of a rule's conditions hold.
    fn chance(&self, rule: &Rule, state: &State) -> f64 {
        rule.matches.iter().map(|asked| self.holds(asked, state)).product()
    }

    fn holds(&self, asked: &Match, state: &State) -> f64 {
        let (source, destination) = (state.source.ip(), state.destination);
        let holds = match asked {
            Match::Source(range) => range.contains(&source),
            Match::NotSource(range) => !range.contains(&source),
            Match::SourceIsLocal => self.program.is_node_address(source),
            Match::Destination(range) => range.contains(&destination.ip()),
            Match::Port(protocol, port) => state.protocol == *protocol && destination.port() == *port,
            Match::Protocol(protocol) => state.protocol == *protocol,
            Match::Marked => state.is_marked,
            Match::NotMarked => !state.is_marked,
            Match::New | Match::Remember(_) | Match::SentToLoopback => true,
            Match::NotTranslated => !state.is_translated,
            Match::Known | Match::Invalid => false,
            Match::WithinFlow => false,
            Match::SentBefore(chain, _) => chain.endpoint().is_some_and(|at| self.remembered == Some(at)),
            Match::Chance(chance) => return f64::from(*chance) / f64::from(1u32 << 31),
        };
        f64::from(u8::from(holds))
    }
}
