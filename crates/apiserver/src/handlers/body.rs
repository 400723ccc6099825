//! Bodies: limited in size, decoded by their media type, checked against the kind of the path.

use axum::body::Body;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::Call;
use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;

/// The largest body, as the real server has it.
pub(super) const LIMIT: usize = 3 << 20;
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Media type (without parameters, lower case) and bytes.
pub(super) async fn read(request: Request<Body>) -> Result<(String, Bytes), ApiError> {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let content_type = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let body = Limited::new(request.into_body(), LIMIT).collect().await.map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            ApiError::TooLarge { limit: LIMIT }
        } else {
            ApiError::bad_request(format!("the body broke off: {error}"))
        }
    })?;
    Ok((content_type, body.to_bytes()))
}

/// An object of the call's kind.
pub(super) fn object(call: &Call, content_type: &str, bytes: &[u8]) -> Result<Value, ApiError> {
    let kind = call.place.kind;
    let mut value = match content_type {
        "" | "application/json" => json(bytes, kind.kind)?,
        _ => return Err(ApiError::UnsupportedMediaType { accepted: ACCEPTED.to_owned() }),
    };
    check_kind(kind, &value)?;
    object::drop_nulls(&mut value);
    Ok(value)
}

/// Reads JSON that must be an object.
pub(super) fn json(bytes: &[u8], kind: &str) -> Result<Value, ApiError> {
    let unrecognized = |problem: String| {
        ApiError::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {problem}"))
    };
    match serde_json::from_slice(bytes) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(unrecognized("couldn't get version/kind; json parse error: not an object".to_owned())),
        Err(error) => Err(unrecognized(format!("couldn't get version/kind; json parse error: {error}"))),
    }
}

pub(super) fn check_kind(kind: &KindInfo, value: &Value) -> Result<(), ApiError> {
    let api_version = object::text(value, &["apiVersion"]).unwrap_or("");
    let given = object::text(value, &["kind"]).unwrap_or("");
    let expected = kind.api_version();
    if !api_version.is_empty() && api_version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    if !given.is_empty() && given != kind.kind {
        let version = kind.version;
        return Err(ApiError::bad_request(format!(
            "{given} in version {version:?} cannot be handled as a {}: converting ({version}.{given}) to ({version}.{}): \
             unknown conversion",
            kind.kind, kind.kind
        )));
    }
    Ok(())
}

/// DeleteOptions; absent, they are empty.
pub(super) fn options(content_type: &str, bytes: &[u8]) -> Result<Value, ApiError> {
    match content_type {
        _ if bytes.is_empty() => Ok(Value::Object(serde_json::Map::new())),
        "" | "application/json" => json(bytes, "DeleteOptions"),
        _ => Err(ApiError::UnsupportedMediaType { accepted: ACCEPTED.to_owned() }),
    }
}
