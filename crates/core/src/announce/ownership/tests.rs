//! Single decisions, and a cluster of nodes with one API between them under random crashes and cuts.

use proptest::prelude::*;

use super::*;
use crate::fixture::ip;

fn address(number: u16) -> IpAddr {
    IpAddr::from([192, 0, (number >> 8) as u8, number as u8])
}

fn node(number: usize) -> Arc<str> {
    format!("n{number}").into()
}

/// One node's view.
struct View {
    me: Arc<str>,
    leaving: bool,
    candidates: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    holders: BTreeMap<IpAddr, Arc<str>>,
    able: BTreeSet<IpAddr>,
    dead: BTreeSet<Arc<str>>,
    ownerless: Duration,
    in_minority: bool,
}

impl View {
    /// Of node `me` of `nodes`, with addresses that all may have.
    fn new(me: usize, nodes: usize, addresses: u16) -> View {
        let all: BTreeSet<Arc<str>> = (1..=nodes).map(node).collect();
        View {
            me: node(me),
            leaving: false,
            candidates: (0..addresses).map(|number| (address(number), all.clone())).collect(),
            holders: BTreeMap::new(),
            able: (0..addresses).map(address).collect(),
            dead: BTreeSet::new(),
            ownerless: Duration::ZERO,
            in_minority: false,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let lives = |node: &str| !self.dead.contains(node);
        let ownerless = |_| self.ownerless;
        steps(&Situation {
            me: &self.me,
            leaving: self.leaving,
            candidates: &self.candidates,
            holders: &self.holders,
            able: &self.able,
            lives: &lives,
            in_minority: self.in_minority,
            ownerless: &ownerless,
        })
    }
}

#[test]
fn nodes_that_know_the_same_share_the_addresses_evenly_and_without_overlap() {
    let mut owners: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
    let mut loads = [0; 5];
    for me in 1..=5 {
        for step in View::new(me, 5, 1000).steps() {
            let Step::Claim(address) = step else { panic!("{step:?}") };
            owners.entry(address).or_default().push(me);
            loads[me - 1] += 1;
        }
    }
    assert!(owners.len() == 1000 && owners.values().all(|owners| owners.len() == 1));
    assert_eq!(loads, [200; 5]);
}

#[test]
fn an_owner_that_lives_keeps_its_address_whoever_comes_back() {
    for me in 1..=3 {
        let mut view = View::new(me, 3, 1);
        view.holders.insert(address(0), node(2));
        assert_eq!(view.steps(), []);
    }
}

#[test]
fn the_addresses_of_a_dead_node_are_shared_by_the_others() {
    let mut claims = 0;
    for me in [1, 3] {
        let mut view = View::new(me, 3, 20);
        view.holders = (0..20).map(|number| (address(number), node(2))).collect();
        view.dead.insert(node(2));
        let steps = view.steps();
        assert_eq!(steps.len(), 10, "node {me}");
        claims += steps.iter().filter(|step| matches!(step, Step::Claim(_))).count();
    }
    assert_eq!(claims, 20);
}

#[test]
fn who_leaves_or_cannot_answer_any_more_hands_over() {
    let mut view = View::new(1, 2, 1);
    view.holders.insert(address(0), node(1));
    view.leaving = true;
    assert_eq!(view.steps(), [Step::HandOver(address(0), Some(node(2)))]);
    view.dead.insert(node(2));
    assert_eq!(view.steps(), [], "nobody else can have it");
    view.leaving = false;
    assert_eq!(view.steps(), []);
    view.able.clear();
    assert_eq!(view.steps(), [Step::HandOver(address(0), None)]);
    view.dead.clear();
    assert_eq!(view.steps(), [Step::HandOver(address(0), Some(node(2)))]);
    view.candidates.clear();
    assert_eq!(view.steps(), [Step::Forget(address(0))]);
}

#[test]
fn the_second_choice_claims_when_the_first_one_does_not() {
    let first: Vec<usize> = (1..=3).filter(|me| !View::new(*me, 3, 1).steps().is_empty()).collect();
    assert_eq!(first.len(), 1);
    let late = |me, ownerless| {
        let view = View { ownerless, ..View::new(me, 3, 1) };
        !view.steps().is_empty()
    };
    let after = |ownerless| (1..=3).filter(|me| late(*me, ownerless)).count();
    assert_eq!((after(PATIENCE), after(PATIENCE * 2)), (2, 3));
}

#[test]
fn a_node_that_may_no_longer_have_its_address_is_given_time_to_hand_it_over() {
    let mut view = View::new(1, 2, 1);
    view.holders.insert(address(0), node(3));
    assert_eq!(view.steps(), []);
    view.ownerless = PATIENCE * 2;
    assert_eq!(view.steps(), [Step::Claim(address(0))]);
    assert_eq!(view.candidates.remove(&ip("192.0.0.0")).map(|nodes| nodes.len()), Some(2));
}

/// What a round of the model does.
#[derive(Debug, Clone)]
enum Fault {
    Crash(usize),
    Restart(usize),
    CutFromApi(usize),
    MendApi(usize),
    CutPeers(usize, usize),
    MendPeers(usize, usize),
    /// A node's clock runs at so many quarters of the true speed.
    Skew(usize, u32),
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let one = || 0usize..3;
    prop_oneof![
        one().prop_map(Fault::Crash),
        one().prop_map(Fault::Restart),
        one().prop_map(Fault::CutFromApi),
        one().prop_map(Fault::MendApi),
        (one(), one()).prop_map(|(a, b)| Fault::CutPeers(a, b)),
        (one(), one()).prop_map(|(a, b)| Fault::MendPeers(a, b)),
        (one(), 2u32..=8).prop_map(|(node, quarters)| Fault::Skew(node, quarters)),
    ]
}

/// Three nodes and an API. A round is a detection time: all that can be heard is heard, all that can be written is written.
#[derive(Debug, Default)]
struct Model {
    record: Option<usize>,
    /// What each node last saw of the record.
    seen: [Option<usize>; 3],
    down: [bool; 3],
    /// Which know the records at all: before, a node says nothing to the others.
    knows: [bool; 3],
    no_api: [bool; 3],
    cut: BTreeSet<(usize, usize)>,
    /// How fast the clock of each runs, in quarters; 0: as it should.
    speed: [u32; 3],
    waited: u32,
}

impl Model {
    fn meet(&mut self, fault: &Fault) {
        match *fault {
            Fault::Crash(node) => self.down[node] = true,
            Fault::Restart(node) => {
                self.down[node] = false;
                (self.seen[node], self.knows[node]) = (None, false);
            }
            Fault::CutFromApi(node) => self.no_api[node] = true,
            Fault::MendApi(node) => self.no_api[node] = false,
            Fault::CutPeers(a, b) => drop(self.cut.insert((a.min(b), a.max(b)))),
            Fault::MendPeers(a, b) => drop(self.cut.remove(&(a.min(b), a.max(b)))),
            Fault::Skew(node, quarters) => self.speed[node] = quarters,
        }
    }

    fn hears(&self, me: usize, other: usize) -> bool {
        me == other
            || (!self.down[other]
                && self.knows[other]
                && !self.down[me]
                && !self.cut.contains(&(me.min(other), me.max(other))))
    }

    fn lives(&self, me: usize, other: usize) -> bool {
        self.hears(me, other) || (0..3).any(|third| third != me && self.hears(me, third) && self.hears(third, other))
    }

    fn heard(&self, me: usize) -> usize {
        (0..3).filter(|other| *other != me && self.hears(me, *other)).count()
    }

    /// As [`Liveness::may_answer_without_api`] decides it.
    ///
    /// [`Liveness::may_answer_without_api`]: crate::announce::liveness::Liveness::may_answer_without_api
    fn may_answer_without_api(&self, me: usize) -> bool {
        let informed = |other: &usize| *other != me && self.hears(me, *other) && !self.no_api[*other];
        let mut informed = (0..3).filter(informed).peekable();
        if informed.peek().is_some() {
            informed.all(|other| self.seen[other] == Some(me))
        } else {
            2 * (self.heard(me) + 1) > 3
        }
    }

    /// A detection time passes.
    fn round(&mut self) {
        for me in 0..3 {
            if self.down[me] || self.no_api[me] {
                continue;
            }
            (self.seen[me], self.knows[me]) = (self.record, true);
            let mut view = View::new(me + 1, 3, 1);
            view.holders.extend(self.record.map(|holder| (address(0), node(holder + 1))));
            view.dead = (0..3).filter(|other| !self.lives(me, *other)).map(|other| node(other + 1)).collect();
            let speed = if self.speed[me] == 0 { 4 } else { self.speed[me] };
            view.ownerless = PATIENCE * self.waited * speed / 4;
            view.in_minority = 2 * (self.heard(me) + 1) < 3;
            for step in view.steps() {
                match step {
                    Step::Claim(_) => self.record = Some(me),
                    Step::HandOver(_, to) => self.record = to.map(|to| to[1..].parse::<usize>().unwrap() - 1),
                    Step::Forget(_) => self.record = None,
                }
                self.seen[me] = self.record;
            }
        }
        // Those that were asked before another one wrote hear of it.
        for me in (0..3).filter(|me| !self.down[*me] && !self.no_api[*me]) {
            self.seen[me] = self.record;
        }
    }

    /// Who answers: holds the record as far as it knows, and is not fenced.
    fn owners(&self) -> Vec<usize> {
        let answers = |me: &usize| {
            !self.down[*me] && self.seen[*me] == Some(*me) && (!self.no_api[*me] || self.may_answer_without_api(*me))
        };
        (0..3).filter(answers).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// After a detection time (and the patience of those that come second, or hear few, by clocks that are wrong) at most one
    /// node answers, and one does as long as some node lives that reaches the API. The one exception: most nodes together have lost the API, which
    /// the rest still reaches; neither side can know of the other.
    #[test]
    fn never_two_owners_and_never_none_while_one_can_reach_the_api(faults in prop::collection::vec(any_fault(), 1..40)) {
        let mut model = Model::default();
        for fault in &faults {
            model.meet(fault);
            // Twice what it takes with a clock that is right: the slowest runs at half its speed.
            for waited in 0..28 {
                model.waited = waited;
                model.round();
            }
            let owners = model.owners();
            let blind_majority = owners.iter().any(|owner| model.no_api[*owner] && 2 * (model.heard(*owner) + 1) > 3);
            prop_assert!(owners.len() <= 1 || blind_majority, "{fault:?} of {faults:?}: {owners:?} in {model:?}");
            let able = (0..3).any(|node| !model.down[node] && !model.no_api[node]);
            prop_assert!(!able || !owners.is_empty(), "{fault:?} of {faults:?}: nobody in {model:?}");
        }
    }
}
