//! Metadata: what the server sets, what a client can't change, and the namespace a new object goes into.

use serde_json::{Map, Value};

use crate::error::{ApiError, Cause};
use crate::object::{self, metadata};
use crate::registry::{self, KindInfo};
use crate::store::Transaction;
use crate::{clock, random};

/// Names longer than this are cut before `generateName` appends its five characters.
const GENERATED_BASE: usize = 58;

/// Sets what only the server sets.
///
/// # Errors
/// When the object brings a resourceVersion or another namespace than the request's.
pub fn prepare_create(kind: &'static KindInfo, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    name_place(kind, namespace, object)?;
    if !object::meta(object, "resourceVersion").is_empty() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let meta = metadata(object);
    let text = |meta: &Map<String, Value>, key: &str| meta.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let base = text(meta, "generateName");
    if text(meta, "name").is_empty() && !base.is_empty() {
        let base: String = base.chars().take(GENERATED_BASE).collect();
        meta.insert("name".to_owned(), format!("{base}{}", random::suffix()).into());
    }
    for key in ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
        meta.remove(key);
    }
    meta.insert("uid".to_owned(), random::uuid().into());
    meta.insert("creationTimestamp".to_owned(), clock::now().into());
    if kind.has_generation {
        meta.insert("generation".to_owned(), 1.into());
    }
    // A node registers itself with its status; everything else begins without one.
    if kind.has_status && kind.kind != "Node" {
        object::fields(object).remove("status");
    }
    Ok(())
}

/// Kind, version and namespace are those of the path.
fn name_place(kind: &KindInfo, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let fields = object::fields(object);
    fields.insert("apiVersion".to_owned(), kind.api_version().into());
    fields.insert("kind".to_owned(), kind.kind.into());
    let given = object::namespace(object);
    if kind.namespaced {
        if !given.is_empty() && given != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata(object).insert("namespace".to_owned(), namespace.into());
    } else {
        metadata(object).remove("namespace");
    }
    Ok(())
}

/// New objects go only into a namespace that exists and stays.
///
/// # Errors
/// 404 and 403 otherwise.
pub fn check_namespace(
    transaction: &Transaction<'_>,
    kind: &'static KindInfo,
    namespace: &str,
    object: &Value,
) -> Result<(), ApiError> {
    if !kind.namespaced {
        return Ok(());
    }
    let namespaces = registry::known("Namespace");
    match transaction.get(namespaces, "", namespace) {
        None => Err(ApiError::NotFound { kind: namespaces, name: namespace.to_owned() }),
        // Events tell about the end of things too, and go with the namespace.
        Some(found) if object::is_terminating(&found.value) && kind.kind != "Event" => Err(ApiError::Forbidden {
            kind,
            name: object::name(object).to_owned(),
            reason: format!("unable to create new content in namespace {namespace} because it is being terminated"),
            terminating: Some(namespace.to_owned()),
        }),
        Some(_) => Ok(()),
    }
}

/// Carries over what a client can't change, splits status from the rest, and counts the generation.
///
/// # Errors
/// When the object was read at another revision, is another object, or brings another name.
pub fn prepare_update(kind: &'static KindInfo, old: &Value, object: &mut Value, status: bool) -> Result<(), ApiError> {
    name_place(kind, object::namespace(old), object)?;
    let name = object::name(old);
    let given = object::name(object);
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    check_preconditions(kind, old, object::meta(object, "uid"), object::meta(object, "resourceVersion"))?;
    split_status(kind, old, object, status);
    let old_meta = old.get("metadata").and_then(Value::as_object).expect("a stored object has metadata");
    let meta = metadata(object);
    let mut kept =
        vec!["name", "uid", "creationTimestamp", "generateName", "generation", "resourceVersion", "selfLink"];
    kept.extend(["deletionTimestamp", "deletionGracePeriodSeconds"]);
    if status {
        kept.extend(["ownerReferences", "finalizers"]);
    }
    for key in kept {
        match old_meta.get(key) {
            Some(value) => meta.insert(key.to_owned(), value.clone()),
            None => meta.remove(key),
        };
    }
    Ok(())
}

/// One more generation if something else than metadata and status changed. Comes after the defaults.
pub fn count_generation(kind: &KindInfo, old: &Value, object: &mut Value) {
    let specification = |value: &Value| {
        let mut value = value.clone();
        object::fields(&mut value).retain(|key, _| !matches!(key.as_str(), "metadata" | "status"));
        value
    };
    if kind.has_generation && specification(old) != specification(object) {
        let generation = object::number(old, &["metadata", "generation"]).unwrap_or(0) + 1;
        metadata(object).insert("generation".to_owned(), generation.into());
    }
}

/// The uid and resourceVersion that a client expects, if it names any.
///
/// # Errors
/// 409 if they are others.
pub fn check_preconditions(kind: &'static KindInfo, old: &Value, uid: &str, revision: &str) -> Result<(), ApiError> {
    let conflict = |reason| Err(ApiError::Conflict { kind, name: object::name(old).to_owned(), reason });
    let (old_uid, old_revision) = (object::meta(old, "uid"), object::meta(old, "resourceVersion"));
    if !uid.is_empty() && uid != old_uid {
        return conflict(format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"));
    }
    if !revision.is_empty() && revision != "0" && revision != old_revision {
        return conflict(
            "the object has been modified; please apply your changes to the latest version and try again".to_owned(),
        );
    }
    Ok(())
}

/// The main resource can't change the status, and the status subresource changes nothing else but metadata.
fn split_status(kind: &KindInfo, old: &Value, object: &mut Value, status: bool) {
    if !kind.has_status {
        return;
    }
    let new_status = object.get("status").cloned();
    if status {
        let metadata = object.get("metadata").cloned();
        *object = old.clone();
        put_or_remove(object, "metadata", metadata);
        put_or_remove(object, "status", new_status);
    } else {
        put_or_remove(object, "status", old.get("status").cloned());
    }
}

fn put_or_remove(object: &mut Value, key: &str, value: Option<Value>) {
    let fields = object::fields(object);
    match value {
        Some(value) => fields.insert(key.to_owned(), value),
        None => fields.remove(key),
    };
}

/// Rules between an object and what it becomes.
pub fn validate_update(old: &Value, object: &Value) -> Vec<Cause> {
    if !object::is_terminating(old) {
        return Vec::new();
    }
    let had = object::finalizers(old);
    let added: Vec<&str> = object::finalizers(object).into_iter().filter(|name| !had.contains(name)).collect();
    if added.is_empty() {
        return Vec::new();
    }
    vec![Cause::forbidden(
        "metadata.finalizers",
        format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        ),
    )]
}
