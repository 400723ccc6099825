//! What an object meets between the request and the store: defaults, fields that only the server sets, rules.
//!
//! ```text
//! create: prepare_create ─▶ defaults ─▶ allocate ─▶ validate ─▶ put
//! update: prepare_update ─▶ defaults ─▶ allocate ─▶ validate (new, and against old) ─▶ put
//! ```

pub mod metadata;

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
    transaction: &Transaction<'_>,
    kind: &'static KindInfo,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    metadata::prepare_create(kind, namespace, object)?;
    metadata::check_namespace(transaction, kind, namespace, object)?;
    refuse(kind, object, names::metadata(kind.name_rule, object))
}

/// Makes a changed object fit to be stored. `status`: the request went to the status subresource.
///
/// # Errors
/// When it breaks a rule.
pub fn update(
    _transaction: &Transaction<'_>,
    kind: &'static KindInfo,
    old: &Value,
    object: &mut Value,
    status: bool,
) -> Result<(), ApiError> {
    metadata::prepare_update(kind, old, object, status)?;
    let mut causes = names::metadata(kind.name_rule, object);
    causes.extend(metadata::validate_update(old, object));
    refuse(kind, object, causes)
}

fn refuse(kind: &'static KindInfo, object: &Value, causes: Vec<Cause>) -> Result<(), ApiError> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::Invalid { kind, name: object::name(object).to_owned(), causes })
}
