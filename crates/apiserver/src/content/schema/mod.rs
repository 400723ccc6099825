//! Pure. The shapes of the API's objects: what `patch`, `prune`, `openapi` and `protobuf` read.
//!
//! They come from two sources, joined once at first use: the JSON schemas that `k8s-openapi` and `signpost-metallb` carry
//! (fields, types, descriptions), and `tags.txt` (what Kubernetes' Go types say beyond them: merge keys, list types, pointers).

mod build;
mod tags;

use super::Gvk;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

/// What a JSON value must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// An object with named fields.
    Struct(StructId),
    /// An object with free keys and like values.
    Map(Box<Shape>),
    /// An array of like elements.
    List(Box<Shape>),
    /// A string.
    String,
    /// A string of base64.
    Bytes,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// A number with fraction.
    Number,
    /// True or false.
    Boolean,
    /// A whole number of 32 bits, or a string.
    IntOrString,
    /// `100m`, `1Gi` or a number.
    Quantity,
    /// RFC 3339, seconds.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// An object with anything in it.
    AnyObject,
    /// Anything.
    Any,
}

/// Number of a [`Struct`] within the [`Schemas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StructId(usize);

/// An object with named fields.
#[derive(Debug)]
pub struct Struct {
    /// The name that OpenAPI knows: `io.k8s.api.core.v1.ServiceSpec`.
    pub name: Arc<str>,
    /// By their JSON names.
    pub fields: BTreeMap<Arc<str>, Field>,
    /// What Go's types say about the struct as a whole.
    pub tags: Tags,
}

impl Struct {
    /// As Go calls it, which is what errors print: `v1.ServiceSpec`.
    #[must_use]
    pub fn go_name(&self) -> &str {
        self.name.rmatch_indices('.').nth(1).map_or(&*self.name, |(dot, _)| &self.name[dot + 1..])
    }
}

/// A field of a [`Struct`].
#[derive(Debug)]
pub struct Field {
    /// What it holds.
    pub shape: Shape,
    /// What Go's types say about it.
    pub tags: Tags,
}

/// What Kubernetes' Go types say about a field beyond its JSON schema.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// A strategic merge patch merges this list with the old one instead of replacing it.
    pub merge: bool,
    /// The field that tells the list's elements apart in a strategic merge patch; `None`: elements are scalars.
    pub merge_key: Option<Arc<str>>,
    /// A strategic merge patch may say which fields stay (for unions: the old member must go).
    pub retain_keys: bool,
    /// How owners share the list or map.
    pub list: Option<ListType>,
    /// The struct or map has one owner.
    pub atomic_struct: bool,
    /// A pointer in Go: an empty value differs from no value.
    pub pointer: bool,
    /// Written by the real server also when empty.
    pub always: bool,
    /// The Go type, where it has a name of its own: `v1.Protocol`.
    pub go_type: Option<Arc<str>>,
}

impl Tags {
    /// Nothing said.
    pub const NONE: Self = Self {
        merge: false,
        merge_key: None,
        retain_keys: false,
        list: None,
        atomic_struct: false,
        pointer: false,
        always: false,
        go_type: None,
    };
}

/// How owners share a list (`x-kubernetes-list-type`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    /// One owner for the whole.
    Atomic,
    /// One owner per element; elements are scalars.
    Set,
    /// One owner per element; these fields tell elements apart.
    Map(Vec<Arc<str>>),
}

/// All shapes.
#[derive(Debug)]
pub struct Schemas {
    structs: Vec<Struct>,
    by_name: HashMap<Arc<str>, StructId>,
    by_gvk: HashMap<Gvk, StructId>,
    definitions: BTreeMap<Arc<str>, Value>,
}

impl Schemas {
    /// The struct of a kind. Options of a deletion come in the name of any group and version.
    #[must_use]
    pub fn of(&self, gvk: &Gvk) -> Option<StructId> {
        match gvk.kind.as_str() {
            "DeleteOptions" => self.of_kind("DeleteOptions"),
            _ => self.by_gvk.get(gvk).copied(),
        }
    }

    /// The struct of a kind's bare name: the first group that has it (core, then by name).
    #[must_use]
    pub fn of_kind(&self, kind: &str) -> Option<StructId> {
        self.by_gvk.iter().filter(|(gvk, _)| gvk.kind == kind).min_by_key(|(gvk, _)| *gvk).map(|(_, id)| *id)
    }

    /// A struct by the name that OpenAPI knows.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<StructId> {
        self.by_name.get(name).copied()
    }

    /// The kinds, in no order.
    pub fn kinds(&self) -> impl Iterator<Item = (&Gvk, StructId)> {
        self.by_gvk.iter().map(|(gvk, id)| (gvk, *id))
    }

    /// The JSON schema of every definition as `k8s-openapi` has it, by name.
    #[must_use]
    pub fn definitions(&self) -> &BTreeMap<Arc<str>, Value> {
        &self.definitions
    }

    /// Every struct.
    pub fn structs(&self) -> impl Iterator<Item = &Struct> {
        self.structs.iter()
    }
}

impl std::ops::Index<StructId> for Schemas {
    type Output = Struct;

    fn index(&self, id: StructId) -> &Struct {
        &self.structs[id.0]
    }
}

/// The shapes of all kinds of the API. Built at the first call (some tens of milliseconds in a debug build).
#[must_use]
pub fn schemas() -> &'static Schemas {
    static SCHEMAS: LazyLock<Schemas> = LazyLock::new(build::build);
    &SCHEMAS
}
