//! What a lab has of MetalLB's objects from the start: the namespace that they live in, and with `--lb` addresses to give out.

use kube::Client;
use serde_json::{Value, json};
use signpost_core::object::Family;

use crate::ensure::ensure;
use crate::error::LabError;
use crate::kubelet::MIRROR;
use crate::router::{NODE_ASN, ROUTER_ASN};
use crate::spec::{LabSpec, LoadBalancing};
use crate::topology::Topology;

/// Where MetalLB's objects live.
const NAMESPACE: &str = "metallb-system";

/// Makes what is missing.
///
/// # Errors
/// The API's.
pub async fn prepare(client: &Client, spec: &LabSpec, topology: &Topology) -> Result<(), LabError> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    ensure(client, &namespace, "namespaces").await?;
    if spec.load_balancing.is_some() {
        ensure(client, &pool(spec), "ipaddresspools").await?;
        for node in &spec.nodes {
            ensure(client, &speaker(&node.name), "pods").await?;
        }
    }
    match spec.load_balancing {
        Some(LoadBalancing::L2) => {
            let advertisement = json!({
                "apiVersion": "metallb.io/v1beta1", "kind": "L2Advertisement",
                "metadata": {"name": "default", "namespace": NAMESPACE}, "spec": {"ipAddressPools": ["default"]},
            });
            ensure(client, &advertisement, "l2advertisements").await
        }
        Some(LoadBalancing::Bgp) => {
            let router = topology.router().first().map(ToString::to_string);
            let peer = json!({
                "apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer",
                "metadata": {"name": "router", "namespace": NAMESPACE},
                "spec": {"myASN": NODE_ASN, "peerASN": ROUTER_ASN, "peerAddress": router},
            });
            ensure(client, &peer, "bgppeers").await?;
            let advertisement = json!({
                "apiVersion": "metallb.io/v1beta1", "kind": "BGPAdvertisement",
                "metadata": {"name": "default", "namespace": NAMESPACE}, "spec": {"ipAddressPools": ["default"]},
            });
            ensure(client, &advertisement, "bgpadvertisements").await
        }
        None => Ok(()),
    }
}

/// A pod that stands for a node's daemon, where MetalLB's speaker would be: `kubectl logs` shows what it says.
fn speaker(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("speaker-{node}"), "namespace": NAMESPACE,
            "labels": {"app": "metallb", "component": "speaker", "app.kubernetes.io/component": "speaker"},
            "annotations": {(MIRROR): "daemon"},
        },
        "spec": {
            "nodeName": node, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "speaker", "image": "signpost/node"}],
        },
    })
}

/// Addresses of the node segment that no node has.
fn pool(spec: &LabSpec) -> Value {
    let ranges = spec.families.list().iter().map(|family| match family {
        Family::Ipv4 => "172.18.15.200-172.18.15.210",
        Family::Ipv6 => "fd00:172:18::15:200-fd00:172:18::15:210",
    });
    json!({
        "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
        "metadata": {"name": "default", "namespace": NAMESPACE}, "spec": {"addresses": ranges.collect::<Vec<_>>()},
    })
}
