//! GET: one object, or a list, whole or page by page.

use std::sync::Arc;

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use crate::error::ApiError;
use crate::registry::KindInfo;
use crate::respond::{json_response, shown_list, shown_one};
use crate::selector::{FieldSelector, LabelSelector};
use crate::state::ServerState;
use crate::store::Object;
use crate::views;

/// What a list or watch chooses.
pub(super) struct Filter {
    labels: LabelSelector,
    fields: FieldSelector,
    namespace: Option<String>,
    name: Option<String>,
    kind: &'static KindInfo,
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

pub(super) fn get(server: &ServerState, call: &Call) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let object = server.store.read().get(kind, call.place.namespace(), call.name()?).cloned();
    let object = object.ok_or_else(|| call.not_found())?;
    Ok(json_response(StatusCode::OK, &shown_one(kind, &object.value, call.look())))
}

pub(super) fn list(server: &ServerState, call: &Call) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let limit = call.query.number::<usize>("limit")?.filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    let (objects, revision, start, id) = match call.query.get("continue") {
        Some(token) => resumed(server, call, token)?,
        None => {
            let (objects, revision) = chosen(server, call)?;
            check_revision(call, revision)?;
            (Arc::new(objects), revision, 0, None)
        }
    };
    let end = objects.len().min(start.saturating_add(limit));
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if end < objects.len() {
        let id = id.unwrap_or_else(|| server.snapshots.keep(identity(call), &objects, revision));
        let token = URL_SAFE_NO_PAD.encode(json!({"v": 1, "id": id, "start": end}).to_string());
        metadata["continue"] = token.into();
        metadata["remainingItemCount"] = (objects.len() - end).into();
    }
    let values = objects[start.min(end)..end].iter().map(|object| &object.value);
    Ok(json_response(StatusCode::OK, &shown_list(kind, values, metadata, call.look())))
}

fn identity(call: &Call) -> String {
    let query = |key| call.query.get(key).unwrap_or("");
    format!(
        "{}/{}/{}?{}&{}",
        call.place.kind.group,
        call.place.namespace(),
        call.place.kind.plural,
        query("labelSelector"),
        query("fieldSelector")
    )
}

type Resumed = (Arc<Vec<Arc<Object>>>, u64, usize, Option<u64>);

fn resumed(server: &ServerState, call: &Call, token: &str) -> Result<Resumed, ApiError> {
    let invalid = || ApiError::bad_request("continue key is not valid");
    let token: Value =
        URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or_else(invalid)?;
    let number = |key: &str| token.get(key).and_then(Value::as_u64).ok_or_else(invalid);
    let (id, start) = (number("id")?, usize::try_from(number("start")?).map_err(|_| invalid())?);
    let snapshot = server.snapshots.find(id).ok_or_else(|| ApiError::Expired {
        message: "The provided continue parameter is too old to display a consistent list result. You can start a new \
                  list without the continue parameter."
            .to_owned(),
    })?;
    if snapshot.of != identity(call) {
        return Err(invalid());
    }
    Ok((snapshot.objects, snapshot.revision, start, Some(id)))
}

/// Only the newest revision can be listed: an exact other one is gone.
fn check_revision(call: &Call, revision: u64) -> Result<(), ApiError> {
    let exact = call.query.get("resourceVersionMatch") == Some("Exact");
    match call.query.number::<u64>("resourceVersion")? {
        Some(asked) if exact && asked != revision => Err(ApiError::Expired {
            message: format!("The resourceVersion for the provided list is too old: {asked} ({revision})"),
        }),
        _ => Ok(()),
    }
}

/// All objects that a call's selectors choose, and the revision they are of.
pub(super) fn chosen(server: &ServerState, call: &Call) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
    let filter = Filter::of(call)?;
    let read = server.store.read();
    let objects = read.list(call.place.kind, call.place.namespace.as_deref());
    Ok((objects.filter(|object| filter.matches(&object.value)).cloned().collect(), read.revision()))
}
