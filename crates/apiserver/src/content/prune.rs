//! Pure. Unknown fields go, and what means nothing. What is left is what the real server keeps: it reads a body into Go
//! structs and writes those, so unknown fields, nulls and empty values that Go does not write are lost on the way.

use super::Gvk;
use super::quantity::canonical;
use super::schema::{Shape, StructId, Tags, schemas};
use serde_json::{Map, Value, json};
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

/// So many unknown fields are told at most, as the real server does.
const MOST: usize = 100;

/// Drops the fields that the kind does not have, and tells which (a hundred at most). Drops also what means "not set" (nulls; empty strings,
/// lists and maps, zeros and false where Go has no pointer), and gives quantities and times the form in which they are
/// written. Values of a wrong type stay: [`super::check_types`] refuses them. An object of an unknown kind stays as it is.
pub fn prune(gvk: &Gvk, object: &mut Value) -> Vec<UnknownField> {
    let mut pruner = Pruner { path: String::new(), unknown: vec![] };
    if let (Some(root), Value::Object(map)) = (schemas().of(gvk), object) {
        pruner.structure(root, map);
    }
    pruner.unknown
}

struct Pruner {
    path: String,
    unknown: Vec<UnknownField>,
}

impl Pruner {
    fn structure(&mut self, id: StructId, map: &mut Map<String, Value>) {
        map.retain(|name, value| {
            let length = self.path.len();
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            let keep = match schemas()[id].fields.get(name.as_str()) {
                None => {
                    if self.unknown.len() < MOST {
                        self.unknown.push(UnknownField { path: self.path.clone() });
                    }
                    false
                }
                Some(field) => {
                    self.value(&field.shape, value);
                    !is_unset(&field.shape, &field.tags, value)
                }
            };
            self.path.truncate(length);
            keep
        });
    }

    fn value(&mut self, shape: &Shape, value: &mut Value) {
        match (shape, value) {
            (Shape::Struct(id), Value::Object(map)) => self.structure(*id, map),
            (Shape::Map(values), Value::Object(map)) => {
                for (key, value) in map {
                    self.element(values, value, |path| {
                        path.push('.');
                        path.push_str(key);
                    });
                }
            }
            (Shape::List(elements), Value::Array(list)) => {
                for (at, value) in list.iter_mut().enumerate() {
                    self.element(elements, value, |path| path.push_str(&format!("[{at}]")));
                }
            }
            (Shape::Quantity, value @ Value::Number(_)) => {
                let text = value.to_string();
                *value = canonical(&text).unwrap_or(text).into();
            }
            (Shape::Quantity, Value::String(text)) => {
                if let Some(canonical) = canonical(text) {
                    *text = canonical;
                }
            }
            (Shape::Time, Value::String(text)) => rewrite_time(text, "%Y-%m-%dT%H:%M:%SZ"),
            (Shape::MicroTime, Value::String(text)) => rewrite_time(text, "%Y-%m-%dT%H:%M:%S.%6fZ"),
            _ => {}
        }
    }

    fn element(&mut self, shape: &Shape, value: &mut Value, name: impl FnOnce(&mut String)) {
        if value.is_null() {
            *value = zero(shape);
        }
        let length = self.path.len();
        name(&mut self.path);
        self.value(shape, value);
        self.path.truncate(length);
    }
}

/// Whether Go would not write the field.
fn is_unset(shape: &Shape, tags: &Tags, value: &Value) -> bool {
    if value.is_null() {
        return true;
    }
    if tags.pointer || tags.always || matches!(shape, Shape::Struct(_) | Shape::AnyObject | Shape::Any) {
        return false;
    }
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => *shape != Shape::IntOrString && value.as_i64() == Some(0),
        Value::String(value) => *shape != Shape::IntOrString && value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}

/// What Go reads from a null within a list or a map.
fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::String | Shape::Bytes => json!(""),
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => json!(0),
        Shape::Boolean => json!(false),
        Shape::Quantity => json!("0"),
        Shape::Struct(_) => json!({}),
        _ => Value::Null,
    }
}

fn rewrite_time(text: &mut String, format: &str) {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        *text = time.strftime(format).to_string();
    }
}

#[cfg(test)]
mod tests;
