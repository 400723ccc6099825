//! The server as a whole: how it starts, and the ways to talk to it.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::handlers;
use crate::pod_streams::PodStreams;
use crate::registry;
use crate::snapshots::Snapshots;
use crate::state::{ApiConfig, ServerState};
use crate::store::allocations::Allocations;
use crate::store::{LogError, Store};

/// Why a server can't start.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// The objects can't be loaded.
    #[error("cannot open the API's objects")]
    Store(#[from] LogError),
    /// The configuration makes no sense.
    #[error("service networks must be one, or two of different families, not {cidrs:?}")]
    ServiceCidrs {
        /// Those given.
        cidrs: Vec<IpNet>,
    },
    /// The objects that every cluster has can't be made.
    #[error("cannot create the objects that every cluster has")]
    Bootstrap(#[source] ApiError),
}

/// An embedded Kubernetes API.
pub struct ApiServer {
    state: Arc<ServerState>,
}

impl ApiServer {
    /// Loads or begins the objects, and makes those that every cluster has.
    ///
    /// # Errors
    /// When the directory can't be used, or the configuration makes no sense.
    pub async fn open(config: ApiConfig) -> Result<Arc<ApiServer>, ApiServerError> {
        let cidrs = &config.service_cidrs;
        let usable = match cidrs.as_slice() {
            [_] => true,
            [first, second] => first.addr().is_ipv4() != second.addr().is_ipv4(),
            _ => false,
        };
        if !usable {
            return Err(ApiServerError::ServiceCidrs { cidrs: cidrs.clone() });
        }
        let allocations = Allocations::new(cidrs, config.node_ports.clone());
        let store = Store::open(config.dir.as_deref(), allocations)?;
        let state = Arc::new(ServerState {
            config,
            store,
            snapshots: Snapshots::default(),
            pod_streams: OnceLock::new(),
            closing: CancellationToken::new(),
        });
        crate::bootstrap::run(&state).await.map_err(ApiServerError::Bootstrap)?;
        crate::bootstrap::spawn_keeper(&state);
        crate::reaper::spawn(&state);
        crate::service_cidrs::spawn(&state);
        crate::reaper::spawn_event_expiry(&state);
        Ok(Arc::new(ApiServer { state }))
    }

    /// The API as a service, without authentication: for whoever is in this process.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(handlers::handle).with_state(self.state.clone())
    }

    /// A client in this process.
    pub fn client(self: &Arc<Self>) -> kube::Client {
        let router = self.router();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            tower::ServiceExt::oneshot(router.clone(), request.map(Body::new))
        });
        kube::Client::new(service, "default")
    }

    /// Ends all watches and what runs beside requests. Objects can still be read and written.
    pub fn close(&self) {
        self.state.closing.cancel();
    }

    /// The resourceVersion of the last change of any object of a kind, deletions included. 0: none ever, or no such kind.
    pub fn revision(&self, kind: &str) -> u64 {
        registry::by_kind(kind).map_or(0, |kind| self.state.store.read().kind_revision(kind.slot))
    }

    /// Says who answers exec and logs. Counts once, before the first request for them.
    pub fn set_pod_streams(&self, streams: Arc<dyn PodStreams>) {
        if self.state.pod_streams.set(streams).is_err() {
            tracing::warn!("pod streams were set already");
        }
    }
}
