//! A lab as a whole: starts its parts in order, waits for them, ends them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signpost_apiserver::{ApiConfig, ApiServer};
use signpost_controller::{ControllerOptions, Controllers};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::serve;
use crate::cgroup::Cgroup;
use crate::cluster_dns;
use crate::daemon::{Daemon, DaemonSpec};
use crate::error::LabError;
use crate::images::Images;
use crate::kubelet::{self, Kubelet};
use crate::load_balancers;
use crate::mounts::Mounts;
use crate::netns::Netns;
use crate::network::Network;
use crate::nodes;
use crate::patience::patient;
use crate::router::Router;
use crate::sockets::SocketMaker;
use crate::spawner::Spawner;
use crate::spec::{LabSpec, LoadBalancing, Place};
use crate::state::{self, LabDir, NodeRecord, Record};
use crate::topology::{Topology, first_host};

/// The kinds whose changes others act on: what [`Lab::settle`] waits for.
const WATCHED: [&str; 11] = [
    "Pod",
    "Service",
    "EndpointSlice",
    "Node",
    "ServiceCIDR",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "Endpoints",
    "Namespace",
    "IPAddressPool",
];
/// How long [`Lab::settle`] waits.
const SETTLE: Duration = Duration::from_secs(20);
/// How long a node daemon may take from its start to its first program.
const START: Duration = Duration::from_secs(30);
/// Between two looks at something that nobody announces.
const LOOK: Duration = Duration::from_millis(2);
/// The longest time between two looks, however long they take.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A running lab. Dropped: it ends, at once and wholly.
pub struct Lab {
    // The order is that of dropping: whoever uses something goes before it.
    daemons: Vec<Daemon>,
    router: Option<Router>,
    kubelet: Kubelet,
    controllers: Controllers,
    serving: JoinSet<()>,
    shutdown: CancellationToken,
    api: Arc<ApiServer>,
    network: Arc<Network>,
    spawner: Spawner,
    program: PathBuf,
    spec: LabSpec,
    record: Record,
    dir: LabDir,
}

impl Lab {
    /// Starts a lab; it is up when this returns: the API serves, nodes are ready, their daemons have programmed.
    ///
    /// # Errors
    /// Each says what to do; nothing of the lab stays.
    pub async fn start(spec: LabSpec) -> Result<Lab, LabError> {
        Lab::start_telling(spec, |_| ()).await
    }

    /// Starts a lab and tells each step that is done.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub async fn start_telling(spec: LabSpec, tell: impl Fn(&str)) -> Result<Lab, LabError> {
        spec.check()?;
        check_machine()?;
        raise_file_limit();
        let dir = LabDir::take(&spec.name, spec.dir.as_deref(), spec.durable)?;
        let topology = Topology { families: spec.families, nodes: u8::try_from(spec.nodes.len()).unwrap_or(u8::MAX) };
        let spawner = Spawner::start().map_err(|source| LabError::Start { what: "a thread".to_owned(), source })?;
        let network = Arc::new(Network::build(&spawner, topology.clone()).await?);
        let nodes = counted(spec.nodes.len());
        tell(&format!("network: {nodes}, a router, an outside client"));

        let api = open_api(&spec, &topology, &dir).await?;
        let shutdown = CancellationToken::new();
        let (serving, access) = serve(&api, &network, &shutdown).await?;
        let kubeconfig = access.write(&dir)?;
        nodes::register(&api.client(), &spec, &topology).await?;
        load_balancers::prepare(&api.client(), &spec, &topology).await?;
        if spec.dns {
            cluster_dns::prepare(&api.client(), &spec, &topology, &access.inside_kubeconfig()).await?;
        }
        let speaks_bgp = spec.bgp_router || spec.load_balancing == Some(LoadBalancing::Bgp);
        let router = if speaks_bgp {
            let cgroup = dir.cgroup().child("router");
            Some(Router::start(&spawner, &network.router, &cgroup, &topology, dir.path()).await?)
        } else {
            None
        };
        tell(&format!("API: {}", access.machine_url));

        let kubelet = Kubelet::start(kubelet_context(&spec, &dir, &api, &network, &spawner)?);
        api.set_pod_streams(kubelet.streams());
        let stopping = shutdown.clone();
        let controllers =
            signpost_controller::run(
                api.client(),
                ControllerOptions::default(),
                async move { stopping.cancelled().await },
            );
        let record = Record {
            name: spec.name.clone(),
            pid: std::process::id(),
            dir: dir.path().to_owned(),
            kubeconfig,
            api: access.machine_url.clone(),
            families: spec.families,
            mode: spec.mode.clone(),
            nodes: (1..)
                .zip(&spec.nodes)
                .map(|(n, node)| NodeRecord { name: node.name.clone(), addresses: topology.node(n) })
                .collect(),
            outside: topology.outside(),
        };
        let daemons = daemons(&spec, &dir, &network, &spawner)?;
        let program = spec.program.clone();
        let lab = Lab {
            daemons,
            router,
            kubelet,
            controllers,
            serving,
            shutdown,
            api,
            network,
            spawner,
            program,
            record,
            dir,
            spec: spec.clone(),
        };
        for daemon in &lab.daemons {
            daemon.start().await?;
        }
        lab.dir.publish(&lab.record)?;
        lab.settle_within(patient(START)).await?;
        tell(&format!("{nodes} ready, the daemons have programmed"));
        if spec.dns {
            lab.names_are_answered().await?;
            tell(&format!("names: kube-dns in kube-system, {}", addresses_of(&lab.topology().dns())));
        }
        Ok(lab)
    }

    /// A client to the API, in process.
    pub fn client(&self) -> kube::Client {
        self.api.client()
    }

    /// The API.
    pub fn api(&self) -> &Arc<ApiServer> {
        &self.api
    }

    /// The lab's map.
    pub fn topology(&self) -> &Topology {
        &self.network.topology
    }

    /// What the lab says about itself.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Where the lab's process is asked things.
    pub fn socket(&self) -> PathBuf {
        self.dir.socket()
    }

    pub(crate) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        self.dir.cgroup()
    }

    /// The network namespace of a place.
    ///
    /// # Errors
    /// There is no such place, or it is a pod that has no network yet.
    pub fn namespace_of(&self, place: &Place) -> Result<Netns, LabError> {
        let found = match place {
            Place::Router => Some(self.network.router.clone()),
            Place::Outside => Some(self.network.outside.clone()),
            Place::Node(name) => self.node_index(name).map(|index| self.network.nodes[index].clone()),
            Place::Pod(namespace, name) => self.kubelet.namespace_of(namespace, name),
        };
        found.ok_or_else(|| LabError::NoSuchPlace { place: place.clone() })
    }

    /// The node whose control group holds the processes of a place, if one does.
    pub fn node_of(&self, place: &Place) -> Option<String> {
        match place {
            Place::Router | Place::Outside => None,
            Place::Node(name) => Some(name.clone()),
            Place::Pod(namespace, name) => self.kubelet.node_of(namespace, name),
        }
    }

    /// The control group of the processes that someone runs on a node, besides its daemon and its pods.
    pub fn group_on(&self, node: &str) -> Cgroup {
        self.dir.cgroup().child(node).child("exec")
    }

    /// Starts who makes sockets of a node.
    ///
    /// # Errors
    /// The process could not be made.
    pub async fn socket_maker(&self, node: &str) -> Result<SocketMaker, LabError> {
        let started = SocketMaker::start(&self.spawner, &self.program, &self.group_on(node)).await;
        started.map_err(|source| LabError::Start { what: format!("the maker of sockets of node {node}"), source })
    }

    /// The daemon of a node.
    ///
    /// # Errors
    /// There is no such node.
    pub fn daemon(&self, node: &str) -> Result<&Daemon, LabError> {
        let found = self.daemons.iter().find(|daemon| daemon.node() == node);
        found.ok_or_else(|| LabError::NoSuchPlace { place: Place::Node(node.to_owned()) })
    }

    /// Waits until a node's daemon that was started answers; its process.
    ///
    /// # Errors
    /// It ended by itself, or took too long.
    pub(crate) async fn answering(&self, daemon: &Daemon) -> Result<u32, LabError> {
        let deadline = Instant::now() + patient(START);
        loop {
            let answers = daemon.programmed().await?.is_some_and(|programmed| !programmed.is_empty());
            if let (true, Some(pid)) = (answers, daemon.pid().await) {
                return Ok(pid);
            }
            if Instant::now() > deadline {
                let missing = format!("the daemon of node {} does not answer yet", daemon.node());
                return Err(LabError::Deadline { waited: patient(START), missing });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// All nodes' daemons.
    pub fn daemons(&self) -> &[Daemon] {
        &self.daemons
    }

    /// Cuts (`up: false`) or mends the link of a node to the node segment.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn set_link(&self, node: &str, up: bool) -> Result<(), LabError> {
        let n = self.node_number(node)?;
        let set = self.network.set_link(n, up).await;
        set.map_err(|source| LabError::Network { what: format!("node {node}"), source })
    }

    /// Has the router send an address that is on no interface to a node, as if the node had announced it; `None`: no
    /// longer.
    ///
    /// # Errors
    /// There is no such node, or `ip` refused.
    pub async fn set_route(&self, address: IpAddr, via: Option<&str>) -> Result<(), LabError> {
        let n = via.map(|node| self.node_number(node)).transpose()?;
        let set = self.network.set_route(address, n).await;
        set.map_err(|source| LabError::Network { what: "the router".to_owned(), source })
    }

    fn node_number(&self, node: &str) -> Result<u8, LabError> {
        let index = self.node_index(node);
        let n = index.and_then(|index| u8::try_from(index + 1).ok());
        n.ok_or_else(|| LabError::NoSuchPlace { place: Place::Node(node.to_owned()) })
    }

    /// Waits until all that the API holds now has taken effect: pods run and show it, controllers have nothing left to
    /// do, every living node daemon has programmed its kernel.
    ///
    /// # Errors
    /// It took too long: says what is missing. A daemon ended by itself.
    pub async fn settle(&self) -> Result<(), LabError> {
        self.settle_within(patient(SETTLE)).await
    }

    async fn settle_within(&self, limit: Duration) -> Result<(), LabError> {
        let deadline = Instant::now() + limit;
        loop {
            let began = Instant::now();
            let revisions = self.revisions();
            let missing = match self.missing(&revisions).await? {
                None if revisions == self.revisions() => return Ok(()),
                None => "the objects keep changing".to_owned(),
                Some(missing) => missing,
            };
            if Instant::now() > deadline {
                return Err(LabError::Deadline { waited: limit, missing });
            }
            // Where looking takes long it must not take the time of those who are waited for.
            tokio::time::sleep((began.elapsed() * 2).clamp(LOOK, LONGEST_PAUSE)).await;
        }
    }

    /// What has not taken effect yet of what the API holds now; `None`: all has.
    ///
    /// # Errors
    /// A daemon ended by itself.
    pub async fn unsettled(&self) -> Result<Option<String>, LabError> {
        self.missing(&self.revisions()).await
    }

    /// Waits until each pod of the cluster's name service is ready and every node knows it.
    ///
    /// # Errors
    /// It took too long, or the API's.
    pub async fn names_are_answered(&self) -> Result<(), LabError> {
        cluster_dns::wait(&self.client(), START).await?;
        self.settle().await
    }

    /// Puts the cluster's name service back to what it was at the lab's start, if somebody has changed it.
    ///
    /// # Errors
    /// It did not come back, or the API's.
    pub async fn restore_names(&self) -> Result<(), LabError> {
        cluster_dns::restore(&self.client(), &self.spec).await?;
        self.names_are_answered().await
    }

    fn revisions(&self) -> BTreeMap<String, u64> {
        WATCHED.iter().map(|kind| ((*kind).to_owned(), self.api.revision(kind))).collect()
    }

    /// What has not yet taken effect of the objects of these revisions.
    async fn missing(&self, revisions: &BTreeMap<String, u64>) -> Result<Option<String>, LabError> {
        let (seen, pods) = (self.kubelet.seen(), revisions["Pod"]);
        if seen < pods {
            return Ok(Some(format!("the kubelet is at revision {seen} of pods, not {pods}")));
        }
        let busy = self.kubelet.busy();
        if !busy.is_empty() {
            return Ok(Some(format!("pods that change: {}", busy.join(", "))));
        }
        let progress = self.controllers.progress();
        if !progress.settled(revisions) {
            let (seen, pending) = (progress.seen(), progress.pending());
            return Ok(Some(format!("controllers have seen {seen:?} of {revisions:?} and are at work on {pending:?}")));
        }
        for daemon in &self.daemons {
            let Some(programmed) = daemon.programmed().await? else { continue };
            // A daemon follows its own Node object, not the others.
            let own_node = self.node_revision(daemon.node()).await?;
            for kind in ["Service", "EndpointSlice", "Node", "ServiceCIDR"] {
                let wanted = if kind == "Node" { own_node } else { revisions[kind] };
                let has = programmed.get(kind).copied();
                if has.is_none_or(|has| has < wanted) {
                    let node = daemon.node();
                    return Ok(Some(format!("node {node} has programmed revision {has:?} of {kind}, not {wanted}")));
                }
            }
        }
        Ok(None)
    }

    /// The resourceVersion of a Node object; 0: there is none.
    async fn node_revision(&self, name: &str) -> Result<u64, LabError> {
        let nodes: Api<Node> = Api::all(self.client());
        let node = nodes.get_metadata_opt(name).await.map_err(LabError::request(format!("get node {name}")))?;
        let revision = node.and_then(|node| node.metadata.resource_version);
        Ok(revision.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    fn node_index(&self, name: &str) -> Option<usize> {
        self.record.nodes.iter().position(|node| node.name == name)
    }

    /// Ends the lab: daemons, pods, API, namespaces, files.
    ///
    /// # Errors
    /// Something of it stays: says what.
    pub async fn stop(self) -> Result<(), LabError> {
        let Lab {
            daemons,
            router,
            kubelet,
            controllers,
            mut serving,
            shutdown,
            api,
            network,
            record: _,
            dir,
            spawner: _,
            program: _,
            spec: _,
        } = self;
        shutdown.cancel();
        // Nothing has to be tidied up by anybody: what they would tidy goes with the namespaces.
        drop(daemons);
        drop(router);
        kubelet.stop().await;
        controllers.stopped().await;
        serving.shutdown().await;
        drop(api);
        drop(network);
        match tokio::task::spawn_blocking(move || dir.remove()).await {
            Ok(removed) => removed,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

fn addresses_of(list: &[IpAddr]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn counted(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

/// Root, and the programs that a lab runs.
fn check_machine() -> Result<(), LabError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    for (tool, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
        if !found {
            return Err(LabError::MissingTool { tool, package });
        }
    }
    Ok(())
}

/// A lab holds some descriptors for each pod and connection; many systems give a process 1,024 unless it asks.
fn raise_file_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

async fn open_api(spec: &LabSpec, topology: &Topology, dir: &LabDir) -> Result<Arc<ApiServer>, LabError> {
    let config = ApiConfig {
        dir: spec.durable.then(|| dir.objects()),
        service_cidrs: topology.service_cidrs(),
        advertise: topology.api(),
        ..ApiConfig::default()
    };
    ApiServer::open(config).await.map_err(|error| LabError::Api(Box::new(error)))
}

fn kubelet_context(
    spec: &LabSpec,
    dir: &LabDir,
    api: &Arc<ApiServer>,
    network: &Arc<Network>,
    spawner: &Spawner,
) -> Result<kubelet::Context, LabError> {
    let program = canonical(&spec.program)?;
    let images = spec.images.iter().map(|(name, path)| Ok((name.clone(), canonical(path)?)));
    let service_cidrs = network.topology.service_cidrs();
    let primary = service_cidrs.first();
    Ok(kubelet::Context {
        client: api.client(),
        network: network.clone(),
        spawner: spawner.clone(),
        images: Images::new(images.collect::<Result<_, LabError>>()?),
        program,
        state: dir.path().to_owned(),
        cgroup: dir.cgroup().clone(),
        nodes: spec.nodes.iter().map(|node| node.name.clone()).collect(),
        dns: network.topology.dns().first().copied(),
        kubernetes: primary.and_then(first_host),
        hosts: kubelet::pools(spec.nodes.len()),
    })
}

fn canonical(path: &Path) -> Result<PathBuf, LabError> {
    path.canonicalize().map_err(LabError::state("find the program", path))
}

fn daemons(spec: &LabSpec, dir: &LabDir, network: &Network, spawner: &Spawner) -> Result<Vec<Daemon>, LabError> {
    let cidrs: Vec<String> = network.topology.cluster_cidrs().iter().map(ToString::to_string).collect();
    let mut daemons = Vec::new();
    for (node, netns) in spec.nodes.iter().zip(&network.nodes) {
        let folder = dir.path().join("nodes").join(&node.name);
        std::fs::create_dir_all(&folder).map_err(LabError::state("create the directory", &folder))?;
        let mut arguments: Vec<String> = ["node", "--hostname-override", &node.name].map(str::to_owned).into();
        arguments.extend(["--kubeconfig".to_owned(), dir.node_kubeconfig().display().to_string()]);
        // A flag would win over the configuration that a scenario gives.
        if spec.node_config.get("clusterCIDR").is_none() {
            arguments.extend(["--cluster-cidr".to_owned(), cidrs.join(",")]);
        }
        let cgroup = dir.cgroup().child(&node.name);
        arguments.extend(["--cgroup-root".to_owned(), cgroup.path().display().to_string()]);
        if let serde_json::Value::Object(fields) = &spec.node_config
            && !fields.is_empty()
        {
            let mut config = fields.clone();
            config.insert("apiVersion".to_owned(), "kubeproxy.config.k8s.io/v1alpha1".into());
            config.insert("kind".to_owned(), "KubeProxyConfiguration".into());
            let path = folder.join("config.yaml"); // JSON is YAML
            state::write_private(&path, &serde_json::Value::Object(config).to_string())?;
            arguments.extend(["--config".to_owned(), path.display().to_string()]);
        }
        let daemon = DaemonSpec {
            node: node.name.clone(),
            program: spec.program.clone(),
            arguments,
            mode: spec.mode.clone(),
            log: folder.join("daemon.log"),
            netns: netns.clone(),
            cgroup: cgroup.child("daemon"),
            mounts: Mounts::new().map_err(LabError::state("copy the mounts for", &folder))?,
        };
        daemons.push(Daemon::new(daemon, spawner.clone()));
    }
    Ok(daemons)
}
