//! One handler per verb. This file reads the request and finds the verb.

mod binding;
mod body;
mod create;
mod delete;
mod exec;
mod logs;
mod other;
mod patch;
mod read;
mod scale;
mod update;
mod watch;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{Method, Request, header};
use serde_json::Value;

use crate::error::ApiError;
use crate::request::{self, Place, Query, Shape, Target};
use crate::respond::{Look, warned};
use crate::state::ServerState;
use crate::tables::RowObject;

pub(crate) use self::delete::delete_in_background;
pub(crate) use self::update::is_finished;

/// A request for objects, read.
pub(crate) struct Call {
    pub place: Place,
    pub query: Query,
    pub shape: Shape,
}

impl Call {
    /// How the client wants to see objects.
    fn look(&self) -> Look {
        let row_object = match self.query.get("includeObject") {
            Some("None") => RowObject::None,
            Some("Object") => RowObject::Object,
            _ => RowObject::Metadata,
        };
        Look { shape: self.shape, row_object }
    }

    fn name(&self) -> Result<&str, ApiError> {
        self.place.name.as_deref().ok_or(ApiError::MethodNotAllowed)
    }

    fn not_found(&self) -> ApiError {
        ApiError::NotFound { kind: self.place.kind, name: self.place.name.clone().unwrap_or_default() }
    }
}

/// Answers any request.
pub(crate) async fn handle(State(server): State<Arc<ServerState>>, request: Request<Body>) -> Response {
    dispatch(&server, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn dispatch(server: &Arc<ServerState>, request: Request<Body>) -> Result<Response, ApiError> {
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(request.uri())
        .map_err(|error| ApiError::bad_request(format!("malformed query: {error}")))?;
    let query = Query::new(pairs.0);
    match request::target(request.uri().path())? {
        Target::Objects(place) => {
            let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
            let call = Call { place, query, shape: request::shape(accept) };
            let response = subresource(server, &call, request).await.unwrap_or_else(IntoResponse::into_response);
            Ok(warned(response, &deprecations(&call)))
        }
        Target::Other(parts) => other::other(&parts, &query, request).await,
    }
}

fn deprecations(call: &Call) -> Vec<String> {
    match call.place.kind.kind {
        "Endpoints" => vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()],
        _ => Vec::new(),
    }
}

async fn subresource(server: &Arc<ServerState>, call: &Call, request: Request<Body>) -> Result<Response, ApiError> {
    let kind = call.place.kind;
    match (kind.kind, call.place.subresource.as_deref()) {
        (_, None) => objects(server, call, request, false).await,
        (_, Some("status")) if kind.has_status => objects(server, call, request, true).await,
        (_, Some("scale")) if kind.has_scale => scale::scale(server, call, request).await,
        ("Namespace", Some("finalize")) if request.method() == Method::PUT => {
            let (value, warnings) = object_body(call, request).await?;
            Ok(warned(update::finalize(server, call, &value).await?, &warnings))
        }
        ("Pod", Some("log")) if request.method() == Method::GET => logs::logs(server, call).await,
        ("Pod", Some("exec")) => exec::exec(server, call, request).await,
        ("Pod", Some("eviction")) if request.method() == Method::POST => {
            let (content_type, bytes) = body::read(request).await?;
            let eviction = body::decode(&content_type, &bytes, "Eviction")?;
            delete::evict(server, call, &eviction).await
        }
        ("Pod", Some("binding")) if request.method() == Method::POST => {
            let (content_type, bytes) = body::read(request).await?;
            let binding = body::decode(&content_type, &bytes, "Binding")?;
            binding::bind(server, call, &binding).await
        }
        _ => Err(ApiError::NoSuchResource),
    }
}

async fn objects(
    server: &Arc<ServerState>,
    call: &Call,
    request: Request<Body>,
    status: bool,
) -> Result<Response, ApiError> {
    let named = call.place.name.is_some();
    match (request.method().clone(), named) {
        (Method::GET, _) if call.query.flag("watch") && !status => watch::watch(server, call),
        (Method::GET, true) => read::get(server, call),
        (Method::GET, false) => read::list(server, call),
        (Method::POST, false) => {
            let (value, warnings) = object_body(call, request).await?;
            Ok(warned(create::create(server, call, value).await?, &warnings))
        }
        (Method::PUT, true) => {
            let (value, warnings) = object_body(call, request).await?;
            Ok(warned(update::update(server, call, value, status).await?, &warnings))
        }
        (Method::PATCH, true) => {
            let (content_type, bytes) = body::read(request).await?;
            patch::patch(server, call, &content_type, &bytes, status).await
        }
        (Method::DELETE, true) if !status => delete::delete(server, call, options_body(request).await?).await,
        (Method::DELETE, false) => delete::delete_collection(server, call, options_body(request).await?).await,
        _ => Err(ApiError::MethodNotAllowed),
    }
}

async fn object_body(call: &Call, request: Request<Body>) -> Result<(Value, Vec<String>), ApiError> {
    let (content_type, bytes) = body::read(request).await?;
    body::object(call, &content_type, &bytes)
}

async fn options_body(request: Request<Body>) -> Result<Value, ApiError> {
    let (content_type, bytes) = body::read(request).await?;
    body::options(&content_type, &bytes)
}
