//! What the API refuses, in the words of the real server.

use crate::cluster::Cluster;
use crate::objects::WEB;

const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}"#;

/// Each: what is written instead of what in `SERVICE`, and the error.
#[tokio::test]
async fn bodies_that_do_not_fit_are_refused() {
    let cluster = Cluster::start().await;
    for (from, to, text) in [
        (
            r#""spec":{"#,
            r#""spec":{"foo":1,"#,
            r#"Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "spec.foo""#,
        ),
        (
            r#""port":80"#,
            r#""port":80,"nodeport":1"#,
            r#"strict decoding error: unknown field "spec.ports[0].nodeport""#,
        ),
        (
            r#""port":80"#,
            r#""port":"80""#,
            r#"Service in version "v1" cannot be handled as a Service: json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32"#,
        ),
        (
            r#"[{"port":80}]"#,
            r#"{"port":80}"#,
            "json: cannot unmarshal object into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
        ),
        (
            r#""port":80"#,
            r#""port":0"#,
            r#"spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"#,
        ),
        (r#""name":"a""#, r#""name":"A_""#, r#"The Service "A_" is invalid: metadata.name: Invalid value: "A_""#),
        (
            r#""port":80"#,
            r#""port":80,"protocol":"ICMP""#,
            r#"spec.ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP""#,
        ),
        (
            r#""spec":{"#,
            r#""spec":{"type":"Other","#,
            r#"spec.type: Unsupported value: "Other": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort""#,
        ),
        (r#""kind":"Service""#, r#""kind":"Servise""#, r#"no matches for kind "Servise" in version "v1""#),
    ] {
        let error = cluster.fails("create -f -", &SERVICE.replace(from, to)).await;
        assert!(error.contains(text), "{to}: {error}");
    }
}

#[tokio::test]
async fn unknown_fields_are_dropped_with_a_warning_when_validation_only_warns() {
    let cluster = Cluster::start().await;
    let body = SERVICE.replace(r#""spec":{"#, r#""spec":{"foo":1,"#);
    let answer = cluster.run("create --validate=warn -f -", &body).await;
    assert!(answer.ok && answer.err.contains(r#"Warning: unknown field "spec.foo""#), "{}", answer.err);
    assert!(cluster.get("service a").await["spec"].get("foo").is_none());
    cluster.ok("delete service a").await;
    let answer = cluster.run("create --validate=ignore -f -", &body).await;
    assert!(answer.ok && !answer.err.contains("Warning"), "{}", answer.err);
    assert!(cluster.get("service a").await["spec"].get("foo").is_none());
}

#[tokio::test]
async fn what_is_there_what_is_not_and_what_may_not_change() {
    let cluster = Cluster::start().await;
    cluster.fed("create -f -", WEB).await;
    let error = cluster.fails("create deployment web --image=x", "").await;
    assert_eq!(error.trim_end(), "error: failed to create deployment: deployments.apps \"web\" already exists");
    let error = cluster.fails("create -f -", SERVICE.replace(r#""name":"a""#, r#""name":"web""#).as_str()).await;
    assert!(
        error.contains("Error from server (AlreadyExists)") && error.contains("services \"web\" already exists"),
        "{error}"
    );
    let error = cluster.fails("get pods nothing", "").await;
    assert_eq!(error.trim_end(), "Error from server (NotFound): pods \"nothing\" not found");
    let error = cluster.fails("get nothings", "").await;
    assert_eq!(error.trim_end(), "error: the server doesn't have a resource type \"nothings\"");
    let error = cluster.fails("create configmap a -n none", "").await;
    assert!(error.contains("namespaces \"none\" not found"), "{error}");
    let patch = r#"{"spec":{"clusterIP":"10.96.0.77","clusterIPs":["10.96.0.77"]}}"#;
    let error = cluster.words(&["patch", "service", "web", "-p", patch], "").await.err;
    assert!(error.contains("spec.clusterIPs[0]: Invalid value: [\"10.96.0.77\"]: may not change once set"), "{error}");
    let patch = r#"{"spec":{"selector":{"matchLabels":{"app":"other"}}}}"#;
    let error = cluster.words(&["patch", "deployment", "web", "-p", patch], "").await.err;
    assert!(error.contains("field is immutable"), "{error}");
    let patch = r#"{"spec":{"replicas":"two"}}"#;
    let error = cluster.words(&["patch", "deployment", "web", "-p", patch], "").await.err;
    assert_eq!(
        error.trim_end(),
        r#"The request is invalid: patch: Invalid value: "map[spec:map[replicas:two]]": unrecognized type: int32"#
    );
    let error = cluster.words(&["patch", "deployment", "web", "--type=merge", "-p", patch], "").await.err;
    assert!(
        error.contains("cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"),
        "{error}"
    );
    let patch = r#"{"spec":{"foo":1,"template":{"bar":2}}}"#;
    let answer = cluster.words(&["patch", "deployment", "web", "-p", patch], "").await;
    assert!(answer.ok, "{}", answer.err);
    assert_eq!(answer.err, "Warning: unknown field \"spec.foo\"\nWarning: unknown field \"spec.template.bar\"\n");
    let stale = r#"{"metadata":{"resourceVersion":"1"}}"#;
    let error = cluster.words(&["patch", "deployment", "web", "-p", stale], "").await.err;
    assert!(
        error.contains("the object has been modified; please apply your changes to the latest version and try again"),
        "{error}"
    );
}

#[tokio::test]
async fn nobody_enters_without_the_token() {
    let cluster = Cluster::start().await;
    let error = cluster.fails("get services --token=wrong", "").await;
    assert!(error.contains("You must be logged in to the server"), "{error}");
}
