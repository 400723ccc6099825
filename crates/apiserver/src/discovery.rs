//! Pure. What the API says it serves: legacy discovery (`/api`, `/apis`, ...), aggregated discovery (v2), the version.

use serde_json::{Value, json};

use crate::registry::{self, KINDS, KindInfo};

/// The version that the behaviour follows.
pub const MAJOR: &str = "1";
/// See [`MAJOR`].
pub const MINOR: &str = "36";

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

/// A kind that can only be asked (POST) and is never stored.
pub struct Review {
    /// API group; its version is `v1`.
    pub group: &'static str,
    /// Its name.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
}

/// All of these.
pub const REVIEWS: [Review; 3] = [
    Review { group: "authentication.k8s.io", kind: "SelfSubjectReview", plural: "selfsubjectreviews" },
    Review { group: "authorization.k8s.io", kind: "SelfSubjectAccessReview", plural: "selfsubjectaccessreviews" },
    Review { group: "authorization.k8s.io", kind: "SelfSubjectRulesReview", plural: "selfsubjectrulesreviews" },
];

struct Subresource {
    name: &'static str,
    gvk: (&'static str, &'static str, &'static str),
    verbs: &'static [&'static str],
}

fn subresources(kind: &'static KindInfo) -> Vec<Subresource> {
    let own = (kind.group, kind.version, kind.kind);
    let mut found = Vec::new();
    if kind.has_status {
        found.push(Subresource { name: "status", gvk: own, verbs: &SUBRESOURCE_VERBS });
    }
    if kind.has_scale {
        found.push(Subresource { name: "scale", gvk: ("autoscaling", "v1", "Scale"), verbs: &SUBRESOURCE_VERBS });
    }
    if kind.kind == "Pod" {
        found.push(Subresource { name: "binding", gvk: ("", "v1", "Binding"), verbs: &["create"] });
        found.push(Subresource { name: "eviction", gvk: ("policy", "v1", "Eviction"), verbs: &["create"] });
        found.push(Subresource { name: "exec", gvk: ("", "v1", "PodExecOptions"), verbs: &["create", "get"] });
        found.push(Subresource { name: "log", gvk: own, verbs: &["get"] });
    }
    if kind.kind == "Namespace" {
        found.push(Subresource { name: "finalize", gvk: own, verbs: &["update"] });
    }
    found
}

fn kinds_of(group: &str, version: &str) -> impl Iterator<Item = &'static KindInfo> {
    KINDS.iter().filter(move |kind| kind.group == group && kind.version == version)
}

/// All groups but the core one with their versions, the newest first, reviews included.
fn groups() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    let reviews = REVIEWS.iter().map(|review| (review.group, "v1"));
    for (group, version) in registry::groups().into_iter().chain(reviews) {
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.insert(0, version),
            None => groups.push((group, vec![version])),
        }
    }
    groups
}

/// The answer to `/api`.
pub fn api_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

fn group_body(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// The answer to `/apis`.
pub fn group_list() -> Value {
    let groups: Vec<Value> = groups().into_iter().map(|(group, versions)| group_body(group, &versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// The answer to `/apis/GROUP`.
pub fn group(name: &str) -> Option<Value> {
    let (group, versions) = groups().into_iter().find(|(group, _)| *group == name)?;
    let mut body = group_body(group, &versions);
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    Some(body)
}

/// The answer to `/api/v1` and `/apis/GROUP/VERSION`.
pub fn resource_list(group: &str, version: &str) -> Option<Value> {
    let served = |(known, versions): &(&str, Vec<&str>)| *known == group && versions.contains(&version);
    let known = (group.is_empty() && version == "v1") || groups().iter().any(served);
    if !known {
        return None;
    }
    let mut resources = Vec::new();
    for kind in kinds_of(group, version) {
        resources.push(json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": VERBS, "shortNames": kind.short_names, "categories": kind.categories,
        }));
        for part in subresources(kind) {
            let mut resource = json!({
                "name": format!("{}/{}", kind.plural, part.name), "singularName": "", "namespaced": kind.namespaced,
                "kind": part.gvk.2, "verbs": part.verbs,
            });
            if part.gvk.0 != group {
                resource["group"] = part.gvk.0.into();
                resource["version"] = part.gvk.1.into();
            }
            resources.push(resource);
        }
    }
    for review in REVIEWS.iter().filter(|review| review.group == group) {
        resources.push(json!({
            "name": review.plural, "singularName": review.kind.to_lowercase(), "namespaced": false,
            "kind": review.kind, "verbs": ["create"],
        }));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}))
}

fn response_kind((group, version, kind): (&str, &str, &str)) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

fn aggregated_group(group: &'static str, versions: &[&'static str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            json!({"version": version, "resources": aggregated_resources(group, version), "freshness": "Current"})
        })
        .collect();
    json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
}

fn aggregated_resources(group: &'static str, version: &'static str) -> Vec<Value> {
    let mut resources: Vec<Value> = kinds_of(group, version)
        .map(|kind| {
            let parts: Vec<Value> = subresources(kind)
                .iter()
                .map(|part| {
                    json!({"subresource": part.name, "responseKind": response_kind(part.gvk), "verbs": part.verbs})
                })
                .collect();
            json!({
                "resource": kind.plural, "responseKind": response_kind((kind.group, kind.version, kind.kind)),
                "scope": if kind.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": kind.singular,
                "verbs": VERBS, "shortNames": kind.short_names, "categories": kind.categories, "subresources": parts,
            })
        })
        .collect();
    for review in REVIEWS.iter().filter(|review| review.group == group) {
        resources.push(json!({
            "resource": review.plural, "responseKind": response_kind((review.group, "v1", review.kind)),
            "scope": "Cluster", "singularResource": review.kind.to_lowercase(), "verbs": ["create"],
        }));
    }
    resources
}

/// The answer to `/api` or `/apis` for a client that asks for aggregated discovery.
pub fn aggregated(core: bool) -> Value {
    let items: Vec<Value> = if core {
        vec![aggregated_group("", &["v1"])]
    } else {
        groups().into_iter().map(|(group, versions)| aggregated_group(group, &versions)).collect()
    };
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

/// The answer to `/version`.
pub fn version() -> Value {
    json!({
        "major": MAJOR, "minor": MINOR, "gitVersion": format!("v{MAJOR}.{MINOR}.0+signpost"), "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_discovery_name_every_kind_once() {
        let aggregated: Vec<Value> = [true, false]
            .into_iter()
            .flat_map(|core| aggregated(core)["items"].as_array().unwrap().clone())
            .flat_map(|group| group["versions"].as_array().unwrap().clone())
            .flat_map(|version| version["resources"].as_array().unwrap().clone())
            .collect();
        assert_eq!(aggregated.len(), KINDS.len() + REVIEWS.len());
        for kind in KINDS {
            let list = resource_list(kind.group, kind.version).unwrap();
            let names = list["resources"].as_array().unwrap();
            assert_eq!(names.iter().filter(|resource| resource["name"] == kind.plural).count(), 1, "{}", kind.plural);
        }
        assert!(resource_list("apps", "v2").is_none() && group("nope").is_none());
        let groups = group_list()["groups"].as_array().unwrap().clone();
        let of_two = groups.iter().filter(|group| group["name"] == "metallb.io").collect::<Vec<_>>();
        assert_eq!((of_two.len(), &of_two[0]["preferredVersion"]["version"]), (1, &json!("v1beta2")));
    }
}
