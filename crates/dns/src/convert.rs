//! Pure. From the API's objects to what the zone needs of them, with everything checked.
//!
//! The server that stores an object checks it too, by rules that differ between versions; what is not a DNS label or an
//! address is left out here, so that no name is ever made of it.

use std::net::IpAddr;

use hickory_proto::rr::Name;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use signpost_cluster::Told;
use signpost_cluster::convert::{SERVICE_NAME, object_name};
use signpost_core::object::ObjectName;

use crate::labels::is_label;
use crate::object::{Change, Endpoint, Kind, Pod, Port, Protocol, Service, Slice, StandsFor};

/// The older way to say `publishNotReadyAddresses`.
const TOLERATE_UNREADY: &str = "service.alpha.kubernetes.io/tolerate-unready-endpoints";

/// When the change of a pod or Service was made that a slice follows.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What the API says of Services.
pub fn services(told: Told<core_v1::Service>) -> Vec<Change> {
    changes(told, Kind::Service, service, Change::Service, Change::ServiceGone)
}

/// What the API says of slices.
pub fn slices(told: Told<discovery_v1::EndpointSlice>) -> Vec<Change> {
    changes(told, Kind::EndpointSlice, slice, Change::Slice, Change::SliceGone)
}

/// What the API says of namespaces.
pub fn namespaces(told: Told<core_v1::Namespace>) -> Vec<Change> {
    let read = |namespace: core_v1::Namespace| namespace.metadata.name.filter(|name| is_label(name));
    let gone = |name: ObjectName| Change::NamespaceGone(name.name.as_ref().into());
    changes(told, Kind::Namespace, read, |name| Change::Namespace(name.into()), gone)
}

/// What the API says of pods.
pub fn pods(told: Told<core_v1::Pod>) -> Vec<Change> {
    changes(told, Kind::Pod, pod, Change::Pod, Change::PodGone)
}

fn changes<K: kube::Resource, T>(
    told: Told<K>,
    kind: Kind,
    read: impl FnOnce(K) -> Option<T>,
    there: impl FnOnce(T) -> Change,
    gone: impl FnOnce(ObjectName) -> Change,
) -> Vec<Change> {
    vec![match told {
        Told::Reset => Change::Reset(kind),
        Told::Synced { .. } => Change::Synced(kind),
        Told::Bookmark { .. } => Change::Nothing,
        Told::Deleted { metadata, .. } | Told::Unreadable { metadata, .. } => gone(object_name(&metadata)),
        Told::Applied { object, .. } => {
            let name = object_name(object.meta());
            read(object).map_or_else(|| gone(name), there)
        }
    }]
}

/// The name, if it can stand in a DNS name.
fn checked_name(metadata: &ObjectMeta) -> Option<ObjectName> {
    let name = object_name(metadata);
    (is_label(&name.namespace) && is_label(&name.name)).then_some(name)
}

fn service(service: core_v1::Service) -> Option<Service> {
    let name = checked_name(&service.metadata)?;
    let tolerates =
        service.metadata.annotations.as_ref().and_then(|all| all.get(TOLERATE_UNREADY)).is_some_and(|v| v == "true");
    let spec = service.spec.unwrap_or_default();
    let publish_not_ready = tolerates || spec.publish_not_ready_addresses == Some(true);
    let stands_for = if spec.type_.as_deref() == Some("ExternalName") {
        spec.external_name.as_deref().and_then(external_name).map_or(StandsFor::Nothing, |n| StandsFor::Name(n.into()))
    } else if spec.cluster_ip.as_deref() == Some("None") {
        StandsFor::Endpoints
    } else {
        let listed = spec.cluster_ips.unwrap_or_default();
        let mut addresses: Vec<IpAddr> = listed.iter().filter_map(|text| address(text)).collect();
        if addresses.is_empty() {
            addresses.extend(spec.cluster_ip.as_deref().and_then(address));
        }
        let ports = spec.ports.unwrap_or_default();
        let port =
            |port: &core_v1::ServicePort| port_of(port.name.as_deref(), port.protocol.as_deref(), Some(port.port));
        match addresses.is_empty() {
            true => StandsFor::Nothing,
            false => StandsFor::ClusterIps { addresses, ports: ports.iter().filter_map(port).collect() },
        }
    };
    Some(Service { name, publish_not_ready, stands_for })
}

/// A name that looks like an address is none that DNS could find (Kubernetes leaves such a Service unresolved).
fn external_name(text: &str) -> Option<Name> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() || text.parse::<IpAddr>().is_ok() {
        return None;
    }
    Name::from_ascii(format!("{text}.")).ok()
}

fn slice(slice: discovery_v1::EndpointSlice) -> Option<Slice> {
    let name = object_name(&slice.metadata);
    let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?.clone();
    if !is_label(&name.namespace) || !is_label(&service) || !matches!(&*slice.address_type, "IPv4" | "IPv6") {
        return None;
    }
    let ipv4 = slice.address_type == "IPv4";
    let trigger = slice.metadata.annotations.as_ref().and_then(|all| all.get(TRIGGER_TIME));
    let triggered_ms = trigger.and_then(|at| at.parse::<Timestamp>().ok()).map(Timestamp::as_millisecond);
    let endpoints = slice.endpoints.unwrap_or_default();
    let endpoints = endpoints.into_iter().flat_map(|endpoint| {
        let label = |text: Option<String>| text.map(|t| t.to_ascii_lowercase()).filter(|t| is_label(t)).map(Into::into);
        let hostname: Option<Box<str>> = label(endpoint.hostname);
        let pod: Option<Box<str>> =
            label(endpoint.target_ref.filter(|to| to.kind.as_deref() == Some("Pod")).and_then(|to| to.name));
        let ready = endpoint.conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
        let addresses: Vec<IpAddr> =
            endpoint.addresses.iter().filter_map(|text| address(text)).filter(|a| a.is_ipv4() == ipv4).collect();
        addresses.into_iter().map(move |address| Endpoint {
            address,
            hostname: hostname.clone(),
            pod: pod.clone(),
            ready,
        })
    });
    let endpoints = endpoints.collect();
    let ports = slice.ports.unwrap_or_default();
    let port = |port: &discovery_v1::EndpointPort| port_of(port.name.as_deref(), port.protocol.as_deref(), port.port);
    let ports = ports.iter().filter_map(port).collect();
    Some(Slice { name, service: service.into(), endpoints, ports, triggered_ms })
}

fn pod(pod: core_v1::Pod) -> Option<Pod> {
    let name = object_name(&pod.metadata);
    let status = pod.status?;
    if !is_label(&name.namespace) || matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let listed = status.pod_ips.unwrap_or_default();
    let mut addresses: Vec<IpAddr> = listed.iter().filter_map(|ip| address(&ip.ip)).collect();
    if addresses.is_empty() {
        addresses.extend(status.pod_ip.as_deref().and_then(address));
    }
    (!addresses.is_empty()).then_some(Pod { name, addresses })
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn port_of(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Option<Port> {
    let protocol = match protocol {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return None,
    };
    let number = u16::try_from(number?).ok().filter(|number| *number > 0)?;
    let name = name.filter(|name| is_label(name)).unwrap_or_default().to_ascii_lowercase().into();
    Some(Port { name, protocol, number })
}
