//! What must hold for every plan: the rules mean what the plan means, a change is what differs, and whatever the kernel
//! was left with becomes what is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use signpost_core::object::Family;
use signpost_core::plan::{Frontend, NodePlan, PlanChange};
use signpost_core::walk::walk_remembering;

use super::change::{Change, advance, change, diff};
use super::element::{Data, Key, Value, comment};
use super::layout::Set;
use super::locate::{found, locate};
use super::program::Program;
use super::render::render;
use super::repair::repair;
use super::rule::rules;
use super::walk::walk;
use crate::Datapath;
use crate::fake::{FakeNftables, Fault};
use crate::strategies::{between, packet, places, plan, plan_and_changes, plan_of, service, services};

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_do_what_the_plan_says(
        (plan, packets) in plan().prop_flat_map(|plan| (Just(plan.clone()), prop::collection::vec(packet(plan.family), 20))),
        at: prop::sample::Index,
    ) {
        let program = Program::of(&plan);
        for packet in &packets {
            for remembered in [None, Some(*at.get(&places(plan.family)))] {
                let wanted = walk_remembering(&plan, packet, remembered);
                prop_assert_eq!(walk(&program, packet, remembered), wanted, "{:?} {:?}", packet, remembered);
            }
        }
    }

    #[test]
    fn a_change_is_what_differs((mut plan, changes) in plan_and_changes()) {
        let mut program = Program::of(&plan);
        for plan_change in &changes {
            plan.apply(plan_change);
            let after = Program::of(&plan);
            let change = change(&program, plan_change);
            prop_assert_eq!(&change, &diff(&program, &after));
            advance(&mut program, &change);
            prop_assert_eq!(&program, &after);
        }
    }

    #[test]
    fn a_change_that_changes_nothing_is_empty(plan in plan()) {
        let program = Program::of(&plan);
        let same = PlanChange { set: plan.frontends.clone(), ..PlanChange::default() };
        prop_assert_eq!(change(&program, &same), Change::none(plan.family));
        prop_assert_eq!(diff(&program, &program), Change::none(plan.family));
    }

    #[test]
    fn every_frontend_is_located_and_the_kernel_alone_tells_its_backends(plan in plan()) {
        let mut fake = FakeNftables::new(plan.family);
        let program = Program::of(&plan);
        fake.apply(&repair(&program, fake.kernel())).unwrap();
        let keys = plan.frontends.keys().copied().collect();
        let located = locate(&program, fake.kernel(), &keys);
        prop_assert_eq!(located.keys().copied().collect::<BTreeSet<_>>(), keys.clone());
        prop_assert!(located.values().flatten().all(|location| location.held));
        let found = found(plan.family, fake.kernel());
        prop_assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), keys.clone());
        for (key, entry) in &program.frontends {
            let backends = entry.sets.iter().flat_map(|set| set.iter()).map(|backend| (backend.address, 1)).collect();
            prop_assert_eq!(&found[key].backends, &backends);
            prop_assert_eq!(&*found[key].service_port, &*comment(&entry.service_port));
        }
        // Whatever the kernel loses, some frontend lacks; and none where nothing of a frontend is lost.
        let lost = program.elements().find(|(_, key, _)| matches!(key, Key::Frontend(_) | Key::Endpoint(..)));
        if let Some((set, key, _)) = lost {
            fake.kernel_mut().table.as_mut().unwrap().sets.get_mut(&set).unwrap().known.remove(&key);
            let (Key::Frontend(of) | Key::Endpoint(of, _)) = key else { unreachable!() };
            for (key, locations) in locate(&program, fake.kernel(), &keys) {
                prop_assert_eq!(locations.iter().all(|location| location.held), key != of);
            }
        }
    }

    #[test]
    fn every_element_is_found_by_its_key(plan in plan()) {
        let program = Program::of(&plan);
        let elements: BTreeMap<(Set, Key), Value> =
            program.elements().map(|(set, key, value)| ((set, key), value)).collect();
        prop_assert_eq!(elements.len(), program.elements().count());
        for ((set, key), value) in &elements {
            prop_assert_eq!(program.element(*set, key), Some(value.clone()));
            for other in Set::ALL.into_iter().filter(|other| !elements.contains_key(&(*other, *key))) {
                prop_assert_eq!(program.element(other, key), None);
            }
        }
    }

    #[test]
    fn a_program_reads_back_from_json(plan in plan()) {
        let program = Program::of(&plan);
        let json = serde_json::to_string(&program).unwrap();
        prop_assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
    }

    #[test]
    fn changes_one_by_one_lead_where_the_whole_leads((mut plan, changes) in plan_and_changes()) {
        let mut kernel = FakeNftables::new(plan.family);
        let mut program = kernel.program(&plan);
        let have = kernel.observe().unwrap();
        kernel.apply(&kernel.repair(&program, &have)).unwrap();
        for plan_change in &changes {
            plan.apply(plan_change);
            let change = kernel.change(&program, plan_change);
            kernel.apply(&change).unwrap();
            kernel.advance(&mut program, &change);
        }
        let mut fresh = FakeNftables::new(plan.family);
        fresh.apply(&repair(&Program::of(&plan), &Default::default())).unwrap();
        prop_assert_eq!(kernel.kernel(), fresh.kernel());
    }

    #[test]
    fn repair_leads_from_any_plan_to_any_other(
        (before, after) in crate::strategies::family().prop_flat_map(|family| (plan_of(family), plan_of(family)))
    ) {
        let mut kernel = FakeNftables::new(before.family);
        kernel.apply(&repair(&Program::of(&before), kernel.kernel())).unwrap();
        let want = Program::of(&after);
        let change = repair(&want, kernel.kernel());
        prop_assert!(change.load.is_none());
        let wanted = diff(&Program::of(&before), &want);
        prop_assert_eq!((&change.removed, &change.added, &change.chains), (&wanted.removed, &wanted.added, &wanted.chains));
        kernel.apply(&change).unwrap();
        prop_assert_eq!(repair(&want, kernel.kernel()), Change::none(after.family));
    }

    #[test]
    fn a_planners_change_leads_from_one_plan_to_the_other(
        (before, after) in crate::strategies::family().prop_flat_map(|family| (plan_of(family), plan_of(family)))
    ) {
        let change = change(&Program::of(&before), &between(&before, &after));
        prop_assert_eq!(change, diff(&Program::of(&before), &Program::of(&after)));
    }
}

fn sizes(program: &Program) -> (usize, usize, usize) {
    let chains = program.all_chains().count();
    (program.elements().count(), chains, program.all_chains().map(|chain| rules(chain, &program.holds).len()).sum())
}

#[test]
fn size_budget() {
    // Elements, chains, rules. Per Service of ten endpoints: its address, its frontend, and the endpoints.
    let size = |count| sizes(&Program::of(&services(Family::Ipv4, count, 10)));
    assert_eq!(size(0), (3, 8, 19));
    assert_eq!(size(1), (3 + 12, 8 + 3, 19 + 5));
    assert_eq!(size(1_000), (3 + 12_000, 8 + 3, 19 + 5));
    // 250 different numbers of endpoints, two sets each with and without masquerade, stay within a few thousand chains.
    let mut plan = services(Family::Ipv4, 0, 0);
    plan.frontends.extend((1..=250).map(|count| service(Family::Ipv4, count, 0..count)));
    assert_eq!(sizes(&Program::of(&plan)).1, 8 + 3 * 250);
}

#[test]
fn size_budget_with_affinity() {
    let size = |count| {
        let mut plan = services(Family::Ipv4, count, 10);
        plan.frontends.values_mut().for_each(|frontend| frontend.affinity = Some(Duration::from_secs(10)));
        sizes(&Program::of(&plan))
    };
    assert_eq!(size(1), (3 + 12, 8 + 4, 19 + 7 + 20));
    assert_eq!(size(1_000), (3 + 12_000, 8 + 4_000, 19 + 27_000));
}

#[test]
fn a_changed_endpoint_changes_its_elements_only() {
    let plan = services(Family::Ipv6, 100, 10);
    let program = Program::of(&plan);
    let (key, frontend) = service(Family::Ipv6, 7, (70..79).chain([5_000]));
    let change = change(&program, &PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() });
    assert_eq!((change.removed.len(), change.added.len()), (1, 1));
    assert!(change.chains.added.is_empty() && change.chains.removed.is_empty());
    let mut script = Vec::new();
    render(&change, &mut script).unwrap();
    assert_eq!(
        String::from_utf8(script).unwrap(),
        "delete element ip6 kube-proxy service-endpoints-tcp { fd00:60::8 . 80 . 9 }\n\
         add element ip6 kube-proxy service-endpoints-tcp { fd00:60::8 . 80 . 9 : fd00:80::1388 . 8080 }\n"
    );
}

#[test]
fn a_new_number_of_endpoints_brings_chains_and_the_last_of_a_number_takes_them() {
    let program = Program::of(&services(Family::Ipv4, 1, 1));
    let (key, frontend) = service(Family::Ipv4, 0, 0..2);
    let change = change(&program, &PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() });
    let mut script = Vec::new();
    render(&change, &mut script).unwrap();
    let script = String::from_utf8(script).unwrap();
    let lines: Vec<&str> = script.lines().map(|line| line.split(" comment").next().unwrap()).collect();
    assert_eq!(
        lines,
        [
            "add chain ip kube-proxy spread-tcp-2",
            "add chain ip kube-proxy spread-tcp-2m",
            "add chain ip kube-proxy by-source-tcp-2-2m-2m",
            "add rule ip kube-proxy spread-tcp-2 dnat ip to ip daddr . tcp dport . numgen random mod 2 map \
             @service-endpoints-tcp",
            "add rule ip kube-proxy spread-tcp-2m meta mark set mark or 0x4000",
            "add rule ip kube-proxy spread-tcp-2m dnat ip to ip daddr . tcp dport . numgen random mod 2 map \
             @service-endpoints-tcp",
            "add rule ip kube-proxy by-source-tcp-2-2m-2m ip saddr @pod-networks goto spread-tcp-2",
            "add rule ip kube-proxy by-source-tcp-2-2m-2m goto spread-tcp-2m",
            "delete element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80 }",
            "add element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80",
            "add element ip kube-proxy service-endpoints-tcp { 10.96.0.1 . 80 . 1 : 10.128.0.1 . 8080 }",
            "flush chain ip kube-proxy by-source-tcp-1-1m-1m",
            "flush chain ip kube-proxy spread-tcp-1",
            "flush chain ip kube-proxy spread-tcp-1m",
            "delete chain ip kube-proxy by-source-tcp-1-1m-1m",
            "delete chain ip kube-proxy spread-tcp-1",
            "delete chain ip kube-proxy spread-tcp-1m",
        ]
    );
}

fn loaded(plan: &NodePlan) -> (FakeNftables, Program) {
    let mut kernel = FakeNftables::new(plan.family);
    let want = Program::of(plan);
    kernel.apply(&repair(&want, kernel.kernel())).unwrap();
    (kernel, want)
}

#[test]
fn what_somebody_did_to_the_table_is_put_right() {
    let plan = services(Family::Ipv4, 3, 2);
    type Harm = (&'static str, fn(&mut super::observed::Table), bool);
    let harms: [Harm; 8] = [
        ("an element is gone", |table| drop(table.sets.get_mut(&Set::ServiceIps).unwrap().known.pop_first()), false),
        (
            "an element leads elsewhere",
            |table| {
                table.sets.get_mut(&Set::ServiceIps).unwrap().known.first_entry().unwrap().get_mut().data = Data::Drop
            },
            false,
        ),
        (
            "an element is new",
            |table| {
                let key = Key::Address([192, 0, 2, 1].into());
                table.sets.get_mut(&Set::ClusterIps).unwrap().known.insert(key, Value::plain(Data::Member));
            },
            false,
        ),
        ("a strange element is there", |table| table.sets.get_mut(&Set::ClusterIps).unwrap().foreign = true, false),
        ("a rule is gone", |table| drop(table.chains.get_mut("services").unwrap().rules.pop()), false),
        ("a rule is new", |table| table.chains.get_mut("nat-output").unwrap().rules.push("".into()), false),
        ("a chain is new", |table| drop(table.chains.insert("mine".into(), Default::default())), false),
        ("a base chain hangs elsewhere", |table| table.chains.get_mut("nat-output").unwrap().hook = None, true),
    ];
    for (what, harm, is_rebuilt) in harms {
        let (mut kernel, want) = loaded(&plan);
        harm(kernel.kernel_mut().table.as_mut().unwrap());
        let change = repair(&want, kernel.kernel());
        assert!(!change.is_empty(), "{what}");
        assert_eq!(change.load.is_some(), is_rebuilt, "{what}");
        kernel.apply(&change).unwrap();
        assert_eq!(repair(&want, kernel.kernel()), Change::none(plan.family), "{what}");
    }
}

#[test]
fn a_table_of_another_layout_is_replaced_as_a_whole() {
    let plan = services(Family::Ipv4, 3, 2);
    let (mut kernel, want) = loaded(&plan);
    let chains = &mut kernel.kernel_mut().table.as_mut().unwrap().chains;
    let layout = chains.keys().find(|name| name.starts_with("layout-")).cloned().unwrap();
    let marker = chains.remove(&layout).unwrap();
    chains.insert("layout-00000000".to_owned(), marker);
    let change = repair(&want, kernel.kernel());
    assert!(change.load.as_ref().is_some_and(|load| load.replaces));
    kernel.apply(&change).unwrap();
    assert!(repair(&want, kernel.kernel()).is_empty());
}

#[test]
fn after_an_error_observe_and_repair_lead_on() {
    let plan = services(Family::Ipv4, 3, 2);
    for fault in [Fault::ApplyRefused, Fault::ApplyUnsure] {
        let (mut kernel, mut want) = loaded(&plan);
        let (key, frontend) = service(Family::Ipv4, 1, 0..7);
        let change = kernel.change(&want, &PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() });
        kernel.advance(&mut want, &change);
        kernel.fail(fault);
        kernel.fail(Fault::ObserveFails);
        kernel.apply(&change).unwrap_err();
        kernel.observe().unwrap_err();
        let have = kernel.observe().unwrap();
        let repair = kernel.repair(&want, &have);
        assert_eq!(repair.is_empty(), fault == Fault::ApplyUnsure);
        kernel.apply(&repair).unwrap();
        assert!(kernel.repair(&want, kernel.kernel()).is_empty());
    }
}

#[test]
fn an_address_of_the_wrong_family_harms_nothing_else() {
    let mut plan = services(Family::Ipv4, 1, 2);
    let wanted = Program::of(&plan);
    plan.cluster_ips.insert("fd00::1".parse().unwrap());
    plan.local_endpoints.insert("fd00::1".parse().unwrap());
    plan.node_addresses.insert("fd00::1".parse().unwrap());
    plan.cluster_cidrs.push("fd00::/8".parse().unwrap());
    let (key, frontend) = service(Family::Ipv6, 1, 0..2);
    plan.frontends.insert(key, frontend);
    assert_eq!(Program::of(&plan), wanted);
    let (v4, mixed) = service(Family::Ipv4, 0, 0..2);
    let (_, v6) = service(Family::Ipv6, 0, 0..2);
    plan.frontends.insert(v4, Frontend { from_pod: v6.from_pod, ..mixed });
    let mut script = Vec::new();
    render(&Change::load(&Program::of(&plan), false), &mut script).unwrap();
    assert!(!String::from_utf8(script).unwrap().contains("fd00"));
}
