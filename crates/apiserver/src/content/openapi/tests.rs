//! What kubectl looks for in the documents.

use super::*;

fn document(path: &str) -> Value {
    serde_json::from_slice(&openapi_v3(path).unwrap().json).unwrap()
}

#[test]
fn the_index_names_every_group_with_the_hash_of_its_document() {
    let index = openapi_v3_index();
    let paths: Vec<&String> = index["paths"].as_object().unwrap().keys().collect();
    let expected = [
        "api/v1",
        "apis/apps/v1",
        "apis/coordination.k8s.io/v1",
        "apis/discovery.k8s.io/v1",
        "apis/events.k8s.io/v1",
        "apis/frrk8s.metallb.io/v1beta1",
        "apis/metallb.io/v1beta1",
        "apis/metallb.io/v1beta2",
        "apis/networking.k8s.io/v1",
    ];
    assert_eq!(paths, expected);
    for path in paths {
        let hash = &openapi_v3(path).unwrap().hash;
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
        assert_eq!(url, format!("/openapi/v3/{path}?hash={hash}"));
        assert_eq!(hash.len(), 128);
    }
    assert!(openapi_v3("apis/none/v1").is_none());
}

#[test]
fn every_reference_leads_somewhere_and_stands_alone() {
    fn check(value: &Value, schemas: &Map<String, Value>) {
        match value {
            Value::Object(map) => {
                if let Some(reference) = map.get("$ref") {
                    let name = reference.as_str().unwrap().strip_prefix("#/components/schemas/").unwrap();
                    assert!(schemas.contains_key(name), "{name}");
                    assert_eq!(map.len(), 1, "{map:?}");
                }
                map.values().for_each(|value| check(value, schemas));
            }
            Value::Array(list) => list.iter().for_each(|value| check(value, schemas)),
            _ => {}
        }
    }
    for path in documents().keys() {
        let document = document(path);
        check(&document, document["components"]["schemas"].as_object().unwrap());
    }
}

#[test]
fn a_patch_tells_that_the_server_validates_fields() {
    for (path, object, kind) in [
        ("api/v1", "/api/v1/namespaces/{namespace}/services/{name}", "Service"),
        ("api/v1", "/api/v1/namespaces/{name}", "Namespace"),
        ("apis/apps/v1", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}", "Deployment"),
        ("apis/apps/v1", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale", "Scale"),
    ] {
        let patch = document(path)["paths"][object]["patch"].clone();
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], kind);
        let names: Vec<&Value> =
            patch["parameters"].as_array().unwrap().iter().map(|parameter| &parameter["name"]).collect();
        assert!(names.contains(&&json!("fieldValidation")) && names.contains(&&json!("dryRun")), "{names:?}");
    }
}

#[test]
fn schemas_carry_kind_merge_keys_and_list_types() {
    let core = document("api/v1");
    let schemas = &core["components"]["schemas"];
    let service = &schemas["io.k8s.api.core.v1.Service"];
    let expected = json!([{ "group": "", "kind": "Service", "version": "v1" }]);
    assert_eq!(service["x-kubernetes-group-version-kind"], expected);
    assert_eq!(
        service["properties"]["spec"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.api.core.v1.ServiceSpec"
    );
    assert_eq!(service.get("required"), None);
    let ports = &schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"];
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "port");
    assert_eq!(ports["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["port", "protocol"]));
    let pod = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(pod["volumes"]["x-kubernetes-patch-strategy"], "merge,retainKeys");
    assert_eq!(pod["tolerations"]["x-kubernetes-list-type"], "atomic");
    assert_eq!(schemas["io.k8s.api.core.v1.ObjectReference"]["x-kubernetes-map-type"], "atomic");
    assert!(schemas["io.k8s.api.core.v1.ServiceList"]["properties"]["items"].is_object());
    let apps = document("apis/apps/v1");
    let deployment = &apps["components"]["schemas"]["io.k8s.api.apps.v1.DeploymentSpec"]["properties"];
    assert_eq!(deployment["strategy"]["x-kubernetes-patch-strategy"], "retainKeys");
    assert!(apps["components"]["schemas"]["io.k8s.api.autoscaling.v1.Scale"].is_object());
}
