//! Pure. What the API refuses, and the `Status` object that says so in the words a client knows.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::registry::KindInfo;

/// Why one field was refused. The texts are those of `field.Error` of the real server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Path, as in `spec.ports[0].port`.
    pub field: String,
    /// The kind of problem.
    pub problem: Problem,
}

/// The kinds of problem a field may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A value is missing.
    Required(String),
    /// A value that can't be.
    Invalid(Value, String),
    /// A value that is none of those possible.
    NotSupported(Value, Vec<String>),
    /// A name of something that is not there.
    NotFound(Value),
    /// A value that another item has.
    Duplicate(Value),
    /// As `Duplicate`, of a whole item: its fields as the real server prints them, in its order.
    DuplicateItem(String),
    /// A field that may not be set (or changed) here.
    Forbidden(String),
    /// A value with more bytes than this.
    TooLong(usize),
    /// More items than this.
    TooMany {
        /** How many there are. */
        actual: usize,
        /** How many may be. */
        limit: usize,
    },
    /// The server could not do its part.
    Internal(String),
}

impl Cause {
    /// A field with a problem.
    pub fn new(field: impl Into<String>, problem: Problem) -> Cause {
        Cause { field: field.into(), problem }
    }

    /// An invalid value.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Cause {
        Cause::new(field, Problem::Invalid(value.into(), detail.into()))
    }

    /// A missing value.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Cause {
        Cause::new(field, Problem::Required(detail.into()))
    }

    /// A field that may not be set.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Cause {
        Cause::new(field, Problem::Forbidden(detail.into()))
    }

    /// A value that is none of `supported`.
    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Cause {
        let supported = supported.iter().map(|&value| value.to_owned()).collect();
        Cause::new(field, Problem::NotSupported(value.into(), supported))
    }

    fn reason(&self) -> &'static str {
        match self.problem {
            Problem::Required(_) => "FieldValueRequired",
            Problem::Invalid(..) => "FieldValueInvalid",
            Problem::NotSupported(..) => "FieldValueNotSupported",
            Problem::NotFound(_) => "FieldValueNotFound",
            Problem::Duplicate(_) | Problem::DuplicateItem(_) => "FieldValueDuplicate",
            Problem::Forbidden(_) => "FieldValueForbidden",
            Problem::TooLong(_) => "FieldValueTooLong",
            Problem::TooMany { .. } => "FieldValueTooMany",
            Problem::Internal(_) => "InternalError",
        }
    }

    /// The text without the field's path.
    pub fn body(&self) -> String {
        let with_detail = |head: String, detail: &str| {
            if detail.is_empty() { head } else { format!("{head}: {detail}") }
        };
        match &self.problem {
            Problem::Required(detail) => with_detail("Required value".to_owned(), detail),
            Problem::Invalid(value, detail) => with_detail(format!("Invalid value: {}", shown(value)), detail),
            Problem::NotSupported(value, supported) => {
                let quoted: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
                format!("Unsupported value: {}: supported values: {}", shown(value), quoted.join(", "))
            }
            Problem::NotFound(value) => format!("Not found: {}", shown(value)),
            Problem::Duplicate(value) => format!("Duplicate value: {}", shown(value)),
            Problem::DuplicateItem(item) => format!("Duplicate value: {item}"),
            Problem::Forbidden(detail) => with_detail("Forbidden".to_owned(), detail),
            Problem::TooLong(limit) => format!("Too long: may not be more than {limit} bytes"),
            Problem::TooMany { actual, limit } => format!("Too many: {actual}: must have at most {limit} items"),
            Problem::Internal(detail) => format!("Internal error: {detail}"),
        }
    }

    fn status_cause(&self) -> Value {
        json!({"reason": self.reason(), "message": self.body(), "field": self.field})
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A value as the real server writes it: strings quoted, numbers bare, the rest as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// No such object.
    #[error("{} {name:?} not found", kind.qualified_plural())]
    NotFound {
        /** Of this kind. */
        kind: &'static KindInfo,
        /** Of this name. */
        name: String,
    },
    /// No such path.
    #[error("the server could not find the requested resource")]
    NoSuchResource,
    /// The name is taken.
    #[error("{} {name:?} already exists", kind.qualified_plural())]
    AlreadyExists {
        /** Of this kind. */
        kind: &'static KindInfo,
        /** Of this name. */
        name: String,
    },
    /// Somebody else was quicker.
    #[error("Operation cannot be fulfilled on {} {name:?}: {reason}", kind.qualified_plural())]
    Conflict {
        /// Of this kind.
        kind: &'static KindInfo,
        /// Of this name.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// The object breaks rules of its kind.
    #[error("{} {name:?} is invalid: {}", kind.qualified_kind(), joined(causes))]
    Invalid {
        /// Of this kind.
        kind: &'static KindInfo,
        /// Of this name.
        name: String,
        /// Each broken rule.
        causes: Vec<Cause>,
    },
    /// The request itself makes no sense.
    #[error("{message}")]
    BadRequest {
        /** Why. */
        message: String,
    },
    /// Well formed, but can't be done (a patch that does not apply).
    #[error("{message}")]
    Unprocessable {
        /** Why. */
        message: String,
    },
    /// A patch that can't be applied.
    #[error("{message}")]
    Patch {
        /** HTTP status. */
        code: u16,
        /** Why. */
        message: String,
    },
    /// What a patch makes is no object of its kind.
    #[error(" \"\" is invalid: {cause}")]
    InvalidPatch {
        /// About the field `patch`.
        cause: Cause,
    },
    /// Not allowed as things stand.
    #[error("{} {name:?} is forbidden: {reason}", kind.qualified_plural())]
    Forbidden {
        /// Of this kind.
        kind: &'static KindInfo,
        /// Of this name.
        name: String,
        /// Why.
        reason: String,
        /// The namespace, if its being terminated is the cause.
        terminating: Option<String>,
    },
    /// A revision that the history has no more.
    #[error("{message}")]
    Expired {
        /** Which. */
        message: String,
    },
    /// No or a wrong token.
    #[error("Unauthorized")]
    Unauthorized,
    /// The path has no such verb.
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    /// The body's format is unknown.
    #[error("the body of the request was in an unknown format - accepted media types include: {accepted}")]
    UnsupportedMediaType {
        /** What would do. */
        accepted: String,
    },
    /// The body is larger than the limit.
    #[error("Request entity too large: limit is {limit}")]
    TooLarge {
        /** In bytes. */
        limit: usize,
    },
    /// The server can't do its part: a full disk, a pod that is not there to stream.
    #[error("Internal error occurred: {message}")]
    Internal {
        /** Why. */
        message: String,
    },
    /// The store can't keep what was written; nothing was changed.
    #[error("the change was not stored: {message}")]
    NotStored {
        /** What the system said. */
        message: String,
    },
}

fn joined(causes: &[Cause]) -> String {
    match causes {
        [cause] => cause.to_string(),
        causes => {
            let causes: Vec<String> = causes.iter().map(Cause::to_string).collect();
            format!("[{}]", causes.join(", "))
        }
    }
}

impl ApiError {
    /// A bad request.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::BadRequest { message: message.into() }
    }

    /// The HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            ApiError::BadRequest { .. } => 400,
            ApiError::Patch { code, .. } => *code,
            ApiError::Unauthorized => 401,
            ApiError::Forbidden { .. } => 403,
            ApiError::NotFound { .. } | ApiError::NoSuchResource => 404,
            ApiError::MethodNotAllowed => 405,
            ApiError::AlreadyExists { .. } | ApiError::Conflict { .. } => 409,
            ApiError::Expired { .. } => 410,
            ApiError::TooLarge { .. } => 413,
            ApiError::UnsupportedMediaType { .. } => 415,
            ApiError::Invalid { .. } | ApiError::InvalidPatch { .. } | ApiError::Unprocessable { .. } => 422,
            ApiError::Internal { .. } => 500,
            ApiError::NotStored { .. } => 507,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            ApiError::BadRequest { .. } | ApiError::Patch { code: 400, .. } => "BadRequest",
            ApiError::Patch { code: 415, .. } => "UnsupportedMediaType",
            ApiError::Patch { code: 422, .. } => "Invalid",
            ApiError::Patch { .. } => "InternalError",
            ApiError::Unauthorized => "Unauthorized",
            ApiError::Forbidden { .. } => "Forbidden",
            ApiError::NotFound { .. } | ApiError::NoSuchResource => "NotFound",
            ApiError::MethodNotAllowed => "MethodNotAllowed",
            ApiError::AlreadyExists { .. } => "AlreadyExists",
            ApiError::Conflict { .. } => "Conflict",
            ApiError::Expired { .. } => "Expired",
            ApiError::TooLarge { .. } => "RequestEntityTooLarge",
            ApiError::UnsupportedMediaType { .. } => "UnsupportedMediaType",
            ApiError::Invalid { .. } | ApiError::InvalidPatch { .. } | ApiError::Unprocessable { .. } => "Invalid",
            ApiError::Internal { .. } | ApiError::NotStored { .. } => "InternalError",
        }
    }

    /// The `Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.to_string(), "reason": self.reason(), "code": self.code(),
        });
        if let Some(details) = self.details() {
            status["details"] = details;
        }
        status
    }

    fn details(&self) -> Option<Value> {
        match self {
            ApiError::NotFound { kind, name }
            | ApiError::AlreadyExists { kind, name }
            | ApiError::Conflict { kind, name, .. } => Some(reference(kind, name, kind.plural)),
            ApiError::Forbidden { kind, name, terminating, .. } => {
                let mut details = reference(kind, name, kind.plural);
                if let Some(namespace) = terminating {
                    details["causes"] = json!([{
                        "reason": "NamespaceTerminating",
                        "message": format!("namespace {namespace} is being terminated"),
                        "field": "metadata.namespace",
                    }]);
                }
                Some(details)
            }
            ApiError::Invalid { kind, name, causes } => {
                let mut details = reference(kind, name, kind.kind);
                details["causes"] = causes.iter().map(Cause::status_cause).collect();
                Some(details)
            }
            ApiError::InvalidPatch { cause } => Some(json!({"causes": [cause.status_cause()]})),
            ApiError::NoSuchResource | ApiError::MethodNotAllowed => Some(json!({})),
            ApiError::Internal { message } | ApiError::NotStored { message } => {
                Some(json!({"causes": [{"message": message}]}))
            }
            _ => None,
        }
    }
}

fn reference(kind: &KindInfo, name: &str, shown_as: &str) -> Value {
    let mut details = Map::new();
    if !name.is_empty() {
        details.insert("name".to_owned(), name.into());
    }
    if !kind.group.is_empty() {
        details.insert("group".to_owned(), kind.group.into());
    }
    details.insert("kind".to_owned(), shown_as.into());
    Value::Object(details)
}

/// An error and all its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
