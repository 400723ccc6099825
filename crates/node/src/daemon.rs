//! The daemon: puts the parts together, drives [`SyncLoop`] with the clock, and ends when it is told to.
//!
//! It never takes rules away when it ends: who restarts it, or loses it, keeps every connection and Service as they are.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use serde::Serialize;
use signpost_cluster::client::{ClientError, Connection};
use signpost_cluster::events::Reporter;
use signpost_cluster::{NodeScope, Observed};
use signpost_core::object::Family;
use signpost_core::planner::NodeConfig;
use signpost_datapath::Datapath;
use signpost_datapath::conntrack::Worker;
use signpost_datapath::ebpf::features::{lacking, optional};
use signpost_datapath::ebpf::{self, Ebpf, KernelConfig};
use signpost_datapath::iptables::{Iptables, IptablesConfig};
use signpost_datapath::ipvs::{Ipvs, IpvsConfig};
use signpost_datapath::nftables::{Nftables, NftablesConfig};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

use crate::addresses::Local;
use crate::announce::Announcer;
use crate::config::{NodeOptions, PodRanges};
use crate::handover::{self, CleanupError, HandoverError};
use crate::instance::{Instance, InstanceError};
use crate::metrics::Metrics;
use crate::mode::{self, Chosen, Mode, ModeError};
use crate::progress::Progress;
use crate::server::{self, Question, Shared};
use crate::service_health::ServiceHealth;
use crate::sync::{SyncLoop, SyncOptions};
use crate::{addresses, findings, kernel_settings, left_out, node_cache, notices, process, sys};

/// So many observations are taken in between two looks at the clock.
const BATCH: usize = 512;
/// How long the last call of the kernel may take after the end was asked for.
const LAST_CALL: Duration = Duration::from_millis(600);

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Not allowed to.
    #[error("changing the kernel's rules needs CAP_NET_ADMIN: run as root")]
    NotRoot,
    /// There is one.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The mode cannot be.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// No way to the API.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The node's addresses cannot be read.
    #[error("cannot read the addresses of this node: {0}")]
    Addresses(#[source] io::Error),
    /// The node's cache for names cannot be heard.
    #[error("cannot listen for the node's cache for names: {0}")]
    NodeCache(#[source] io::Error),
    /// Another Service proxy is in charge.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// What is in the kernel could not be removed.
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
}

/// Runs until `shutdown` is done. The rules stay.
///
/// # Errors
/// Something that it needs is missing on this machine. What is missing in the cluster is waited for.
pub async fn run(options: NodeOptions, shutdown: impl Future<Output = ()>) -> Result<(), NodeError> {
    if !process::may_change_network() {
        return Err(NodeError::NotRoot);
    }
    let chosen = mode::choose(options.mode, mode::check)?;
    let (mode, reason) = (chosen.mode, chosen.reason());
    let _instance = Instance::take()?;
    let families = families();
    handover::check(&families, options.take_over)?;
    sys::share_one_heap();
    info!(node = %options.node, %mode, reason, version = env!("CARGO_PKG_VERSION"), "signpost node starts");
    if !options.ignored.is_empty() {
        warn!(without_effect = options.ignored.join(", "), "this program does not do all that is asked for");
    }
    let lacks = lacks(chosen);
    for lack in &*lacks {
        warn!(lack, "this machine has not all that would be used");
    }
    let Connection { client, server } =
        signpost_cluster::client::connect(options.kubeconfig.as_deref(), options.master.as_deref()).await?;
    kernel_settings::apply(&options, mode);
    let interfaces = match &options.pods {
        PodRanges::Interfaces(interfaces) => Some(interfaces.clone()),
        PodRanges::Cluster(_) | PodRanges::Node => None,
    };
    let addresses = addresses::follow(interfaces).map_err(NodeError::Addresses)?;
    let reporter = Reporter::start(client.clone(), "signpost-node", &options.node);
    let announcer = Announcer::new(client.clone(), &server, options.node.clone(), options.answer_ping);
    let pods = client.clone();
    let observed = signpost_cluster::watch(client, &server, &NodeScope::Own(options.node.clone()));
    let cache = node_cache::follow().map_err(NodeError::NodeCache)?;
    let around = Around { lacks, observed, addresses, cache, reporter, announcer };
    match mode {
        Mode::Ebpf => {
            let node = ebpf::Node::new(served_by(&options.ebpf));
            let rules = NftablesConfig { take_over: options.take_over, ..NftablesConfig::default() };
            let part = |family| (family, Ebpf::new(family, node.clone(), rules.clone()), flows(family));
            let datapaths = families.into_iter().map(part).collect();
            info!(sockets = "ebpf", packets = %node.kernel().packets(), "connections are rewritten at the socket, packets on their way");
            // Ends when it is dropped.
            let mut following = JoinSet::new();
            match options.ebpf.cgroup.clone().map_or_else(ebpf::kernel::cgroup2_mount, Ok) {
                Ok(cgroup) => {
                    let (name, reporter) = (options.node.clone(), around.reporter.clone());
                    following.spawn(left_out::follow(pods, server, name, node, cgroup, reporter));
                }
                Err(error) => warn!(%error, "pods that ask for it are not left out"),
            }
            serve(&options, mode, datapaths, around, shutdown).await;
        }
        Mode::Nftables => {
            let part = |family| (family, nftables(family, options.take_over), flows(family));
            let datapaths = families.into_iter().map(part).collect();
            serve(&options, mode, datapaths, around, shutdown).await;
        }
        Mode::Iptables => {
            let config = IptablesConfig { take_over: options.take_over, ..IptablesConfig::default() };
            let part = |family| (family, Iptables::new(family, config.clone()), flows(family));
            let datapaths = families.into_iter().map(part).collect();
            serve(&options, mode, datapaths, around, shutdown).await;
        }
        Mode::Ipvs => {
            let config = IpvsConfig { take_over: options.take_over, ..options.ipvs.clone() };
            let part = |family| (family, Ipvs::new(family, config.clone()), flows(family));
            let datapaths = families.into_iter().map(part).collect();
            serve(&options, mode, datapaths, around, shutdown).await;
        }
    }
    info!("signpost node ends; its rules stay");
    Ok(())
}

/// How the mode ebpf is run here: where the kernel does not take the programs for packets, rules serve those.
fn served_by(asked: &KernelConfig) -> KernelConfig {
    if asked.packets != ebpf::Packets::Nftables
        && let Err(error) = ebpf::try_packets()
    {
        warn!(%error, asked = %asked.packets, packets = "nftables", "packets are served by rules");
        return KernelConfig { packets: ebpf::Packets::Nftables, ..asked.clone() };
    }
    asked.clone()
}

/// Removes what this and former daemons, or kube-proxy, left in the kernel.
///
/// # Errors
/// A daemon runs, or the kernel refused.
pub fn cleanup(ebpf: &KernelConfig) -> Result<(), NodeError> {
    if !process::may_change_network() {
        return Err(NodeError::NotRoot);
    }
    let _instance = Instance::take()?;
    Ok(handover::cleanup(&families(), ebpf)?)
}

fn nftables(family: Family, take_over: bool) -> Nftables {
    Nftables::new(family, NftablesConfig { take_over, ..NftablesConfig::default() })
}

/// Without it, Services work; only UDP clients that keep their port may go on talking to nobody.
fn flows(family: Family) -> Option<Worker> {
    match Worker::start(family) {
        Ok(worker) => Some(worker),
        Err(error) => {
            warn!(%family, %error, "stale flows are not looked after");
            None
        }
    }
}

/// Both, unless the kernel has no IPv6.
fn families() -> Vec<Family> {
    let mut families = vec![Family::Ipv4];
    if Path::new("/proc/sys/net/ipv6").exists() {
        families.push(Family::Ipv6);
    } else {
        info!("this kernel has no IPv6: only IPv4 is served");
    }
    families
}

/// What is not there, and what is done in its place.
fn lacks(chosen: Chosen) -> Arc<[String]> {
    let mut lacks = chosen.instead_of;
    if chosen.mode == Mode::Ebpf {
        lacks.extend(lacking(&optional()));
    }
    lacks.into()
}

/// What the daemon hears from and speaks to.
struct Around<S> {
    lacks: Arc<[String]>,
    observed: S,
    addresses: watch::Receiver<Local>,
    /// Whether the node's cache for names is ready.
    cache: watch::Receiver<bool>,
    reporter: Reporter,
    announcer: Announcer,
}

async fn serve<D, S>(
    options: &NodeOptions,
    mode: Mode,
    datapaths: Vec<(Family, D, Option<Worker>)>,
    around: Around<S>,
    shutdown: impl Future<Output = ()>,
) where
    S: Stream<Item = Observed> + Send + Unpin + 'static,
    D: Datapath + Debug + Send + 'static,
    D::Program: Serialize + Send,
{
    let Around { lacks, observed, mut addresses, cache, reporter, announcer } = around;
    options.conntrack.set();
    let (progress, metrics) = (Arc::new(Progress::new()), Arc::new(Metrics::new()));
    let (asking, questions) = mpsc::channel(8);
    let shared = Shared::new(mode, lacks.clone(), options.sync_period, progress.clone(), metrics.clone(), asking);
    let listeners = [(options.healthz, server::health(shared.clone())), (options.metrics, server::metrics(shared))];
    // Ends what it holds when it is dropped.
    let mut listening = JoinSet::new();
    for (address, router) in listeners {
        if let Some(address) = address {
            listening.spawn(server::listen(address, router));
        }
    }
    let health = ServiceHealth::new(
        options.node.clone(),
        options.sync_period,
        progress.clone(),
        metrics.clone(),
        Some(reporter.clone()),
    );
    listening.spawn(health.serve());
    if let Some(look) = options.look {
        listening.spawn(findings::follow(look, options.node.clone(), metrics.clone()));
    }
    let families = datapaths.iter().map(|(family, ..)| *family).collect();
    listening.spawn(handover::succeed(mode, families, options.take_over, progress.clone(), options.ebpf.clone()));
    let cluster_cidrs = match &options.pods {
        PodRanges::Cluster(ranges) => ranges.clone(),
        PodRanges::Node => Vec::new(),
        PodRanges::Interfaces(_) => addresses.borrow_and_update().behind.iter().copied().collect(),
    };
    let config = NodeConfig {
        node: options.node.clone(),
        cluster_cidrs,
        masquerade_all: options.masquerade_all,
        node_addresses: addresses.borrow_and_update().addresses.clone(),
        node_port_addresses: options.node_port_addresses.clone(),
        localhost_node_ports: kernel_settings::localhost_node_ports(options, mode),
        source_ranges_on_node_ports: options.source_ranges_on_node_ports,
        node_cache: false,
    };
    let sync_options = SyncOptions {
        node: options.node.clone(),
        mode,
        lacks,
        pods: options.pods.clone(),
        min_sync_period: options.min_sync_period,
        sync_period: options.sync_period,
    };
    let announcing = announcer.start(progress.served(), metrics.announcer.clone());
    let sync = SyncLoop::new(sync_options, config, datapaths, progress, metrics);
    let (stop, stopped) = oneshot::channel();
    let node = options.node.clone();
    let hears = Hears { observed, addresses, cache, questions };
    let mut driver = tokio::spawn(drive(sync, node, hears, reporter, stopped));
    tokio::select! {
        () = shutdown => {
            // While the kernel still forwards, others take the addresses over.
            announcing.leave().await;
            // The receiver is gone if the driver ended, which it does only by a panic.
            let _ = stop.send(());
            if tokio::time::timeout(LAST_CALL, &mut driver).await.is_err() {
                warn!("a call of the kernel still runs; it ends by itself");
            }
        }
        ended = &mut driver => {
            if let Err(panic) = ended.map_err(JoinError::into_panic) {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// What the driver waits for.
struct Hears<S> {
    observed: S,
    addresses: watch::Receiver<Local>,
    cache: watch::Receiver<bool>,
    questions: mpsc::Receiver<Question>,
}

/// Between observations and the kernel, until `stopped`.
async fn drive<D>(
    mut sync: SyncLoop<D>,
    node: Arc<str>,
    hears: Hears<impl Stream<Item = Observed> + Send + Unpin>,
    reporter: Reporter,
    stopped: oneshot::Receiver<()>,
) where
    D: Datapath + Debug + Send,
    D::Program: Serialize + Send,
{
    let Hears { observed, mut addresses, mut cache, mut questions } = hears;
    let mut batches = observed.ready_chunks(BATCH);
    let mut stopped = pin!(stopped);
    let mut trimmed = false;
    loop {
        let due = sync.due();
        if due.is_some_and(|due| due <= Instant::now()) {
            tokio::task::block_in_place(|| sync.step(&mut Instant::now));
            notices::report(&mut sync, &node, &reporter);
            if sync.is_started() && !trimmed {
                sys::give_memory_back();
                trimmed = true;
            }
        }
        let due = sync.due();
        tokio::select! {
            biased;
            _ = &mut stopped => return,
            batch = batches.next() => match batch {
                Some(batch) => {
                    let now = Instant::now();
                    for observed in batch {
                        if let Observed::Malformed(malformed) = &observed {
                            warn!(object = %malformed.object, problem = %malformed.problems[0], "an object is malformed");
                            reporter.report(malformed.clone());
                        }
                        sync.observe(observed, now);
                    }
                }
                None => return,
            },
            Ok(()) = addresses.changed() => {
                let now = addresses.borrow_and_update().clone();
                sync.set_pods_behind(&now.behind, Instant::now());
                sync.set_node_addresses(now.addresses, Instant::now());
            }
            Ok(()) = cache.changed() => {
                let is_ready = *cache.borrow_and_update();
                sync.set_node_cache(is_ready, Instant::now());
            }
            // Some answers ask the kernel.
            Some(question) = questions.recv() => tokio::task::block_in_place(|| answer(&mut sync, question)),
            () = until(due), if due.is_some() => {}
        }
    }
}

fn answer<D>(sync: &mut SyncLoop<D>, question: Question)
where
    D: Datapath,
    D::Program: Serialize,
{
    // Who asked may have gone away meanwhile.
    let _ = match question {
        Question::Counts(reply) => return drop(reply.send(sync.counted())),
        Question::Plans(reply) => reply.send(sync.plans()),
        Question::Programs(reply) => reply.send(sync.programs()),
        Question::Rules(wanted, reply) => reply.send(sync.listing(&|service| wanted.is(service))),
    };
}

async fn until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due.into()).await;
    }
}

#[cfg(test)]
mod tests;
