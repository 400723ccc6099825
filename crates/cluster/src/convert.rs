//! Pure. From the API's objects to the core's, with everything checked.
//!
//! The API server validates what it stores, but rules of validation differ between versions, and an object may come
//! from a server that checks less. So nothing is taken on trust here, and a fault costs as little as it can: a bad
//! endpoint is left out of its slice, a bad port out of its Service, and each is named in a [`Malformed`].

mod fields;
mod node;
mod service;
mod slice;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use k8s_openapi::api::networking::v1 as networking_v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use signpost_core::object::{EndpointSlice, Node, ObjectName, Service};

use crate::malformed::{FieldProblem, Malformed, ObjectReference, Problem, Quoted};
use fields::Fields;

/// Services and slices with this label, whatever its value, are another proxy's.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Services and slices with this label, whatever its value, have no address to serve.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// The annotation of a Service that names its scheduler in the mode IPVS.
pub const IPVS_SCHEDULER: &str = "signpost.dev/ipvs-scheduler";
/// The annotation of a Service that says what becomes of its TCP connections whose endpoint is gone: `leave`, `reset`, or a time such as
/// `30s` after which they are reset.
pub const TCP_WHEN_ENDPOINT_GONE: &str = "signpost.dev/tcp-when-endpoint-gone";
/// The annotation of a Service that has its connections which live long spread anew after a scale-up: `10%/s within 20%` closes at most
/// 10 % of them in a second until no backend has more than 20 % over its even share.
pub const REBALANCE: &str = "signpost.dev/rebalance";
/// The label that says which Service a slice belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// What an object of the API became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted<T> {
    /// The object; `None`: nothing here is for a node to serve.
    pub object: Option<T>,
    /// What was wrong with it.
    pub malformed: Option<Malformed>,
}

/// What a Node object says of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// The node.
    pub node: Node,
    /// Whether load balancers may send to it: it is not being deleted, not even by the autoscaler.
    pub eligible: bool,
}

/// A named set of ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidrs {
    /// The ServiceCIDR object's name.
    pub name: Arc<str>,
    /// Its ranges.
    pub cidrs: Vec<IpNet>,
}

/// A Service. `None` for ExternalName, headless ones, those without an address yet, and those of another proxy.
pub fn service(service: &core_v1::Service) -> Converted<Service> {
    let reference = reference("v1", "Service", &service.metadata);
    finish(reference, &service.metadata, |fields| service::convert(fields, service))
}

/// A slice. `None` for those of no Service, of another proxy, of headless Services, and of names instead of addresses.
pub fn slice(slice: &discovery_v1::EndpointSlice) -> Converted<EndpointSlice> {
    let reference = reference("discovery.k8s.io/v1", "EndpointSlice", &slice.metadata);
    finish(reference, &slice.metadata, |fields| slice::convert(fields, slice))
}

/// A node.
pub fn node(node: &core_v1::Node) -> Converted<NodeState> {
    let reference = reference("v1", "Node", &node.metadata);
    finish(reference, &node.metadata, |fields| node::convert(fields, node))
}

/// A range of cluster addresses.
pub fn service_cidr(cidr: &networking_v1::ServiceCIDR) -> Converted<ServiceCidrs> {
    let reference = reference("networking.k8s.io/v1", "ServiceCIDR", &cidr.metadata);
    finish(reference, &cidr.metadata, |fields| {
        let listed = cidr.spec.as_ref().and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default();
        let cidrs = fields.ranges("spec.cidrs", listed);
        Some(ServiceCidrs { name: fields.reference().name.clone(), cidrs })
    })
}

/// The name under which an object is known, checked or not: for its deletion.
pub fn object_name(metadata: &ObjectMeta) -> ObjectName {
    let text = |field: &Option<String>| field.as_deref().unwrap_or_default().into();
    ObjectName { namespace: text(&metadata.namespace), name: text(&metadata.name) }
}

/// How an Event names the object.
pub fn reference(api_version: &'static str, kind: &'static str, metadata: &ObjectMeta) -> ObjectReference {
    let ObjectName { namespace, name } = object_name(metadata);
    ObjectReference { api_version, kind, namespace, name, uid: metadata.uid.as_deref().unwrap_or_default().into() }
}

fn finish<T>(
    reference: ObjectReference,
    metadata: &ObjectMeta,
    convert: impl FnOnce(&mut Fields) -> Option<T>,
) -> Converted<T> {
    let mut fields = Fields::new(reference);
    let object = if fields.check_identity(metadata) { convert(&mut fields) } else { None };
    Converted { object, malformed: fields.into_malformed() }
}

fn is_foreign(metadata: &ObjectMeta) -> bool {
    metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(SERVICE_PROXY_NAME) || labels.contains_key(HEADLESS))
}

/// An address as Kubernetes reads it: leading zeros of an IPv4 byte are decimal, an IPv4-mapped IPv6 address is IPv4.
fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    // Objects from before Kubernetes 1.31 may hold 010.001.002.003.
    let mut bytes = [0u8; 4];
    let mut parts = text.split('.');
    for byte in &mut bytes {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 3 || !part.bytes().all(|c| c.is_ascii_digit()) {
            return None;
        }
        *byte = part.parse().ok()?;
    }
    if parts.next().is_some() { None } else { Some(IpAddr::from(bytes)) }
}

fn parse_range(text: &str) -> Option<IpNet> {
    let (address, length) = text.trim().split_once('/')?;
    let range = IpNet::new(parse_address(address)?, length.parse().ok()?).ok()?;
    Some(range.trunc())
}

#[cfg(test)]
mod tests;
