//! What must hold of every rebalancing: never below the bound, never faster than the rate, only what lives long; and where clients come
//! back it ends within the bound.

use proptest::prelude::*;
use signpost_core::object::Family;
use signpost_core::plan::{Backend, NodePlan, Target};

use super::super::layout::Value;
use super::super::program::{Packets, Program};
use super::*;
use crate::strategies::{service, services};

const SET: SetId = SetId(1);

fn backend(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 244, 1, 1 + number as u8], 8080))
}

fn wish(rate_percent: u8, within_percent: u16) -> Rebalance {
    Rebalance { within_percent, rate_percent }
}

/// Connections of one set of backends, and clients that come back.
struct World {
    group: Group,
    next: u64,
    episode: Episode,
    start: Instant,
    now: Instant,
    /// When how many were closed, and the most that a second allows.
    closings: Vec<(Instant, usize)>,
}

impl World {
    fn new(wish: Rebalance, counts: &[usize]) -> World {
        let now = Instant::now();
        let backends = (0..counts.len()).map(backend).collect();
        let group = Group { backends, connections: BTreeSet::new() };
        let mut world =
            World { group, next: 1, episode: Episode::new(wish, now), start: now, now, closings: Vec::new() };
        for (at, count) in counts.iter().enumerate() {
            (0..*count).for_each(|_| world.connect(at));
        }
        world
    }

    fn connect(&mut self, at: usize) {
        self.group.connections.insert(Connection { cookie: self.next, backend: backend(at) });
        self.next += 1;
    }

    fn counts(&self) -> Vec<usize> {
        let count = |at: &SocketAddr| self.group.connections.iter().filter(|one| one.backend == *at).count();
        self.group.backends.iter().map(count).collect()
    }

    /// A look; gives what it closed.
    fn look(&mut self) -> Vec<Connection> {
        let closed = self.episode.look(&[(SET, self.group.clone())].into(), self.now);
        for connection in &closed {
            assert!(self.group.connections.remove(connection), "it closes what is there");
        }
        self.episode.closed(closed.len(), self.now);
        if !closed.is_empty() {
            self.closings.push((self.now, closed.len()));
        }
        closed
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

#[test]
fn what_is_closed_is_what_a_backend_has_over_its_share_and_the_bound() {
    // Rate, bound, connections of each backend -> how many are left of each, if nobody comes back.
    for (rate, within, before, after) in [
        (100, 0, vec![8, 0], vec![4, 0]),
        (100, 25, vec![8, 0], vec![5, 0]),
        (100, 20, vec![6, 6, 0], vec![5, 5, 0]),
        (100, 20, vec![5, 5, 2], vec![5, 5, 2]),
        (100, 1_000, vec![8, 0], vec![8, 0]),
        (100, 0, vec![8], vec![8]),
        (100, 0, vec![], vec![]),
        (100, 0, vec![1, 0, 0], vec![1, 0, 0]),
        (7, 50, vec![100, 20, 0, 0], vec![45, 20, 0, 0]),
    ] {
        let mut world = World::new(wish(rate, within), &before);
        for _ in 0..600 {
            world.look();
            world.pass(PACE);
        }
        assert_eq!(world.counts(), after, "{rate} {within} {before:?}");
    }
}

#[test]
fn a_share_below_one_connection_is_one_in_as_many_seconds() {
    // A tenth of eight in a second: one in 1.25 s.
    let mut world = World::new(wish(10, 0), &[8, 0]);
    let mut times = Vec::new();
    for _ in 0..400 {
        times.extend(world.look().into_iter().map(|_| world.now - world.start));
        world.pass(Duration::from_millis(50));
    }
    assert_eq!(times, [5_000, 6_250, 7_500, 8_750].map(Duration::from_millis));
}

#[test]
fn it_is_over_when_there_was_nothing_to_close_for_a_while_and_not_while_there_is() {
    let mut world = World::new(wish(1, 0), &[10, 0]);
    while world.counts()[0] > 5 {
        assert!(!world.episode.is_over(world.now));
        world.look();
        world.pass(PACE);
    }
    assert!(world.now - world.start > Duration::from_secs(40), "a tenth of a connection in a second");
    assert_eq!(world.episode.total(), 5);
    world.pass(QUIET);
    world.look();
    assert!(world.episode.is_over(world.now));
}

#[test]
fn connections_that_come_and_go_are_never_closed() {
    let mut world = World::new(wish(100, 0), &[0, 0]);
    for _ in 0..100 {
        (0..20).for_each(|_| world.connect(0));
        assert_eq!(world.look(), []);
        world.pass(LONG_LIVED - Duration::from_millis(1));
        assert_eq!(world.look(), []);
        world.group.connections.clear();
    }
}

#[test]
fn only_more_backends_or_a_new_wish_are_a_scale_up() {
    let asks = Some(wish(10, 20));
    let plan = |rebalance, backends: &[usize]| {
        let mut plan: NodePlan = services(Family::Ipv4, 1, 0);
        let (key, mut frontend) = service(Family::Ipv4, 0, 0..1);
        let backends: Vec<Backend> =
            backends.iter().map(|number| Backend { address: backend(*number), local: true }).collect();
        for route in [&mut frontend.from_pod, &mut frontend.from_node, &mut frontend.from_elsewhere] {
            route.target = if backends.is_empty() { Target::Reject } else { Target::Backends(backends.clone().into()) };
        }
        frontend.rebalance = rebalance;
        plan.frontends = [(key, frontend)].into();
        Program::of(&plan, Packets::Nftables)
    };
    let scaled = |before: &Program, after: &Program| {
        let value = |program: &Program| program.frontends.values().next().copied();
        is_scaled_up((before, after), value(before).as_ref(), &value(after).unwrap())
    };
    let two = plan(asks, &[1, 2]);
    for (after, expected) in [
        (plan(asks, &[1, 2, 3]), true),
        (plan(asks, &[2, 3]), true),
        (plan(asks, &[1]), false),
        (plan(asks, &[1, 2]), false),
        (plan(asks, &[]), false),
        (plan(None, &[1, 2, 3]), false),
        (plan(Some(wish(10, 30)), &[1, 2]), true),
    ] {
        assert_eq!(scaled(&two, &after), expected, "{after:?}");
    }
    assert!(!scaled(&plan(asks, &[]), &two), "there was nobody to be connected to");
    assert!(scaled(&plan(None, &[1, 2]), &two), "it is asked for now");
    assert!(!is_scaled_up((&two, &two), None, two.frontends.values().next().unwrap()), "a new Service");
    // What the maps say is what counts.
    assert!(matches!(two.entries().last(), Some((_, Value::Frontend(value))) if value.rebalance == asks));
}

/// What happens between two looks: milliseconds that pass, connections that begin (where), and how many end.
type Happening = (u64, Vec<usize>, usize);

fn happenings(backends: usize) -> impl Strategy<Value = Vec<Happening>> {
    prop::collection::vec((1..3_000_u64, prop::collection::vec(0..backends, 0..4), 0..3_usize), 1..60)
}

fn worlds() -> impl Strategy<Value = (Rebalance, Vec<usize>, Vec<Happening>)> {
    (1..6_usize).prop_flat_map(|backends| {
        let wish = (1..=100_u8, prop_oneof![Just(0_u16), 0..50_u16, 0..1_000_u16])
            .prop_map(|(rate, within)| wish(rate, within));
        (wish, prop::collection::vec(0..40_usize, backends), happenings(backends))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn never_below_the_bound_never_faster_than_the_rate_and_only_what_lives_long((wish, counts, happens) in worlds()) {
        let mut world = World::new(wish, &counts);
        let mut known: BTreeMap<Connection, Instant> = BTreeMap::new();
        let mut most = 0;
        for (pause_ms, begin, end) in happens {
            for connection in &world.group.connections {
                known.entry(*connection).or_insert(world.now);
            }
            let before = world.counts();
            let all: usize = before.iter().sum();
            most = most.max(all);
            let may_have = all as f64 / before.len() as f64 * (1.0 + f64::from(wish.within_percent) / 100.0);
            let closed = world.look();
            for connection in &closed {
                prop_assert!(world.now - known[connection] >= LONG_LIVED);
            }
            for (was, is) in before.iter().zip(world.counts()) {
                prop_assert!(is == *was || is as f64 >= may_have - 1e-6, "{} of {} left, it may have {}", is, was, may_have);
            }
            for at in begin {
                world.connect(at);
            }
            for _ in 0..end {
                world.group.connections.pop_first();
            }
            world.pass(Duration::from_millis(pause_ms));
        }
        let per_s = most as f64 * f64::from(wish.rate_percent) / 100.0;
        for (at, (from, _)) in world.closings.iter().enumerate() {
            let within = |time: Duration| world.closings[at..].iter().take_while(move |(when, _)| *when - *from < time);
            let in_a_second: usize = within(Duration::from_secs(1)).map(|(_, count)| count).sum();
            prop_assert!(in_a_second as f64 <= per_s.max(1.0) + 1e-6, "{} in a second of {}", in_a_second, per_s);
            // Over any time: what the rate makes of it, and the one step that begins it.
            for (until, _) in &world.closings[at..] {
                let time = *until - *from;
                let sum: usize = within(time).map(|(_, count)| count).sum();
                prop_assert!(sum as f64 <= per_s * time.as_secs_f64() + 1e-3 || per_s < 1e-9, "{} in {:?}", sum, time);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn where_clients_come_back_it_ends_within_the_bound(
        (wish, counts, _) in worlds(),
        seed: u64,
    ) {
        let mut world = World::new(wish, &counts);
        let (mut seed, all) = (seed | 1, counts.iter().sum::<usize>());
        for _ in 0..1_000_000 {
            if world.episode.is_over(world.now) {
                break;
            }
            for _ in world.look() {
                // xorshift
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                world.connect((seed % counts.len() as u64) as usize);
            }
            world.pass(PACE);
        }
        prop_assert!(world.episode.is_over(world.now), "{:?}", world.counts());
        let may_have = all as f64 / counts.len() as f64 * (1.0 + f64::from(wish.within_percent) / 100.0);
        for count in world.counts() {
            prop_assert!(count as f64 <= may_have.ceil() + 1e-6, "{:?} with {}", world.counts(), may_have);
        }
    }
}
