//! Pure. What all kinds have in common: an object is metadata, a specification and perhaps a status.

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A kind, named by what its specification is.
pub trait Kind: Data {
    /// The API group.
    const GROUP: &'static str = "metallb.io";
    /// The version in it.
    const VERSION: &'static str = "v1beta1";
    /// Both, as objects write it.
    const API_VERSION: &'static str = "metallb.io/v1beta1";
    /// The kind's name.
    const KIND: &'static str;
    /// Its name in paths.
    const PLURAL: &'static str;
    /// What it is for, for `kubectl explain`.
    const PURPOSE: &'static str;
    /// What `kubectl get` shows besides the name.
    const COLUMNS: &'static [Column];
    /// Its status.
    type Status: Data;
}

/// What specifications and statuses are.
pub trait Data:
    Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T> Data for T where
    T: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its head.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub kind: &'static str,
    /// The field that it shows, from the object's root.
    pub path: &'static [&'static str],
    /// Only `-o wide` shows it.
    pub wide: bool,
}

impl Column {
    /// One that is always shown.
    pub const fn shown(name: &'static str, kind: &'static str, path: &'static [&'static str]) -> Column {
        Column { name, kind, path, wide: false }
    }

    /// One that `-o wide` shows.
    pub const fn wide(name: &'static str, kind: &'static str, path: &'static [&'static str]) -> Column {
        Column { name, kind, path, wide: true }
    }
}

/// A status that nothing writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.v1beta1.NoStatus")]
pub struct NoStatus {}

/// An object of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
pub struct Object<S: Kind> {
    /// As [`Kind::API_VERSION`]; lists leave it out.
    #[serde(default = "api_version::<S>")]
    pub api_version: String,
    /// As [`Kind::KIND`]; lists leave it out.
    #[serde(default = "kind::<S>")]
    pub kind: String,
    /// Name, labels, ...
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spec: S,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<S::Status>,
}

impl<S: Kind> Object<S> {
    /// One without a status.
    pub fn new(metadata: ObjectMeta, spec: S) -> Object<S> {
        Object { api_version: api_version::<S>(), kind: kind::<S>(), metadata, spec, status: None }
    }

    /// The object's name; empty if it has none.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

fn api_version<S: Kind>() -> String {
    S::API_VERSION.to_owned()
}

fn kind<S: Kind>() -> String {
    S::KIND.to_owned()
}

fn is_default<S: Kind>(spec: &S) -> bool {
    *spec == S::default()
}

impl<S: Kind> Resource for Object<S> {
    const API_VERSION: &'static str = S::API_VERSION;
    const GROUP: &'static str = S::GROUP;
    const KIND: &'static str = S::KIND;
    const VERSION: &'static str = S::VERSION;
    const URL_PATH_SEGMENT: &'static str = S::PLURAL;
    type Scope = NamespaceResourceScope;
}

impl<S: Kind> Metadata for Object<S> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<S: Kind> JsonSchema for Object<S> {
    /// As a real API server names it: `io.metallb.v1beta1.IPAddressPool`.
    fn schema_name() -> Cow<'static, str> {
        let group: Vec<&str> = S::GROUP.split('.').rev().collect();
        format!("{}.{}.{}", group.join("."), S::VERSION, S::KIND).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (meta, spec) = (generator.subschema_for::<ObjectMeta>(), generator.subschema_for::<S>());
        let status = generator.subschema_for::<S::Status>();
        json_schema!({
            "description": S::PURPOSE,
            "type": "object",
            "properties": {
                "apiVersion": {"type": "string", "description": "The version of this form of an object."},
                "kind": {"type": "string", "description": "What sort of object this is."},
                "metadata": meta,
                "spec": spec,
                "status": status,
            },
        })
    }
}
