//! What is pruned, and that real objects pass untouched.

use super::*;
use serde_json::json;

fn pruned(api_version: &str, kind: &str, mut object: Value) -> (Value, Vec<String>) {
    let unknown = prune(&Gvk::from_api_version(api_version, kind), &mut object);
    (object, unknown.iter().map(ToString::to_string).collect())
}

#[test]
fn unknown_fields_go_and_are_named_with_their_paths() {
    let object = json!({ "apiVersion": "v1", "kind": "Service", "bar": 1, "metadata": { "name": "a", "labels": { "x": "y" } },
        "spec": { "foo": { "x": 1 }, "ports": [{ "port": 80 }, { "port": 81, "nodeport": 1 }] } });
    let expected = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "a", "labels": { "x": "y" } },
        "spec": { "ports": [{ "port": 80 }, { "port": 81 }] } });
    let unknown =
        [r#"unknown field "bar""#, r#"unknown field "spec.foo""#, r#"unknown field "spec.ports[1].nodeport""#];
    assert_eq!(pruned("v1", "Service", object), (expected, unknown.map(String::from).to_vec()));
}

#[test]
fn free_maps_and_free_objects_keep_everything() {
    let object = json!({ "metadata": { "name": "a", "annotations": { "any.thing/x": "" }, "managedFields": [
        { "manager": "m", "fieldsV1": { "f:spec": { ".": {}, "f:x": null } } }] }, "data": { "x": "", "foo": "bar" } });
    assert_eq!(pruned("v1", "ConfigMap", object.clone()), (object, vec![]));
}

#[test]
fn what_go_does_not_write_goes() {
    let object = json!({ "metadata": { "name": "a", "creationTimestamp": null, "labels": {}, "finalizers": [] },
        "spec": { "containers": [{ "name": "a", "image": "", "command": [], "resources": {}, "stdin": false, "env": null,
            "securityContext": { "privileged": false, "runAsUser": 0 },
            "livenessProbe": { "timeoutSeconds": 0, "httpGet": { "port": 0 } } }],
            "hostNetwork": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 0,
            "volumes": [{ "name": "v", "emptyDir": {} }], "nodeSelector": { "a": null } }, "status": {} });
    let expected = json!({ "metadata": { "name": "a" },
        "spec": { "containers": [{ "name": "a", "resources": {},
            "securityContext": { "privileged": false, "runAsUser": 0 }, "livenessProbe": { "httpGet": { "port": 0 } } }],
            "enableServiceLinks": false, "terminationGracePeriodSeconds": 0,
            "volumes": [{ "name": "v", "emptyDir": {} }], "nodeSelector": { "a": "" } }, "status": {} });
    assert_eq!(pruned("v1", "Pod", object), (expected, vec![]));
}

#[test]
fn empty_selectors_of_policies_and_false_conditions_of_endpoints_stay() {
    let policy = json!({ "spec": { "podSelector": {}, "ingress": [{}, { "from": [{ "namespaceSelector": {} }] }],
        "policyTypes": ["Ingress"] } });
    assert_eq!(pruned("networking.k8s.io/v1", "NetworkPolicy", policy.clone()), (policy, vec![]));
    let slice = json!({ "addressType": "IPv4", "endpoints": [{ "addresses": [], "conditions": { "ready": false } }],
        "ports": [{ "name": "", "port": 0 }] });
    assert_eq!(pruned("discovery.k8s.io/v1", "EndpointSlice", slice.clone()), (slice, vec![]));
    let scale = json!({ "spec": { "replicas": 0 } });
    assert_eq!(pruned("apps/v1", "Deployment", scale.clone()), (scale, vec![]));
}

#[test]
fn times_and_quantities_get_their_written_form() {
    let lease = json!({ "spec": { "renewTime": "2026-01-02T03:04:05+01:00" }, "metadata": {
        "creationTimestamp": "2026-01-02T03:04:05.9Z" } });
    let expected = json!({ "spec": { "renewTime": "2026-01-02T02:04:05.000000Z" }, "metadata": {
        "creationTimestamp": "2026-01-02T03:04:05Z" } });
    assert_eq!(pruned("coordination.k8s.io/v1", "Lease", lease).0, expected);
    let node = json!({ "status": { "capacity": { "cpu": 2, "memory": "1024Mi" } } });
    assert_eq!(pruned("v1", "Node", node).0, json!({ "status": { "capacity": { "cpu": "2", "memory": "1Gi" } } }));
}

#[test]
fn wrong_types_and_unknown_kinds_stay() {
    let odd = json!({ "spec": { "ports": "x", "type": [] }, "metadata": 1 });
    let kept = json!({ "spec": { "ports": "x" }, "metadata": 1 });
    assert_eq!(pruned("v1", "Service", odd).0, kept);
    assert_eq!(pruned("x.org/v1", "Thing", json!({ "a": null })), (json!({ "a": null }), vec![]));
    assert_eq!(pruned("v1", "Service", json!([null])), (json!([null]), vec![]));
}

/// Reads an object into its typed struct and writes it again.
fn typed(gvk: &Gvk, object: Value) -> Value {
    use k8s_openapi::api::{
        apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
        autoscaling::v1 as autoscaling, coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
        events::v1 as events, networking::v1 as networking, policy::v1 as policy,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
    fn through<T: serde::de::DeserializeOwned + serde::Serialize>(object: Value) -> Value {
        serde_json::to_value(serde_json::from_value::<T>(object).unwrap()).unwrap()
    }
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Binding") => through::<core::Binding>(object),
        ("", "ConfigMap") => through::<core::ConfigMap>(object),
        ("", "Endpoints") => through::<core::Endpoints>(object),
        ("", "Event") => through::<core::Event>(object),
        ("", "Namespace") => through::<core::Namespace>(object),
        ("", "Node") => through::<core::Node>(object),
        ("", "Pod") => through::<core::Pod>(object),
        ("", "Secret") => through::<core::Secret>(object),
        ("", "Service") => through::<core::Service>(object),
        ("", "ServiceAccount") => through::<core::ServiceAccount>(object),
        ("apps", "ControllerRevision") => through::<apps::ControllerRevision>(object),
        ("apps", "Deployment") => through::<apps::Deployment>(object),
        ("apps", "ReplicaSet") => through::<apps::ReplicaSet>(object),
        ("apps", "StatefulSet") => through::<apps::StatefulSet>(object),
        ("authentication.k8s.io", "SelfSubjectReview") => through::<authentication::SelfSubjectReview>(object),
        ("authorization.k8s.io", "SelfSubjectAccessReview") => {
            through::<authorization::SelfSubjectAccessReview>(object)
        }
        ("authorization.k8s.io", "SelfSubjectRulesReview") => through::<authorization::SelfSubjectRulesReview>(object),
        ("policy", "Eviction") => through::<policy::Eviction>(object),
        ("autoscaling", "Scale") => through::<autoscaling::Scale>(object),
        ("coordination.k8s.io", "Lease") => through::<coordination::Lease>(object),
        ("discovery.k8s.io", "EndpointSlice") => through::<discovery::EndpointSlice>(object),
        ("events.k8s.io", "Event") => through::<events::Event>(object),
        ("networking.k8s.io", "IPAddress") => through::<networking::IPAddress>(object),
        ("networking.k8s.io", "NetworkPolicy") => through::<networking::NetworkPolicy>(object),
        ("networking.k8s.io", "ServiceCIDR") => through::<networking::ServiceCIDR>(object),
        ("", "Status") => through::<meta::Status>(object),
        ("", "DeleteOptions") => through::<meta::DeleteOptions>(object),
        _ => panic!("no type is known for {gvk}"),
    }
}

#[test]
fn objects_of_every_kind_pass_untouched_with_every_field_filled() {
    for gvk in crate::content::sample::kinds() {
        let object = typed(&gvk, crate::content::sample::full(&gvk));
        assert_eq!(crate::content::check_types(&gvk, &object), Ok(()), "{gvk}");
        let mut left = object.clone();
        assert_eq!(prune(&gvk, &mut left), vec![], "{gvk}");
        assert_eq!(left, object, "{gvk}");
        assert_eq!(typed(&gvk, left), object, "{gvk}");
    }
}
