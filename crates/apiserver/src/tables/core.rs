//! Pure. Rows of nodes, namespaces, configuration and leases.

use jiff::Timestamp;
use serde_json::Value;

use super::words::{NONE, UNKNOWN, age, or_none, selector};
use super::{AGE, Column, NAME, count, shown, wide};
use crate::object;

pub const NODE: &[Column] = &[
    NAME,
    shown("Status"),
    shown("Roles"),
    AGE,
    shown("Version"),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
];
pub const NAMESPACE: &[Column] = &[NAME, shown("Status"), AGE];
pub const CONFIG_MAP: &[Column] = &[NAME, count("Data"), AGE];
pub const SECRET: &[Column] = &[NAME, shown("Type"), count("Data"), AGE];
pub const SERVICE_ACCOUNT: &[Column] = &[NAME, count("Secrets"), AGE];
pub const LEASE: &[Column] = &[NAME, shown("Holder"), AGE];
pub const NETWORK_POLICY: &[Column] = &[NAME, shown("Pod-Selector"), AGE];

fn node_status(node: &Value) -> String {
    let ready = object::items(node, &["status", "conditions"]).iter().find(|condition| condition["type"] == "Ready");
    let mut words = match ready {
        Some(condition) if condition["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object::at(node, &["spec", "unschedulable"]) == Some(&Value::Bool(true)) {
        words.push_str(",SchedulingDisabled");
    }
    words
}

fn roles(node: &Value) -> String {
    let labels = object::at(node, &["metadata", "labels"]).and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            _ => None,
        })
        .collect();
    if roles.is_empty() { NONE.to_owned() } else { roles.join(",") }
}

fn node_address(node: &Value, kind: &str) -> Value {
    let addresses = object::items(node, &["status", "addresses"]).iter();
    let mut addresses = addresses.filter(|address| address["type"] == kind);
    or_none(addresses.next().and_then(|address| object::text(address, &["address"])))
}

pub fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let info = |key: &str| object::text(node, &["status", "nodeInfo", key]).filter(|text| !text.is_empty());
    vec![
        object::name(node).into(),
        node_status(node).into(),
        roles(node).into(),
        age(node, now),
        info("kubeletVersion").unwrap_or("").into(),
        node_address(node, "InternalIP"),
        node_address(node, "ExternalIP"),
        info("osImage").unwrap_or(UNKNOWN).into(),
        info("kernelVersion").unwrap_or(UNKNOWN).into(),
        info("containerRuntimeVersion").unwrap_or(UNKNOWN).into(),
    ]
}

pub fn namespace(namespace: &Value, now: Timestamp) -> Vec<Value> {
    let phase = object::text(namespace, &["status", "phase"]).unwrap_or("");
    vec![object::name(namespace).into(), phase.into(), age(namespace, now)]
}

fn size(value: &Value, key: &str) -> usize {
    object::at(value, &[key]).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

pub fn config_map(map: &Value, now: Timestamp) -> Vec<Value> {
    vec![object::name(map).into(), (size(map, "data") + size(map, "binaryData")).into(), age(map, now)]
}

pub fn secret(secret: &Value, now: Timestamp) -> Vec<Value> {
    let kind = object::text(secret, &["type"]).unwrap_or("");
    vec![object::name(secret).into(), kind.into(), size(secret, "data").into(), age(secret, now)]
}

pub fn service_account(account: &Value, now: Timestamp) -> Vec<Value> {
    vec![object::name(account).into(), object::items(account, &["secrets"]).len().into(), age(account, now)]
}

pub fn lease(lease: &Value, now: Timestamp) -> Vec<Value> {
    let holder = object::text(lease, &["spec", "holderIdentity"]).unwrap_or("");
    vec![object::name(lease).into(), holder.into(), age(lease, now)]
}

pub fn network_policy(policy: &Value, now: Timestamp) -> Vec<Value> {
    let pods = selector(object::at(policy, &["spec", "podSelector"]));
    vec![object::name(policy).into(), pods.into(), age(policy, now)]
}
