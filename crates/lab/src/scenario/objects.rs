//! Kubernetes objects as a scenario handles them: created or changed as `kubectl apply` would, looked at, deleted, and
//! in the end all removed, so that the next scenario finds an empty cluster.

use std::time::{Duration, Instant};

use kube::Client;
use serde_json::{Value, json};

use super::format::ObjectRef;
use crate::cluster_dns;
use crate::patience::patient;

/// The API's objects.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    /// The cluster's name service is the cluster's own.
    keeps_dns: bool,
}

/// Why an object could not be handled.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The API refused, with its own words.
    #[error("the API refuses {what}: {message}")]
    Refused {
        /// The object.
        what: String,
        /// The API's message.
        message: String,
        /// HTTP status.
        code: u16,
    },
    /// The API could not be asked.
    #[error("cannot ask the API for {what}: {source}")]
    Client {
        /// The object.
        what: String,
        /// What went wrong.
        #[source]
        source: kube::Error,
    },
    /// The object lacks what makes it one.
    #[error("{what}: no {field}")]
    Incomplete {
        /// What is known of it.
        what: String,
        /// The missing field.
        field: &'static str,
    },
    /// A kind that this lab's API does not have.
    #[error("kind {kind} is not known here; known are {known}")]
    UnknownKind {
        /// The kind.
        kind: String,
        /// Those there are.
        known: String,
    },
    /// It did not go away.
    #[error("{what} is still there after {waited_s} s")]
    StillThere {
        /// The object.
        what: String,
        /// How long it was waited for.
        waited_s: u64,
    },
}

/// A kind: where its objects are found.
#[derive(Debug, PartialEq, Eq)]
struct Resource {
    kind: &'static str,
    api: &'static str,
    plural: &'static str,
    namespaced: bool,
}

const fn of(kind: &'static str, api: &'static str, plural: &'static str) -> Resource {
    Resource { kind, api, plural, namespaced: true }
}

const fn global(kind: &'static str, api: &'static str, plural: &'static str) -> Resource {
    Resource { kind, api, plural, namespaced: false }
}

/// The order is that of removal: owners before what they own.
const RESOURCES: &[Resource] = &[
    of("Deployment", "apis/apps/v1", "deployments"),
    of("StatefulSet", "apis/apps/v1", "statefulsets"),
    of("ReplicaSet", "apis/apps/v1", "replicasets"),
    of("Service", "api/v1", "services"),
    of("Pod", "api/v1", "pods"),
    of("Endpoints", "api/v1", "endpoints"),
    of("EndpointSlice", "apis/discovery.k8s.io/v1", "endpointslices"),
    of("NetworkPolicy", "apis/networking.k8s.io/v1", "networkpolicies"),
    of("ConfigMap", "api/v1", "configmaps"),
    of("Secret", "api/v1", "secrets"),
    of("ServiceAccount", "api/v1", "serviceaccounts"),
    of("Lease", "apis/coordination.k8s.io/v1", "leases"),
    of("L2Advertisement", "apis/metallb.io/v1beta1", "l2advertisements"),
    of("BGPAdvertisement", "apis/metallb.io/v1beta1", "bgpadvertisements"),
    of("IPAddressPool", "apis/metallb.io/v1beta1", "ipaddresspools"),
    of("BGPPeer", "apis/metallb.io/v1beta2", "bgppeers"),
    of("BFDProfile", "apis/metallb.io/v1beta1", "bfdprofiles"),
    of("Community", "apis/metallb.io/v1beta1", "communities"),
    of("ServiceL2Status", "apis/metallb.io/v1beta1", "servicel2statuses"),
    of("ServiceBGPStatus", "apis/metallb.io/v1beta1", "servicebgpstatuses"),
    of("ConfigurationState", "apis/metallb.io/v1beta1", "configurationstates"),
    of("BGPSessionState", "apis/frrk8s.metallb.io/v1beta1", "bgpsessionstates"),
    of("Event", "api/v1", "events"),
    global("ServiceCIDR", "apis/networking.k8s.io/v1", "servicecidrs"),
    global("Node", "api/v1", "nodes"),
    global("Namespace", "api/v1", "namespaces"),
];

/// Kinds of which a scenario leaves nothing behind.
const SWEPT: [&str; 19] = [
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "Service",
    "Pod",
    "Endpoints",
    "EndpointSlice",
    "NetworkPolicy",
    "ConfigMap",
    "Secret",
    "L2Advertisement",
    "BGPAdvertisement",
    "IPAddressPool",
    "BGPPeer",
    "BFDProfile",
    "Community",
    "ConfigurationState",
    "Event",
    "ServiceCIDR",
];

/// What belongs to the cluster itself.
const KEPT_NAMESPACES: [&str; 5] = ["default", "kube-system", "kube-public", "kube-node-lease", "metallb-system"];

impl Objects {
    /// Through a client.
    pub fn new(client: Client, keeps_dns: bool) -> Objects {
        Objects { client, keeps_dns }
    }

    /// Creates an object, or changes it to what is given. Unknown fields are refused, as kubectl has them refused.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] with the API's message, and the others.
    pub async fn apply(&self, object: &Value) -> Result<(), ObjectError> {
        let reference = reference(object)?;
        if self.find(&reference).await?.is_none() {
            return self.create(object).await;
        }
        let path = format!("{}?fieldValidation=Strict", path(&reference)?);
        self.send("PATCH", &path, Some(object), &show(&reference)).await.map(drop)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As [`Objects::apply`]; one that is there already is refused.
    pub async fn create(&self, object: &Value) -> Result<(), ObjectError> {
        let reference = reference(object)?;
        let resource = resource(&reference)?;
        let path = format!("{}?fieldValidation=Strict", collection(resource, reference.namespace.as_deref()));
        self.send("POST", &path, Some(object), &show(&reference)).await.map(drop)
    }

    /// An object.
    ///
    /// # Errors
    /// It is not there, or [`ObjectError`]'s others.
    pub async fn get(&self, reference: &ObjectRef) -> Result<Value, ObjectError> {
        self.send("GET", &path(reference)?, None, &show(reference)).await
    }

    /// An object, if it is there.
    ///
    /// # Errors
    /// [`ObjectError`], but not that it is missing.
    pub async fn find(&self, reference: &ObjectRef) -> Result<Option<Value>, ObjectError> {
        match self.get(reference).await {
            Ok(object) => Ok(Some(object)),
            Err(ObjectError::Refused { code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a kind in all namespaces.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn list(&self, kind: &str) -> Result<Vec<Value>, ObjectError> {
        let reference = ObjectRef { kind: kind.to_owned(), api_version: None, namespace: None, name: String::new() };
        let resource = resource(&reference)?;
        let mut list = self.send("GET", &format!("/{}/{}", resource.api, resource.plural), None, kind).await?;
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn patch(
        &self,
        reference: &ObjectRef,
        subresource: Option<&str>,
        merge: &Value,
    ) -> Result<(), ObjectError> {
        let mut path = path(reference)?;
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path.push_str("?fieldValidation=Strict");
        self.send("PATCH", &path, Some(merge), &show(reference)).await.map(drop)
    }

    /// Deletes an object; with `wait` it is gone when this returns.
    ///
    /// # Errors
    /// It was not there, or did not go within its grace period and some seconds.
    pub async fn delete(&self, reference: &ObjectRef, grace_s: Option<u32>, wait: bool) -> Result<(), ObjectError> {
        let options = match grace_s {
            Some(grace_s) => json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s}),
            None => json!({"kind": "DeleteOptions", "apiVersion": "v1"}),
        };
        let path = path(reference)?;
        self.send("DELETE", &path, Some(&options), &show(reference)).await?;
        if !wait {
            return Ok(());
        }
        let limit = Duration::from_secs(u64::from(grace_s.unwrap_or(30)) + 20);
        self.gone(reference, patient(limit)).await
    }

    async fn gone(&self, reference: &ObjectRef, limit: Duration) -> Result<(), ObjectError> {
        let deadline = Instant::now() + limit;
        while self.find(reference).await?.is_some() {
            if Instant::now() > deadline {
                return Err(ObjectError::StillThere { what: show(reference), waited_s: limit.as_secs() });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Removes everything that is not the cluster's own: nodes, `default`, the Service `kubernetes` and the like stay.
    ///
    /// # Errors
    /// Something could not be deleted, or did not go.
    pub async fn sweep(&self) -> Result<(), ObjectError> {
        let mut ending = Vec::new();
        for kind in SWEPT {
            for object in self.list(kind).await? {
                let reference = ObjectRef { kind: kind.to_owned(), ..named(&object)? };
                let own = is_of_the_cluster(&reference, &object) || (self.keeps_dns && is_of_dns(&reference, &object));
                if !own && self.delete_if_there(&reference).await? {
                    ending.push(reference);
                }
            }
        }
        for object in self.list("Namespace").await? {
            let reference = ObjectRef { kind: "Namespace".to_owned(), namespace: None, ..named(&object)? };
            if !KEPT_NAMESPACES.contains(&reference.name.as_str()) && self.delete_if_there(&reference).await? {
                ending.push(reference);
            }
        }
        for reference in ending {
            self.gone(&reference, patient(Duration::from_secs(20))).await?;
        }
        Ok(())
    }

    async fn delete_if_there(&self, reference: &ObjectRef) -> Result<bool, ObjectError> {
        match self.delete(reference, Some(0), false).await {
            Ok(()) => Ok(true),
            Err(ObjectError::Refused { code: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>, what: &str) -> Result<Value, ObjectError> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = http::Request::builder().method(method).uri(path).header("content-type", content).body(body);
        let request = request
            .map_err(|source| ObjectError::Client { what: what.to_owned(), source: kube::Error::HttpError(source) })?;
        self.client.request::<Value>(request).await.map_err(|error| match error {
            kube::Error::Api(status) => {
                ObjectError::Refused { what: what.to_owned(), message: status.message.clone(), code: status.code }
            }
            source => ObjectError::Client { what: what.to_owned(), source },
        })
    }
}

/// What an object is, from its own fields. A namespaced kind without a namespace is in `default`.
fn reference(object: &Value) -> Result<ObjectRef, ObjectError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let kind = text("/kind").ok_or_else(|| ObjectError::Incomplete { what: "an object".to_owned(), field: "kind" })?;
    let name = text("/metadata/name").or_else(|| text("/metadata/generateName"));
    let name = name.ok_or_else(|| ObjectError::Incomplete { what: kind.clone(), field: "metadata.name" })?;
    Ok(ObjectRef { kind, api_version: text("/apiVersion"), namespace: text("/metadata/namespace"), name })
}

/// Namespace and name of an object out of a list, whose items do not say their kind.
fn named(object: &Value) -> Result<ObjectRef, ObjectError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let name = text("/metadata/name")
        .ok_or_else(|| ObjectError::Incomplete { what: "an object".to_owned(), field: "metadata.name" })?;
    Ok(ObjectRef { kind: String::new(), api_version: None, namespace: text("/metadata/namespace"), name })
}

fn is_of_the_cluster(reference: &ObjectRef, object: &Value) -> bool {
    let in_kept = reference.namespace.as_deref().is_none_or(|namespace| KEPT_NAMESPACES.contains(&namespace));
    let service = object.pointer("/metadata/labels/kubernetes.io~1service-name").and_then(Value::as_str);
    let is_kubernetes = reference.name == "kubernetes" || service == Some("kubernetes");
    let system = reference.namespace.as_deref().is_some_and(|namespace| namespace.starts_with("kube-"));
    match reference.kind.as_str() {
        "ConfigMap" => system || reference.name == "kube-root-ca.crt",
        "Service" | "EndpointSlice" | "Endpoints" => in_kept && is_kubernetes,
        "ServiceCIDR" => reference.name == "kubernetes",
        // The key by which the nodes know each other's heartbeats.
        "Secret" => system || reference.name == "signpost-heartbeat",
        _ => system,
    }
}

/// The Service of the cluster's names and what is made for it.
fn is_of_dns(reference: &ObjectRef, object: &Value) -> bool {
    let service = object.pointer("/metadata/labels/kubernetes.io~1service-name").and_then(Value::as_str);
    reference.namespace.as_deref() == Some(cluster_dns::NAMESPACE)
        && (reference.name == cluster_dns::SERVICE || service == Some(cluster_dns::SERVICE))
}

fn resource(reference: &ObjectRef) -> Result<&'static Resource, ObjectError> {
    RESOURCES.iter().find(|resource| resource.kind == reference.kind).ok_or_else(|| ObjectError::UnknownKind {
        kind: reference.kind.clone(),
        known: RESOURCES.iter().map(|resource| resource.kind).collect::<Vec<_>>().join(", "),
    })
}

fn collection(resource: &Resource, namespace: Option<&str>) -> String {
    if resource.namespaced {
        format!("/{}/namespaces/{}/{}", resource.api, namespace.unwrap_or("default"), resource.plural)
    } else {
        format!("/{}/{}", resource.api, resource.plural)
    }
}

fn path(reference: &ObjectRef) -> Result<String, ObjectError> {
    let resource = resource(reference)?;
    Ok(format!("{}/{}", collection(resource, reference.namespace.as_deref()), reference.name))
}

/// As kubectl names it: `service/web`.
fn show(reference: &ObjectRef) -> String {
    let kind = reference.kind.to_lowercase();
    match reference.namespace.as_deref() {
        Some(namespace) if namespace != "default" => format!("{kind}/{} in {namespace}", reference.name),
        _ => format!("{kind}/{}", reference.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_tells_where_it_belongs() {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
        let path = path(&reference(&object).unwrap()).unwrap();
        assert_eq!(path, "/api/v1/namespaces/default/services/web");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
        assert_eq!(super::path(&reference(&node).unwrap()).unwrap(), "/api/v1/nodes/n1");
        assert!(matches!(reference(&json!({"kind": "Pod"})), Err(ObjectError::Incomplete { .. })));
        let strange = json!({"kind": "Wheel", "metadata": {"name": "a"}});
        let strange = reference(&strange).unwrap();
        assert!(matches!(super::path(&strange), Err(ObjectError::UnknownKind { .. })));
    }

    #[test]
    fn the_clusters_own_objects_are_left_alone() {
        let own = |kind: &str, namespace: &str, name: &str| {
            let reference = ObjectRef {
                kind: kind.to_owned(),
                api_version: None,
                namespace: Some(namespace.to_owned()),
                name: name.to_owned(),
            };
            is_of_the_cluster(&reference, &json!({}))
        };
        assert!(own("Service", "default", "kubernetes"));
        assert!(!own("Service", "default", "web"));
        assert!(!own("Service", "shop", "kubernetes"));
        assert!(own("ConfigMap", "shop", "kube-root-ca.crt"));
        assert!(!own("Pod", "default", "web"));
        let slice = json!({"metadata": {"labels": {"kubernetes.io/service-name": "kubernetes"}}});
        let reference = ObjectRef {
            kind: "EndpointSlice".to_owned(),
            api_version: None,
            namespace: Some("default".to_owned()),
            name: "kubernetes-abc".to_owned(),
        };
        assert!(is_of_the_cluster(&reference, &slice));
    }
}
