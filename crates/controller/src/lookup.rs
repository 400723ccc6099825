//! Who belongs to whom, asked of the caches.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use signpost_core::object::ObjectName;

use crate::cache::{Index, name_of};
use crate::endpoint_slices::desired::NodeFacts;
use crate::selector::{self, Labels};
use crate::world::{World, labelled};

/// The label of a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// The pods that a Service selects; none if it has no selector.
pub fn pods_of_service(world: &World, service: &Service) -> Vec<Arc<Pod>> {
    let Some(pairs) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { return Vec::new() };
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let mut pods = pods_with_pairs(world, namespace, pairs);
    pods.retain(|pod| selector::has_all(pod.metadata.labels.as_ref(), pairs));
    pods
}

/// The pods of a namespace that a workload's selector matches.
pub fn pods_matching(world: &World, namespace: &str, selector: &LabelSelector) -> Vec<Arc<Pod>> {
    let mut pods = match &selector.match_labels {
        Some(pairs) if !pairs.is_empty() => pods_with_pairs(world, namespace, pairs),
        _ => world.pods.in_namespace(&namespace.into()),
    };
    pods.retain(|pod| selector::matches(pod.metadata.labels.as_ref(), selector));
    pods
}

/// Through the pair that the fewest pods have.
fn pods_with_pairs(world: &World, namespace: &str, pairs: &Labels) -> Vec<Arc<Pod>> {
    let indices = pairs.iter().map(|(key, value)| labelled(namespace, key, value));
    let rarest = indices.min_by_key(|index| world.pods.count(index));
    rarest.map(|index| world.pods.select(&index)).unwrap_or_default()
}

/// The Services that select a pod.
pub fn services_of_pod(world: &World, pod: &Pod) -> Vec<ObjectName> {
    let namespace: Arc<str> = pod.metadata.namespace.as_deref().unwrap_or_default().into();
    let labels = pod.metadata.labels.as_ref();
    let mut names = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        let index = Index::Selector(namespace.clone(), key.as_str().into(), value.as_str().into());
        for service in world.services.select(&index) {
            let pairs = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            if pairs.is_some_and(|pairs| selector::has_all(labels, pairs)) {
                names.push(name_of(service.as_ref()));
            }
        }
    }
    names
}

/// What slices need to know of a node; `None` if there is no such node.
pub fn node_facts(world: &World, name: &str) -> Option<NodeFacts> {
    let node = world.nodes.get(&ObjectName::new("", name))?;
    let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).filter(|zone| !zone.is_empty());
    Some(NodeFacts { zone: zone.cloned() })
}
