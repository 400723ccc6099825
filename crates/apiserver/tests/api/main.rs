//! The API as its clients meet it: in process through kube's client, over HTTPS through the real kubectl.

mod cluster;
mod durability;
mod hostile;
mod kubectl_objects;
mod kubectl_streams;
mod kubectl_watching;
mod service_kinds;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer, TlsIdentity, Token, kubeconfig};
use tokio_util::sync::CancellationToken;

async fn server() -> Arc<ApiServer> {
    ApiServer::open(ApiConfig::default()).await.expect("a server in memory opens")
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the test's object is well formed")
}

fn config_map(name: &str) -> ConfigMap {
    object(json!({"metadata": {"name": name, "labels": {"app": name}}, "data": {"k": "v"}}))
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("within ten seconds")
}

#[tokio::test]
async fn an_object_is_created_read_changed_and_deleted() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    let created = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    let error = api.create(&PostParams::default(), &config_map("a")).await.unwrap_err();
    assert!(error.to_string().contains("configmaps \"a\" already exists"), "{error}");

    let merge = Patch::Merge(json!({"data": {"k": null, "l": "w"}}));
    let patched = api.patch("a", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(patched.data.clone().unwrap().into_iter().collect::<Vec<_>>(), [("l".to_owned(), "w".to_owned())]);
    let mut stale = created.clone();
    stale.data = None;
    let error = api.replace("a", &PostParams::default(), &stale).await.unwrap_err();
    assert!(error.to_string().contains("the object has been modified"), "{error}");
    let unchanged = api.replace("a", &PostParams::default(), &patched).await.unwrap();
    assert_eq!(unchanged.metadata.resource_version, patched.metadata.resource_version);

    api.delete("a", &DeleteParams::default()).await.unwrap();
    let error = api.get("a").await.unwrap_err();
    assert!(error.to_string().contains("configmaps \"a\" not found"), "{error}");
    assert_eq!(server.revision("ConfigMap"), 3 + revision(&created) - 1);
}

fn revision(object: &ConfigMap) -> u64 {
    let revision = object.metadata.resource_version.as_deref().expect("the server sets it");
    revision.parse().expect("revisions are numbers")
}

#[tokio::test]
async fn a_watcher_sees_what_is_there_and_what_comes_in_both_ways_of_listing() {
    let server = server().await;
    let api: Api<Service> = Api::all(server.client());
    let service = |name: &str| -> Service {
        object(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": [{"port": 80}]}}))
    };
    let default: Api<Service> = Api::default_namespaced(server.client());
    let before: BTreeSet<String> = names(&api.list(&ListParams::default()).await.unwrap().items);
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        default.create(&PostParams::default(), &service("old")).await.unwrap();
        let mut events = watcher(api.clone(), config).boxed();
        let mut initial = BTreeSet::new();
        loop {
            match within(events.try_next()).await.unwrap().unwrap() {
                watcher::Event::InitApply(found) => {
                    initial.extend(found.metadata.name);
                }
                watcher::Event::InitDone => break,
                watcher::Event::Init => {}
                other => panic!("{other:?} before the end of the list"),
            }
        }
        let mut expected = before.clone();
        expected.insert("old".to_owned());
        assert_eq!(initial, expected);
        default.create(&PostParams::default(), &service("new")).await.unwrap();
        let event = within(events.try_next()).await.unwrap();
        assert!(matches!(&event, Some(watcher::Event::Apply(found)) if found.metadata.name.as_deref() == Some("new")));
        for name in ["old", "new"] {
            default.delete(name, &DeleteParams::default()).await.unwrap();
            let event = within(events.try_next()).await.unwrap();
            assert!(
                matches!(&event, Some(watcher::Event::Delete(found)) if found.metadata.name.as_deref() == Some(name))
            );
        }
    }
}

fn names(services: &[Service]) -> BTreeSet<String> {
    services.iter().filter_map(|service| service.metadata.name.clone()).collect()
}

#[tokio::test]
async fn an_object_that_leaves_a_choice_is_deleted_for_its_watchers() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    let mut events = watcher(api.clone(), watcher::Config::default().labels("app=a")).boxed();
    while !matches!(within(events.try_next()).await.unwrap(), Some(watcher::Event::InitDone)) {}
    api.create(&PostParams::default(), &config_map("b")).await.unwrap();
    api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert!(matches!(within(events.try_next()).await.unwrap(), Some(watcher::Event::Apply(_))));
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "c"}}}));
    api.patch("a", &PatchParams::default(), &relabel).await.unwrap();
    assert!(matches!(within(events.try_next()).await.unwrap(), Some(watcher::Event::Delete(_))));
}

#[tokio::test]
async fn finalizers_hold_a_deleted_object_until_they_are_gone() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    let mut held = config_map("held");
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    api.delete("held", &DeleteParams::default()).await.unwrap();
    let going = api.get("held").await.unwrap();
    assert!(going.metadata.deletion_timestamp.is_some());
    let add = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    let error = api.patch("held", &PatchParams::default(), &add).await.unwrap_err();
    assert!(error.to_string().contains("no new finalizers can be added"), "{error}");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("held", &PatchParams::default(), &free).await.unwrap();
    assert!(api.get_opt("held").await.unwrap().is_none());
}

#[tokio::test]
async fn objects_need_their_namespace() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "nowhere");
    let error = api.create(&PostParams::default(), &config_map("a")).await.unwrap_err();
    assert!(error.to_string().contains("namespaces \"nowhere\" not found"), "{error}");
    let namespaces: Api<Namespace> = Api::all(server.client());
    let namespace: Namespace = object(json!({"metadata": {"generateName": "some-"}}));
    let name = namespaces.create(&PostParams::default(), &namespace).await.unwrap().metadata.name.unwrap();
    assert_eq!(name.len(), "some-".len() + 5);
}

fn pod(name: &str) -> Pod {
    object(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "signpost/echo"}]}}))
}

#[tokio::test]
async fn a_bound_pod_ends_gracefully() {
    let server = server().await;
    let api: Api<Pod> = Api::default_namespaced(server.client());
    let created = api.create(&PostParams::default(), &pod("p")).await.unwrap();
    let spec = created.spec.unwrap();
    assert_eq!((spec.restart_policy.as_deref(), spec.termination_grace_period_seconds), (Some("Always"), Some(30)));
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n1"}});
    let _: Value = api.create_subresource("binding", "p", &PostParams::default(), &binding).await.unwrap();
    api.delete("p", &DeleteParams::default().grace_period(7)).await.unwrap();
    let going = api.get("p").await.unwrap();
    assert_eq!(going.spec.unwrap().node_name.as_deref(), Some("n1"));
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(7));
    api.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(api.get_opt("p").await.unwrap().is_none());
    api.create(&PostParams::default(), &pod("unbound")).await.unwrap();
    api.delete("unbound", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("unbound").await.unwrap().is_none(), "no kubelet has to end it");
}

#[tokio::test]
async fn a_deleted_namespace_takes_its_content_along() {
    let server = server().await;
    let namespaces: Api<Namespace> = Api::all(server.client());
    let namespace: Namespace = object(json!({"metadata": {"name": "gone"}}));
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "gone");
    let mut held = config_map("held");
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    api.create(&PostParams::default(), &config_map("plain")).await.unwrap();
    namespaces.delete("gone", &DeleteParams::default()).await.unwrap();
    let error = api.create(&PostParams::default(), &config_map("late")).await.unwrap_err();
    let text = "configmaps \"late\" is forbidden: unable to create new content in namespace gone because it is being \
                terminated";
    assert!(error.to_string().contains(text), "{error}");
    until(async || api.get_opt("plain").await.unwrap().is_none()).await;
    assert!(namespaces.get_opt("gone").await.unwrap().is_some(), "the finalizer still holds");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("held", &PatchParams::default(), &free).await.unwrap();
    until(async || namespaces.get_opt("gone").await.unwrap().is_none()).await;
}

/// Waits for a condition; asks again every few milliseconds.
pub async fn until(condition: impl AsyncFn() -> bool) {
    within(async {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        while !condition().await {
            pace.tick().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_service_kubernetes_leads_to_the_api() {
    let config = ApiConfig {
        service_cidrs: vec!["fd00:10:96::/112".parse().unwrap(), "10.96.0.0/12".parse().unwrap()],
        advertise: vec!["172.18.0.1:6443".parse().unwrap(), "[fd00:172:18::1]:7443".parse().unwrap()],
        ..ApiConfig::default()
    };
    let server = ApiServer::open(config).await.unwrap();
    let service = Api::<Service>::default_namespaced(server.client()).get("kubernetes").await.unwrap();
    let spec = service.spec.unwrap();
    assert_eq!(spec.cluster_ip.as_deref(), Some("fd00:10:96::1"));
    assert_eq!(spec.ports.unwrap()[0].port, 443);
    let slice = Api::<EndpointSlice>::default_namespaced(server.client()).get("kubernetes").await.unwrap();
    assert_eq!(slice.endpoints.unwrap()[0].addresses, ["fd00:172:18::1"]);
    assert_eq!(slice.ports.unwrap()[0].port, Some(7443));
    let range = Api::<ServiceCIDR>::all(server.client()).get("kubernetes").await.unwrap();
    assert_eq!(range.spec.unwrap().cidrs.unwrap().len(), 2);
    assert_eq!(range.status.unwrap().conditions.unwrap()[0].status, "True");
}

#[tokio::test]
async fn the_service_kubernetes_comes_back_when_it_is_deleted() {
    let server = server().await;
    let api: Api<Service> = Api::default_namespaced(server.client());
    let before = api.get("kubernetes").await.unwrap();
    api.delete("kubernetes", &DeleteParams::default()).await.unwrap();
    until(async || api.get_opt("kubernetes").await.unwrap().is_some()).await;
    let after = api.get("kubernetes").await.unwrap();
    assert_ne!(after.metadata.uid, before.metadata.uid);
    assert_eq!(after.spec.unwrap().cluster_ip, before.spec.unwrap().cluster_ip);
}

async fn https_client(url: &str, tls: &TlsIdentity, token: &Token) -> kube::Client {
    let config = Kubeconfig::from_yaml(&kubeconfig(url, tls, token)).expect("a kubeconfig is YAML");
    let config =
        kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect("it is whole");
    kube::Client::try_from(config).expect("it can be used")
}

#[tokio::test]
async fn over_https_only_the_token_lets_in() {
    let server = server().await;
    let tls = TlsIdentity::generate(&[], &[]).unwrap();
    let (token, shutdown) = (Token::generate(), CancellationToken::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn({
        let (server, tls, token, shutdown) = (server.clone(), tls.clone(), token.clone(), shutdown.clone());
        async move { server.serve(listener, &tls, token, shutdown).await }
    });
    let api: Api<Service> = Api::default_namespaced(https_client(&url, &tls, &token).await);
    assert!(api.get("kubernetes").await.is_ok());
    let mut events = watcher(api.clone(), watcher::Config::default()).boxed();
    while !matches!(within(events.try_next()).await.unwrap(), Some(watcher::Event::InitDone)) {}

    let stranger: Api<Service> = Api::default_namespaced(https_client(&url, &tls, &Token::new("wrong")).await);
    assert!(matches!(stranger.get("kubernetes").await, Err(kube::Error::Api(status)) if status.code == 401));
    let other = TlsIdentity::generate(&[], &[]).unwrap();
    let doubter: Api<Service> = Api::default_namespaced(https_client(&url, &other, &token).await);
    assert!(doubter.get("kubernetes").await.is_err(), "a client trusts only its own authority");

    shutdown.cancel();
    within(serving).await.unwrap();
}

#[tokio::test]
async fn a_service_that_breaks_rules_is_refused_with_causes() {
    let server = server().await;
    let api: Api<Service> = Api::default_namespaced(server.client());
    let twice: Service =
        object(json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}, {"port": 70000}]}}));
    let Err(kube::Error::Api(status)) = api.create(&PostParams::default(), &twice).await else { panic!("refused") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let fields: Vec<_> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    assert_eq!(fields[..3], ["spec.ports[0].name", "spec.ports[1].name", "spec.ports[1].port"]);
}

#[tokio::test]
async fn events_are_the_same_in_both_versions() {
    let server = server().await;
    let new: Api<k8s_openapi::api::events::v1::Event> = Api::default_namespaced(server.client());
    let event = object(json!({
        "metadata": {"generateName": "web."}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning",
        "reason": "R", "note": "what happened", "action": "A", "reportingController": "signpost",
        "reportingInstance": "n1", "regarding": {"kind": "Service", "name": "web", "namespace": "default"},
    }));
    let created = new.create(&PostParams::default(), &event).await.unwrap();
    let name = created.metadata.name.unwrap();
    let old: Api<k8s_openapi::api::core::v1::Event> = Api::default_namespaced(server.client());
    let chosen = ListParams::default().fields("involvedObject.kind=Service,involvedObject.name=web");
    let found = old.list(&chosen).await.unwrap().items;
    assert_eq!((found.len(), found[0].message.as_deref()), (1, Some("what happened")));
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}});
    let patched = new.patch(&name, &PatchParams::default(), &Patch::Merge(series)).await.unwrap();
    assert_eq!((patched.series.unwrap().count, patched.note.as_deref()), (2, Some("what happened")));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = server().await;
    let api: Api<Service> = Api::default_namespaced(server.client());
    let service: Service =
        object(json!({"metadata": {"name": "w"}, "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 1}]}}));
    let before = server.revision("Service");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let shown = api.create(&dry, &service).await.unwrap();
    assert_eq!(shown.spec.unwrap().cluster_ip.as_deref(), Some("10.96.0.9"));
    assert!(api.get_opt("w").await.unwrap().is_none());
    assert_eq!(server.revision("Service"), before);
    api.create(&PostParams::default(), &service).await.unwrap();
    api.delete("w", &DeleteParams::default().dry_run()).await.unwrap();
    assert!(api.get_opt("w").await.unwrap().is_some());
}

#[tokio::test]
async fn a_status_is_changed_apart_from_the_rest() {
    let server = server().await;
    let api: Api<Pod> = Api::default_namespaced(server.client());
    api.create(&PostParams::default(), &pod("p")).await.unwrap();
    let both = Patch::Merge(json!({
        "metadata": {"labels": {"a": "b"}}, "spec": {"hostname": "h"}, "status": {"phase": "Running"},
    }));
    let shown = api.patch_status("p", &PatchParams::default(), &both).await.unwrap();
    assert_eq!(shown.status.unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(shown.spec.unwrap().hostname, None);
    let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    let shown = api.patch("p", &PatchParams::default(), &status).await.unwrap();
    assert_eq!(shown.status.unwrap().phase.as_deref(), Some("Running"));
    let fixed = Patch::Merge(json!({"spec": {"hostname": "h"}}));
    let error = api.patch("p", &PatchParams::default(), &fixed).await.unwrap_err();
    assert!(error.to_string().contains("pod updates may not change fields other than"), "{error}");
}

#[tokio::test]
async fn a_filtered_watcher_is_told_by_bookmarks_how_far_it_is() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    let none = kube::api::WatchParams::default().labels("app=none").timeout(60);
    let mut events = api.watch(&none, "0").await.unwrap().boxed();
    let created = api.create(&PostParams::default(), &config_map("other")).await.unwrap();
    let event = within(events.try_next()).await.unwrap();
    let Some(kube::api::WatchEvent::Bookmark(bookmark)) = event else { panic!("{event:?}") };
    assert_eq!(bookmark.metadata.resource_version.parse::<u64>().unwrap(), revision(&created));
    let mut old = api.watch(&kube::api::WatchParams::default(), "999999").await.unwrap().boxed();
    let event = within(old.try_next()).await.unwrap();
    assert!(matches!(&event, Some(kube::api::WatchEvent::Error(status)) if status.code == 410), "{event:?}");
}

#[tokio::test]
async fn workloads_get_defaults_and_their_selectors_must_match() {
    let server = server().await;
    let api: Api<k8s_openapi::api::apps::v1::Deployment> = Api::default_namespaced(server.client());
    let mut body = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
        "metadata": {"labels": {"app": "other"}}, "spec": {"containers": [{"name": "c", "image": "signpost/echo"}]}}}});
    let error = api.create(&PostParams::default(), &object(body.clone())).await.unwrap_err();
    assert!(error.to_string().contains("`selector` does not match template `labels`"), "{error}");
    body["spec"]["template"]["metadata"]["labels"]["app"] = "web".into();
    let created = api.create(&PostParams::default(), &object(body)).await.unwrap();
    assert_eq!(created.metadata.generation, Some(1));
    let spec = created.spec.unwrap();
    assert_eq!((spec.replicas, spec.revision_history_limit), (Some(1), Some(10)));
    let other = Patch::Merge(json!({"spec": {"selector": {"matchLabels": {"app": "x"}}}}));
    let error = api.patch("web", &PatchParams::default(), &other).await.unwrap_err();
    assert!(error.to_string().contains("does not match template"), "{error}");
    let scaled =
        api.patch_scale("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 4}}))).await.unwrap();
    assert_eq!((scaled.spec.unwrap().replicas, scaled.status.unwrap().selector.as_deref()), (Some(4), Some("app=web")));
    assert_eq!(api.get("web").await.unwrap().metadata.generation, Some(2));
}
