//! GET `pods/log`: what a container wrote, as plain text, on and on with `follow`.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt;
use http::{HeaderValue, header};
use jiff::Timestamp;
use serde_json::Value;

use super::Call;
use crate::error::ApiError;
use crate::object;
use crate::pod_streams::{ContainerRef, LogOptions, PodStreamError};
use crate::state::ServerState;

pub(super) async fn logs(server: &Arc<ServerState>, call: &Call) -> Result<Response, ApiError> {
    let query = &call.query;
    let container = container(server, call)?;
    let since_time = match query.get("sinceTime") {
        None => None,
        Some(text) => {
            let time: Timestamp =
                text.parse().map_err(|_| ApiError::bad_request(format!("sinceTime: {text:?} is no RFC 3339 time")))?;
            Some(u64::try_from(Timestamp::now().as_second() - time.as_second()).unwrap_or(0))
        }
    };
    let options = LogOptions {
        follow: query.flag("follow"),
        tail_lines: query.number("tailLines")?,
        since_seconds: query.number("sinceSeconds")?.or(since_time),
        limit_bytes: query.number("limitBytes")?,
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
    };
    let streams = streams(server)?;
    let lines = streams.logs(container, options).await.map_err(refused)?;
    // Also the server's end is an end of following.
    let closing = server.closing.clone();
    let lines = lines.take_until(async move { closing.cancelled().await });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// Whoever runs the pods.
pub(super) fn streams(server: &ServerState) -> Result<&Arc<dyn crate::pod_streams::PodStreams>, ApiError> {
    server.pod_streams.get().ok_or_else(|| ApiError::Internal { message: "nobody runs pods here".to_owned() })
}

/// What a stream could not be had for.
pub(super) fn refused(error: PodStreamError) -> ApiError {
    match error {
        PodStreamError::NotRunning { .. } => ApiError::bad_request(error.to_string()),
        PodStreamError::Start { .. } => ApiError::Internal { message: crate::error::chain(&error) },
    }
}

/// The container that a request for streams means.
///
/// # Errors
/// When the pod is not there, has no such container or several to choose from, or is on no node yet.
pub(super) fn container(server: &ServerState, call: &Call) -> Result<ContainerRef, ApiError> {
    let pod = server.store.read().get(call.place.kind, call.place.namespace(), call.name()?).cloned();
    let pod = pod.ok_or_else(|| call.not_found())?;
    let name = call.name()?.to_owned();
    let all: Vec<&str> = ["containers", "initContainers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|key| object::items(&pod.value, &["spec", key]))
        .filter_map(|container| object::text(container, &["name"]))
        .collect();
    let several = object::items(&pod.value, &["spec", "containers"]).len() > 1;
    let container = match call.query.get("container") {
        Some(wanted) if !all.contains(&wanted) => {
            return Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}")));
        }
        Some(wanted) => Some(wanted.to_owned()),
        None if several => {
            let choice = all.join(" ");
            let message = format!("a container name must be specified for pod {name}, choose one of: [{choice}]");
            return Err(ApiError::bad_request(message));
        }
        None => None,
    };
    if object::at(&pod.value, &["spec", "nodeName"]).and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    Ok(ContainerRef { namespace: call.place.namespace().to_owned(), pod: name, container })
}
