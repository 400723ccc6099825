//! What must hold for every plan: the maps mean what the plan means, a change is what differs, no connection meets half a
//! state in between, and whatever the kernel was left with becomes what is wanted.

use std::collections::BTreeMap;

use proptest::prelude::*;
use signpost_core::object::Family;
use signpost_core::packet::{Entry, Packet, Verdict};
use signpost_core::plan::{NodePlan, PlanChange, SetChange};
use signpost_core::walk::{frontend, walk as plan_walk, walk_remembering as plan_walk_remembering, walk_socket};

use super::change::{Change, Write, advance, change, diff};
use super::layout::{Key, SetId, Table, Value};
use super::program::{Packets, Program};
use super::repair::{Observed, repair};
use super::walk::{Maps, walk, walk_packet};
use crate::strategies::{between, family, packet, places, plan, plan_and_changes, plan_of, service, services};

/// With all that sockets and packets need.
const BOTH: Packets = Packets::Tc { maglev: true };

/// The kernel's maps as bytes, as the programs read them.
#[derive(Debug, Clone, Default, PartialEq)]
struct Memory {
    entries: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    attached: bool,
}

impl Maps for Memory {
    fn lookup(&self, key: &Key) -> Option<Value> {
        let bytes = self.entries.get(&(key.table(), key.bytes()))?;
        Some(Value::read(key.table(), bytes).expect("the programs read what we write"))
    }
}

impl Memory {
    fn write(&mut self, write: Write<'_>) {
        match write {
            Write::Set(key, value) => drop(self.entries.insert((key.table(), key.bytes()), value.bytes())),
            Write::Remove(key) => drop(self.entries.remove(&(key.table(), key.bytes()))),
        }
    }

    /// Carries out a change; after so many writes the kernel refuses.
    fn apply(&mut self, change: &Change, writes: usize) {
        change.foreign.iter().for_each(|key| drop(self.entries.remove(key)));
        change.writes().take(writes).for_each(|write| self.write(write));
        self.attached |= change.attach && writes == usize::MAX;
    }

    fn observe(&self, family: Family) -> Observed {
        let mut observed = Observed { attached: self.attached, ..Observed::default() };
        for ((table, key), value) in &self.entries {
            observed.read(family, *table, key, value);
        }
        observed
    }

    fn load(&mut self, plan: &NodePlan) -> Program {
        let want = Program::of(plan, BOTH);
        self.apply(&repair(&want, &self.observe(plan.family)), usize::MAX);
        want
    }
}

/// A packet that a node's process sends comes from an address of the node; others' does not.
fn fits(plan: &NodePlan, packet: &Packet) -> bool {
    let origin = signpost_core::walk::Origin::of(plan, packet.source.ip());
    packet.entry == Entry::Interface || origin == signpost_core::walk::Origin::Node
}

fn packets(family: Family) -> impl Strategy<Value = Vec<Packet>> {
    prop::collection::vec(packet(family), 20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_maps_do_what_the_plan_says(
        (plan, packets) in plan().prop_flat_map(|plan| (Just(plan.clone()), packets(plan.family))),
        at: prop::sample::Index,
    ) {
        let mut memory = Memory::default();
        let program = memory.load(&plan);
        for packet in &packets {
            for remembered in [None, Some(*at.get(&places(plan.family)))] {
                let wanted = walk_socket(&plan, packet, remembered);
                prop_assert_eq!(walk(&program, packet, remembered), wanted.clone(), "{:?}", packet);
                prop_assert_eq!(walk(&memory, packet, remembered), wanted, "{:?}", packet);
            }
        }
    }

    /// What the programs at the interfaces leave alone meets the rules beneath, which know no more than they need.
    #[test]
    fn interfaces_and_rules_do_together_what_the_plan_says(
        (plan, packets) in plan().prop_flat_map(|plan| (Just(plan.clone()), packets(plan.family))),
        at: prop::sample::Index,
        maglev: bool,
    ) {
        let mut memory = Memory::default();
        let packets_by = Packets::Tc { maglev };
        let sockets = Program::of(&plan, packets_by);
        memory.apply(&repair(&sockets, &memory.observe(plan.family)), usize::MAX);
        let rules = crate::nftables::Program::of(&super::rest::plan(&plan));
        let whole = super::Program { sockets, packets: rules };
        for packet in &packets {
            for remembered in [None, Some(*at.get(&places(plan.family)))] {
                let wanted = plan_walk_remembering(&plan, packet, remembered);
                let is_served = packet.entry == Entry::Interface || walk_socket(&plan, packet, remembered) == Verdict::NotOurs;
                if is_served && fits(&plan, packet) {
                    prop_assert_eq!(super::walk_packet(&whole, packet, remembered), wanted, "{:?}", packet);
                }
                prop_assert_eq!(
                    walk_packet(&memory, packet, remembered), walk_packet(&whole.sockets, packet, remembered), "{:?}", packet
                );
            }
        }
    }

    #[test]
    fn the_rules_follow_a_change((mut plan, changes) in plan_and_changes()) {
        let mut left = super::rest::plan(&plan);
        for change in &changes {
            left.apply(&super::rest::change(change));
            plan.apply(change);
            prop_assert_eq!(&left, &super::rest::plan(&plan));
        }
    }

    #[test]
    fn a_socket_leads_where_the_packets_rules_would((plan, packets) in plan().prop_flat_map(
        |plan| (Just(plan.clone()), packets(plan.family))
    )) {
        for packet in &packets {
            let origin = signpost_core::walk::Origin::of(&plan, packet.source.ip());
            let is_told = match packet.entry {
                signpost_core::packet::Entry::Local => origin == signpost_core::walk::Origin::Node,
                signpost_core::packet::Entry::Interface => origin == signpost_core::walk::Origin::Pod,
            };
            match (walk_socket(&plan, packet, None), plan_walk(&plan, packet)) {
                (Verdict::Rewrite(socket), Verdict::Rewrite(rules)) if is_told => {
                    let to = |all: std::collections::BTreeSet<signpost_core::packet::Rewrite>| -> Vec<_> {
                        all.into_iter().map(|rewrite| rewrite.to).collect()
                    };
                    prop_assert_eq!(to(socket), to(rules));
                }
                (Verdict::Reject, rules) if is_told => prop_assert_eq!(rules, Verdict::Reject),
                (Verdict::Rewrite(_), rules) if is_told => prop_assert!(false, "{:?}", rules),
                _ => {}
            }
        }
    }

    #[test]
    fn a_change_is_what_differs((mut plan, changes) in plan_and_changes()) {
        let mut program = Program::of(&plan, BOTH);
        for plan_change in &changes {
            plan.apply(plan_change);
            let after = Program::of(&plan, BOTH);
            let change = change(&program, plan_change);
            prop_assert_eq!(&change, &diff(&program, &after));
            advance(&mut program, &change);
            prop_assert_eq!(&program, &after);
        }
    }

    #[test]
    fn a_change_that_changes_nothing_is_empty(plan in plan()) {
        let program = Program::of(&plan, BOTH);
        let local_endpoints = SetChange { added: plan.local_endpoints.clone(), removed: [].into() };
        let same = PlanChange { set: plan.frontends.clone(), local_endpoints, ..PlanChange::default() };
        prop_assert_eq!(change(&program, &same), Change::none(plan.family));
        prop_assert_eq!(diff(&program, &program), Change::none(plan.family));
    }

    #[test]
    fn a_program_reads_back_from_json(plan in plan()) {
        let program = Program::of(&plan, BOTH);
        let json = serde_json::to_string(&program).unwrap();
        prop_assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
    }

    #[test]
    fn changes_one_by_one_lead_where_the_whole_leads((mut plan, changes) in plan_and_changes()) {
        let mut kernel = Memory::default();
        let mut program = kernel.load(&plan);
        for plan_change in &changes {
            plan.apply(plan_change);
            let change = change(&program, plan_change);
            kernel.apply(&change, usize::MAX);
            advance(&mut program, &change);
        }
        let mut fresh = Memory::default();
        fresh.load(&plan);
        prop_assert_eq!(kernel, fresh);
    }

    /// Between any two writes a connection meets what was, or what will be. But for an address that is both a Service's and
    /// the node's, at a port that is also a node port: those are two frontends.
    #[test]
    fn no_connection_meets_half_a_state(
        (before, after, packets) in family().prop_flat_map(|family| (plan_of(family), plan_of(family), packets(family)))
    ) {
        let after = NodePlan {
            cluster_cidrs: before.cluster_cidrs.clone(),
            node_port_addresses: before.node_port_addresses.clone(),
            ..after
        };
        let mut kernel = Memory::default();
        let program = kernel.load(&before);
        let change = change(&program, &between(&before, &after));
        for write in change.writes() {
            kernel.write(write);
            for packet in packets.iter().filter(|packet| !before.node_port_addresses.contains(&packet.destination.ip())
                || frontend(&before, packet).map(|(key, _)| key) == frontend(&after, packet).map(|(key, _)| key)) {
                let met = walk(&kernel, packet, None);
                let may = [walk_socket(&before, packet, None), walk_socket(&after, packet, None)];
                prop_assert!(may.contains(&met), "{:?}: {:?}, not {:?}", packet, met, may);
            }
        }
    }

    #[test]
    fn after_a_refusal_in_the_middle_repair_leads_on(
        (before, after, at) in family().prop_flat_map(|family| (plan_of(family), plan_of(family), 0..12_usize))
    ) {
        let mut kernel = Memory::default();
        let program = kernel.load(&before);
        kernel.apply(&change(&program, &between(&before, &after)), at);
        kernel.load(&after);
        let mut fresh = Memory::default();
        let want = fresh.load(&after);
        prop_assert_eq!(&kernel, &fresh);
        prop_assert!(repair(&want, &kernel.observe(after.family)).is_empty());
    }

    #[test]
    fn families_leave_each_other_alone((four, six) in (plan_of(Family::Ipv4), plan_of(Family::Ipv6))) {
        let mut kernel = Memory::default();
        let (first, second) = (kernel.load(&four), kernel.load(&six));
        prop_assert!(repair(&first, &kernel.observe(Family::Ipv4)).is_empty());
        prop_assert!(repair(&second, &kernel.observe(Family::Ipv6)).is_empty());
    }
}

#[test]
fn size_budget() {
    // Per Service of ten endpoints: its frontend and ten slots; the node: two entries.
    let size = |count| Program::of(&services(Family::Ipv4, count, 10), Packets::Nftables).entries().count();
    assert_eq!((size(0), size(1), size(1_000)), (2, 2 + 11, 2 + 11_000));
}

#[test]
fn frontends_with_the_same_backends_share_a_set() {
    let mut plan = services(Family::Ipv4, 1, 10);
    let frontend = plan.frontends.values().next().unwrap().clone();
    plan.frontends.insert("nodeport:30080/tcp".parse().unwrap(), frontend);
    assert_eq!(Program::of(&plan, Packets::Nftables).slots(), 10);
}

#[test]
fn a_changed_endpoint_is_a_new_set_then_one_write_of_its_frontend() {
    let program = Program::of(&services(Family::Ipv6, 100, 2), Packets::Nftables);
    let (key, frontend) = service(Family::Ipv6, 7, [14, 5_000].into_iter());
    let change = change(&program, &PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() });
    let tables: Vec<(bool, Table)> = change
        .writes()
        .map(|write| match write {
            Write::Set(key, _) => (true, key.table()),
            Write::Remove(key) => (false, key.table()),
        })
        .collect();
    let (slots, frontends) = (Table::Slots, Table::Frontends);
    assert_eq!(tables, [(true, slots), (true, slots), (true, frontends), (false, slots), (false, slots)]);
}

#[test]
fn what_somebody_did_to_the_maps_is_put_right() {
    let plan = services(Family::Ipv4, 3, 2);
    type Harm = (&'static str, fn(&mut Memory));
    let harms: [Harm; 5] = [
        ("an entry is gone", |memory| drop(memory.entries.pop_first())),
        ("an entry leads elsewhere", |memory| {
            let slot = memory.entries.iter_mut().find(|((table, _), _)| *table == Table::Slots).unwrap();
            *slot.1 = Value::Backend("192.0.2.1:80".parse().unwrap()).bytes();
        }),
        ("an entry is new", |memory| {
            let key = Key::Slot(SetId(5), 0);
            let value = Value::Backend("192.0.2.1:80".parse().unwrap());
            memory.write(Write::Set(&key, &value));
        }),
        ("a strange entry is there", |memory| {
            drop(memory.entries.insert((Table::Slots, vec![0xff; 16]), vec![0xff; 20]))
        }),
        ("the programs are gone", |memory| memory.attached = false),
    ];
    for (what, harm) in harms {
        let mut kernel = Memory::default();
        let want = kernel.load(&plan);
        let sound = kernel.clone();
        harm(&mut kernel);
        assert!(!repair(&want, &kernel.observe(plan.family)).is_empty(), "{what}");
        kernel.load(&plan);
        assert_eq!(kernel, sound, "{what}");
    }
}
