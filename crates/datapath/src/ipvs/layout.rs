//! Pure. What one frontend becomes: a virtual server at its place for most of its clients, servers that are found by a mark
//! for those who meet something else, and sets that say who is masqueraded and who is refused.
//!
//! ```text
//! from elsewhere ─▶ server at the place        who meets the same, with the same masquerade, goes there too
//! from pods      ─▶ mark A ─▶ server of mark A  (external Local policy: the cluster's own clients meet all endpoints)
//! from the node  ─▶ mark B ─▶ server of mark B
//! ```
//!
//! Where anybody is refused, there is no server at the place: IPVS comes before the rules that refuse what the node
//! itself sends.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use signpost_core::object::Protocol;
use signpost_core::plan::{Backends, Frontend, FrontendKey, FrontendKind, Route, Target};
use signpost_core::walk::Origin;

/// The bit that marks a packet for masquerade.
pub const MASQUERADE: u32 = 0x4000;
/// The highest byte of a mark that leads to a server, so that rules know it for one.
pub const SERVER_MARK: u32 = 0x4900_0000;
/// The bits that say so.
pub const SERVER_MARK_MASK: u32 = 0xff00_0000;
/// The mark of what is to be dropped where others are refused in another way.
pub const DROP_MARK: u32 = 0x4a00_0001;
/// The mark of what is to be refused where others are dropped.
pub const REJECT_MARK: u32 = 0x4a00_0002;

/// How a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// At once.
    Reject,
    /// Without a word.
    Drop,
}

/// What clients of one origin meet who are told apart by a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// A server of their own: the number of one of [`Layout::servers`].
    Server(usize),
    /// A refusal other than that of the rest.
    Refused(Refusal),
}

/// A frontend in IPVS's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Backends of the server at the frontend's place.
    pub main: Option<Backends>,
    /// Whether who is not marked is masqueraded in the second of the two ways that its kind has: at a cluster address
    /// pods too, elsewhere nobody.
    pub second_way: bool,
    /// The servers that are found by a mark, with whether they masquerade.
    pub servers: Vec<(Backends, bool)>,
    /// Whose packets are marked.
    pub marked: Vec<(Origin, Marked)>,
    /// What becomes of those that are not marked, where there is no server at the place.
    pub refusal: Option<Refusal>,
}

fn refusal(target: &Target) -> Option<Refusal> {
    match target {
        Target::Backends(_) => None,
        Target::Reject => Some(Refusal::Reject),
        Target::Drop => Some(Refusal::Drop),
    }
}

impl Layout {
    /// Of a frontend. `knows_pods`: there are ranges by which pods are told from others.
    pub fn of(frontend: &Frontend, knows_pods: bool) -> Layout {
        let ways = [false, true].map(|second| Layout::with(frontend, knows_pods, second));
        let [first, second] = ways;
        // The fewer servers the better; else as its kind mostly has it.
        let prefers_second = frontend.kind != FrontendKind::ClusterIp && !frontend.from_elsewhere.masquerade;
        let is_less = second.marked.len() < first.marked.len();
        let is_alike = second.marked.len() == first.marked.len();
        if is_less || (is_alike && prefers_second) { second } else { first }
    }

    fn with(frontend: &Frontend, knows_pods: bool, second_way: bool) -> Layout {
        let pod = knows_pods.then_some((Origin::Pod, &frontend.from_pod));
        let rest = [(Origin::Node, &frontend.from_node), (Origin::Elsewhere, &frontend.from_elsewhere)];
        let legs: Vec<(Origin, &Route)> = pod.into_iter().chain(rest).collect();
        let masquerades = |origin| match (frontend.kind, second_way) {
            (FrontendKind::ClusterIp, false) => knows_pods && origin != Origin::Pod,
            (FrontendKind::ClusterIp, true) => true,
            (_, second_way) => !second_way,
        };
        // Of those who are refused, the last: mostly all others.
        let refusal = legs.iter().rev().find_map(|(_, route)| self::refusal(&route.target));
        let main = match &frontend.from_elsewhere {
            Route { target: Target::Backends(backends), masquerade }
                if refusal.is_none() && *masquerade == masquerades(Origin::Elsewhere) =>
            {
                Some(backends.clone())
            }
            _ => None,
        };
        let mut layout = Layout { main, second_way, servers: Vec::new(), marked: Vec::new(), refusal };
        for (origin, route) in legs {
            layout.add(origin, route, masquerades(origin));
        }
        layout
    }

    fn add(&mut self, origin: Origin, route: &Route, unmarked_masquerades: bool) {
        let Target::Backends(backends) = &route.target else {
            let refusal = refusal(&route.target);
            if let Some(other) = refusal.filter(|_| refusal != self.refusal) {
                self.marked.push((origin, Marked::Refused(other)));
            }
            return;
        };
        if self.main.as_ref() == Some(backends) && route.masquerade == unmarked_masquerades {
            return;
        }
        let wanted = (backends.clone(), route.masquerade);
        let server = self.servers.iter().position(|server| *server == wanted).unwrap_or_else(|| {
            self.servers.push(wanted);
            self.servers.len() - 1
        });
        self.marked.push((origin, Marked::Server(server)));
    }
}

/// What a mark belongs to: a frontend, the number of one of its servers, and whether that masquerades.
pub type MarkKey = (FrontendKey, usize, bool);

/// Gives marks to all who need one: the same to the same, whatever came first. Each has a number made of itself, and of
/// two with the same number the one that comes later in order takes another.
pub fn marks(keys: impl Iterator<Item = MarkKey>) -> BTreeMap<MarkKey, u32> {
    marks_by(keys, mark)
}

fn marks_by(keys: impl Iterator<Item = MarkKey>, mark: impl Fn(&MarkKey, u32) -> u32) -> BTreeMap<MarkKey, u32> {
    let keys: BTreeSet<MarkKey> = keys.collect();
    let mut taken = BTreeSet::new();
    let find = |key: MarkKey| {
        let mut tries = (0..u32::MAX).map(|number| mark(&key, number));
        let free = tries.find(|mark| taken.insert(*mark)).expect("there are more marks than frontends");
        (key, free)
    };
    keys.into_iter().map(find).collect()
}

fn mark(key: &MarkKey, number: u32) -> u32 {
    let (frontend, server, masquerades) = key;
    let digest = Sha256::digest(format!("{frontend} {server} {number}"));
    let hash = digest.iter().take(3).fold(0, |hash, byte| hash << 8 | u32::from(*byte));
    let masquerade = if *masquerades { MASQUERADE } else { 0 };
    SERVER_MARK | (hash & !MASQUERADE) | masquerade
}

/// A frontend's protocol.
pub fn protocol(key: &FrontendKey) -> Protocol {
    let (FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. }) = key;
    *protocol
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    fn keys(count: u16) -> Vec<MarkKey> {
        let port = |number| NonZeroU16::new(number).unwrap();
        let key = |number| FrontendKey::NodePort { protocol: Protocol::Tcp, port: port(number) };
        (1..=count).map(|number| (key(number), 0, number % 2 == 0)).collect()
    }

    #[test]
    fn marks_are_known_for_servers_and_say_whether_they_masquerade() {
        for ((_, _, masquerades), mark) in marks(keys(500).into_iter()) {
            assert_eq!(mark & SERVER_MARK_MASK, SERVER_MARK);
            assert_eq!(mark & MASQUERADE != 0, masquerades);
        }
    }

    #[test]
    fn no_two_have_one_mark_even_if_their_numbers_meet() {
        let few = |key: &MarkKey, number: u32| if number == 0 { 7 } else { mark(key, number) % 64 };
        let found = marks_by(keys(40).into_iter(), few);
        assert_eq!(found.values().collect::<BTreeSet<_>>().len(), 40);
        let backwards = marks_by(keys(40).into_iter().rev(), few);
        assert_eq!(backwards, found);
    }
}
