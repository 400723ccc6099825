//! The controllers on the embedded API, with a kubelet of a few lines: what a user would see, and that it comes to rest.

mod rest;
mod slices;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::IntoResponse;
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer};
use signpost_controller::{ControllerOptions, Controllers, run};
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);
const KINDS: [&str; 9] = [
    "Pod",
    "Service",
    "EndpointSlice",
    "Endpoints",
    "Node",
    "ReplicaSet",
    "Deployment",
    "StatefulSet",
    "ControllerRevision",
];

struct Lab {
    server: Arc<ApiServer>,
    client: kube::Client,
    controllers: Option<Controllers>,
    kubelet: JoinHandle<()>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.kubelet.abort();
        self.server.close();
    }
}

impl Lab {
    async fn start(nodes: &[&str]) -> Lab {
        let server = ApiServer::open(ApiConfig::default()).await.expect("an API in memory");
        let client = server.client();
        let kubelet = tokio::spawn(kubelet(client.clone()));
        let mut lab = Lab { server, client, controllers: None, kubelet };
        for (number, node) in nodes.iter().enumerate() {
            lab.add_node(node, ["a", "b"][number % 2]).await;
        }
        lab.start_controllers();
        lab
    }

    fn start_controllers(&mut self) {
        self.start_controllers_on(self.client.clone());
    }

    fn start_controllers_on(&mut self, client: kube::Client) {
        self.controllers = Some(run(client, ControllerOptions::default(), std::future::pending()));
    }

    async fn add_node(&self, name: &str, zone: &str) {
        let node = json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}});
        self.all::<Node>().create(&PostParams::default(), &object(node)).await.expect("a node");
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let api = self.all::<Node>();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.expect("a ready node");
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn api<K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create<K>(&self, value: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Serialize
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.api::<K>().create(&PostParams::default(), &object(value)).await.expect("the API takes it")
    }

    async fn merge<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("the API takes it")
    }

    async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.api::<K>().list(&ListParams::default()).await.expect("a list").items
    }

    fn revisions(&self) -> BTreeMap<String, u64> {
        KINDS.iter().map(|kind| ((*kind).to_owned(), self.server.revision(kind))).collect()
    }

    /// Until the controllers have done all that follows from what was written, and nothing was written meanwhile.
    async fn settle(&self) {
        let start = Instant::now();
        loop {
            let before = self.revisions();
            let progress = self.controllers.as_ref().expect("they run").progress();
            progress.wait(&before, PATIENCE).await.expect("the controllers come to rest");
            if self.revisions() == before {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the controllers never stop writing");
        }
    }

    /// The ready addresses of a Service, from its slices.
    async fn ready(&self, service: &str) -> BTreeSet<String> {
        let slices = self.list::<EndpointSlice>().await;
        slices
            .iter()
            .filter(|slice| slice.labels().get("kubernetes.io/service-name").is_some_and(|name| name == service))
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true))
            .flat_map(|endpoint| endpoint.addresses.clone())
            .collect()
    }

    async fn addresses(&self, selector: &str) -> BTreeSet<String> {
        let pods = self.api::<Pod>().list(&ListParams::default().labels(selector)).await.expect("a list");
        pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect()
    }

    async fn reasons(&self, kind: &str) -> BTreeSet<String> {
        let events = self.list::<Event>().await;
        let of_kind = events.into_iter().filter(|event| event.involved_object.kind.as_deref() == Some(kind));
        of_kind.filter_map(|event| event.reason).collect()
    }
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the test's object is well formed")
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs pods: gives them an address, makes them ready unless they are held, ends them when asked.
async fn kubelet(client: kube::Client) {
    let all: Api<Pod> = Api::all(client.clone());
    let events = watcher(all, watcher::Config::default());
    pin_mut!(events);
    let mut addresses: BTreeMap<String, String> = BTreeMap::new();
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else { continue };
        if pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_none() {
            continue;
        }
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            let _gone_already = api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
            continue;
        }
        let number = addresses.len() + 2;
        let address = addresses
            .entry(pod.uid().unwrap_or_default())
            .or_insert_with(|| format!("10.244.{}.{}", number / 250, number % 250))
            .clone();
        let held = pod.annotations().get("test/held").is_some_and(|held| held == "true");
        let status = if held { "False" } else { "True" };
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == status) {
            continue;
        }
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({"status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": now}],
        }});
        let _gone_meanwhile = api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    }
}

fn deployment(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name)},
    })
}

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "main", "image": "signpost/echo"}]}})
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}})
}

fn available(deployment: &Deployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}
