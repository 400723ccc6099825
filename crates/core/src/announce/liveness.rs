//! Pure. Which nodes live, by the heartbeats that this one hears and by what others say they hear.
//!
//! Times are spans since this node's start. A node counts as living while it is heard, or while one that is heard says that it
//! hears it: a broken path between two nodes is not the death of one. Before this node has listened for long enough to
//! know, everybody counts as living.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::hash;

/// How often a node says that it lives.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// A node that was silent for so long is dead.
pub const DEAD_AFTER: Duration = Duration::from_millis(800);

/// For so long the former life of a node must have been silent before one that began earlier, by the node's own clock, counts as
/// its next: the clock was set back. What was sent in a former life and comes late is not taken for that.
pub const SET_BACK: Duration = Duration::from_secs(10);

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub node: Arc<str>,
    /// When it started, by its own clock: a later start is another life.
    pub life: u64,
    /// Counted up within a life.
    pub number: u64,
    /// It is about to end.
    pub leaving: bool,
    /// By [`id`], the nodes that it hears, each with the [`digest`] of what that node owns by the API's records; 0 from a node
    /// that does not reach the API.
    pub hears: BTreeMap<u64, u64>,
}

/// A node's name in a heartbeat.
pub fn id(node: &str) -> u64 {
    hash(&[node.as_bytes()])
}

/// What a node owns, in a number. Never 0.
pub fn digest<'a>(addresses: impl Iterator<Item = &'a IpAddr>) -> u64 {
    let sum = addresses.fold(0u64, |sum, address| {
        let part = match address {
            IpAddr::V4(address) => hash(&[&address.octets()]),
            IpAddr::V6(address) => hash(&[&address.octets()]),
        };
        sum.wrapping_add(part)
    });
    sum.max(1)
}

/// What is known of the others.
#[derive(Debug)]
pub struct Liveness {
    me: u64,
    /// From when on it has listened.
    listens_from: Duration,
    peers: BTreeMap<Arc<str>, Peer>,
}

#[derive(Debug)]
struct Peer {
    last: Heartbeat,
    heard_at: Duration,
}

impl Liveness {
    /// Nobody was heard yet.
    pub fn new(me: &str) -> Liveness {
        Liveness { me: id(me), listens_from: Duration::ZERO, peers: BTreeMap::new() }
    }

    /// Takes a heartbeat in. `false`: it is old, or said twice, and counts for nothing.
    pub fn heard(&mut self, heartbeat: Heartbeat, now: Duration) -> bool {
        if let Some(peer) = self.peers.get(&heartbeat.node)
            && (peer.last.life, peer.last.number) >= (heartbeat.life, heartbeat.number)
        {
            let was_set_back = heartbeat.life < peer.last.life && now >= peer.heard_at + SET_BACK;
            if !was_set_back {
                return false;
            }
        }
        self.peers.insert(heartbeat.node.clone(), Peer { last: heartbeat, heard_at: now });
        true
    }

    /// This node did nothing for a while, and so heard nobody: the others' silence in that time says nothing of them.
    pub fn slept(&mut self, span: Duration) {
        self.listens_from += span;
        self.peers.values_mut().for_each(|peer| peer.heard_at += span);
    }

    /// Whether a node counts as living.
    pub fn lives(&self, node: &str, now: Duration) -> bool {
        match self.peers.get(node) {
            None => now < self.listens_from + DEAD_AFTER || self.is_told_of(node, now),
            Some(peer) if peer.last.leaving => false,
            Some(peer) => peer.is_heard(now) || self.is_told_of(node, now),
        }
    }

    /// When, without a word of anybody, the next node will count as dead; `None`: none will.
    pub fn next_death(&self, now: Duration) -> Option<Duration> {
        let ends = self.peers.values().map(|peer| peer.heard_at + DEAD_AFTER).filter(|end| *end > now);
        let known = self.listens_from + DEAD_AFTER;
        ends.chain((now < known).then_some(known)).min()
    }

    /// The nodes that are heard.
    pub fn heard_nodes(&self, now: Duration) -> impl Iterator<Item = &Arc<str>> {
        self.peers.iter().filter(move |(_, peer)| peer.is_heard(now)).map(|(node, _)| node)
    }

    /// Whether all is as it should be with these others: each is heard, hears this node, and knows of what it owns. If not,
    /// it is to be asked whether the API is reached.
    pub fn is_well(&self, others: &BTreeSet<Arc<str>>, owns: u64, now: Duration) -> bool {
        let says = self.says_of_me(others, now);
        says.len() == others.len() && says.iter().all(|said| *said == owns || *said == 0)
    }

    /// Whether this node may answer for what it owns, though it does not reach the API: others who do say that the records are
    /// as this node knows them; or nobody whom it hears reaches the API, and they are the most.
    pub fn may_answer_without_api(&self, others: &BTreeSet<Arc<str>>, owns: u64, now: Duration) -> bool {
        let says = self.says_of_me(others, now);
        let mut informed = says.iter().filter(|said| **said != 0).peekable();
        if informed.peek().is_some() {
            return informed.all(|said| *said == owns);
        }
        2 * (says.len() + 1) > others.len() + 1
    }

    /// Whether less than half of all nodes is heard, this one included: the others may be well, and this one cut off.
    pub fn is_in_minority(&self, others: &BTreeSet<Arc<str>>, now: Duration) -> bool {
        2 * (self.says_of_me(others, now).len() + 1) < others.len() + 1
    }

    /// What those say of this node who are heard and hear it.
    fn says_of_me(&self, others: &BTreeSet<Arc<str>>, now: Duration) -> Vec<u64> {
        let heard = others.iter().filter_map(|node| self.peers.get(node)).filter(|peer| peer.is_heard(now));
        heard.filter_map(|peer| peer.last.hears.get(&self.me).copied()).collect()
    }

    fn is_told_of(&self, node: &str, now: Duration) -> bool {
        let wanted = id(node);
        self.peers.values().any(|peer| peer.is_heard(now) && peer.last.hears.contains_key(&wanted))
    }
}

impl Peer {
    fn is_heard(&self, now: Duration) -> bool {
        now < self.heard_at + DEAD_AFTER && !self.last.leaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(node: &str, number: u64, hears: &[&str]) -> Heartbeat {
        let hears = hears.iter().map(|node| (id(node), 7)).collect();
        Heartbeat { node: node.into(), life: 1, number, leaving: false, hears }
    }

    const LATER: Duration = Duration::from_secs(10);

    #[test]
    fn a_node_that_falls_silent_is_dead_after_a_while() {
        let mut liveness = Liveness::new("n1");
        liveness.heard(beat("n2", 1, &[]), LATER);
        assert_eq!(liveness.next_death(LATER), Some(LATER + DEAD_AFTER));
        assert!(liveness.lives("n2", LATER + DEAD_AFTER - INTERVAL));
        assert!(!liveness.lives("n2", LATER + DEAD_AFTER));
    }

    #[test]
    fn a_node_that_slept_itself_takes_nobody_for_dead_by_that() {
        let mut liveness = Liveness::new("n1");
        liveness.heard(beat("n2", 1, &[]), LATER);
        liveness.slept(DEAD_AFTER);
        assert!(liveness.lives("n2", LATER + 2 * DEAD_AFTER - INTERVAL));
        assert!(!liveness.lives("n2", LATER + 2 * DEAD_AFTER), "silent for long enough since it woke");
    }

    #[test]
    fn before_it_has_listened_long_enough_a_node_takes_nobody_for_dead() {
        let mut liveness = Liveness::new("n1");
        assert!(liveness.lives("n2", DEAD_AFTER - INTERVAL) && !liveness.lives("n2", DEAD_AFTER));
        liveness.slept(INTERVAL);
        assert!(liveness.lives("n2", DEAD_AFTER) && !liveness.lives("n2", DEAD_AFTER + INTERVAL));
    }

    #[test]
    fn a_node_that_another_hears_lives() {
        let mut liveness = Liveness::new("n1");
        liveness.heard(beat("n3", 1, &["n2"]), LATER);
        assert!(liveness.lives("n2", LATER) && !liveness.lives("n2", LATER + DEAD_AFTER));
    }

    #[test]
    fn who_leaves_is_gone_at_once_and_back_with_its_next_life() {
        let mut liveness = Liveness::new("n1");
        liveness.heard(beat("n3", 1, &["n2"]), LATER);
        liveness.heard(Heartbeat { leaving: true, ..beat("n2", 2, &[]) }, LATER);
        assert!(!liveness.lives("n2", LATER));
        assert!(!liveness.heard(beat("n2", 1, &[]), LATER), "an old one came late");
        assert!(liveness.heard(Heartbeat { life: 2, ..beat("n2", 1, &[]) }, LATER));
        assert!(liveness.lives("n2", LATER));
    }

    #[test]
    fn a_node_whose_clock_was_set_back_counts_again_after_a_while() {
        let mut liveness = Liveness::new("n1");
        liveness.heard(Heartbeat { life: 1_000, ..beat("n2", 9, &[]) }, LATER);
        let next = |number| Heartbeat { life: 5, ..beat("n2", number, &[]) };
        let soon = LATER + SET_BACK - INTERVAL;
        assert!(!liveness.heard(next(1), soon) && !liveness.lives("n2", soon));
        let late = LATER + SET_BACK;
        assert!(liveness.heard(next(2), late) && liveness.lives("n2", late));
        assert!(liveness.heard(next(3), late + INTERVAL) && !liveness.heard(next(3), late + INTERVAL));
    }

    #[test]
    fn without_the_api_a_node_answers_while_others_vouch_for_it_or_the_most_are_as_blind() {
        let mut liveness = Liveness::new("n1");
        let others: BTreeSet<Arc<str>> = ["n2".into(), "n3".into()].into();
        assert!(!liveness.is_well(&others, 7, LATER) && !liveness.may_answer_without_api(&others, 7, LATER));
        liveness.heard(beat("n2", 1, &["n3"]), LATER);
        assert!(!liveness.may_answer_without_api(&others, 7, LATER), "nobody hears it");
        liveness.heard(beat("n2", 2, &["n1"]), LATER);
        assert!(liveness.may_answer_without_api(&others, 7, LATER), "it owns what the API says");
        assert!(!liveness.may_answer_without_api(&others, 8, LATER), "it owns something else by now");
        let blind = Heartbeat { hears: [(id("n1"), 0)].into(), ..beat("n2", 3, &[]) };
        liveness.heard(blind.clone(), LATER);
        assert!(liveness.may_answer_without_api(&others, 7, LATER), "two of three");
        assert!(!liveness.is_in_minority(&others, LATER) && !liveness.is_well(&others, 7, LATER));
        let many: BTreeSet<Arc<str>> = ["n2", "n3", "n4", "n5"].map(Arc::from).into();
        assert!(!liveness.may_answer_without_api(&many, 7, LATER) && liveness.is_in_minority(&many, LATER));
        assert!(liveness.may_answer_without_api(&BTreeSet::new(), 7, LATER), "there is nobody else");
    }
}
