//! Pure. What a body may hold: the shapes of the API's objects, and the work that follows from them.
//!
//! ```text
//!                          k8s-openapi's JSON schemas + schema/tags.txt
//!                                            │
//!                                         schema ──────────────┬──────────────┐
//!                                            │                 │              │
//! protobuf body ──▶ protobuf ─┐              ▼                 ▼              ▼
//! JSON body ──────────────────┴─▶ check_types ─▶ prune ─▶   patch         openapi
//!                                 (400)          (strict, warnings)  (strategic merge)   (what kubectl asks for)
//! ```
//!
//! The handlers call these in that order; nothing here knows a store, a request or a user.

mod check;
mod go_print;
mod openapi;
mod patch;
mod protobuf;
mod prune;
mod quantity;
#[cfg(test)]
mod sample;
pub mod schema;
mod strict;

pub use check::{TypeError, check_merged_types, check_types};
pub use go_print::go_print;
pub use openapi::{Document, OPENAPI_V2, openapi_v3, openapi_v3_index};
pub use patch::{PatchError, strategic_merge};
pub use protobuf::{ProtobufError, decode_protobuf};
pub use prune::{UnknownField, prune};
pub use quantity::quantity_steps;
pub use strict::{DuplicateField, duplicate_fields};

use std::fmt;

/// A kind of object as the API names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvk {
    /// The API group; empty: the core group.
    pub group: String,
    /// The version, `v1`.
    pub version: String,
    /// The kind, `Service`.
    pub kind: String,
}

impl Gvk {
    /// From its three parts.
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// From what an object says in `apiVersion` and `kind`: `apps/v1`, `Deployment`.
    #[must_use]
    pub fn from_api_version(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self::new(group, version, kind)
    }

    /// What an object says in `apiVersion`: `v1`, `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// As the real server prints it in its errors: `apps/v1, Kind=Deployment`.
impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}
