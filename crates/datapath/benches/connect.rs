//! What a connection to a Service costs its client in each mode, against one to the endpoint itself: all modes side by side in
//! one run, in turns, each in a network namespace of its own. One JSON object per size and mode; times in microseconds (p50) and
//! milliseconds. Runs as root.
//!
//! ```text
//! cargo bench -p signpost-datapath --bench connect [-- SERVICESxENDPOINTS ...]
//! ```
//!
//! `direct` has no rules at all. `ebpf` is the whole mode, with the rules for packets beneath; `ebpf-direct` dials the endpoint in
//! that same namespace, so that the difference of the two is what the sockets' programs cost; `ebpf-sockets` is without those rules.

#[allow(dead_code, reason = "shared with the crate's own tests, which use all of it")]
#[path = "../src/strategies.rs"]
mod strategies;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use nix::libc::linger;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use serde_json::json;
use signpost_core::object::Family;
use signpost_core::plan::{Backend, FrontendKey, NodePlan, PlanChange, Target};
use signpost_datapath::Datapath;
use signpost_datapath::ebpf::{self, Ebpf, Kernel, KernelConfig};
use signpost_datapath::iptables::{Iptables, IptablesConfig, Variant};
use signpost_datapath::nftables::{Nftables, NftablesConfig};

const FAMILY: Family = Family::Ipv4;
const SIZES: [(u32, u32); 4] = [(1, 10), (1_000, 10), (10_000, 10), (100_000, 2)];
const WAYS: [Way; 6] = [Way::Direct, Way::Sockets, Way::Ebpf, Way::EbpfDirect, Way::Nftables, Way::Iptables];
/// Its chains are walked one by one, and it lists them in a time with the square of their number.
const MOST_OF_IPTABLES: u32 = 10_000;
const ROUNDS: usize = 20;
const BATCH: usize = 100;
const CHANGES: usize = 15;
/// Where the endpoint listens.
const LISTENS: &str = "10.244.1.7:8080";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Sockets,
    Ebpf,
    EbpfDirect,
    Nftables,
    Iptables,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Sockets => "ebpf-sockets",
            Way::Ebpf => "ebpf",
            Way::EbpfDirect => "ebpf-direct",
            Way::Nftables => "nftables",
            Way::Iptables => "iptables-legacy",
        }
    }
}

fn main() {
    // Before there is a second thread: mounts for the programs' pins.
    unshare(CloneFlags::CLONE_NEWNS).expect("this needs root: it mounts a bpf file system of its own");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("root may");
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let asked: Vec<(u32, u32)> = std::env::args().filter_map(|argument| size(&argument)).collect();
    for (number, size) in (if asked.is_empty() { SIZES.to_vec() } else { asked }).into_iter().enumerate() {
        measure(&folder.path().join(format!("bpf-{number}")), size);
    }
}

fn size(argument: &str) -> Option<(u32, u32)> {
    let (services, endpoints) = argument.split_once('x')?;
    Some((services.parse().ok()?, endpoints.parse().ok()?))
}

/// One that connects, in a network namespace of its own.
struct Client {
    way: Way,
    orders: SyncSender<()>,
    done: Receiver<[Vec<f64>; 2]>,
    install: serde_json::Value,
    times: [Vec<f64>; 2],
    thread: thread::JoinHandle<()>,
}

fn measure(pins: &Path, size: (u32, u32)) {
    let ways = WAYS.into_iter().filter(|way| *way != Way::Iptables || size.0 <= MOST_OF_IPTABLES);
    let mut clients: Vec<Client> = ways.map(|way| start(way, pins.join(way.name()), size)).collect();
    for round in 0..ROUNDS {
        for turn in 0..clients.len() {
            let count = clients.len();
            let client = &mut clients[(round + turn) % count];
            client.orders.send(()).expect("it waits for orders");
            for (all, more) in client.times.iter_mut().zip(client.done.recv().expect("it answers")) {
                all.extend(more);
            }
        }
    }
    let mut direct = [0.0; 2];
    for mut client in clients {
        let [connect, request] = [0, 1].map(|which| median(&mut client.times[which]));
        if client.way == Way::Direct {
            direct = [connect, request];
        }
        let line = json!({
            "bench": "connect", "way": client.way.name(), "services": size.0, "endpoints_each": size.1,
            "connect_us": round(connect), "against_direct": round(connect / direct[0]),
            "connect_request_close_us": round(request), "request_against_direct": round(request / direct[1]),
            "kernel": client.install,
        });
        println!("{line}");
        drop(client.orders);
        client.thread.join().expect("it ends when there are no orders any more");
    }
}

fn start(way: Way, pins: PathBuf, size: (u32, u32)) -> Client {
    let (orders, ordered) = sync_channel::<()>(0);
    let (answer, done) = sync_channel(0);
    let (ready, installed) = sync_channel(0);
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may");
        network();
        let (plan, to) = plan(size);
        let cgroup = Cgroup::new();
        let install = install(way, &pins, &cgroup, &plan);
        let to = if matches!(way, Way::Direct | Way::EbpfDirect) { listens() } else { to };
        let listener = TcpListener::bind(LISTENS).expect("the address is this namespace's");
        // Before the thread is in its group, where the server's would be, too, for ever.
        thread::spawn(move || listener.incoming().flatten().for_each(serve));
        cgroup.enter();
        ready.send(install).expect("it is waited for");
        while ordered.recv().is_ok() {
            let connects = (0..BATCH).map(|_| connect(to).1).collect();
            let requests = (0..BATCH).map(|_| request(to)).collect();
            if answer.send([connects, requests]).is_err() {
                return;
            }
        }
    });
    let install = installed.recv().expect("what it needs is there");
    Client { way, orders, done, install, times: [Vec::new(), Vec::new()], thread }
}

fn network() {
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
}

fn listens() -> SocketAddr {
    LISTENS.parse().expect("it is an address")
}

/// So many Services, the middle one of which leads to the endpoint that listens, and its address.
fn plan((services, endpoints): (u32, u32)) -> (NodePlan, SocketAddr) {
    let mut plan = strategies::services(FAMILY, services, endpoints);
    let (key, mut frontend) = strategies::service(FAMILY, services / 2, 0..1);
    for route in [&mut frontend.from_pod, &mut frontend.from_node, &mut frontend.from_elsewhere] {
        route.target = Target::Backends([Backend { address: listens(), local: true }].into());
    }
    plan.frontends.insert(key, frontend);
    let FrontendKey::Address { address, port, .. } = key else { unreachable!("it has an address") };
    (plan, SocketAddr::new(address, port.get()))
}

fn install(way: Way, pins: &Path, cgroup: &Cgroup, plan: &NodePlan) -> serde_json::Value {
    let config = || KernelConfig { pins: pins.to_owned(), cgroup: Some(cgroup.0.clone()), ..KernelConfig::default() };
    match way {
        Way::Direct => serde_json::Value::Null,
        Way::Sockets => {
            let program = ebpf::program::Program::of(plan);
            let mut kernel = Kernel::new(config());
            let have = kernel.observe(FAMILY).expect("it loads");
            let change = ebpf::repair::repair(&program, &have);
            let began = Instant::now();
            kernel.apply(&change).expect("it is taken");
            json!({ "install_ms": ms(began) })
        }
        Way::Ebpf | Way::EbpfDirect => {
            let node = ebpf::Node::new(config());
            run(&mut Ebpf::new(FAMILY, node, NftablesConfig::default()), plan)
        }
        Way::Nftables => run(&mut Nftables::new(FAMILY, NftablesConfig::default()), plan),
        Way::Iptables => {
            let config = IptablesConfig { variant: Some(Variant::Legacy), ..IptablesConfig::default() };
            run(&mut Iptables::new(FAMILY, config), plan)
        }
    }
}

/// Installs the plan, then changes an endpoint a few times.
fn run<D: Datapath>(mode: &mut D, plan: &NodePlan) -> serde_json::Value {
    let mut program = mode.program(plan);
    let have = mode.observe().expect("it lists");
    let change = mode.repair(&program, &have);
    let began = Instant::now();
    mode.apply(&change).expect("it is taken");
    let install_ms = ms(began);
    let mut changes = Vec::new();
    for number in 0..CHANGES as u32 {
        let (key, frontend) = strategies::service(FAMILY, 0, [7_000_000 + number].into_iter());
        if plan.frontends.len() == 1 {
            break; // the only one is the one that is measured
        }
        let planned = PlanChange { set: [(key, frontend)].into(), ..PlanChange::default() };
        let began = Instant::now();
        let change = mode.change(&program, &planned);
        mode.apply(&change).expect("it is taken");
        changes.push(ms(began));
        mode.advance(&mut program, &change);
    }
    json!({ "install_ms": install_ms, "change_p50_ms": if changes.is_empty() { None } else { Some(median(&mut changes)) } })
}

/// A client leaves with a reset, so that no port of its is in TIME_WAIT: then the server's read fails, which is its end.
fn serve(mut stream: TcpStream) {
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) && stream.write_all(&byte).is_ok() {}
}

fn connect(to: SocketAddr) -> (TcpStream, f64) {
    let began = Instant::now();
    let stream = TcpStream::connect(to).expect("it is led to the listener");
    let took = began.elapsed();
    setsockopt(&stream, Linger, &linger { l_onoff: 1, l_linger: 0 }).expect("TCP can");
    (stream, took.as_secs_f64() * 1e6)
}

fn request(to: SocketAddr) -> f64 {
    let began = Instant::now();
    let (mut stream, _) = connect(to);
    let mut byte = [7];
    stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte)).expect("it echoes");
    drop(stream);
    began.elapsed().as_secs_f64() * 1e6
}

/// A control group for one thread, which goes with this.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Cgroup {
        let mount = ebpf::kernel::cgroup2_mount().expect("cgroup2 is mounted");
        let groups = fs::read_to_string("/proc/self/cgroup").expect("the kernel says");
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).expect("there is a cgroup2");
        let thread = nix::unistd::gettid();
        let path = mount.join(own).join(format!("signpost-bench-{}-{thread}", std::process::id()));
        fs::create_dir(&path).and_then(|()| fs::write(path.join("cgroup.type"), "threaded")).expect("root may");
        Cgroup(path)
    }

    fn enter(&self) {
        fs::write(self.0.join("cgroup.threads"), nix::unistd::gettid().to_string()).expect("root may");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let parent = self.0.parent().expect("it is below another").join("cgroup.threads");
        let left = fs::write(parent, nix::unistd::gettid().to_string()).and_then(|()| fs::remove_dir(&self.0));
        if let Err(error) = left {
            eprintln!("{} cannot be removed: {error}", self.0.display());
        }
    }
}

fn ms(began: Instant) -> f64 {
    round(began.elapsed().as_secs_f64() * 1e3)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
