//! The Node objects of a lab, as its kubelet would register them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::error::LabError;
use crate::spec::LabSpec;
use crate::topology::Topology;

/// Makes the Nodes of `spec`, and removes those that a former life of the lab had and this one has not.
///
/// # Errors
/// The API's.
pub async fn register(client: &Client, spec: &LabSpec, topology: &Topology) -> Result<(), LabError> {
    let api: Api<Node> = Api::all(client.clone());
    let wanted: BTreeSet<&str> = spec.nodes.iter().map(|node| node.name.as_str()).collect();
    let old = api.list(&ListParams::default()).await.map_err(LabError::request("list nodes"))?;
    for name in old.items.into_iter().filter_map(|node| node.metadata.name) {
        if !wanted.contains(name.as_str()) {
            let deleted = api.delete(&name, &DeleteParams::default()).await;
            deleted.map_err(LabError::request(format!("delete node {name}")))?;
        }
    }
    for (n, wanted) in (1u8..).zip(&spec.nodes) {
        let node = object(&spec.name, &wanted.name, &wanted.labels, topology, n);
        let refused = || LabError::request(format!("register node {}", wanted.name));
        match api.create(&PostParams::default(), &node).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let patch = json!({"metadata": {"labels": node.metadata.labels}});
                api.patch(&wanted.name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(refused())?;
            }
            Err(error) => return Err(refused()(error)),
        }
        let patch = json!({"status": status(&wanted.name, topology, n)});
        api.patch_status(&wanted.name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(refused())?;
    }
    Ok(())
}

fn object(lab: &str, name: &str, labels: &BTreeMap<String, String>, topology: &Topology, n: u8) -> Node {
    let mut all = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), name.to_owned()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), architecture().to_owned()),
    ]);
    all.extend(labels.clone());
    let cidrs: Vec<String> = topology.pod_cidrs(n).iter().map(ToString::to_string).collect();
    Node {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(all), ..ObjectMeta::default() },
        spec: Some(NodeSpec {
            pod_cidr: cidrs.first().cloned(),
            pod_cidrs: Some(cidrs),
            provider_id: Some(format!("signpost://{lab}/{name}")),
            ..NodeSpec::default()
        }),
        status: Some(status(name, topology, n)),
    }
}

fn status(name: &str, topology: &Topology, n: u8) -> NodeStatus {
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let mut addresses: Vec<NodeAddress> =
        topology.node(n).iter().map(|ip| address("InternalIP", ip.to_string())).collect();
    addresses.push(address("Hostname", name.to_owned()));
    let now = Time(Timestamp::now());
    let condition = |kind: &str, holds: bool, reason: &str| NodeCondition {
        type_: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some("the lab's kubelet is one process for all nodes".to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let resources = BTreeMap::from([
        ("cpu".to_owned(), Quantity(cpus.to_string())),
        ("memory".to_owned(), Quantity("8Gi".to_owned())),
        ("pods".to_owned(), Quantity(crate::topology::POD_HOSTS.count().to_string())),
    ]);
    NodeStatus {
        addresses: Some(addresses),
        conditions: Some(vec![
            condition("MemoryPressure", false, "KubeletHasSufficientMemory"),
            condition("DiskPressure", false, "KubeletHasNoDiskPressure"),
            condition("PIDPressure", false, "KubeletHasSufficientPID"),
            condition("Ready", true, "KubeletReady"),
        ]),
        capacity: Some(resources.clone()),
        allocatable: Some(resources),
        node_info: Some(system_info()),
        ..NodeStatus::default()
    }
}

fn system_info() -> NodeSystemInfo {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let release = read("/etc/os-release");
    let image = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        operating_system: "linux".to_owned(),
        os_image: image.trim_matches('"').to_owned(),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kubelet_version: concat!("v1.36.0+signpost-", env!("CARGO_PKG_VERSION")).to_owned(),
        container_runtime_version: concat!("signpost://", env!("CARGO_PKG_VERSION")).to_owned(),
        ..NodeSystemInfo::default()
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
