//! Pure. The rules for a Service's specification.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::allocate::mismatched;
use super::families::family_of;
use super::{Type, is_externally_accessible, is_headless, needs_health_check_port, ports, text, texts};
use crate::error::{Cause, Problem};
use crate::names;
use crate::object;

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";
const NOT_EXTERNAL_NAME: &str = "may not be set for ExternalName services";
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";

/// What is wrong with a Service.
pub fn validate(service: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let kind = Type::of(service);
    by_type(kind, service, &mut causes);
    all_ports(service, &mut causes);
    causes.extend(names::labels("spec.selector", object::at(service, &["spec", "selector"])));
    affinity(service, &mut causes);
    cluster_addresses(service, &mut causes);
    external_addresses(service, &mut causes);
    if kind == Type::Unknown {
        let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
        causes.push(Cause::not_supported("spec.type", text(service, "type"), &types));
    }
    node_ports(kind, service, &mut causes);
    duplicate_ports(service, &mut causes);
    load_balancer(service, &mut causes);
    external_policy(service, &mut causes);
    internal_policies(service, &mut causes);
    causes
}

fn by_type(kind: Type, service: &Value, causes: &mut Vec<Cause>) {
    if ports(service).is_empty() && !is_headless(service) && kind != Type::ExternalName {
        causes.push(Cause::required("spec.ports", ""));
    }
    match kind {
        Type::LoadBalancer | Type::NodePort if is_headless(service) => {
            let name = text(service, "type");
            let detail = format!("may not be set to 'None' for {name} services");
            causes.push(Cause::invalid("spec.clusterIPs[0]", "None", detail));
        }
        Type::ExternalName => {
            for key in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                let set = object::at(service, &["spec", key]).is_some_and(|value| value != &json!([]));
                if set {
                    causes.push(Cause::forbidden(format!("spec.{key}"), NOT_EXTERNAL_NAME));
                }
            }
            let name = text(service, "externalName");
            let bare = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                causes.push(Cause::required("spec.externalName", ""));
            } else if let Some(problem) = names::subdomain_problem(bare) {
                causes.push(Cause::invalid("spec.externalName", bare, problem));
            }
        }
        _ => {}
    }
}

fn all_ports(service: &Value, causes: &mut Vec<Cause>) {
    let all = ports(service);
    let mut names = BTreeSet::new();
    for (index, port) in all.iter().enumerate() {
        one_port(port, &format!("spec.ports[{index}]"), all.len() > 1, &mut names, causes);
    }
}

fn node_ports(kind: Type, service: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports(service).iter().enumerate() {
        let Some(number) = object::number(port, &["nodePort"]).filter(|&number| number != 0) else {
            continue;
        };
        let path = format!("spec.ports[{index}].nodePort");
        if kind == Type::ClusterIp {
            causes.push(Cause::forbidden(path, "may not be used when `type` is 'ClusterIP'"));
        } else if !seen.insert((object::text(port, &["protocol"]), number)) {
            causes.push(Cause::new(path, Problem::Duplicate(number.into())));
        } else if !(0..=65_535).contains(&number) {
            causes.push(Cause::invalid(path, number, PORT_RANGE));
        }
    }
}

fn duplicate_ports(service: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports(service).iter().enumerate() {
        let protocol = object::text(port, &["protocol"]).unwrap_or("");
        let number = object::number(port, &["port"]).unwrap_or(0);
        if !seen.insert((protocol, number)) {
            let item = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            causes.push(Cause::new(format!("spec.ports[{index}]"), Problem::DuplicateItem(item)));
        }
    }
}

fn one_port<'a>(port: &'a Value, path: &str, several: bool, names: &mut BTreeSet<&'a str>, causes: &mut Vec<Cause>) {
    let name = object::text(port, &["name"]).unwrap_or("");
    if name.is_empty() {
        if several {
            causes.push(Cause::required(format!("{path}.name"), ""));
        }
    } else {
        causes.extend(names::label_problem(name).map(|it| Cause::invalid(format!("{path}.name"), name, it)));
        if !names.insert(name) {
            causes.push(Cause::new(format!("{path}.name"), Problem::Duplicate(name.into())));
        }
    }
    let number = object::number(port, &["port"]).unwrap_or(0);
    if !(1..=65_535).contains(&number) {
        causes.push(Cause::invalid(format!("{path}.port"), number, PORT_RANGE));
    }
    match object::text(port, &["protocol"]).unwrap_or("") {
        "" => causes.push(Cause::required(format!("{path}.protocol"), "")),
        "TCP" | "UDP" | "SCTP" => {}
        other => causes.push(Cause::not_supported(format!("{path}.protocol"), other, &["SCTP", "TCP", "UDP"])),
    }
    match port.get("targetPort") {
        Some(Value::String(name)) => {
            if let Some(problem) = names::port_name_problem(name) {
                causes.push(Cause::invalid(format!("{path}.targetPort"), name.as_str(), problem));
            }
        }
        Some(target) if !target.as_i64().is_some_and(|target| (1..=65_535).contains(&target)) => {
            causes.push(Cause::invalid(format!("{path}.targetPort"), target.clone(), PORT_RANGE));
        }
        _ => {}
    }
    if let Some(protocol) = object::text(port, &["appProtocol"])
        && let Some(problem) = names::qualified_problem(protocol)
    {
        causes.push(Cause::invalid(format!("{path}.appProtocol"), protocol, problem));
    }
}

fn affinity(service: &Value, causes: &mut Vec<Cause>) {
    match text(service, "sessionAffinity") {
        "None" => {}
        "ClientIP" => {
            let path = ["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            let timeout = object::number(service, &path).unwrap_or(0);
            if !(1..=86_400).contains(&timeout) {
                let detail = "must be greater than 0 and less than 86400";
                causes.push(Cause::invalid(path.join("."), timeout, detail));
            }
        }
        other => causes.push(Cause::not_supported("spec.sessionAffinity", other, &["ClientIP", "None"])),
    }
}

/// `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` by themselves and among each other.
fn cluster_addresses(service: &Value, causes: &mut Vec<Cause>) {
    if Type::of(service) == Type::ExternalName {
        return;
    }
    let policy = text(service, "ipFamilyPolicy");
    if !matches!(policy, "" | "SingleStack" | "PreferDualStack" | "RequireDualStack") {
        let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        causes.push(Cause::not_supported("spec.ipFamilyPolicy", policy, &policies));
    }
    let mut seen = BTreeSet::new();
    for (index, family) in texts(service, "ipFamilies").into_iter().enumerate() {
        let path = format!("spec.ipFamilies[{index}]");
        if !matches!(family, "IPv4" | "IPv6") {
            causes.push(Cause::not_supported(path, family, &["IPv4", "IPv6"]));
        } else if !seen.insert(family) {
            causes.push(Cause::new(path, Problem::Duplicate(family.into())));
        }
    }
    let (first, all) = (text(service, "clusterIP"), texts(service, "clusterIPs"));
    let list = || json!(all);
    if !first.is_empty() && all.first().is_some_and(|address| *address != first) {
        causes.push(Cause::invalid("spec.clusterIPs", list(), "first value must match `clusterIP`"));
    }
    if first.is_empty() && !all.is_empty() {
        causes.push(Cause::invalid("spec.clusterIPs", list(), "must be empty when `clusterIP` is not specified"));
    }
    if all.len() > 2 {
        causes.push(Cause::invalid("spec.clusterIPs", list(), "may only hold up to 2 values"));
    }
    for (index, address) in all.iter().enumerate() {
        let path = format!("spec.clusterIPs[{index}]");
        match *address {
            "None" if all.len() > 1 => {
                causes.push(Cause::invalid(path, "None", "'None' must be the first and only value"));
            }
            "None" => {}
            address => causes.extend(address_problem(address).map(|problem| Cause::invalid(path, address, problem))),
        }
    }
    if all.len() == 2 && all[0] != "None" && family_of(all[0]) == family_of(all[1]) {
        causes.push(Cause::invalid("spec.clusterIPs", list(), "may specify no more than one IP for each IP family"));
    }
    if let Some((index, detail)) = mismatched(service) {
        causes.push(Cause::invalid(format!("spec.clusterIPs[{index}]"), all[index], detail));
    }
}

fn address_problem(address: &str) -> Option<&'static str> {
    address.parse::<IpAddr>().is_err().then_some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
}

/// Addresses that mean something else to every host.
pub(in crate::admission) fn special_problem(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let multicast = match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] == 0xff02,
    };
    if address.is_unspecified() {
        Some(if address.is_ipv4() { "may not be unspecified (0.0.0.0)" } else { "may not be unspecified (::)" })
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if multicast {
        Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    } else {
        None
    }
}

fn external_addresses(service: &Value, causes: &mut Vec<Cause>) {
    for (index, address) in texts(service, "externalIPs").into_iter().enumerate() {
        let problem = match address.parse::<IpAddr>() {
            Ok(parsed) => special_problem(parsed),
            Err(_) => address_problem(address),
        };
        causes.extend(problem.map(|problem| Cause::invalid(format!("spec.externalIPs[{index}]"), address, problem)));
    }
}

fn one_of(service: &Value, key: &str, allowed: &[&str]) -> Option<Cause> {
    let value = text(service, key);
    let fits = value.is_empty() || allowed.contains(&value);
    (!fits).then(|| Cause::not_supported(format!("spec.{key}"), value, allowed))
}

fn external_policy(service: &Value, causes: &mut Vec<Cause>) {
    if is_externally_accessible(service) {
        causes.extend(one_of(service, "externalTrafficPolicy", &["Cluster", "Local"]));
    } else if !text(service, "externalTrafficPolicy").is_empty() {
        let (value, detail) =
            (text(service, "externalTrafficPolicy"), "may only be set for externally-accessible services");
        causes.push(Cause::invalid("spec.externalTrafficPolicy", value, detail));
    }
    let health = object::number(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
    if !(0..=65_535).contains(&health) {
        causes.push(Cause::invalid("spec.healthCheckNodePort", health, PORT_RANGE));
    }
    if health != 0 && !needs_health_check_port(service) {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        causes.push(Cause::invalid("spec.healthCheckNodePort", health, detail));
    }
}

fn internal_policies(service: &Value, causes: &mut Vec<Cause>) {
    causes.extend(one_of(service, "internalTrafficPolicy", &["Cluster", "Local"]));
    causes.extend(one_of(service, "trafficDistribution", &["PreferClose", "PreferSameNode", "PreferSameZone"]));
}

fn load_balancer(service: &Value, causes: &mut Vec<Cause>) {
    let is = Type::of(service) == Type::LoadBalancer;
    // The capital is the real server's.
    let path = "spec.LoadBalancerSourceRanges";
    let ranges = texts(service, "loadBalancerSourceRanges");
    if !is && !ranges.is_empty() {
        causes.push(Cause::forbidden(path, ONLY_LOAD_BALANCER));
    }
    for (index, range) in ranges.into_iter().enumerate().map(|(index, range)| (index, range.trim())) {
        if range.parse::<IpNet>().is_err() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            causes.push(Cause::invalid(format!("{path}[{index}]"), range, detail));
        }
    }
    for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if !is && object::at(service, &["spec", key]).is_some() {
            causes.push(Cause::forbidden(format!("spec.{key}"), ONLY_LOAD_BALANCER));
        }
    }
    if is && object::at(service, &["spec", "allocateLoadBalancerNodePorts"]).is_none() {
        causes.push(Cause::required("allocateLoadBalancerNodePorts", ""));
    }
}

/// What a Service can't become.
pub fn validate_update(old: &Value, service: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let stays = Type::of(old).needs_cluster_ip() && Type::of(service).needs_cluster_ip();
    if !stays {
        return causes;
    }
    let (before, after) = (texts(old, "clusterIPs"), texts(service, "clusterIPs"));
    if let Some(first) = before.first().filter(|first| !first.is_empty()) {
        if after.is_empty() {
            causes.push(Cause::invalid("spec.clusterIPs[0]", json!(after), "primary clusterIP can not be unset"));
        } else if after[0] != *first {
            causes.push(Cause::invalid("spec.clusterIPs[0]", json!(after), "may not change once set"));
        }
    }
    let (before_families, after_families) = (texts(old, "ipFamilies"), texts(service, "ipFamilies"));
    if let (Some(first), Some(now)) = (before_families.first(), after_families.first())
        && first != now
    {
        causes.push(Cause::invalid("spec.ipFamilies[0]", json!(after_families), "may not change once set"));
    }
    if before.len() == 2 && after.len() == 2 && before[1] != after[1] {
        causes.push(Cause::invalid("spec.clusterIPs[1]", json!(after), "may not change once set"));
    }
    let class = |service| object::at(service, &["spec", "loadBalancerClass"]).cloned();
    if Type::of(old) == Type::LoadBalancer && Type::of(service) == Type::LoadBalancer && class(old) != class(service) {
        let value = class(service).unwrap_or(Value::Null);
        causes.push(Cause::invalid("spec.loadBalancerClass", value, "may not change once set"));
    }
    let health = |service| object::number(service, &["spec", "healthCheckNodePort"]);
    let both_need = needs_health_check_port(old) && needs_health_check_port(service);
    if both_need && health(old) != health(service) {
        causes.push(Cause::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
    causes
}
