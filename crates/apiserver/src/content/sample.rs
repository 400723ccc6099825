//! Pure. Objects with every field filled, made from the schemas: what a kind can hold at most.

use super::Gvk;
use super::schema::{Shape, StructId, schemas};
use crate::registry::is_custom_group;
use serde_json::{Map, Value, json};

/// An object of a kind with a value in each field, and two elements in each list.
pub(super) fn full(gvk: &Gvk) -> Value {
    let mut object = structure(schemas().of(gvk).unwrap(), 1);
    object["apiVersion"] = gvk.api_version().into();
    object["kind"] = gvk.kind.clone().into();
    object
}

/// The kinds that Kubernetes itself has, in order.
pub(super) fn kinds() -> Vec<Gvk> {
    let own = schemas().kinds().filter(|(gvk, _)| !is_custom_group(&gvk.group));
    let mut kinds: Vec<Gvk> = own.map(|(gvk, _)| gvk.clone()).collect();
    kinds.sort();
    kinds
}

fn structure(id: StructId, seed: i64) -> Value {
    let fields = schemas()[id].fields.iter().map(|(name, field)| (name.to_string(), value(&field.shape, name, seed)));
    let mut object = Value::Object(fields.collect::<Map<_, _>>());
    // The one kind within another: its type reads only its own names.
    if schemas()[id].name.ends_with(".PersistentVolumeClaim") {
        object["apiVersion"] = "v1".into();
        object["kind"] = "PersistentVolumeClaim".into();
    }
    object
}

fn value(shape: &Shape, name: &str, seed: i64) -> Value {
    match shape {
        Shape::Struct(id) => structure(*id, seed),
        Shape::Map(values) => json!({ "a": value(values, name, seed), "b.c/d": value(values, name, seed + 1) }),
        Shape::List(elements) => json!([value(elements, name, seed), value(elements, name, seed + 1)]),
        Shape::String => format!("{name}-{seed}").into(),
        Shape::Bytes => "AAECAw==".into(),
        Shape::Int32 | Shape::Int64 => json!(seed + name.len() as i64),
        Shape::Number => json!(0.5),
        Shape::Boolean => true.into(),
        Shape::IntOrString if seed % 2 == 0 => "50%".into(),
        Shape::IntOrString => json!(seed),
        Shape::Quantity => "100m".into(),
        Shape::Time => format!("2026-01-02T03:04:{seed:02}Z").into(),
        Shape::MicroTime => format!("2026-01-02T03:04:{seed:02}.000123Z").into(),
        Shape::AnyObject | Shape::Any => json!({ "f:x": { ".": {} } }),
    }
}
