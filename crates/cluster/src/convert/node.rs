//! Pure. A Node of the API to the core's.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as api;
use signpost_core::object::Node;

use super::NodeState;
use super::fields::Fields;

/// The cluster autoscaler's mark on a node that it is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

pub(super) fn convert(fields: &mut Fields, node: &api::Node) -> Option<NodeState> {
    let written = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    let mut addresses: Vec<IpAddr> = Vec::new();
    for (index, entry) in written.iter().enumerate() {
        if entry.type_ == "InternalIP"
            && let Some(address) = fields.address(format!("status.addresses[{index}].address"), &entry.address)
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    let spec = node.spec.as_ref();
    let pod_cidrs = match spec.and_then(|spec| spec.pod_cidrs.as_deref()) {
        None | Some([]) => fields.ranges("spec.podCIDR", spec.map(|spec| spec.pod_cidr.as_slice()).unwrap_or_default()),
        Some(written) => fields.ranges("spec.podCIDRs", written),
    };
    let labels = node.metadata.labels.iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
    let tainted =
        spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default().iter().any(|taint| taint.key == TO_BE_DELETED);
    let eligible = node.metadata.deletion_timestamp.is_none() && !tainted;
    Some(NodeState { node: Node { name: fields.reference().name.clone(), addresses, pod_cidrs, labels }, eligible })
}
