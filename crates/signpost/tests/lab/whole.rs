//! A lab as a whole, with its real processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use signpost_lab::{Families, Lab, LabSpec, Place};

const SIGNPOST: &str = env!("CARGO_BIN_EXE_signpost");

async fn lab(what: &str, nodes: usize, families: Families) -> Lab {
    let mut spec = LabSpec::new(&format!("t-{what}-{}", std::process::id()), nodes, SIGNPOST.into());
    spec.families = families;
    Lab::start(spec).await.unwrap()
}

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn light(name: &str, node: &str) -> Pod {
    pod(json!({
        "metadata": {"name": name, "annotations": {"lab.signpost.dev/light": "true"}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "echo", "image": "signpost/echo", "args": ["--listen", "tcp/8080"]}]}
    }))
}

fn get(lab: &Lab, from: &Place, to: &str) -> Result<Value, String> {
    let netns = lab.namespace_of(from).unwrap();
    let to: std::net::SocketAddr = to.parse().unwrap();
    netns.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2)).map_err(|e| e.to_string())?;
        stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").map_err(|e| e.to_string())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|e| e.to_string())?;
        let body = text.split_once("\r\n\r\n").ok_or("no answer")?.1;
        serde_json::from_str(body).map_err(|e| e.to_string())
    })
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn status(pods: &Api<Pod>, name: &str) -> Value {
    serde_json::to_value(pods.get(name).await.unwrap().status).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn light_pods_serve_as_soon_as_the_lab_is_settled() {
    let lab = lab("light", 2, Families::Dual).await;
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n2")] {
        pods.create(&PostParams::default(), &light(name, node)).await.unwrap();
    }
    lab.settle().await.unwrap();
    let b = status(&pods, "b").await;
    assert_eq!(b["phase"], "Running");
    assert_eq!(b["podIPs"], json!([{"ip": "10.244.2.2"}, {"ip": "fd00:10:244:2::2"}]));
    assert_eq!(b["hostIP"], "172.18.0.12");
    let a = Place::Pod("default".into(), "a".into());
    for place in [a.clone(), Place::Node("n1".into()), Place::Outside] {
        for to in ["10.244.2.2:8080", "[fd00:10:244:2::2]:8080"] {
            let answer = get(&lab, &place, to).unwrap();
            assert_eq!((&answer["pod"], &answer["node"]), (&json!("b"), &json!("n2")), "{place} {to}");
        }
    }
    assert_eq!(
        get(&lab, &a, "10.244.2.2:8080").unwrap()["peer"].as_str().unwrap().split(':').next(),
        Some("10.244.1.2")
    );

    let annotate = async |name: &str, key: &str, value: &str| {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        pods.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        lab.settle().await.unwrap();
    };
    annotate("b", "lab.signpost.dev/ready", "false").await;
    assert_eq!(status(&pods, "b").await["containerStatuses"][0]["ready"], false);
    annotate("b", "lab.signpost.dev/listening", "false").await;
    assert!(get(&lab, &a, "10.244.2.2:8080").unwrap_err().contains("refused"));
    annotate("b", "lab.signpost.dev/listening", "true").await;
    assert!(get(&lab, &a, "10.244.2.2:8080").is_ok());

    pods.delete("b", &DeleteParams::default()).await.unwrap();
    until("b is gone", async || pods.get_opt("b").await.unwrap().is_none()).await;
    lab.settle().await.unwrap();
    let dir = lab.record().dir.clone();
    lab.stop().await.unwrap();
    assert!(!dir.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_restart_and_end_as_kubernetes_says() {
    let lab = lab("pods", 1, Families::Ipv4).await;
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    let make = async |name: &str, spec: Value| {
        let mut spec = spec;
        spec["nodeName"] = json!("n1");
        pods.create(&PostParams::default(), &pod(json!({"metadata": {"name": name}, "spec": spec}))).await.unwrap();
    };
    make(
        "echo",
        json!({"containers": [{"name": "c", "image": "signpost/echo",
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}}]}),
    )
    .await;
    make("nothing", json!({"containers": [{"name": "c", "image": "nginx:1.29"}]})).await;
    make("job", json!({"restartPolicy": "Never", "initContainers": [{"name": "i", "image": "signpost/echo", "command": ["true"]}],
        "containers": [{"name": "c", "image": "signpost/echo", "command": ["sh", "-c", "echo done; exit 3"]}]})).await;
    make("crash", json!({"containers": [{"name": "c", "image": "signpost/echo", "command": ["false"]}]})).await;
    make(
        "trap",
        json!({"terminationGracePeriodSeconds": 30, "containers": [{"name": "c", "image": "signpost/echo",
        "command": ["sh", "-c", "trap 'echo bye; exit 0' TERM; while true; do sleep 0.05; done"]}]}),
    )
    .await;
    lab.settle().await.unwrap();
    let node: k8s_openapi::api::core::v1::Node = Api::all(lab.client()).get("n1").await.unwrap();
    assert_eq!(node.spec.unwrap().provider_id, Some(format!("signpost://{}/n1", lab.record().name)));
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(lab.client(), "kube-node-lease");
    until("the node has a lease", async || leases.get_opt("n1").await.unwrap().is_some()).await;
    until("echo is ready", async || status(&pods, "echo").await["containerStatuses"][0]["ready"] == true).await;
    let nothing = status(&pods, "nothing").await;
    let waiting = &nothing["containerStatuses"][0]["state"]["waiting"];
    let reason = waiting["reason"].as_str().unwrap();
    assert_eq!(nothing["phase"], "Pending");
    assert!(["ErrImagePull", "ImagePullBackOff"].contains(&reason), "{reason}");
    assert!(waiting["message"].as_str().unwrap().contains("--image nginx=/path"), "{waiting}");
    until("job failed", async || status(&pods, "job").await["phase"] == "Failed").await;
    let terminated = &status(&pods, "job").await["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&terminated["exitCode"], &terminated["reason"]), (&json!(3), &json!("Error")));
    until("crash backs off", async || {
        let status = status(&pods, "crash").await;
        let container = &status["containerStatuses"][0];
        container["state"]["waiting"]["reason"] == "CrashLoopBackOff" && container["restartCount"] == 1
    })
    .await;
    let answer = get(
        &lab,
        &Place::Node("n1".into()),
        &format!("{}:8080", status(&pods, "echo").await["podIP"].as_str().unwrap()),
    );
    assert_eq!(answer.unwrap()["pod"], "echo");
    pods.delete("trap", &DeleteParams::default()).await.unwrap();
    let began = Instant::now();
    until("trap is gone", async || pods.get_opt("trap").await.unwrap().is_none()).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    let cgroup = signpost_lab::cgroup::Cgroup::labs().unwrap().child(&lab.record().name);
    lab.stop().await.unwrap();
    assert!(!Path::new(cgroup.path()).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_liveness_fails_is_started_anew_and_its_former_log_stays() {
    let lab = lab("liveness", 1, Families::Ipv4).await;
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    let script = "echo run; touch /tmp/alive; sleep 0.3; rm /tmp/alive; exec sleep 600";
    let spec = json!({"nodeName": "n1", "terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": "signpost/echo", "command": ["sh", "-c", script],
        "livenessProbe": {"exec": {"command": ["test", "-e", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 1},
    }]});
    pods.create(&PostParams::default(), &pod(json!({"metadata": {"name": "a"}, "spec": spec}))).await.unwrap();
    until("it was started anew", async || status(&pods, "a").await["containerStatuses"][0]["restartCount"] == 1).await;
    let last = &status(&pods, "a").await["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 143, "ended by SIGTERM");
    let previous = kube::api::LogParams { previous: true, ..Default::default() };
    assert_eq!(pods.logs("a", &previous).await.unwrap(), "run\n");
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_volumes_variables_and_images_as_they_ask() {
    let mut spec = LabSpec::new(&format!("t-volumes-{}", std::process::id()), 1, SIGNPOST.into());
    spec.families = Families::Ipv4;
    spec.images = [("sleeper", "/usr/bin/sleep"), ("other", "/usr/bin/sleep")]
        .map(|(name, path)| (name.to_owned(), path.into()))
        .into();
    let lab = Lab::start(spec).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(lab.client(), "default");
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(lab.client(), "default");
    let map = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap();
    let make = async |name: &str, spec: Value| {
        let mut spec = spec;
        spec["nodeName"] = json!("n1");
        pods.create(&PostParams::default(), &pod(json!({"metadata": {"name": name}, "spec": spec}))).await.unwrap();
    };
    let waits = async |name: &str, reason: &str, words: &str| {
        until(&format!("{name} waits: {reason}"), async || {
            let waiting = status(&pods, name).await["containerStatuses"][0]["state"]["waiting"].clone();
            waiting["reason"] == reason && waiting["message"].as_str().is_some_and(|text| text.contains(words))
        })
        .await;
    };
    maps.create(&PostParams::default(), &map("map")).await.unwrap();
    let secret = serde_json::from_value(json!({"metadata": {"name": "s"}, "data": {"k": "c2VjcmV0"}})).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let script = "test \"$(cat /etc/web/a)/$(cat /secret/k)/$A/$K/$NAME\" = 1/secret/1/secret/full && echo x > /work/x && ! touch /secret/x";
    make("full", json!({"restartPolicy": "Never",
        "volumes": [{"name": "m", "configMap": {"name": "map"}}, {"name": "s", "secret": {"secretName": "s"}}, {"name": "e", "emptyDir": {}}],
        "containers": [{"name": "c", "image": "signpost/echo", "command": ["sh", "-c", script],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "a"}}},
                {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "volumeMounts": [{"name": "m", "mountPath": "/etc/web"}, {"name": "s", "mountPath": "/secret"}, {"name": "e", "mountPath": "/work"}]}]})).await;
    make(
        "host",
        json!({"volumes": [{"name": "h", "hostPath": {"path": "/etc"}}],
        "containers": [{"name": "c", "image": "signpost/echo"}]}),
    )
    .await;
    make(
        "late",
        json!({"containers": [{"name": "c", "image": "sleeper", "args": ["1000"],
        "envFrom": [{"configMapRef": {"name": "later"}}]}]}),
    )
    .await;
    make("missing", json!({"containers": [{"name": "c", "image": "signpost/echo", "command": ["nope"]}]})).await;
    until("full succeeded", async || status(&pods, "full").await["phase"] == "Succeeded").await;
    waits("host", "CreateContainerConfigError", "not hostPath").await;
    waits("late", "CreateContainerConfigError", "configmap \"later\" not found").await;
    maps.create(&PostParams::default(), &map("later")).await.unwrap();
    until("late runs", async || status(&pods, "late").await["phase"] == "Running").await;
    let patch = json!({"spec": {"containers": [{"name": "c", "image": "other"}]}});
    pods.patch("late", &PatchParams::default(), &Patch::Strategic(&patch)).await.unwrap();
    until("late runs another image", async || {
        let container = &status(&pods, "late").await["containerStatuses"][0];
        container["restartCount"] == 1 && container["image"] == "other" && container["state"]["running"].is_object()
    })
    .await;
    waits("missing", "CrashLoopBackOff", "back-off 10s").await;
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(lab.client(), "default");
    until("the second failure is counted with the first", async || {
        let listed = events.list(&Default::default()).await.unwrap();
        let mut failed = listed.items.iter().filter(|event| event.involved_object.name.as_deref() == Some("missing"));
        failed.any(|event| event.reason.as_deref() == Some("Failed") && event.count >= Some(2))
    })
    .await;
    let missing = &status(&pods, "missing").await["containerStatuses"][0];
    assert_eq!(missing["restartCount"], 1);
    let terminated = &missing["lastState"]["terminated"];
    assert_eq!(terminated["reason"], "StartError");
    assert!(terminated["message"].as_str().unwrap().contains("executable file not found in $PATH"), "{terminated}");
    let kubectl = std::process::Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(&lab.record().kubeconfig)
        .args(["exec", "late", "--", "nope"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&kubectl.stderr);
    assert!(said.contains("executable file not found in $PATH"), "{said}");
    assert_eq!(kubectl.status.code(), Some(127), "{said}");
    lab.stop().await.unwrap();
}
