//! Two network namespaces with a link between them: the node's at 10.9.0.2, a router's at 10.9.0.1.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use signpost_node::announce::bgp::bfd::BfdStates;
use signpost_node::announce::bgp::listener::Listener;
use signpost_node::announce::bgp::peer::{self, Ends, PeerOptions, PeerState};
use signpost_node::announce::numbers::Numbers;
use signpost_wire::bgp::{Family, PeerAs, Prefix, Route};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

const DEADLINE: Duration = Duration::from_secs(30);

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where the session under test is held.
    Node,
    /// Where a router runs.
    Router,
}

pub struct Network {
    node: File,
    router: File,
    folder: tempfile::TempDir,
}

/// A program that ends with this.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// BIRD, and how it is asked.
pub struct Bird<'a> {
    network: &'a Network,
    running: Running,
}

/// Where `tools/setup.sh` puts programs.
pub fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools")
}

/// A program: of the machine, or of [`tools`].
pub fn tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), tools()]);
    let found = folders.map(|folder| folder.join(name)).find(|found| found.is_file());
    found.unwrap_or_else(|| panic!("{name} is missing: tools/setup.sh brings it"))
}

/// Waits, but not for ever.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("in time")
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn namespace() -> File {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the tests run as root");
        File::open("/proc/thread-self/ns/net").unwrap()
    });
    thread.join().unwrap()
}

impl Network {
    pub fn new() -> Network {
        let network = Network { node: namespace(), router: namespace(), folder: tempfile::tempdir().unwrap() };
        let router = format!("/proc/{}/fd/{}", std::process::id(), network.router.as_raw_fd());
        network.ip(Side::Node, &format!("link add wire type veth peer name wire netns {router}"));
        for (side, number) in [(Side::Node, 2), (Side::Router, 1)] {
            network.ip(side, "link set lo up");
            network.ip(side, "link set wire up");
            network.ip(side, &format!("address add 10.9.0.{number}/24 dev wire"));
            network.ip(side, &format!("address add fd09::{number}/64 dev wire nodad"));
        }
        network
    }

    fn ip(&self, side: Side, arguments: &str) {
        let status = self.command(side, "ip".into(), &arguments.split(' ').collect::<Vec<_>>()).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    fn command(&self, side: Side, program: PathBuf, arguments: &[&str]) -> Command {
        let namespace = if side == Side::Node { &self.node } else { &self.router };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd()));
        command.arg(program).args(arguments);
        command
    }

    /// Starts a program; it ends when what this gives is dropped.
    pub fn start(&self, side: Side, program: PathBuf, arguments: &[&str]) -> Running {
        let log = File::create(self.folder.path().join("log")).unwrap();
        let mut command = self.command(side, program, arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Running(command.spawn().unwrap())
    }

    /// What a program says.
    pub fn ask(&self, side: Side, program: PathBuf, arguments: &[&str]) -> String {
        let output = self.command(side, program, arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self.path(name)
    }

    pub fn bird(&self, config: &str) -> Bird<'_> {
        let (config, socket, pid) = (self.file("bird.conf", config), self.path("bird.ctl"), self.path("bird.pid"));
        let arguments = ["-f", "-c", &config, "-s", &socket, "-P", &pid];
        Bird { network: self, running: self.start(Side::Router, tool("bird"), &arguments) }
    }

    /// A node with two routes, not started yet.
    pub fn node(&self) -> Node {
        let prefix = |text: &str, length| Prefix::new(text.parse().unwrap(), length);
        let route = Route { communities: [64512 << 16 | 7].into(), ..Route::default() };
        let routes = [prefix("203.0.113.200", 32), prefix("2001:db8:113::200", 128)];
        Node {
            options: PeerOptions {
                asn: 64512,
                peer: PeerAs::Number(64513),
                address: "10.9.0.1:179".parse().unwrap(),
                source: None,
                id: "10.9.0.2".parse().unwrap(),
                hold_time: Duration::from_secs(90),
                keepalive: None,
                connect_time: Some(Duration::from_millis(300)),
                password: None,
                next_hops: [(Family::Ipv4, "10.9.0.2".parse().unwrap()), (Family::Ipv6, "fd09::2".parse().unwrap())]
                    .into(),
                own_family_only: false,
                graceful_restart: false,
                vrf: None,
            },
            routes: routes.into_iter().map(|prefix| (prefix, route.clone())).collect(),
        }
    }

    /// Runs a test in the node's namespace: every thread of its runtime is in it.
    pub fn with_node(self, test: impl AsyncFnOnce(&Network) + Send + 'static) {
        let thread = std::thread::spawn(move || {
            setns(&self.node, CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test(&self));
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Bird<'_> {
    pub fn ask(&self, question: &[&str]) -> String {
        let socket = self.network.path("bird.ctl");
        self.network.ask(Side::Router, tool("birdc"), &[&["-s", socket.as_str()], question].concat())
    }

    pub async fn says(&self, question: &[&str], parts: &[&str]) {
        let all = || {
            let answer = self.ask(question);
            parts.iter().all(|part| answer.contains(part))
        };
        until(&format!("BIRD says {parts:?} to {question:?}"), all).await;
    }

    /// Waits until a line of its answer looks so.
    pub async fn shows(&self, question: &[&str], line: &str) {
        let line = regex::Regex::new(line).unwrap();
        until(&format!("BIRD shows {line} to {question:?}"), || line.is_match(&self.ask(question))).await;
    }

    /// Ends it without a word to anybody.
    pub fn kill(self) {
        drop(self.running);
    }

    pub async fn says_no_more(&self, question: &[&str], part: &str) {
        until(&format!("BIRD no longer says {part} to {question:?}"), || !self.ask(question).contains(part)).await;
    }
}

/// The node's side of a session.
pub struct Node {
    pub options: PeerOptions,
    routes: BTreeMap<Prefix, Route>,
}

/// A session that is held.
pub struct Session {
    states: Arc<Mutex<Vec<PeerState>>>,
    routes: watch::Sender<BTreeMap<Prefix, Route>>,
    task: JoinHandle<()>,
    _others: JoinSet<()>,
    _bfd: watch::Sender<BfdStates>,
}

impl Node {
    pub fn start(self) -> Session {
        let (routes, follow) = watch::channel(self.routes);
        let (connections, incoming) = mpsc::channel(1);
        let (bfd, watched) = watch::channel(BfdStates::new());
        let (tell, mut told) = mpsc::channel(16);
        let states = Arc::new(Mutex::new(Vec::new()));
        let mut others = JoinSet::new();
        let all = states.clone();
        others.spawn(async move {
            while let Some((_, state)) = told.recv().await {
                all.lock().unwrap().push(state);
            }
        });
        let (options, peer) = (self.options.clone(), self.options.address.ip());
        others.spawn(async move {
            let mut listener = Listener::start();
            listener.guard(std::iter::once(&options));
            loop {
                let (stream, from) = listener.accept().await;
                if from == peer {
                    // A session that is over takes none.
                    let _ = connections.try_send(stream);
                }
            }
        });
        let ends = Ends { routes: follow, incoming, bfd: watched, states: tell, numbers: Numbers::default() };
        let task = tokio::spawn(peer::run("router".into(), self.options, ends));
        Session { states, routes, task, _others: others, _bfd: bfd }
    }
}

impl Session {
    pub fn state(&self) -> &'static str {
        self.states.lock().unwrap().last().map_or("", |state| state.state)
    }

    pub fn troubles(&self) -> Vec<String> {
        self.states.lock().unwrap().iter().filter_map(|state| state.trouble.clone()).collect()
    }

    pub async fn established(&self) {
        until("the session stands", || self.state() == "Established").await;
    }

    /// Ends it as a planned end of the daemon does.
    pub async fn end(self) {
        drop(self.routes);
        within(self.task).await.unwrap();
    }
}
