//! Pure. Bodies of `application/vnd.kubernetes.protobuf`, which kubectl and Go's clients send: turned into the JSON that
//! the same objects have.
//!
//! ```text
//! k8s\0 │ runtime.Unknown { typeMeta { apiVersion, kind }, raw, ... }
//!                                     │             │
//!                               schema (types)      ▼
//!                     fields.txt (numbers) ──▶ message ──▶ JSON ──▶ prune (what Go does not write goes)
//! ```
//!
//! The format is that of k8s.io/apimachinery's `runtime/serializer/protobuf`; the numbers are those of its `.proto` files.

mod table;
#[cfg(test)]
mod tests;
mod wire;

use super::Gvk;
use super::schema::{Shape, StructId, schemas};
use base64::Engine as _;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use table::Entry;
use wire::{Fields, Payload};

const MAGIC: &[u8] = b"k8s\0";

/// Why a protobuf body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The four bytes `k8s\0` are not there.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Prefix,
    /// The kind is unknown.
    #[error("no kind {:?} is registered for version {:?}", .0.kind, .0.api_version())]
    UnknownKind(Gvk),
    /// The content is encoded in a way that is not known (gzip and the like).
    #[error("unable to decode content encoding {0:?}")]
    Encoding(String),
    /// The message ends too early.
    #[error("unexpected EOF")]
    Truncated,
    /// A number is too long.
    #[error("proto: integer overflow")]
    Varint,
    /// A field's number or type is not valid.
    #[error("proto: illegal tag {key}")]
    Key {
        /// Number and type, as they stand there.
        key: u64,
    },
    /// A field has another type on the wire than in its message.
    #[error("proto: wrong wireType for field {field}")]
    WireType {
        /// The field's JSON name.
        field: String,
    },
}

/// The kind and the object of a body of `application/vnd.kubernetes.protobuf`: `k8s\0`, then a `runtime.Unknown`.
/// The object has the fields that the real server's JSON of it would have, `apiVersion` and `kind` among them.
///
/// # Errors
/// [`ProtobufError`]; the real server answers 400.
pub fn decode_protobuf(body: &[u8]) -> Result<(Gvk, Value), ProtobufError> {
    let unknown = body.strip_prefix(MAGIC).ok_or(ProtobufError::Prefix)?;
    let (gvk, raw) = envelope(unknown)?;
    let root = schemas().of(&gvk).ok_or_else(|| ProtobufError::UnknownKind(gvk.clone()))?;
    let mut object = Map::new();
    message(root, &schemas()[root].name, raw, &mut object)?;
    object.insert("apiVersion".into(), gvk.api_version().into());
    object.insert("kind".into(), gvk.kind.clone().into());
    let mut object = Value::Object(object);
    super::prune(&gvk, &mut object);
    Ok((gvk, object))
}

/// Kind and content of a `runtime.Unknown`.
fn envelope(unknown: &[u8]) -> Result<(Gvk, &[u8]), ProtobufError> {
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields(unknown) {
        match field? {
            (1, Payload::Bytes(type_meta)) => {
                for field in Fields(type_meta) {
                    match field? {
                        (1, Payload::Bytes(text)) => api_version = string(text),
                        (2, Payload::Bytes(text)) => kind = string(text),
                        _ => {}
                    }
                }
            }
            (2, Payload::Bytes(bytes)) => raw = bytes,
            (3, Payload::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(ProtobufError::Encoding(string(encoding)));
            }
            _ => {}
        }
    }
    Ok((Gvk::from_api_version(&api_version, &kind), raw))
}

/// Go's strings are bytes; JSON's are not.
fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads a message into an object. `name` is the struct's own message or one that stands inline within it; neither
/// structs nor inline messages ever lead back to themselves, so the schema bounds the depth.
fn message(id: StructId, name: &str, bytes: &[u8], into: &mut Map<String, Value>) -> Result<(), ProtobufError> {
    let Some(entries) = table::message(name) else { return Ok(()) };
    for field in Fields(bytes) {
        let (number, payload) = field?;
        match (entries.get(&number), payload) {
            // A field of a newer version.
            (None, _) => {}
            (Some(Entry::Inline(inner)), Payload::Bytes(bytes)) => message(id, inner, bytes, into)?,
            (Some(Entry::Inline(inner)), _) => return Err(ProtobufError::WireType { field: (*inner).into() }),
            (Some(Entry::Field(name)), payload) => {
                let Some(field) = schemas()[id].fields.get(*name) else { continue };
                let slot = into.entry(*name).or_insert(Value::Null);
                put(&field.shape, payload, slot, name)?;
            }
        }
    }
    Ok(())
}

/// As `merge`, of a field with a name.
fn put(shape: &Shape, payload: Payload, slot: &mut Value, name: &str) -> Result<(), ProtobufError> {
    merge(shape, payload, slot).ok_or_else(|| ProtobufError::WireType { field: name.into() })?
}

/// Puts a payload into a field: sets a scalar, adds to a list or map, completes a struct. `None`: not the field's type.
fn merge(shape: &Shape, payload: Payload, slot: &mut Value) -> Option<Result<(), ProtobufError>> {
    match (shape, payload) {
        (Shape::List(elements), payload) => {
            if slot.is_null() {
                *slot = json!([]);
            }
            let list = slot.as_array_mut()?;
            match (&**elements, payload) {
                (Shape::Int32 | Shape::Int64 | Shape::Boolean, Payload::Bytes(bytes)) => {
                    for number in wire::packed(bytes) {
                        match number {
                            Ok(number) => list.push(scalar(elements, Payload::Varint(number))?),
                            Err(error) => return Some(Err(error)),
                        }
                    }
                    Some(Ok(()))
                }
                (elements, payload) => {
                    let mut element = Value::Null;
                    let result = merge(elements, payload, &mut element)?;
                    list.push(element);
                    Some(result)
                }
            }
        }
        (Shape::Map(values), Payload::Bytes(bytes)) => {
            if slot.is_null() {
                *slot = json!({});
            }
            Some(map_entry(values, bytes, slot.as_object_mut()?))
        }
        (Shape::Struct(id), Payload::Bytes(bytes)) => {
            if slot.is_null() {
                *slot = json!({});
            }
            Some(message(*id, &schemas()[*id].name, bytes, slot.as_object_mut()?))
        }
        (Shape::IntOrString | Shape::Quantity | Shape::Time | Shape::MicroTime, Payload::Bytes(bytes)) => {
            Some(special(shape, bytes).map(|value| *slot = value))
        }
        (Shape::AnyObject | Shape::Any, Payload::Bytes(bytes)) => Some(raw(bytes).map(|value| *slot = value)),
        (shape, payload) => {
            *slot = scalar(shape, payload)?;
            Some(Ok(()))
        }
    }
}

fn scalar(shape: &Shape, payload: Payload) -> Option<Value> {
    match (shape, payload) {
        (Shape::String, Payload::Bytes(bytes)) => Some(string(bytes).into()),
        (Shape::Bytes, Payload::Bytes(bytes)) => Some(base64::engine::general_purpose::STANDARD.encode(bytes).into()),
        // Two's complement, cut to the type's size.
        (Shape::Int32, Payload::Varint(number)) => Some((number as u32 as i32).into()),
        (Shape::Int64, Payload::Varint(number)) => Some((number as i64).into()),
        (Shape::Boolean, Payload::Varint(number)) => Some((number != 0).into()),
        (Shape::Number, Payload::Fixed64(bits)) => Some(f64::from_bits(bits).into()),
        (Shape::Number, Payload::Fixed32(bits)) => Some(f64::from(f32::from_bits(bits)).into()),
        _ => None,
    }
}

/// An entry of a map: key and value are fields 1 and 2 of a message; a missing one is empty.
fn map_entry(values: &Shape, bytes: &[u8], map: &mut Map<String, Value>) -> Result<(), ProtobufError> {
    let (mut key, mut value) = (String::new(), Value::Null);
    for field in Fields(bytes) {
        match field? {
            (1, Payload::Bytes(text)) => key = string(text),
            // A list as a map's value is a message of its own, with the elements as field 1.
            (2, Payload::Bytes(list)) if matches!(values, Shape::List(_)) => {
                for element in Fields(list) {
                    if let (1, payload) = element? {
                        put(values, payload, &mut value, &key)?;
                    }
                }
            }
            (2, payload) => put(values, payload, &mut value, &key)?,
            _ => {}
        }
    }
    if value.is_null() && matches!(values, Shape::String | Shape::Bytes) {
        value = json!("");
    }
    map.insert(key, value);
    Ok(())
}

/// Messages that JSON writes as scalars.
fn special(shape: &Shape, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut numbers = [0_u64; 2];
    let mut text = None;
    for field in Fields(bytes) {
        match field? {
            (number @ 1..=2, Payload::Varint(value)) => numbers[number as usize - 1] = value,
            (1 | 3, Payload::Bytes(bytes)) => text = Some(string(bytes)),
            _ => {}
        }
    }
    Ok(match shape {
        // type (0: number), intVal, strVal
        Shape::IntOrString if numbers[0] == 0 => (numbers[1] as u32 as i32).into(),
        Shape::IntOrString => text.unwrap_or_default().into(),
        Shape::Quantity => text.filter(|text| !text.is_empty()).unwrap_or_else(|| "0".into()).into(),
        // seconds, nanoseconds; Go's zero time has neither
        _ => time(numbers[0] as i64, numbers[1] as u32 as i32).map_or(Value::Null, Value::from),
    })
}

/// RFC 3339 to the nanosecond; `prune` cuts it to the field's form. `None`: no time, or one out of range.
fn time(seconds: i64, nanoseconds: i32) -> Option<String> {
    if (seconds, nanoseconds) == (0, 0) {
        return None;
    }
    Some(Timestamp::new(seconds, nanoseconds).ok()?.to_string())
}

/// JSON within protobuf (`RawExtension`, `FieldsV1`): field 1.
fn raw(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut value = Value::Null;
    for field in Fields(bytes) {
        if let (1, Payload::Bytes(json)) = field? {
            value = serde_json::from_slice(json).unwrap_or_default();
        }
    }
    Ok(value)
}
