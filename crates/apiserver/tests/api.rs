//! The API as its clients meet it: in process through kube's client, and raw requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer};

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
    object.metadata.resource_version.as_deref().unwrap().parse().unwrap()
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
