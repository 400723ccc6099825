//! Who belongs to whom, asked of the caches.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use signpost_core::object::ObjectName;

use crate::cache::{Cache, Cached, Index, name_of, uid_of};
use crate::context::Watched;
use crate::nodes::{self, NodeFacts};
use crate::pods;
use crate::selector::{self, Labels};
use crate::world::{World, labelled, owned_by};

/// The pods that a Service selects; none if it has no selector.
pub fn pods_of_service(world: &World, service: &Service) -> Vec<Arc<Pod>> {
    let Some(pairs) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { return Vec::new() };
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let mut pods = with_pairs(&world.pods, namespace, pairs);
    pods.retain(|pod| selector::has_all(pod.metadata.labels.as_ref(), pairs));
    pods
}

/// The objects that a workload may own: those of its namespace that match its selector, and those that it controls.
pub fn candidates<K: Watched, O: Resource>(world: &World, owner: &O, selector: &LabelSelector) -> Vec<Arc<K>> {
    let cache = K::cache(world);
    let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
    let mut matching = match &selector.match_labels {
        Some(pairs) if !pairs.is_empty() => with_pairs(cache, namespace, pairs),
        _ => cache.in_namespace(&namespace.into()),
    };
    matching.retain(|object| selector::matches(object.meta().labels.as_ref(), selector));
    let controlled = controlled(world, owner);
    let by_name: BTreeMap<ObjectName, Arc<K>> =
        matching.into_iter().chain(controlled).map(|object| (name_of(object.as_ref()), object)).collect();
    by_name.into_values().collect()
}

/// The objects that an owner controls.
pub fn controlled<K: Watched, O: Resource>(world: &World, owner: &O) -> Vec<Arc<K>> {
    let mut owned = K::cache(world).select(&owned_by(uid_of(owner)));
    owned.retain(|object| {
        let controller = pods::controller(object.meta().owner_references.as_ref());
        controller.is_some_and(|controller| controller.uid == uid_of(owner))
    });
    owned
}

/// Through the pair that the fewest objects have.
fn with_pairs<K: Cached>(cache: &Cache<K>, namespace: &str, pairs: &Labels) -> Vec<Arc<K>> {
    let indices = pairs.iter().map(|(key, value)| labelled(namespace, key, value));
    let rarest = indices.min_by_key(|index| cache.count(index));
    rarest.map(|index| cache.select(&index)).unwrap_or_default()
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
    world.nodes.get(&ObjectName::new("", name)).map(|node| nodes::facts(&node))
}
