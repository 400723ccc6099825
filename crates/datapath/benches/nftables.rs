//! How long the mode nftables takes, and how much memory: one JSON object, times in milliseconds, memory in megabytes.
//! Runs as root, in a network namespace of its own.
//!
//! ```text
//! cargo bench -p signpost-datapath --bench nftables [-- SERVICESxendpoints]
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use signpost_core::object::Family;
use signpost_core::plan::{NodePlan, PlanChange, SetChange};
use signpost_datapath::Datapath;
use signpost_datapath::nftables::{Nftables, NftablesConfig, render};

#[allow(dead_code, reason = "shared with the crate's own tests, which use all of it")]
#[path = "../src/strategies.rs"]
mod strategies;

/// Services, and endpoints of each, unless others are asked for.
const SIZE: (u32, u32) = (10_000, 10);
const CHANGES: u32 = 50;

fn main() {
    unshare(CloneFlags::CLONE_NEWNET).expect("this needs root: it makes a network namespace of its own");
    let size = std::env::args().find_map(|argument| {
        let (services, endpoints) = argument.split_once('x')?;
        Some((services.parse().ok()?, endpoints.parse().ok()?))
    });
    let results = [Family::Ipv4, Family::Ipv6].map(|family| measure(family, size.unwrap_or(SIZE)));
    println!("{}", json!({ "nftables": results }));
}

fn measure(family: Family, (services, endpoints): (u32, u32)) -> serde_json::Value {
    let mut plan = strategies::services(family, services, endpoints);
    let mut nftables = Nftables::new(family, NftablesConfig::default());
    let before_mb = resident_mb();
    let (mut program, program_ms) = timed(|| nftables.program(&plan));
    let program_mb = resident_mb() - before_mb;
    let have = nftables.observe().expect("nft lists");
    let change = nftables.repair(&program, &have);
    let (script_mb, render_ms) = timed(|| {
        let mut script = Vec::new();
        render::render(&change, &mut script).expect("a vector takes all");
        mb(script.len())
    });
    let (_, load_ms) = timed(|| nftables.apply(&change).expect("it loads"));
    drop(change);
    let endpoint = run(&mut nftables, &mut plan, &mut program, |number| {
        let first = number * endpoints;
        let (key, frontend) =
            strategies::service(family, number, (first + 1..first + endpoints).chain([5_000_000 + number]));
        PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() }
    });
    let service = run(&mut nftables, &mut plan, &mut program, |number| {
        let number = services + number;
        let (key, frontend) = strategies::service(family, number, (0..endpoints).map(|one| 6_000_000 + one));
        let added = strategies::cluster_ip(family, number);
        let cluster_ips = SetChange { added: [added].into(), ..SetChange::default() };
        PlanChange { set: [(key, frontend)].into(), cluster_ips, ..PlanChange::default() }
    });
    let (have, observe_ms) = timed(|| nftables.observe().expect("nft lists"));
    let observed_mb = resident_mb() - before_mb;
    let (repair, repair_ms) = timed(|| nftables.repair(&program, &have));
    assert!(repair.is_empty(), "what is there is what is wanted");
    nftables.cleanup().expect("it goes");
    json!({
        "family": family, "services": services, "endpoints": services * endpoints,
        "program_ms": program_ms, "program_mb": program_mb, "render_ms": render_ms, "script_mb": script_mb,
        "load_ms": load_ms, "one_endpoint": endpoint, "one_service": service,
        "observe_ms": observe_ms, "observed_mb": observed_mb, "repair_ms": repair_ms,
    })
}

/// Some changes, one after the other: the deciding and the whole, with the nft process.
fn run(
    nftables: &mut Nftables,
    plan: &mut NodePlan,
    program: &mut <Nftables as Datapath>::Program,
    change_of: impl Fn(u32) -> PlanChange,
) -> serde_json::Value {
    let (mut decided, mut whole) = (Vec::new(), Vec::new());
    for number in 0..CHANGES {
        let plan_change = change_of(number * 7);
        plan.apply(&plan_change);
        let start = Instant::now();
        let change = nftables.change(program, &plan_change);
        nftables.advance(program, black_box(&change));
        decided.push(start.elapsed());
        nftables.apply(&change).expect("it applies");
        whole.push(start.elapsed());
    }
    json!({ "decide_p50_ms": at(&mut decided, 50), "p50_ms": at(&mut whole, 50), "p99_ms": at(&mut whole, 99) })
}

fn at(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    ms(times[(times.len() - 1) * percent / 100])
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = f();
    (result, ms(start.elapsed()))
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn mb(bytes: usize) -> f64 {
    (bytes as f64 / 1e4).round() / 100.0
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel says");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel says");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    mb(kilobytes * 1024)
}
