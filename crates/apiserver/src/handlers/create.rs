//! POST: a new object.

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use crate::admission;
use crate::error::ApiError;
use crate::object;
use crate::registry;
use crate::respond::{json_response, shown_one};
use crate::state::ServerState;
use crate::store::{Object, Transaction};
use crate::views;

pub(super) async fn create(server: &ServerState, call: &Call, mut body: Value) -> Result<Response, ApiError> {
    if call.place.kind.namespaced && call.place.namespace.is_none() {
        return Err(ApiError::MethodNotAllowed);
    }
    views::to_stored(call.place.kind, &mut body);
    let decide = |transaction: &mut Transaction<'_>| insert(transaction, call, body);
    let value = if call.query.dry_run()? {
        let mut object = server.store.rehearse(decide)?.value.clone();
        object::metadata(&mut object).remove("resourceVersion");
        object
    } else {
        server.store.write(decide).await?.value.clone()
    };
    Ok(json_response(StatusCode::CREATED, &shown_one(call.place.kind, &value, call.look())))
}

/// Admits and stores a new object.
pub(super) fn insert(
    transaction: &mut Transaction<'_>,
    call: &Call,
    mut object: Value,
) -> Result<std::sync::Arc<Object>, ApiError> {
    let kind = call.place.kind.stored();
    admission::create(transaction, kind, call.place.namespace(), &mut object)?;
    let name = object::name(&object);
    if transaction.get(kind, call.place.namespace(), name).is_some() {
        return Err(ApiError::AlreadyExists { kind: call.place.kind, name: name.to_owned() });
    }
    let created = transaction.put(kind, object);
    if kind.kind == "Namespace" {
        default_account(transaction, object::name(&created.value))?;
    }
    Ok(created)
}

/// Every namespace has the service account that its pods run under.
fn default_account(transaction: &mut Transaction<'_>, namespace: &str) -> Result<(), ApiError> {
    let kind = registry::known("ServiceAccount");
    if transaction.get(kind, namespace, "default").is_some() {
        return Ok(());
    }
    let mut account = json!({"metadata": {"name": "default"}});
    admission::create(transaction, kind, namespace, &mut account)?;
    transaction.put(kind, account);
    Ok(())
}
