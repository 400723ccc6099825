//! How long the mode iptables takes, in each of the two iptables: one JSON object, times in milliseconds. Runs as root, in
//! a network namespace of its own.
//!
//! ```text
//! cargo bench -p signpost-datapath --bench iptables [-- legacy|nft] [SERVICESxENDPOINTS]
//! ```

use std::time::Instant;

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Value, json};
use signpost_core::object::Family;
use signpost_core::plan::{NodePlan, PlanChange, SetChange};
use signpost_datapath::Datapath;
use signpost_datapath::iptables::{Iptables, IptablesConfig, Program, Variant};

#[allow(dead_code, reason = "shared with the crate's own tests, which use all of it")]
#[path = "../src/strategies.rs"]
mod strategies;

/// Services, and endpoints of each, unless others are asked for.
const SIZE: (u32, u32) = (1_000, 10);
const CHANGES: u32 = 10;

fn main() {
    unshare(CloneFlags::CLONE_NEWNET).expect("this needs root: it makes a network namespace of its own");
    let size = std::env::args().find_map(|argument| {
        let (services, endpoints) = argument.split_once('x')?;
        Some((services.parse().ok()?, endpoints.parse().ok()?))
    });
    let asked = |name: &str| std::env::args().any(|argument| argument == name);
    let both = [("legacy", Variant::Legacy), ("nft", Variant::Nft)];
    let any = both.iter().any(|(name, _)| asked(name));
    for (name, variant) in both.into_iter().filter(|(name, _)| !any || asked(name)) {
        println!("{}", json!({ "iptables": name, "results": measure(variant, size.unwrap_or(SIZE)) }));
    }
}

fn measure(variant: Variant, (services, endpoints): (u32, u32)) -> Value {
    let family = Family::Ipv4;
    let mut plan = strategies::services(family, services, endpoints);
    let mut iptables = Iptables::new(family, IptablesConfig { variant: Some(variant), ..IptablesConfig::default() });
    let (mut program, program_ms) = timed(|| iptables.program(&plan));
    let have = iptables.observe().expect("it lists");
    let (change, repair_ms) = timed(|| iptables.repair(&program, &have));
    let mut text = Vec::new();
    change.write(&mut text).expect("a vector takes all");
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    drop(text);
    let (_, load) = timed_cpu(|| iptables.apply(&change).expect("it loads"));
    drop(change);
    let one_endpoint = run(&mut iptables, &mut plan, &mut program, |number| {
        let first = number * endpoints;
        let (key, frontend) =
            strategies::service(family, number, (first + 1..first + endpoints).chain([5_000_000 + number]));
        PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() }
    });
    let one_service = run(&mut iptables, &mut plan, &mut program, |number| {
        let number = services + number;
        let (key, frontend) = strategies::service(family, number, (0..endpoints).map(|one| 6_000_000 + one));
        let added = strategies::cluster_ip(family, number);
        let cluster_ips = SetChange { added: [added].into(), ..SetChange::default() };
        PlanChange { set: [(key, frontend)].into(), cluster_ips, ..PlanChange::default() }
    });
    let (have, observe) = timed_cpu(|| iptables.observe().expect("it lists"));
    let (repair, compare_ms) = timed(|| iptables.repair(&program, &have));
    assert!(repair.is_empty(), "what is there is what is wanted");
    let (_, cleanup) = timed_cpu(|| iptables.cleanup().expect("it goes"));
    json!({
        "services": services, "endpoints": services * endpoints, "lines": lines,
        "program_ms": program_ms, "decide_ms": repair_ms, "load": load,
        "one_endpoint": one_endpoint, "one_service": one_service,
        "observe": observe, "compare_ms": compare_ms, "cleanup": cleanup,
    })
}

/// The median of some changes, one after the other: the deciding, and all with the process.
fn run(iptables: &mut Iptables, plan: &mut NodePlan, program: &mut Program, make: impl Fn(u32) -> PlanChange) -> Value {
    let before = cpu_ms();
    let mut all: Vec<(f64, f64)> = (0..CHANGES)
        .map(|number| {
            let plan_change = make(number);
            plan.apply(&plan_change);
            let began = Instant::now();
            let (change, decide_ms) = timed(|| iptables.change(program, &plan_change));
            iptables.apply(&change).expect("it is taken");
            iptables.advance(program, &change);
            (began.elapsed().as_secs_f64() * 1e3, decide_ms)
        })
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (whole_ms, decide_ms) = all[all.len() / 2];
    let cpu_ms = (cpu_ms() - before) / f64::from(CHANGES);
    json!({ "cpu_ms": cpu_ms, "median": whole_ms, "of_which_deciding": decide_ms, "most": all[all.len() - 1].0 })
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let value = f();
    (value, began.elapsed().as_secs_f64() * 1e3)
}

/// With the processor time of this process and its children, which other work on the machine does not lengthen.
fn timed_cpu<T>(f: impl FnOnce() -> T) -> (T, Value) {
    let before = cpu_ms();
    let (value, ms) = timed(f);
    (value, json!({ "ms": ms, "cpu_ms": cpu_ms() - before }))
}

fn cpu_ms() -> f64 {
    let of = |who| {
        let usage = getrusage(who).expect("it is always known");
        let ms = |time: TimeVal| time.num_microseconds() as f64 / 1e3;
        ms(usage.user_time()) + ms(usage.system_time())
    };
    of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)
}
