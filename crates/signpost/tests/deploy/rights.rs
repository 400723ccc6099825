//! The rights that a manifest gives, held against the requests that a program really sends.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use serde_json::Value;

/// What a request is about, as the API server's authorizer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    pub verb: &'static str,
    pub group: String,
    /// With its subresource: `services/status`.
    pub resource: String,
    pub namespace: Option<String>,
}

/// The rules of roles, each with the namespace that it holds in; `None`: in all.
#[derive(Debug, Default)]
pub struct Rights {
    rules: Vec<(Option<String>, PolicyRule)>,
}

impl Rights {
    /// Of all roles among some objects.
    pub fn of(objects: &[Value]) -> Rights {
        let mut rights = Rights::default();
        for object in objects {
            let (namespace, rules) = match object["kind"].as_str() {
                Some("ClusterRole") => (None, serde_json::from_value::<ClusterRole>(object.clone()).unwrap().rules),
                Some("Role") => {
                    let role: Role = serde_json::from_value(object.clone()).unwrap();
                    (role.metadata.namespace, role.rules)
                }
                _ => continue,
            };
            rights.rules.extend(rules.into_iter().flatten().map(|rule| (namespace.clone(), rule)));
        }
        rights
    }

    pub fn allow(&self, asked: &Attributes) -> bool {
        self.rules.iter().any(|(namespace, rule)| {
            let has = |names: &Option<Vec<String>>, wanted: &str| names.iter().flatten().any(|name| name == wanted);
            (namespace.is_none() || *namespace == asked.namespace)
                && has(&rule.api_groups, &asked.group)
                && has(&rule.resources, &asked.resource)
                && rule.verbs.iter().any(|verb| verb == asked.verb)
        })
    }
}

/// `None`: what every client may ask, such as discovery.
pub fn attributes(method: &Method, path: &str, query: &str) -> Option<Attributes> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let group = match *parts.first()? {
        "api" if parts.len() > 2 => {
            parts.drain(..2);
            String::new()
        }
        "apis" if parts.len() > 3 => {
            let group = parts[1].to_owned();
            parts.drain(..3);
            group
        }
        _ => return None,
    };
    let namespace = (parts[0] == "namespaces" && parts.len() > 2).then(|| parts[1].to_owned());
    if namespace.is_some() {
        parts.drain(..2);
    }
    let named = parts.len() > 1;
    let watches = query.split('&').any(|part| part == "watch=true" || part == "watch=1");
    let verb = match *method {
        Method::GET if watches => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    };
    let resource = parts.get(2).map_or_else(|| parts[0].to_owned(), |sub| format!("{}/{sub}", parts[0]));
    Some(Attributes { verb, group, resource, namespace })
}

/// Lets through what the rights allow, refuses the rest as an API server does, and keeps what it refused.
#[derive(Clone)]
pub struct Guard {
    rights: Arc<Rights>,
    refused: Arc<Mutex<Vec<Attributes>>>,
    seen: Arc<Mutex<Vec<Attributes>>>,
}

impl Guard {
    pub fn new(rights: Rights) -> Guard {
        Guard { rights: Arc::new(rights), refused: Arc::default(), seen: Arc::default() }
    }

    pub fn before(&self, router: Router) -> Router {
        router.layer(from_fn_with_state(self.clone(), judge))
    }

    pub fn refused(&self) -> Vec<Attributes> {
        self.refused.lock().unwrap().clone()
    }

    pub fn has_seen(&self, verb: &str, resource: &str) -> bool {
        self.seen.lock().unwrap().iter().any(|one| one.verb == verb && one.resource == resource)
    }
}

async fn judge(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let uri = request.uri();
    let Some(asked) = attributes(request.method(), uri.path(), uri.query().unwrap_or_default()) else {
        return next.run(request).await;
    };
    guard.seen.lock().unwrap().push(asked.clone());
    if guard.rights.allow(&asked) {
        return next.run(request).await;
    }
    let message = format!("cannot {} {} in the group {:?}", asked.verb, asked.resource, asked.group);
    let mut refused = guard.refused.lock().unwrap();
    if !refused.contains(&asked) {
        refused.push(asked);
    }
    drop(refused);
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message,
    });
    (StatusCode::FORBIDDEN, axum::Json(status)).into_response()
}

#[test]
fn requests_are_told_apart_as_an_api_server_does() {
    let of = |method, path, query| attributes(&method, path, query).unwrap();
    let asked = |verb, group: &str, resource: &str, namespace: Option<&str>| Attributes {
        verb,
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.map(str::to_owned),
    };
    assert_eq!(of(Method::GET, "/api/v1/services", "watch=true&x=1"), asked("watch", "", "services", None));
    assert_eq!(of(Method::GET, "/api/v1/namespaces/a/services/b", ""), asked("get", "", "services", Some("a")));
    assert_eq!(of(Method::GET, "/api/v1/namespaces/a", ""), asked("get", "", "namespaces", None));
    let lease = asked("update", "coordination.k8s.io", "leases", Some("a"));
    assert_eq!(of(Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", ""), lease);
    let status = asked("patch", "", "services/status", Some("a"));
    assert_eq!(of(Method::PATCH, "/api/v1/namespaces/a/services/b/status", ""), status);
    assert_eq!(attributes(&Method::GET, "/apis/metallb.io/v1beta1", ""), None);
    assert_eq!(attributes(&Method::GET, "/version", ""), None);
}
