//! Pure. From a Service and its pods: the endpoints there should be, by family and by ports.
//!
//! ```text
//! pod ──(has an address, is not finished)──▶ endpoint ──▶ by family of its address ──▶ by the ports it resolves
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, ForNode, ForZone};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use signpost_core::object::Family;

use crate::nodes::NodeFacts;
use crate::pods;

/// Who an endpoint is: it stays the same one while its conditions change.
pub type EndpointKey = (IpAddr, String);

/// The ports of a slice, comparable: all its endpoints have these.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    /// Name; empty if it has none.
    pub name: String,
    /// Protocol.
    pub protocol: String,
    /// Number; `None` in a foreign slice only ("all ports").
    pub port: Option<i32>,
    /// Application protocol.
    pub app_protocol: Option<String>,
}

/// Endpoints by ports; each set of ports gets slices of its own.
pub type Groups = BTreeMap<Vec<PortKey>, BTreeMap<EndpointKey, Endpoint>>;

/// Whether this controller makes endpoints for a Service: it has a selector, and is no ExternalName.
pub fn is_ours(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        spec.type_.as_deref() != Some("ExternalName") && spec.selector.as_ref().is_some_and(|pairs| !pairs.is_empty())
    })
}

/// The families that a Service has slices of: its `ipFamilies`, or those of its addresses, or IPv4.
pub fn families(service: &Service) -> Vec<Family> {
    let spec = service.spec.as_ref();
    let listed = spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let mut families: Vec<Family> = listed
        .iter()
        .filter_map(|family| match family.as_str() {
            "IPv4" => Some(Family::Ipv4),
            "IPv6" => Some(Family::Ipv6),
            _ => None,
        })
        .collect();
    if families.is_empty() {
        let addresses = spec.and_then(|spec| spec.cluster_ips.as_deref()).unwrap_or_default();
        families = addresses.iter().filter_map(|address| address.parse().ok()).map(Family::of).collect();
    }
    if families.is_empty() {
        families.push(Family::Ipv4);
    }
    families.dedup();
    families
}

/// The endpoints of one family. Pods on a node that does not exist (`node` gives `None`) are left out unless the Service
/// publishes everything.
pub fn groups(
    service: &Service,
    family: Family,
    pods: &[Arc<Pod>],
    node: &dyn Fn(&str) -> Option<NodeFacts>,
) -> Groups {
    let mut groups = Groups::new();
    for pod in pods.iter().filter(|pod| !pods::is_finished(pod)) {
        let Some(address) = pods::addresses(pod).into_iter().find(|address| Family::of(*address) == family) else {
            continue;
        };
        let facts = pods::node(pod).map(node);
        if matches!(facts, Some(None)) && !publishes_not_ready(service) {
            continue;
        }
        let endpoint = endpoint(service, pod, address, facts.flatten().and_then(|facts| facts.zone));
        let key = (address, pod.metadata.uid.clone().unwrap_or_default());
        groups.entry(ports(service, pod)).or_default().insert(key, endpoint);
    }
    groups
}

fn endpoint(service: &Service, pod: &Pod, address: IpAddr, zone: Option<String>) -> Endpoint {
    let serving = pods::is_ready(pod);
    let terminating = pods::is_terminating(pod);
    let ready = publishes_not_ready(service) || (serving && !terminating);
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: if ready { hints(service, pod, zone.as_deref()) } else { None },
        hostname: hostname(service, pod),
        node_name: pods::node(pod).map(str::to_owned),
        target_ref: Some(target(pod)),
        zone,
        ..Endpoint::default()
    }
}

/// Whom `trafficDistribution` would have use an endpoint (KEP-3015).
fn hints(service: &Service, pod: &Pod, zone: Option<&str>) -> Option<EndpointHints> {
    let distribution = service.spec.as_ref().and_then(|spec| spec.traffic_distribution.as_deref())?;
    let zones = zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let hints = match distribution {
        "PreferClose" | "PreferSameZone" => EndpointHints { for_zones: zones, for_nodes: None },
        "PreferSameNode" => EndpointHints {
            for_zones: zones,
            for_nodes: pods::node(pod).map(|node| vec![ForNode { name: node.to_owned() }]),
        },
        _ => return None,
    };
    (hints.for_zones.is_some() || hints.for_nodes.is_some()).then_some(hints)
}

/// The reference from an endpoint to its pod.
pub fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The pod's host name, when the Service is the one that its `subdomain` names: DNS then answers for it.
pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.as_ref().filter(|hostname| !hostname.is_empty())?;
    (spec.subdomain.is_some() && spec.subdomain == service.metadata.name).then(|| hostname.clone())
}

/// `publishNotReadyAddresses`.
pub fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false)
}

/// The Service's ports as this pod has them: one whose name the pod does not know is left out.
pub fn ports(service: &Service, pod: &Pod) -> Vec<PortKey> {
    let listed = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let mut ports: Vec<PortKey> = listed
        .iter()
        .filter_map(|port| {
            Some(PortKey {
                name: port.name.clone().unwrap_or_default(),
                protocol: protocol(port).to_owned(),
                port: Some(target_port(port, pod)?),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match port.target_port.as_ref() {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) if name.is_empty() => Some(port.port),
        Some(IntOrString::String(name)) => named_port(pod, name, protocol(port)),
    }
}

/// The number of a container port by name and protocol; side-cars (init containers that stay) have ports too.
fn named_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(stays);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter(|port| port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol)
        .map(|port| port.container_port)
        .next()
}

impl PortKey {
    /// From a slice's port.
    pub fn of(port: &EndpointPort) -> PortKey {
        PortKey {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: port.port,
            app_protocol: port.app_protocol.clone(),
        }
    }

    /// As a slice's port.
    pub fn to_port(&self) -> EndpointPort {
        EndpointPort {
            name: Some(self.name.clone()),
            protocol: Some(self.protocol.clone()),
            port: self.port,
            app_protocol: self.app_protocol.clone(),
        }
    }
}
