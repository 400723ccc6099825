//! What `kubectl describe pod` tells of a pod's life: Event objects. Best effort; an event that is not taken is lost.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client};

/// How an event is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Tells something about a pod.
pub fn tell(client: &Client, pod: &Pod, kind: Kind, reason: &str, message: String) {
    let event = event(pod, kind, reason, message, Timestamp::now());
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    tokio::spawn(async move {
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, reason = event.reason, "event not taken");
        }
    });
}

fn event(pod: &Pod, kind: Kind, reason: &str, message: String, now: Timestamp) -> Event {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: pod.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(name),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some(if kind == Kind::Normal { "Normal" } else { "Warning" }.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: node.clone() }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: node,
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
