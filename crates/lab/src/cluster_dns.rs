//! The cluster's name service in a lab, as kubeadm sets CoreDNS up: the Service `kube-dns` in `kube-system`, its pods, which
//! run `signpost dns`, and the Corefile in the ConfigMap `coredns`.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use signpost_core::object::Family;
use tokio::time::Instant;

use crate::ensure::{ensure, put};
use crate::error::LabError;
use crate::images::DNS;
use crate::patience::patient;
use crate::spec::LabSpec;
use crate::topology::Topology;

/// Where all of it lives.
pub const NAMESPACE: &str = "kube-system";
/// The Service's name.
pub const SERVICE: &str = "kube-dns";
/// The ConfigMap with the Corefile.
pub const CONFIG: &str = "coredns";
/// The Deployment, and the Secret with the way to the API.
pub const DEPLOYMENT: &str = "signpost-dns";
/// What the names of the pods begin with that are nodes' caches.
pub const CACHE: &str = "node-dns";
/// How many pods answer.
pub const REPLICAS: usize = 2;
/// What the pods are known by.
const LABEL: (&str, &str) = ("k8s-app", "kube-dns");
/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(10);

/// What kubeadm writes, but for what a lab has not: there is nobody to forward to, and a ConfigMap does not change under a pod.
const COREFILE: &str = ".:53 {
    errors
    health {
        lameduck 1s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig /run/dns/api/kubeconfig
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    prometheus :9153
    cache 30
    loop
    loadbalance
}
";

/// Makes what is missing. A Corefile and a Deployment of a former life of the lab stay; its way to the API does not lead anywhere
/// any more.
///
/// # Errors
/// The API's.
pub async fn prepare(client: &Client, spec: &LabSpec, topology: &Topology, kubeconfig: &str) -> Result<(), LabError> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata(DEPLOYMENT),
        "stringData": {"kubeconfig": kubeconfig},
    });
    put(client, &secret, "secrets").await?;
    ensure(client, &corefile(), "configmaps").await?;
    ensure(client, &service(&topology.dns()), "services").await?;
    ensure(client, &deployment(), "deployments").await?;
    prepare_caches(client, spec).await
}

/// The pods that are the nodes' caches, if there shall be any; a DaemonSet would make them in a real cluster.
async fn prepare_caches(client: &Client, spec: &LabSpec) -> Result<(), LabError> {
    for node in spec.nodes.iter().filter(|_| spec.node_cache) {
        ensure(client, &cache(&node.name), "pods").await?;
    }
    Ok(())
}

fn cache(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{CACHE}-{node}"), "namespace": NAMESPACE, "labels": {(LABEL.0): CACHE}},
        "spec": {
            "nodeName": node, "hostNetwork": true, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 5,
            "volumes": [
                {"name": "config", "configMap": {"name": CONFIG}},
                {"name": "api", "secret": {"secretName": DEPLOYMENT}},
            ],
            "containers": [{
                "name": "dns", "image": DNS, "args": ["--node-cache", "--config", "/run/dns/config/NodeCache"],
                "readinessProbe": {
                    "httpGet": {"host": "127.0.0.1", "path": "/ready", "port": 9255}, "periodSeconds": 1, "timeoutSeconds": 5,
                },
                "volumeMounts": [
                    {"name": "config", "mountPath": "/run/dns/config", "readOnly": true},
                    {"name": "api", "mountPath": "/run/dns/api", "readOnly": true},
                ],
            }],
        },
    })
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE, "labels": {(LABEL.0): LABEL.1}})
}

fn corefile() -> Value {
    let of_node = COREFILE
        .replace("    health {", "    health 127.0.0.1:9254 {")
        .replace("    ready\n", "    ready 127.0.0.1:9255\n")
        .replace("prometheus :9153", "prometheus :9253");
    let data = json!({"Corefile": COREFILE, "NodeCache": of_node});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(CONFIG), "data": data})
}

fn service(addresses: &[IpAddr]) -> Value {
    let families = addresses.iter().map(|address| match Family::of(*address) {
        Family::Ipv4 => "IPv4",
        Family::Ipv6 => "IPv6",
    });
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(SERVICE),
        "spec": {
            "selector": {(LABEL.0): LABEL.1},
            "clusterIP": addresses.first(), "clusterIPs": addresses,
            "ipFamilies": families.collect::<Vec<_>>(), "ipFamilyPolicy": policy,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                {"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": 9153},
            ],
        },
    })
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(DEPLOYMENT),
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {(LABEL.0): LABEL.1}},
            "template": {
                "metadata": {"labels": {(LABEL.0): LABEL.1}},
                "spec": {
                    "dnsPolicy": "Default",
                    "volumes": [
                        {"name": "config", "configMap": {"name": CONFIG}},
                        {"name": "api", "secret": {"secretName": DEPLOYMENT}},
                    ],
                    "containers": [{
                        "name": "dns", "image": DNS,
                        "args": ["--config", "/run/dns/config/Corefile"],
                        "ports": [
                            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
                            {"name": "metrics", "containerPort": 9153, "protocol": "TCP"},
                        ],
                        "readinessProbe": {
                            "httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1, "timeoutSeconds": 5,
                        },
                        "livenessProbe": {
                            "httpGet": {"path": "/health", "port": 8080},
                            "initialDelaySeconds": 60, "timeoutSeconds": 5, "failureThreshold": 5,
                        },
                        "volumeMounts": [
                            {"name": "config", "mountPath": "/run/dns/config", "readOnly": true},
                            {"name": "api", "mountPath": "/run/dns/api", "readOnly": true},
                        ],
                    }],
                },
            },
        },
    })
}

/// Waits until as many endpoints as there shall be are ready, and no others there.
///
/// # Errors
/// It took too long, or the API's.
pub async fn wait(client: &Client, limit: Duration) -> Result<(), LabError> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={SERVICE}"));
    let deadline = Instant::now() + patient(limit);
    loop {
        let wanted = replicas(client).await?;
        let found = slices.list(&of_service).await.map_err(LabError::request("list the endpoints of kube-dns"))?;
        let ready = |slice: &EndpointSlice| {
            let endpoints = slice.endpoints.as_deref().unwrap_or_default();
            endpoints.len() == wanted && endpoints.iter().all(is_ready)
        };
        if !found.items.is_empty() && found.items.iter().all(ready) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let missing = format!(
                "not all pods behind the Service {SERVICE} are ready; kubectl -n {NAMESPACE} describe pods says why"
            );
            return Err(LabError::Deadline { waited: limit, missing });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
}

/// How many pods the Deployment is to have: somebody may have scaled it in a former life of the lab.
async fn replicas(client: &Client) -> Result<usize, LabError> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let found = deployments.get_opt(DEPLOYMENT).await;
    let found = found.map_err(LabError::request(format!("get Deployment {DEPLOYMENT}")))?;
    let wanted = found.and_then(|deployment| deployment.spec?.replicas);
    Ok(wanted.and_then(|wanted| usize::try_from(wanted).ok()).unwrap_or(0))
}

/// Puts the Corefile, the Deployment and the nodes' caches back to what [`prepare`] made, if they differ.
///
/// # Errors
/// The API's.
pub async fn restore(client: &Client, spec: &LabSpec) -> Result<(), LabError> {
    prepare_caches(client, spec).await?;
    if replicas(client).await? != REPLICAS {
        put(client, &deployment(), "deployments").await?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let found = maps.get_opt(CONFIG).await.map_err(LabError::request(format!("get ConfigMap {CONFIG}")))?;
    let text = found.and_then(|map| map.data?.remove("Corefile"));
    if text.as_deref() != Some(COREFILE) {
        put(client, &corefile(), "configmaps").await?;
        restart(client).await?;
    }
    Ok(())
}

/// Deletes the pods; the Deployment makes others, which read the Corefile anew.
async fn restart(client: &Client) -> Result<(), LabError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let own = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    for pod in pods.list(&own).await.map_err(LabError::request("list pods"))? {
        match pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(LabError::request("delete a pod of kube-dns")(error)),
        }
    }
    Ok(())
}
