//! What the daemon answers over HTTP: kube-proxy's two listeners, and three paths of our own beside the metrics.
//!
//! | listener | path | answer |
//! |---|---|---|
//! | health | `/healthz` | 200: programmed, not behind, and the node stays; else 503 |
//! | | `/livez` | the same without the node and before the start |
//! | metrics | `/metrics` | Prometheus text |
//! | | `/proxyMode` | the mode's name |
//! | | `/programmed` | per kind, the resourceVersion up to which everything is in the kernel; of Nodes, this node's alone is followed |
//! | | `/plan`, `/program` | per family, as JSON |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::mode::Mode;
use crate::progress::{Health, Progress};

/// How long an address that is taken is left before the next try.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// A question that only the loop can answer.
#[derive(Debug)]
pub enum Question {
    /// The plans, as JSON.
    Plans(oneshot::Sender<Result<String, serde_json::Error>>),
    /// The programs, as JSON.
    Programs(oneshot::Sender<Result<String, serde_json::Error>>),
}

/// What the handlers know. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shared {
    mode: Mode,
    behind_after: Duration,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    asking: mpsc::Sender<Question>,
}

impl Shared {
    /// The daemon counts as behind when a change waits for two periods of comparison.
    pub fn new(
        mode: Mode,
        sync_period: Duration,
        progress: Arc<Progress>,
        metrics: Arc<Metrics>,
        asking: mpsc::Sender<Question>,
    ) -> Shared {
        Shared { mode, behind_after: sync_period * 2, progress, metrics, asking }
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
                if let Err(error) = axum::serve(listener, router.clone()).await {
                    warn!(%address, %error, "the listener ended");
                }
            }
            Err(error) => warn!(%address, %error, "cannot listen; trying again"),
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
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
    let text = shared.metrics.text(shared.progress.programmed());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn proxy_mode(State(shared): State<Shared>) -> String {
    shared.mode.to_string()
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
