//! The lab as the runner sees it: where packets can be sent from, what the daemons have programmed, what the API holds.
//! Everything that a scenario asks of the lab goes through here.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_core::node_cache;
use signpost_core::object::Family;
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::NodePlan;
use signpost_core::walk::walk_socket;
use signpost_datapath::probe;
use signpost_diagnose::collect;
use signpost_diagnose::program::Program;
use signpost_diagnose::snapshot::Snapshot;

use super::address::{PodName, Source};
use super::format::{self, FamilyRun, Mode, ObjectRef};
use super::listed::{Listed, Surroundings};
use super::objects::Objects;
use super::predict::At;
use crate::cgroup::Cgroup;
use crate::inspection;
use crate::kubelet;
use crate::netns::Netns;
use crate::patience::patient;
use crate::sockets::{SocketMaker, Sockets};
use crate::{Families, Lab, LabSpec, NodeSpec, Place, Topology};

/// The lab that a scenario needs. Scenarios with equal ones share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabKey {
    /// The daemons' mode.
    pub mode: Mode,
    /// The lab's families.
    pub family: FamilyRun,
    /// The nodes.
    pub nodes: Vec<format::NodeSpec>,
    /// What the router does.
    pub router: format::Router,
    /// Whether it has its name service.
    pub dns: bool,
    /// Whether each node has a cache for names.
    pub node_cache: bool,
    /// The daemons' configuration, as JSON text.
    pub node_config: String,
}

/// A lab for scenarios of one kind, and what is remembered of it.
pub struct Stage {
    lab: Lab,
    /// Whether each probe's outcome is compared with what the doctor says.
    pub asks_doctor: bool,
    objects: Objects,
    around: Surroundings,
    programs: BTreeMap<(String, Family), Programmed>,
    mode: Mode,
    /// The signpost binary.
    program: PathBuf,
    /// Nodes whose daemon a scenario gave another mode.
    changed: BTreeMap<String, Mode>,
    /// Who makes sockets of each node whose mode has programs at the socket.
    makers: BTreeMap<String, Arc<SocketMaker>>,
    /// Nodes whose daemon was ended by a scenario.
    down: BTreeSet<String>,
    /// Nodes whose link was cut.
    cut: BTreeSet<String>,
    nodes: Vec<String>,
    /// Whether the cluster has its name service.
    dns: bool,
}

/// What one node's kernel was last told, for one family.
#[derive(Debug, Clone)]
pub struct Programmed {
    /// The plan.
    pub plan: NodePlan,
    /// The rules made of it.
    program: Program,
}

impl Programmed {
    /// The fate of a packet by the rules; `remembered` as in [`signpost_core::walk::walk_remembering`].
    pub fn walk(&self, at: At, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        match at {
            At::Socket => self.program.walk_socket(packet, remembered),
            At::Packet => self.program.walk(packet, remembered),
        }
    }

    /// Whether each frontend remembers clients for itself, not all of a Service port together.
    pub fn remembers_by_address(&self) -> bool {
        matches!(self.program, Program::Ipvs(_))
    }

    /// The fate that the plan wants; at the socket of a mode that does something there.
    pub fn walk_plan(&self, at: At, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        match at {
            At::Socket if self.program.has_sockets() => walk_socket(&self.plan, packet, remembered),
            At::Socket => Verdict::NotOurs,
            At::Packet => self.program.walk_plan(&self.plan, packet, remembered),
        }
    }
}

/// How long the doctor waits for the lab's own API.
const API: Duration = Duration::from_secs(60);
/// The node daemon's metrics listener, in the node's network namespace.
const METRICS: ([u8; 4], u16) = ([127, 0, 0, 1], 10249);

/// Why a mode cannot run here; `None`: it can.
pub fn mode_problem(mode: Mode) -> Option<String> {
    match mode {
        Mode::Nftables => nftables_problem(),
        Mode::Iptables => iptables_problem(),
        Mode::Ipvs => ipvs_problem(),
        Mode::Ebpf => ebpf_problem(),
    }
}

fn ebpf_problem() -> Option<String> {
    match Netns::new(false) {
        Ok(netns) => netns.run(|| probe::ebpf("nft".as_ref())).err().map(|error| error.to_string()),
        Err(error) => Some(format!("no network namespace can be made: {error}; run it as root")),
    }
}

fn iptables_problem() -> Option<String> {
    match Netns::new(false) {
        Ok(netns) => netns.run(probe::iptables).err().map(|error| error.to_string()),
        Err(error) => Some(format!("no network namespace can be made: {error}; run it as root")),
    }
}

fn ipvs_problem() -> Option<String> {
    match Netns::new(false) {
        Ok(netns) => netns.run(probe::ipvs).err().map(|error| error.to_string()),
        Err(error) => Some(format!("no network namespace can be made: {error}; run it as root")),
    }
}

fn nftables_problem() -> Option<String> {
    let list = || Command::new("nft").args(["list", "tables"]).stdin(Stdio::null()).output();
    let netns = match Netns::new(false) {
        Ok(netns) => netns,
        Err(error) => return Some(format!("no network namespace can be made: {error}; run it as root")),
    };
    match netns.run(list) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Some(format!("nft cannot be run: {error}; install the package nftables")),
    }
}

impl Stage {
    /// Starts a lab.
    ///
    /// # Errors
    /// What the lab says.
    pub async fn open(name: &str, key: &LabKey, program: &Path) -> Result<Stage, String> {
        let mut spec = LabSpec::new(name, key.nodes.len(), program.to_owned());
        spec.nodes =
            key.nodes.iter().map(|node| NodeSpec { name: node.name.clone(), labels: node.labels.clone() }).collect();
        spec.families = match key.family {
            FamilyRun::Ipv4 => Families::Ipv4,
            FamilyRun::Ipv6 => Families::Ipv6,
            FamilyRun::Dual => Families::Dual,
        };
        spec.mode = key.mode.to_string();
        spec.dns = key.dns;
        spec.node_cache = key.node_cache;
        spec.bgp_router = key.router == format::Router::Bgp;
        spec.node_config = serde_json::from_str(&key.node_config).map_err(told)?;
        let nodes: Vec<String> = key.nodes.iter().map(|node| node.name.clone()).collect();
        let around = surroundings(&spec);
        let lab = Lab::start(spec).await.map_err(told)?;
        let objects = Objects::new(lab.client(), key.dns);
        let mut makers = BTreeMap::new();
        for node in nodes.iter().filter(|_| key.mode == Mode::Ebpf) {
            makers.insert(node.clone(), Arc::new(lab.socket_maker(node).await.map_err(told)?));
        }
        Ok(Stage {
            lab,
            asks_doctor: false,
            objects,
            around,
            programs: BTreeMap::new(),
            mode: key.mode,
            program: program.to_owned(),
            changed: BTreeMap::new(),
            makers,
            down: BTreeSet::new(),
            cut: BTreeSet::new(),
            nodes,
            dns: key.dns,
        })
    }

    /// Ends the lab.
    pub async fn close(self) {
        if let Err(error) = self.lab.stop().await {
            tracing::warn!(%error, "a lab did not end cleanly");
        }
    }

    /// Removes what a scenario left: daemons are started again, objects deleted.
    ///
    /// # Errors
    /// What could not be undone.
    pub async fn sweep(&mut self) -> Result<(), String> {
        for address in std::mem::take(&mut self.around.routes).into_keys() {
            self.lab.set_route(address, None).await.map_err(told)?;
        }
        for node in std::mem::take(&mut self.cut) {
            self.set_link(&node, true).await?;
        }
        for node in std::mem::take(&mut self.down) {
            self.start_daemon(&node).await?;
        }
        for node in std::mem::take(&mut self.changed).into_keys() {
            self.change_mode(&node, self.mode).await?;
        }
        self.objects.sweep().await.map_err(told)?;
        if self.dns {
            self.lab.restore_names().await.map_err(told)?;
        }
        self.settle().await
    }

    /// The signpost binary that the lab runs.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The API's objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// What the objects do not tell.
    pub fn around(&self) -> &Surroundings {
        &self.around
    }

    /// Waits until all that the API holds is programmed on every living node.
    ///
    /// # Errors
    /// It took too long; the lab says what is not done.
    pub async fn settle(&self) -> Result<(), String> {
        self.lab.settle().await.map_err(told)
    }

    /// Nodes, pods and Services at this moment.
    ///
    /// # Errors
    /// The API cannot be asked.
    pub async fn listed(&self) -> Result<Listed, String> {
        let list = async |kind| self.objects.list(kind).await.map_err(told);
        Ok(Listed {
            nodes: list("Node").await?,
            pods: list("Pod").await?,
            services: list("Service").await?,
            leases: list("Lease").await?,
            ..Listed::default()
        })
    }

    /// Everything that the doctor judges by.
    ///
    /// # Errors
    /// The API cannot be asked.
    pub async fn inspect(&self) -> Result<Snapshot, String> {
        let nodes = self.nodes.iter().filter_map(|node| {
            let netns = self.lab.namespace_of(&Place::Node(node.clone())).ok()?;
            Some((node.clone(), netns))
        });
        let pods = self.objects.list("Pod").await.map_err(told)?;
        let pods = pods.iter().filter_map(|pod| {
            let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            let (namespace, name) = (text("/metadata/namespace")?, text("/metadata/name")?);
            let netns = self.lab.namespace_of(&Place::Pod(namespace.clone(), name.clone())).ok()?;
            Some((format!("{namespace}/{name}"), netns))
        });
        let mut reach = inspection::of_places(self.lab.record(), nodes.collect(), pods.collect());
        reach.routes.clone_from(&self.around.routes);
        let (client, runtime) = (self.lab.client(), tokio::runtime::Handle::current());
        let list = move || runtime.block_on(collect::api::list(&client, tokio::time::Instant::now() + API));
        let look = move || collect::snapshot(&reach, list);
        tokio::task::spawn_blocking(look).await.map_err(told)
    }

    /// The network namespace that a sender is in.
    ///
    /// # Errors
    /// There is no such place.
    pub fn netns(&self, source: &Source) -> Result<Netns, String> {
        self.lab.namespace_of(&place(source)).map_err(told)
    }

    /// The network namespace of a place.
    ///
    /// # Errors
    /// There is no such place.
    pub fn namespace_of(&self, place: &Place) -> Result<Netns, String> {
        self.lab.namespace_of(place).map_err(told)
    }

    /// The router's network namespace.
    ///
    /// # Errors
    /// The lab has none: it is ending.
    pub fn router(&self) -> Result<Netns, String> {
        self.namespace_of(&Place::Router)
    }

    /// How the router's BIRD is asked.
    ///
    /// # Errors
    /// There is no `birdc`.
    pub fn birdc(&self) -> Result<[String; 3], String> {
        let program = crate::router::find("birdc").ok_or("there is no birdc (Debian's bird2)")?;
        let socket = self.lab.record().dir.join("bird.ctl");
        Ok([program.display().to_string(), "-s".to_owned(), socket.display().to_string()])
    }

    /// Where a sender's sockets are made.
    ///
    /// # Errors
    /// There is no such place.
    pub fn sockets(&self, source: &Source) -> Result<Sockets, String> {
        let netns = self.netns(source)?;
        let maker = self.lab.node_of(&place(source)).and_then(|node| self.makers.get(&node).cloned());
        Ok(match maker {
            Some(maker) => Sockets::of_node(netns, maker),
            None => Sockets::of_netns(netns),
        })
    }

    /// The control group for programs that a scenario runs in a place; outside of the nodes none of the lab's.
    pub fn cgroup(&self, source: &Source) -> Option<Cgroup> {
        self.lab.node_of(&place(source)).map(|node| self.lab.group_on(&node))
    }

    /// Asks every living daemon what it has programmed. Of one that is down the last answer stays: so do its rules.
    ///
    /// # Errors
    /// A daemon does not answer, or not as it should.
    pub async fn learn_programs(&mut self) -> Result<(), String> {
        for node in self.nodes.clone() {
            if self.down.contains(&node) {
                continue;
            }
            let netns = self.netns(&Source::Node(node.clone()))?;
            let mode = self.changed.get(&node).copied().unwrap_or(self.mode);
            let asked = tokio::task::spawn_blocking(move || {
                netns.run(|| {
                    let plans: ByFamily<NodePlan> = ask("/plan")?;
                    Ok::<_, String>((plans, programs(mode)?))
                })
            });
            let (plans, programs) = asked.await.map_err(told)?.map_err(|error| format!("daemon of {node}: {error}"))?;
            for (family, plan) in plans {
                let program = programs.get(&family).ok_or_else(|| format!("daemon of {node}: no {family} program"))?;
                let programmed = Programmed { plan, program: program.clone() };
                self.programs.insert((node.clone(), family), programmed);
            }
        }
        Ok(())
    }

    /// What a node was last told.
    pub fn programmed(&self, node: &str, family: Family) -> Option<&Programmed> {
        self.programs.get(&(node.to_owned(), family))
    }

    /// Ends a node's daemon; with `kill` by SIGKILL.
    ///
    /// # Errors
    /// There is no such node, or it did not end.
    pub async fn stop_daemon(&mut self, node: &str, kill: bool) -> Result<(), String> {
        // What it leaves in the kernel is what it programmed last.
        self.settle().await?;
        self.learn_programs().await?;
        let daemon = self.lab.daemon(node).map_err(told)?;
        if kill {
            daemon.kill().await.map_err(told)?
        } else {
            daemon.stop().await.map_err(told)?
        }
        self.down.insert(node.to_owned());
        Ok(())
    }

    /// Starts a node's daemon.
    ///
    /// # Errors
    /// There is no such node, or it does not start.
    pub async fn start_daemon(&mut self, node: &str) -> Result<(), String> {
        self.lab.daemon(node).map_err(told)?.start().await.map_err(told)?;
        self.down.remove(node);
        Ok(())
    }

    /// Starts a node's daemon again, in another mode.
    ///
    /// # Errors
    /// There is no such node, the mode cannot run here, or the daemon does not start.
    pub async fn change_mode(&mut self, node: &str, to: Mode) -> Result<(), String> {
        if let Some(problem) = mode_problem(to) {
            return Err(format!("mode {to} cannot run here: {problem}"));
        }
        if !self.down.contains(node) {
            self.stop_daemon(node, false).await?;
        }
        if to == Mode::Ebpf && !self.makers.contains_key(node) {
            self.makers.insert(node.to_owned(), Arc::new(self.lab.socket_maker(node).await.map_err(told)?));
        }
        self.lab.daemon(node).map_err(told)?.set_mode(to.to_string()).await;
        if to == self.mode {
            self.changed.remove(node);
        } else {
            self.changed.insert(node.to_owned(), to);
        }
        self.start_daemon(node).await
    }

    /// Cuts a node off from the others and from the router, or joins it again.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn set_link(&mut self, node: &str, up: bool) -> Result<(), String> {
        self.lab.set_link(node, up).await.map_err(told)?;
        if up {
            self.cut.remove(node);
        } else {
            self.cut.insert(node.to_owned());
        }
        Ok(())
    }

    /// Has the router send an address to a node, or forget it.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn set_route(&mut self, address: IpAddr, via: Option<&str>) -> Result<(), String> {
        self.lab.set_route(address, via).await.map_err(told)?;
        match via {
            Some(node) => self.around.routes.insert(address, node.to_owned()),
            None => self.around.routes.remove(&address),
        };
        Ok(())
    }

    /// Changes a pod by a merge patch.
    ///
    /// # Errors
    /// The API's.
    pub async fn patch_pod(&self, pod: &PodName, merge: &Value) -> Result<(), String> {
        self.objects.patch(&reference(pod), None, merge).await.map_err(told)
    }

    /// Lets a pod report itself ready, or not.
    ///
    /// # Errors
    /// The API's.
    pub async fn set_ready(&self, pod: &PodName, ready: bool) -> Result<(), String> {
        let merge = json!({"metadata": {"annotations": {kubelet::READY: ready.to_string()}}});
        self.patch_pod(pod, &merge).await
    }

    /// Lets a pod's echo server listen, or not.
    ///
    /// # Errors
    /// The API's.
    pub async fn set_listening(&self, pod: &PodName, listening: bool) -> Result<(), String> {
        let merge = json!({"metadata": {"annotations": {kubelet::LISTENING: listening.to_string()}}});
        self.patch_pod(pod, &merge).await
    }
}

fn place(source: &Source) -> Place {
    match source {
        Source::Pod(pod) => Place::Pod(pod.namespace.clone(), pod.name.clone()),
        Source::Node(node) => Place::Node(node.clone()),
        Source::Outside => Place::Outside,
    }
}

fn reference(pod: &PodName) -> ObjectRef {
    ObjectRef {
        kind: "Pod".to_owned(),
        api_version: None,
        namespace: Some(pod.namespace.clone()),
        name: pod.name.clone(),
    }
}

/// What the lab's map says and the API does not.
fn surroundings(spec: &LabSpec) -> Surroundings {
    let count = u8::try_from(spec.nodes.len()).unwrap_or(u8::MAX);
    let topology = Topology { families: spec.families, nodes: count };
    let loopback: [IpAddr; 2] = [std::net::Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into()];
    let caches = [Family::Ipv4, Family::Ipv6].map(node_cache::address).into_iter().filter(|_| spec.node_cache);
    let on_loopback: Vec<IpAddr> = loopback.into_iter().chain(caches).collect();
    let of_node = |n: u8| topology.gateways(n).into_iter().chain(on_loopback.iter().copied()).collect();
    Surroundings {
        node_addresses: (1..=count).zip(&spec.nodes).map(|(n, node)| (node.name.clone(), of_node(n))).collect(),
        outside: topology.outside(),
        others: topology.api().into_iter().collect(),
        routes: BTreeMap::new(),
    }
}

type ByFamily<T> = BTreeMap<Family, T>;

/// The programs of the node whose namespace the calling thread is in.
fn programs(mode: Mode) -> Result<ByFamily<Program>, String> {
    fn all<T: DeserializeOwned>(into: fn(T) -> Program) -> Result<ByFamily<Program>, String> {
        let programs: ByFamily<T> = ask("/program")?;
        Ok(programs.into_iter().map(|(family, program)| (family, into(program))).collect())
    }
    match mode {
        Mode::Nftables => all(Program::Nftables),
        Mode::Iptables => all(Program::Iptables),
        Mode::Ipvs => all(Program::Ipvs),
        Mode::Ebpf => all(Program::Ebpf),
    }
}

/// GET from the daemon of the node whose namespace the calling thread is in.
fn ask<T: DeserializeOwned>(path: &str) -> Result<T, String> {
    let limit = patient(Duration::from_secs(5));
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(METRICS), limit).map_err(told)?;
    stream.set_read_timeout(Some(limit)).map_err(told)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(told)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(told)?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(|| format!("{path}: no answer"))?;
    let status = String::from_utf8_lossy(&answer[..end]).lines().next().unwrap_or_default().to_owned();
    if !status.contains(" 200") {
        return Err(format!("{path}: {status}"));
    }
    serde_json::from_slice(&answer[end + 4..]).map_err(|error| format!("{path}: {error}"))
}

/// An error as the words that a report shows.
pub(super) fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}
