//! What must hold for every plan: the program means what the plan means, and a change is what differs.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::prelude::*;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{Frontend, FrontendKey, FrontendKind, NodePlan, PlanChange};
use signpost_core::walk::walk_with_addresses;

use super::program::Program;
use super::server::Scheduler;
use super::walk::walk;
use crate::strategies::{between, packet, places, plan, plan_and_changes};

/// Plans of every sort: of kinds, masquerades and policies as real ones have them, too.
fn shaped(mut plan: NodePlan) -> NodePlan {
    plan.frontends.iter_mut().for_each(|(key, frontend)| shape(key, frontend));
    // A cluster address is never the node's own.
    plan.cluster_ips = &plan.cluster_ips - &plan.node_addresses;
    plan
}

fn shape(key: &FrontendKey, frontend: &mut Frontend) {
    let few = frontend.service_port.service.name.bytes().map(u32::from).sum::<u32>();
    if matches!(key, FrontendKey::NodePort { .. }) || few.is_multiple_of(2) {
        return;
    }
    if few.is_multiple_of(5) {
        frontend.kind = FrontendKind::ExternalIp;
        frontend.source_ranges = [].into();
        frontend.from_pod = frontend.from_node.clone();
    } else if few.is_multiple_of(7) {
        frontend.kind = FrontendKind::ClusterIp;
        frontend.source_ranges = [].into();
        frontend.from_pod.target = frontend.from_elsewhere.target.clone();
        frontend.from_node = frontend.from_elsewhere.clone();
    }
}

/// What the plan says; nothing comes from an address that is on the device.
fn expected(plan: &NodePlan, program: &Program, packet: &Packet, remembered: Option<SocketAddr>) -> Option<Verdict> {
    let is_possible = !program.addresses().contains(&packet.source.ip());
    is_possible.then(|| walk_with_addresses(plan, packet, remembered))
}

fn plan_and_packets() -> impl Strategy<Value = (NodePlan, Vec<Packet>)> {
    plan().prop_map(shaped).prop_flat_map(|plan| (Just(plan.clone()), prop::collection::vec(packet(plan.family), 20)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn the_program_does_what_the_plan_says((plan, packets) in plan_and_packets(), at: prop::sample::Index) {
        let program = Program::of(&plan, Scheduler::Rr);
        for packet in &packets {
            for remembered in [None, Some(*at.get(&places(plan.family)))] {
                if let Some(verdict) = expected(&plan, &program, packet, remembered) {
                    prop_assert_eq!(walk(&program, packet, remembered), verdict, "{:?} {:?}", packet, remembered);
                }
            }
        }
    }

    #[test]
    fn a_program_that_is_led_on_is_the_one_that_is_made_anew((plan, changes) in plan_and_changes()) {
        let mut plan = shaped(plan);
        let mut program = Program::of(&plan, Scheduler::Rr);
        for change in changes {
            let before = program.clone();
            let mut change = change;
            change.set.iter_mut().for_each(|(key, frontend)| shape(key, frontend));
            plan.apply(&change);
            let difference = program.apply(&change);
            prop_assert_eq!(&before.difference_by(&change), &difference);
            prop_assert_eq!(&program, &Program::of(&plan, Scheduler::Rr));
            let names = |program: &Program| -> BTreeSet<_> {
                program.elements.iter().map(|(key, (mark, _))| (*key, *mark)).collect()
            };
            let (old, new) = (names(&before), names(&program));
            let added: BTreeSet<_> = difference.added.iter().map(|(key, mark)| (*key, *mark)).collect();
            prop_assert_eq!(added, &new - &old);
            let gone: BTreeSet<_> = old.iter().map(|(key, _)| *key).filter(|key| !program.elements.contains_key(key)).collect();
            prop_assert_eq!(difference.removed, gone);
        }
    }

    #[test]
    fn what_does_not_change_makes_no_difference(plan in plan()) {
        let mut program = Program::of(&plan, Scheduler::Rr);
        let same = PlanChange { set: plan.frontends.clone(), node: Some(plan.facts()), ..PlanChange::default() };
        prop_assert_eq!(program.apply(&same), Default::default());
        prop_assert_eq!(program.apply(&between(&plan, &plan)), Default::default());
    }

    #[test]
    fn a_program_reads_back_from_json(plan in plan()) {
        let program = Program::of(&shaped(plan), Scheduler::Wlc);
        let json = serde_json::to_string(&program).unwrap();
        prop_assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
    }
}
