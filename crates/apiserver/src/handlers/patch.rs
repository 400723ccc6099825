//! PATCH: JSON patch, merge patch and strategic merge patch, on the newest state.

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::body::FieldValidation;
use super::{Call, body, update};
use crate::content;
use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;
use crate::respond::{json_response, shown_one, warned};
use crate::server::ApiServer;
use crate::store::Transaction;
use crate::views;

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json";
/// As the real server: more operations than this are refused unread.
const OPERATIONS: usize = 10_000;

/// A patch, read.
pub(super) enum Patch {
    Json(Vec<json_patch::PatchOperation>),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub(super) fn read(content_type: &str, bytes: &[u8]) -> Result<Patch, ApiError> {
        match content_type {
            "application/json-patch+json" => {
                let operations: json_patch::Patch = serde_json::from_slice(bytes)
                    .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
                if operations.0.len() > OPERATIONS {
                    return Err(ApiError::TooLarge { limit: OPERATIONS });
                }
                Ok(Patch::Json(operations.0))
            }
            "application/merge-patch+json" => Ok(Patch::Merge(body::json(bytes, "object")?)),
            "application/strategic-merge-patch+json" => Ok(Patch::Strategic(body::json(bytes, "object")?)),
            _ => Err(ApiError::UnsupportedMediaType { accepted: ACCEPTED.to_owned() }),
        }
    }

    /// For an object without lists, where a strategic merge is a plain one.
    pub(super) fn without_schema(self) -> Patch {
        match self {
            Patch::Strategic(patch) => Patch::Merge(patch),
            other => other,
        }
    }

    /// What it makes of an object.
    pub(super) fn apply(&self, kind: &KindInfo, mut object: Value) -> Result<Value, ApiError> {
        match self {
            Patch::Json(operations) => {
                for operation in operations {
                    json_patch::patch(&mut object, std::slice::from_ref(operation)).map_err(|error| {
                        ApiError::Unprocessable {
                            message: format!("the server rejected our request due to an error in our request: {error}"),
                        }
                    })?;
                    // A few copies of copies would fill any memory.
                    let copied = matches!(operation, json_patch::PatchOperation::Copy(_));
                    if copied && object.to_string().len() > body::LIMIT {
                        return Err(ApiError::TooLarge { limit: body::LIMIT });
                    }
                }
                Ok(object)
            }
            Patch::Merge(patch) => {
                json_patch::merge(&mut object, patch);
                Ok(object)
            }
            Patch::Strategic(patch) => content::strategic_merge(kind.kind, object, patch.clone())
                .map_err(|error| ApiError::Patch { code: error.http_status(), message: error.to_string() }),
        }
    }
}

pub(super) async fn patch(
    server: &ApiServer,
    call: &Call,
    content_type: &str,
    bytes: &[u8],
    status: bool,
) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let patch = Patch::read(content_type, bytes)?;
    let validation = FieldValidation::of(call)?;
    let decide = |transaction: &mut Transaction<'_>| {
        let old = transaction.get(kind.stored(), call.place.namespace(), call.name()?);
        let old = old.ok_or_else(|| call.not_found())?;
        let mut object = patch.apply(kind, views::to_served(kind, &old.value).into_owned())?;
        if !object.is_object() {
            return Err(ApiError::Unprocessable { message: "the patched object is no object".to_owned() });
        }
        body::check_kind(kind, &object)?;
        body::check_types(kind, &object)?;
        let unknown = content::prune(&body::gvk(kind), &mut object);
        let unknown: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        if validation == FieldValidation::Strict && !unknown.is_empty() {
            let message = format!(
                " \"\" is invalid: patch: Invalid value: {:?}: strict decoding error: {}",
                String::from_utf8_lossy(bytes),
                unknown.join(", ")
            );
            return Err(ApiError::Unprocessable { message });
        }
        object::drop_nulls(&mut object);
        views::to_stored(kind, &mut object);
        let object = update::replace(transaction, kind.stored(), &old, object, status)?;
        Ok((object, if validation == FieldValidation::Warn { unknown } else { Vec::new() }))
    };
    let (object, warnings) =
        if call.query.dry_run()? { server.store.rehearse(decide)? } else { server.store.write(decide).await? };
    Ok(warned(json_response(StatusCode::OK, &shown_one(kind, &object.value, call.look())), &warnings))
}
