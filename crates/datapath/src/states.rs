//! Ten thousand random states of a small cluster, for every mode: what the plan means, the rules mean; and what came about
//! change by change is what a fresh start would make.
//!
//! ```text
//! event ─▶ Store ─▶ Planner ─▶ change ─▶ program, step by step
//!            └────▶ a new Planner ─▶ plan ─▶ program, whole         all equal, and equal in what packets meet
//! ```
//!
//! A mode joins with one test at the end of this file.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::NodePlan;
use signpost_core::planner::Planner;
use signpost_core::store::{Dirty, Store};
use signpost_core::walk::{frontend, walk_remembering, walk_socket, walk_with_addresses};

use self::world::Dice;
use crate::Datapath;
use crate::ebpf::{self, Ebpf};
use crate::iptables::Iptables;
use crate::ipvs::Ipvs;
use crate::nftables::Nftables;

mod world;

const STATES: usize = 10_000;
/// States of one world, one after the other, before the next world begins empty.
const LIFE: usize = 50;
/// Packets in each state.
const PACKETS: usize = 4;

/// What a plan does to a packet.
type Meaning = fn(&NodePlan, &Packet, Option<SocketAddr>) -> Verdict;
/// What a mode's program does to it, at the same place.
type Doing<D> = fn(&D, &<D as Datapath>::Program, &Packet, Option<SocketAddr>) -> Verdict;

/// Goes through the states in one mode.
fn every_state_holds<D: Datapath>(datapath: impl Fn(Family) -> D, places: &[(Meaning, Doing<D>)]) {
    let mut met = BTreeMap::<&str, usize>::new();
    for (seed, family) in (0..STATES / LIFE).zip([Family::Ipv4, Family::Ipv6].into_iter().cycle()) {
        let datapath = datapath(family);
        life(&datapath, places, seed as u64, family, &mut met);
    }
    // A world in which nothing ever happens would prove nothing.
    for fate in ["rewritten", "rejected", "dropped", "not ours"] {
        let times = met.get(fate).copied().unwrap_or_default();
        assert!(times > STATES * PACKETS / 100, "{fate} {times} times of {} packets", STATES * PACKETS);
    }
}

fn life<D: Datapath>(
    datapath: &D,
    places: &[(Meaning, Doing<D>)],
    seed: u64,
    family: Family,
    met: &mut BTreeMap<&'static str, usize>,
) {
    let dice = &mut Dice::new(seed);
    let mut config = world::config(dice);
    let mut store = Store::new();
    let mut planner = Planner::new(family, config.clone());
    planner.update(&store, &Dirty::default());
    let mut program = datapath.program(planner.plan());
    for state in 0..LIFE {
        let at = || format!("world {seed} of {family}, state {state}");
        for _ in 0..=dice.below(4) {
            store.handle(world::event(dice));
        }
        if dice.percent(3) {
            config = world::config(dice);
            planner.set_config(config.clone());
        }
        let mut before = planner.plan().clone();
        let dirty = store.take_dirty();
        let change = planner.update(&store, &dirty);
        let plan = planner.plan();
        before.apply(&change);
        assert_eq!(&before, plan, "{}: the change leads elsewhere", at());
        let mut fresh = Planner::new(family, config.clone());
        fresh.update(&store, &Dirty::default());
        assert_eq!(plan, fresh.plan(), "{}: a fresh start plans otherwise", at());
        let step = datapath.change(&program, &change);
        datapath.advance(&mut program, &step);
        assert!(program == datapath.program(plan), "{}: a fresh start has another program for {plan:#?}", at());
        for _ in 0..PACKETS {
            let (packet, remembered) = world::packet(dice, plan);
            for (meaning, doing) in places {
                let meant = meaning(plan, &packet, remembered);
                let done = doing(datapath, &program, &packet, remembered);
                let told = || format!("{packet:?}, remembered {remembered:?}, at {:#?}", frontend(plan, &packet));
                assert_eq!(done, meant, "{}: {}", at(), told());
                *met.entry(fate(&meant)).or_default() += 1;
            }
        }
    }
}

fn fate(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Rewrite(_) => "rewritten",
        Verdict::Reject => "rejected",
        Verdict::Drop => "dropped",
        Verdict::NotOurs => "not ours",
    }
}

#[test]
fn in_nftables_mode_every_state_holds() {
    every_state_holds(|family| Nftables::new(family, Default::default()), &[(walk_remembering, Nftables::walk)]);
}

#[test]
fn in_iptables_mode_every_state_holds() {
    every_state_holds(|family| Iptables::new(family, Default::default()), &[(walk_remembering, Iptables::walk)]);
}

#[test]
fn in_ebpf_mode_every_state_holds() {
    let node = ebpf::Node::new(Default::default());
    let mode = |family| Ebpf::new(family, node.clone(), Default::default());
    every_state_holds(mode, &[(walk_remembering, Ebpf::walk), (walk_socket, Ebpf::walk_socket)]);
}

#[test]
fn in_ipvs_mode_every_state_holds() {
    every_state_holds(|family| Ipvs::new(family, Default::default()), &[(walk_with_addresses, Ipvs::walk)]);
}
