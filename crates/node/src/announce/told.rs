//! Tells what this node announces: ServiceL2Status objects, Events on the Services, lines of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use signpost_core::announce::hash;
use signpost_core::object::ObjectName;
use signpost_metallb::state::{InterfaceInfo, ServiceL2StatusSpec, ServiceL2StatusStatus};
use signpost_metallb::{NAMESPACE, ServiceL2Status};
use tokio::sync::watch;
use tracing::{debug, info};

use super::numbers::Numbers;

/// A Service that this node answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Its uid.
    pub uid: String,
    /// The addresses that this node has.
    pub addresses: BTreeSet<IpAddr>,
    /// The pool that they are of.
    pub pool: Arc<str>,
    /// Where it answers.
    pub interfaces: BTreeSet<Arc<str>>,
    /// Who has any of the Service's addresses: another family's may be another node's.
    pub holders: BTreeSet<Arc<str>>,
}

/// All of them.
pub type AllAnnounced = BTreeMap<ObjectName, Announced>;

/// Follows what is announced, and tells it, until the sender is gone. What the API does not take is told again later.
pub async fn tell(client: Client, node: Arc<str>, mut announced: watch::Receiver<AllAnnounced>, numbers: Numbers) {
    let mut told = AllAnnounced::new();
    // What a former life of this daemon told.
    let mut stale = true;
    loop {
        let now = announced.borrow_and_update().clone();
        log(&told, &now);
        let counted = now.iter().map(|(name, one)| (name.clone(), one.addresses.iter().copied().collect()));
        numbers.announced("layer2", counted.collect());
        let mut missed = false;
        for (name, one) in now.iter().filter(|(name, one)| told.get(*name) != Some(*one)) {
            if told.get(name).is_none_or(|before| before.addresses != one.addresses)
                && let Err(error) = assigned(&client, &node, name, one).await
            {
                debug!(service = %name, %error, "an event could not be written");
            }
            missed |= failed("write", name, write_status(&client, &node, name, one).await);
        }
        for name in told.keys().filter(|name| !now.contains_key(*name)) {
            missed |= failed("delete", name, delete_status(&client, &status_name(&node, name)).await);
        }
        if stale {
            stale = failed("delete the former", &ObjectName::new(NAMESPACE, "*"), sweep(&client, &node, &now).await);
        }
        told = now;
        let again = async {
            if missed || stale { tokio::time::sleep(super::RETRY).await } else { std::future::pending().await }
        };
        tokio::select! {
            changed = announced.changed() => if changed.is_err() { return },
            () = again => if missed { told.clear() },
        }
    }
}

fn failed(what: &str, name: &ObjectName, result: kube::Result<()>) -> bool {
    if let Err(error) = &result {
        debug!(what, service = %name, %error, "what is announced could not be told; trying again");
    }
    result.is_err()
}

fn log(before: &AllAnnounced, now: &AllAnnounced) {
    for (name, one) in now.iter().filter(|(name, one)| before.get(*name) != Some(*one)) {
        let (ips, interfaces) = (joined(&one.addresses), joined(&one.interfaces));
        info!(event = "serviceAnnounced", service = %name, ips, pool = %one.pool, protocol = "layer2", interfaces, "this node answers for a Service's addresses");
    }
    for (name, one) in before.iter().filter(|(name, _)| !now.contains_key(*name)) {
        let ips = joined(&one.addresses);
        info!(event = "serviceWithdrawn", service = %name, ips, pool = %one.pool, protocol = "layer2", "this node answers no more for a Service's addresses");
    }
}

fn joined<T: ToString>(items: &BTreeSet<T>) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn status_name(node: &str, service: &ObjectName) -> String {
    format!("l2-{:016x}", hash(&[node.as_bytes(), service.namespace.as_bytes(), service.name.as_bytes()]))
}

async fn write_status(client: &Client, node: &str, name: &ObjectName, one: &Announced) -> kube::Result<()> {
    let api: Api<ServiceL2Status> = Api::namespaced(client.clone(), NAMESPACE);
    let status_name = status_name(node, name);
    let mut object = match api.get_opt(&status_name).await? {
        Some(object) => object,
        None => {
            let label = |key: &str, value: &str| (format!("metallb.io/{key}"), value.to_owned());
            let labels =
                [label("node", node), label("service-name", &name.name), label("service-namespace", &name.namespace)];
            let metadata = ObjectMeta {
                name: Some(status_name.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            };
            api.create(&PostParams::default(), &ServiceL2Status::new(metadata, ServiceL2StatusSpec {})).await?
        }
    };
    object.status = Some(ServiceL2StatusStatus {
        node: node.to_owned(),
        service_name: name.name.to_string(),
        service_namespace: name.namespace.to_string(),
        interfaces: one.interfaces.iter().map(|name| InterfaceInfo { name: name.to_string() }).collect(),
    });
    api.replace_status(&status_name, &PostParams::default(), &object).await?;
    // What a node told that died cannot be taken back by itself.
    let service = format!("metallb.io/service-name={},metallb.io/service-namespace={}", name.name, name.namespace);
    for other in api.list(&ListParams::default().labels(&service)).await? {
        if other.name() != status_name && other.metadata.labels.as_ref().is_some_and(|labels| is_old(labels, one)) {
            delete_status(client, other.name()).await?;
        }
    }
    Ok(())
}

/// Whether a status is of a node that has none of the addresses any more.
fn is_old(labels: &BTreeMap<String, String>, one: &Announced) -> bool {
    labels.get("metallb.io/node").is_some_and(|other| !one.holders.contains(other.as_str()))
}

async fn delete_status(client: &Client, name: &str) -> kube::Result<()> {
    let api: Api<ServiceL2Status> = Api::namespaced(client.clone(), NAMESPACE);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes this node's statuses of Services that it does not answer for.
async fn sweep(client: &Client, node: &str, now: &AllAnnounced) -> kube::Result<()> {
    let api: Api<ServiceL2Status> = Api::namespaced(client.clone(), NAMESPACE);
    let kept: BTreeSet<String> = now.keys().map(|name| status_name(node, name)).collect();
    for status in api.list(&ListParams::default().labels(&format!("metallb.io/node={node}"))).await? {
        if !kept.contains(status.name()) {
            delete_status(client, status.name()).await?;
        }
    }
    Ok(())
}

async fn assigned(client: &Client, node: &str, name: &ObjectName, one: &Announced) -> kube::Result<()> {
    let message = format!("node {node} answers for {} (layer2)", joined(&one.addresses));
    post(client, node, name, &one.uid, ("Normal", "nodeAssigned"), message).await
}

/// Writes an Event on a Service, of this type and reason.
///
/// # Errors
/// The API's.
pub async fn post(
    client: &Client,
    node: &str,
    name: &ObjectName,
    uid: &str,
    (kind, reason): (&str, &str),
    message: String,
) -> kube::Result<()> {
    let now = Timestamp::now();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", name.name, hash(&[node.as_bytes(), &now.as_nanosecond().to_be_bytes()]))),
            namespace: Some(name.namespace.to_string()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(name.namespace.to_string()),
            name: Some(name.name.to_string()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        },
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some("signpost-node".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("signpost-node".to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &name.namespace);
    api.create(&PostParams::default(), &event).await.map(drop)
}
