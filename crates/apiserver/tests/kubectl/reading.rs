//! get, describe, explain, diff, watches and waits.

use crate::cluster::Cluster;
use crate::objects::WEB;

fn columns(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test]
async fn get_prints_the_columns_that_people_know() {
    let cluster = Cluster::start().await;
    cluster.fed("create -f -", WEB).await;
    cluster.ok("run one --image=signpost/echo --labels=app=one").await;
    cluster.ok("create configmap c --from-literal=a=b").await;
    cluster.ok("create secret generic s --from-literal=a=b").await;
    for (what, header) in [
        ("services", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("services -o wide", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE SELECTOR"),
        ("services -A", "NAMESPACE NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("services --show-labels", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE LABELS"),
        ("deployments", "NAME READY UP-TO-DATE AVAILABLE AGE"),
        ("deployments -o wide", "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR"),
        ("pods", "NAME READY STATUS RESTARTS AGE"),
        ("pods -o wide", "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"),
        ("namespaces", "NAME STATUS AGE"),
        ("configmaps", "NAME DATA AGE"),
        ("secrets", "NAME TYPE DATA AGE"),
        ("servicecidrs", "NAME CIDRS AGE"),
        ("pods -o custom-columns=N:.metadata.name", "N"),
    ] {
        let out = cluster.ok(&format!("get {what}")).await;
        assert_eq!(columns(out.lines().next().unwrap_or_default()), columns(header), "{what}: {out}");
    }
    let out = cluster.ok("get service web --no-headers").await;
    let row = columns(&out);
    assert_eq!((row[0], row[1], row[3], row[4]), ("web", "ClusterIP", "<none>", "80/TCP,53/UDP"), "{out}");
    let out = cluster.ok("get all -o name").await;
    for name in ["pod/one", "service/kubernetes", "service/web", "deployment.apps/web"] {
        assert!(out.lines().any(|line| line == name), "{name}: {out}");
    }
    let empty = cluster.run("get statefulsets", "").await;
    assert_eq!(empty.err.trim_end(), "No resources found in default namespace.");
}

#[tokio::test]
async fn get_selects_and_sorts_and_shows_objects_whole() {
    let cluster = Cluster::start().await;
    for name in ["b", "a", "c"] {
        cluster.ok(&format!("create configmap {name}")).await;
    }
    cluster.ok("label configmap a b group=x").await;
    assert_eq!(cluster.ok("get configmap -l group=x -o name").await, "configmap/a\nconfigmap/b\n");
    let out = cluster.words(&["get", "configmap", "-l", "group notin (x)", "-o", "name"], "").await.out;
    assert!(out.contains("configmap/c") && !out.contains("configmap/a"), "{out}");
    assert_eq!(cluster.ok("get configmap --field-selector metadata.name=c -o name").await, "configmap/c\n");
    assert_eq!(cluster.ok("get configmap a b -o jsonpath={.items[*].metadata.name}").await, "a b");
    assert_eq!(cluster.ok("get configmap --chunk-size=1 -l group=x -o name").await, "configmap/a\nconfigmap/b\n");
    let yaml = cluster.ok("get service kubernetes -o yaml").await;
    for line in ["apiVersion: v1", "kind: Service", "    component: apiserver", "  type: ClusterIP"] {
        assert!(yaml.lines().any(|found| found == line), "{line}: {yaml}");
    }
    // What was read can be written back.
    let yaml = cluster.ok("get configmap a -o yaml").await;
    assert_eq!(cluster.fed("replace -f -", &yaml).await, "configmap/a replaced\n");
}

#[tokio::test]
async fn describe_tells_of_each_kind() {
    let cluster = Cluster::start().await;
    cluster.fed("create -f -", WEB).await;
    cluster.ok("run one --image=signpost/echo").await;
    for (what, lines) in [
        ("service web", &["Name:", "Selector:", "IP:", "Port:", "TargetPort:", "Endpoints:", "Session Affinity:"][..]),
        ("deployment web", &["Replicas:", "StrategyType:", "RollingUpdateStrategy:", "Pod Template:"]),
        ("pod one", &["Containers:", "QoS Class:", "Tolerations:"]),
        ("namespace default", &["Status:"]),
        ("configmap kube-root-ca.crt --ignore-not-found", &[]),
    ] {
        let out = cluster.run(&format!("describe {what}"), "").await;
        for line in lines {
            assert!(
                out.out.lines().any(|found| found.trim_start().starts_with(line)),
                "{what} {line}: {}{}",
                out.out,
                out.err
            );
        }
    }
}

#[tokio::test]
async fn explain_reads_the_schemas() {
    let cluster = Cluster::start().await;
    let out = cluster.ok("explain service.spec.ports").await;
    for text in [
        "KIND:       Service",
        "VERSION:    v1",
        "FIELD: ports <[]ServicePort>",
        "nodePort\t<integer>",
        "port\t<integer> -required-",
        "targetPort\t<IntOrString>",
    ] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let out = cluster.ok("explain deployment").await;
    assert!(out.contains("GROUP:      apps") && out.contains("spec\t<DeploymentSpec>"), "{out}");
    let out = cluster.ok("explain pod.spec --recursive").await;
    assert!(out.contains("containers\t<[]Container> -required-") && out.contains("httpGet\t<HTTPGetAction>"), "{out}");
    let error = cluster.fails("explain service.spec.nothing", "").await;
    assert!(error.contains("field \"nothing\" does not exist"), "{error}");
}

#[tokio::test]
async fn discovery_knows_every_kind() {
    let cluster = Cluster::start().await;
    let out = cluster.ok("api-resources -o wide").await;
    for row in [
        "services svc v1 true Service create,delete,deletecollection,get,list,patch,update,watch all",
        "deployments deploy apps/v1 true Deployment create,delete,deletecollection,get,list,patch,update,watch all",
        "endpointslices discovery.k8s.io/v1 true EndpointSlice create,delete,deletecollection,get,list,patch,update,watch",
        "servicecidrs networking.k8s.io/v1 false ServiceCIDR create,delete,deletecollection,get,list,patch,update,watch",
    ] {
        assert!(out.lines().any(|line| columns(line) == columns(row)), "{row}: {out}");
    }
    let out = cluster.ok("api-versions").await;
    assert!(out.lines().any(|line| line == "apps/v1") && out.lines().any(|line| line == "v1"), "{out}");
    let out = cluster.ok("version").await;
    assert!(out.contains("Server Version: v1."), "{out}");
    assert!(cluster.ok("cluster-info").await.contains("is running at"));
}

#[tokio::test]
async fn a_watch_prints_what_happens() {
    let cluster = Cluster::start().await;
    let mut watch = cluster.begin("get configmap -w --output-watch-events -l watched=yes");
    // The first list is empty: kubectl prints nothing of it. Each of these makes one line.
    let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"watched":"yes"}}}"#;
    cluster.fed("create -f -", map).await;
    assert_eq!(columns(&watch.line().await), ["EVENT", "NAME", "DATA", "AGE"]);
    assert_eq!(columns(&watch.line().await)[..3], ["ADDED", "a", "0"]);
    cluster.words(&["patch", "configmap", "a", "--type=merge", "-p", r#"{"data":{"k":"v"}}"#], "").await;
    assert_eq!(columns(&watch.line().await)[..3], ["MODIFIED", "a", "1"]);
    cluster.ok("label configmap a watched=no --overwrite").await;
    assert_eq!(columns(&watch.line().await)[..2], ["DELETED", "a"]);
    cluster.ok("label configmap a watched=yes --overwrite").await;
    assert_eq!(columns(&watch.line().await)[..2], ["ADDED", "a"]);
    cluster.ok("delete configmap a").await;
    assert_eq!(columns(&watch.line().await)[..2], ["DELETED", "a"]);
}

#[tokio::test]
async fn wait_ends_when_the_condition_holds() {
    let cluster = Cluster::start().await;
    cluster.ok("create configmap a").await;
    let gone = cluster.begin("wait --for=delete configmap/a --timeout=50s");
    let labeled = cluster.begin("wait --for=jsonpath={.metadata.labels.x}=y configmap/a --timeout=50s");
    cluster.ok("label configmap a x=y").await;
    assert!(labeled.end().await);
    cluster.ok("delete configmap a").await;
    assert!(gone.end().await);
}

#[tokio::test]
async fn diff_shows_what_an_apply_would_change() {
    let cluster = Cluster::start().await;
    cluster.fed("apply -f -", WEB).await;
    let same = cluster.run("diff -f -", WEB).await;
    assert!(same.ok, "{}{}", same.out, same.err);
    let changed = cluster.run("diff -f -", &WEB.replace("replicas: 2", "replicas: 7")).await;
    assert!(
        !changed.ok && changed.out.contains("-  replicas: 2") && changed.out.contains("+  replicas: 7"),
        "{}{}",
        changed.out,
        changed.err
    );
}
