//! Pure. Short ways into an object's JSON: its metadata, and reading fields without panics.

use serde_json::{Map, Value};

/// The string at a path of keys.
pub fn text<'a>(object: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(object, path)?.as_str()
}

/// The number at a path of keys.
pub fn number(object: &Value, path: &[&str]) -> Option<i64> {
    at(object, path)?.as_i64()
}

/// The value at a path of keys; `null` counts as absent.
pub fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let value = path.iter().try_fold(object, |value, key| value.get(key))?;
    (!value.is_null()).then_some(value)
}

/// The list at a path of keys; empty if there is none.
pub fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The object's fields. What is no JSON object becomes an empty one.
pub fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("made an object above"),
    }
}

/// The JSON object under a key, made if it is not there.
pub fn child<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    fields(fields(value).entry(key).or_insert_with(|| Value::Object(Map::new())))
}

/// `metadata`, made if it is not there.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    child(object, "metadata")
}

/// `metadata.KEY` as text; empty if absent.
pub fn meta<'a>(object: &'a Value, key: &str) -> &'a str {
    text(object, &["metadata", key]).unwrap_or("")
}

/// `metadata.name`.
pub fn name(object: &Value) -> &str {
    meta(object, "name")
}

/// `metadata.namespace`; empty for what lives in none.
pub fn namespace(object: &Value) -> &str {
    meta(object, "namespace")
}

/// Whether `metadata.deletionTimestamp` is set.
pub fn is_terminating(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some()
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<&str> {
    items(object, &["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect()
}

/// Sets a key that is absent (or null).
pub fn set_default(fields: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let slot = fields.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Removes `null` members, which mean "not set", from objects at every depth.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// `metadata` as a value, made if it is not there.
pub fn metadata_value(object: &mut Value) -> &mut Value {
    let metadata = fields(object).entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    fields(metadata);
    metadata
}
