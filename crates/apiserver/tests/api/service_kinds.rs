//! What Kubernetes' end-to-end tests ask of the API for the kinds around Services: every operation on each of them.

use std::fmt::Debug;
use std::sync::Arc;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_apiserver::ApiServer;

use crate::{object, server, until, within};

/// Creates two objects, which differ in their names, and does all to them that clients do.
#[allow(clippy::unwrap_used, reason = "a part of tests that is no test function itself")]
async fn every_operation<K>(api: Api<K>, [first, second]: [Value; 2])
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let labelled = |mut value: Value| {
        value["metadata"]["labels"] = json!({"test": "operations"});
        object::<K>(value)
    };
    let ours = ListParams::default().labels("test=operations");
    let created = api.create(&PostParams::default(), &labelled(first)).await.unwrap();
    let other = api.create(&PostParams::default(), &labelled(second)).await.unwrap();
    let (name, since) = (created.name_any(), other.resource_version().unwrap());
    assert_eq!(api.get(&name).await.unwrap().uid(), created.uid());
    assert_eq!(api.list(&ours).await.unwrap().items.len(), 2);

    let patch = json!({"metadata": {"annotations": {"patched": "true"}}});
    api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let mut updated = api.get(&name).await.unwrap();
    updated.annotations_mut().insert("updated".to_owned(), "true".to_owned());
    let updated = api.replace(&name, &PostParams::default(), &updated).await.unwrap();
    assert_eq!(updated.annotations().len(), 2, "the update keeps what the patch brought");

    api.delete(&name, &DeleteParams::default()).await.unwrap();
    until(async || api.get_opt(&name).await.unwrap().is_none()).await;
    api.delete_collection(&DeleteParams::default(), &ours).await.unwrap();
    until(async || api.list(&ours).await.unwrap().items.is_empty()).await;

    let watch = WatchParams::default().labels("test=operations");
    let mut seen = std::pin::pin!(api.watch(&watch, &since).await.unwrap());
    let mut deleted = 0;
    let mut modified = false;
    while deleted < 2 {
        match within(seen.try_next()).await.unwrap().unwrap() {
            WatchEvent::Modified(_) => modified = true,
            WatchEvent::Deleted(_) => deleted += 1,
            _ => {}
        }
    }
    assert!(modified, "the watch tells the changes before the end");
}

fn named(kind: Value, name: &str) -> Value {
    let mut value = kind;
    value["metadata"] = json!({"name": name});
    value
}

fn two(kind: Value) -> [Value; 2] {
    [named(kind.clone(), "one"), named(kind, "two")]
}

#[tokio::test]
async fn endpoint_slices_take_every_operation() {
    let api: Api<EndpointSlice> = Api::default_namespaced(server().await.client());
    let slice = json!({
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": true}}],
    });
    every_operation(api, two(slice)).await;
}

#[tokio::test]
async fn endpoints_take_every_operation() {
    let api: Api<Endpoints> = Api::default_namespaced(server().await.client());
    let subset =
        json!({"addresses": [{"ip": "10.0.0.24"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    every_operation(api, two(json!({"subsets": [subset]}))).await;
}

#[tokio::test]
async fn service_cidrs_take_every_operation() {
    let server = server().await;
    let api: Api<ServiceCIDR> = Api::all(server.client());
    every_operation(api.clone(), two(json!({"spec": {"cidrs": ["10.196.196.0/24"]}}))).await;
    let kept = api.get("kubernetes").await.unwrap();
    assert_eq!(kept.spec.unwrap().cidrs.unwrap(), ["10.96.0.0/12"]);
}

#[tokio::test]
async fn ip_addresses_take_every_operation() {
    let api: Api<IPAddress> = Api::all(server().await.client());
    let address = json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}});
    every_operation(api, [named(address.clone(), "192.168.2.2"), named(address, "192.168.2.3")]).await;
}

#[allow(clippy::unwrap_used, reason = "a part of tests that is no test function itself")]
async fn range(server: &Arc<ApiServer>) -> Api<ServiceCIDR> {
    let api: Api<ServiceCIDR> = Api::all(server.client());
    let more = object(named(json!({"spec": {"cidrs": ["10.196.196.0/24"]}}), "more"));
    api.create(&PostParams::default(), &more).await.unwrap();
    api
}

fn service_at(name: &str, address: &str) -> Service {
    object(json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}}))
}

#[tokio::test]
async fn a_range_that_is_deleted_gives_out_no_more_and_stays_until_its_last_service_is_gone() {
    let server = server().await;
    let services: Api<Service> = Api::default_namespaced(server.client());
    services.create(&PostParams::default(), &service_at("early", "10.196.196.7")).await.unwrap_err();
    let ranges = range(&server).await;
    services.create(&PostParams::default(), &service_at("web", "10.196.196.7")).await.unwrap();
    let taken = services.create(&PostParams::default(), &service_at("other", "10.196.196.7")).await.unwrap_err();
    assert!(taken.to_string().contains("provided IP is already allocated"), "{taken}");
    let ready = async || {
        let status = ranges.get("more").await.unwrap().status;
        status.and_then(|status| status.conditions).is_some_and(|conditions| conditions[0].status == "True")
    };
    until(ready).await;
    let widened = json!({"spec": {"cidrs": ["10.197.0.0/16"]}});
    ranges.patch("more", &PatchParams::default(), &Patch::Merge(widened)).await.unwrap_err();

    ranges.delete("more", &DeleteParams::default()).await.unwrap();
    until(async || !ready().await).await;
    services.create(&PostParams::default(), &service_at("late", "10.196.196.8")).await.unwrap_err();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    until(async || ranges.get_opt("more").await.unwrap().is_none()).await;
}

#[tokio::test]
async fn an_address_is_its_services_in_every_range_that_has_it() {
    let server = server().await;
    let tiny: Api<ServiceCIDR> = range(&server).await;
    let services: Api<Service> = Api::default_namespaced(server.client());
    services.create(&PostParams::default(), &service_at("web", "10.196.196.1")).await.unwrap();
    tiny.delete("more", &DeleteParams::default()).await.unwrap();
    // An address that another range takes up again belongs to the same Service.
    let again = object(named(json!({"spec": {"cidrs": ["10.196.0.0/16"]}}), "wider"));
    tiny.create(&PostParams::default(), &again).await.unwrap();
    until(async || tiny.get_opt("more").await.unwrap().is_none()).await;
    let taken = services.create(&PostParams::default(), &service_at("other", "10.196.196.1")).await.unwrap_err();
    assert!(taken.to_string().contains("provided IP is already allocated"), "{taken}");
}

#[tokio::test]
async fn services_are_found_in_every_namespace_and_deleted_by_their_labels() {
    let server = server().await;
    let namespace = object(json!({"metadata": {"name": "shop"}}));
    Api::<Namespace>::all(server.client()).create(&PostParams::default(), &namespace).await.unwrap();
    let labelled = |name: &str, label: &str| {
        object(json!({"metadata": {"name": name, "labels": {"e2e": label}}, "spec": {"ports": [{"port": 80}]}}))
    };
    let shop: Api<Service> = Api::namespaced(server.client(), "shop");
    for (name, label) in [("a", "yes"), ("b", "yes"), ("c", "no")] {
        shop.create(&PostParams::default(), &labelled(name, label)).await.unwrap();
    }
    let all = Api::<Service>::all(server.client()).list(&ListParams::default()).await.unwrap();
    let found: Vec<_> = all.iter().map(|service| (service.namespace().unwrap(), service.name_any())).collect();
    for wanted in [("default", "kubernetes"), ("shop", "a"), ("shop", "c")] {
        assert!(found.contains(&(wanted.0.to_owned(), wanted.1.to_owned())), "{wanted:?} in {found:?}");
    }
    shop.delete_collection(&DeleteParams::default(), &ListParams::default().labels("e2e=yes")).await.unwrap();
    let left: Vec<_> = shop.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, ["c"]);
}

#[tokio::test]
async fn a_services_status_is_patched_updated_and_kept() {
    let server = server().await;
    let api: Api<Service> = Api::default_namespaced(server.client());
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    api.create(&PostParams::default(), &object(json!({"metadata": {"name": "web"}, "spec": spec}))).await.unwrap();
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}});
    let patched = api.patch_status("web", &PatchParams::default(), &Patch::Merge(ingress)).await.unwrap();
    let ip = |service: &Service| {
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        balancer.and_then(|balancer| balancer.ingress.as_ref()?.first()?.ip.clone())
    };
    assert_eq!(ip(&patched).as_deref(), Some("203.0.113.1"));
    let mut updated = patched;
    let condition = json!({
        "type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "set", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    updated.status.as_mut().unwrap().conditions = Some(vec![object(condition)]);
    let updated = api.replace_status("web", &PostParams::default(), &updated).await.unwrap();
    assert_eq!(updated.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].type_, "StatusUpdate");
    // What changes the Service leaves its status.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = api.patch("web", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    assert_eq!((ip(&labelled).as_deref(), labelled.labels()["a"].as_str()), (Some("203.0.113.1"), "b"));
    api.delete("web", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("web").await.unwrap().is_none());
}
