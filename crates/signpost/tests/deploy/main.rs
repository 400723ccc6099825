//! The manifests in deploy/: they are well formed, their programs start with the arguments that they give, and those programs
//! get along with the rights that they give.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod rights;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signpost_apiserver::{ApiConfig, ApiServer};

use rights::{Guard, Rights};

const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_signpost");

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The objects of each file.
fn manifests() -> BTreeMap<String, Vec<Value>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let objects: Vec<Value> =
                    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.insert(path.file_name().unwrap().to_string_lossy().into_owned(), objects);
            }
        }
    }
    found
}

/// A field that the kind does not have is lost on the way through its type.
fn is_whole<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    let back = serde_json::to_value(&typed).unwrap();
    assert_lost_nothing(&object["kind"].to_string(), object, &back);
}

fn assert_lost_nothing(at: &str, written: &Value, kept: &Value) {
    match (written, kept) {
        (Value::Object(written), Value::Object(kept)) => {
            for (name, value) in written {
                let at = format!("{at}.{name}");
                assert_lost_nothing(&at, value, kept.get(name).unwrap_or_else(|| panic!("{at} is no field")));
            }
        }
        (Value::Array(written), Value::Array(kept)) => {
            assert_eq!(written.len(), kept.len(), "{at}");
            written.iter().zip(kept).for_each(|(written, kept)| assert_lost_nothing(at, written, kept));
        }
        _ => assert_eq!(written, kept, "{at}"),
    }
}

#[test]
fn every_object_is_of_its_kind() {
    for (file, objects) in manifests() {
        assert!(!objects.is_empty(), "{file}");
        for object in &objects {
            match object["kind"].as_str().unwrap() {
                "Namespace" => is_whole::<Namespace>(object),
                "ServiceAccount" => is_whole::<ServiceAccount>(object),
                "ClusterRole" => is_whole::<ClusterRole>(object),
                "ClusterRoleBinding" => is_whole::<ClusterRoleBinding>(object),
                "Role" => is_whole::<Role>(object),
                "RoleBinding" => is_whole::<RoleBinding>(object),
                "DaemonSet" => is_whole::<DaemonSet>(object),
                "Deployment" => is_whole::<Deployment>(object),
                "Service" => is_whole::<Service>(object),
                "ConfigMap" => is_whole::<ConfigMap>(object),
                "CustomResourceDefinition" => is_whole::<CustomResourceDefinition>(object),
                other => panic!("{file}: nothing is known of the kind {other}"),
            }
        }
    }
}

#[test]
fn roles_are_bound_to_accounts_that_exist_and_pods_use_them() {
    for (file, objects) in manifests() {
        let named = |kind: &str, namespace: &Value, name: &Value| {
            objects.iter().any(|one| {
                one["kind"] == kind
                    && one["metadata"]["name"] == *name
                    && (namespace.is_null() || one["metadata"]["namespace"] == *namespace)
            })
        };
        for object in &objects {
            if object["kind"].as_str().unwrap().ends_with("RoleBinding") || object["kind"] == "RoleBinding" {
                let (role, subject) = (&object["roleRef"], &object["subjects"][0]);
                let kind = role["kind"].as_str().unwrap();
                let namespace = if kind == "Role" { &object["metadata"]["namespace"] } else { &Value::Null };
                assert!(named(kind, namespace, &role["name"]), "{file}: {role}");
                assert!(named("ServiceAccount", &subject["namespace"], &subject["name"]), "{file}: {subject}");
            }
            let pod = &object["spec"]["template"]["spec"];
            if !pod.is_null() {
                let namespace = &object["metadata"]["namespace"];
                assert!(named("ServiceAccount", namespace, &pod["serviceAccountName"]), "{file}: {pod}");
                assert_eq!(
                    object["spec"]["selector"]["matchLabels"], object["spec"]["template"]["metadata"]["labels"],
                    "{file}"
                );
            }
        }
    }
}

/// The command line that a manifest gives its first container.
fn command_line(objects: &[Value], kind: &str) -> Vec<String> {
    let owner = objects.iter().find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("there is a {kind}"));
    let container = &owner["spec"]["template"]["spec"]["containers"][0];
    let words = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    [words(&container["command"]), words(&container["args"])].concat()
}

/// The API behind a guard, in this network namespace.
struct Cluster {
    server: Arc<ApiServer>,
    guard: Guard,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Cluster {
    async fn new(rights: Rights) -> Cluster {
        let server = ApiServer::open(ApiConfig::default()).await.unwrap();
        let guard = Guard::new(rights);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = guard.before(server.router());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let cluster = Cluster { server, guard, address, folder: tempfile::tempdir().unwrap() };
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "metallb-system"}})).unwrap();
        Api::all(cluster.client()).create(&PostParams::default(), &namespace).await.unwrap();
        cluster
    }

    fn client(&self) -> Client {
        self.server.client()
    }

    /// A kubeconfig, at the path where the manifest's configuration says that it is.
    fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("kubeconfig.conf");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    async fn create(&self, object: Value) {
        let kind = object["kind"].as_str().unwrap();
        let (group, version) = object["apiVersion"].as_str().unwrap().rsplit_once('/').unwrap_or(("", "v1"));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let api: Api<DynamicObject> = match kind {
            "Node" => Api::all_with(self.client(), &resource),
            _ => Api::namespaced_with(self.client(), namespace, &resource),
        };
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    async fn make_load_balancer(&self) {
        self.create(json!({
            "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
            "metadata": {"name": "pool", "namespace": "metallb-system"}, "spec": {"addresses": ["172.18.15.1-172.18.15.9"]},
        }))
        .await;
        self.create(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        }))
        .await;
    }
}

/// A program of a manifest.
struct Program(Child);

impl Program {
    fn start(line: &[String], more: &[String]) -> Program {
        assert_eq!(line[0], "signpost");
        Program(Command::new(PROGRAM).args(&line[1..]).args(more).spawn().unwrap())
    }

    /// Asks it to end; it must end well.
    fn end(mut self) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended: that is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn until<T: Future<Output = bool>>(what: &str, guard: &Guard, is_so: impl Fn() -> T) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, wait).await.is_err() {
        panic!("never: {what}; refused: {:?}", guard.refused());
    }
}

/// In a network namespace of its own, which the programs that it starts share.
fn on_a_node<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("the tests run as root");
        for arguments in [
            "link set lo up",
            "link add eth0 type veth peer name far",
            "link set far up",
            "link set eth0 up",
            "address add 172.18.0.11/16 dev eth0",
            "address add 10.244.1.7/32 dev lo",
        ] {
            assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test());
        runtime.shutdown_timeout(Duration::from_secs(1));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

async fn address_of_web(client: Client) -> bool {
    let service: Service = Api::default_namespaced(client).get("web").await.unwrap();
    let status = service.status.and_then(|status| status.load_balancer);
    status.and_then(|status| status.ingress).is_some_and(|ingress| !ingress.is_empty())
}

#[test]
fn the_controller_gives_addresses_with_the_rights_of_its_manifest_and_its_replica_takes_over() {
    on_a_node(|| async {
        let objects = manifests().remove("controller.yaml").unwrap();
        let line = command_line(&objects, "Deployment");
        let cluster = Cluster::new(Rights::of(&objects)).await;
        let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
        let first = Program::start(&line, std::slice::from_ref(&kubeconfig));
        let leads = |transitions: i32| {
            let client = cluster.client();
            move || {
                let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
                    Api::namespaced(client.clone(), "kube-system");
                async move {
                    let spec = leases.get_opt("signpost-controller").await.unwrap().and_then(|lease| lease.spec);
                    spec.is_some_and(|spec| {
                        spec.lease_transitions == Some(transitions)
                            && spec.holder_identity.is_some_and(|holder| !holder.is_empty())
                    })
                }
            }
        };
        until("the first replica leads", &cluster.guard, leads(0)).await;
        let second = Program::start(&line, &[kubeconfig]);
        first.end();
        until("the second replica leads", &cluster.guard, leads(1)).await;
        cluster.make_load_balancer().await;
        until("the Service has an address", &cluster.guard, || address_of_web(cluster.client())).await;
        until("the pool's status tells", &cluster.guard, || async {
            cluster.guard.has_seen("patch", "configurationstates/status") && cluster.guard.has_seen("create", "events")
        })
        .await;
        second.end();
        assert_eq!(cluster.guard.refused(), []);
        cluster.server.close();
    });
}

#[test]
fn the_node_daemon_serves_and_announces_with_the_rights_of_its_manifest() {
    on_a_node(|| async {
        let objects = manifests().remove("node.yaml").unwrap();
        let cluster = Cluster::new(Rights::of(&objects)).await;
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.11"}], "conditions": [{"type": "Ready", "status": "True"}]},
        });
        cluster.create(node.clone()).await;
        let nodes: Api<Node> = Api::all(cluster.client());
        nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(&node)).await.unwrap();
        cluster.make_load_balancer().await;
        let services: Api<Service> = Api::default_namespaced(cluster.client());
        let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "172.18.15.1"}]}}});
        services.patch_status("web", &PatchParams::default(), &Patch::Merge(&ingress)).await.unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.1.7"], "nodeName": "n1", "conditions": {"ready": true}}],
        }))
        .unwrap();
        Api::default_namespaced(cluster.client()).create(&PostParams::default(), &slice).await.unwrap();
        for kind in ["L2Advertisement", "BGPAdvertisement"] {
            cluster
                .create(json!({
                    "apiVersion": "metallb.io/v1beta1", "kind": kind, "metadata": {"name": "all", "namespace": "metallb-system"}, "spec": {},
                }))
                .await;
        }
        cluster
            .create(json!({
                "apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer", "metadata": {"name": "router", "namespace": "metallb-system"},
                "spec": {"myASN": 64500, "peerASN": 64501, "peerAddress": "172.18.0.1"},
            }))
            .await;

        // What kubeadm puts into the ConfigMap kube-proxy, with its files in this test's folder.
        let config = cluster.folder.path().join("config.conf");
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nbindAddress: 0.0.0.0\nbindAddressHardFail: false\n\
             clientConnection:\n  acceptContentTypes: \"\"\n  burst: 0\n  contentType: \"\"\n  kubeconfig: {}\n  qps: 0\nclusterCIDR: 10.244.0.0/16\n\
             configSyncPeriod: 0s\nconntrack:\n  maxPerCore: null\n  min: null\n  tcpBeLiberal: false\n  tcpCloseWaitTimeout: null\n  tcpEstablishedTimeout: null\n\
             detectLocalMode: \"\"\nenableProfiling: false\nhealthzBindAddress: \"\"\nhostnameOverride: \"\"\nmetricsBindAddress: \"\"\nmode: \"\"\nnodePortAddresses: null\noomScoreAdj: null\nportRange: \"\"\n",
            cluster.kubeconfig().display()
        );
        std::fs::write(&config, text).unwrap();
        let place = |word: String| {
            // Of this kernel's means only those that are this network namespace's own.
            let word = word.replace("--proxy-mode=auto", "--proxy-mode=nftables");
            word.replace("/var/lib/kube-proxy/config.conf", &config.to_string_lossy()).replace("$(NODE_NAME)", "n1")
        };
        let line: Vec<String> = command_line(&objects, "DaemonSet").into_iter().map(place).collect();
        let daemon = Program::start(&line, &[]);
        until("it announces", &cluster.guard, || async {
            cluster.guard.has_seen("update", "servicel2statuses/status") && cluster.guard.has_seen("create", "events")
        })
        .await;
        until("it tells of its BGP session", &cluster.guard, || async {
            cluster.guard.has_seen("update", "bgpsessionstates/status")
        })
        .await;
        daemon.end();
        assert_eq!(cluster.guard.refused(), []);
        cluster.server.close();
    });
}

#[test]
fn the_name_server_and_the_nodes_cache_follow_the_api_with_the_rights_of_their_manifests() {
    on_a_node(|| async {
        for (file, kind, server) in
            [("dns.yaml", "Deployment", "127.0.0.1"), ("node-cache.yaml", "DaemonSet", "169.254.20.10")]
        {
            let objects = manifests().remove(file).unwrap();
            let cluster = Cluster::new(Rights::of(&objects)).await;
            cluster
                .create(json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                    "spec": {"clusterIP": "10.96.132.41", "ports": [{"port": 80}]},
                }))
                .await;
            // What kubeadm puts into the ConfigMap coredns, with `pods verified`, which asks for the most.
            let corefile = cluster.folder.path().join("Corefile");
            let text = ".:53 {\n    errors\n    health {\n       lameduck 0s\n    }\n    ready\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n       \
                 pods verified\n       fallthrough in-addr.arpa ip6.arpa\n       ttl 30\n    }\n    prometheus :9153\n    forward . 192.0.2.1 {\n       \
                 max_concurrent 1000\n    }\n    cache 30\n    loop\n    reload\n    loadbalance\n}\n";
            std::fs::write(&corefile, text).unwrap();
            let place = |word: String| word.replace("/etc/coredns/Corefile", &corefile.to_string_lossy());
            let line: Vec<String> = command_line(&objects, kind).into_iter().map(place).collect();
            let program = Program::start(&line, &[format!("--kubeconfig={}", cluster.kubeconfig().display())]);
            if kind == "DaemonSet" {
                // The node daemon would give the node this address.
                let added =
                    Command::new("ip").args(["address", "add", "169.254.20.10/32", "dev", "lo"]).status().unwrap();
                assert!(added.success());
            }
            until("the name is answered", &cluster.guard, || async {
                let ask = ["+short", "+tries=1", "+time=2", &format!("@{server}"), "web.default.svc.cluster.local"];
                let found = Command::new("dig").args(ask).output().expect("dig is installed (tools/setup.sh)");
                found.stdout == b"10.96.132.41\n"
            })
            .await;
            program.end();
            assert_eq!(cluster.guard.refused(), []);
            cluster.server.close();
        }
    });
}
