//! What is common to light and sandboxed pods: network, status, the last goodbye.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::events::{Kind, tell};
use super::status::{ContainerView, Facts, pod_status};
use super::threshold::Patience;
use super::{Context, Entry, RETRY, light, mirror, sandboxed};
use crate::netns::Netns;

/// A pod's worker: runs it until it is gone.
pub(super) async fn run(context: Arc<Context>, entry: Arc<Entry>, pods: watch::Receiver<Option<Arc<Pod>>>) {
    let Some(pod) = pods.borrow().clone() else { return };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let over = matches!(phase, Some("Succeeded" | "Failed"));
    let mut worker = Worker { context, entry, pods, start: Timestamp::now(), written: None, addresses: Vec::new() };
    if over || pod.metadata.deletion_timestamp.is_some() {
        // A pod of a lab's former life: nothing of it runs.
        worker.wait_for_deletion().await;
        worker.goodbye().await;
    } else if mirror::is_mirror(&pod) {
        mirror::run(worker, pod).await;
    } else if light::is_light(&pod) {
        light::run(worker, pod).await;
    } else {
        sandboxed::run(worker, pod).await;
    }
}

/// A pod's worker.
pub(super) struct Worker {
    pub context: Arc<Context>,
    pub entry: Arc<Entry>,
    pub pods: watch::Receiver<Option<Arc<Pod>>>,
    pub start: Timestamp,
    written: Option<PodStatus>,
    addresses: Vec<IpAddr>,
}

/// A pod's place in the network.
pub(super) struct Attachment {
    pub netns: Netns,
    pub addresses: Vec<IpAddr>,
    host: Option<u8>,
}

impl Worker {
    /// The pod as it was told last; `None`: it is gone.
    pub fn pod(&mut self) -> Option<Arc<Pod>> {
        self.pods.borrow_and_update().clone()
    }

    /// The same, with the number to give to `Entry::done` when it is in effect.
    pub fn told(&mut self) -> (u64, Option<Arc<Pod>>) {
        self.entry.told(&mut self.pods)
    }

    /// Gives the pod its network, trying again until it has it or the pod is gone or to be deleted.
    pub async fn attach(&mut self) -> Option<Attachment> {
        let mut patience = Patience::default();
        loop {
            let pod = self.pod().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
            match self.try_attach(&pod).await {
                Ok(attachment) => {
                    self.addresses.clone_from(&attachment.addresses);
                    // The entry is new: nothing else has set it.
                    let _ = self.entry.netns.set(attachment.netns.clone());
                    return Some(attachment);
                }
                Err(error) => {
                    tracing::warn!(pod = self.entry.name, %error, "pod has no network");
                    let message = format!("Failed to create pod sandbox: {error}");
                    tell(&self.context.client, &pod, Kind::Warning, "FailedCreatePodSandBox", message);
                    self.rest(patience.next()).await;
                }
            }
        }
    }

    /// Waits so long, or until the pod is to be deleted or gone; other changes of it are no reason to hurry.
    pub async fn rest(&mut self, wait: Duration) {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let (told, pod) = self.told();
            let living = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none());
            self.entry.done(told);
            if !living || tokio::time::timeout_at(until, self.pods.changed()).await.is_err() {
                return;
            }
        }
    }

    async fn try_attach(&self, pod: &Pod) -> io::Result<Attachment> {
        let n = self.entry.node;
        let network = &self.context.network;
        if pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true) {
            let netns = network.nodes[usize::from(n) - 1].clone();
            return Ok(Attachment { netns, addresses: network.topology.node(n), host: None });
        }
        let host = self.context.hosts()[usize::from(n) - 1].take();
        let host = host.ok_or_else(|| io::Error::other("all pod addresses of the node are in use"))?;
        let connected = async {
            let netns = Netns::new(false)?;
            network.connect_pod(n, host, &netns).await?;
            Ok(netns)
        };
        match connected.await {
            Ok(netns) => Ok(Attachment { netns, addresses: network.topology.pod(n, host), host: Some(host) }),
            Err(error) => {
                self.context.hosts()[usize::from(n) - 1].release(host);
                Err(error)
            }
        }
    }

    /// Takes the pod's network away.
    pub async fn detach(&self, attachment: Attachment) {
        let Some(host) = attachment.host else { return };
        let n = self.entry.node;
        drop(attachment);
        match self.context.network.disconnect_pod(n, host).await {
            Ok(()) => self.context.hosts()[usize::from(n) - 1].release(host),
            Err(error) => tracing::warn!(node = n, host, %error, "pod's link stays; its address is not used again"),
        }
    }

    /// Shows the containers' states in the pod's status, if that changes it.
    pub async fn show(&mut self, pod: &Pod, init: &[ContainerView], containers: &[ContainerView]) {
        let host_addresses = self.context.network.topology.node(self.entry.node);
        let facts = Facts {
            pod,
            addresses: &self.addresses,
            host_addresses: &host_addresses,
            start: self.start,
            init,
            containers,
            now: Timestamp::now(),
        };
        let status = pod_status(&facts);
        if self.written.as_ref().is_some_and(|written| same(written, &status)) {
            return;
        }
        if self.write(&status).await {
            self.written = Some(status);
        }
    }

    async fn write(&self, status: &PodStatus) -> bool {
        let mut body = serde_json::to_value(status).unwrap_or_default();
        if let Value::Object(fields) = &mut body {
            for field in ["reason", "message"] {
                fields.entry(field).or_insert(Value::Null); // a merge patch keeps what it does not name
            }
        }
        let patch = json!({"metadata": {"uid": self.entry.uid}, "status": body});
        for _ in 0..20 {
            let api = self.api();
            let result = api.patch_status(&self.entry.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            match result {
                Ok(_) => return true,
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {
                    // Gone, or another pod has its name by now.
                    tracing::debug!(pod = self.entry.name, reason = status.reason, "status is not wanted any more");
                    return true;
                }
                Err(error) => {
                    tracing::warn!(pod = self.entry.name, %error, "status not written");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        false
    }

    /// Waits until the pod is to be deleted or gone.
    pub async fn wait_for_deletion(&mut self) {
        loop {
            let (told, pod) = self.told();
            match pod {
                Some(pod) if pod.metadata.deletion_timestamp.is_none() => self.entry.done(told),
                _ => return,
            }
            if self.pods.changed().await.is_err() {
                return;
            }
        }
    }

    /// Nothing of the pod runs any more: its object can go.
    pub async fn goodbye(&mut self) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.entry.uid.clone()), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        while let (told, Some(_)) = self.told() {
            match self.api().delete(&self.entry.name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
                Err(error) => tracing::warn!(pod = self.entry.name, %error, "pod not deleted"),
            }
            self.entry.done(told); // a finalizer may hold the object for as long as it likes
            if self.pod().is_some() {
                // Told of its end, or to try again. The sender lives in the entry that we hold.
                let _ = tokio::time::timeout(Duration::from_secs(5), self.pods.changed()).await;
            }
        }
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), &self.entry.namespace)
    }
}

/// Whether two statuses differ in nothing but times of conditions that hold the same.
fn same(a: &PodStatus, b: &PodStatus) -> bool {
    let timeless = |status: &PodStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_transition_time = None;
        }
        status
    };
    timeless(a) == timeless(b)
}
