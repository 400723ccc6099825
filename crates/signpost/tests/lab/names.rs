//! The cluster's names in a lab, as real programs in real pods find them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hickory_resolver::Resolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use signpost_lab::{Families, Lab, LabSpec, Netns, Place};

const SIGNPOST: &str = env!("CARGO_BIN_EXE_signpost");

async fn lab(what: &str, nodes: usize, families: Families, image: Option<&Path>) -> Lab {
    let mut spec = LabSpec::new(&format!("t-{what}-{}", std::process::id()), nodes, SIGNPOST.into());
    spec.families = families;
    spec.dns = true;
    spec.images.extend(image.map(|path| ("test/musl".to_owned(), path.to_owned())));
    Lab::start(spec).await.unwrap()
}

fn service(name: &str, spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn pod(name: &str, labels: Value, spec: Value) -> Pod {
    let mut spec = spec;
    spec["terminationGracePeriodSeconds"] = json!(0);
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c", "image": "signpost/echo", "args": ["tcp/8080"]}]);
    }
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec})).unwrap()
}

async fn make(lab: &Lab, services: Vec<Service>, pods: Vec<Pod>) {
    let (all_services, all_pods): (Api<Service>, Api<Pod>) =
        (Api::namespaced(lab.client(), "default"), Api::namespaced(lab.client(), "default"));
    for service in services {
        all_services.create(&PostParams::default(), &service).await.unwrap();
    }
    for pod in &pods {
        all_pods.create(&PostParams::default(), pod).await.unwrap();
    }
    for pod in pods {
        let name = pod.metadata.name.unwrap();
        until(&format!("{name} is ready"), async || {
            let status = all_pods.get(&name).await.unwrap().status.unwrap_or_default();
            status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
        })
        .await;
    }
    lab.settle().await.unwrap();
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn kubectl(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new("kubectl");
    command.env("KUBECONFIG", &lab.record().kubeconfig).args(arguments).stdin(std::process::Stdio::null());
    tokio::task::spawn_blocking(move || command.output().expect("kubectl is installed")).await.unwrap()
}

/// The output of a program in a pod; whether it succeeded stands in it.
async fn inside(lab: &Lab, pod: &str, command: &[&str]) -> String {
    let output = kubectl(lab, &[&["exec", pod, "--"], command].concat()).await;
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same until it says this: the name servers follow the API by themselves.
async fn says(lab: &Lab, pod: &str, command: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = inside(lab, pod, command).await;
        if wanted(&text) {
            return text;
        }
        assert!(Instant::now() < deadline, "{pod}: {command:?} says {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A ClusterIP Service, a headless one with three pods of a StatefulSet's names, a client.
async fn seeds(lab: &Lab) -> Vec<IpAddr> {
    let services = vec![
        service("web", json!({"clusterIP": "10.96.132.41", "selector": {"app": "db"}, "ports": [{"port": 80}]})),
        service("db", json!({"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]})),
    ];
    let db = |n: usize| {
        let node = format!("n{}", n % 2 + 1);
        pod(
            &format!("db-{n}"),
            json!({"app": "db"}),
            json!({"nodeName": node, "hostname": format!("db-{n}"), "subdomain": "db"}),
        )
    };
    let pods = (0..3).map(db).chain([pod("client", json!({}), json!({"nodeName": "n2"}))]).collect();
    make(lab, services, pods).await;
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    let mut addresses = Vec::new();
    for n in 0..3 {
        let status = pods.get(&format!("db-{n}")).await.unwrap().status.unwrap();
        addresses.push(status.pod_ip.unwrap().parse().unwrap());
    }
    addresses
}

#[tokio::test(flavor = "multi_thread")]
async fn nslookup_in_a_pod_prints_the_addresses_of_both_kinds_of_services() {
    let lab = lab("nslookup", 2, Families::Ipv4, None).await;
    let addresses = seeds(&lab).await;
    let head = "Server:\t\t10.96.0.10\nAddress:\t10.96.0.10#53\n\n";
    for name in ["web.default", "web.default.svc.cluster.local", "web"] {
        let text = says(&lab, "client", &["nslookup", name], |text| text.contains("10.96.132.41")).await;
        assert_eq!(text, format!("{head}Name:\tweb.default.svc.cluster.local\nAddress: 10.96.132.41\n\n"));
    }
    // As it stands in many a guide.
    let output = kubectl(&lab, &["exec", "-it", "client", "--", "nslookup", "web.default"]).await;
    let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    assert_eq!(text, format!("{head}Name:\tweb.default.svc.cluster.local\nAddress: 10.96.132.41\n\n"));
    for name in ["db.default", "db.default.svc.cluster.local"] {
        let text = says(&lab, "client", &["nslookup", name], |text| text.matches("Name:").count() == 3).await;
        let rest = text.strip_prefix(head).unwrap();
        let lines: BTreeSet<&str> = rest.lines().filter(|line| !line.is_empty()).collect();
        let addresses = addresses.iter().map(|address| format!("Address: {address}"));
        let wanted: BTreeSet<String> = addresses.chain(["Name:\tdb.default.svc.cluster.local".to_owned()]).collect();
        assert_eq!(lines.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), wanted);
    }
    lab.stop().await.unwrap();
}

/// A program that is linked with musl and needs nothing of the machine.
fn musl_program(folder: &Path) -> PathBuf {
    let program = folder.join("resolve");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/resolve.c");
    let built = Command::new("musl-gcc").args(["-static", "-Os", "-o"]).arg(&program).arg(source).output();
    let built = built.expect("musl-gcc is installed (tools/setup.sh)");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

/// What hickory's stub resolver finds with a pod's resolv.conf, inside of the pod's network.
fn hickory(netns: &Netns, resolv_conf: &str, name: &str) -> BTreeSet<String> {
    let words = |key: &str| -> Vec<String> {
        let lines = resolv_conf.lines().filter_map(|line| line.strip_prefix(key));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    let servers = words("nameserver").iter().map(|text| NameServerConfig::udp_and_tcp(text.parse().unwrap())).collect();
    let searches = words("search").iter().map(|text| text.parse().unwrap()).collect();
    netns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = ResolverConfig::from_parts(None, searches, servers);
            let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
            builder.options_mut().ndots = 5;
            let found = builder.build().unwrap().ipv4_lookup(name).await;
            let addresses = found.into_iter().flat_map(|found| {
                let of = |record: &hickory_resolver::proto::rr::Record| record.data.ip_addr();
                found.answers().iter().filter_map(of).collect::<Vec<_>>()
            });
            addresses.map(|address| address.to_string()).collect()
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn dig_glibc_musl_and_hickory_agree() {
    let folder = tempfile::tempdir().unwrap();
    let program = musl_program(folder.path());
    let lab = lab("agree", 2, Families::Dual, Some(&program)).await;
    let addresses = seeds(&lab).await;
    let text = |list: &[IpAddr]| list.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
    let web = BTreeSet::from(["10.96.132.41".to_owned()]);
    let in_pod = format!("/run/signpost/bin/images{}", program.display());
    let resolv_conf = inside(&lab, "client", &["cat", "/etc/resolv.conf"]).await;
    let netns = lab.namespace_of(&Place::Pod("default".into(), "client".into())).unwrap();
    says(&lab, "client", &["getent", "ahostsv4", "db-2.db"], |text| text.contains("STREAM")).await;
    for (name, wanted) in [
        ("web", web.clone()),
        ("web.default", web.clone()),
        ("web.default.svc", web.clone()),
        ("web.default.svc.cluster.local", web.clone()),
        ("web.default.svc.cluster.local.", web),
        ("db", text(&addresses)),
        ("db-1.db", text(&addresses[1..2])),
        ("nobody.default", BTreeSet::new()),
        ("db-7.db", BTreeSet::new()),
    ] {
        let dig = inside(&lab, "client", &["dig", "+short", "+search", name, "A"]).await;
        let dig = dig.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let glibc = inside(&lab, "client", &["getent", "ahostsv4", name]).await;
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let glibc = glibc.lines().filter_map(first).collect::<BTreeSet<_>>();
        let musl = inside(&lab, "client", &[&in_pod, name]).await;
        let musl = musl.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let (netns, conf) = (netns.clone(), resolv_conf.clone());
        let hickory = tokio::task::spawn_blocking(move || hickory(&netns, &conf, name)).await.unwrap();
        assert_eq!([&dig, &glibc, &musl, &hickory], [&wanted; 4], "{name}: dig, glibc, musl, hickory");
    }
    lab.stop().await.unwrap();
}

/// A name server that a pod asks for by itself, with one name below a domain of its own.
async fn other_name_server(lab: &Lab) -> String {
    let text = ".:53 {\n    hosts {\n        192.0.2.123 known.resolv.conf.local\n    }\n}\n";
    let maps: Api<ConfigMap> = Api::namespaced(lab.client(), "default");
    let map = json!({"metadata": {"name": "other"}, "data": {"Corefile": text}});
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    let spec = json!({
        "dnsPolicy": "Default", "nodeName": "n1",
        "volumes": [{"name": "config", "configMap": {"name": "other"}}],
        "containers": [{
            "name": "dns", "image": "signpost/dns", "args": ["--config", "/run/dns/Corefile"],
            "readinessProbe": {"tcpSocket": {"port": 53}, "periodSeconds": 1},
            "volumeMounts": [{"name": "config", "mountPath": "/run/dns"}],
        }],
    });
    make(lab, vec![], vec![pod("other", json!({}), spec)]).await;
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    pods.get("other").await.unwrap().status.unwrap().pod_ip.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn resolv_conf_follows_policy_and_config() {
    let lab = lab("resolv", 1, Families::Ipv4, None).await;
    let other = other_name_server(&lab).await;
    let long: Vec<String> = (0..8).map(|n| format!("a{n}.{}.example", "x".repeat(40))).collect();
    let odd = ["resolv.conf.local", "_sip._tcp.abc_d.example.com", "."];
    let config = json!({"nameservers": [other], "searches": odd, "options": [{"name": "ndots", "value": "2"}]});
    let mut most = long.clone();
    most.push("resolv.conf.local".to_owned());
    let pods = vec![
        pod("plain", json!({}), json!({})),
        pod(
            "host",
            json!({}),
            json!({"hostNetwork": true, "containers": [{"name": "c", "image": "signpost/echo", "args": ["tcp/8081"]}]}),
        ),
        pod(
            "host-first",
            json!({}),
            json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet", "containers": [{"name": "c", "image": "signpost/echo", "args": ["tcp/8082"]}]}),
        ),
        pod("default", json!({}), json!({"dnsPolicy": "Default"})),
        pod("own", json!({}), json!({"dnsPolicy": "None", "dnsConfig": config})),
        pod("long", json!({}), json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [other], "searches": most}})),
        pod(
            "more",
            json!({}),
            json!({"dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["example.com"], "options": [{"name": "ndots", "value": "3"}]}}),
        ),
    ];
    make(&lab, vec![], pods).await;
    let cluster =
        "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n";
    for (name, wanted) in [
        ("plain", cluster.to_owned()),
        ("host", String::new()),
        ("host-first", cluster.to_owned()),
        ("default", String::new()),
        ("own", format!("search {}\nnameserver {other}\noptions ndots:2\n", odd.join(" "))),
        ("long", format!("search {}\nnameserver {other}\n", most.join(" "))),
        ("more", "search default.svc.cluster.local svc.cluster.local cluster.local example.com\nnameserver 10.96.0.10\nnameserver 1.1.1.1\noptions ndots:3\n".to_owned()),
    ] {
        assert_eq!(inside(&lab, name, &["cat", "/etc/resolv.conf"]).await, wanted, "{name}");
    }
    // And programs go by them.
    for (name, asked, wanted) in [
        ("plain", "kubernetes.default", "10.96.0.1"),
        ("host-first", "kubernetes.default", "10.96.0.1"),
        ("own", "known", "192.0.2.123"),
        ("long", "known", "192.0.2.123"),
    ] {
        says(&lab, name, &["getent", "ahostsv4", asked], |text| text.starts_with(wanted)).await;
    }
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_find_themselves_in_their_hosts_file() {
    let lab = lab("hosts", 1, Families::Ipv4, None).await;
    let services =
        vec![service("sub", json!({"clusterIP": "None", "selector": {"app": "sub"}, "ports": [{"port": 80}]}))];
    let alias = json!([{"ip": "192.0.2.9", "hostnames": ["nine", "neuf"]}]);
    let pods = vec![
        pod(
            "querier",
            json!({"app": "sub"}),
            json!({"hostname": "querier-1", "subdomain": "sub", "hostAliases": alias}),
        ),
        pod(
            "host",
            json!({}),
            json!({"hostNetwork": true, "hostname": "mine", "containers": [{"name": "c", "image": "signpost/echo", "args": ["tcp/8081"]}]}),
        ),
    ];
    make(&lab, services, pods).await;
    assert_eq!(inside(&lab, "querier", &["hostname"]).await, "querier-1\n");
    assert_eq!(inside(&lab, "querier", &["hostname", "-f"]).await, "querier-1.sub.default.svc.cluster.local\n");
    let own = inside(&lab, "querier", &["getent", "ahostsv4", "querier-1.sub.default.svc.cluster.local"]).await;
    assert!(own.starts_with("10.244.1."), "{own}");
    assert!(inside(&lab, "querier", &["getent", "hosts", "neuf"]).await.starts_with("192.0.2.9"));
    assert_eq!(inside(&lab, "host", &["hostname"]).await, "n1\n");
    let text = inside(&lab, "host", &["cat", "/etc/hosts"]).await;
    assert!(
        text.starts_with("# Kubernetes-managed hosts file (host network).\n") && text.contains("172.18.0.11\tn1\n"),
        "{text}"
    );
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_services_have_names() {
    let lab = lab("many", 1, Families::Ipv4, None).await;
    make(&lab, vec![], vec![pod("client", json!({}), json!({}))]).await;
    let services: Api<Service> = Api::namespaced(lab.client(), "default");
    // Whether packets to so many find their way is another matter: the node's rules leave these out.
    let labels = json!({"service.kubernetes.io/service-proxy-name": "nobody"});
    let make = async |n: usize| {
        let service = json!({
            "metadata": {"name": format!("svc-{n}"), "labels": labels},
            "spec": {"ports": [{"port": 80}]},
        });
        services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    };
    futures::stream::iter(0..10_000).for_each_concurrent(16, make).await;
    for n in [0, 1, 4_999, 9_998, 9_999] {
        let address = services.get(&format!("svc-{n}")).await.unwrap().spec.unwrap().cluster_ip.unwrap();
        let name = format!("svc-{n}.default.svc.cluster.local");
        says(&lab, "client", &["dig", "+short", &name], |text| text == format!("{address}\n")).await;
    }
    lab.stop().await.unwrap();
}
