//! Pure. Whether a JSON object has the types of its kind. The texts are those of the real server's decoder, which is Go's
//! (`encoding/json`): people search the web for them.

use super::Gvk;
use super::quantity::is_quantity;
use super::schema::{Shape, StructId, schemas};
use base64::Engine as _;
use serde_json::{Number, Value};
use std::fmt::Write as _;

/// A value of another type than its field's. Prints as the real server's decoder says it:
/// `json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The body is no object.
    #[error("json: cannot unmarshal {found} into Go value of type {kind}")]
    NotAnObject {
        /// What it is.
        found: &'static str,
        /// Go's name of the kind.
        kind: String,
    },
    /// A value of a field has another type.
    #[error("json: cannot unmarshal {found} into Go struct field {structure}.{path} of type {expected}")]
    Field {
        /// `string`, `number`, `number 1.5`, `bool`, `array`, `object`.
        found: String,
        /// Go's name of the struct that has the field, without package.
        structure: String,
        /// The fields from the root to it, joined by dots, without indexes.
        path: String,
        /// The field's Go type.
        expected: String,
    },
    /// A value of a type that reads itself (times, numbers or strings).
    #[error("json: cannot unmarshal {found} into Go value of type {expected}")]
    Value {
        /// As in `Field`.
        found: String,
        /// The Go type.
        expected: &'static str,
    },
    /// A value of a field has another type; the text is that of the converter which reads merged maps, and names no
    /// field.
    #[error("{problem}")]
    Converted {
        /// `cannot convert int64 to string`, `unrecognized type: int32`, `cannot restore slice from string`.
        problem: String,
    },
    /// No quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Quantity,
    /// No time.
    #[error("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"")]
    Time {
        /// What is there.
        text: String,
        /// Go's layout.
        layout: &'static str,
    },
    /// No base64.
    #[error("illegal base64 data at input byte {offset}")]
    Base64 {
        /// Where.
        offset: usize,
    },
}

/// Checks JSON types against the schema of the kind; an unknown kind has none. Nulls fit everything: they mean "not set".
///
/// # Errors
/// The first value that does not fit. The real server answers 400 with
/// `KIND in version "VERSION" cannot be handled as a KIND: ` before the text.
pub fn check_types(gvk: &Gvk, object: &Value) -> Result<(), TypeError> {
    check(gvk, object, Voice::Decoder)
}

/// As [`check_types`], for what a strategic merge patch has made: the real server reads that by another way, whose texts
/// differ (and name no field).
///
/// # Errors
/// The first value that does not fit. The real server answers 422 with
/// ` "" is invalid: patch: Invalid value: "PATCH": ` before the text, PATCH as [`super::go_print`] prints it.
pub fn check_merged_types(gvk: &Gvk, object: &Value) -> Result<(), TypeError> {
    check(gvk, object, Voice::Converter)
}

/// Whose texts are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    /// The decoder of JSON.
    Decoder,
    /// The converter from maps.
    Converter,
}

fn check(gvk: &Gvk, object: &Value, voice: Voice) -> Result<(), TypeError> {
    let Some(root) = schemas().of(gvk) else { return Ok(()) };
    if !object.is_object() {
        return Err(TypeError::NotAnObject { found: type_name(object), kind: schemas()[root].go_name().into() });
    }
    Checker { voice, structure: root, path: vec![] }.structure(root, object)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

struct Checker<'a> {
    voice: Voice,
    structure: StructId,
    path: Vec<&'a str>,
}

impl<'a> Checker<'a> {
    fn structure(&mut self, id: StructId, value: &'a Value) -> Result<(), TypeError> {
        let Value::Object(map) = value else { return Ok(()) };
        let outer = std::mem::replace(&mut self.structure, id);
        for (name, value) in map {
            if let Some(field) = schemas()[id].fields.get(name.as_str()) {
                self.path.push(name);
                self.value(&field.shape, field.tags.go_type.as_deref(), value)?;
                self.path.pop();
            }
        }
        self.structure = outer;
        Ok(())
    }

    fn value(&mut self, shape: &Shape, go_type: Option<&str>, value: &'a Value) -> Result<(), TypeError> {
        match (shape, value) {
            (_, Value::Null) | (Shape::Any, _) | (Shape::String, Value::String(_)) => Ok(()),
            (Shape::Boolean, Value::Bool(_)) | (Shape::Number, Value::Number(_)) => Ok(()),
            (Shape::AnyObject, Value::Object(_)) | (Shape::IntOrString, Value::String(_)) => Ok(()),
            (Shape::Struct(id), Value::Object(_)) => self.structure(*id, value),
            (Shape::Map(values), Value::Object(map)) => {
                let inner = go_type.and_then(|go| go.split_once(']')).map(|(_, values)| values);
                map.values().try_for_each(|value| self.value(values, inner, value))
            }
            (Shape::List(elements), Value::Array(list)) => {
                let inner = go_type.and_then(|go| go.strip_prefix("[]"));
                list.iter().try_for_each(|value| self.value(elements, inner, value))
            }
            (Shape::Int32, Value::Number(number)) => match fits_int32(number) {
                true => Ok(()),
                false => Err(self.misfit(shape, go_type, value)),
            },
            (Shape::Int64, Value::Number(number)) => match number.is_i64() {
                true => Ok(()),
                false => Err(self.misfit(shape, go_type, value)),
            },
            (Shape::IntOrString, value) => int_or_string(value),
            (Shape::Quantity, value) => quantity(value),
            (Shape::Time, value) => time(value, "2006-01-02T15:04:05Z07:00"),
            (Shape::MicroTime, value) => time(value, "2006-01-02T15:04:05.000000Z07:00"),
            (Shape::Bytes, Value::String(text)) => bytes(text),
            (shape, value) => Err(self.misfit(shape, go_type, value)),
        }
    }

    fn misfit(&self, shape: &Shape, go_type: Option<&str>, value: &Value) -> TypeError {
        let expected = go_type.map_or_else(|| go_name(shape), str::to_owned);
        if self.voice == Voice::Converter {
            return TypeError::Converted { problem: unconverted(shape, &expected, value) };
        }
        let structure = schemas()[self.structure].go_name();
        let found = match (shape, value) {
            (Shape::Int32 | Shape::Int64, Value::Number(number)) => format!("number {number}"),
            (_, value) => type_name(value).into(),
        };
        TypeError::Field {
            found,
            structure: structure.rsplit('.').next().unwrap_or(structure).into(),
            path: self.path.join("."),
            expected,
        }
    }
}

/// What the converter from maps says of a value that does not fit.
fn unconverted(shape: &Shape, expected: &str, value: &Value) -> String {
    let found = match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    match (shape, value) {
        (Shape::List(_) | Shape::Bytes, _) => format!("cannot restore slice from {found}"),
        (Shape::Map(_) | Shape::AnyObject, _) => format!("cannot restore map from {found}"),
        (Shape::Struct(_), _) => format!("cannot restore struct from: {found}"),
        (Shape::Int32 | Shape::Int64, Value::Number(_)) => format!("cannot convert {found} to {expected}"),
        (Shape::String, Value::Number(number)) if !number.is_f64() => format!("cannot convert {found} to {expected}"),
        (Shape::String, _) => "unrecognized type: string".into(),
        _ => format!("unrecognized type: {expected}"),
    }
}

/// Go's name of a type.
fn go_name(shape: &Shape) -> String {
    let mut name = String::new();
    let mut shape = shape;
    loop {
        let inner = match shape {
            Shape::List(elements) => ("[]", elements),
            Shape::Map(values) => ("map[string]", values),
            _ => break,
        };
        name.push_str(inner.0);
        shape = inner.1;
    }
    let base = match shape {
        Shape::Struct(id) => schemas()[*id].go_name(),
        Shape::String => "string",
        Shape::Bytes => "[]uint8",
        Shape::Int32 => "int32",
        Shape::Int64 => "int64",
        Shape::Number => "float64",
        Shape::Boolean => "bool",
        Shape::IntOrString => "intstr.IntOrString",
        Shape::Quantity => "resource.Quantity",
        Shape::Time => "v1.Time",
        Shape::MicroTime => "v1.MicroTime",
        Shape::AnyObject | Shape::Any | Shape::List(_) | Shape::Map(_) => "map[string]interface {}",
    };
    // Writing to a String cannot fail.
    let _ = name.write_str(base);
    name
}

fn fits_int32(number: &Number) -> bool {
    number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

fn int_or_string(value: &Value) -> Result<(), TypeError> {
    match value {
        Value::Number(number) if fits_int32(number) => Ok(()),
        Value::Number(number) => Err(TypeError::Value { found: format!("number {number}"), expected: "int32" }),
        value => Err(TypeError::Value { found: type_name(value).into(), expected: "int32" }),
    }
}

/// A number, a sign and a suffix; more is the business of who reads the quantity.
fn quantity(value: &Value) -> Result<(), TypeError> {
    match value {
        Value::Number(_) => Ok(()),
        Value::String(text) if is_quantity(text) => Ok(()),
        _ => Err(TypeError::Quantity),
    }
}

fn time(value: &Value, layout: &'static str) -> Result<(), TypeError> {
    match value {
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() && text.contains('T') => Ok(()),
        Value::String(text) => Err(TypeError::Time { text: text.clone(), layout }),
        value => Err(TypeError::Value { found: type_name(value).into(), expected: "string" }),
    }
}

fn bytes(text: &str) -> Result<(), TypeError> {
    // Go's decoder passes over line breaks.
    let joined = text.replace(['\r', '\n'], "");
    match base64::engine::general_purpose::STANDARD.decode(&joined) {
        Ok(_) => Ok(()),
        Err(base64::DecodeError::InvalidByte(offset, _) | base64::DecodeError::InvalidLastSymbol(offset, _)) => {
            Err(TypeError::Base64 { offset })
        }
        Err(_) => Err(TypeError::Base64 { offset: joined.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(api_version: &str, kind: &str, object: Value) -> String {
        check_types(&Gvk::from_api_version(api_version, kind), &object).unwrap_err().to_string()
    }

    #[test]
    fn misfits_are_told_as_the_real_server_tells_them() {
        let cases = [
            (
                json!({ "spec": { "ports": [{ "port": "80" }] } }),
                "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32",
            ),
            (
                json!({ "spec": { "ports": { "port": 80 } } }),
                "json: cannot unmarshal object into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
            ),
            (
                json!({ "spec": { "type": 1 } }),
                "json: cannot unmarshal number into Go struct field ServiceSpec.spec.type of type v1.ServiceType",
            ),
            (
                json!({ "spec": "x" }),
                "json: cannot unmarshal string into Go struct field Service.spec of type v1.ServiceSpec",
            ),
            (
                json!({ "metadata": { "labels": { "a": 1 } } }),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                json!({ "metadata": { "labels": [] } }),
                "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
            ),
            (
                json!({ "spec": { "ports": [{ "port": 1.5 }] } }),
                "json: cannot unmarshal number 1.5 into Go struct field ServicePort.spec.ports.port of type int32",
            ),
            (
                json!({ "spec": { "ports": [{ "port": 4294967296_u64 }] } }),
                "json: cannot unmarshal number 4294967296 into Go struct field ServicePort.spec.ports.port of type int32",
            ),
            (
                json!({ "spec": { "ports": [{ "port": 80, "targetPort": true }] } }),
                "json: cannot unmarshal bool into Go value of type int32",
            ),
            (
                json!({ "spec": { "ipFamilies": [4] } }),
                "json: cannot unmarshal number into Go struct field ServiceSpec.spec.ipFamilies of type v1.IPFamily",
            ),
            (
                json!({ "metadata": { "creationTimestamp": 1 } }),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                json!({ "metadata": { "creationTimestamp": "x" } }),
                "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
            ),
            (json!([]), "json: cannot unmarshal array into Go value of type v1.Service"),
        ];
        for (object, expected) in cases {
            assert_eq!(text("v1", "Service", object), expected);
        }
        let container = |container: Value| json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
        assert_eq!(
            text("apps/v1", "Deployment", container(json!({ "env": [{ "name": "A", "value": 1 }] }))),
            "json: cannot unmarshal number into Go struct field EnvVar.spec.template.spec.containers.env.value of type string"
        );
        let limit = container(json!({ "resources": { "limits": { "cpu": "much" } } }));
        assert!(text("apps/v1", "Deployment", limit).starts_with("quantities must match the regular expression"));
        assert_eq!(text("v1", "Secret", json!({ "data": { "a": "abc-" } })), "illegal base64 data at input byte 3");
    }

    #[test]
    fn misfits_after_a_merge_are_told_as_the_real_servers_converter_tells_them() {
        let cases = [
            (json!({ "spec": { "replicas": "two" } }), "unrecognized type: int32"),
            (json!({ "spec": { "replicas": 1.5 } }), "cannot convert float64 to int32"),
            (json!({ "spec": { "paused": 1 } }), "unrecognized type: bool"),
            (json!({ "metadata": { "labels": { "a": 1 } } }), "cannot convert int64 to string"),
            (json!({ "metadata": { "labels": { "a": true } } }), "unrecognized type: string"),
            (json!({ "metadata": { "labels": ["a"] } }), "cannot restore map from slice"),
            (json!({ "spec": { "strategy": { "type": 1 } } }), "cannot convert int64 to v1.DeploymentStrategyType"),
            (json!({ "spec": { "template": "x" } }), "cannot restore struct from: string"),
            (json!({ "metadata": { "finalizers": {} } }), "cannot restore slice from map"),
        ];
        for (object, expected) in cases {
            let error = check_merged_types(&Gvk::new("apps", "v1", "Deployment"), &object).unwrap_err();
            assert_eq!(error.to_string(), expected, "{object}");
        }
    }

    #[test]
    fn what_fits_passes() {
        let pod = json!({ "metadata": { "name": "a", "creationTimestamp": null, "unknown": 1 }, "spec": { "containers": [{
            "name": "a", "resources": { "limits": { "cpu": 1, "memory": "1.5Gi" }, "requests": { "cpu": "1e3" } },
            "livenessProbe": { "httpGet": { "port": "http" }, "timeoutSeconds": 1 } }], "hostNetwork": false },
            "status": null });
        assert_eq!(check_types(&Gvk::new("", "v1", "Pod"), &pod), Ok(()));
        assert_eq!(check_types(&Gvk::new("x.org", "v1", "Thing"), &json!([])), Ok(()));
        let time = json!({ "spec": { "renewTime": "2026-01-02T03:04:05.123456Z" } });
        assert_eq!(check_types(&Gvk::new("coordination.k8s.io", "v1", "Lease"), &time), Ok(()));
    }
}
