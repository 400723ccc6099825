//! `/scale`: the number of replicas of a workload, as an object of its own (`autoscaling/v1` Scale).

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::patch::Patch;
use super::{Call, body, update};
use crate::admission::metadata::check_preconditions;
use crate::error::{ApiError, Cause};
use crate::object;
use crate::respond::json_response;
use crate::state::ServerState;
use crate::store::Transaction;
use crate::tables;

pub(super) async fn scale(server: &ServerState, call: &Call, request: Request<Body>) -> Result<Response, ApiError> {
    let method = request.method().clone();
    if method == Method::GET {
        let found = server.store.read().get(call.place.kind, call.place.namespace(), call.name()?).cloned();
        let found = found.ok_or_else(|| call.not_found())?;
        return Ok(json_response(StatusCode::OK, &scale_of(&found.value)));
    }
    let (content_type, bytes) = body::read(request).await?;
    let change = match method {
        Method::PUT => Change::Whole(body::decode(&content_type, &bytes, "Scale")?),
        Method::PATCH => Change::Patch(Patch::read(&content_type, &bytes)?.without_schema()),
        _ => return Err(ApiError::MethodNotAllowed),
    };
    let decide = |transaction: &mut Transaction<'_>| resize(transaction, call, &change);
    let value = if call.query.dry_run()? { server.store.rehearse(decide)? } else { server.store.write(decide).await? };
    Ok(json_response(StatusCode::OK, &value))
}

enum Change {
    Whole(Value),
    Patch(Patch),
}

fn resize(transaction: &mut Transaction<'_>, call: &Call, change: &Change) -> Result<Value, ApiError> {
    let kind = call.place.kind;
    let old = transaction.get(kind, call.place.namespace(), call.name()?).ok_or_else(|| call.not_found())?;
    let scale = match change {
        Change::Whole(scale) => scale.clone(),
        Change::Patch(patch) => patch.apply(kind, scale_of(&old.value))?,
    };
    check_preconditions(kind, &old.value, object::meta(&scale, "uid"), object::meta(&scale, "resourceVersion"))?;
    let replicas = match object::at(&scale, &["spec", "replicas"]) {
        None => 0,
        Some(replicas) => replicas.as_i64().filter(|&number| i32::try_from(number).is_ok()).ok_or_else(|| {
            ApiError::bad_request("Scale in version \"v1\" cannot be handled as a Scale: spec.replicas is no number")
        })?,
    };
    if replicas < 0 {
        let cause = Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(ApiError::Invalid { kind, name: call.name()?.to_owned(), causes: vec![cause] });
    }
    let mut workload = old.value.clone();
    object::child(&mut workload, "spec").insert("replicas".to_owned(), replicas.into());
    let stored = update::replace(transaction, kind, &old, workload, false)?;
    Ok(scale_of(&stored.value))
}

fn scale_of(workload: &Value) -> Value {
    let meta = |key: &str| object::meta(workload, key);
    let number = |path: &[&str]| object::number(workload, path).unwrap_or(0);
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta("name"), "namespace": meta("namespace"), "uid": meta("uid"),
            "resourceVersion": meta("resourceVersion"), "creationTimestamp": meta("creationTimestamp"),
        },
        "spec": {"replicas": number(&["spec", "replicas"])},
        "status": {
            "replicas": number(&["status", "replicas"]),
            "selector": tables::selector_text(object::at(workload, &["spec", "selector"])),
        },
    })
}
