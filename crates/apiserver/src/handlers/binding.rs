//! POST `pods/binding`: a scheduler's decision.

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use crate::clock;
use crate::error::ApiError;
use crate::object;
use crate::respond::json_response;
use crate::state::ServerState;
use crate::store::Transaction;

pub(super) async fn bind(server: &ServerState, call: &Call, binding: &Value) -> Result<Response, ApiError> {
    let node = object::text(binding, &["target", "name"]).unwrap_or("");
    if node.is_empty() {
        return Err(ApiError::bad_request("target.name: Required value"));
    }
    let kind = call.place.kind;
    let decide = |transaction: &mut Transaction<'_>| {
        let name = call.name()?;
        let old = transaction.get(kind, call.place.namespace(), name).ok_or_else(|| call.not_found())?;
        let conflict = |reason| ApiError::Conflict { kind, name: name.to_owned(), reason };
        if object::is_terminating(&old.value) {
            return Err(conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
        }
        let placed = object::text(&old.value, &["spec", "nodeName"]).unwrap_or("");
        if !placed.is_empty() {
            return Err(conflict(format!("pod {name} is already assigned to node {placed:?}")));
        }
        let mut pod = old.value.clone();
        object::child(&mut pod, "spec").insert("nodeName".to_owned(), node.into());
        let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": clock::now()});
        let conditions = object::child(&mut pod, "status").entry("conditions").or_insert_with(|| json!([]));
        if let Some(list) = conditions.as_array_mut() {
            list.retain(|condition| condition["type"] != "PodScheduled");
            list.push(scheduled);
        }
        transaction.put(kind, pod);
        Ok(())
    };
    if call.query.dry_run()? {
        server.store.rehearse(decide)?;
    } else {
        server.store.write(decide).await?;
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(json_response(StatusCode::CREATED, &status))
}
