//! PATCH: JSON patch and merge patch, on the newest state.

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::{Call, body, update};
use crate::error::ApiError;
use crate::object;
use crate::respond::{json_response, shown};
use crate::server::ApiServer;
use crate::store::Transaction;
use crate::views;

const ACCEPTED: &str =
    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";
/// As the real server: more operations than this are refused unread.
const OPERATIONS: usize = 10_000;

enum Patch {
    Json(Vec<json_patch::PatchOperation>),
    Merge(Value),
}

impl Patch {
    fn read(content_type: &str, bytes: &[u8]) -> Result<Patch, ApiError> {
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
            _ => Err(ApiError::UnsupportedMediaType { accepted: ACCEPTED.to_owned() }),
        }
    }

    fn apply(&self, object: &mut Value) -> Result<(), ApiError> {
        match self {
            Patch::Json(operations) => {
                for operation in operations {
                    json_patch::patch(object, std::slice::from_ref(operation)).map_err(|error| {
                        ApiError::Unprocessable {
                            message: format!("the server rejected our request due to an error in our request: {error}"),
                        }
                    })?;
                    // A few copies of copies would fill any memory.
                    if matches!(operation, json_patch::PatchOperation::Copy(_))
                        && object.to_string().len() > body::LIMIT
                    {
                        return Err(ApiError::TooLarge { limit: body::LIMIT });
                    }
                }
            }
            Patch::Merge(patch) => json_patch::merge(object, patch),
        }
        Ok(())
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
    let decide = |transaction: &mut Transaction<'_>| {
        let old = transaction.get(kind.stored(), call.place.namespace(), call.name()?);
        let old = old.ok_or_else(|| call.not_found())?;
        let mut object = views::to_served(kind, &old.value).into_owned();
        patch.apply(&mut object)?;
        body::check_kind(kind, &object)?;
        object::drop_nulls(&mut object);
        views::to_stored(kind, &mut object);
        update::replace(transaction, kind.stored(), &old, object, status)
    };
    let object =
        if call.query.dry_run()? { server.store.rehearse(decide)? } else { server.store.write(decide).await? };
    Ok(json_response(StatusCode::OK, &shown(kind, &object.value, call.shape)))
}
