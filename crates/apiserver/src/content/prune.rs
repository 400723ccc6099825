//! Pure. Unknown fields go, and what means nothing.

use super::Gvk;
use serde_json::Value;
use std::fmt;

/// A field that the kind does not have. Prints as the real server says it: `unknown field "spec.foo"`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownField {
    /// From the object's root: `spec.ports[0].foo`.
    pub path: String,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown field {:?}", self.path)
    }
}

/// Drops the fields that the kind does not have, and tells which.
pub fn prune(_gvk: &Gvk, _object: &mut Value) -> Vec<UnknownField> {
    vec![]
}
