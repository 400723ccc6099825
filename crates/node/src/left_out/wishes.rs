//! Pure. What pods and namespaces say of their sockets.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation of a pod, or of a namespace for its pods: `leave` or `rewrite`.
pub(super) const SOCKETS: &str = "signpost.dev/sockets";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// What is sent to Services is rewritten as packets.
    Leave,
    /// At the socket, as if nothing were said.
    Rewrite,
}

/// A pod, as far as this matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodWish {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Its own wish, which counts more than the namespace's.
    pub wish: Option<Wish>,
    /// It has no network of its own: its sockets are the node's.
    pub on_host_network: bool,
    /// What in it works by the addresses that connections go to.
    pub works_by_address: Option<&'static str>,
}

/// Names of containers that catch a pod's connections and look where they go.
const PROXIES: [(&str, &str); 3] =
    [("istio-proxy", "Istio's proxy"), ("linkerd-proxy", "Linkerd's proxy"), ("kuma-sidecar", "Kuma's proxy")];

pub(super) fn of_pod(pod: &Pod) -> PodWish {
    let spec = pod.spec.as_ref();
    let containers =
        spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let proxy = |name: &str| PROXIES.into_iter().find(|(known, _)| *known == name).map(|(_, what)| what);
    let is_machine = pod
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get("kubevirt.io"))
        .is_some_and(|what| what == "virt-launcher");
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    PodWish {
        namespace: text(&pod.metadata.namespace),
        name: text(&pod.metadata.name),
        uid: text(&pod.metadata.uid),
        wish: of_annotations(&pod.metadata),
        on_host_network: spec.and_then(|spec| spec.host_network).unwrap_or_default(),
        works_by_address: containers
            .map(|container| container.name.as_str())
            .find_map(proxy)
            .or(is_machine.then_some("a virtual machine")),
    }
}

/// `None` also for what is neither: nothing was understood, nothing is done.
pub(super) fn of_annotations(metadata: &ObjectMeta) -> Option<Wish> {
    match metadata.annotations.as_ref()?.get(SOCKETS)?.as_str() {
        "leave" => Some(Wish::Leave),
        "rewrite" => Some(Wish::Rewrite),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(metadata: serde_json::Value, container: &str) -> PodWish {
        of_pod(
            &serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [{"name": container}]}}))
                .unwrap(),
        )
    }

    #[test]
    fn a_pod_says_what_it_wishes_and_shows_what_it_may_need() {
        assert_eq!(pod(json!({"annotations": {SOCKETS: "leave"}}), "web").wish, Some(Wish::Leave));
        assert_eq!(pod(json!({"annotations": {SOCKETS: "rewrite"}}), "web").wish, Some(Wish::Rewrite));
        assert_eq!(pod(json!({"annotations": {SOCKETS: "Leave"}}), "web").wish, None);
        assert_eq!(pod(json!({}), "web").works_by_address, None);
        assert_eq!(pod(json!({}), "istio-proxy").works_by_address, Some("Istio's proxy"));
        assert_eq!(
            pod(json!({"labels": {"kubevirt.io": "virt-launcher"}}), "compute").works_by_address,
            Some("a virtual machine")
        );
    }
}
