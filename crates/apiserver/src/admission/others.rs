//! Defaults and rules of the smaller kinds.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::service::special_problem;
use crate::error::{Cause, Problem};
use crate::names;
use crate::object::{self, set_default};
use crate::store::allocations::ranges;

/// As the real server: a map or Secret holds at most so many bytes.
const DATA_BYTES: usize = 1 << 20;
const ENDPOINTS_PER_SLICE: usize = 1000;

/// Fills in what an object of a smaller kind does not say.
pub fn defaults(kind: &str, value: &mut Value) {
    match kind {
        "Namespace" => {
            let name = object::name(value).to_owned();
            object::child(object::metadata_value(value), "labels")
                .insert("kubernetes.io/metadata.name".to_owned(), name.into());
            let terminating = object::is_terminating(value);
            let status = object::child(value, "status");
            set_default(status, "phase", if terminating { "Terminating" } else { "Active" });
        }
        "Secret" => secret_defaults(value),
        "EndpointSlice" => {
            let ports = object::fields(value).get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                let port = object::fields(port);
                set_default(port, "name", "");
                set_default(port, "protocol", "TCP");
            }
        }
        "Endpoints" => {
            let subsets = object::fields(value).get_mut("subsets").and_then(Value::as_array_mut);
            for subset in subsets.into_iter().flatten() {
                let ports = object::fields(subset).get_mut("ports").and_then(Value::as_array_mut);
                for port in ports.into_iter().flatten() {
                    set_default(object::fields(port), "protocol", "TCP");
                }
            }
        }
        "NetworkPolicy" => policy_defaults(value),
        "IPAddressPool" => {
            let spec = object::child(value, "spec");
            set_default(spec, "autoAssign", true);
            set_default(spec, "avoidBuggyIPs", false);
        }
        _ => {}
    }
}

/// Only at creation: what holds a Namespace until its content is gone.
pub fn namespace_finalizer(value: &mut Value) {
    object::child(value, "spec").insert("finalizers".to_owned(), json!(["kubernetes"]));
}

fn secret_defaults(value: &mut Value) {
    let fields = object::fields(value);
    set_default(fields, "type", "Opaque");
    if let Some(Value::Object(plain)) = fields.remove("stringData") {
        let data = object::child(value, "data");
        for (key, text) in plain {
            data.insert(key, STANDARD.encode(text.as_str().unwrap_or("")).into());
        }
    }
}

fn policy_defaults(value: &mut Value) {
    let spec = object::child(value, "spec");
    set_default(spec, "podSelector", json!({}));
    let types = if spec.contains_key("egress") { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    set_default(spec, "policyTypes", types);
    for direction in ["ingress", "egress"] {
        for rule in spec.get_mut(direction).and_then(Value::as_array_mut).into_iter().flatten() {
            let ports = object::fields(rule).get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                set_default(object::fields(port), "protocol", "TCP");
            }
        }
    }
}

/// What is wrong with an object of a smaller kind.
pub fn validate(kind: &str, value: &Value) -> Vec<Cause> {
    match kind {
        "ConfigMap" => data(value, &["data", "binaryData"], false),
        "Secret" => data(value, &["data"], true),
        "EndpointSlice" => slice(value),
        "Endpoints" => endpoints(value),
        "ServiceCIDR" => service_cidr(value),
        _ => Vec::new(),
    }
}

fn data(value: &Value, maps: &[&str], encoded: bool) -> Vec<Cause> {
    let (mut causes, mut size) = (Vec::new(), 0);
    for map in maps {
        for (key, text) in object::at(value, &[map]).and_then(Value::as_object).into_iter().flatten() {
            let path = format!("{map}[{key}]");
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if key.is_empty() || key.len() > 253 || !key.chars().all(plain) || matches!(key.as_str(), "." | "..") {
                let detail = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
                    'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                causes.push(Cause::invalid(path.as_str(), key.as_str(), detail));
            }
            let text = text.as_str().unwrap_or("");
            if (encoded || *map == "binaryData") && STANDARD.decode(text).is_err() {
                causes.push(Cause::invalid(path, text, "illegal base64 data"));
            }
            size += text.len();
        }
    }
    if size > DATA_BYTES {
        causes.push(Cause::new("", Problem::TooLong(DATA_BYTES)));
    }
    causes
}

fn slice(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let family = object::text(value, &["addressType"]).unwrap_or("");
    match family {
        "" => causes.push(Cause::required("addressType", "")),
        "IPv4" | "IPv6" | "FQDN" => {}
        other => causes.push(Cause::not_supported("addressType", other, &["FQDN", "IPv4", "IPv6"])),
    }
    let endpoints = object::items(value, &["endpoints"]);
    if endpoints.len() > ENDPOINTS_PER_SLICE {
        let problem = Problem::TooMany { actual: endpoints.len(), limit: ENDPOINTS_PER_SLICE };
        causes.push(Cause::new("endpoints", problem));
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{index}].addresses");
        let addresses = object::items(endpoint, &["addresses"]);
        if addresses.is_empty() {
            causes.push(Cause::required(path.as_str(), "must contain at least 1 address"));
        }
        for (place, address) in addresses.iter().enumerate() {
            let text = address.as_str().unwrap_or("");
            let problem = match (family, text.parse::<IpAddr>()) {
                ("IPv4", Ok(address @ IpAddr::V4(_))) | ("IPv6", Ok(address @ IpAddr::V6(_))) => {
                    special_problem(address).map(str::to_owned)
                }
                ("", _) => None,
                ("IPv4", _) => Some("must be a valid IPv4 address".to_owned()),
                ("IPv6", _) => Some("must be a valid IPv6 address".to_owned()),
                _ => names::subdomain_problem(text),
            };
            causes.extend(problem.map(|problem| Cause::invalid(format!("{path}[{place}]"), text, problem)));
        }
    }
    slice_ports(value, &mut causes);
    causes
}

fn slice_ports(value: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, port) in object::items(value, &["ports"]).iter().enumerate() {
        let name = object::text(port, &["name"]).unwrap_or("");
        if let Some(problem) = (!name.is_empty()).then(|| names::label_problem(name)).flatten() {
            causes.push(Cause::invalid(format!("ports[{index}].name"), name, problem));
        }
        if !seen.insert(name) {
            causes.push(Cause::new(format!("ports[{index}].name"), Problem::Duplicate(name.into())));
        }
        let protocol = object::text(port, &["protocol"]).unwrap_or("");
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            let protocols = ["SCTP", "TCP", "UDP"];
            causes.push(Cause::not_supported(format!("ports[{index}].protocol"), protocol, &protocols));
        }
    }
}

fn endpoints(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, subset) in object::items(value, &["subsets"]).iter().enumerate() {
        for key in ["addresses", "notReadyAddresses"] {
            for (place, address) in object::items(subset, &[key]).iter().enumerate() {
                let text = object::text(address, &["ip"]).unwrap_or("");
                let problem = match text.parse::<IpAddr>() {
                    Ok(address) => special_problem(address),
                    Err(_) => Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
                };
                let path = format!("subsets[{index}].{key}[{place}].ip");
                causes.extend(problem.map(|problem| Cause::invalid(path, text, problem)));
            }
        }
    }
    causes
}

fn service_cidr(value: &Value) -> Vec<Cause> {
    let cidrs = object::items(value, &["spec", "cidrs"]);
    if cidrs.is_empty() {
        return vec![Cause::required("spec.cidrs", "at least one CIDR required")];
    }
    if cidrs.len() > 2 {
        let detail = "may only hold up to 2 values";
        return vec![Cause::invalid("spec", object::at(value, &["spec"]).cloned().unwrap_or(Value::Null), detail)];
    }
    let mut causes = Vec::new();
    for (index, cidr) in cidrs.iter().enumerate() {
        let text = cidr.as_str().unwrap_or("");
        let problem = match text.parse::<IpNet>() {
            Err(_) => Some("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
            Ok(net) if net.trunc() != net => Some("must not have bits set beyond the prefix length"),
            Ok(_) => None,
        };
        causes.extend(problem.map(|problem| Cause::invalid(format!("spec.cidrs[{index}]"), text, problem)));
    }
    causes
}

/// What an object of a smaller kind can't become.
pub fn validate_update(kind: &str, old: &Value, value: &Value) -> Vec<Cause> {
    match kind {
        "ConfigMap" | "Secret" => immutable_data(kind, old, value),
        "EndpointSlice" => {
            let family = |value: &Value| object::text(value, &["addressType"]).unwrap_or("").to_owned();
            if family(old) == family(value) {
                return Vec::new();
            }
            vec![Cause::invalid("addressType", family(value), "field is immutable")]
        }
        "ServiceCIDR" if !ranges_may_become(old, value) => {
            let cidrs = object::at(value, &["spec", "cidrs"]).cloned().unwrap_or(Value::Null);
            vec![Cause::invalid("spec.cidrs", cidrs, "field is immutable")]
        }
        _ => Vec::new(),
    }
}

/// What a ServiceCIDR may become: a second family may be added, nothing else may change.
fn ranges_may_become(old: &Value, new: &Value) -> bool {
    let (old, new) = (ranges(old), ranges(new));
    new.starts_with(&old) && (new.len() == old.len() || old.len() == 1)
}

fn immutable_data(kind: &str, old: &Value, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if kind == "Secret" && old.get("type") != value.get("type") {
        causes.push(Cause::invalid("type", value.get("type").cloned().unwrap_or(Value::Null), "field is immutable"));
    }
    if old.get("immutable") == Some(&Value::Bool(true)) {
        for key in ["immutable", "data", "binaryData"] {
            if old.get(key) != value.get(key) {
                causes.push(Cause::forbidden(key, "field is immutable when `immutable` is set"));
            }
        }
    }
    causes
}
