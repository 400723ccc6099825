use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::plan::plan;
use crate::endpoint_slices::plan::Actions;

fn endpoints(subsets: Value) -> Endpoints {
    let metadata = json!({"name": "web", "namespace": "default", "uid": "e1", "labels": {"team": "a"}});
    serde_json::from_value(json!({"metadata": metadata, "subsets": subsets})).unwrap()
}

fn service(selector: Value) -> Service {
    let metadata = json!({"name": "web", "namespace": "default", "uid": "s1"});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"selector": selector}})).unwrap()
}

fn two_ports() -> Endpoints {
    endpoints(json!([
        {"addresses": [{"ip": "10.1.2.3"}], "ports": [{"name": "a", "port": 8080}]},
        {"addresses": [{"ip": "10.1.2.3"}, {"ip": "fd00::3"}], "ports": [{"name": "b", "port": 9090}]},
    ]))
}

/// What the API would hold after a plan.
fn made(actions: &Actions) -> Vec<Arc<EndpointSlice>> {
    let all = actions.create.iter().chain(&actions.replace).cloned();
    all.map(Arc::new).collect()
}

fn shape(slice: &EndpointSlice) -> (String, Vec<String>, Vec<i32>) {
    let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| endpoint.addresses.clone());
    let ports = slice.ports.iter().flatten().filter_map(|port| port.port);
    (slice.address_type.clone(), addresses.collect(), ports.collect())
}

#[test]
fn each_family_and_set_of_ports_has_a_slice_even_of_one_address() {
    let actions = plan(Some(&two_ports()), Some(&service(json!(null))), &[]);
    let mut shapes: Vec<_> = actions.create.iter().map(shape).collect();
    shapes.sort();
    let text = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        shapes,
        [
            ("IPv4".to_owned(), text(&["10.1.2.3"]), vec![8080]),
            ("IPv4".to_owned(), text(&["10.1.2.3"]), vec![9090]),
            ("IPv6".to_owned(), text(&["fd00::3"]), vec![9090]),
        ]
    );
    let labels = actions.create[0].metadata.labels.as_ref().unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "web");
    assert_eq!(labels["team"], "a");
    assert_eq!(actions.create[0].metadata.owner_references.as_ref().unwrap()[0].uid, "e1");
}

#[test]
fn a_mirror_follows_its_endpoints_and_is_then_left_alone() {
    let web = service(json!(null));
    let slices = made(&plan(Some(&two_ports()), Some(&web), &[]));
    assert_eq!(plan(Some(&two_ports()), Some(&web), &slices), Actions::default());
    let fewer = endpoints(json!([
        {"notReadyAddresses": [{"ip": "10.1.2.4"}], "ports": [{"name": "a", "port": 8080}]},
    ]));
    let actions = plan(Some(&fewer), Some(&web), &slices);
    assert_eq!((actions.create.len(), actions.replace.len(), actions.delete.len()), (0, 1, 2));
    let changed = &actions.replace[0].endpoints.as_ref().unwrap()[0];
    assert_eq!((changed.addresses[0].as_str(), changed.conditions.as_ref().unwrap().ready), ("10.1.2.4", Some(false)));
}

#[test]
fn endpoints_of_a_selector_of_another_or_of_nobody_have_no_mirror() {
    let slices = made(&plan(Some(&two_ports()), Some(&service(json!(null))), &[]));
    let gone = |endpoints: Option<&Endpoints>, service: Option<&Service>| {
        let actions = plan(endpoints, service, &slices);
        assert_eq!((actions.create.len(), actions.replace.len(), actions.delete.len()), (0, 0, 3));
    };
    gone(None, Some(&service(json!(null))));
    gone(Some(&two_ports()), None);
    gone(Some(&two_ports()), Some(&service(json!({"app": "web"}))));
    let mut skipped = two_ports();
    let labels = skipped.metadata.labels.get_or_insert_default();
    labels.insert("endpointslice.kubernetes.io/skip-mirror".to_owned(), "true".to_owned());
    gone(Some(&skipped), Some(&service(json!(null))));
}
