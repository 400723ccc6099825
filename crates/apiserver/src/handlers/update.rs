//! PUT: the whole object anew, or its status.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::{Call, create};
use crate::admission;
use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;
use crate::respond::{json_response, shown_one};
use crate::state::ServerState;
use crate::store::{Object, Transaction};
use crate::views;

pub(super) async fn update(
    server: &ServerState,
    call: &Call,
    mut body: Value,
    status: bool,
) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    views::to_stored(kind, &mut body);
    let decide = |transaction: &mut Transaction<'_>| {
        let name = call.name()?;
        match transaction.get(kind.stored(), call.place.namespace(), name) {
            Some(old) => Ok((StatusCode::OK, replace(transaction, kind.stored(), &old, body, status)?)),
            None if kind.create_on_update && object::name(&body) == name => {
                Ok((StatusCode::CREATED, create::insert(transaction, call, body)?))
            }
            None => Err(call.not_found()),
        }
    };
    let (code, object) =
        if call.query.dry_run()? { server.store.rehearse(decide)? } else { server.store.write(decide).await? };
    Ok(json_response(code, &shown_one(kind, &object.value, call.look())))
}

/// Admits and stores a changed object. An unchanged one keeps its revision; one whose last finalizer goes, goes.
pub(super) fn replace(
    transaction: &mut Transaction<'_>,
    kind: &'static KindInfo,
    old: &Arc<Object>,
    mut object: Value,
    status: bool,
) -> Result<Arc<Object>, ApiError> {
    admission::update(transaction, kind, &old.value, &mut object, status)?;
    if object == old.value {
        return Ok(old.clone());
    }
    if is_finished(kind, &object) {
        return Ok(transaction.delete(kind, object));
    }
    Ok(transaction.put(kind, object))
}

/// Terminating, nothing holds it, and no grace is left to wait for.
pub(crate) fn is_finished(kind: &KindInfo, object: &Value) -> bool {
    object::is_terminating(object)
        && object::finalizers(object).is_empty()
        && object::number(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
        && (kind.kind != "Namespace" || object::items(object, &["spec", "finalizers"]).is_empty())
}

/// PUT `namespaces/finalize`: only the finalizers of the specification change.
pub(super) async fn finalize(server: &ServerState, call: &Call, body: &Value) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let decide = |transaction: &mut Transaction<'_>| {
        let old = transaction.get(kind, "", call.name()?).ok_or_else(|| call.not_found())?;
        let mut value = old.value.clone();
        let finalizers = object::items(body, &["spec", "finalizers"]).to_vec();
        object::child(&mut value, "spec").insert("finalizers".to_owned(), Value::Array(finalizers));
        if value == old.value {
            return Ok(old);
        }
        let done = is_finished(kind, &value);
        Ok(if done { transaction.delete(kind, value) } else { transaction.put(kind, value) })
    };
    let object = server.store.write(decide).await?;
    Ok(json_response(StatusCode::OK, &shown_one(kind, &object.value, call.look())))
}
