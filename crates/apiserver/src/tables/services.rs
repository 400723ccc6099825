//! Pure. Rows of Services, their endpoints and their ranges.

use jiff::Timestamp;
use serde_json::Value;

use super::words::{NONE, age, first_three, labels, or_none};
use super::{AGE, Column, NAME, shown, wide};
use crate::object;

pub const SERVICE: &[Column] =
    &[NAME, shown("Type"), shown("Cluster-IP"), shown("External-IP"), shown("Port(s)"), AGE, wide("Selector")];
pub const ENDPOINTS: &[Column] = &[NAME, shown("Endpoints"), AGE];
pub const SLICE: &[Column] = &[NAME, shown("AddressType"), shown("Ports"), shown("Endpoints"), AGE];
pub const RANGE: &[Column] = &[NAME, shown("CIDRs"), AGE];
pub const ADDRESS: &[Column] = &[NAME, shown("ParentRef"), AGE];

fn texts(value: &Value, path: &[&str]) -> Vec<String> {
    object::items(value, path).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn external(service: &Value) -> String {
    let mut addresses = texts(service, &["spec", "externalIPs"]);
    match object::text(service, &["spec", "type"]) {
        Some("ExternalName") => object::text(service, &["spec", "externalName"]).unwrap_or(NONE).to_owned(),
        Some("LoadBalancer") => {
            let given = object::items(service, &["status", "loadBalancer", "ingress"]).iter();
            let given = given.filter_map(|ingress| {
                object::text(ingress, &["ip"]).or_else(|| object::text(ingress, &["hostname"])).map(str::to_owned)
            });
            let mut all: Vec<String> = given.collect();
            all.append(&mut addresses);
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ if addresses.is_empty() => NONE.to_owned(),
        _ => addresses.join(","),
    }
}

fn ports(service: &Value) -> String {
    let ports: Vec<String> = object::items(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            let number = object::number(port, &["port"]).unwrap_or(0);
            let protocol = object::text(port, &["protocol"]).unwrap_or("TCP");
            match object::number(port, &["nodePort"]) {
                Some(node_port) if node_port != 0 => format!("{number}:{node_port}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    if ports.is_empty() { NONE.to_owned() } else { ports.join(",") }
}

pub fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        object::name(service).into(),
        or_none(object::text(service, &["spec", "type"])),
        or_none(object::text(service, &["spec", "clusterIP"])),
        external(service).into(),
        ports(service).into(),
        age(service, now),
        labels(object::at(service, &["spec", "selector"])).into(),
    ]
}

fn joined(address: &str, port: i64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

pub fn endpoints(endpoints: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in object::items(endpoints, &["subsets"]) {
        let addresses: Vec<&str> =
            object::items(subset, &["addresses"]).iter().filter_map(|address| object::text(address, &["ip"])).collect();
        let ports = object::items(subset, &["ports"]);
        if ports.is_empty() {
            all.extend(addresses.iter().map(|address| (*address).to_owned()));
        }
        for port in ports {
            let number = object::number(port, &["port"]).unwrap_or(0);
            all.extend(addresses.iter().map(|address| joined(address, number)));
        }
    }
    vec![object::name(endpoints).into(), first_three(&all, NONE).into(), age(endpoints, now)]
}

pub fn slice(slice: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = object::items(slice, &["ports"])
        .iter()
        .map(|port| object::number(port, &["port"]).map_or_else(|| "*".to_owned(), |port| port.to_string()))
        .collect();
    let addresses: Vec<String> =
        object::items(slice, &["endpoints"]).iter().flat_map(|endpoint| texts(endpoint, &["addresses"])).collect();
    vec![
        object::name(slice).into(),
        object::text(slice, &["addressType"]).unwrap_or("").into(),
        first_three(&ports, "<unset>").into(),
        first_three(&addresses, "<unset>").into(),
        age(slice, now),
    ]
}

pub fn range(range: &Value, now: Timestamp) -> Vec<Value> {
    vec![object::name(range).into(), texts(range, &["spec", "cidrs"]).join(",").into(), age(range, now)]
}

pub fn address(address: &Value, now: Timestamp) -> Vec<Value> {
    let parent = |key: &str| object::text(address, &["spec", "parentRef", key]).unwrap_or("");
    let parts: Vec<&str> =
        [parent("resource"), parent("namespace"), parent("name")].into_iter().filter(|part| !part.is_empty()).collect();
    vec![object::name(address).into(), parts.join("/").into(), age(address, now)]
}
