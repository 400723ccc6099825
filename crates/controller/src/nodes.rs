//! Pure. What a node says of itself, as the controllers ask for it.

use k8s_openapi::api::core::v1::Node;

/// The label of a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// What slices need to know of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its zone, if its label names one.
    pub zone: Option<String>,
}

/// What slices need to know of a node.
pub fn facts(node: &Node) -> NodeFacts {
    let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).filter(|zone| !zone.is_empty());
    NodeFacts { zone: zone.cloned() }
}

/// Whether the condition `Ready` is true.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
