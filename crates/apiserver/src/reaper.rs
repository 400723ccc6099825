//! What goes by itself: the content of terminating namespaces, then their finalizer; Events after an hour.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::handlers;
use crate::object;
use crate::registry::{self, KINDS, SLOTS};
use crate::state::ServerState;

/// While something in a terminating namespace waits for its kubelet or its finalizers.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// An Event is kept so long after it was last seen.
const EVENT_LIFE: SignedDuration = SignedDuration::from_hours(1);
const EVENTS_EVERY: Duration = Duration::from_secs(60);

/// Deletes old Events as long as the server is there.
pub fn spawn_event_expiry(server: &Arc<ServerState>) {
    let closing = server.closing.clone();
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = closing.cancelled() => return,
                () = tokio::time::sleep(EVENTS_EVERY) => {}
            }
            let Some(server) = server.upgrade() else { return };
            expire_events(&server, Timestamp::now()).await;
        }
    });
}

async fn expire_events(server: &ServerState, now: Timestamp) {
    let kind = registry::known("Event");
    let found: Vec<_> = server.store.read().list(kind, None).cloned().collect();
    for event in found.iter().filter(|event| is_old(&event.value, now)) {
        let (namespace, name) = (object::namespace(&event.value), object::name(&event.value));
        if let Err(error) = handlers::delete_in_background(server, kind, namespace, name).await {
            tracing::warn!(%error, "cannot delete an old event");
            return;
        }
    }
}

fn is_old(event: &Value, now: Timestamp) -> bool {
    let times =
        [&["metadata", "creationTimestamp"][..], &["lastTimestamp"], &["eventTime"], &["series", "lastObservedTime"]];
    let newest = times.into_iter().filter_map(|path| object::text(event, path)?.parse::<Timestamp>().ok()).max();
    newest.is_some_and(|newest| now.duration_since(newest) > EVENT_LIFE)
}

/// Runs as long as the server is there.
pub fn spawn(server: &Arc<ServerState>) {
    let mut changed = server.store.changed(registry::known("Namespace"));
    let closing = server.closing.clone();
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        loop {
            changed.mark_unchanged();
            let Some(waiting) = look(&server).await else { return };
            tokio::select! {
                () = closing.cancelled() => return,
                changed = changed.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_AGAIN), if waiting => {}
            }
        }
    });
}

/// One pass over all terminating namespaces: whether any is left. `None`: the server is gone.
async fn look(server: &Weak<ServerState>) -> Option<bool> {
    let server = server.upgrade()?;
    let mut waiting = false;
    for name in terminating(&server) {
        match empty(&server, &name).await {
            Ok(true) => {
                if let Err(error) = finish(&server, &name).await {
                    tracing::warn!(namespace = name, %error, "cannot end a namespace");
                    waiting = true;
                }
            }
            Ok(false) => waiting = true,
            Err(error) => {
                tracing::warn!(namespace = name, %error, "cannot empty a namespace");
                waiting = true;
            }
        }
    }
    Some(waiting)
}

fn terminating(server: &ServerState) -> Vec<String> {
    let read = server.store.read();
    let namespaces = read.list(registry::known("Namespace"), None).map(|object| &object.value);
    let finalized = |value: &Value| object::items(value, &["spec", "finalizers"]).contains(&json!("kubernetes"));
    namespaces
        .filter(|value| object::is_terminating(value) && finalized(value))
        .map(|value| object::name(value).to_owned())
        .collect()
}

/// Deletes what is there; whether nothing was.
async fn empty(server: &ServerState, namespace: &str) -> Result<bool, ApiError> {
    let mut nothing = true;
    for kind in KINDS[..SLOTS].iter().filter(|kind| kind.namespaced) {
        let found: Vec<_> = server.store.read().list(kind, Some(namespace)).cloned().collect();
        for object in found {
            nothing = false;
            if !object::is_terminating(&object.value) {
                handlers::delete_in_background(server, kind, namespace, object::name(&object.value)).await?;
            }
        }
    }
    Ok(nothing)
}

async fn finish(server: &ServerState, name: &str) -> Result<(), ApiError> {
    let kind = registry::known("Namespace");
    server
        .store
        .write(|transaction| {
            let Some(old) = transaction.get(kind, "", name) else { return Ok(()) };
            let mut value = old.value.clone();
            let spec = object::child(&mut value, "spec");
            if let Some(finalizers) = spec.get_mut("finalizers").and_then(Value::as_array_mut) {
                finalizers.retain(|finalizer| finalizer != "kubernetes");
            }
            if handlers::is_finished(kind, &value) {
                transaction.delete(kind, value);
            } else {
                transaction.put(kind, value);
            }
            Ok(())
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_lives_an_hour_from_when_it_was_last_seen() {
        let now = "2026-01-01T02:00:00Z".parse().unwrap();
        let created = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(is_old(&created, now));
        let mut seen = created.clone();
        seen["series"] = json!({"lastObservedTime": "2026-01-01T01:30:00.000000Z"});
        assert!(!is_old(&seen, now));
        assert!(!is_old(&json!({}), now));
    }
}
