//! What the node daemon takes at a size: memory, time to start, time and processor of one change.
//!
//! `cargo run --release -p signpost-node --example size -- [SERVICES [ENDPOINTS [CHANGES]]]` as root; prints one JSON line. The
//! API is the embedded one, in this process; the daemon is a process of its own; both are in a network namespace made for it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sched::{CloneFlags, unshare};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer};
use signpost_node::{Flags, NodeOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error>;

const NODE_IP: &str = "172.18.0.11";
const POD_IP: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 7);
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, kubeconfig] = arguments.as_slice()
        && role == "daemon"
    {
        return daemon(Path::new(kubeconfig));
    }
    let number = |index: usize, default| arguments.get(index).map_or(Ok(default), |text| text.parse::<usize>());
    let (services, endpoints, changes) = (number(0, 10_000)?, number(1, 10)?, number(2, 100)?);
    unshare(CloneFlags::CLONE_NEWNET)?;
    for arguments in [
        "link set lo up",
        "link add eth0 type veth peer name far",
        "link set far up",
        "link set eth0 up",
        "address add 172.18.0.11/24 dev eth0",
        "address add 10.244.1.7/32 dev lo",
        "route add default via 172.18.0.1",
    ] {
        Command::new("ip").args(arguments.split(' ')).status()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(measure(services, endpoints, changes))?;
    println!("{result}");
    Ok(())
}

fn daemon(kubeconfig: &Path) -> Result<(), Failure> {
    let flags = Flags {
        hostname_override: Some("n1".to_owned()),
        kubeconfig: Some(kubeconfig.to_path_buf()),
        cluster_cidr: Some("10.244.0.0/16".parse()?),
        proxy_mode: Some("nftables".parse()?),
        ..Flags::default()
    };
    let options = NodeOptions::new(flags, Default::default(), None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(runtime.block_on(signpost_node::run(options, std::future::pending()))?)
}

/// Killed with this process, whatever happens.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that ended by itself cannot be killed, and need not.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    fn start(kubeconfig: &Path) -> Result<Daemon, Failure> {
        let child = Command::new(std::env::current_exe()?).arg("daemon").arg(kubeconfig).spawn()?;
        Ok(Daemon(child))
    }

    /// Processor time, with that of the children it waited for.
    fn cpu_ms(&self) -> Result<f64, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let fields: Vec<&str> = stat.rsplit_once(')').ok_or("no stat")?.1.split_whitespace().collect();
        let ticks: u64 = fields[11..15].iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
        Ok(ticks as f64 * 10.0)
    }

    /// Now and at its most, in MB.
    fn memory_mb(&self) -> Result<(f64, f64), Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
        };
        Ok((field("VmRSS:"), field("VmHWM:")))
    }
}

async fn measure(services: usize, endpoints: usize, changes: usize) -> Result<Value, Failure> {
    let config = ApiConfig {
        dir: None,
        service_cidrs: vec!["10.96.0.0/12".parse()?],
        node_ports: 30_000..=32_767,
        advertise: vec![],
    };
    let api = ApiServer::open(config).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = api.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = api.client();
    let probe = fill(&client, services, endpoints).await?;
    for port in 8080..8082 {
        backend(port).await?;
    }
    let folder = tempfile::tempdir()?;
    let kubeconfig = kubeconfig(folder.path(), address)?;

    let began = Instant::now();
    let daemon = Daemon::start(&kubeconfig)?;
    reached(probe, 8080).await?;
    let start_ms = ms(began);
    until_programmed(&api).await?;
    let all_ms = ms(began);
    let (resident_mb, _) = daemon.memory_mb()?;
    let start_cpu_ms = daemon.cpu_ms()?;

    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    let mut waits = Vec::with_capacity(changes);
    let cpu_before = daemon.cpu_ms()?;
    for number in 0..changes {
        let port = if number % 2 == 0 { 8081 } else { 8080 };
        let change = slice("probe", &[IpAddr::V4(POD_IP)], port);
        slices.patch("probe-1", &PatchParams::default(), &Patch::Merge(&change)).await?;
        let changed = Instant::now();
        reached(probe, port).await?;
        waits.push(ms(changed));
        // As a cluster is mostly: at rest before the next change.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let change_cpu_ms = (daemon.cpu_ms()? - cpu_before) / changes.max(1) as f64;
    waits.sort_by(f64::total_cmp);
    let at = |share: f64| waits.get((waits.len() as f64 * share) as usize).copied();
    let (later_mb, peak_mb) = daemon.memory_mb()?;
    drop(daemon);

    let began = Instant::now();
    let daemon = Daemon::start(&kubeconfig)?;
    until_programmed(&api).await?;
    let restart_ms = ms(began);
    let (restarted_mb, restarted_peak_mb) = daemon.memory_mb()?;
    Ok(json!({
        "services": services, "endpoints": endpoints, "changes": changes,
        "first_connection_ms": start_ms, "cold_start_ms": all_ms, "cold_start_cpu_ms": start_cpu_ms,
        "change_p50_ms": at(0.5), "change_p99_ms": at(0.99), "change_cpu_ms": change_cpu_ms,
        "resident_mb": resident_mb, "resident_after_changes_mb": later_mb, "peak_mb": peak_mb,
        "restart_ms": restart_ms, "restart_resident_mb": restarted_mb, "restart_peak_mb": restarted_peak_mb,
    }))
}

/// Gives the address of the Service that is measured with.
async fn fill(client: &Client, services: usize, endpoints: usize) -> Result<IpAddr, Failure> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node =
        json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}]}});
    create(&nodes, node.clone()).await?;
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(&node)).await?;
    let all: Api<Service> = Api::default_namespaced(client.clone());
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    for number in 1..services {
        let name = format!("web-{number}");
        create(&all, service(&name)).await?;
        let pods: Vec<IpAddr> = (0..endpoints)
            .map(|index| {
                let pod = number * endpoints + index;
                IpAddr::from([10, 200 + (pod >> 16) as u8, (pod >> 8) as u8, pod as u8])
            })
            .collect();
        create(&slices, slice(&name, &pods, 8080)).await?;
    }
    let probe = create(&all, service("probe")).await?;
    create(&slices, slice("probe", &[IpAddr::V4(POD_IP)], 8080)).await?;
    let address = probe.spec.and_then(|spec| spec.cluster_ip).ok_or("no cluster address")?;
    Ok(address.parse()?)
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<K, Failure>
where
    K: DeserializeOwned + Serialize + Clone + std::fmt::Debug,
{
    Ok(api.create(&PostParams::default(), &serde_json::from_value(object)?).await?)
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": 80}]}})
}

fn slice(service: &str, pods: &[IpAddr], port: u16) -> Value {
    let endpoints: Vec<Value> = pods
        .iter()
        .enumerate()
        .map(|(index, pod)| {
            json!({"addresses": [pod], "nodeName": format!("n{}", index % 100), "zone": "a",
                   "conditions": {"ready": true, "serving": true, "terminating": false}})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": port, "protocol": "TCP"}], "endpoints": endpoints,
    })
}

fn kubeconfig(folder: &Path, address: SocketAddr) -> Result<std::path::PathBuf, Failure> {
    let path = folder.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&path, text.to_string())?;
    Ok(path)
}

/// Answers with its port.
async fn backend(port: u16) -> Result<(), Failure> {
    let listener = TcpListener::bind((POD_IP, port)).await?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Who asked may be gone.
            let _ = stream.write_all(&port.to_be_bytes()).await;
        }
    });
    Ok(())
}

/// Waits until a new connection comes to the backend at `port`.
async fn reached(address: IpAddr, port: u16) -> Result<(), Failure> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let attempt = async {
            let mut stream = TcpStream::connect((address, 80)).await?;
            stream.read_u16().await
        };
        if let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_millis(20), attempt).await
            && answer == port
        {
            return Ok(());
        }
    }
    Err("the backend was not reached".into())
}

async fn until_programmed(api: &ApiServer) -> Result<(), Failure> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Ok(told) = programmed().await
            && ["Service", "EndpointSlice", "Node"].iter().all(|kind| told[*kind].as_u64() >= Some(api.revision(kind)))
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err("not programmed".into())
}

async fn programmed() -> Result<Value, Failure> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 10_249)).await?;
    stream.write_all(b"GET /programmed HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(serde_json::from_str(answer.split_once("\r\n\r\n").ok_or("no body")?.1)?)
}

fn ms(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e4).round() / 10.0
}
