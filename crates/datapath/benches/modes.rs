//! How long each mode takes, how much processor time and memory, and what a connection through it costs: one JSON object per
//! mode and size. Times in milliseconds, memory in megabytes. Runs as root, in a network namespace of its own.
//!
//! ```text
//! cargo bench -p signpost-datapath --bench modes [-- nftables|iptables-legacy|iptables-nft] [SERVICESxENDPOINTS ...]
//! ```
//!
//! Processor time is that of this process and of the tools that it runs; other work on the machine does not lengthen it.

#[allow(dead_code, reason = "shared with the crate's own tests, which use all of it")]
#[path = "../src/strategies.rs"]
mod strategies;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Value, json};
use signpost_core::object::Family;
use signpost_core::plan::{Backend, Frontend, FrontendKey, NodePlan, PlanChange, SetChange, Target};
use signpost_datapath::Datapath;
use signpost_datapath::iptables::{Iptables, IptablesConfig, Variant};
use signpost_datapath::nftables::{Nftables, NftablesConfig};

const FAMILY: Family = Family::Ipv4;
/// Services and endpoints of each, unless others are asked for.
const SIZES: [(u32, u32); 3] = [(100, 10), (1_000, 10), (10_000, 10)];
/// iptables-nft lists in a time with the square of the chains: more Services would take minutes.
const SIZES_IPTABLES_NFT: [(u32, u32); 3] = [(100, 10), (1_000, 10), (3_000, 10)];
const MODES: [&str; 3] = ["nftables", "iptables-legacy", "iptables-nft"];
/// Changes of each sort.
const CHANGES: u32 = 15;
/// Connections of each sort.
const CONNECTIONS: usize = 2_000;
/// Where the endpoint of the measured Service listens.
const LISTENS: &str = "10.244.1.7:8080";

fn main() {
    unshare(CloneFlags::CLONE_NEWNET).expect("this needs root: it makes a network namespace of its own");
    for words in [
        "link set lo up",
        "link add eth0 type veth peer name far",
        "link set far up",
        "link set eth0 up",
        "address add 172.18.0.11/24 dev eth0",
        "address add 10.244.1.7/32 dev lo",
        "route add default via 172.18.0.1",
    ] {
        let done = Command::new("ip").args(words.split(' ')).status().expect("iproute2 is installed");
        assert!(done.success(), "ip {words}");
    }
    let sizes: Vec<(u32, u32)> = std::env::args().filter_map(|argument| size(&argument)).collect();
    let modes: Vec<String> = std::env::args().filter(|argument| MODES.contains(&argument.as_str())).collect();
    for mode in MODES.into_iter().filter(|mode| modes.is_empty() || modes.iter().any(|asked| asked == mode)) {
        let usual = if mode == "iptables-nft" { SIZES_IPTABLES_NFT } else { SIZES };
        for size in if sizes.is_empty() { usual.to_vec() } else { sizes.clone() } {
            let iptables =
                |variant| Iptables::new(FAMILY, IptablesConfig { variant: Some(variant), ..IptablesConfig::default() });
            let result = match mode {
                "nftables" => {
                    measure(&mut Nftables::new(FAMILY, NftablesConfig::default()), |mode| mode.cleanup().is_ok(), size)
                }
                "iptables-legacy" => measure(&mut iptables(Variant::Legacy), |mode| mode.cleanup().is_ok(), size),
                _ => measure(&mut iptables(Variant::Nft), |mode| mode.cleanup().is_ok(), size),
            };
            println!("{}", json!({ "bench": mode, "services": size.0, "endpoints_each": size.1, "result": result }));
        }
    }
}

fn size(argument: &str) -> Option<(u32, u32)> {
    let (services, endpoints) = argument.split_once('x')?;
    Some((services.parse().ok()?, endpoints.parse().ok()?))
}

fn measure<D: Datapath>(mode: &mut D, cleanup: impl Fn(&mut D) -> bool, (services, endpoints): (u32, u32)) -> Value {
    let bare = connections_to(&[LISTENS.parse().expect("it is an address")]);
    let before_mb = resident_mb();
    let mut plan = strategies::services(FAMILY, services, endpoints);
    let plan_mb = resident_mb() - before_mb;
    let mut program = mode.program(&plan);
    let program_mb = resident_mb() - before_mb - plan_mb;
    let install = {
        let have = mode.observe().expect("it lists");
        let (change, decide) = timed(|| mode.repair(&program, &have));
        let (done, apply) = timed(|| mode.apply(&change));
        done.expect("it loads");
        json!({ "ms": apply.ms, "cpu_ms": apply.cpu_ms, "of_which_deciding_ms": decide.ms })
    };
    let changed = run(mode, &mut plan, &mut program, |number| {
        let first = number * 7 % services * endpoints;
        let all = (first + 1..first + endpoints).chain([5_000_000 + number]);
        set(strategies::service(FAMILY, number * 7 % services, all))
    });
    let added = run(mode, &mut plan, &mut program, |number| {
        let number = services + number;
        let all = (0..endpoints).map(|one| 6_000_000 + one);
        let cluster_ips = SetChange { added: [strategies::cluster_ip(FAMILY, number)].into(), ..SetChange::default() };
        PlanChange { cluster_ips, ..set(strategies::service(FAMILY, number, all)) }
    });
    let removed = run(mode, &mut plan, &mut program, |number| {
        let number = services + number;
        let (key, _) = strategies::service(FAMILY, number, 0..1);
        let cluster_ips =
            SetChange { removed: [strategies::cluster_ip(FAMILY, number)].into(), ..SetChange::default() };
        PlanChange { removed: [key].into(), cluster_ips, ..PlanChange::default() }
    });
    let connect = connections(mode, &mut plan, &mut program, services / 2, bare);
    let (have, observe) = timed(|| mode.observe().expect("it lists"));
    let (repair, compare) = timed(|| mode.repair(&program, &have));
    assert!(repair == mode.change(&program, &PlanChange::default()), "what is there is what is wanted");
    assert!(cleanup(mode), "the rules go");
    json!({
        "install": install, "change_endpoint": changed, "add_service": added, "remove_service": removed,
        "connect": connect, "read_kernel": { "ms": observe.ms, "cpu_ms": observe.cpu_ms }, "compare_ms": compare.ms,
        "plan_mb": plan_mb, "program_mb": program_mb, "resident_mb": resident_mb(),
        "largest_tool_mb": usage(UsageWho::RUSAGE_CHILDREN).1,
    })
}

fn set((key, frontend): (FrontendKey, Frontend)) -> PlanChange {
    PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() }
}

/// Some changes, one after the other, each from the plan's change to the kernel.
fn run<D: Datapath>(
    mode: &mut D,
    plan: &mut NodePlan,
    program: &mut D::Program,
    change_of: impl Fn(u32) -> PlanChange,
) -> Value {
    let (mut all, mut cpu_ms) = (Vec::new(), 0.0);
    for number in 0..CHANGES {
        let planned = change_of(number);
        plan.apply(&planned);
        let ((), took) = timed(|| {
            let change = mode.change(program, &planned);
            mode.apply(&change).expect("it is taken");
            mode.advance(program, &change);
        });
        all.push(took.ms);
        cpu_ms += took.cpu_ms / f64::from(CHANGES);
    }
    json!({ "p50_ms": at(&mut all, 50), "most_ms": at(&mut all, 100), "cpu_ms": round(cpu_ms) })
}

/// What `connect()` takes to the Service in the middle of all, whose one endpoint listens here; to that endpoint itself, which no
/// rule is for; and to it before there were rules (`bare`).
fn connections<D: Datapath>(
    mode: &mut D,
    plan: &mut NodePlan,
    program: &mut D::Program,
    middle: u32,
    mut bare: Vec<Vec<f64>>,
) -> Value {
    let to: SocketAddr = LISTENS.parse().expect("it is an address");
    let (key, mut frontend) = strategies::service(FAMILY, middle, 0..1);
    for route in [&mut frontend.from_pod, &mut frontend.from_node, &mut frontend.from_elsewhere] {
        route.target = Target::Backends([Backend { address: to, local: true }].into());
    }
    let FrontendKey::Address { address, port, .. } = key else { unreachable!("it has an address") };
    let planned = set((key, frontend));
    plan.apply(&planned);
    let change = mode.change(program, &planned);
    mode.apply(&change).expect("it is taken");
    mode.advance(program, &change);
    let mut both = connections_to(&[to, SocketAddr::new(address, port.get())]);
    let bare_us = at(&mut bare[0], 50);
    let (direct_us, us) = (at(&mut both[0], 50), at(&mut both[1], 50));
    json!({
        "bare_p50_us": bare_us, "direct_p50_us": direct_us, "service_p50_us": us,
        "direct_against_bare": round(direct_us / bare_us), "service_against_bare": round(us / bare_us),
        "service_p99_us": at(&mut both[1], 99),
    })
}

/// Connects to each in turn; the times of each, in microseconds. All lead to the one listener.
fn connections_to(all: &[SocketAddr]) -> Vec<Vec<f64>> {
    let listener = TcpListener::bind(LISTENS).expect("the address is this namespace's");
    let count = CONNECTIONS * all.len();
    let takes = std::thread::spawn(move || listener.incoming().take(count).flatten().for_each(drop));
    let mut times = vec![Vec::new(); all.len()];
    for _ in 0..CONNECTIONS {
        for (times, to) in times.iter_mut().zip(all) {
            times.push(connect(*to));
        }
    }
    takes.join().expect("it takes them all");
    times
}

/// Microseconds.
fn connect(to: SocketAddr) -> f64 {
    let began = Instant::now();
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).expect("it is led to the listener");
    let took = began.elapsed();
    drop(stream);
    took.as_secs_f64() * 1e6
}

struct Took {
    ms: f64,
    cpu_ms: f64,
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, Took) {
    let (cpu, began) = (cpu_ms(), Instant::now());
    let value = f();
    let ms = began.elapsed().as_secs_f64() * 1e3;
    (value, Took { ms: round(ms), cpu_ms: round(cpu_ms() - cpu) })
}

fn at(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    round(times[(times.len() - 1) * percent / 100])
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn cpu_ms() -> f64 {
    usage(UsageWho::RUSAGE_SELF).0 + usage(UsageWho::RUSAGE_CHILDREN).0
}

/// Processor time in milliseconds, and the most memory, of the largest of them, in megabytes.
fn usage(who: UsageWho) -> (f64, f64) {
    let usage = getrusage(who).expect("it is always known");
    let ms = |time: TimeVal| time.num_microseconds() as f64 / 1e3;
    (ms(usage.user_time()) + ms(usage.system_time()), round(usage.max_rss() as f64 / 1e3))
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel says");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel says");
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    round(kilobytes / 1e3)
}
