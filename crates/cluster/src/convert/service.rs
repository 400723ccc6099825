//! Pure. A Service of the API to one that a node serves.

use std::collections::HashSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use signpost_core::object::{Family, Ingress, ObjectName, Rebalance, Service, ServicePort, TrafficPolicy};
use signpost_core::scheduler::Scheduler;

use super::fields::Fields;
use super::{IPVS_SCHEDULER, Problem, Quoted, REBALANCE, TCP_WHEN_ENDPOINT_GONE, is_foreign};

/// `sessionAffinityConfig.clientIP.timeoutSeconds`, if unset.
const AFFINITY_TIMEOUT_S: u64 = 10_800;

pub(super) fn convert(fields: &mut Fields, service: &api::Service) -> Option<Service> {
    let spec = service.spec.as_ref()?;
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    if is_foreign(&service.metadata) || kind == "ExternalName" {
        return None;
    }
    let cluster_ips = cluster_ips(fields, spec)?;
    let outside = matches!(kind, "NodePort" | "LoadBalancer");
    let ports = ports(fields, spec.ports.as_deref().unwrap_or_default(), outside);
    let external_ips = fields.addresses("spec.externalIPs", spec.external_ips.as_deref().unwrap_or_default());
    let mut ingress = ingress(fields, service);
    let source_ranges = match spec.load_balancer_source_ranges.as_deref() {
        None | Some([]) => Vec::new(),
        Some(written) => {
            let ranges = fields.ranges("spec.loadBalancerSourceRanges", written);
            if ranges.is_empty() {
                fields.problem("spec.loadBalancerSourceRanges", Problem::NoUsableRange);
                ingress.clear();
            }
            ranges
        }
    };
    // The policy is for addresses that clients outside can have; the API server ignores it otherwise.
    let external_policy = if outside || !external_ips.is_empty() {
        fields.policy("spec.externalTrafficPolicy", spec.external_traffic_policy.as_deref())
    } else {
        TrafficPolicy::Cluster
    };
    let checked = kind == "LoadBalancer" && external_policy == TrafficPolicy::Local;
    let health_check_node_port: Option<NonZeroU16> = match spec.health_check_node_port {
        Some(port) if checked && port != 0 => fields.port("spec.healthCheckNodePort", port),
        _ => None,
    };
    let reference = fields.reference();
    Some(Service {
        name: ObjectName { namespace: reference.namespace.clone(), name: reference.name.clone() },
        cluster_ips,
        external_ips,
        ingress,
        source_ranges,
        ports,
        external_policy,
        internal_policy: fields.policy("spec.internalTrafficPolicy", spec.internal_traffic_policy.as_deref()),
        affinity: affinity(fields, spec),
        reset_after: reset_after(fields, service),
        rebalance: rebalance(fields, service),
        health_check_node_port,
        scheduler: scheduler(fields, &service.metadata),
    })
}

/// The kernel's scheduler that the Service asks for. One that is not known is told, and the node's own is taken.
fn scheduler(fields: &mut Fields, metadata: &ObjectMeta) -> Option<Scheduler> {
    let asked = metadata.annotations.as_ref()?.get(IPVS_SCHEDULER)?;
    let scheduler = asked.parse().ok();
    if scheduler.is_none() {
        let (field, value) = (format!("metadata.annotations[{IPVS_SCHEDULER}]"), Quoted::new(asked));
        fields.problem(field, Problem::UnknownWord { value, taken: "the node's own scheduler" });
    }
    scheduler
}

/// What becomes of TCP connections whose endpoint is gone.
fn reset_after(fields: &mut Fields, service: &api::Service) -> Option<Duration> {
    let asked = service.metadata.annotations.as_ref()?.get(TCP_WHEN_ENDPOINT_GONE)?;
    match asked.as_str() {
        "leave" => None,
        "reset" => Some(Duration::ZERO),
        written => {
            let time = time(written);
            if time.is_none() {
                let (field, value) = (format!("metadata.annotations[{TCP_WHEN_ENDPOINT_GONE}]"), Quoted::new(written));
                fields.problem(field, Problem::UnknownWord { value, taken: "leave" });
            }
            time
        }
    }
}

/// How connections that live long are spread anew. Whatever cannot be done as it is written is not done at all.
fn rebalance(fields: &mut Fields, service: &api::Service) -> Option<Rebalance> {
    let asked = service.metadata.annotations.as_ref()?.get(REBALANCE)?;
    let field = || format!("metadata.annotations[{REBALANCE}]");
    if asked == "off" {
        return None;
    }
    let Some(wish) = rate_and_bound(asked) else {
        fields.problem(field(), Problem::UnknownWord { value: Quoted::new(asked), taken: "off" });
        return None;
    };
    let affinity = service.spec.as_ref().and_then(|spec| spec.session_affinity.as_deref());
    if affinity == Some("ClientIP") {
        fields.problem(field(), Problem::RebalanceWithAffinity);
        return None;
    }
    Some(wish)
}

/// `10%/s within 20%`.
fn rate_and_bound(written: &str) -> Option<Rebalance> {
    let (rate, within) = written.strip_suffix('%')?.split_once("%/s within ")?;
    let number = |text: &str, least: u16, most: u16| {
        let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        (least..=most).contains(&number).then_some(number)
    };
    let rate_percent = u8::try_from(number(rate, 1, 100)?).ok()?;
    Some(Rebalance { within_percent: number(within, 0, 1_000)?, rate_percent })
}

/// A whole number with its unit, `s`, `m` or `h`, up to a day.
fn time(written: &str) -> Option<Duration> {
    let (number, unit) = written.split_at_checked(written.len().checked_sub(1)?)?;
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let number: u64 = number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))?;
    number.checked_mul(unit_s).filter(|seconds| *seconds <= 86_400).map(Duration::from_secs)
}

/// The cluster addresses, one of a family. `None`: headless, or none given out yet, or none usable.
fn cluster_ips(fields: &mut Fields, spec: &api::ServiceSpec) -> Option<Vec<IpAddr>> {
    let first = spec.cluster_ip.as_slice();
    let listed = match spec.cluster_ips.as_deref() {
        None | Some([]) => first,
        Some(listed) => listed,
    };
    if listed.is_empty() || listed.iter().any(|text| text.is_empty() || text == "None") {
        return None;
    }
    let mut kept: Vec<IpAddr> = Vec::with_capacity(listed.len());
    for address in fields.addresses("spec.clusterIPs", listed) {
        if kept.iter().any(|other| Family::of(*other) == Family::of(address)) {
            fields.problem("spec.clusterIPs", Problem::Duplicate { value: Quoted::new(&address.to_string()) });
        } else {
            kept.push(address);
        }
    }
    if kept.is_empty() {
        fields.problem("spec.clusterIPs", Problem::NothingLeft);
        return None;
    }
    Some(kept)
}

fn ports(fields: &mut Fields, written: &[api::ServicePort], outside: bool) -> Vec<ServicePort> {
    let mut ports = Vec::with_capacity(written.len());
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    for (index, port) in written.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        let (Some(name), Some(protocol), Some(number)) = (
            fields.port_name(format!("{at}.name"), port.name.as_deref()),
            fields.protocol(format!("{at}.protocol"), port.protocol.as_deref()),
            fields.port(format!("{at}.port"), port.port),
        ) else {
            continue;
        };
        if !names.insert(name.clone()) {
            fields.problem(format!("{at}.name"), Problem::Duplicate { value: Quoted::new(&name) });
            continue;
        }
        if !numbers.insert((protocol, number)) {
            let value = Quoted::new(&format!("{number}/{protocol}"));
            fields.problem(format!("{at}.port"), Problem::Duplicate { value });
            continue;
        }
        let node_port = match port.node_port {
            Some(number) if outside && number != 0 => fields.port(format!("{at}.nodePort"), number),
            _ => None,
        };
        ports.push(ServicePort { name, protocol, port: number, node_port });
    }
    ports
}

fn ingress(fields: &mut Fields, service: &api::Service) -> Vec<Ingress> {
    let written = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|balancer| balancer.ingress.as_deref())
        .unwrap_or_default();
    let mut ingress: Vec<Ingress> = Vec::with_capacity(written.len());
    for (index, entry) in written.iter().enumerate() {
        let at = format!("status.loadBalancer.ingress[{index}]");
        // One with a host name only is for DNS.
        let Some(text) = entry.ip.as_deref().filter(|text| !text.is_empty()) else { continue };
        let Some(address) = fields.address(format!("{at}.ip"), text) else { continue };
        let vip = match entry.ip_mode.as_deref() {
            None | Some("" | "VIP") => true,
            Some("Proxy") => false,
            Some(other) => {
                let value = Quoted::new(other);
                fields.problem(format!("{at}.ipMode"), Problem::UnknownWord { value, taken: "VIP" });
                true
            }
        };
        if ingress.iter().all(|other| other.address != address) {
            ingress.push(Ingress { address, vip });
        }
    }
    ingress
}

fn affinity(fields: &mut Fields, spec: &api::ServiceSpec) -> Option<Duration> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            let value = Quoted::new(other);
            fields.problem("spec.sessionAffinity", Problem::UnknownWord { value, taken: "None" });
            return None;
        }
    }
    let written = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| config.client_ip.as_ref())
        .and_then(|client_ip| client_ip.timeout_seconds);
    let timeout_s = match written {
        None => AFFINITY_TIMEOUT_S,
        Some(value) => u64::try_from(value).ok().filter(|value| (1..=86_400).contains(value)).unwrap_or_else(|| {
            fields.problem(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                Problem::TimeoutOutOfRange { value: value.into(), taken: AFFINITY_TIMEOUT_S },
            );
            AFFINITY_TIMEOUT_S
        }),
    };
    Some(Duration::from_secs(timeout_s))
}
