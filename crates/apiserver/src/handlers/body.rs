//! Bodies: limited in size, decoded by their media type, checked against the kind of the path and its schema.

use axum::body::Body;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::Call;
use crate::content::{self, Gvk};
use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;

/// The largest body, as the real server has it.
pub(super) const LIMIT: usize = 3 << 20;
const ACCEPTED: &str = "application/json, application/vnd.kubernetes.protobuf";

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

/// What becomes of fields that a kind does not have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValidation {
    /// They are an error.
    Strict,
    /// They are dropped, with a warning.
    Warn,
    /// They are dropped.
    Ignore,
}

impl FieldValidation {
    pub(super) fn of(call: &Call) -> Result<FieldValidation, ApiError> {
        match call.query.get("fieldValidation") {
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some(other) => Err(ApiError::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// An object of the call's kind, and what to warn its writer of.
pub(super) fn object(call: &Call, content_type: &str, bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let kind = call.place.kind;
    let mut value = decode(content_type, bytes, kind.kind)?;
    check_kind(kind, &value)?;
    check_types(kind, &value)?;
    let mut problems = Vec::new();
    if content_type != PROTOBUF {
        problems.extend(content::duplicate_fields(bytes).iter().map(ToString::to_string));
    }
    problems.extend(content::prune(&gvk(kind), &mut value).iter().map(ToString::to_string));
    object::drop_nulls(&mut value);
    match FieldValidation::of(call)? {
        FieldValidation::Strict if !problems.is_empty() => {
            Err(unfit(kind, &format!("strict decoding error: {}", problems.join(", "))))
        }
        FieldValidation::Warn => Ok((value, problems)),
        FieldValidation::Strict | FieldValidation::Ignore => Ok((value, Vec::new())),
    }
}

/// The kind as the schemas know it.
pub(super) fn gvk(kind: &KindInfo) -> Gvk {
    Gvk::new(kind.group, kind.version, kind.kind)
}

/// JSON types that do not fit the schema are the client's error.
pub(super) fn check_types(kind: &KindInfo, value: &Value) -> Result<(), ApiError> {
    content::check_types(&gvk(kind), value).map_err(|error| unfit(kind, &error.to_string()))
}

fn unfit(kind: &KindInfo, problem: &str) -> ApiError {
    let name = kind.kind;
    ApiError::bad_request(format!("{name} in version {:?} cannot be handled as a {name}: {problem}", kind.version))
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A body of either format that must be an object.
pub(super) fn decode(content_type: &str, bytes: &[u8], kind: &str) -> Result<Value, ApiError> {
    match content_type {
        "" | "application/json" => json(bytes, kind),
        PROTOBUF => {
            let (gvk, mut value) =
                content::decode_protobuf(bytes).map_err(|error| ApiError::bad_request(error.to_string()))?;
            let fields = object::fields(&mut value);
            fields.insert("apiVersion".to_owned(), gvk.api_version().into());
            fields.insert("kind".to_owned(), gvk.kind.into());
            Ok(value)
        }
        _ => Err(ApiError::UnsupportedMediaType { accepted: ACCEPTED.to_owned() }),
    }
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

/// What an object says it is must be what the path says.
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
        let (version, name) = (kind.version, kind.kind);
        return Err(ApiError::bad_request(format!(
            "{given} in version {version:?} cannot be handled as a {name}: converting ({version}.{given}) to \
             ({version}.{name}): unknown conversion"
        )));
    }
    Ok(())
}

/// DeleteOptions; absent, they are empty.
pub(super) fn options(content_type: &str, bytes: &[u8]) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    decode(content_type, bytes, "DeleteOptions")
}
