//! Pure. What an update means that does not say everything: fields that it keeps, and fields that a change of type drops.

use serde_json::{Value, json};

use super::{Type, needs_health_check_port, ports, text, texts};
use crate::object;

fn spec(service: &Value, key: &str) -> Option<Value> {
    object::at(service, &["spec", key]).cloned()
}

fn set(service: &mut Value, key: &str, value: Option<Value>) {
    let spec = object::child(service, "spec");
    match value {
        Some(value) => spec.insert(key.to_owned(), value),
        None => spec.remove(key),
    };
}

/// Brings `clusterIP` and `clusterIPs` together: an old client knows only the first.
pub fn normalize(old: Option<&Value>, service: &mut Value) {
    let (address, addresses) = (text(service, "clusterIP").to_owned(), spec(service, "clusterIPs"));
    let Some(old) = old else {
        if !address.is_empty() && addresses.is_none() {
            set(service, "clusterIPs", Some(json!([address])));
        }
        return;
    };
    if text(old, "clusterIP") == address {
        return;
    }
    // The client changed the one and left the other as it was.
    if spec(old, "clusterIPs") == addresses {
        let changed = if address.is_empty() {
            None
        } else {
            let mut list = addresses.and_then(|list| list.as_array().cloned()).unwrap_or_default();
            if list.is_empty() {
                list.push(address.into())
            } else {
                list[0] = address.into()
            }
            Some(Value::Array(list))
        };
        set(service, "clusterIPs", changed);
    }
}

/// Keeps what was given out when the update does not name it, and drops what the new type has no use for.
pub fn carry_over(old: &Value, service: &mut Value) {
    keep(old, service);
    drop_by_type(old, service);
}

fn keep(old: &Value, service: &mut Value) {
    let (before, after) = (Type::of(old), Type::of(service));
    if before.needs_cluster_ip() && after.needs_cluster_ip() {
        if text(service, "clusterIP").is_empty() {
            set(service, "clusterIP", spec(old, "clusterIP"));
        }
        if texts(service, "clusterIPs").is_empty() && text(service, "clusterIP") == text(old, "clusterIP") {
            set(service, "clusterIPs", spec(old, "clusterIPs"));
        }
    }
    if before.is_external() && after.is_external() {
        keep_node_ports(old, service);
    }
    if needs_health_check_port(old)
        && needs_health_check_port(service)
        && spec(service, "healthCheckNodePort").is_none()
    {
        set(service, "healthCheckNodePort", spec(old, "healthCheckNodePort"));
    }
}

fn port_key(port: &Value) -> (i64, &str) {
    (object::number(port, &["port"]).unwrap_or(0), object::text(port, &["protocol"]).unwrap_or("TCP"))
}

fn node_port(port: &Value) -> Option<i64> {
    object::number(port, &["nodePort"]).filter(|&number| number != 0)
}

fn keep_node_ports(old: &Value, service: &mut Value) {
    let named: Vec<i64> = ports(service).iter().filter_map(node_port).collect();
    let kept: Vec<Option<i64>> = ports(service)
        .iter()
        .map(|port| {
            let before = ports(old).iter().find(|before| port_key(before) == port_key(port)).and_then(node_port);
            before.filter(|before| node_port(port).is_none() && !named.contains(before))
        })
        .collect();
    let ports = object::child(service, "spec").get_mut("ports").and_then(Value::as_array_mut);
    for (port, kept) in ports.into_iter().flatten().zip(kept) {
        if let Some(kept) = kept {
            object::fields(port).insert("nodePort".to_owned(), kept.into());
        }
    }
}

/// What the old type needed and the new one can't have goes, unless the client changed it: then that is its error.
fn drop_by_type(old: &Value, service: &mut Value) {
    let (before, after) = (Type::of(old), Type::of(service));
    let same = |service: &Value, key: &str| spec(old, key) == spec(service, key);
    if before.needs_cluster_ip() && !after.needs_cluster_ip() {
        if same(service, "clusterIP") && same(service, "clusterIPs") {
            set(service, "clusterIP", None);
            set(service, "clusterIPs", None);
        }
        for key in ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if same(service, key) {
                set(service, key, None);
            }
        }
    }
    if before.is_external() && !after.is_external() {
        let old_ports: Vec<Option<i64>> = ports(old).iter().map(node_port).collect();
        if old_ports == ports(service).iter().map(node_port).collect::<Vec<_>>() {
            let ports = object::child(service, "spec").get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                object::fields(port).remove("nodePort");
            }
        }
    }
    if needs_health_check_port(old) && !needs_health_check_port(service) && same(service, "healthCheckNodePort") {
        set(service, "healthCheckNodePort", None);
    }
    if super::is_externally_accessible(old)
        && !super::is_externally_accessible(service)
        && same(service, "externalTrafficPolicy")
    {
        set(service, "externalTrafficPolicy", None);
    }
    if before == Type::LoadBalancer && after != Type::LoadBalancer {
        for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerIP"] {
            if same(service, key) {
                set(service, key, None);
            }
        }
        object::child(service, "status").insert("loadBalancer".to_owned(), json!({}));
    }
    if before == Type::ExternalName && after != Type::ExternalName && same(service, "externalName") {
        set(service, "externalName", None);
    }
}
