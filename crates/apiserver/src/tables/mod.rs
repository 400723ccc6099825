//! Pure. `as=Table` answers: the rows that `kubectl get` prints, with the real server's columns.

mod apps;
mod core;
mod custom;
mod events;
mod pods;
mod services;
mod words;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object;
use crate::registry::KindInfo;

/// A column: name, and whether only `-o wide` shows it.
pub struct Column {
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    wide: bool,
}

/// What stands in a row beside the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowObject {
    /// Nothing.
    None,
    /// The metadata: what kubectl asks for.
    Metadata,
    /// All.
    Object,
}

const fn shown(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", wide: false }
}

const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", wide: true }
}

const fn count(name: &'static str) -> Column {
    Column { name, kind: "integer", format: "", wide: false }
}

const NAME: Column = Column { name: "Name", kind: "string", format: "name", wide: false };
const AGE: Column = shown("Age");

fn columns(kind: &KindInfo) -> &'static [Column] {
    match kind.kind {
        _ if kind.is_custom() => custom::columns(kind.kind),
        "Pod" => pods::COLUMNS,
        "Service" => services::SERVICE,
        "Endpoints" => services::ENDPOINTS,
        "EndpointSlice" => services::SLICE,
        "ServiceCIDR" => services::RANGE,
        "IPAddress" => services::ADDRESS,
        "Deployment" => apps::DEPLOYMENT,
        "ReplicaSet" => apps::REPLICA_SET,
        "StatefulSet" => apps::STATEFUL_SET,
        "Event" => events::COLUMNS,
        "Node" => core::NODE,
        "Namespace" => core::NAMESPACE,
        "ConfigMap" => core::CONFIG_MAP,
        "Secret" => core::SECRET,
        "ServiceAccount" => core::SERVICE_ACCOUNT,
        "Lease" => core::LEASE,
        "NetworkPolicy" => core::NETWORK_POLICY,
        _ => &[NAME, AGE],
    }
}

fn cells(kind: &KindInfo, value: &Value, now: Timestamp) -> Vec<Value> {
    match kind.kind {
        _ if kind.is_custom() => custom::cells(kind.kind, value, now),
        "Pod" => pods::cells(value, now),
        "Service" => services::service(value, now),
        "Endpoints" => services::endpoints(value, now),
        "EndpointSlice" => services::slice(value, now),
        "ServiceCIDR" => services::range(value, now),
        "IPAddress" => services::address(value, now),
        "Deployment" => apps::deployment(value, now),
        "ReplicaSet" => apps::replica_set(value, now),
        "StatefulSet" => apps::stateful_set(value, now),
        "Event" => events::cells(value, now),
        "Node" => core::node(value, now),
        "Namespace" => core::namespace(value, now),
        "ConfigMap" => core::config_map(value, now),
        "Secret" => core::secret(value, now),
        "ServiceAccount" => core::service_account(value, now),
        "Lease" => core::lease(value, now),
        "NetworkPolicy" => core::network_policy(value, now),
        _ => vec![object::name(value).into(), words::age(value, now)],
    }
}

/// A Table of these (stored) objects. `described`: with the columns' definitions, which a watch sends only once.
pub fn table<'a>(
    kind: &KindInfo,
    values: impl Iterator<Item = &'a Value>,
    metadata: Value,
    described: bool,
    row_object: RowObject,
    now: Timestamp,
) -> Value {
    let rows: Vec<Value> = values
        .map(|value| {
            let object = match row_object {
                RowObject::None => Value::Null,
                RowObject::Object => value.clone(),
                RowObject::Metadata => json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"],
                }),
            };
            json!({"cells": cells(kind, value, now), "object": object})
        })
        .collect();
    let definitions: Vec<Value> = columns(kind)
        .iter()
        .filter(|_| described)
        .map(|column| {
            json!({
                "name": column.name, "type": column.kind, "format": column.format, "description": column.name,
                "priority": i32::from(column.wide),
            })
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions,
        "rows": rows,
    })
}

/// A LabelSelector of the API as a query has it; empty if there is none.
pub fn selector_text(selector: Option<&Value>) -> String {
    let text = words::selector(selector);
    if text == words::NONE { String::new() } else { text }
}

#[cfg(test)]
mod tests;
