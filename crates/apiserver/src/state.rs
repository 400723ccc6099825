//! What handlers and background tasks share: the configuration, the objects, whoever runs pods.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use crate::pod_streams::PodStreams;
use crate::snapshots::Snapshots;
use crate::store::Store;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Where objects are kept; `None`: in memory only.
    pub dir: Option<PathBuf>,
    /// Where cluster addresses come from: one range, or two of different families. The first is the primary family.
    pub service_cidrs: Vec<IpNet>,
    /// Where node ports come from.
    pub node_ports: RangeInclusive<u16>,
    /// The endpoints of the Service `kubernetes` in `default`; loopback addresses are left out. None: it gets no
    /// endpoints.
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

/// Everything behind the handlers.
pub(crate) struct ServerState {
    pub config: ApiConfig,
    pub store: Store,
    pub snapshots: Snapshots,
    pub pod_streams: OnceLock<Arc<dyn PodStreams>>,
    /// Cancelled when the server goes away: ends watches.
    pub closing: CancellationToken,
}
