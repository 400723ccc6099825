//! Services: defaults, what a change of type keeps and drops, cluster addresses and node ports.
//!
//! ```text
//! create: defaults ─▶ normalize ─▶ validate ─▶ families ─▶ allocate
//! update: defaults ─▶ normalize ─▶ carry over / drop by type ─▶ validate ─▶ families ─▶ allocate ─▶ against old
//! ```
//!
//! Order and texts are the real server's (1.36), since kubectl shows them and people search for them.

mod allocate;
mod families;
mod transition;
mod validate;

use serde_json::{Map, Value, json};

use crate::error::Cause;
use crate::object::{self, set_default};

pub use self::allocate::allocate;
pub use self::transition::{carry_over, normalize};
pub(super) use self::validate::special_problem;
pub use self::validate::{validate, validate_update};

/// How a Service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// Inside the cluster only.
    ClusterIp,
    /// Also at the nodes' addresses.
    NodePort,
    /// Also at addresses from a load balancer.
    LoadBalancer,
    /// A name elsewhere.
    ExternalName,
    /// A type that validation refuses.
    Unknown,
}

impl Type {
    fn of(service: &Value) -> Type {
        match text(service, "type") {
            "" | "ClusterIP" => Type::ClusterIp,
            "NodePort" => Type::NodePort,
            "LoadBalancer" => Type::LoadBalancer,
            "ExternalName" => Type::ExternalName,
            _ => Type::Unknown,
        }
    }

    fn needs_cluster_ip(self) -> bool {
        matches!(self, Type::ClusterIp | Type::NodePort | Type::LoadBalancer)
    }

    fn is_external(self) -> bool {
        matches!(self, Type::NodePort | Type::LoadBalancer)
    }
}

fn text<'a>(service: &'a Value, key: &str) -> &'a str {
    object::text(service, &["spec", key]).unwrap_or("")
}

fn ports(service: &Value) -> &[Value] {
    object::items(service, &["spec", "ports"])
}

fn texts<'a>(service: &'a Value, key: &str) -> Vec<&'a str> {
    object::items(service, &["spec", key]).iter().filter_map(Value::as_str).collect()
}

fn is_headless(service: &Value) -> bool {
    text(service, "clusterIP") == "None" || texts(service, "clusterIPs").first() == Some(&"None")
}

fn has_selector(service: &Value) -> bool {
    object::at(service, &["spec", "selector"]).and_then(Value::as_object).is_some_and(|selector| !selector.is_empty())
}

/// Reached from outside: by a node port, a load balancer, or external addresses.
fn is_externally_accessible(service: &Value) -> bool {
    let kind = Type::of(service);
    kind.is_external() || (kind == Type::ClusterIp && !texts(service, "externalIPs").is_empty())
}

fn needs_health_check_port(service: &Value) -> bool {
    Type::of(service) == Type::LoadBalancer && text(service, "externalTrafficPolicy") == "Local"
}

/// Fills in what is not said.
pub fn defaults(service: &mut Value) {
    let external = {
        set_default(object::child(service, "spec"), "type", "ClusterIP");
        is_externally_accessible(service)
    };
    let kind = Type::of(service);
    let spec = object::child(service, "spec");
    set_default(spec, "sessionAffinity", "None");
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => {
            spec.remove("sessionAffinityConfig");
        }
        Some("ClientIP") => {
            let mut config = spec.remove("sessionAffinityConfig").unwrap_or_else(|| json!({}));
            set_default(object::child(&mut config, "clientIP"), "timeoutSeconds", 10_800);
            spec.insert("sessionAffinityConfig".to_owned(), config);
        }
        _ => {}
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        port_defaults(object::fields(port));
    }
    if kind.needs_cluster_ip() {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    if external {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == Type::LoadBalancer {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
    object::child(service, "status").entry("loadBalancer").or_insert_with(|| json!({}));
}

fn port_defaults(port: &mut Map<String, Value>) {
    set_default(port, "protocol", "TCP");
    let number = port.get("port").cloned().unwrap_or(Value::Null);
    let target = port.get("targetPort");
    if target.is_none_or(|target| target == &json!(0) || target == &json!("")) && !number.is_null() {
        port.insert("targetPort".to_owned(), number);
    }
    // 0 means unset on the wire.
    if port.get("nodePort") == Some(&json!(0)) {
        port.remove("nodePort");
    }
}

fn invalid_policy(service: &Value, detail: &str) -> Cause {
    Cause::invalid("spec.ipFamilyPolicy", text(service, "ipFamilyPolicy"), detail)
}

#[cfg(test)]
mod tests;
