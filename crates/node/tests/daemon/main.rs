//! The whole daemon, against the embedded API and the real kernel, in a network namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod takeover;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sched::{CloneFlags, unshare};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer};
use signpost_core::object::Protocol;
use signpost_core::packet::{Entry, Packet, Verdict};
use signpost_core::plan::NodePlan;
use signpost_datapath::ebpf::KernelConfig;
use signpost_node::{Flags, NodeError, NodeOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

const DEADLINE: Duration = Duration::from_secs(20);
const NODE_IP: &str = "172.18.0.11";

/// Runs a test inside a new network namespace: every thread of its runtime is in it, and so is every child.
fn on_a_node<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("the tests run as root");
        for arguments in [
            "link set lo up",
            "link add eth0 type veth peer name far",
            "link set far up",
            "link set eth0 up",
            "address add 172.18.0.11/24 dev eth0",
            "address add 10.244.1.7/32 dev lo",
            "route add default via 172.18.0.1",
        ] {
            let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
            assert!(status.success(), "ip {arguments}");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test());
        runtime.shutdown_timeout(Duration::from_secs(1));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The API, behind a door that can be shut.
struct Cluster {
    api: Arc<ApiServer>,
    behind: SocketAddr,
    /// Where the daemon looks for it.
    address: SocketAddr,
    door: JoinHandle<()>,
    folder: tempfile::TempDir,
}

impl Cluster {
    async fn new() -> Cluster {
        let config = ApiConfig {
            dir: None,
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()],
            node_ports: 30_000..=32_767,
            advertise: vec![],
        };
        let api = ApiServer::open(config).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let behind = listener.local_addr().unwrap();
        let router = api.router();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = tokio::spawn(let_through(listener, behind));
        Cluster { api, behind, address, door, folder: tempfile::tempdir().unwrap() }
    }

    /// Every connection breaks, and none can be made.
    async fn away(&self) {
        self.door.abort();
        until("the API is away", || async { TcpStream::connect(self.address).await.is_err() }).await;
    }

    async fn back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.door = tokio::spawn(let_through(listener, self.behind));
    }

    fn client(&self) -> Client {
        self.api.client()
    }

    fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    async fn create<K>(&self, api: Api<K>, object: Value) -> K
    where
        K: DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
    {
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
    }

    async fn create_node(&self) {
        let node =
            json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}]}});
        let nodes: Api<Node> = Api::all(self.client());
        self.create(nodes.clone(), node.clone()).await;
        nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(&node)).await.unwrap();
    }

    /// A Service with one endpoint, at `port` of the pod's address. Gives its cluster address.
    async fn create_service(&self, name: &str, port: u16) -> IpAddr {
        let services: Api<Service> = Api::default_namespaced(self.client());
        let service = json!({
            "metadata": {"name": name},
            "spec": {"ports": [{"port": 80}], "type": "NodePort"},
        });
        let service = self.create(services, service).await;
        self.create(self.slices(), slice(name, port)).await;
        service.spec.unwrap().cluster_ip.unwrap().parse().unwrap()
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::default_namespaced(self.client())
    }
}

/// Carries connections until it is aborted; then they break.
async fn let_through(listener: TcpListener, behind: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((mut near, _)) = listener.accept().await {
        connections.spawn(async move {
            let mut far = TcpStream::connect(behind).await.unwrap();
            // A connection that breaks is what this is for.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
    }
}

fn slice(service: &str, port: u16) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.1.7"], "nodeName": "n1", "conditions": {"ready": true}}],
    })
}

/// A daemon that runs in this namespace.
struct Daemon {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), NodeError>>,
}

impl Daemon {
    fn start(kubeconfig: PathBuf) -> Daemon {
        Daemon::start_with(kubeconfig, Flags::default())
    }

    fn start_with(kubeconfig: PathBuf, flags: Flags) -> Daemon {
        let flags = Flags {
            hostname_override: Some("n1".to_owned()),
            kubeconfig: Some(kubeconfig),
            cluster_cidr: Some("10.244.0.0/16,fd00:10:244::/48".parse().unwrap()),
            // Not auto: the mode ebpf would be at the control group of the whole machine.
            proxy_mode: flags.proxy_mode.or_else(|| "nftables".parse().ok()),
            ..flags
        };
        let options = NodeOptions::new(flags, Default::default(), None).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        Daemon { stop: Some(stop), task: tokio::spawn(signpost_node::run(options, shutdown)) }
    }

    async fn stop(mut self) {
        let began = Instant::now();
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "it ends within a second, not {:?}", began.elapsed());
    }

    /// Waits until everything that the API knows is in the kernel.
    async fn settle(&self, cluster: &Cluster) {
        until("all is programmed", || async {
            let Some(told) = try_get(10249, "/programmed").await.filter(|answer| answer.0 == 200) else { return false };
            let told: Value = serde_json::from_str(&told.1).unwrap();
            ["Service", "EndpointSlice", "Node", "ServiceCIDR"]
                .iter()
                .all(|kind| told[*kind].as_u64().unwrap() >= cluster.api.revision(kind))
        })
        .await;
    }
}

async fn until<T: Future<Output = bool>>(what: &str, condition: impl Fn() -> T) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Status and body.
async fn try_get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

async fn get(port: u16, path: &str) -> (u16, String) {
    try_get(port, path).await.expect("the daemon answers")
}

/// A backend that says its name to everyone.
async fn backend(port: u16, name: &'static str) {
    let listener = TcpListener::bind(("10.244.1.7", port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut byte = [0];
                while let Ok(1..) = stream.read(&mut byte).await {
                    if stream.write_all(name.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Asks over an open connection.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(b"?").await.unwrap();
    let mut answer = [0; 16];
    let read = tokio::time::timeout(DEADLINE, stream.read(&mut answer)).await.expect("an answer in time").unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

async fn reaches(address: IpAddr, port: u16) -> String {
    let connecting = TcpStream::connect((address, port));
    let mut stream = tokio::time::timeout(Duration::from_secs(3), connecting).await.expect("a connection").unwrap();
    ask(&mut stream).await
}

fn nft(arguments: &str) -> String {
    let output = Command::new("nft").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "nft {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The rules with their handles: what was made anew has another one.
fn rules() -> String {
    nft("-a list ruleset")
}

/// Programs of the machine's own node, if it has any, are not these tests' to remove.
fn nowhere() -> KernelConfig {
    KernelConfig { pins: "/nowhere/signpost".into(), ..KernelConfig::default() }
}

#[test]
fn a_service_leads_to_its_endpoint_and_a_change_follows() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        backend(8081, "two").await;
        let daemon = Daemon::start(cluster.kubeconfig());
        let address = cluster.create_service("web", 8080).await;
        daemon.settle(&cluster).await;
        assert_eq!(reaches(address, 80).await, "one");
        assert_eq!(get(10256, "/healthz").await.0, 200);
        assert_eq!(get(10249, "/proxyMode").await.1, "nftables");

        let mut kept = TcpStream::connect((address, 80)).await.unwrap();
        assert_eq!(ask(&mut kept).await, "one");
        let mut changed = slice("web", 8081);
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        changed["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": now});
        cluster.slices().patch("web-1", &PatchParams::default(), &Patch::Merge(&changed)).await.unwrap();
        daemon.settle(&cluster).await;
        assert_eq!(reaches(address, 80).await, "two");
        assert_eq!(ask(&mut kept).await, "one", "an open connection stays where it is");

        let plans: Value = serde_json::from_str(&get(10249, "/plan").await.1).unwrap();
        let plan: NodePlan = serde_json::from_value(plans["ipv4"].clone()).unwrap();
        let packet = Packet {
            protocol: Protocol::Tcp,
            source: SocketAddr::new(NODE_IP.parse().unwrap(), 40_000),
            destination: SocketAddr::new(address, 80),
            entry: Entry::Local,
        };
        let Verdict::Rewrite(to) = signpost_core::walk::walk(&plan, &packet) else { panic!("not rewritten") };
        assert_eq!(to.first().unwrap().to, "10.244.1.7:8081".parse().unwrap());
        let programs: Value = serde_json::from_str(&get(10249, "/program").await.1).unwrap();
        assert!(programs["ipv4"].is_object() && programs["ipv6"].is_object());
        let metrics = get(10249, "/metrics").await.1;
        assert!(metrics.contains("kubeproxy_network_programming_duration_seconds_count 1\n"), "{metrics}");
        assert!(metrics.contains("kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"));

        let services: Api<Service> = Api::default_namespaced(cluster.client());
        services.delete("web", &DeleteParams::default()).await.unwrap();
        daemon.settle(&cluster).await;
        let connecting = TcpStream::connect((address, 80));
        let connected = tokio::time::timeout(Duration::from_millis(300), connecting).await;
        assert!(!matches!(connected, Ok(Ok(_))), "a Service that is gone leads nowhere");
        daemon.stop().await;
    });
}

#[test]
fn a_restart_changes_no_rule_and_cuts_nothing() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        let address = cluster.create_service("web", 8080).await;
        let daemon = Daemon::start(cluster.kubeconfig());
        daemon.settle(&cluster).await;
        let mut kept = TcpStream::connect((address, 80)).await.unwrap();
        assert_eq!(ask(&mut kept).await, "one");
        let before = rules();
        daemon.stop().await;
        assert_eq!(rules(), before, "the rules stay when the daemon ends");
        assert_eq!(reaches(address, 80).await, "one");

        let daemon = Daemon::start(cluster.kubeconfig());
        daemon.settle(&cluster).await;
        assert_eq!(rules(), before, "a new daemon finds them right");
        assert_eq!(ask(&mut kept).await, "one");

        let second = tokio::time::timeout(DEADLINE, Daemon::start(cluster.kubeconfig()).task).await.unwrap().unwrap();
        let refusal = second.unwrap_err().to_string();
        assert!(refusal.contains("another signpost node runs on this node"), "{refusal}");
        daemon.stop().await;
        assert_eq!(ask(&mut kept).await, "one");
        signpost_node::cleanup(&nowhere()).unwrap();
        assert_eq!(rules(), "", "cleanup removes what is ours");
    });
}

#[test]
fn an_api_that_goes_away_takes_nothing_with_it() {
    on_a_node(|| async {
        let mut cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        backend(8081, "two").await;
        let address = cluster.create_service("web", 8080).await;
        let daemon = Daemon::start(cluster.kubeconfig());
        daemon.settle(&cluster).await;
        let before = rules();
        cluster.away().await;
        cluster.slices().patch("web-1", &PatchParams::default(), &Patch::Merge(&slice("web", 8081))).await.unwrap();
        // Time enough for several tries of the daemon.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(rules(), before);
        assert_eq!(reaches(address, 80).await, "one");
        assert_eq!(get(10256, "/healthz").await.0, 200);
        cluster.back().await;
        until("the change that was missed arrives", || async { reaches(address, 80).await == "two" }).await;
        daemon.stop().await;
    });
}

#[test]
fn a_daemon_without_its_node_object_waits_and_says_so() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        backend(8080, "one").await;
        let address = cluster.create_service("web", 8080).await;
        let daemon = Daemon::start(cluster.kubeconfig());
        until("it waits", || async {
            try_get(10256, "/healthz").await.is_some_and(|(status, body)| status == 503 && body.contains("Node n1"))
        })
        .await;
        assert_eq!(get(10256, "/livez").await.0, 200);
        cluster.create_node().await;
        daemon.settle(&cluster).await;
        assert_eq!(reaches(address, 80).await, "one");
        assert_eq!(get(10256, "/healthz").await.0, 200);
        daemon.stop().await;
    });
}

#[test]
fn a_table_that_someone_deletes_comes_back() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        let address = cluster.create_service("web", 8080).await;
        let daemon = Daemon::start(cluster.kubeconfig());
        daemon.settle(&cluster).await;
        assert_eq!(reaches(address, 80).await, "one");
        nft("flush ruleset");
        until("the rules are back", || async { nft("list tables").contains("table ip kube-proxy") }).await;
        assert_eq!(reaches(address, 80).await, "one");
        daemon.stop().await;
    });
}

/// Kubernetes#139628 and its kin: a client that keeps its port must not go on sending to a backend that is gone.
#[test]
fn a_udp_client_that_keeps_its_port_follows_its_service() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        for (port, name) in [(8080, "one"), (8081, "two")] {
            let socket = UdpSocket::bind(("10.244.1.7", port)).await.unwrap();
            tokio::spawn(async move {
                let mut byte = [0];
                while let Ok((_, from)) = socket.recv_from(&mut byte).await {
                    if socket.send_to(name.as_bytes(), from).await.is_err() {
                        return;
                    }
                }
            });
        }
        let daemon = Daemon::start(cluster.kubeconfig());
        let service = json!({"metadata": {"name": "dns"}, "spec": {"ports": [{"port": 53, "protocol": "UDP"}]}});
        let service = cluster.create(Api::<Service>::default_namespaced(cluster.client()), service).await;
        let slice = |port: u16| {
            let mut slice = slice("dns", port);
            slice["ports"][0]["protocol"] = json!("UDP");
            slice
        };
        cluster.create(cluster.slices(), slice(8080)).await;
        daemon.settle(&cluster).await;
        let client = UdpSocket::bind((NODE_IP, 0)).await.unwrap();
        client.connect((service.spec.unwrap().cluster_ip.unwrap().as_str(), 53)).await.unwrap();
        let answers = async |expected: &str| {
            let mut answer = [0; 16];
            if client.send(b"?").await.is_err() {
                return false;
            }
            let read = tokio::time::timeout(Duration::from_millis(100), client.recv(&mut answer)).await;
            matches!(read, Ok(Ok(read)) if &answer[..read] == expected.as_bytes())
        };
        until("the first answers", || answers("one")).await;
        cluster.slices().patch("dns-1", &PatchParams::default(), &Patch::Merge(&slice(8081))).await.unwrap();
        daemon.settle(&cluster).await;
        until("the second answers on the same port", || answers("two")).await;
        daemon.stop().await;
    });
}

#[test]
fn a_malformed_object_costs_only_itself_and_is_told_to_its_owner() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        let address = cluster.create_service("web", 8080).await;
        // What no validation of the API knows to be wrong: an endpoint that would lead a node to itself.
        let mut bad = slice("other", 8080);
        bad["endpoints"][0]["addresses"] = json!(["255.255.255.255"]);
        cluster.create(cluster.slices(), bad).await;
        let daemon = Daemon::start(cluster.kubeconfig());
        daemon.settle(&cluster).await;
        assert_eq!(reaches(address, 80).await, "one");
        let events: Api<Event> = Api::default_namespaced(cluster.client());
        until("the event is there", || async {
            let list = events.list(&ListParams::default()).await.unwrap();
            list.items.iter().any(|event| {
                event.reason.as_deref() == Some("Malformed") && event.involved_object.name.as_deref() == Some("other-1")
            })
        })
        .await;
        daemon.stop().await;
    });
}
