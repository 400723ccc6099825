//! Pure. What the rules beneath still have to do where programs at the interfaces serve packets: what those leave.
//!
//! | frontend | why |
//! |---|---|
//! | that refuses somebody | a program can drop a packet, but not easily answer it |
//! | of SCTP | programs read TCP and UDP |
//! | for some sources alone, or that drops what the node's own processes send | what they send crosses no interface |
//!
//! And whatever is no frontend: ports that a cluster address does not have, and addresses that no Service has.

use signpost_core::object::Protocol;
use signpost_core::plan::{Frontend, FrontendKey, NodePlan, PlanChange, Target};

/// Whether the rules need a frontend.
fn is_left(key: &FrontendKey, frontend: &Frontend) -> bool {
    let protocol = match key {
        FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. } => *protocol,
    };
    let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
    protocol == Protocol::Sctp
        || !frontend.source_ranges.is_empty()
        || frontend.from_node.target == Target::Drop
        || routes.iter().any(|route| route.target == Target::Reject)
}

/// The plan of the rules.
pub fn plan(whole: &NodePlan) -> NodePlan {
    let frontends = whole.frontends.iter().filter(|(key, frontend)| is_left(key, frontend));
    NodePlan {
        frontends: frontends.map(|(key, frontend)| (*key, frontend.clone())).collect(),
        cluster_cidrs: whole.cluster_cidrs.clone(),
        node_addresses: whole.node_addresses.clone(),
        node_port_addresses: whole.node_port_addresses.clone(),
        service_cidrs: whole.service_cidrs.clone(),
        cluster_ips: whole.cluster_ips.clone(),
        local_endpoints: whole.local_endpoints.clone(),
        family: whole.family,
    }
}

/// The change of that plan: what the rules need no more goes.
pub fn change(whole: &PlanChange) -> PlanChange {
    let (left, served): (Vec<_>, Vec<_>) = whole.set.iter().partition(|(key, frontend)| is_left(key, frontend));
    PlanChange {
        set: left.into_iter().map(|(key, frontend)| (*key, frontend.clone())).collect(),
        removed: served.into_iter().map(|(key, _)| *key).chain(whole.removed.iter().copied()).collect(),
        cluster_ips: whole.cluster_ips.clone(),
        local_endpoints: whole.local_endpoints.clone(),
        node: whole.node.clone(),
    }
}
