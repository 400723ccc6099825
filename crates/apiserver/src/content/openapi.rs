//! Pure. The OpenAPI v3 documents.

use super::Gvk;
use serde_json::{Value, json};

/// A kind that the API serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindInfo {
    /// Its name.
    pub gvk: Gvk,
    /// Its name in paths: `services`.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Has a `/status`.
    pub status: bool,
    /// Has a `/scale`.
    pub scale: bool,
}

/// The answer to `/openapi/v3`: a document per group and version of these kinds, with its hash.
#[must_use]
pub fn openapi_v3_index(_kinds: &[KindInfo]) -> Value {
    json!({ "paths": {} })
}

/// The answer to `/openapi/v3/PATH`, where PATH is `api/v1` or `apis/apps/v1`. `None`: no kind lives there (404).
#[must_use]
pub fn openapi_v3(_path: &str, _kinds: &[KindInfo]) -> Option<Value> {
    None
}
