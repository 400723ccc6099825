//! Whatever call of the kernel fails, the next sync ends right and nothing foreign is touched; and what a change costs.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use signpost_core::object::Family;
use signpost_core::plan::{NodePlan, PlanChange};

use super::fake::{Failing, FakeKernel, State, mode};
use super::message::{ObservedDestination, ObservedServer};
use super::rule::Table;
use super::server::{Place, ServerKey};
use super::{Change, Former, Ipvs};
use crate::Datapath;
use crate::strategies::{between, family, plan_of, service, services};

fn sync(mode: &mut Ipvs, plan: &NodePlan) -> Result<(), super::IpvsError> {
    let have = mode.observe()?;
    let change = mode.repair(&mode.program(plan), &have);
    mode.apply(&change)
}

/// The state of a kernel that was brought to a plan from nothing.
fn holding(plan: &NodePlan) -> State {
    let (mut mode, kernel) = mode(plan.family);
    sync(&mut mode, plan).unwrap();
    kernel.state()
}

#[test]
fn after_a_failure_at_any_call_the_next_sync_ends_right() {
    let two = family().prop_flat_map(|family| (plan_of(family), plan_of(family)));
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    let run = TestRunner::new(config).run(&two, |(before, after)| {
        let wanted = holding(&after);
        let kinds = [Failing::Before, Failing::After].map(|failing| [(failing, false), (failing, true)]);
        for (failing, is_first) in kinds.into_iter().flatten() {
            for at in 0.. {
                let (mut mode, kernel) = mode(before.family);
                // From nothing, too: a first sync that died is not somebody else's.
                let have = mode.observe().unwrap();
                let mut change = mode.repair(&mode.program(&after), &have);
                if !is_first {
                    mode.apply(&mode.repair(&mode.program(&before), &have)).unwrap();
                    change = mode.change(&mode.program(&before), &between(&before, &after));
                }
                let calls = {
                    let mut inner = kernel.inner();
                    inner.fails = Some((inner.calls + at, failing));
                    inner.calls
                };
                let failed = mode.apply(&change).is_err();
                kernel.inner().fails = None;
                sync(&mut mode, &after).unwrap();
                // Once more, for destinations that took no new connections and have none by now.
                sync(&mut mode, &after).unwrap();
                prop_assert_eq!(&kernel.state(), &wanted, "call {} of {}", at, calls);
                if !failed {
                    break;
                }
            }
        }
        Ok(())
    });
    run.unwrap();
}

/// What others have in the kernel.
fn with_others(kernel: &FakeKernel) {
    let mut inner = kernel.inner();
    let place = Place {
        address: [192, 0, 2, 77].into(),
        protocol: signpost_core::object::Protocol::Tcp,
        port: 80.try_into().unwrap(),
    };
    let destination =
        (([192, 0, 2, 78], 80).into(), ObservedDestination { weight: 3, connections: 9, active: 9, is_own: false });
    let server =
        ObservedServer { scheduler: "lc".to_owned(), flags: 0, timeout_s: 0, destinations: [destination].into() };
    for key in [ServerKey::At(place), ServerKey::Marked(7)] {
        inner.state.servers.insert(key, server.clone());
    }
    inner.state.sets.insert(
        "theirs".to_owned(),
        ("hash:ip family inet".to_owned(), [("10.0.0.1".to_owned(), String::new())].into()),
    );
    inner.state.rules.insert((Table::Nat, "CNI-HOSTPORT".to_owned()), vec!["-j RETURN".to_owned()]);
    let prerouting = inner.state.rules.get_mut(&(Table::Nat, "PREROUTING".to_owned())).unwrap();
    prerouting.push("-j CNI-HOSTPORT".to_owned());
}

#[test]
fn what_is_others_stays_and_cleanup_takes_out_the_rest() {
    let plan = services(Family::Ipv4, 20, 3);
    let (mut mode, kernel) = mode(Family::Ipv4);
    with_others(&kernel);
    let theirs = kernel.state();
    sync(&mut mode, &plan).unwrap();
    assert_eq!(kernel.state().servers.len(), 22);
    mode.cleanup().unwrap();
    let left = kernel.state();
    assert_eq!((&left.servers, &left.sets, &left.rules), (&theirs.servers, &theirs.sets, &theirs.rules));
    assert_eq!(left.addresses, None);
}

#[test]
fn kube_proxys_rules_are_an_error_unless_they_are_to_be_taken_over() {
    let (mut mode, kernel) = mode(Family::Ipv4);
    kernel.inner().state.addresses = Some([[10, 96, 0, 1].into()].into());
    assert!(matches!(mode.observe(), Err(super::IpvsError::Foreign { .. })));
    mode.config.take_over = true;
    let plan = services(Family::Ipv4, 2, 1);
    sync(&mut mode, &plan).unwrap();
    assert_eq!(kernel.state().addresses, holding(&plan).addresses);
}

#[test]
fn a_destination_with_connections_stays_until_they_end() {
    let plan = services(Family::Ipv4, 1, 2);
    let (mut mode, kernel) = mode(Family::Ipv4);
    sync(&mut mode, &plan).unwrap();
    let gone = {
        let mut inner = kernel.inner();
        let destinations = &mut inner.state.servers.values_mut().next().unwrap().destinations;
        destinations.values_mut().for_each(|one| one.connections = 1);
        *destinations.keys().next().unwrap()
    };
    let (key, frontend) = service(Family::Ipv4, 0, [1].into_iter());
    let plan_change = PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() };
    let change = mode.change(&mode.program(&plan), &plan_change);
    mode.apply(&change).unwrap();
    let mut after = plan.clone();
    after.apply(&plan_change);
    let destination = |kernel: &FakeKernel| {
        let state = kernel.state();
        state.servers.values().next().unwrap().destinations.get(&gone).copied()
    };
    for _ in 0..2 {
        assert_eq!(
            destination(&kernel),
            Some(ObservedDestination { weight: 0, connections: 1, active: 0, is_own: true })
        );
        sync(&mut mode, &after).unwrap();
    }
    let mut inner = kernel.inner();
    inner.state.servers.values_mut().flat_map(|one| one.destinations.values_mut()).for_each(|one| one.connections = 0);
    drop(inner);
    sync(&mut mode, &after).unwrap();
    assert_eq!(destination(&kernel), None);
}

#[test]
fn a_mode_that_follows_leaves_servers_with_live_connections_for_them_alone() {
    let plan = services(Family::Ipv4, 3, 2);
    let (mut mode, kernel) = mode(Family::Ipv4);
    with_others(&kernel);
    let theirs = kernel.state();
    sync(&mut mode, &plan).unwrap();
    let (key, at) = {
        let mut inner = kernel.inner();
        let is_own = |key: &ServerKey| !theirs.servers.contains_key(key);
        let (key, server) = inner.state.servers.iter_mut().find(|(key, _)| is_own(key)).unwrap();
        let (at, found) = server.destinations.iter_mut().next().unwrap();
        (found.connections, found.active) = (2, 1);
        (*key, *at)
    };
    let ServerKey::At(place) = key else { panic!("found by a mark: {key:?}") };
    for _ in 0..2 {
        assert_eq!(mode.remove_former(false, true).unwrap(), Former::Busy);
        let state = kernel.state();
        assert_eq!(state.servers.len(), theirs.servers.len() + 1);
        assert!(state.servers[&key].destinations.values().all(|found| found.weight == 0), "none takes a new one");
        assert_eq!(state.addresses, Some([place.address].into()));
        assert_eq!(state.sets, theirs.sets);
        // Chains of names that the mode iptables shares are that mode's to remove.
        assert!(
            !state.rules.values().flatten().any(|rule| rule.contains("-set KUBE-") || rule.ends_with("KUBE-SERVICES"))
        );
    }
    assert!(!mode.has_foreign().unwrap(), "what stays is known for this program's own");
    kernel.inner().state.servers.get_mut(&key).unwrap().destinations.get_mut(&at).unwrap().active = 0;
    assert_eq!(mode.remove_former(false, true).unwrap(), Former::Removed);
    assert_eq!((kernel.state().servers, kernel.state().addresses), (theirs.servers, None));
    assert_eq!(mode.remove_former(false, true).unwrap(), Former::Nothing);
}

#[test]
fn a_connection_that_outlives_the_deadline_keeps_nothing() {
    let (mut mode, kernel) = mode(Family::Ipv6);
    sync(&mut mode, &services(Family::Ipv6, 1, 1)).unwrap();
    let mut inner = kernel.inner();
    inner.state.servers.values_mut().flat_map(|server| server.destinations.values_mut()).for_each(|one| one.active = 1);
    drop(inner);
    assert_eq!(mode.remove_former(false, false).unwrap(), Former::Removed);
    assert_eq!((kernel.state().servers.len(), kernel.state().addresses), (0, None));
}

/// Messages of netlink, lines for ipset, rules.
fn size(change: &Change) -> [usize; 3] {
    let messages = change.coming.len() + change.going.len() + change.draining.len();
    let rules = change.rules.lines().filter(|line| line.starts_with('-')).count();
    [messages + change.bound.len() + change.unbound.len(), change.sets.lines().count(), rules]
}

#[test]
fn a_change_costs_a_few_messages_at_any_number_of_services() {
    let all = |count| {
        let (mode, _) = mode(Family::Ipv4);
        let have = super::Observed { addresses: Some(Default::default()), ..Default::default() };
        size(&mode.repair(&mode.program(&services(Family::Ipv4, count, 10)), &have))
    };
    // A server, ten destinations and an address for each Service; the 21 sets, and in them a place and an address.
    let rules = all(0)[2];
    assert!(rules < 60, "{rules}");
    assert_eq!([all(0), all(1), all(1_000)], [[0, 21, rules], [12, 23, rules], [12_000, 2_021, rules]]);

    let (mode, _) = mode(Family::Ipv4);
    let program = mode.program(&services(Family::Ipv4, 1_000, 10));
    let set = |number, endpoints: std::ops::Range<u32>| {
        let (key, frontend) = service(Family::Ipv4, number, endpoints);
        size(&mode.change(&program, &PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() }))
    };
    assert_eq!(set(7, 71..81), [2, 0, 0], "one endpoint for another: one comes, one goes");
    assert_eq!(set(1_000, 0..10), [12, 2, 0], "one Service more");
    let removed = PlanChange { removed: [service(Family::Ipv4, 7, 0..1).0].into(), ..PlanChange::default() };
    let one_less = size(&mode.change(&program, &removed));
    assert_eq!(
        one_less,
        [1, 1, 0],
        "its server and its place; the address stays while the plan has the cluster address"
    );
}
