//! Answers: objects in the shape the client asked for, lists, and errors.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;
use crate::request::Shape;
use crate::tables::{self, RowObject};
use crate::views;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code()).expect("the codes of ApiError are HTTP's");
        json_response(code, &self.status())
    }
}

/// A JSON answer.
pub fn json_response(code: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// How a client wants to see objects, with what it asked to stand in table rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Objects, metadata or tables.
    pub shape: Shape,
    /// In tables: what a row brings along.
    pub row_object: RowObject,
}

/// An object alone, in an answer or a watch event. `described`: a table says what its columns are.
pub fn shown(kind: &'static KindInfo, value: &Value, look: Look, described: bool) -> Value {
    match look.shape {
        Shape::Object => views::to_served(kind, value).into_owned(),
        Shape::Metadata => json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": value["metadata"],
        }),
        Shape::Table => {
            let metadata = json!({"resourceVersion": object::meta(value, "resourceVersion")});
            tables::table(kind, [value].into_iter(), metadata, described, look.row_object, Timestamp::now())
        }
    }
}

/// An object alone, as an answer.
pub fn shown_one(kind: &'static KindInfo, value: &Value, look: Look) -> Value {
    shown(kind, value, look, true)
}

/// A list.
pub fn shown_list<'a>(
    kind: &'static KindInfo,
    values: impl Iterator<Item = &'a Value>,
    metadata: Value,
    look: Look,
) -> Value {
    let (api_version, list_kind) = match look.shape {
        Shape::Table => return tables::table(kind, values, metadata, true, look.row_object, Timestamp::now()),
        Shape::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned()),
        Shape::Object => (kind.api_version(), format!("{}List", kind.kind)),
    };
    let items: Vec<Value> = values.map(|value| shown(kind, value, look, true)).collect();
    json!({"kind": list_kind, "apiVersion": api_version, "metadata": metadata, "items": items})
}

/// `Status: Success` about an object that is gone.
pub fn gone(kind: &KindInfo, value: &Value) -> Value {
    let mut details = json!({"name": object::name(value), "kind": kind.plural, "uid": object::meta(value, "uid")});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// An answer with `Warning` headers, which kubectl prints.
pub fn warned(mut response: Response, warnings: &[String]) -> Response {
    for warning in warnings {
        // A quoted string of one line (RFC 9110): quotes and backslashes escaped, nothing that ends the header.
        let text: String = warning.chars().filter(|c| !c.is_control()).take(1000).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}
