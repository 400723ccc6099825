//! GET: one object, or a list.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use crate::error::ApiError;
use crate::respond::{json_response, shown, shown_list};
use crate::selector::{FieldSelector, LabelSelector};
use crate::server::ApiServer;
use crate::store::Object;
use crate::views;

/// What a list or watch chooses.
pub(super) struct Filter {
    labels: LabelSelector,
    fields: FieldSelector,
    namespace: Option<String>,
    name: Option<String>,
    kind: &'static crate::registry::KindInfo,
}

impl Filter {
    /// Reads a call's selectors.
    pub(super) fn of(call: &Call) -> Result<Filter, ApiError> {
        let bad = |error: crate::selector::SelectorError| ApiError::bad_request(error.to_string());
        let kind = call.place.kind;
        Ok(Filter {
            labels: LabelSelector::parse(call.query.get("labelSelector").unwrap_or("")).map_err(bad)?,
            fields: FieldSelector::parse(kind.kind, call.query.get("fieldSelector").unwrap_or("")).map_err(bad)?,
            namespace: call.place.namespace.clone(),
            name: call.place.name.clone(),
            kind,
        })
    }

    /// Whether an object is chosen.
    pub(super) fn matches(&self, value: &Value) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| namespace == crate::object::namespace(value))
            && self.name.as_deref().is_none_or(|name| name == crate::object::name(value))
            && self.labels.matches(value)
            && self.fields.matches(&views::to_served(self.kind, value))
    }
}

pub(super) fn get(server: &ApiServer, call: &Call) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let object = server.store.read().get(kind, call.place.namespace(), call.name()?).cloned();
    let object = object.ok_or_else(|| call.not_found())?;
    Ok(json_response(StatusCode::OK, &shown(kind, &object.value, call.shape)))
}

pub(super) fn list(server: &ApiServer, call: &Call) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let (objects, revision) = chosen(server, call)?;
    let metadata = json!({"resourceVersion": revision.to_string()});
    let values = objects.iter().map(|object| &object.value);
    Ok(json_response(StatusCode::OK, &shown_list(kind, values, metadata, call.shape)))
}

/// All objects that a call's selectors choose, and the revision they are of.
pub(super) fn chosen(server: &ApiServer, call: &Call) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
    let filter = Filter::of(call)?;
    let read = server.store.read();
    let objects = read.list(call.place.kind, call.place.namespace.as_deref());
    Ok((objects.filter(|object| filter.matches(&object.value)).cloned().collect(), read.revision()))
}
