//! What `kubectl describe pod` tells of a pod's life: Event objects. The same thing told again is counted, not told as
//! something new. Best effort; an event that is not taken is lost.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client};

/// How often an event is tried while others tell the same.
const ATTEMPTS: usize = 8;

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
        if let Err(error) = put(&api, &event).await {
            tracing::debug!(%error, reason = event.reason, "event not taken");
        }
    });
}

/// Creates an event, or counts it if it was told before.
async fn put(api: &Api<Event>, event: &Event) -> kube::Result<()> {
    let name = event.metadata.name.clone().unwrap_or_default();
    let mut result = api.create(&PostParams::default(), event).await.map(drop);
    for _ in 0..ATTEMPTS {
        match &result {
            // There already, or changed or forgotten since it was read.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            _ => break,
        }
        result = match api.get_opt(&name).await? {
            None => api.create(&PostParams::default(), event).await.map(drop),
            Some(known) => api.replace(&name, &PostParams::default(), &counted(known, event)).await.map(drop),
        };
    }
    result
}

fn counted(known: Event, again: &Event) -> Event {
    let count = known.count.unwrap_or(1).saturating_add(1);
    Event { count: Some(count), last_timestamp: again.last_timestamp.clone(), ..known }
}

/// The same for the same thing told of the same pod.
fn event_name(pod: &Pod, reason: &str, message: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (&pod.metadata.uid, reason, message).hash(&mut hasher);
    format!("{}.{:016x}", pod.metadata.name.as_deref().unwrap_or_default(), hasher.finish())
}

fn event(pod: &Pod, kind: Kind, reason: &str, message: String, now: Timestamp) -> Event {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(pod, reason, &message)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_told_again_is_counted_and_something_else_is_not() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-1".into());
        let at = |second, message: &str| {
            event(&pod, Kind::Warning, "Failed", message.into(), Timestamp::from_second(second).unwrap())
        };
        let (first, again, other) = (at(1, "a"), at(9, "a"), at(9, "b"));
        assert_eq!(first.metadata.name, again.metadata.name);
        assert_ne!(first.metadata.name, other.metadata.name);
        let counted = counted(counted(first.clone(), &again), &again);
        assert_eq!(counted.count, Some(3));
        assert_eq!((counted.first_timestamp, counted.last_timestamp), (first.first_timestamp, again.last_timestamp));
    }
}
