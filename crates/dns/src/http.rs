//! What is answered over HTTP: `/health`, `/ready` and `/metrics`, where CoreDNS has them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::metrics::Metrics;
use crate::serve::Shared;

/// How long an address that is taken is left before the next try.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// After a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Every pod reaches these listeners: what it can hold of the process's descriptors is bounded in number and in time.
const CONNECTIONS: usize = 64;
/// A client has so long for a request's head, and so long for everything.
const HEAD: Duration = Duration::from_secs(10);
const CONNECTION: Duration = Duration::from_secs(30);

/// What the handlers know. Cheap to clone.
#[derive(Clone)]
pub struct Told {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    ending: Arc<AtomicBool>,
}

impl Told {
    /// Of this server.
    pub fn new(shared: Arc<Shared>, metrics: Arc<Metrics>) -> Told {
        Told { shared, metrics, ending: Arc::default() }
    }

    /// Whether everything that is to be answered is known.
    pub fn is_ready(&self) -> bool {
        let known = |block: &std::sync::Arc<crate::engine::Block>| {
            block.zone().is_none_or(|zone| zone.read().waits_for().is_empty())
        };
        !self.ending.load(Ordering::Relaxed) && self.shared.engine().blocks().iter().all(known)
    }

    /// From now on the server is not ready: it will end soon.
    pub fn ends(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}

/// The listeners that a configuration asks for. They end when the set is dropped.
pub fn listen(config: &Config, told: &Told) -> JoinSet<()> {
    let mut routers: BTreeMap<SocketAddr, Router<Told>> = BTreeMap::new();
    let mut paths: Vec<(SocketAddr, &str)> = Vec::new();
    let mut add = |address: SocketAddr, path: &'static str, handler: axum::routing::MethodRouter<Told>| {
        // Blocks may share an address.
        if !paths.contains(&(address, path)) {
            paths.push((address, path));
            let router = routers.remove(&address).unwrap_or_default();
            routers.insert(address, router.route(path, handler));
        }
    };
    for server in &config.servers {
        if let Some(health) = server.health {
            add(health.address, "/health", get(health_text));
        }
        if let Some(ready) = server.ready {
            add(ready.address, "/ready", get(ready_text));
        }
        if let Some(address) = server.prometheus {
            add(address, "/metrics", get(metrics_text));
        }
    }
    let mut serving = JoinSet::new();
    for (address, router) in routers {
        serving.spawn(serve(address, router.with_state(told.clone())));
    }
    serving
}

async fn health_text() -> &'static str {
    "OK"
}

/// Each line after the first says what is not as it should be. Only what keeps right answers from being given makes it 503.
async fn ready_text(State(told): State<Told>) -> Response {
    let mut not_ready = Vec::new();
    let mut stale = Vec::new();
    for block in told.shared.engine().blocks() {
        let (Some(ready), Some(zone)) = (block.config().ready, block.zone()) else { continue };
        let waits_for = zone.read().waits_for();
        let trouble = zone.trouble();
        if !waits_for.is_empty() {
            let kinds: Vec<&str> = waits_for.iter().map(|kind| kind.name()).collect();
            let why = trouble.unwrap_or_else(|| "the list is not whole yet".to_owned());
            not_ready.push(format!("kubernetes: waits for {}: {why}", kinds.join(", ")));
        } else if let Some(trouble) = trouble {
            let text = format!("kubernetes: the API fails, what was known last is answered: {trouble}");
            if ready.continuously { not_ready.push(text) } else { stale.push(text) }
        }
    }
    if told.ending.load(Ordering::Relaxed) {
        not_ready.push("the server ends".to_owned());
    }
    if not_ready.is_empty() {
        stale.insert(0, "OK".to_owned());
        return stale.join("\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, not_ready.join("\n")).into_response()
}

async fn metrics_text(State(told): State<Told>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], told.metrics.text()).into_response()
}

/// Serves for ever. Names are answered without it too, so an address that is taken is tried again and again.
async fn serve(address: SocketAddr, router: Router) {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "listening for HTTP");
                accept(listener, router.clone()).await;
            }
            Err(error) => warn!(%address, %error, "cannot listen for HTTP; trying again"),
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// Takes connections for ever; those that are over the limit wait in the kernel's queue.
async fn accept(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                connections.spawn(async move {
                    connection(stream, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let mut builder = auto::Builder::new(hyper_util::rt::TokioExecutor::new()).http1_only();
    // Kept alive, a connection would hold its place.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a connection ended with an error"),
        Err(_) => debug!("a connection took too long"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::corefile;
    use crate::engine::{Block, Engine};
    use crate::source::tests::FakeApi;

    async fn told(monitor: &str, api: &FakeApi) -> Told {
        let text = format!(". {{\n kubernetes cluster.local\n ready 127.0.0.1:0 {{\n monitor {monitor}\n }}\n}}");
        let config = corefile::read(&text, |_| None).unwrap();
        let metrics = Arc::new(Metrics::new());
        let zone = api.zone(&metrics);
        let block = Block::new(config.servers[0].clone(), &[], Some(zone), &metrics).unwrap();
        Told::new(Arc::new(Shared::new(Arc::new(Engine::new(vec![Arc::new(block)])), metrics.clone())), metrics)
    }

    async fn ready(told: &Told) -> (u16, String) {
        let response = ready_text(State(told.clone())).await;
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn becomes(told: &Told, status: u16, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let now = ready(told).await;
            if now.0 == status && now.1.contains(text) {
                return;
            }
            assert!(Instant::now() < deadline, "{status} {text} was to come, there is {now:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn readiness_says_that_the_api_is_away_and_denies_it_only_where_asked_to() {
        let api = FakeApi::new();
        api.goes_away();
        let (patient, strict) = (told("until-ready", &api).await, told("continuously", &api).await);
        becomes(&patient, 503, "waits for Service, EndpointSlice, Namespace").await;
        api.comes_back();
        becomes(&patient, 200, "OK").await;
        becomes(&strict, 200, "OK").await;
        api.goes_away();
        becomes(&patient, 200, "OK\nkubernetes: the API fails, what was known last is answered: 500").await;
        becomes(&strict, 503, "kubernetes: the API fails").await;
        api.comes_back();
        becomes(&strict, 200, "OK").await;
        strict.ends();
        becomes(&strict, 503, "the server ends").await;
    }
}
