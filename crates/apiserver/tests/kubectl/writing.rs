//! create, apply, patch, label, expose, scale, replace, delete.

use crate::cluster::Cluster;
use crate::objects::WEB;
use serde_json::json;

/// kubectl sends these as protobuf (1.32 and later).
#[tokio::test]
async fn create_makes_each_kind_it_has_a_command_for() {
    let cluster = Cluster::start().await;
    for (line, said) in [
        ("create namespace shop", "namespace/shop created"),
        ("create configmap settings --from-literal=a=1 --from-literal=b=x=y", "configmap/settings created"),
        ("create secret generic key --from-literal=password=s3cret", "secret/key created"),
        ("create serviceaccount robot", "serviceaccount/robot created"),
        ("create service clusterip web --tcp=80:8080 --tcp=443", "service/web created"),
        ("create service nodeport open --tcp=80:http --node-port=30123", "service/open created"),
        ("create service clusterip bare --clusterip=None", "service/bare created"),
        ("create service externalname out --external-name=example.org", "service/out created"),
        ("create service loadbalancer front --tcp=80", "service/front created"),
        ("create deployment web --image=signpost/echo --replicas=3 --port=8080", "deployment.apps/web created"),
        ("run one --image=signpost/echo --port=8080 --env=A=1 --labels=app=one", "pod/one created"),
    ] {
        assert_eq!(cluster.ok(line).await.trim_end(), said, "{line}");
    }
    assert_eq!(cluster.get("configmap settings").await["data"], json!({ "a": "1", "b": "x=y" }));
    assert_eq!(cluster.get("secret key").await["data"], json!({ "password": "czNjcmV0" }));
    assert_eq!(cluster.get("secret key").await["type"], "Opaque");
    let web = cluster.get("service web").await;
    assert_eq!(web["spec"]["selector"], json!({ "app": "web" }));
    let ports = json!([
        { "name": "80-8080", "port": 80, "protocol": "TCP", "targetPort": 8080 },
        { "name": "443", "port": 443, "protocol": "TCP", "targetPort": 443 },
    ]);
    assert_eq!(web["spec"]["ports"], ports);
    assert!(web["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{web}");
    assert_eq!(cluster.get("service open").await["spec"]["ports"][0]["nodePort"], 30123);
    assert_eq!(cluster.get("service bare").await["spec"]["clusterIP"], "None");
    assert_eq!(cluster.get("service out").await["spec"]["externalName"], "example.org");
    assert!(cluster.get("service front").await["spec"]["ports"][0]["nodePort"].is_u64());
    let deployment = cluster.get("deployment web").await;
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(
        deployment["spec"]["template"]["spec"]["containers"][0]["ports"],
        json!([{ "containerPort": 8080, "protocol": "TCP" }])
    );
    assert_eq!(cluster.get("pod one").await["spec"]["containers"][0]["env"], json!([{ "name": "A", "value": "1" }]));
    assert_eq!(cluster.get("namespace shop").await["status"]["phase"], "Active");
}

#[tokio::test]
async fn create_rehearses_and_prints_without_the_server() {
    let cluster = Cluster::start().await;
    let said = cluster.ok("create configmap a --from-literal=k=v --dry-run=server").await;
    assert_eq!(said.trim_end(), "configmap/a created (server dry run)");
    assert!(cluster.fails("get configmap a", "").await.contains("not found"));
    let yaml = cluster.ok("create deployment web --image=old --dry-run=client -o yaml").await;
    assert!(yaml.contains("image: old"), "{yaml}");
    let said = cluster.fed("apply --dry-run=server -f -", &yaml).await;
    assert_eq!(said.trim_end(), "deployment.apps/web created (server dry run)");
    assert_eq!(cluster.fed("create -f -", &yaml).await.trim_end(), "deployment.apps/web created");
    let said = cluster.fed("apply --dry-run=server -f -", &yaml.replace("image: old", "image: new")).await;
    assert!(said.starts_with("deployment.apps/web configured (server dry run)"), "{said}");
    assert_eq!(cluster.get("deployment web").await["spec"]["template"]["spec"]["containers"][0]["image"], "old");
}

#[tokio::test]
async fn apply_creates_changes_and_takes_away() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.fed("apply -f -", WEB).await, "deployment.apps/web created\nservice/web created\n");
    assert_eq!(cluster.fed("apply -f -", WEB).await, "deployment.apps/web unchanged\nservice/web unchanged\n");
    let before = cluster.get("service web").await;
    let changed = WEB.replace("replicas: 2", "replicas: 3").replace("        - { name: A, value: \"1\" }\n", "");
    let changed = changed.replace(", tier: front", "").replace("  - { name: dns, port: 53, protocol: UDP }\n", "");
    assert_eq!(cluster.fed("apply -f -", &changed).await, "deployment.apps/web configured\nservice/web configured\n");
    let deployment = cluster.get("deployment web").await;
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["metadata"]["labels"], json!({ "app": "web" }));
    assert_eq!(deployment["metadata"]["generation"], 2);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["env"], json!([{ "name": "B", "value": "2" }]));
    assert_eq!(container["resources"]["requests"], json!({ "cpu": "500m", "memory": "1Gi" }));
    let after = cluster.get("service web").await;
    assert_eq!(after["spec"]["ports"].as_array().map(Vec::len), Some(1));
    assert_eq!(after["spec"]["clusterIP"], before["spec"]["clusterIP"]);
    assert_eq!(cluster.fed("apply -f -", &changed).await, "deployment.apps/web unchanged\nservice/web unchanged\n");
}

/// What others set stays when a file that does not speak of it is applied again.
#[tokio::test]
async fn apply_keeps_what_others_own() {
    let cluster = Cluster::start().await;
    cluster.fed("apply -f -", WEB).await;
    cluster.ok("set env deployment/web C=3").await;
    cluster.ok("annotate deployment web who=me").await;
    let change = WEB.replace("value: \"2\"", "value: \"4\"");
    assert!(cluster.fed("apply -f -", &change).await.starts_with("deployment.apps/web configured"));
    let deployment = cluster.get("deployment web").await;
    let env = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(
        *env,
        json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "4" }, { "name": "C", "value": "3" }])
    );
    assert_eq!(deployment["metadata"]["annotations"]["who"], "me");
}

#[tokio::test]
async fn patches_of_all_three_forms() {
    let cluster = Cluster::start().await;
    cluster.fed("apply -f -", WEB).await;
    let patch = |kind: &'static str, form: &'static str, patch: &'static str| {
        let cluster = &cluster;
        async move {
            let answer = cluster.words(&["patch", kind, "web", "--type", form, "-p", patch], "").await;
            assert!(answer.ok, "{form}: {}", answer.err);
            answer.out
        }
    };
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"y"}]}}}}"#;
    assert_eq!(patch("deployment", "strategic", strategic).await, "deployment.apps/web patched\n");
    assert_eq!(patch("deployment", "strategic", strategic).await, "deployment.apps/web patched (no change)\n");
    assert_eq!(
        patch("service", "merge", r#"{"spec":{"selector":{"app":null,"x":"y"}}}"#).await,
        "service/web patched\n"
    );
    let json = r#"[{"op":"replace","path":"/spec/replicas","value":5},{"op":"add","path":"/metadata/labels/a~1b","value":"c"}]"#;
    assert_eq!(patch("deployment", "json", json).await, "deployment.apps/web patched\n");
    let deployment = cluster.get("deployment web").await;
    assert_eq!(deployment["spec"]["replicas"], 5);
    assert_eq!(deployment["metadata"]["labels"]["a/b"], "c");
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let mut names: Vec<&str> = containers.iter().filter_map(|container| container["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["echo", "side"]);
    assert_eq!(cluster.get("service web").await["spec"]["selector"], json!({ "x": "y" }));
}

#[tokio::test]
async fn labels_and_annotations_come_and_go() {
    let cluster = Cluster::start().await;
    cluster.ok("create configmap a").await;
    assert_eq!(cluster.ok("label configmap a x=1 y=2").await, "configmap/a labeled\n");
    let error = cluster.fails("label configmap a x=3", "").await;
    assert!(error.contains("'x' already has a value (1), and --overwrite is false"), "{error}");
    assert_eq!(cluster.ok("label configmap a x=3 --overwrite").await, "configmap/a labeled\n");
    assert_eq!(cluster.ok("label configmap a y-").await, "configmap/a unlabeled\n");
    assert_eq!(cluster.ok("annotate configmap a note=hello").await, "configmap/a annotated\n");
    let found = cluster.get("configmap a").await;
    assert_eq!(found["metadata"]["labels"], json!({ "x": "3" }));
    assert_eq!(found["metadata"]["annotations"], json!({ "note": "hello" }));
    let error = cluster.words(&["label", "configmap", "a", "bad key=1"], "").await;
    assert!(!error.ok, "{}", error.out);
}

#[tokio::test]
async fn expose_scale_and_set_image() {
    let cluster = Cluster::start().await;
    cluster.ok("create deployment web --image=signpost/echo --replicas=1").await;
    assert_eq!(cluster.ok("expose deployment web --port=80 --target-port=8080").await, "service/web exposed\n");
    let spec = cluster.get("service web").await["spec"].clone();
    assert_eq!(spec["selector"], json!({ "app": "web" }));
    assert_eq!(spec["ports"], json!([{ "port": 80, "protocol": "TCP", "targetPort": 8080 }]));
    cluster.ok("run one --image=x --port=7 --labels=a=b").await;
    assert_eq!(cluster.ok("expose pod one --type=NodePort --name=door").await, "service/door exposed\n");
    assert_eq!(cluster.get("service door").await["spec"]["ports"][0]["port"], 7);
    assert_eq!(cluster.ok("scale deployment web --replicas=3").await, "deployment.apps/web scaled\n");
    assert_eq!(cluster.get("deployment web").await["spec"]["replicas"], 3);
    let error = cluster.fails("scale deployment web --current-replicas=9 --replicas=1", "").await;
    assert!(error.contains("Expected replicas to be 9, was 3"), "{error}");
    assert_eq!(cluster.ok("scale deployment web --replicas=0").await, "deployment.apps/web scaled\n");
    assert_eq!(cluster.get("deployment web").await["spec"]["replicas"], 0);
    assert_eq!(cluster.ok("set image deployment/web echo=other:1").await, "deployment.apps/web image updated\n");
    let image = cluster.ok("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}").await;
    assert_eq!(image, "other:1");
}

#[tokio::test]
async fn replace_edit_and_delete() {
    let cluster = Cluster::start().await;
    cluster.fed("create -f -", WEB).await;
    let changed = WEB.replace("replicas: 2", "replicas: 4");
    assert_eq!(cluster.fed("replace -f -", &changed).await, "deployment.apps/web replaced\nservice/web replaced\n");
    assert_eq!(cluster.get("deployment web").await["spec"]["replicas"], 4);
    let said = cluster.fed("replace --force -f -", WEB).await;
    assert!(said.ends_with("deployment.apps/web replaced\nservice/web replaced\n"), "{said}");
    assert_eq!(cluster.get("deployment web").await["spec"]["replicas"], 2);
    // kubectl 1.33 and later add the namespace.
    assert!(cluster.ok("delete service web").await.starts_with("service \"web\" deleted"));
    let error = cluster.fails("delete service web", "").await;
    assert!(error.contains("Error from server (NotFound): services \"web\" not found"), "{error}");
    assert_eq!(cluster.ok("delete service web --ignore-not-found").await, "");
    cluster.ok("create configmap a").await;
    cluster.ok("create configmap b").await;
    cluster.ok("label configmap a b x=y").await;
    cluster.ok("delete configmap -l x=y").await;
    assert_eq!(cluster.ok("get configmap -l x=y -o name").await, "");
    cluster.ok("create namespace gone").await;
    cluster.ok("create configmap c -n gone").await;
    cluster.ok("delete namespace gone").await;
    assert!(cluster.fails("get namespace gone", "").await.contains("namespaces \"gone\" not found"));
}

/// A volume's source and a strategy are unions: the old member goes when the file names another.
#[tokio::test]
async fn apply_exchanges_the_members_of_unions() {
    let cluster = Cluster::start().await;
    let with = |strategy: &str, source: &str| {
        let volumes = format!("    spec:\n      volumes: [{{ name: v, {source} }}]\n");
        WEB.replace("  replicas: 2\n", &format!("  replicas: 2\n  strategy: {strategy}\n"))
            .replace("    spec:\n", &volumes)
    };
    cluster.fed("apply -f -", &with("{ rollingUpdate: { maxSurge: 1 } }", "emptyDir: {}")).await;
    cluster.fed("apply -f -", &with("{ type: Recreate }", "configMap: { name: c }")).await;
    let spec = cluster.get("deployment web").await["spec"].clone();
    assert_eq!(spec["strategy"], json!({ "type": "Recreate" }));
    let volumes = json!([{ "name": "v", "configMap": { "name": "c", "defaultMode": 420 } }]);
    assert_eq!(spec["template"]["spec"]["volumes"], volumes);
}

#[tokio::test]
async fn edit_restart_cordon_and_taint() {
    let cluster = Cluster::start().await;
    cluster.fed("apply -f -", WEB).await;
    let editor = "sed -i 's/replicas: 2/replicas: 5/'";
    let answer = cluster.edit("edit deployment web", editor).await;
    assert!(answer.ok && answer.out == "deployment.apps/web edited\n", "{}{}", answer.out, answer.err);
    assert_eq!(cluster.get("deployment web").await["spec"]["replicas"], 5);
    assert_eq!(cluster.ok("rollout restart deployment web").await, "deployment.apps/web restarted\n");
    let annotations = cluster.get("deployment web").await["spec"]["template"]["metadata"]["annotations"].clone();
    assert!(annotations["kubectl.kubernetes.io/restartedAt"].is_string(), "{annotations}");
    cluster.fed("create -f -", r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}"#).await;
    assert_eq!(cluster.ok("cordon n1").await, "node/n1 cordoned\n");
    assert_eq!(cluster.ok("taint node n1 a=b:NoSchedule").await, "node/n1 tainted\n");
    let spec = cluster.get("node n1").await["spec"].clone();
    assert_eq!(spec["unschedulable"], true);
    assert!(spec["taints"].to_string().contains(r#""key":"a""#), "{spec}");
    assert_eq!(cluster.ok("uncordon n1").await, "node/n1 uncordoned\n");
    assert_eq!(cluster.ok("taint node n1 a-").await, "node/n1 untainted\n");
}
