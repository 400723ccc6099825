//! What the daemon answers over HTTP: kube-proxy's two listeners, and four paths of our own beside the metrics.
//!
//! | listener | path | answer |
//! |---|---|---|
//! | health | `/healthz` | 200: programmed, not behind, and the node stays; else 503 |
//! | | `/livez` | the same without the node and before the start |
//! | metrics | `/metrics` | Prometheus text |
//! | | `/proxyMode` | the mode's name; in the header `Signpost-Lacks`, what is missing for more and what is done in its place |
//! | | `/programmed` | per kind, the resourceVersion up to which everything is in the kernel; of Nodes, this node's alone is followed |
//! | | `/plan`, `/program` | per family, as JSON |
//! | | `/rules?namespace=N&name=S` | the frontends with their backends, and the whole program, as JSON; what is left out is not asked for |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use signpost_core::object::ObjectName;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::metrics::{Counted, Metrics};
use crate::mode::Mode;
use crate::progress::{Health, Progress};

/// How long an address that is taken is left before the next try.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// After a failed accept (no descriptors left): time for some to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Every pod reaches the health listener: what it can hold of the daemon's descriptors is bounded in number and in time.
const CONNECTIONS: usize = 64;
/// A client has so long for a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// So long is waited for the counters of Services: the other metrics do not need the loop.
const COUNTS: Duration = Duration::from_secs(3);
/// And so long for everything, reading the answer included.
const CONNECTION: Duration = Duration::from_secs(60);

/// What is not there, and what is done in its place.
const LACKS: HeaderName = HeaderName::from_static("signpost-lacks");

/// A question that only the loop can answer.
#[derive(Debug)]
pub enum Question {
    /// The plans, as JSON.
    Plans(oneshot::Sender<Result<String, serde_json::Error>>),
    /// The programs, as JSON.
    Programs(oneshot::Sender<Result<String, serde_json::Error>>),
    /// What the kernel counted.
    Counts(oneshot::Sender<Counted>),
    /// What is served, in rows, as JSON.
    Rules(Wanted, oneshot::Sender<Result<String, serde_json::Error>>),
}

/// Which Services are asked for; nothing set: all.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Wanted {
    /// Those in this namespace.
    pub namespace: Option<String>,
    /// Those of this name.
    pub name: Option<String>,
}

impl Wanted {
    /// Whether a Service is asked for.
    pub fn is(&self, service: &ObjectName) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| **namespace == *service.namespace)
            && self.name.as_ref().is_none_or(|name| **name == *service.name)
    }
}

/// What the handlers know. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shared {
    mode: Mode,
    lacks: Arc<[String]>,
    behind_after: Duration,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    asking: mpsc::Sender<Question>,
}

impl Shared {
    /// The daemon counts as behind when a change waits for two periods of comparison. `lacks`: what is not there, and what is done in its
    /// place.
    pub fn new(
        mode: Mode,
        lacks: Arc<[String]>,
        sync_period: Duration,
        progress: Arc<Progress>,
        metrics: Arc<Metrics>,
        asking: mpsc::Sender<Question>,
    ) -> Shared {
        Shared { mode, lacks, behind_after: sync_period * 2, progress, metrics, asking }
    }
}

/// The listener for load balancers and probes.
pub fn health(shared: Shared) -> Router {
    Router::new().route("/healthz", get(healthz)).route("/livez", get(livez)).with_state(shared)
}

/// The listener for whoever watches the daemon.
pub fn metrics(shared: Shared) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/proxyMode", get(proxy_mode))
        .route("/programmed", get(programmed))
        .route("/plan", get(plan))
        .route("/program", get(program))
        .route("/rules", get(rules))
        .route("/healthz", get(livez))
        .with_state(shared)
}

/// Serves for ever. Without its listeners a node serves its Services all the same, so an address that is taken is tried again and
/// again.
pub async fn listen(address: SocketAddr, router: Router) {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "listening");
                accept(listener, router.clone()).await;
            }
            Err(error) => warn!(%address, %error, "cannot listen; trying again"),
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// Takes connections for ever; those that are over the limit wait in the kernel's queue.
pub(crate) async fn accept(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    // Ends them when the listener is dropped.
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

/// Answers one request: a connection that is kept alive would hold its place.
async fn connection(stream: TcpStream, router: Router) {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a connection ended with an error"),
        Err(_) => debug!("a connection took too long"),
    }
}

async fn healthz(State(shared): State<Shared>) -> Response {
    let health = shared.progress.health();
    let well = health.is_live(Instant::now(), shared.behind_after) && health.is_ready();
    let response = health_response(&health, well);
    shared.metrics.healthz(response.status().as_u16());
    response
}

async fn livez(State(shared): State<Shared>) -> Response {
    let health = shared.progress.health();
    let well = health.is_live(Instant::now(), shared.behind_after);
    let response = health_response(&health, well);
    shared.metrics.livez(response.status().as_u16());
    response
}

fn health_response(health: &Health, well: bool) -> Response {
    let now = Timestamp::now();
    let updated = health.last_updated().and_then(|at| Timestamp::try_from(at as SystemTime).ok());
    let body = json!({
        "lastUpdated": updated.map(|at| at.to_string()),
        "currentTime": now.to_string(),
        "nodeEligible": health.is_node_eligible(),
        "waitingFor": health.waiting(),
    });
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(body)).into_response()
}

async fn metrics_text(State(shared): State<Shared>) -> Response {
    let (reply, answer) = oneshot::channel();
    // A loop that is gone drops the reply; one that waits for the kernel may take longer than whoever asks waits.
    let _ = shared.asking.try_send(Question::Counts(reply));
    let counts = tokio::time::timeout(COUNTS, answer).await.ok().and_then(Result::ok).unwrap_or_default();
    let text = shared.metrics.text(shared.progress.programmed(), &counts);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn proxy_mode(State(shared): State<Shared>) -> Response {
    let mut response = shared.mode.to_string().into_response();
    // The body is what kube-proxy says, and is compared with its words.
    let told = shared.lacks.join("; ").replace(|letter: char| letter.is_control() || !letter.is_ascii(), " ");
    if let Ok(told) = HeaderValue::try_from(told).map_err(|error| debug!(%error, "it cannot be told in a header"))
        && !told.is_empty()
    {
        response.headers_mut().insert(LACKS, told);
    }
    response
}

async fn programmed(State(shared): State<Shared>) -> Response {
    Json(shared.progress.programmed().unwrap_or_default()).into_response()
}

async fn plan(State(shared): State<Shared>) -> Response {
    ask(&shared, Question::Plans).await
}

async fn program(State(shared): State<Shared>) -> Response {
    ask(&shared, Question::Programs).await
}

async fn rules(State(shared): State<Shared>, Query(wanted): Query<Wanted>) -> Response {
    ask(&shared, |reply| Question::Rules(wanted, reply)).await
}

type Reply = oneshot::Sender<Result<String, serde_json::Error>>;

async fn ask(shared: &Shared, question: impl FnOnce(Reply) -> Question) -> Response {
    let (reply, answer) = oneshot::channel();
    // A loop that is gone drops the reply, which the next line sees.
    let _ = shared.asking.send(question(reply)).await;
    match answer.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the daemon ends").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn the_mode_is_kube_proxys_word_and_what_is_missing_stands_beside_it() {
        for (lacks, told) in
            [(vec![], None), (vec!["ebpf cannot\nbe \u{fc}sed", "no more"], Some("ebpf cannot be  sed; no more"))]
        {
            let (asking, _questions) = mpsc::channel(1);
            let lacks = lacks.into_iter().map(str::to_owned).collect();
            let (progress, metrics) = (Arc::new(Progress::new()), Arc::new(Metrics::new()));
            let shared = Shared::new(Mode::Nftables, lacks, Duration::from_secs(1), progress, metrics, asking);
            let response = proxy_mode(State(shared)).await;
            let header = response.headers().get("Signpost-Lacks").map(|told| told.to_str().unwrap().to_owned());
            assert_eq!(header.as_deref(), told);
            let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
            assert_eq!(&body[..], b"nftables");
        }
    }

    #[tokio::test]
    async fn clients_that_say_nothing_are_sent_away_and_others_get_their_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, Router::new().route("/", get(|| async { "here" }))));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            silent.push(stream);
        }
        let ask = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        let started = Instant::now();
        let text = tokio::time::timeout(HEAD * 2, ask).await.expect("the silent ones must make room");
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("here"), "{text}");
        assert!(started.elapsed() > HEAD / 2, "more connections than allowed were served at once");
    }
}
