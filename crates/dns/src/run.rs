//! The whole server: reads its configuration, follows the API, answers, reads a changed configuration.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::config::{Config, Kubernetes, ServerBlock};
use crate::corefile::{self, CorefileError};
use crate::engine::{Block, Engine, SetupError};
use crate::http::{self, Told};
use crate::metrics::Metrics;
use crate::node_cache;
use crate::serve::{ListenError, Listeners, Shared};
use crate::source::SharedZone;

/// How the server is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// A Corefile. `None`: what kubeadm's file says, for `cluster_domain`.
    pub config: Option<PathBuf>,
    /// The domain of the cluster, if there is no Corefile.
    pub cluster_domain: String,
    /// How to reach the API where the Corefile does not say it. `None`: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Whether it is a node's cache: it answers at the addresses that the node daemon leads questions to, and tells it so.
    pub node_cache: bool,
    /// Where blocks listen that name neither an address nor another port than 53. Empty: everywhere, at port 53.
    pub listen: Vec<SocketAddr>,
}

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file cannot be read.
    #[error("--config {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not a Corefile for this server.
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// Its parts do not go together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// An address cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Everything that runs.
struct Server {
    options: Options,
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    told: Told,
    listeners: Listeners,
    config: Config,
    /// Ends with the configuration that asks for it.
    http: JoinSet<()>,
    chores: JoinSet<()>,
}

/// Runs until `shutdown`, and then as long as `health` says by `lameduck`.
///
/// # Errors
/// The configuration cannot be used, or an address cannot be had.
pub async fn run(mut options: Options, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    if options.node_cache && options.listen.is_empty() {
        options.listen = node_cache::addresses();
    }
    let tells = options.node_cache;
    let mut server = Server::start(options).await?;
    let mut telling = JoinSet::new();
    if tells {
        telling.spawn(node_cache::tell(server.told.clone()));
    }
    let follow = async {
        loop {
            server.wait_for_change().await;
            server.reload().await;
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = follow => {}
    }
    server.told.ends();
    // The node's questions go elsewhere before the last ones are answered here.
    telling.shutdown().await;
    let lameduck = server.config.servers.iter().filter_map(|block| block.health).map(|health| health.lameduck).max();
    let lameduck = lameduck.unwrap_or_default();
    if !lameduck.is_zero() {
        info!(lameduck_s = lameduck.as_secs_f64(), "ending; questions are answered for so long");
        tokio::time::sleep(lameduck).await;
    }
    Ok(())
}

impl Server {
    async fn start(options: Options) -> Result<Server, RunError> {
        let metrics = Arc::new(Metrics::new());
        let config = read(&options)?;
        let engine = Arc::new(engine(&config, &options, &metrics, None).await?);
        let shared = Arc::new(Shared::new(engine, metrics.clone()));
        let told = Told::new(shared.clone(), metrics.clone());
        let (http, chores) = (JoinSet::new(), JoinSet::new());
        let listeners = Listeners::default();
        let mut server = Server { options, metrics, shared, told, listeners, config, http, chores };
        server.begin()?;
        Ok(server)
    }

    /// Opens what the configuration asks for.
    fn begin(&mut self) -> Result<(), RunError> {
        let engine = self.shared.engine();
        let addresses: BTreeSet<SocketAddr> =
            engine.blocks().iter().flat_map(|block| block.listen()).copied().collect();
        let addresses: Vec<SocketAddr> = addresses.into_iter().collect();
        self.listeners.listen(&addresses, &self.shared)?;
        self.http.abort_all();
        self.http = http::listen(&self.config, &self.told);
        self.chores.abort_all();
        self.chores = chores(&engine, &self.metrics);
        self.metrics.plugins_are(enabled(&engine));
        Ok(())
    }

    /// Until the file says something else; for ever, if nobody asks for that.
    async fn wait_for_change(&self) {
        let every = self.config.servers.iter().filter_map(|block| block.reload).min();
        let (Some(every), Some(path)) = (every, &self.options.config) else {
            return std::future::pending().await;
        };
        let text = fs::read_to_string(path).ok();
        loop {
            tokio::time::sleep(every).await;
            if fs::read_to_string(path).is_ok_and(|now| Some(now) != text) {
                return;
            }
        }
    }

    /// Takes the changed file; what was in force stays if it cannot be used.
    async fn reload(&mut self) {
        if let Err(error) = self.try_reload().await {
            self.metrics.reload_failed();
            error!(%error, "the changed Corefile cannot be used; the former one stays in force");
        } else {
            info!("the changed Corefile is in force");
        }
    }

    async fn try_reload(&mut self) -> Result<(), RunError> {
        let config = read(&self.options)?;
        let before = self.shared.engine();
        let engine = engine(&config, &self.options, &self.metrics, Some(&before)).await?;
        let (engine, former) = (Arc::new(engine), std::mem::replace(&mut self.config, config));
        self.shared.replace_engine(engine);
        if let Err(error) = self.begin() {
            self.shared.replace_engine(before);
            self.config = former;
            self.begin()?;
            return Err(error);
        }
        Ok(())
    }
}

fn read(options: &Options) -> Result<Config, RunError> {
    let text = match &options.config {
        None if options.node_cache => corefile::node_cache_text(&options.cluster_domain),
        None => corefile::default_text(&options.cluster_domain),
        Some(path) => fs::read_to_string(path).map_err(|source| RunError::Unreadable { path: path.clone(), source })?,
    };
    let mut config = corefile::read(&text, |name| std::env::var(name).ok())?;
    for kubernetes in config.servers.iter_mut().filter_map(|server| server.kubernetes.as_mut()) {
        kubernetes.kubeconfig = kubernetes.kubeconfig.take().or_else(|| options.kubeconfig.clone());
    }
    Ok(config)
}

/// The blocks at work. A zone that a block of `before` has goes on as it is.
async fn engine(
    config: &Config,
    options: &Options,
    metrics: &Arc<Metrics>,
    before: Option<&Engine>,
) -> Result<Engine, RunError> {
    let mut zones: Vec<(Kubernetes, Arc<SharedZone>)> = Vec::new();
    for block in before.into_iter().flat_map(Engine::blocks) {
        if let (Some(kubernetes), Some(zone)) = (&block.config().kubernetes, block.zone()) {
            zones.push((kubernetes.clone(), zone.clone()));
        }
    }
    let mut blocks = Vec::new();
    for server in &config.servers {
        let zone = match &server.kubernetes {
            None => None,
            Some(kubernetes) => Some(zone(kubernetes, &mut zones, metrics).await?),
        };
        blocks.push(Arc::new(Block::new(server.clone(), &options.listen, zone, metrics)?));
    }
    Ok(Engine::new(blocks))
}

async fn zone(
    kubernetes: &Kubernetes,
    zones: &mut Vec<(Kubernetes, Arc<SharedZone>)>,
    metrics: &Arc<Metrics>,
) -> Result<Arc<SharedZone>, SetupError> {
    if let Some((_, zone)) = zones.iter().find(|(known, _)| known == kubernetes) {
        return Ok(zone.clone());
    }
    let zone = SharedZone::follow(kubernetes, metrics.clone()).await?;
    if !zone.synced_within(kubernetes.startup_timeout).await {
        warn!("the API's lists are not whole yet; the cluster's names are answered with SERVFAIL until they are");
    }
    zones.push((kubernetes.clone(), zone.clone()));
    Ok(zone)
}

/// What is done beside answering.
fn chores(engine: &Arc<Engine>, metrics: &Arc<Metrics>) -> JoinSet<()> {
    let mut chores = JoinSet::new();
    for block in engine.blocks() {
        let probed = block.clone();
        chores.spawn(async move { probed.probe_for_loops().await });
        if let Some(hosts) = block.hosts().cloned() {
            metrics.hosts_entries(hosts.len());
            let metrics = metrics.clone();
            chores.spawn(async move {
                let config = hosts.config();
                let (Some(path), false) = (&config.file, config.reload.is_zero()) else { return };
                let changed = || fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
                let mut seen: Option<SystemTime> = changed();
                loop {
                    tokio::time::sleep(config.reload.max(Duration::from_millis(100))).await;
                    let now = changed();
                    if now != seen {
                        seen = now;
                        hosts.read_again();
                        metrics.hosts_entries(hosts.len());
                    }
                }
            });
        }
    }
    chores
}

fn enabled(engine: &Engine) -> Vec<(Arc<str>, String, &'static str)> {
    let mut rows = Vec::new();
    for block in engine.blocks() {
        let ServerBlock { errors, log, loadbalance, autopath, detect_loops, .. } = *block.config();
        let config = block.config();
        let plugins = [
            ("errors", errors),
            ("log", log),
            ("loadbalance", loadbalance),
            ("autopath", autopath),
            ("loop", detect_loops),
            ("cache", config.cache.is_some()),
            ("rewrite", !config.rewrites.is_empty()),
            ("hosts", config.hosts.is_some()),
            ("kubernetes", config.kubernetes.is_some()),
            ("forward", !config.forwards.is_empty()),
            ("prometheus", config.prometheus.is_some()),
            ("ready", config.ready.is_some()),
            ("health", config.health.is_some()),
            ("reload", config.reload.is_some()),
        ];
        for zone in &config.zones {
            let on = plugins.iter().filter(|(_, on)| *on);
            rows.extend(on.map(|(name, _)| (block.server().into(), zone.to_string(), *name)));
        }
    }
    rows
}
