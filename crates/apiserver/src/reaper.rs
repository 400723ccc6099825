//! Ends terminating namespaces: deletes what is in them, waits until it is gone, then takes their finalizer off.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::handlers;
use crate::object;
use crate::registry::{self, KINDS, SLOTS};
use crate::server::ApiServer;

/// While something in a terminating namespace waits for its kubelet or its finalizers.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Runs as long as the server is there.
pub fn spawn(server: &Arc<ApiServer>) {
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
async fn look(server: &Weak<ApiServer>) -> Option<bool> {
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

fn terminating(server: &ApiServer) -> Vec<String> {
    let read = server.store.read();
    let namespaces = read.list(registry::known("Namespace"), None).map(|object| &object.value);
    let finalized = |value: &Value| object::items(value, &["spec", "finalizers"]).contains(&json!("kubernetes"));
    namespaces
        .filter(|value| object::is_terminating(value) && finalized(value))
        .map(|value| object::name(value).to_owned())
        .collect()
}

/// Deletes what is there; whether nothing was.
async fn empty(server: &ApiServer, namespace: &str) -> Result<bool, ApiError> {
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

async fn finish(server: &ApiServer, name: &str) -> Result<(), ApiError> {
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
