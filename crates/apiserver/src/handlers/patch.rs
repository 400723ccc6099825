//! PATCH: JSON patch, merge patch and strategic merge patch, on the newest state.

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::body::FieldValidation;
use super::{Call, body, update};
use crate::content;
use crate::error::{ApiError, Cause};
use crate::object;
use crate::registry::KindInfo;
use crate::respond::{json_response, shown_one, warned};
use crate::state::ServerState;
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

/// What the real server says of a patch whose result is none of its kind.
impl Patch {
    fn check_types(&self, kind: &KindInfo, object: &Value) -> Result<(), ApiError> {
        let gvk = body::gvk(kind);
        let checked = match self {
            Patch::Strategic(_) => content::check_merged_types(&gvk, object),
            Patch::Json(_) | Patch::Merge(_) => content::check_types(&gvk, object),
        };
        checked.map_err(|error| self.invalid(object, &error.to_string()))
    }

    /// Shows the patch itself where it was merged as a map, else the object that it made.
    fn invalid(&self, object: &Value, problem: &str) -> ApiError {
        let shown = match self {
            Patch::Strategic(patch) => content::go_print(patch),
            Patch::Json(_) | Patch::Merge(_) => object.to_string(),
        };
        ApiError::InvalidPatch { cause: Cause::invalid("patch", shown, problem) }
    }

    fn duplicates(&self, bytes: &[u8]) -> impl Iterator<Item = String> + use<> {
        let duplicates = match self {
            Patch::Json(_) => vec![],
            Patch::Merge(_) | Patch::Strategic(_) => content::duplicate_fields(bytes),
        };
        duplicates.into_iter().map(|duplicate| duplicate.to_string())
    }
}

pub(super) async fn patch(
    server: &ServerState,
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
        patch.check_types(kind, &object)?;
        let unknown = content::prune(&body::gvk(kind), &mut object);
        let unknown: Vec<String> = patch.duplicates(bytes).chain(unknown.iter().map(ToString::to_string)).collect();
        if validation == FieldValidation::Strict && !unknown.is_empty() {
            return Err(patch.invalid(&object, &format!("strict decoding error: {}", unknown.join(", "))));
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
