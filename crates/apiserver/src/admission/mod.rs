//! What an object meets between the request and the store: defaults, fields that only the server sets, rules.
//!
//! ```text
//! create: prepare_create ─▶ defaults ─▶ validate ─▶ allocate ─▶ put
//! update: prepare_update ─▶ defaults ─▶ validate (new, and against old) ─▶ allocate ─▶ put
//! ```

mod containers;
pub mod metadata;
mod others;
mod pods;
mod service;
mod tolerations;
mod volumes;
mod workloads;

use serde_json::Value;

use crate::error::{ApiError, Cause};
use crate::names;
use crate::object;
use crate::registry::KindInfo;
use crate::store::Transaction;

/// Makes a new object fit to be stored.
///
/// # Errors
/// When it breaks a rule, or its namespace takes no new objects.
pub fn create(
    transaction: &mut Transaction<'_>,
    kind: &'static KindInfo,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    metadata::prepare_create(kind, namespace, object)?;
    metadata::check_namespace(transaction, kind, namespace, object)?;
    if kind.kind == "Namespace" {
        others::namespace_finalizer(object);
    }
    defaults(kind, object);
    if kind.kind == "Service" {
        service::normalize(None, object);
    }
    refuse(kind, object, rules(kind, object))?;
    let taken = transaction.get(kind, namespace, object::name(object)).is_some();
    if kind.kind == "Service" && !taken {
        service::allocate(transaction, None, object)?;
    }
    Ok(())
}

/// Makes a changed object fit to be stored. `status`: the request went to the status subresource.
///
/// # Errors
/// When it breaks a rule.
pub fn update(
    transaction: &mut Transaction<'_>,
    kind: &'static KindInfo,
    old: &Value,
    object: &mut Value,
    status: bool,
) -> Result<(), ApiError> {
    metadata::prepare_update(kind, old, object, status)?;
    if status {
        return refuse(kind, object, names::metadata(kind.name_rule, object));
    }
    defaults(kind, object);
    let is_service = kind.kind == "Service";
    if is_service {
        service::normalize(Some(old), object);
        service::carry_over(old, object);
    }
    let mut causes = metadata::validate_update(old, object);
    causes.extend(rules(kind, object));
    causes.extend(update_rules(kind, old, object));
    refuse(kind, object, causes)?;
    if is_service {
        service::allocate(transaction, Some(old), object)?;
    }
    metadata::count_generation(kind, old, object);
    Ok(())
}

fn defaults(kind: &KindInfo, object: &mut Value) {
    match kind.kind {
        "Service" => service::defaults(object),
        "Pod" => pods::defaults(object),
        "Deployment" | "ReplicaSet" | "StatefulSet" => workloads::defaults(kind.kind, object),
        other => others::defaults(other, object),
    }
}

fn rules(kind: &KindInfo, object: &Value) -> Vec<Cause> {
    let mut causes = names::metadata(kind.name_rule, object);
    causes.extend(match kind.kind {
        "Service" => service::validate(object),
        "Pod" => pods::validate_spec(object, "spec"),
        "Deployment" | "ReplicaSet" | "StatefulSet" => workloads::validate(kind.kind, object),
        other => others::validate(other, object),
    });
    causes
}

fn update_rules(kind: &KindInfo, old: &Value, object: &Value) -> Vec<Cause> {
    match kind.kind {
        "Service" => service::validate_update(old, object),
        "Pod" => pods::validate_update(old, object),
        "Deployment" | "ReplicaSet" | "StatefulSet" => workloads::validate_update(kind.kind, old, object),
        other => others::validate_update(other, old, object),
    }
}

fn refuse(kind: &'static KindInfo, object: &Value, causes: Vec<Cause>) -> Result<(), ApiError> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::Invalid { kind, name: object::name(object).to_owned(), causes })
}

#[cfg(test)]
mod tests;
