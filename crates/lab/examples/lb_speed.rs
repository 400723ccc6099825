//! Times load balancers in labs and prints one line of JSON: how long a client outside hears nothing when a node dies or its
//! daemon is stopped, by layer 2 and by BGP with BFD; how soon a new Service is answered; how evenly addresses are spread.
//!
//! `cargo run --release -p signpost-lab --example lb_speed -- path/to/signpost`. Needs root and BIRD.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use signpost_lab::{Lab, LabSpec, Place};

type Failed = Box<dyn Error>;

/// Client sockets: enough for every next hop of a router to have some.
const SOCKETS: usize = 16;
/// Between two datagrams of a socket.
const EVERY: Duration = Duration::from_millis(2);
/// How long a change is watched.
const WATCHED: Duration = Duration::from_secs(6);
/// Services whose announcement is timed.
const ANNOUNCED: usize = 15;
/// Addresses that are spread over five nodes.
const SPREAD: usize = 1_000;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let program = PathBuf::from(std::env::args().nth(1).ok_or("usage: lb_speed path/to/signpost")?);
    let l2 = layer2(&program).await?;
    let bgp = bgp(&program).await?;
    let spread = spread(&program).await?;
    println!(
        "{}",
        json!({ "bench": "load_balancers", "layer2": l2, "bgp_with_bfd": bgp, "addresses_per_node": spread })
    );
    Ok(())
}

/// A lab whose last node has the pods, and whose others may announce.
async fn lab(program: &Path, nodes: usize, bgp: bool) -> Result<Lab, Failed> {
    let mut spec = LabSpec::new("lb-speed", nodes, program.to_owned());
    spec.bgp_router = bgp;
    let lab = Lab::start(spec).await?;
    let last = format!("n{nodes}");
    create(&lab, "pods", json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "echo", "namespace": "default", "labels": {"app": "echo"}, "annotations": {"lab.signpost.dev/light": "true"}},
        "spec": {"nodeName": last, "containers": [{"name": "echo", "image": "signpost/echo", "args": ["--listen", "udp/8080"]}]},
    })).await?;
    create(
        &lab,
        "ipaddresspools",
        metallb("v1beta1", "IPAddressPool", "default", json!({"addresses": ["172.18.200.0/21"]})),
    )
    .await?;
    let others: Vec<String> = (1..nodes).map(|n| format!("n{n}")).collect();
    let selector =
        json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": others}]}]);
    if bgp {
        let profile = json!({"receiveInterval": 50, "transmitInterval": 50, "detectMultiplier": 5});
        create(&lab, "bfdprofiles", metallb("v1beta1", "BFDProfile", "quick", profile)).await?;
        let peer = json!({
            "myASN": 64512, "peerASN": 64513, "peerAddress": "172.18.0.1", "bfdProfile": "quick", "enableGracefulRestart": false,
        });
        create(&lab, "bgppeers", metallb("v1beta2", "BGPPeer", "router", peer)).await?;
        create(
            &lab,
            "bgpadvertisements",
            metallb("v1beta1", "BGPAdvertisement", "all", json!({"nodeSelectors": selector})),
        )
        .await?;
    } else {
        create(
            &lab,
            "l2advertisements",
            metallb("v1beta1", "L2Advertisement", "all", json!({"nodeSelectors": selector})),
        )
        .await?;
    }
    Ok(lab)
}

fn metallb(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("metallb.io/{version}"), "kind": kind,
        "metadata": {"name": name, "namespace": "metallb-system"}, "spec": spec,
    })
}

async fn create(lab: &Lab, plural: &str, object: Value) -> Result<(), Failed> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &kind), plural);
    let api: Api<DynamicObject> =
        Api::namespaced_with(lab.client(), &text(&object["metadata"]["namespace"]), &resource);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// A Service of the pods, at the next address.
async fn service(lab: &Lab, name: &str) -> Result<(), Failed> {
    create(
        lab,
        "services",
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "type": "LoadBalancer", "selector": {"app": "echo"}, "allocateLoadBalancerNodePorts": false,
                "ports": [{"port": 80, "protocol": "UDP", "targetPort": 8080}],
            },
        }),
    )
    .await
}

async fn address(lab: &Lab, name: &str) -> Result<SocketAddr, Failed> {
    let api: Api<Service> = Api::namespaced(lab.client(), "default");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let service = api.get(name).await?;
        let ingress = service.status.and_then(|status| status.load_balancer).and_then(|status| status.ingress);
        if let Some(ip) = ingress.and_then(|all| all.into_iter().next()).and_then(|first| first.ip) {
            return Ok(SocketAddr::new(ip.parse()?, 80));
        }
        if Instant::now() > deadline {
            return Err(format!("{name} got no address").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Clients outside that send and listen until they are told to stop.
struct Clients {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Duration>>,
}

fn sockets(lab: &Lab, to: SocketAddr, count: usize) -> Result<Vec<UdpSocket>, Failed> {
    let outside = lab.namespace_of(&Place::Outside)?;
    let made = outside.run(|| -> std::io::Result<Vec<UdpSocket>> {
        (0..count)
            .map(|_| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(to)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            })
            .collect()
    });
    Ok(made?)
}

fn hears(socket: &UdpSocket) -> bool {
    let mut buffer = [0; 2048];
    let mut heard = false;
    while socket.recv(&mut buffer).is_ok() {
        heard = true;
    }
    heard
}

impl Clients {
    /// They begin once each was answered.
    async fn start(lab: &Lab, to: SocketAddr) -> Result<Clients, Failed> {
        let sockets = sockets(lab, to, SOCKETS)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        for socket in &sockets {
            loop {
                // An ICMP error of a packet before is no answer.
                let _ = socket.send(b"?");
                tokio::time::sleep(Duration::from_millis(5)).await;
                if hears(socket) {
                    break;
                }
                if Instant::now() > deadline {
                    return Err("the Service is not reached from outside".into());
                }
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut last = vec![Instant::now(); sockets.len()];
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                for (socket, last) in sockets.iter().zip(&mut last) {
                    // As above.
                    let _ = socket.send(b"?");
                    if hears(socket) {
                        longest = longest.max(last.elapsed());
                        *last = Instant::now();
                    }
                }
                std::thread::sleep(EVERY);
            }
            let silent = last.iter().map(Instant::elapsed).max().unwrap_or_default();
            Ok(longest.max(silent))
        });
        Ok(Clients { stop, thread })
    }

    /// The longest silence that one of them met, in milliseconds.
    fn silence_ms(self) -> Result<f64, Failed> {
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.thread.join().map_err(|_| "the clients broke off")??;
        Ok((longest.as_secs_f64() * 10_000.0).round() / 10.0)
    }
}

/// What clients notice of something that is done to a lab.
async fn silence_ms(lab: &Lab, to: SocketAddr, what: impl AsyncFnOnce() -> Result<(), Failed>) -> Result<f64, Failed> {
    let clients = Clients::start(lab, to).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    what().await?;
    tokio::time::sleep(WATCHED).await;
    clients.silence_ms()
}

/// A node dies: its daemon is killed and its link cut at once.
async fn die(lab: &Lab, node: &str) -> Result<(), Failed> {
    lab.set_link(node, false).await?;
    lab.daemon(node)?.kill().await?;
    Ok(())
}

async fn come_back(lab: &Lab, node: &str) -> Result<(), Failed> {
    lab.set_link(node, true).await?;
    lab.daemon(node)?.start().await?;
    lab.settle().await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    Ok(())
}

async fn owner(lab: &Lab, to: SocketAddr) -> Result<String, Failed> {
    let api: Api<Lease> = Api::namespaced(lab.client(), "metallb-system");
    let lease = api.get(&format!("l2-{}", to.ip())).await?;
    lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty()).ok_or("nobody has it".into())
}

async fn layer2(program: &Path) -> Result<Value, Failed> {
    let lab = lab(program, 3, false).await?;
    service(&lab, "first").await?;
    let to = address(&lab, "first").await?;
    Clients::start(&lab, to).await?.silence_ms()?;
    let quiet = silence_ms(&lab, to, async || Ok(())).await?;
    let first = owner(&lab, to).await?;
    let graceful = silence_ms(&lab, to, async || Ok(lab.daemon(&first)?.stop().await?)).await?;
    come_back(&lab, &first).await?;
    let second = owner(&lab, to).await?;
    let killed = silence_ms(&lab, to, async || die(&lab, &second).await).await?;
    come_back(&lab, &second).await?;
    let mut announced_ms = Vec::new();
    for number in 0..ANNOUNCED {
        let name = format!("new-{number}");
        let started = Instant::now();
        service(&lab, &name).await?;
        let to = address(&lab, &name).await?;
        let socket = sockets(&lab, to, 1)?.remove(0);
        while !hears(&socket) {
            // Nobody may be there yet.
            let _ = socket.send(b"?");
            tokio::time::sleep(Duration::from_millis(1)).await;
            if started.elapsed() > Duration::from_secs(20) {
                return Err("a new Service is not answered".into());
            }
        }
        announced_ms.push((started.elapsed().as_secs_f64() * 10_000.0).round() / 10.0);
    }
    announced_ms.sort_by(f64::total_cmp);
    lab.stop().await?;
    Ok(json!({
        "silence_without_a_change_ms": quiet, "silence_daemon_stopped_ms": graceful, "silence_node_died_ms": killed,
        "new_service_answered_ms": {"min": announced_ms[0], "median": announced_ms[ANNOUNCED / 2], "max": announced_ms[ANNOUNCED - 1]},
    }))
}

async fn bgp(program: &Path) -> Result<Value, Failed> {
    let lab = lab(program, 3, true).await?;
    service(&lab, "first").await?;
    let to = address(&lab, "first").await?;
    Clients::start(&lab, to).await?.silence_ms()?;
    // Both sessions, of BGP and of BFD.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let graceful = silence_ms(&lab, to, async || Ok(lab.daemon("n1")?.stop().await?)).await?;
    come_back(&lab, "n1").await?;
    let died = silence_ms(&lab, to, async || die(&lab, "n2").await).await?;
    lab.stop().await?;
    Ok(json!({ "silence_daemon_stopped_ms": graceful, "silence_node_died_ms": died }))
}

async fn spread(program: &Path) -> Result<Value, Failed> {
    let lab = lab(program, 6, false).await?;
    let all = stream::iter(0..SPREAD).map(Ok::<_, Failed>);
    let lab_of = &lab;
    all.try_for_each_concurrent(32, |number| async move { service(lab_of, &format!("s{number}")).await }).await?;
    let api: Api<Lease> = Api::namespaced(lab.client(), "metallb-system");
    let deadline = Instant::now() + Duration::from_secs(300);
    let counts = loop {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for lease in api.list(&ListParams::default()).await? {
            let is_record = lease.metadata.name.as_deref().is_some_and(|name| name.starts_with("l2-"));
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            if is_record && !holder.is_empty() {
                *counts.entry(holder).or_default() += 1;
            }
        }
        if counts.values().sum::<usize>() == SPREAD {
            break counts;
        }
        if Instant::now() > deadline {
            return Err(format!("not all addresses have an owner: {counts:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    lab.stop().await?;
    let (most, least) = (counts.values().max().copied().unwrap_or(0), counts.values().min().copied().unwrap_or(0));
    Ok(json!({ "addresses": SPREAD, "nodes": counts, "most_to_least": most as f64 / least.max(1) as f64 }))
}
