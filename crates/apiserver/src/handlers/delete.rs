//! DELETE: one object or a collection. Pods end gracefully, finalizers hold an object, the rest goes at once.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::read::chosen;
use super::{Call, update};
use crate::admission::metadata::check_preconditions;
use crate::clock;
use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;
use crate::respond::{gone, json_response, shown_list, shown_one};
use crate::state::ServerState;
use crate::store::{Object, Transaction};

/// What a deletion asks for.
struct Options {
    grace_s: Option<i64>,
    propagation: Propagation,
    uid: String,
    revision: String,
}

/// What becomes of the objects that it owns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Propagation {
    /// The garbage collector removes them afterwards.
    Background,
    /// The garbage collector removes them first.
    Foreground,
    /// They stay.
    Orphan,
}

impl Options {
    fn read(call: &Call, body: &Value) -> Result<Options, ApiError> {
        let grace_s = match object::number(body, &["gracePeriodSeconds"]) {
            Some(grace) => Some(grace),
            None => call.query.number("gracePeriodSeconds")?,
        };
        if grace_s.is_some_and(|grace| grace < 0) {
            return Err(ApiError::bad_request("gracePeriodSeconds: Invalid value: must be greater than or equal to 0"));
        }
        let policy = object::text(body, &["propagationPolicy"]).or_else(|| call.query.get("propagationPolicy"));
        let orphan = body.get("orphanDependents") == Some(&Value::Bool(true)) || call.query.flag("orphanDependents");
        let propagation = match policy {
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            None if orphan => Propagation::Orphan,
            Some("Background") | None => Propagation::Background,
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "propagationPolicy: Unsupported value: {other:?}: supported values: \"Foreground\", \
                     \"Background\", \"Orphan\""
                )));
            }
        };
        let precondition = |key| object::text(body, &["preconditions", key]).unwrap_or("").to_owned();
        Ok(Options { grace_s, propagation, uid: precondition("uid"), revision: precondition("resourceVersion") })
    }
}

enum Outcome {
    Gone(Arc<Object>),
    Going(Arc<Object>),
}

fn is_dry(call: &Call, body: &Value) -> Result<bool, ApiError> {
    Ok(!object::items(body, &["dryRun"]).is_empty() || call.query.dry_run()?)
}

pub(super) async fn delete(server: &ServerState, call: &Call, body: Value) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let options = Options::read(call, &body)?;
    let decide = |transaction: &mut Transaction<'_>| {
        let old = transaction.get(kind.stored(), call.place.namespace(), call.name()?);
        remove(transaction, kind.stored(), &old.ok_or_else(|| call.not_found())?, &options)
    };
    let outcome =
        if is_dry(call, &body)? { server.store.rehearse(decide)? } else { server.store.write(decide).await? };
    let answer = match outcome {
        // The real server answers with the object for these, with a Status for the rest.
        Outcome::Gone(object) if !matches!(kind.kind, "Pod" | "Service" | "ServiceAccount") => {
            gone(kind, &object.value)
        }
        Outcome::Gone(object) | Outcome::Going(object) => shown_one(kind, &object.value, call.look()),
    };
    Ok(json_response(StatusCode::OK, &answer))
}

/// POST `pods/eviction`: a deletion that a disruption budget could refuse; there are none here.
pub(super) async fn evict(server: &ServerState, call: &Call, eviction: &Value) -> Result<Response, ApiError> {
    let none = json!({});
    delete(server, call, object::at(eviction, &["deleteOptions"]).unwrap_or(&none).clone()).await?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(json_response(StatusCode::CREATED, &status))
}

pub(super) async fn delete_collection(server: &ServerState, call: &Call, body: Value) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    let options = Options::read(call, &body)?;
    let (objects, revision) = chosen(server, call)?;
    let dry = is_dry(call, &body)?;
    for object in &objects {
        let decide = |transaction: &mut Transaction<'_>| {
            let (namespace, name) = (object::namespace(&object.value), object::name(&object.value));
            match transaction.get(kind.stored(), namespace, name) {
                Some(old) => remove(transaction, kind.stored(), &old, &options).map(|_| ()),
                None => Ok(()),
            }
        };
        if dry {
            server.store.rehearse(decide)?;
        } else {
            server.store.write(decide).await?;
        }
    }
    let metadata = json!({"resourceVersion": revision.to_string()});
    let values = objects.iter().map(|object| &object.value);
    Ok(json_response(StatusCode::OK, &shown_list(kind, values, metadata, call.look())))
}

/// Deletes an object as the garbage collector would: with its own grace. One that is gone is no error.
pub(crate) async fn delete_in_background(
    server: &ServerState,
    kind: &'static KindInfo,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    let options =
        Options { grace_s: None, propagation: Propagation::Background, uid: String::new(), revision: String::new() };
    let decide = |transaction: &mut Transaction<'_>| match transaction.get(kind, namespace, name) {
        Some(old) => remove(transaction, kind, &old, &options).map(|_| ()),
        None => Ok(()),
    };
    server.store.write(decide).await
}

fn remove(
    transaction: &mut Transaction<'_>,
    kind: &'static KindInfo,
    old: &Arc<Object>,
    options: &Options,
) -> Result<Outcome, ApiError> {
    check_preconditions(kind, &old.value, &options.uid, &options.revision)?;
    let name = object::name(&old.value);
    if kind.kind == "Namespace" && matches!(name, "default" | "kube-system" | "kube-public") {
        let reason = "this namespace may not be deleted".to_owned();
        return Err(ApiError::Forbidden { kind, name: name.to_owned(), reason, terminating: None });
    }
    let mut object = old.value.clone();
    let grace_s = grace(kind, &object, options);
    add_finalizer(&mut object, options.propagation);
    let terminating = object::is_terminating(&object);
    let left = object::number(&object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    if !terminating || grace_s < left {
        let end = Timestamp::now().checked_add(SignedDuration::from_secs(grace_s)).unwrap_or(Timestamp::MAX);
        let meta = object::metadata(&mut object);
        meta.insert("deletionTimestamp".to_owned(), clock::shown(end).into());
        meta.insert("deletionGracePeriodSeconds".to_owned(), grace_s.into());
        if kind.has_generation && !terminating {
            let generation = meta.get("generation").and_then(Value::as_i64).unwrap_or(0) + 1;
            meta.insert("generation".to_owned(), generation.into());
        }
    }
    if kind.kind == "Namespace" {
        object::child(&mut object, "status").insert("phase".to_owned(), "Terminating".into());
    }
    if update::is_finished(kind, &object) {
        return Ok(Outcome::Gone(transaction.delete(kind, object)));
    }
    if object == old.value {
        return Ok(Outcome::Going(old.clone()));
    }
    Ok(Outcome::Going(transaction.put(kind, object)))
}

/// Only pods have a grace period, and only those that a kubelet has to end.
fn grace(kind: &KindInfo, object: &Value, options: &Options) -> i64 {
    let finished = matches!(object::text(object, &["status", "phase"]), Some("Succeeded" | "Failed"));
    let placed = object::text(object, &["spec", "nodeName"]).is_some_and(|node| !node.is_empty());
    if kind.kind != "Pod" || finished || !placed {
        return 0;
    }
    let own = object::number(object, &["spec", "terminationGracePeriodSeconds"]).unwrap_or(30);
    options.grace_s.unwrap_or(own).max(0)
}

/// The garbage collector takes these off when it has done its part.
fn add_finalizer(object: &mut Value, propagation: Propagation) {
    let finalizer = match propagation {
        Propagation::Background => return,
        Propagation::Foreground => "foregroundDeletion",
        Propagation::Orphan => "orphan",
    };
    if object::is_terminating(object) || object::finalizers(object).contains(&finalizer) {
        return;
    }
    let finalizers = object::metadata(object).entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut() {
        list.push(finalizer.into());
    }
}
