//! Keeps a zone equal to what the API says.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use signpost_cluster::client::{ClientError, Connection};
use signpost_cluster::{Reach, Watches};
use tokio::task::JoinHandle;
use tracing::{debug, info};

use crate::config::Kubernetes;
use crate::convert;
use crate::metrics::Metrics;
use crate::object::{Change, Kind};
use crate::zone::{Settings, Zone};

/// Changes that are taken in at once: readers wait no longer than for these.
const BATCH: usize = 128;

/// A zone that is answered from while it changes. Ends to be kept equal when it is dropped.
pub struct SharedZone {
    zone: RwLock<Zone>,
    reach: Option<Reach>,
    following: OnceLock<JoinHandle<()>>,
}

impl SharedZone {
    /// A zone that nothing changes.
    pub fn fixed(zone: Zone) -> SharedZone {
        SharedZone { zone: RwLock::new(zone), reach: None, following: OnceLock::new() }
    }

    /// Begins to follow the API. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// There is no way to the API. That it does not answer is no error.
    pub async fn follow(kubernetes: &Kubernetes, metrics: Arc<Metrics>) -> Result<Arc<SharedZone>, ClientError> {
        let endpoint = kubernetes.endpoint.as_deref();
        let Connection { client, server } =
            signpost_cluster::client::connect(kubernetes.kubeconfig.as_deref(), endpoint).await?;
        Ok(SharedZone::of(client, &server, kubernetes.settings.clone(), metrics))
    }

    /// Follows the API that this client reaches, at `server`.
    pub(crate) fn of(client: kube::Client, server: &str, settings: Settings, metrics: Arc<Metrics>) -> Arc<SharedZone> {
        let mut watches = Watches::new(client, server);
        for kind in Zone::kinds(&settings) {
            match kind {
                Kind::Service => watches.add::<Service>(kind.name(), convert::services),
                Kind::EndpointSlice => watches.add::<EndpointSlice>(kind.name(), convert::slices),
                Kind::Namespace => watches.add::<Namespace>(kind.name(), convert::namespaces),
                Kind::Pod => watches.add::<Pod>(kind.name(), convert::pods),
            }
        }
        let (reach, following) = (Some(watches.reach()), OnceLock::new());
        let shared = Arc::new(SharedZone { zone: RwLock::new(Zone::new(settings)), reach, following });
        // Only now: a task that began before the zone is there would find it gone, and end.
        let task = tokio::spawn(follow(Arc::downgrade(&shared), watches.into_stream(), metrics));
        shared.following.get_or_init(|| task);
        shared
    }

    /// To answer from.
    pub fn read(&self) -> RwLockReadGuard<'_, Zone> {
        // A change is applied whole or panics before it is visible by name; readers go on with what there is.
        self.zone.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Zone> {
        self.zone.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong with the API, if anything is.
    pub fn trouble(&self) -> Option<String> {
        self.reach.as_ref().and_then(Reach::trouble)
    }

    /// Waits until the API's lists are whole, for at most so long. Whether they are.
    pub async fn synced_within(&self, timeout: Duration) -> bool {
        let synced = async {
            while !self.read().waits_for().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(timeout, synced).await.is_ok()
    }
}

impl Drop for SharedZone {
    fn drop(&mut self) {
        if let Some(following) = self.following.get() {
            following.abort();
        }
    }
}

async fn follow(
    shared: std::sync::Weak<SharedZone>,
    mut changes: impl Stream<Item = Change> + Unpin,
    metrics: Arc<Metrics>,
) {
    while let Some(first) = changes.next().await {
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Some(Some(next)) = changes.next().now_or_never()
        {
            batch.push(next);
        }
        let Some(shared) = shared.upgrade() else { return };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        take_in(&shared, batch, since_1970, &metrics);
    }
}

fn take_in(shared: &SharedZone, batch: Vec<Change>, since_1970: Duration, metrics: &Metrics) {
    let now_s = u32::try_from(since_1970.as_secs()).unwrap_or(u32::MAX);
    let mut zone = shared.write();
    let waited = !zone.waits_for().is_empty();
    for change in batch {
        let triggered_ms = match &change {
            Change::Slice(slice) if !waited => slice.triggered_ms,
            _ => None,
        };
        debug!(?change, "a change");
        if let (Some(at_ms), Change::Slice(slice)) = (triggered_ms, &change) {
            let after_ms = since_1970.as_millis().saturating_sub(u128::from(at_ms.max(0).unsigned_abs()));
            let headless = zone.is_headless(&slice.service, &slice.name.namespace);
            metrics.programmed(headless, Duration::from_millis(u64::try_from(after_ms).unwrap_or(u64::MAX)));
        }
        zone.apply(change, now_s);
    }
    if waited && zone.waits_for().is_empty() {
        info!(services = zone.services(), "all of the cluster's names are known");
    }
}

#[cfg(test)]
pub(crate) mod tests;
