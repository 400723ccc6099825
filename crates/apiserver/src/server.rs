//! The server as a whole: its configuration, its objects, and the ways to talk to it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use axum::Router;
use axum::body::Body;
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::handlers::{self, Snapshots};
use crate::pod_streams::PodStreams;
use crate::registry;
use crate::store::allocations::Allocations;
use crate::store::{LogError, Store};

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Where objects are kept; `None`: in memory only.
    pub dir: Option<PathBuf>,
    /// Where cluster addresses come from: one range, or two of different families. The first is the primary family.
    pub service_cidrs: Vec<IpNet>,
    /// Where node ports come from.
    pub node_ports: RangeInclusive<u16>,
    /// The endpoints of the Service `kubernetes` in `default`; loopback addresses are left out. None: it gets no endpoints.
    pub advertise: Vec<SocketAddr>,
}

impl Default for ApiConfig {
    fn default() -> ApiConfig {
        ApiConfig {
            dir: None,
            service_cidrs: vec!["10.96.0.0/12".parse().expect("a network")],
            node_ports: 30000..=32767,
            advertise: Vec::new(),
        }
    }
}

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
    pub(crate) config: ApiConfig,
    pub(crate) store: Store,
    pub(crate) snapshots: Mutex<Snapshots>,
    pub(crate) pod_streams: OnceLock<Arc<dyn PodStreams>>,
    /// Cancelled when the server goes away: ends watches.
    pub(crate) closing: CancellationToken,
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
        let server = Arc::new(ApiServer {
            config,
            store,
            snapshots: Mutex::default(),
            pod_streams: OnceLock::new(),
            closing: CancellationToken::new(),
        });
        crate::bootstrap::run(&server).await.map_err(ApiServerError::Bootstrap)?;
        crate::reaper::spawn(&server);
        Ok(server)
    }

    /// The API as a service, without authentication: for whoever is in this process.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(handlers::handle).with_state(self.clone())
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
        self.closing.cancel();
    }

    /// The resourceVersion of the last change of any object of a kind, deletions included. 0: none ever, or no such kind.
    pub fn revision(&self, kind: &str) -> u64 {
        registry::by_kind(kind).map_or(0, |kind| self.store.read().kind_revision(kind.slot))
    }

    /// Says who answers exec and logs. Counts once, before the first request for them.
    pub fn set_pod_streams(&self, streams: Arc<dyn PodStreams>) {
        if self.pod_streams.set(streams).is_err() {
            tracing::warn!("pod streams were set already");
        }
    }
}
