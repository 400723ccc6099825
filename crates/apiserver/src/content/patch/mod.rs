//! Pure. Strategic merge patch: a merge patch that knows which lists are sets of things with names.
//!
//! ```text
//! original, patch ──▶ map: $retainKeys, then $setElementOrder/LIST, then each field ──▶ list.rs: by merge key or by value
//! ```
//!
//! Follows what kube-apiserver does with `application/strategic-merge-patch+json` (KEP-less; the documents
//! "Update API Objects in Place Using kubectl patch" and the contributors' "Strategic Merge Patch" describe it):
//! nulls delete and leave nothing behind, directives never reach the object, elements keep the server's order unless
//! `$setElementOrder` says otherwise.

mod list;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use super::schema::{Shape, StructId, Tags, schemas};
use serde_json::{Map, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Why a strategic merge patch cannot be applied. The texts are the real server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// No strategic merge is known for this kind (the real server answers 415).
    #[error("strategic merge patch format is not supported")]
    UnknownKind,
    /// The patch or the object is no JSON object.
    #[error("invalid JSON document")]
    NotAnObject,
    /// A directive's value has the wrong form.
    #[error("invalid patch format of {directive}")]
    Directive {
        /// `primitive list`, `retainKeys` or `setElementOrder list`.
        directive: &'static str,
    },
    /// `$patch` says something else than replace, merge or delete.
    #[error("unknown patch type: {directive} in map: {map}")]
    UnknownDirective {
        /// What it says.
        directive: Value,
        /// Where.
        map: Value,
    },
    /// `$patch: merge` in a list.
    #[error("merging lists cannot yet be specified in the patch")]
    MergeInList,
    /// An element has no value for the key that tells elements apart.
    #[error("map: {map} does not contain declared merge key: {key}")]
    NoMergeKey {
        /// The element.
        map: Value,
        /// The key.
        key: String,
    },
    /// Scalars beside objects in one list.
    #[error("list element types are not identical: {list}")]
    MixedList {
        /// The list.
        list: Value,
    },
    /// Lists in a list that is to be merged.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// A list of objects that has no merge key and is to be merged.
    #[error("cannot merge lists without merge key for {field}")]
    NoKeyKnown {
        /// The list.
        field: String,
    },
    /// The list and its order disagree.
    #[error("The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n")]
    Order {
        /// The patch's list.
        patch: Value,
        /// The order asked for.
        order: Value,
    },
    /// An order for a field that does not exist.
    #[error("unable to find api field in struct {structure} for the json field {field:?}")]
    UnknownField {
        /// Go's name of the struct, without its package.
        structure: String,
        /// The field.
        field: String,
    },
    /// A list where an object should be, or the other way round.
    #[error("expected a {expected}, but received a {received}")]
    Type {
        /// What is there.
        expected: &'static str,
        /// What the patch has.
        received: &'static str,
    },
}

impl PatchError {
    /// The HTTP status that the real server answers with.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::UnknownKind => 415,
            Self::NotAnObject | Self::Directive { .. } => 400,
            Self::ListOfLists => 422,
            _ => 500,
        }
    }
}

/// The object that a strategic merge patch makes of `original`, an object of a kind of the core or another group.
///
/// # Errors
/// [`PatchError`], with the real server's texts. The kind is one of [`schemas`]' kinds, else `UnknownKind`.
pub fn strategic_merge(kind: &str, original: Value, patch: Value) -> Result<Value, PatchError> {
    let root = schemas().of_kind(kind).ok_or(PatchError::UnknownKind)?;
    match (original, patch) {
        (Value::Object(original), Value::Object(patch)) => {
            merge_map(original, patch, Place::Struct(root)).map(Value::Object)
        }
        _ => Err(PatchError::NotAnObject),
    }
}

/// What is known of the map at hand.
#[derive(Clone, Copy)]
enum Place<'a> {
    Struct(StructId),
    Map(&'a Shape),
    Unknown,
}

impl Place<'static> {
    fn of(shape: Option<&'static Shape>) -> Self {
        match shape {
            Some(Shape::Struct(id)) => Place::Struct(*id),
            Some(Shape::Map(values)) => Place::Map(values),
            _ => Place::Unknown,
        }
    }

    /// The shape and the tags of a field.
    fn field(self, name: &str) -> (Option<&'static Shape>, Option<&'static Tags>) {
        match self {
            Place::Struct(id) => {
                let field = schemas()[id].fields.get(name);
                (field.map(|field| &field.shape), field.map(|field| &field.tags))
            }
            Place::Map(values) => (Some(values), None),
            Place::Unknown => (None, None),
        }
    }

    fn elements(shape: Option<&'static Shape>) -> Self {
        match shape {
            Some(Shape::List(elements)) => Place::of(Some(elements)),
            _ => Place::Unknown,
        }
    }
}

type Object = Map<String, Value>;

fn merge_map(mut original: Object, mut patch: Object, place: Place<'static>) -> Result<Object, PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(without_directives(patch)),
            Some("delete") => Ok(Map::new()),
            // The real server refuses this; the documents allow it, and it is what happens without the directive.
            Some("merge") => merge_map(original, patch, place),
            _ => Err(PatchError::UnknownDirective { directive, map: Value::Object(patch) }),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    list::apply_orders(&mut original, &mut patch, place)?;
    for (key, value) in patch {
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            list::delete_scalars(&mut original, name, &value)?;
            continue;
        }
        let merged = match (original.remove(&key), value) {
            (_, Value::Null) => None,
            (Some(Value::Object(old)), Value::Object(new)) => {
                let (shape, _) = place.field(&key);
                Some(Value::Object(merge_map(old, new, Place::of(shape))?))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let (shape, tags) = place.field(&key);
                Some(Value::Array(match tags {
                    Some(tags) if tags.merge => list::merge(old, new, list::Elements::of(&key, shape, tags))?,
                    _ => new.into_iter().filter_map(added).collect(),
                }))
            }
            (_, new) => added(new),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

/// Drops from the original what `$retainKeys` does not name: how a union changes its member.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let bad = PatchError::Directive { directive: "retainKeys" };
    let keys = match patch.remove(RETAIN_KEYS) {
        None => return Ok(()),
        Some(Value::Array(keys)) => keys,
        Some(_) => return Err(bad),
    };
    let retained = |key: &str| keys.iter().any(|kept| kept == key);
    let foreign = |(key, value): (&String, &Value)| {
        !value.is_null() && !key.starts_with(DELETE_FROM) && !key.starts_with(ELEMENT_ORDER) && !retained(key)
    };
    if patch.iter().any(foreign) {
        return Err(bad);
    }
    original.retain(|key, _| retained(key));
    Ok(())
}

/// What is left of a value that was not there before: without directives and nulls. `None`: nothing, it was a directive.
fn added(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(without_directives(map))),
        Value::Array(list) => Some(Value::Array(list.into_iter().filter_map(added).collect())),
        value => Some(value),
    }
}

fn without_directives(map: Object) -> Object {
    map.into_iter()
        .filter(|(key, value)| {
            !(value.is_null() || key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(ELEMENT_ORDER))
        })
        .filter_map(|(key, value)| Some((key, added(value)?)))
        .collect()
}
