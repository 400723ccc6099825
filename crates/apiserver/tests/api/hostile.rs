//! Requests that no client means well with: each gets an answer, and the server goes on.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer};
use tower::ServiceExt;

async fn send(server: &Arc<ApiServer>, method: &str, path: &str, content_type: &str, body: Vec<u8>) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.body(Body::from(body)).expect("the test's request is well formed");
    let response = server.router().oneshot(request).await.expect("the router always answers");
    let code = response.status();
    let bytes = response.into_body().collect().await.expect("the answer is whole").to_bytes();
    (code.as_u16(), serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

const SERVICES: &str = "/api/v1/namespaces/default/services";
const JSON: &str = "application/json";

#[tokio::test]
async fn malformed_requests_get_a_status_and_nothing_breaks() {
    let server = ApiServer::open(ApiConfig::default()).await.unwrap();
    let deep = "[".repeat(100_000).into_bytes();
    let deep_object = [r#"{"metadata":"#.repeat(5_000), "1".to_owned(), "}".repeat(5_000)].concat().into_bytes();
    let huge = vec![b' '; 4 << 20];
    let cases: Vec<(&str, &str, &str, Vec<u8>, u16)> = vec![
        ("POST", SERVICES, JSON, deep, 400),
        ("POST", SERVICES, JSON, deep_object, 400),
        ("POST", SERVICES, JSON, huge, 413),
        ("POST", SERVICES, JSON, b"".to_vec(), 400),
        ("POST", SERVICES, JSON, b"null".to_vec(), 400),
        ("POST", SERVICES, JSON, b"\xff\xfe{}".to_vec(), 400),
        ("POST", SERVICES, "application/yaml", b"a: b".to_vec(), 415),
        ("POST", SERVICES, "application/vnd.kubernetes.protobuf", b"k8s\0\xff\xff\xff\xff".to_vec(), 400),
        ("POST", SERVICES, JSON, br#"{"kind":"Pod","apiVersion":"v1"}"#.to_vec(), 400),
        ("POST", SERVICES, JSON, br#"{"apiVersion":"v2","kind":"Service"}"#.to_vec(), 400),
        ("POST", SERVICES, JSON, br#"{"metadata":[1],"spec":"x"}"#.to_vec(), 400),
        ("POST", SERVICES, JSON, br#"{"metadata":{"name":"../../x"},"spec":{"ports":[{"port":1}]}}"#.to_vec(), 422),
        ("POST", SERVICES, JSON, br#"{"metadata":{"name":"a","namespace":"other"}}"#.to_vec(), 400),
        ("POST", "/api/v1/services", JSON, b"{}".to_vec(), 405),
        ("GET", "/api/v1/namespaces/default/services?labelSelector=a%20in%20(", JSON, vec![], 400),
        ("GET", "/api/v1/namespaces/default/services?fieldSelector=spec.foo%3Dx", JSON, vec![], 400),
        ("GET", "/api/v1/namespaces/default/services?limit=-1", JSON, vec![], 400),
        ("GET", "/api/v1/namespaces/default/services?limit=1&continue=AAAA", JSON, vec![], 400),
        ("GET", "/api/v1/namespaces/default/services?watch=1&resourceVersion=x", JSON, vec![], 400),
        ("GET", "/api/v1/namespaces/default/services?watch=1&sendInitialEvents=true", JSON, vec![], 400),
        ("GET", "/api/v1/namespaces/%ff/services", JSON, vec![], 404),
        ("GET", "/api/v1/namespaces/default/services/a/b/c/d", JSON, vec![], 404),
        ("GET", "/api/v1/namespaces/default/services/kubernetes/nope", JSON, vec![], 404),
        ("GET", "//////", JSON, vec![], 200),
        ("TRACE", SERVICES, JSON, vec![], 405),
        ("DELETE", SERVICES, JSON, br#"{"propagationPolicy":"Sideways"}"#.to_vec(), 400),
        ("DELETE", "/api/v1/namespaces/default/services/kubernetes?dryRun=Some", JSON, vec![], 400),
        (
            "PATCH",
            "/api/v1/namespaces/default/services/kubernetes",
            "application/apply-patch+yaml",
            b"{}".to_vec(),
            415,
        ),
        ("PATCH", "/api/v1/namespaces/default/services/kubernetes", "application/json-patch+json", b"{}".to_vec(), 400),
        (
            "PATCH",
            "/api/v1/namespaces/default/services/kubernetes",
            "application/merge-patch+json",
            b"[]".to_vec(),
            400,
        ),
    ];
    for (method, path, content_type, body, expected) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let (code, answer) = send(&server, method, path, content_type, body).await;
        assert_eq!(code, expected, "{method} {path} {shown}: {answer}");
        if code >= 400 {
            assert_eq!((&answer["kind"], &answer["code"]), (&json!("Status"), &json!(code)), "{method} {path} {shown}");
        }
    }
    let (code, _) = send(&server, "GET", &format!("{SERVICES}/kubernetes"), JSON, vec![]).await;
    assert_eq!(code, StatusCode::OK.as_u16());
}

#[tokio::test]
async fn json_patches_can_not_fill_the_memory() {
    let server = ApiServer::open(ApiConfig::default()).await.unwrap();
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "x".repeat(1000)}});
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(send(&server, "POST", maps, JSON, map.to_string().into_bytes()).await.0, 201);
    let doubling: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/k{n}")})).collect();
    let body = Value::from(doubling).to_string().into_bytes();
    let path = format!("{maps}/m");
    assert_eq!(send(&server, "PATCH", &path, "application/json-patch+json", body).await.0, 413);
    let many: Vec<Value> = (0..10_001).map(|_| json!({"op": "test", "path": "/kind", "value": "ConfigMap"})).collect();
    let body = Value::from(many).to_string().into_bytes();
    assert_eq!(send(&server, "PATCH", &path, "application/json-patch+json", body).await.0, 413);
}

#[tokio::test]
async fn odd_but_typed_values_are_refused_not_stored() {
    let server = ApiServer::open(ApiConfig::default()).await.unwrap();
    for spec in [
        json!({"ports": [{"port": -1}]}),
        json!({"ports": [{"port": 80, "targetPort": -5}]}),
        json!({"ports": [{"port": 80, "targetPort": ""}], "type": "NodePort", "externalName": "x", "clusterIP": "::1"}),
        json!({"ports": [{"port": 80, "nodePort": 2_147_483_647}], "type": "NodePort"}),
        json!({"ports": [{"port": 80}], "clusterIPs": ["10.96.0.3", "10.96.0.4", "10.96.0.5"], "clusterIP": "10.96.0.3"}),
        json!({"ports": [{"port": 80}], "clusterIP": "10.96.0.0"}),
        json!({"ports": [{"port": 80}], "clusterIP": "10.111.255.255"}),
        json!({"ports": [{"port": 80}], "ipFamilies": ["IPv4", "IPv4", "IPv4"]}),
        json!({"ports": [{"port": 80}], "healthCheckNodePort": -3, "type": "LoadBalancer", "externalTrafficPolicy": "Local"}),
    ] {
        let body = json!({"metadata": {"name": "odd"}, "spec": spec}).to_string().into_bytes();
        let (code, answer) = send(&server, "POST", SERVICES, JSON, body).await;
        assert_eq!(code, 422, "{spec}: {answer}");
    }
}
