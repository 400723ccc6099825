//! The controllers on the embedded API, with a kubelet of a few lines: what a user would see, and that it comes to rest.

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

#[tokio::test]
async fn a_deployment_and_a_service_become_pods_on_both_nodes_and_a_slice() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 3)).await;
    lab.create::<Service>(service("web")).await;
    eventually("three ready endpoints", || async { lab.ready("web").await.len() == 3 }).await;
    lab.settle().await;

    let pods = lab.list::<Pod>().await;
    let nodes: BTreeSet<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
    assert_eq!(nodes.len(), 2, "the pods are on both nodes");
    let slices = lab.list::<EndpointSlice>().await;
    let slice =
        slices.iter().find(|slice| slice.name_any().starts_with("web-")).expect("a slice named after the Service");
    let zones: BTreeSet<_> = slice.endpoints.iter().flatten().filter_map(|endpoint| endpoint.zone.clone()).collect();
    assert_eq!(zones, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert!(slice.annotations().contains_key("endpoints.kubernetes.io/last-change-trigger-time"));

    let deployment = lab.api::<Deployment>().get("web").await.expect("the Deployment");
    let status = deployment.status.clone().expect("a status");
    assert_eq!((status.replicas, status.updated_replicas, available(&deployment)), (Some(3), Some(3), 3));
    assert_eq!(status.observed_generation, deployment.metadata.generation);
    let reason = |kind: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.filter(|condition| condition.type_ == kind).filter_map(|condition| condition.reason.clone()).next()
    };
    assert_eq!(reason("Available").as_deref(), Some("MinimumReplicasAvailable"));
    assert_eq!(reason("Progressing").as_deref(), Some("NewReplicaSetAvailable"));

    let endpoints = lab.api::<Endpoints>().get("web").await.expect("Endpoints of the Service's name");
    assert_eq!(endpoints.subsets.iter().flatten().flat_map(|subset| subset.addresses.iter().flatten()).count(), 3);
    eventually("events say what was done", || async {
        lab.reasons("Deployment").await.contains("ScalingReplicaSet")
            && lab.reasons("ReplicaSet").await.contains("SuccessfulCreate")
            && lab.reasons("Pod").await.contains("Scheduled")
    })
    .await;
}

#[tokio::test]
async fn a_change_of_readiness_reaches_the_slice_at_once() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    lab.create::<Service>(service("web")).await;
    eventually("two ready endpoints", || async { lab.ready("web").await.len() == 2 }).await;
    let pod = lab.list::<Pod>().await.remove(0).name_any();
    let mut worst = Duration::ZERO;
    for held in [true, false, true, false] {
        let annotation = json!({"metadata": {"annotations": {"test/held": held.to_string()}}});
        let start = Instant::now();
        lab.merge::<Pod>(&pod, annotation).await;
        let count = if held { 1 } else { 2 };
        eventually("the slice follows", || async { lab.ready("web").await.len() == count }).await;
        worst = worst.max(start.elapsed());
    }
    // Two writes, three watches and the polling of this test: far less on a quiet machine.
    assert!(worst < Duration::from_secs(1), "{worst:?}");
}

#[tokio::test]
async fn a_rolling_update_keeps_enough_pods_and_ends_with_new_ones() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 4)).await;
    lab.create::<Service>(service("web")).await;
    eventually("four ready endpoints", || async { lab.ready("web").await.len() == 4 }).await;
    lab.settle().await;
    let before = lab.addresses("app=web").await;

    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "signpost/echo:2"}]}}}});
    lab.merge::<Deployment>("web", image).await;
    let mut least = usize::MAX;
    let start = Instant::now();
    loop {
        let ready = lab.ready("web").await;
        least = least.min(ready.len());
        if ready.len() == 4 && ready.is_disjoint(&before) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the update hangs");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(least >= 3, "25 % of 4 may be away, but only {least} were ready");
    lab.settle().await;
    let sets = lab.list::<ReplicaSet>().await;
    let revisions: BTreeMap<i32, String> = sets
        .iter()
        .map(|set| {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
            (replicas, set.annotations()["deployment.kubernetes.io/revision"].clone())
        })
        .collect();
    assert_eq!(revisions, BTreeMap::from([(0, "1".to_owned()), (4, "2".to_owned())]));
    let deployment = lab.api::<Deployment>().get("web").await.expect("the Deployment");
    assert_eq!(deployment.annotations()["deployment.kubernetes.io/revision"], "2");
}

#[tokio::test]
async fn scaling_follows_the_number_both_ways() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 1)).await;
    lab.create::<Service>(service("web")).await;
    for replicas in [5, 2, 0, 3] {
        lab.merge::<Deployment>("web", json!({"spec": {"replicas": replicas}})).await;
        eventually("as many ready endpoints as replicas", || async {
            lab.ready("web").await.len() == usize::try_from(replicas).expect("small")
                && available(&lab.api::<Deployment>().get("web").await.expect("the Deployment")) == replicas
        })
        .await;
    }
    eventually("the scaling down is told", || async { lab.reasons("ReplicaSet").await.contains("SuccessfulDelete") })
        .await;
}

#[tokio::test]
async fn a_stateful_set_makes_named_pods_in_order_and_updates_from_the_top() {
    let lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Service>(json!({
        "metadata": {"name": "db"},
        "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]},
    }))
    .await;
    lab.create::<StatefulSet>(json!({
        "metadata": {"name": "db"},
        "spec": {"replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template("db")},
    }))
    .await;
    eventually("three ready endpoints", || async { lab.ready("db").await.len() == 3 }).await;
    lab.settle().await;
    let mut pods = lab.list::<Pod>().await;
    pods.sort_by_key(|pod| pod.metadata.resource_version.clone());
    let names: BTreeSet<String> = pods.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"].map(str::to_owned).into());
    let slices = lab.list::<EndpointSlice>().await;
    let slice = slices.iter().find(|slice| slice.name_any().starts_with("db-")).expect("a slice");
    let hosts: BTreeSet<String> = slice.endpoints.iter().flatten().filter_map(|end| end.hostname.clone()).collect();
    assert_eq!(hosts, names);

    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "signpost/echo:2"}]}}}});
    lab.merge::<StatefulSet>("db", image).await;
    eventually("the update ends", || async {
        let set = lab.api::<StatefulSet>().get("db").await.expect("the StatefulSet");
        let status = set.status.clone().unwrap_or_default();
        status.observed_generation == set.metadata.generation
            && status.updated_replicas == Some(3)
            && status.ready_replicas == Some(3)
            && status.current_revision == status.update_revision
    })
    .await;
    lab.merge::<StatefulSet>("db", json!({"spec": {"replicas": 1}})).await;
    eventually("only the first is left", || async {
        lab.list::<Pod>().await.iter().map(ResourceExt::name_any).collect::<Vec<_>>() == ["db-0"]
    })
    .await;
}

#[tokio::test]
async fn what_belongs_to_a_deleted_owner_goes_too() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    lab.create::<Service>(service("web")).await;
    eventually("two ready endpoints", || async { lab.ready("web").await.len() == 2 }).await;
    lab.api::<Service>().delete("web", &DeleteParams::default()).await.expect("deleted");
    lab.api::<Deployment>().delete("web", &DeleteParams::background()).await.expect("deleted");
    eventually("nothing is left", || async {
        let slices = lab.list::<EndpointSlice>().await;
        lab.list::<Pod>().await.is_empty()
            && lab.list::<ReplicaSet>().await.is_empty()
            && lab.api::<Endpoints>().get_opt("web").await.expect("an answer").is_none()
            && !slices.iter().any(|slice| slice.name_any().starts_with("web-"))
    })
    .await;
    lab.settle().await;
}

#[tokio::test]
async fn orphans_stay_and_are_adopted_and_foreground_deletion_waits() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    eventually("two pods", || async { lab.addresses("app=web").await.len() == 2 }).await;
    lab.settle().await;
    let before = lab.addresses("app=web").await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    lab.api::<Deployment>().delete("web", &orphan).await.expect("deleted");
    eventually("the Deployment is gone", || async {
        lab.api::<Deployment>().get_opt("web").await.expect("an answer").is_none()
    })
    .await;
    lab.settle().await;
    assert_eq!(lab.addresses("app=web").await, before);
    assert!(lab.list::<ReplicaSet>().await[0].owner_references().is_empty());

    lab.create::<Deployment>(deployment("web", 2)).await;
    eventually("the old set is adopted", || async {
        lab.list::<ReplicaSet>().await.iter().all(|set| set.owner_references().len() == 1)
    })
    .await;
    lab.settle().await;
    assert_eq!((lab.addresses("app=web").await, lab.list::<ReplicaSet>().await.len()), (before, 1));

    lab.api::<Deployment>().delete("web", &DeleteParams::foreground()).await.expect("deleted");
    eventually("the Deployment goes when its pods are gone", || async {
        let gone = lab.api::<Deployment>().get_opt("web").await.expect("an answer").is_none();
        assert!(!gone || lab.list::<ReplicaSet>().await.is_empty());
        gone && lab.list::<Pod>().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn slices_that_are_not_ours_are_left_alone() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Service>(json!({"metadata": {"name": "bare"}, "spec": {"ports": [{"port": 80}]}})).await;
    lab.create::<Service>(service("web")).await;
    for service in ["bare", "web"] {
        lab.create::<EndpointSlice>(json!({
            "metadata": {"name": format!("{service}-by-hand"), "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["192.0.2.7"]}],
        }))
        .await;
    }
    lab.create::<Pod>(json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "signpost/echo"}]},
    }))
    .await;
    eventually("the pod is in a slice of its own", || async { !lab.ready("web").await.is_empty() }).await;
    lab.settle().await;
    let slices = lab.list::<EndpointSlice>().await;
    for slice in slices.iter().filter(|slice| slice.name_any().ends_with("by-hand")) {
        assert_eq!(slice.metadata.generation, Some(1), "{} was written", slice.name_any());
    }
    assert_eq!(slices.iter().filter(|slice| slice.name_any().starts_with("bare")).count(), 1);
}

#[tokio::test]
async fn slices_follow_nodes_and_labels_and_come_back_when_deleted() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<Deployment>(deployment("web", 2)).await;
    lab.create::<Service>(service("web")).await;
    eventually("two ready endpoints", || async { lab.ready("web").await.len() == 2 }).await;
    lab.settle().await;

    let moved = Patch::Merge(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "c"}}}));
    lab.all::<Node>().patch("n1", &PatchParams::default(), &moved).await.expect("the API takes it");
    lab.settle().await;
    let slices = lab.list::<EndpointSlice>().await;
    let zones = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).filter_map(|end| end.zone.clone());
    assert_eq!(zones.collect::<BTreeSet<_>>(), BTreeSet::from(["c".to_owned()]));

    let slice = slices.iter().find(|slice| slice.name_any().starts_with("web-")).expect("a slice").name_any();
    lab.api::<EndpointSlice>().delete(&slice, &DeleteParams::default()).await.expect("deleted");
    lab.api::<Endpoints>().delete("web", &DeleteParams::default()).await.expect("deleted");
    lab.settle().await;
    assert_eq!(lab.ready("web").await.len(), 2);
    assert!(lab.api::<Endpoints>().get_opt("web").await.expect("an answer").is_some());

    let pod = lab.list::<Pod>().await.remove(0);
    lab.merge::<Pod>(&pod.name_any(), json!({"metadata": {"labels": {"app": "away"}}})).await;
    eventually("its ReplicaSet has replaced it", || async { lab.addresses("app=web").await.len() == 2 }).await;
    lab.settle().await;
    let address = pod.status.and_then(|status| status.pod_ip).expect("an address");
    assert!(!lab.ready("web").await.contains(&address));
    let released = lab.api::<Pod>().get(&pod.metadata.name.expect("a name")).await.expect("it stays");
    assert!(released.owner_references().is_empty());
}

#[tokio::test]
async fn what_time_alone_brings_is_seen_in_time() {
    let lab = Lab::start(&["n1"]).await;
    let mut slow = deployment("slow", 1);
    slow["spec"]["minReadySeconds"] = 2.into();
    lab.create::<Deployment>(slow).await;
    let mut stuck = deployment("stuck", 1);
    stuck["spec"]["progressDeadlineSeconds"] = 2.into();
    stuck["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "such"});
    lab.create::<Deployment>(stuck).await;
    eventually("the pod is ready", || async { !lab.addresses("app=slow").await.is_empty() }).await;
    lab.settle().await;
    assert_eq!(available(&lab.api::<Deployment>().get("slow").await.expect("the Deployment")), 0);
    eventually("it has been ready long enough", || async {
        available(&lab.api::<Deployment>().get("slow").await.expect("the Deployment")) == 1
    })
    .await;
    eventually("the update that hangs is said to", || async {
        let stuck = lab.api::<Deployment>().get("stuck").await.expect("the Deployment");
        let conditions = stuck.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"))
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_no_node_takes_waits_and_says_why_until_one_comes() {
    let lab = Lab::start(&[]).await;
    lab.create::<Deployment>(deployment("web", 1)).await;
    eventually("the pod says why it waits", || async { lab.reasons("Pod").await.contains("FailedScheduling") }).await;
    lab.settle().await;
    let pod = lab.list::<Pod>().await.remove(0);
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    assert_eq!(conditions[0].message.as_deref(), Some("no nodes available to schedule pods"));
    lab.add_node("n1", "a").await;
    eventually("it runs", || async { lab.addresses("app=web").await.len() == 1 }).await;
}

#[tokio::test]
async fn a_template_that_the_api_refuses_is_told_and_does_not_hold_up_the_rest() {
    let lab = Lab::start(&["n1"]).await;
    lab.create::<ReplicaSet>(json!({
        "metadata": {"name": "bad"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "bad"}}, "template": {
            "metadata": {"labels": {"app": "bad"}, "finalizers": ["no good name!"]},
            "spec": {"containers": [{"name": "main", "image": "signpost/echo"}]},
        }},
    }))
    .await;
    eventually("the failure is told", || async { lab.reasons("ReplicaSet").await.contains("FailedCreate") }).await;
    lab.settle().await;
    let set = lab.api::<ReplicaSet>().get("bad").await.expect("the ReplicaSet");
    let conditions = set.status.and_then(|status| status.conditions).unwrap_or_default();
    assert_eq!(conditions.first().and_then(|condition| condition.reason.as_deref()), Some("FailedCreate"));
}

/// Deployments and Services; while they start, pods come, go and change their readiness. Then: every Service has exactly
/// its Deployment's ready pods.
async fn storm(lab: &Lab, services: usize) {
    for number in 0..services {
        lab.create::<Service>(service(&format!("s{number}"))).await;
        lab.create::<Deployment>(deployment(&format!("s{number}"), 3)).await;
    }
    let rounds = (0..services).map(|number| async move {
        let name = format!("s{number}");
        for round in 0..6 {
            lab.merge::<Deployment>(&name, json!({"spec": {"replicas": 1 + (number + round) % 5}})).await;
            let selector = ListParams::default().labels(&format!("app={name}"));
            for pod in lab.api::<Pod>().list(&selector).await.expect("a list") {
                let held = (round + number) % 3 == 0;
                let patch = json!({"metadata": {"annotations": {"test/held": held.to_string()}}});
                let merge = Patch::Merge(patch);
                let _gone_meanwhile = lab.api::<Pod>().patch(&pod.name_any(), &PatchParams::default(), &merge).await;
            }
        }
    });
    futures::future::join_all(rounds).await;
    eventually("every Service has its Deployment's ready pods", || async {
        let pods = lab.list::<Pod>().await;
        for number in 0..services {
            let name = format!("s{number}");
            let of_service = pods.iter().filter(|pod| pod.labels().get("app") == Some(&name));
            let ready: BTreeSet<String> = of_service
                .clone()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none() && signpost_controller::pods::is_ready(pod))
                .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone())
                .collect();
            if of_service.count() != 1 + (number + 5) % 5 || lab.ready(&name).await != ready {
                return false;
            }
        }
        true
    })
    .await;
}

#[tokio::test]
async fn under_load_no_change_is_lost_and_it_comes_to_rest() {
    let lab = Lab::start(&["n1", "n2", "n3"]).await;
    storm(&lab, 12).await;
    lab.settle().await;
    let quiet = lab.revisions();
    let noise = eventually("a write", || async { lab.revisions() != quiet });
    tokio::time::timeout(Duration::from_millis(300), noise).await.expect_err("something writes without a reason");
}

/// The API, but one request in eight fails before it does anything, one write in eight is done and said to have failed,
/// and watches end after a few words, in the middle of one or properly.
fn unreliable(server: &Arc<ApiServer>) -> kube::Client {
    let router = server.router();
    let count = Arc::new(AtomicU64::new(1));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (router, chance) = (router.clone(), chance(count.fetch_add(1, Ordering::Relaxed)));
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let is_read = request.method() == http::Method::GET;
            let failure = || (http::StatusCode::INTERNAL_SERVER_ERROR, "spoiled").into_response();
            if chance % 8 == 0 {
                return Ok::<_, Infallible>(failure());
            }
            let response = router.oneshot(request.map(Body::new)).await?;
            if is_watch {
                let (head, body) = response.into_parts();
                let said = body.into_data_stream().take(usize::try_from(chance / 8 % 12).expect("small"));
                let cut = futures::stream::iter((chance % 3 == 0).then(|| Err(axum::Error::new("cut"))));
                return Ok(axum::response::Response::from_parts(head, Body::from_stream(said.chain(cut))));
            }
            Ok(if !is_read && chance % 8 == 1 { failure() } else { response })
        }
    });
    kube::Client::new(service, "default")
}

/// A number that looks random (splitmix64), the same in each run.
fn chance(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[tokio::test]
async fn an_api_that_fails_and_watches_that_break_lose_nothing() {
    let mut lab = Lab::start(&["n1", "n2"]).await;
    lab.start_controllers_on(unreliable(&lab.server));
    storm(&lab, 4).await;
}

#[tokio::test]
async fn a_restart_finds_everything_as_it_should_be_and_writes_nothing() {
    let mut lab = Lab::start(&["n1", "n2"]).await;
    lab.create::<Deployment>(deployment("web", 3)).await;
    lab.create::<Service>(service("web")).await;
    lab.create::<StatefulSet>(json!({
        "metadata": {"name": "db"},
        "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template("db")},
    }))
    .await;
    eventually("all pods run", || async {
        lab.ready("web").await.len() == 3 && lab.addresses("app=db").await.len() == 2
    })
    .await;
    lab.settle().await;
    let before = lab.revisions();
    lab.controllers = None;
    lab.start_controllers();
    lab.settle().await;
    assert_eq!(lab.revisions(), before);
}
