//! Pure. The OpenAPI v3 documents: one per group and version.
//!
//! kubectl reads them before it sends anything: whether the server validates fields itself (`fieldValidation` of a
//! PATCH), which lists merge by which key (client-side apply), and the descriptions (`kubectl explain`).
//!
//! ```text
//! registry::KINDS ──▶ paths ──┐
//!                             ├──▶ Document (bytes, hash) ──▶ index
//! schema ──▶ components ──────┘
//! ```

mod components;
mod paths;
#[cfg(test)]
mod tests;

use crate::registry::{KINDS, KindInfo};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// An OpenAPI v3 document.
#[derive(Debug)]
pub struct Document {
    /// Its JSON.
    pub json: Bytes,
    /// SHA-512 of it in hexadecimal capitals: its `ETag`, and the `hash` in the index.
    pub hash: String,
}

/// The answer to `/openapi/v2` for who accepts protobuf: a document without any definition (`swagger`, and title and
/// version in `info`). kubectl looks there, and nowhere else, for kinds that version 3 does not know; an empty document
/// lets it go on to say that there is no such kind.
pub const OPENAPI_V2: &[u8] = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.0";

/// All documents by their paths below `/openapi/v3/`: `api/v1`, `apis/apps/v1`. Built at the first call.
fn documents() -> &'static BTreeMap<String, Document> {
    static DOCUMENTS: LazyLock<BTreeMap<String, Document>> = LazyLock::new(|| {
        let mut groups: BTreeMap<String, Vec<&KindInfo>> = BTreeMap::new();
        for kind in KINDS {
            groups.entry(paths::root(kind)).or_default().push(kind);
        }
        groups.into_iter().map(|(path, kinds)| (path, document(&kinds))).collect()
    });
    &DOCUMENTS
}

fn document(kinds: &[&KindInfo]) -> Document {
    let paths: Map<String, Value> = kinds.iter().flat_map(|kind| paths::of(kind)).collect();
    let document = json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes", "version": "v1.36.0" },
        "paths": paths,
        "components": { "schemas": components::of(kinds) },
    });
    let json = Bytes::from(document.to_string());
    let hash = Sha512::digest(&json).iter().map(|byte| format!("{byte:02X}")).collect();
    Document { json, hash }
}

/// The answer to `/openapi/v3`: where each document is, with its hash.
#[must_use]
pub fn openapi_v3_index() -> Value {
    let paths = documents().iter().map(|(path, document)| {
        let url = format!("/openapi/v3/{path}?hash={}", document.hash);
        (path.clone(), json!({ "serverRelativeURL": url }))
    });
    json!({ "paths": paths.collect::<Map<_, _>>() })
}

/// The answer to `/openapi/v3/PATH`, where PATH is `api/v1` or `apis/apps/v1`. `None`: no kind lives there (404).
#[must_use]
pub fn openapi_v3(path: &str) -> Option<&'static Document> {
    documents().get(path)
}
