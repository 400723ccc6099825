//! Pure. `paths`: the verbs of each kind.

use super::components::{gvk_json, name_of, reference, scale};
use crate::content::Gvk;
use crate::registry::KindInfo;
use serde_json::{Map, Value, json};

/// The document of a kind, which is also the begin of its paths without the first slash: `api/v1`, `apis/apps/v1`.
pub(super) fn root(kind: &KindInfo) -> String {
    match kind.group {
        "" => format!("api/{}", kind.version),
        group => format!("apis/{group}/{}", kind.version),
    }
}

/// A verb: HTTP method, what the real server calls it, and what it takes and gives.
struct Verb {
    method: &'static str,
    action: &'static str,
    body: Body,
    parameters: &'static [&'static str],
    lists: bool,
}

enum Body {
    None,
    Object,
    Patch,
    DeleteOptions,
}

const READ: Verb = Verb { method: "get", action: "get", body: Body::None, parameters: &[], lists: false };
const LIST: Verb = Verb { method: "get", action: "list", body: Body::None, parameters: SELECTION, lists: true };
const CREATE: Verb = Verb { method: "post", action: "post", body: Body::Object, parameters: WRITE, lists: false };
const REPLACE: Verb = Verb { method: "put", action: "put", body: Body::Object, parameters: WRITE, lists: false };
const PATCH: Verb = Verb {
    method: "patch",
    action: "patch",
    body: Body::Patch,
    parameters: &["dryRun", "fieldManager", "fieldValidation", "force"],
    lists: false,
};
const DELETE: Verb =
    Verb { method: "delete", action: "delete", body: Body::DeleteOptions, parameters: DELETION, lists: false };
const DELETE_ALL: Verb = Verb {
    method: "delete",
    action: "deletecollection",
    body: Body::DeleteOptions,
    parameters: &["dryRun", "fieldSelector", "gracePeriodSeconds", "labelSelector", "propagationPolicy"],
    lists: false,
};

const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const DELETION: &[&str] = &["dryRun", "gracePeriodSeconds", "propagationPolicy"];
const SELECTION: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

/// All paths of a kind.
pub(super) fn of(kind: &KindInfo) -> Vec<(String, Value)> {
    let gvk = Gvk::new(kind.group, kind.version, kind.kind);
    let base = format!("/{}", root(kind));
    let collection = match kind.namespaced {
        true => format!("{base}/namespaces/{{namespace}}/{}", kind.plural),
        false => format!("{base}/{}", kind.plural),
    };
    let object = format!("{collection}/{{name}}");
    let mut paths = vec![];
    if kind.namespaced {
        paths.push((format!("{base}/{}", kind.plural), item(&gvk, false, false, &[LIST])));
    }
    paths.push((collection, item(&gvk, kind.namespaced, false, &[LIST, CREATE, DELETE_ALL])));
    let verbs = &[READ, REPLACE, PATCH, DELETE];
    paths.push((object.clone(), item(&gvk, kind.namespaced, true, verbs)));
    let verbs = &[READ, REPLACE, PATCH];
    if kind.has_status {
        paths.push((format!("{object}/status"), item(&gvk, kind.namespaced, true, verbs)));
    }
    if kind.has_scale {
        paths.push((format!("{object}/scale"), item(&scale(), kind.namespaced, true, verbs)));
    }
    paths
}

fn item(gvk: &Gvk, namespaced: bool, named: bool, verbs: &[Verb]) -> Value {
    let mut item = Map::new();
    let in_path = [(named, "name"), (namespaced, "namespace")].into_iter().filter(|(has, _)| *has);
    let parameters: Vec<Value> = in_path
        .map(|(_, name)| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "uniqueItems": true } })
        })
        .collect();
    if !parameters.is_empty() {
        item.insert("parameters".into(), parameters.into());
    }
    for verb in verbs {
        item.insert(verb.method.into(), operation(gvk, verb));
    }
    item.into()
}

fn operation(gvk: &Gvk, verb: &Verb) -> Value {
    let name = name_of(gvk);
    let answer = match (&verb.body, verb.lists) {
        (_, true) => reference(&format!("{name}List")),
        (Body::DeleteOptions, _) => reference("io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
        _ => reference(&name),
    };
    let json_of = |schema: Value| json!({ "application/json": { "schema": schema } });
    let mut operation = json!({
        "parameters": verb.parameters.iter().map(|name| parameter(name)).collect::<Vec<_>>(),
        "responses": { "200": { "description": "OK", "content": json_of(answer) } },
        "x-kubernetes-action": verb.action,
        "x-kubernetes-group-version-kind": gvk_json(gvk),
    });
    let content = match verb.body {
        Body::None => return operation,
        Body::Object => json!({ "*/*": { "schema": reference(&name) } }),
        Body::DeleteOptions => {
            json!({ "*/*": { "schema": reference("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions") } })
        }
        Body::Patch => patches(),
    };
    operation["requestBody"] = json!({ "content": content });
    operation
}

fn patches() -> Value {
    let schema = json!({ "schema": reference("io.k8s.apimachinery.pkg.apis.meta.v1.Patch") });
    let types = ["json-patch", "merge-patch", "strategic-merge-patch"];
    types.iter().map(|name| (format!("application/{name}+json"), schema.clone())).collect::<Map<_, _>>().into()
}

fn parameter(name: &str) -> Value {
    let kind = match name {
        "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
        "watch" | "allowWatchBookmarks" | "sendInitialEvents" | "force" => "boolean",
        _ => "string",
    };
    json!({ "name": name, "in": "query", "schema": { "type": kind, "uniqueItems": true } })
}
