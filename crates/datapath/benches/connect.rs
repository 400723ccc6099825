//! What a connection to a Service costs its client in each mode, against one to the endpoint itself: all modes side by side in
//! one run, in turns, each in a network namespace of its own. One JSON object per size and mode; times in microseconds (p50) and
//! milliseconds. Runs as root.
//!
//! ```text
//! cargo bench -p signpost-datapath --bench connect [-- SERVICESxENDPOINTS ...]
//! ```
//!
//! Each mode's client dials the Service and, in the same turn, the endpoint itself. `against_direct` compares with the client of
//! `direct`, whose namespace has no rules at all; `against_direct_here` with the endpoint dialled under the same rules: what a pod would
//! pay that does without the Service. Both are medians of the ratios of turns, as are the lines `connect-pair`, which say what counting
//! costs. `ebpf` is the whole mode, with the rules for packets beneath; `ebpf-sockets` is without them.
//!
//! A change is an exchanged endpoint: `plan_ms` from the API's event to the plan's change, `kernel_ms` from there until the
//! kernel has it (new connections in the mode eBPF meet it as soon as in `ebpf-sockets`, whose maps are the first step); medians.

#[allow(dead_code, reason = "shared with the crate's own tests, which use all of it")]
#[path = "../src/strategies.rs"]
mod strategies;

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use nix::libc::linger;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use serde_json::json;
use signpost_core::object::{
    Endpoint, EndpointPort, EndpointSlice, Family, Node, ObjectName, Protocol, Service, ServicePort, TrafficPolicy,
};
use signpost_core::plan::{NodePlan, PlanChange};
use signpost_core::planner::{NodeConfig, NodePortAddresses, Planner};
use signpost_core::store::{Event, Store};
use signpost_datapath::Datapath;
use signpost_datapath::ebpf::{self, Counting, Ebpf, Kernel, KernelConfig};
use signpost_datapath::iptables::{Iptables, IptablesConfig, Variant};
use signpost_datapath::nftables::{Nftables, NftablesConfig};

const FAMILY: Family = Family::Ipv4;
const SIZES: [(u32, u32); 4] = [(1, 10), (1_000, 10), (10_000, 10), (100_000, 2)];
/// Its chains are walked one by one, and it takes them in a time with the square of their number: at 100,000 Services it does not come to
/// an end, and from 1,000 on they have one endpoint each, of which what a connection costs does not hang.
const MOST_OF_IPTABLES: u32 = 10_000;
const MOST_WITH_ALL_ENDPOINTS: u32 = 1_000;
const ROUNDS: usize = 40;
const BATCH: usize = 50;
const CHANGES: u32 = 15;
/// Where the endpoint listens.
const LISTENS: &str = "10.244.1.7:8080";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Sockets(Counting),
    Ebpf,
    Nftables,
    Iptables,
}

const WAYS: [Way; 7] = [
    Way::Direct,
    Way::Sockets(Counting::Connections),
    Way::Sockets(Counting::Nothing),
    Way::Sockets(Counting::Packets),
    Way::Ebpf,
    Way::Nftables,
    Way::Iptables,
];

/// What is said to cost something, and what it is compared with.
const PAIRS: [(&str, Way, Way); 2] = [
    ("counting", Way::Sockets(Counting::Connections), Way::Sockets(Counting::Nothing)),
    ("counting packets", Way::Sockets(Counting::Packets), Way::Sockets(Counting::Connections)),
];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Sockets(Counting::Connections) => "ebpf-sockets",
            Way::Sockets(Counting::Nothing) => "ebpf-sockets-uncounted",
            Way::Sockets(Counting::Packets) => "ebpf-sockets-packets",
            Way::Ebpf => "ebpf",
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

/// Of one turn: medians of connect() and of connect, request and close, to the Service and to the endpoint itself.
#[derive(Debug, Clone, Copy)]
struct Turn {
    service: [f64; 2],
    endpoint: [f64; 2],
}

/// One that connects, in a network namespace of its own.
struct Client {
    way: Way,
    /// Of each Service.
    endpoints: u32,
    orders: SyncSender<()>,
    done: Receiver<Turn>,
    install: serde_json::Value,
    turns: Vec<Turn>,
    thread: thread::JoinHandle<()>,
}

fn measure(pins: &Path, size: (u32, u32)) {
    let ways = WAYS.into_iter().filter(|way| *way != Way::Iptables || size.0 <= MOST_OF_IPTABLES);
    let load = Arc::new(Load::new(size));
    let load_of = |way| match way {
        Way::Iptables if size.0 > MOST_WITH_ALL_ENDPOINTS => Arc::new(Load::new((size.0, 1))),
        _ => load.clone(),
    };
    let mut clients: Vec<Client> = ways.map(|way| start(way, pins.join(way.name()), load_of(way))).collect();
    for round in 0..ROUNDS {
        for turn in 0..clients.len() {
            let count = clients.len();
            let client = &mut clients[(round + turn) % count];
            client.orders.send(()).expect("it waits for orders");
            client.turns.push(client.done.recv().expect("it answers"));
        }
    }
    let turns = |way: Way| clients.iter().find(|client| client.way == way).map(|client| client.turns.as_slice());
    let direct = turns(Way::Direct).expect("it is one of the ways");
    for client in &clients {
        let own =
            |which: usize| round(median(&mut client.turns.iter().map(|turn| turn.service[which]).collect::<Vec<_>>()));
        let here: Vec<Turn> = client.turns.iter().map(|turn| Turn { service: turn.endpoint, ..*turn }).collect();
        let [connect, request] = against(&client.turns, direct);
        let [connect_here, request_here] = against(&client.turns, &here);
        let line = json!({
            "bench": "connect", "way": client.way.name(), "services": size.0, "endpoints_each": client.endpoints,
            "connect_us": own(0), "against_direct": connect, "against_direct_here": connect_here,
            "connect_request_close_us": own(1), "request_against_direct": request, "request_against_direct_here": request_here,
            "kernel": client.install,
        });
        println!("{line}");
    }
    for (what, one, other) in PAIRS {
        let (Some(one), Some(other)) = (turns(one), turns(other)) else { continue };
        let [connect, request] = against(one, other);
        let line = json!({
            "bench": "connect-pair", "what": what, "services": size.0, "connect": connect, "connect_request_close": request,
        });
        println!("{line}");
    }
    for client in clients {
        drop(client.orders);
        client.thread.join().expect("it ends when there are no orders any more");
    }
}

/// The medians of what one took in each turn by what the other took in it.
fn against(one: &[Turn], other: &[Turn]) -> [f64; 2] {
    [0, 1].map(|which| {
        let mut ratios: Vec<f64> =
            one.iter().zip(other).map(|(one, other)| one.service[which] / other.service[which]).collect();
        (median(&mut ratios) * 1e3).round() / 1e3
    })
}

fn start(way: Way, pins: PathBuf, load: Arc<Load>) -> Client {
    let endpoints = load.endpoints;
    let (orders, ordered) = sync_channel::<()>(0);
    let (answer, done) = sync_channel(0);
    let (ready, installed) = sync_channel(0);
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may");
        network();
        let cgroup = Cgroup::new();
        let (install, _mode) = install(way, &pins, &cgroup, &load);
        let to = if way == Way::Direct { listens() } else { load.to };
        drop(load);
        let listener = TcpListener::bind(LISTENS).expect("the address is this namespace's");
        // Before the thread is in its group, where the server's would be, too, for ever.
        thread::spawn(move || listener.incoming().flatten().for_each(serve));
        cgroup.enter();
        ready.send(install).expect("it is waited for");
        while ordered.recv().is_ok() {
            let turn = |to| {
                let mut connects: Vec<f64> = (0..BATCH).map(|_| connect(to).1).collect();
                let mut requests: Vec<f64> = (0..BATCH).map(|_| request(to)).collect();
                [median(&mut connects), median(&mut requests)]
            };
            if answer.send(Turn { service: turn(to), endpoint: turn(listens()) }).is_err() {
                return;
            }
        }
    });
    let install = installed.recv().expect("what it needs is there");
    Client { way, endpoints, orders, done, install, turns: Vec::new(), thread }
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

/// So many Services, of which the middle one leads to the endpoint that listens, and what happens to them.
struct Load {
    plan: NodePlan,
    endpoints: u32,
    /// The address of the one that is measured.
    to: SocketAddr,
    /// Exchanged endpoints, one after the other, with the time from event to change in milliseconds.
    changes: Vec<(PlanChange, f64)>,
}

impl Load {
    fn new((services, endpoints): (u32, u32)) -> Load {
        let mut store = Store::new();
        store.handle(Event::NodeApplied(Node {
            name: "n1".into(),
            addresses: vec![IpAddr::from([172, 18, 0, 11])],
            pod_cidrs: Vec::new(),
            labels: BTreeMap::default(),
        }));
        let measured = services / 2;
        for number in 0..services {
            store.handle(Event::ServiceApplied(service(number)));
            let slice = slice(number, (0..endpoints).map(|one| endpoint(number * endpoints + one)));
            store.handle(Event::SliceApplied(slice));
        }
        let listening = SocketAddr::from_str(LISTENS).map(|at| at.ip()).expect("it is an address");
        store.handle(Event::SliceApplied(slice(measured, std::iter::once(listening))));
        let mut planner = Planner::new(FAMILY, config());
        let mut update = |store: &mut Store| {
            let dirty = store.take_dirty();
            planner.update(store, &dirty);
            planner.plan().clone()
        };
        let plan = update(&mut store);
        let mut changes = Vec::new();
        // The only one is the one that is measured.
        for number in 0..if services == 1 { 0 } else { CHANGES } {
            let event = Event::SliceApplied(slice(0, std::iter::once(endpoint(7_000_000 + number))));
            let began = Instant::now();
            store.handle(event);
            let dirty = store.take_dirty();
            let change = planner.update(&store, &dirty);
            changes.push((change, ms(began)));
        }
        Load { plan, endpoints, to: SocketAddr::new(strategies::cluster_ip(FAMILY, measured), 80), changes }
    }
}

fn config() -> NodeConfig {
    NodeConfig {
        node: "n1".into(),
        cluster_cidrs: vec!["10.128.0.0/9".parse().expect("it is a range")],
        masquerade_all: false,
        node_addresses: [IpAddr::from([172, 18, 0, 11])].into(),
        node_port_addresses: NodePortAddresses::Primary,
        localhost_node_ports: false,
        source_ranges_on_node_ports: false,
        node_cache: false,
    }
}

fn http(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("it is not 0")
}

fn name(number: u32) -> ObjectName {
    ObjectName::new(&format!("namespace-{}", number % 100), &format!("service-{number}"))
}

fn service(number: u32) -> Service {
    Service {
        name: name(number),
        cluster_ips: vec![strategies::cluster_ip(FAMILY, number)],
        external_ips: Vec::new(),
        ingress: Vec::new(),
        source_ranges: Vec::new(),
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: http(80), node_port: None }],
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity: None,
        reset_after: None,
        rebalance: None,
        health_check_node_port: None,
        scheduler: None,
    }
}

fn endpoint(number: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + number).into()
}

fn slice(number: u32, endpoints: impl Iterator<Item = IpAddr>) -> EndpointSlice {
    let endpoint = |address| Endpoint {
        address,
        ready: true,
        serving: true,
        terminating: false,
        node: Some("n2".into()),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    };
    EndpointSlice {
        name: name(number),
        service: name(number),
        family: FAMILY,
        ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: http(8080) }],
        endpoints: endpoints.map(endpoint).collect(),
    }
}

/// What it says of the kernel, and what must live as long as it is measured.
fn install(way: Way, pins: &Path, cgroup: &Cgroup, load: &Load) -> (serde_json::Value, Box<dyn Any>) {
    let config = |counting| KernelConfig {
        pins: pins.to_owned(),
        cgroup: Some(cgroup.0.clone()),
        counting,
        ..KernelConfig::default()
    };
    match way {
        Way::Direct => (serde_json::Value::Null, Box::new(())),
        Way::Sockets(counting) => sockets(config(counting), load, pins),
        Way::Ebpf => {
            let node = ebpf::Node::new(config(Counting::Connections));
            let mut told = run(Ebpf::new(FAMILY, node, NftablesConfig::default()), load);
            told.0["maps_mb"] = json!(maps_mb(pins));
            told
        }
        Way::Nftables => run(Nftables::new(FAMILY, NftablesConfig::default()), load),
        Way::Iptables => {
            let config = IptablesConfig { variant: Some(Variant::Legacy), ..IptablesConfig::default() };
            run(Iptables::new(FAMILY, config), load)
        }
    }
}

/// The maps alone.
fn sockets(config: KernelConfig, load: &Load, pins: &Path) -> (serde_json::Value, Box<dyn Any>) {
    let began = Instant::now();
    let mut program = ebpf::program::Program::of(&load.plan, ebpf::Packets::Nftables);
    let program_ms = ms(began);
    let mut kernel = Kernel::new(config);
    let have = kernel.observe(FAMILY).expect("it loads");
    let began = Instant::now();
    kernel.apply(&ebpf::repair::repair(&program, &have)).expect("it is taken");
    let install_ms = ms(began);
    let mut changes = Vec::new();
    for (planned, _) in &load.changes {
        let began = Instant::now();
        let change = ebpf::change::change(&program, planned);
        kernel.apply(&change).expect("it is taken");
        changes.push(ms(began));
        ebpf::change::advance(&mut program, &change);
    }
    let told = json!({
        "program_ms": program_ms, "install_ms": install_ms, "plan_ms": load.plan_ms(), "kernel_ms": some_median(changes),
        "maps_mb": maps_mb(pins),
    });
    (told, Box::new(kernel))
}

/// Installs the plan, then changes an endpoint a few times.
fn run<D: Datapath + 'static>(mut mode: D, load: &Load) -> (serde_json::Value, Box<dyn Any>) {
    let began = Instant::now();
    let mut program = mode.program(&load.plan);
    let program_ms = ms(began);
    let have = mode.observe().expect("it lists");
    let began = Instant::now();
    let change = mode.repair(&program, &have);
    mode.apply(&change).expect("it is taken");
    let install_ms = ms(began);
    let mut changes = Vec::new();
    for (planned, _) in &load.changes {
        let began = Instant::now();
        let change = mode.change(&program, planned);
        mode.apply(&change).expect("it is taken");
        changes.push(ms(began));
        mode.advance(&mut program, &change);
    }
    let told = json!({
        "program_ms": program_ms, "install_ms": install_ms, "plan_ms": load.plan_ms(), "kernel_ms": some_median(changes),
    });
    (told, Box::new(mode))
}

impl Load {
    fn plan_ms(&self) -> Option<f64> {
        some_median(self.changes.iter().map(|(_, took)| *took).collect())
    }
}

fn some_median(mut times: Vec<f64>) -> Option<f64> {
    if times.is_empty() { None } else { Some(median(&mut times)) }
}

/// What the kernel says that the maps take of its memory.
fn maps_mb(pins: &Path) -> f64 {
    let directories = fs::read_dir(pins).expect("maps are pinned").flatten().map(|entry| entry.path());
    let pinned = directories.flat_map(|path| fs::read_dir(path).expect("it is a directory").flatten());
    let bytes = |path: PathBuf| {
        let map = libbpf_rs::MapHandle::from_pinned_path(path).ok()?;
        let said = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).ok()?;
        said.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse::<u64>().ok())
    };
    let maps = pinned.filter(|entry| !entry.path().parent().is_some_and(|parent| parent.ends_with("links")));
    round(maps.filter_map(|entry| bytes(entry.path())).sum::<u64>() as f64 / 1e6)
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
