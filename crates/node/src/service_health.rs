//! Answers `healthCheckNodePort`: a load balancer asks each node whether it has endpoints of a Service whose
//! `externalTrafficPolicy` is Local (kube-proxy's `pkg/proxy/healthcheck`).
//!
//! ```text
//! Progress::checks ─▶ one listener per node-port address and Service ─▶ 200 or 503, JSON, weight
//! ```
//!
//! Any path and method is answered. A listener that cannot be, since another program has the port, is told in an Event
//! on the Service, a metric and the log, and tried again; all others work.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use signpost_cluster::ObjectReference;
use signpost_cluster::events::{Notice, Reporter};
use signpost_core::object::ObjectName;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::progress::Checks;
use crate::progress::Progress;
use crate::server;

/// How long a port that is taken is left before the next try.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// As kube-proxy's events say it.
const FAILED: &str = "FailedToStartServiceHealthcheck";

/// What the listeners need.
#[derive(Debug, Clone)]
pub struct ServiceHealth {
    node: Arc<str>,
    behind_after: Duration,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    reporter: Option<Reporter>,
}

/// One listener's.
#[derive(Debug, Clone)]
struct Asked {
    health: ServiceHealth,
    checks: watch::Receiver<Checks>,
    at: (SocketAddr, ObjectName),
}

impl ServiceHealth {
    /// The proxy counts as ill when a change waits for two periods of comparison, as at `/livez`. `reporter`: who writes
    /// Events.
    pub fn new(
        node: Arc<str>,
        sync_period: Duration,
        progress: Arc<Progress>,
        metrics: Arc<Metrics>,
        reporter: Option<Reporter>,
    ) -> ServiceHealth {
        ServiceHealth { node, behind_after: sync_period * 2, progress, metrics, reporter }
    }

    /// Listens where it is to, for ever.
    pub async fn serve(self) {
        let mut checks = self.progress.checks();
        // Ends them when this is dropped.
        let mut serving = JoinSet::new();
        let mut listeners: BTreeMap<(SocketAddr, ObjectName), AbortHandle> = BTreeMap::new();
        loop {
            while serving.try_join_next().is_some() {}
            let wanted = checks.borrow_and_update().clone();
            listeners.retain(|at, listener| {
                let stays = wanted.contains_key(at);
                if !stays {
                    listener.abort();
                }
                stays
            });
            let mut failed = 0;
            for at in wanted.into_keys() {
                if listeners.contains_key(&at) {
                    continue;
                }
                match TcpListener::bind(at.0).await {
                    Ok(listener) => {
                        info!(address = %at.0, service = %at.1, "health checks of a Service are answered");
                        let asked = Asked { health: self.clone(), checks: checks.clone(), at: at.clone() };
                        let router = Router::new().fallback(answer).with_state(asked);
                        listeners.insert(at, serving.spawn(server::accept(listener, router)));
                    }
                    Err(error) => {
                        failed += 1;
                        self.tell(&at, &error);
                    }
                }
            }
            self.metrics.service_health(listeners.len(), failed);
            tokio::select! {
                changed = checks.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LISTEN_AGAIN), if failed > 0 => {}
            }
        }
    }

    fn tell(&self, (address, service): &(SocketAddr, ObjectName), error: &std::io::Error) {
        warn!(%address, %service, %error, "health checks of a Service cannot be answered; trying again");
        self.metrics.service_health_failed();
        let message = format!(
            "node {} failed to start healthcheck \"{service}\" on port {}: {address}: {error}",
            self.node,
            address.port()
        );
        let object = ObjectReference {
            api_version: "v1",
            kind: "Service",
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            uid: "".into(),
        };
        if let Some(reporter) = &self.reporter {
            reporter.report(Notice { object, reason: FAILED, message });
        }
    }
}

async fn answer(State(asked): State<Asked>) -> Response {
    let ready = asked.checks.borrow().get(&asked.at).copied().unwrap_or(0);
    let well = asked.health.progress.health().is_live(Instant::now(), asked.health.behind_after);
    let weight = HeaderName::from_static("x-load-balancing-endpoint-weight");
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (weight, ready.to_string()),
    ];
    let status = if ready > 0 && well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, headers, format!("{:#}", body(&asked.at.1, ready, well))).into_response()
}

fn body(service: &ObjectName, ready: usize, well: bool) -> Value {
    json!({
        "service": {"namespace": &*service.namespace, "name": &*service.name},
        "localEndpoints": ready,
        "serviceProxyHealthy": well,
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(at: SocketAddr) -> Option<String> {
        let mut stream = TcpStream::connect(at).await.ok()?;
        stream.write_all(b"GET /any HTTP/1.1\r\nHost: a\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        Some(text)
    }

    /// Asks until an answer begins so.
    async fn answers(at: SocketAddr, begin: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let text = ask(at).await.unwrap_or_default();
            if text.starts_with(begin) {
                return text;
            }
            assert!(Instant::now() < deadline, "{text:?} instead of {begin}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn free_port() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn each_service_is_answered_by_its_ready_endpoints_and_the_health_of_the_proxy() {
        let (progress, metrics) = (Arc::new(Progress::new()), Arc::new(Metrics::new()));
        let health = ServiceHealth::new("n1".into(), Duration::from_secs(30), progress.clone(), metrics.clone(), None);
        let mut serving = JoinSet::new();
        serving.spawn(health.serve());
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, taken) = (free_port(), held.local_addr().unwrap());
        let (web, other) = (ObjectName::new("default", "web"), ObjectName::new("default", "other"));
        let checks = |ready: usize| Checks::from([((at, web.clone()), ready), ((taken, other.clone()), 1)]);
        progress.publish_checks(checks(2));
        let text = answers(at, "HTTP/1.1 200").await;
        for line in
            ["content-type: application/json", "x-content-type-options: nosniff", "x-load-balancing-endpoint-weight: 2"]
        {
            assert!(text.lines().any(|written| written == line), "{text}");
        }
        let json: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(json, body(&web, 2, true));
        progress.publish_checks(checks(0));
        let text = answers(at, "HTTP/1.1 503").await;
        assert!(text.contains("x-load-balancing-endpoint-weight: 0"), "{text}");
        progress.publish_checks(checks(1));
        progress.health().pending(Instant::now() - Duration::from_secs(61));
        assert!(answers(at, "HTTP/1.1 503").await.contains("\"serviceProxyHealthy\": false"));
        // The port that another program had is tried again.
        let failures = metrics.text(None, &Default::default());
        assert!(failures.contains("signpost_service_health_listeners{state=\"failed\"} 1\n"), "{failures}");
        progress.health().updated();
        drop(held);
        answers(taken, "HTTP/1.1 200").await;
        // What is gone is not listened for.
        progress.publish_checks(Checks::new());
        let deadline = Instant::now() + Duration::from_secs(10);
        while ask(at).await.is_some() {
            assert!(Instant::now() < deadline, "it still listens");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
