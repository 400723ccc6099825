//! Pure. What a pod's status says, as the controllers ask for it.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// The condition `Ready`.
pub fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

/// Whether the condition `Ready` is true.
pub fn is_ready(pod: &Pod) -> bool {
    ready_condition(pod).is_some_and(|condition| condition.status == "True")
}

/// The pod's phase; `Pending` when it has none yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Whether its containers ended for good.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether its deletion was asked for.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether it counts as one of its workload's replicas.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(pod)
}

/// How long until the pod counts as available, ready for `min_ready`: zero if it does, `None` if it is not ready.
pub fn until_available(pod: &Pod, min_ready: SignedDuration, now: Timestamp) -> Option<SignedDuration> {
    let condition = ready_condition(pod).filter(|condition| condition.status == "True")?;
    if min_ready <= SignedDuration::ZERO {
        return Some(SignedDuration::ZERO);
    }
    let since = condition.last_transition_time.as_ref().map_or(now, |time| time.0);
    Some((min_ready - now.duration_since(since)).max(SignedDuration::ZERO))
}

/// Whether the pod was ready for `min_ready` at least.
pub fn is_available(pod: &Pod, min_ready: SignedDuration, now: Timestamp) -> bool {
    until_available(pod, min_ready, now) == Some(SignedDuration::ZERO)
}

/// The pod's addresses, in its order; what is no address is left out.
pub fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = pod.status.as_ref() else { return Vec::new() };
    let listed: Vec<IpAddr> = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok()).collect();
    if listed.is_empty() { status.pod_ip.iter().filter_map(|ip| ip.parse().ok()).collect() } else { listed }
}

/// The node it is on.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty())
}

/// The owner that controls an object.
pub fn controller(owners: Option<&Vec<OwnerReference>>) -> Option<&OwnerReference> {
    owners.into_iter().flatten().find(|owner| owner.controller == Some(true))
}
