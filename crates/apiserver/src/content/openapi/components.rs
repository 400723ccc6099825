//! Pure. `components.schemas`: what the kinds of a group and version refer to.

use crate::content::Gvk;
use crate::content::schema::{ListType, Schemas, Struct, Tags, schemas};
use crate::registry::KindInfo;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const REFERENCE: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A reference to a schema.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("{REFERENCE}{name}") })
}

/// The name of a kind's schema.
pub(super) fn name_of(gvk: &Gvk) -> String {
    let schemas = schemas();
    schemas.of(gvk).map(|id| schemas[id].name.to_string()).unwrap_or_default()
}

/// The kind of `/scale`, of whichever group the scaled kind is.
pub(super) fn scale() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// What `x-kubernetes-group-version-kind` says of a kind.
pub(super) fn gvk_json(gvk: &Gvk) -> Value {
    json!({ "group": gvk.group, "version": gvk.version, "kind": gvk.kind })
}

/// The schemas of the kinds, of their lists, and of all that they refer to.
pub(super) fn of(kinds: &[&KindInfo]) -> Map<String, Value> {
    let mut found = Map::new();
    let mut wanted: BTreeSet<String> = [format!("{META}.ListMeta")].into();
    let mut gvks: Vec<Gvk> = kinds.iter().map(|kind| Gvk::new(kind.group, kind.version, kind.kind)).collect();
    for gvk in &gvks {
        found.insert(format!("{}List", name_of(gvk)), list(gvk));
    }
    gvks.extend(["DeleteOptions", "Status"].map(|kind| Gvk::new("", "v1", kind)));
    if kinds.iter().any(|kind| kind.has_scale) {
        gvks.push(scale());
    }
    wanted.extend(gvks.iter().map(name_of));
    while let Some(name) = wanted.pop_first() {
        let Some(definition) = schemas().definitions().get(name.as_str()) else { continue };
        let schema = published(schemas(), &name, definition);
        collect_references(&schema, &mut wanted);
        wanted.retain(|name| !found.contains_key(name));
        found.insert(name, schema);
    }
    for gvk in &gvks {
        if let Some(schema) = found.get_mut(&name_of(gvk)) {
            schema["x-kubernetes-group-version-kind"] = json!([gvk_json(gvk)]);
        }
    }
    found.insert(format!("{META}.Patch"), patch());
    found
}

fn collect_references(schema: &Value, wanted: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(REFERENCE)) {
                wanted.insert(name.into());
            }
            map.values().for_each(|value| collect_references(value, wanted));
        }
        Value::Array(list) => list.iter().for_each(|value| collect_references(value, wanted)),
        _ => {}
    }
}

fn list(gvk: &Gvk) -> Value {
    let item = reference(&name_of(gvk));
    let meta = reference(&format!("{META}.ListMeta"));
    json!({
        "description": format!("{0}List is a list of {0} objects.", gvk.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": { "type": "string", "description": "The versioned schema of this representation of an object." },
            "kind": { "type": "string", "description": "The REST resource that this object represents." },
            "metadata": { "allOf": [meta], "description": "Standard list metadata." },
            "items": { "type": "array", "items": { "allOf": [item] }, "description": "The objects." },
        },
        "x-kubernetes-group-version-kind": [{
            "group": gvk.group, "version": gvk.version, "kind": format!("{}List", gvk.kind),
        }],
    })
}

fn patch() -> Value {
    json!({ "description": "A patch in one of the forms that the request's content type names.", "type": "object" })
}

/// A definition as the real server publishes it.
fn published(schemas: &Schemas, name: &str, definition: &Value) -> Value {
    let mut schema = definition.clone();
    match name {
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
            schema["format"] = "int-or-string".into();
            schema["oneOf"] = json!([{ "type": "integer" }, { "type": "string" }]);
        }
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
            schema["oneOf"] = json!([{ "type": "string" }, { "type": "number" }]);
        }
        _ => {}
    }
    if let Some(map) = schema.as_object_mut() {
        map.remove("x-kubernetes-int-or-string");
    }
    if let Some(id) = schemas.named(name) {
        publish_fields(&schemas[id], &mut schema);
    }
    schema
}

fn publish_fields(structure: &Struct, schema: &mut Value) {
    if structure.tags.atomic_struct {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    // k8s-openapi asks for the metadata of every object; the real server does not.
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|field| field != "metadata");
        if required.is_empty() {
            schema.as_object_mut().map(|schema| schema.remove("required"));
        }
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, property) in properties {
        wrap_reference(property);
        if let Some(field) = structure.fields.get(name.as_str()) {
            extend(property, &field.tags);
        }
    }
}

/// OpenAPI 3.0 ignores what stands beside a `$ref`: the reference goes into an `allOf`.
fn wrap_reference(property: &mut Value) {
    if let Some(map) = property.as_object_mut()
        && map.len() > 1
        && let Some(reference) = map.remove("$ref")
    {
        map.insert("allOf".into(), json!([{ "$ref": reference }]));
    }
}

fn extend(property: &mut Value, tags: &Tags) {
    let strategies: Vec<&str> = [(tags.merge, "merge"), (tags.retain_keys, "retainKeys")]
        .iter()
        .filter(|(has, _)| *has)
        .map(|(_, name)| *name)
        .collect();
    if !strategies.is_empty() {
        property["x-kubernetes-patch-strategy"] = strategies.join(",").into();
    }
    if let Some(key) = &tags.merge_key {
        property["x-kubernetes-patch-merge-key"] = (**key).into();
    }
    if tags.atomic_struct {
        property["x-kubernetes-map-type"] = "atomic".into();
    }
    match &tags.list {
        None => {}
        Some(ListType::Atomic) => property["x-kubernetes-list-type"] = "atomic".into(),
        Some(ListType::Set) => property["x-kubernetes-list-type"] = "set".into(),
        Some(ListType::Map(keys)) => {
            property["x-kubernetes-list-type"] = "map".into();
            property["x-kubernetes-list-map-keys"] = keys.iter().map(|key| &**key).collect();
        }
    }
}
