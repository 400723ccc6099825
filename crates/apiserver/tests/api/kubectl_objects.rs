//! Create, apply, get, describe, patch, label, annotate, expose, scale, delete.

use crate::cluster::Cluster;

const MANIFEST: &str = "
apiVersion: v1
kind: Service
metadata: {name: app, labels: {tier: front}}
spec:
  type: NodePort
  selector: {app: x}
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: signpost/echo}]}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_steps_of_a_user_work() {
    let cluster = Cluster::start().await;
    let created = cluster.ok(&["create", "deployment", "web", "--image=signpost/echo", "--replicas=3"]).await;
    assert_eq!(created, "deployment.apps/web created\n");
    let exposed = cluster.ok(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]).await;
    assert_eq!(exposed, "service/web exposed\n");
    let wide = cluster.ok(&["get", "service", "web", "-o", "wide"]).await;
    let lines: Vec<Vec<&str>> = wide.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"]);
    assert_eq!((lines[1][1], lines[1][3], lines[1][4], lines[1][6]), ("ClusterIP", "<none>", "80/TCP", "app=web"));
    cluster.ok(&["scale", "deployment", "web", "--replicas=5"]).await;
    assert!(cluster.ok(&["get", "deployment"]).await.contains("0/5"));
    let described = cluster.ok(&["describe", "service", "web"]).await;
    assert!(described.contains("TargetPort:               8080/TCP"), "{described}");
    let described = cluster.ok(&["describe", "deployment", "web"]).await;
    assert!(described.contains("5 desired | 0 updated"), "{described}");
    assert!(cluster.ok(&["explain", "service.spec.clusterIP"]).await.contains("FIELD: clusterIP <string>"));
    assert_eq!(cluster.ok(&["auth", "can-i", "create", "pods"]).await, "yes\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_is_applied_again_and_only_what_changed_changes() {
    let cluster = Cluster::start().await;
    let file = cluster.file("m.yaml", MANIFEST);
    let apply = ["apply", "-f", file.to_str().expect("a plain path")];
    assert_eq!(cluster.ok(&apply).await, "service/app created\nstatefulset.apps/db created\n");
    let path = "-o=jsonpath={.spec.clusterIP} {.spec.ports[*].nodePort}";
    let before = cluster.ok(&["get", "service", "app", path]).await;
    cluster.file("m.yaml", &MANIFEST.replace("port: 80}", "port: 81}").replace("tier: front", "tier: back"));
    assert_eq!(cluster.ok(&apply).await, "service/app configured\nstatefulset.apps/db unchanged\n");
    let after = cluster.ok(&["get", "service", "app", path]).await;
    let (before, after): (Vec<&str>, Vec<&str>) = (before.split(' ').collect(), after.split(' ').collect());
    assert_eq!((before[0], before[2]), (after[0], after[2]), "what was given out stays");
    let labels =
        cluster.ok(&["get", "service", "app", "-o=jsonpath={.metadata.labels.tier} {.spec.ports[*].port}"]).await;
    assert_eq!(labels, "back 81 53");
    cluster.file("m.yaml", &MANIFEST.replace("port: 80}", "port: 82}"));
    let dry = cluster.ok(&["apply", "--dry-run=server", "-f", apply[2]]).await;
    assert!(dry.contains("service/app configured (server dry run)"), "{dry}");
    let port = cluster.ok(&["get", "service", "app", "-o=jsonpath={.spec.ports[0].port}"]).await;
    assert_eq!(port, "81");
    let deleted = cluster.ok(&["delete", "-f", apply[2]]).await;
    // Newer clients add the namespace.
    let lines: Vec<&str> = deleted.lines().map(|line| line.trim_end_matches(" from default namespace")).collect();
    assert_eq!(lines, ["service \"app\" deleted", "statefulset.apps \"db\" deleted"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_patched_labelled_and_annotated() {
    let cluster = Cluster::start().await;
    cluster.ok(&["create", "service", "clusterip", "web", "--tcp=80"]).await;
    cluster.ok(&["label", "service", "web", "a=b"]).await;
    cluster.ok(&["annotate", "service", "web", "note=hello"]).await;
    cluster.ok(&["patch", "service", "web", "-p", "{\"spec\":{\"type\":\"NodePort\"}}"]).await;
    let json = "[{\"op\":\"replace\",\"path\":\"/spec/ports/0/nodePort\",\"value\":31000}]";
    cluster.ok(&["patch", "service", "web", "--type=json", "-p", json]).await;
    cluster.ok(&["patch", "service", "web", "--type=merge", "-p", "{\"metadata\":{\"labels\":{\"a\":null}}}"]).await;
    let shown = cluster.ok(&["get", "service", "web", "-o", "json"]).await;
    let service: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 31000);
    assert_eq!(service["metadata"]["annotations"]["note"], "hello");
    assert_eq!(service["metadata"]["labels"], serde_json::json!({"app": "web"}));
    assert!(cluster.ok(&["get", "service", "-l", "app=web", "-o", "name"]).await.contains("service/web"));
    assert_eq!(
        cluster.ok(&["get", "service", "--field-selector=spec.type=NodePort", "-o", "name"]).await,
        "service/web\n"
    );
    assert!(cluster.ok(&["get", "service", "web", "-o", "yaml"]).await.contains("nodePort: 31000"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_those_of_the_real_server() {
    let cluster = Cluster::start().await;
    cluster.ok(&["create", "service", "nodeport", "web", "--tcp=80", "--node-port=31000"]).await;
    for (arguments, text) in [
        (&["get", "service", "nope"][..], "Error from server (NotFound): services \"nope\" not found"),
        (
            &["create", "service", "clusterip", "web", "--tcp=80"],
            "error: failed to create ClusterIP service: services \"web\" already exists",
        ),
        (
            &["create", "service", "nodeport", "b", "--tcp=80", "--node-port=31000"],
            "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: 31000: provided port is already allocated",
        ),
        (
            &["create", "service", "nodeport", "b", "--tcp=80", "--node-port=80"],
            "provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
        (
            &["create", "service", "clusterip", "b", "--tcp=80", "--clusterip=10.96.0.1"],
            "failed to allocate IP 10.96.0.1: provided IP is already allocated",
        ),
        (
            &["create", "service", "clusterip", "Bad_Name", "--tcp=80"],
            "metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 label must consist of",
        ),
        (&["create", "configmap", "a", "--from-literal=a=b", "-n", "nowhere"], "namespaces \"nowhere\" not found"),
        (
            &["patch", "service", "web", "--type=merge", "-p", "{\"spec\":{\"clusterIP\":\"10.96.0.77\"}}"],
            "spec.clusterIPs[0]: Invalid value: [\"10.96.0.77\"]: may not change once set",
        ),
    ] {
        let error = cluster.refused(arguments).await;
        assert!(error.contains(text), "kubectl {}: {error}", arguments.join(" "));
    }
    let typo = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"t\"},\
                \"spec\":{\"prots\":[],\"ports\":[{\"port\":80}]}}";
    let refused = cluster.run_with(&["create", "-f", "-"], typo.as_bytes()).await;
    assert!(refused.err.contains("unknown field \"spec.prots\""), "{refused:#?}");
    let warned = cluster.run_with(&["create", "--validate=warn", "-f", "-"], typo.as_bytes()).await;
    assert!(warned.err.contains("Warning: unknown field \"spec.prots\""), "{warned:#?}");
    assert_eq!(warned.out, "service/t created\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_is_created_filled_and_deleted() {
    let cluster = Cluster::start().await;
    cluster.ok(&["create", "namespace", "shop"]).await;
    cluster.ok(&["create", "secret", "generic", "s", "--from-literal=a=b", "-n", "shop"]).await;
    cluster.ok(&["run", "p", "--image=signpost/echo", "-n", "shop"]).await;
    assert!(cluster.ok(&["get", "secret,pod,serviceaccount", "-n", "shop"]).await.contains("pod/p"));
    let wide = cluster.ok(&["get", "pods", "-A", "-o", "wide"]).await;
    assert!(wide.lines().nth(1).is_some_and(|line| line.starts_with("shop") && line.contains("Pending")), "{wide}");
    assert!(cluster.ok(&["delete", "namespace", "shop"]).await.starts_with("namespace \"shop\" deleted"));
    assert!(cluster.refused(&["get", "namespace", "shop"]).await.contains("NotFound"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_comes_in_pages_of_one_revision() {
    let cluster = Cluster::start().await;
    let maps: Vec<String> =
        (0..25).map(|n| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m{n:02}}}\n---\n")).collect();
    let list = maps.concat();
    let created = cluster.run_with(&["create", "-f", "-"], list.as_bytes()).await;
    assert_eq!(created.code, 0, "{created:#?}");
    let names = cluster.ok(&["get", "configmaps", "--chunk-size=10", "-o", "name"]).await;
    assert_eq!(names.lines().count(), 25);
    assert_eq!(cluster.ok(&["delete", "configmaps", "--all"]).await.lines().count(), 25);
}
