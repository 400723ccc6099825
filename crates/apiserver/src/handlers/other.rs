//! Everything that is no object: discovery, OpenAPI, health, version, reviews.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde_json::{Value, json};

use super::body;
use crate::content;
use crate::discovery::{self, REVIEWS};
use crate::error::ApiError;
use crate::object;
use crate::request::Query;
use crate::respond::json_response;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub(super) async fn other(parts: &[String], query: &Query, request: Request<Body>) -> Result<Response, ApiError> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    if let ["apis", group, "v1", plural] = parts.as_slice()
        && let Some(review) = REVIEWS.iter().find(|review| review.group == *group && review.plural == *plural)
    {
        if request.method() != Method::POST {
            return Err(ApiError::MethodNotAllowed);
        }
        let (content_type, bytes) = body::read(request).await?;
        // The answer is the same whatever is asked; so what can't be read (protobuf of these kinds) is no obstacle.
        let mut asked = body::decode(&content_type, &bytes, review.kind).unwrap_or_else(|_| json!({}));
        let fields = object::fields(&mut asked);
        fields.insert("kind".to_owned(), review.kind.into());
        fields.insert("apiVersion".to_owned(), format!("{group}/v1").into());
        return Ok(json_response(StatusCode::CREATED, &reviewed(review.kind, asked)));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(ApiError::NoSuchResource);
    }
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => Ok(Response::new(Body::from("ok"))),
        ["openapi", "v2"] => Ok(open_api_v2()),
        ["openapi", "v3"] => Ok(json_response(StatusCode::OK, &content::openapi_v3_index())),
        ["openapi", "v3", path @ ..] => open_api(&path.join("/"), query, &request),
        _ => discovered(&parts, &request),
    }
}

fn discovered(parts: &[&str], request: &Request<Body>) -> Result<Response, ApiError> {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let value = match parts {
        ["api"] | ["apis"] if wants_aggregated(accept) => {
            let mut response = json_response(StatusCode::OK, &discovery::aggregated(parts == ["api"]));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
            return Ok(response);
        }
        ["api"] => Some(discovery::api_versions()),
        ["apis"] => Some(discovery::group_list()),
        ["api", version] => discovery::resource_list("", version),
        ["apis", group] => discovery::group(group),
        ["apis", group, version] => discovery::resource_list(group, version),
        ["version"] => Some(discovery::version()),
        [] => Some(json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})),
        _ => None,
    };
    Ok(json_response(StatusCode::OK, &value.ok_or(ApiError::NoSuchResource)?))
}

fn wants_aggregated(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parameters: Vec<&str> = range.split(';').map(str::trim).collect();
        parameters.sort_unstable();
        ["application/json", "as=APIGroupDiscoveryList", "g=apidiscovery.k8s.io", "v=v2"]
            .iter()
            .all(|wanted| parameters.contains(wanted))
    })
}

fn open_api_v2() -> Response {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let mut response = Response::new(Body::from(content::OPENAPI_V2));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    response
}

fn open_api(path: &str, query: &Query, request: &Request<Body>) -> Result<Response, ApiError> {
    let document = content::openapi_v3(path).ok_or(ApiError::NoSuchResource)?;
    let tag = HeaderValue::from_str(&format!("\"{}\"", document.hash)).expect("hexadecimal digits in quotes");
    let known = request.headers().get(header::IF_NONE_MATCH) == Some(&tag);
    let mut response = Response::new(if known { Body::empty() } else { Body::from(document.json.clone()) });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ETAG, tag);
    if query.get("hash") == Some(&document.hash) {
        // The address holds the content's hash: what is there never changes.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    }
    Ok(response)
}

/// Whoever has the token may do everything.
fn reviewed(kind: &str, mut asked: Value) -> Value {
    let status = match kind {
        "SelfSubjectAccessReview" => json!({"allowed": true, "reason": "the token allows everything"}),
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        _ => json!({"userInfo": {"username": "signpost:admin", "groups": ["system:masters", "system:authenticated"]}}),
    };
    object::fields(&mut asked).insert("status".to_owned(), status);
    asked
}
