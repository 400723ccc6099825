//! Pure. An EndpointSlice of the API to the core's.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1 as api;
use signpost_core::object::{Endpoint, EndpointPort, EndpointSlice, Family, ObjectName};

use super::fields::{Fields, is_subdomain};
use super::{Problem, Quoted, SERVICE_NAME, is_foreign};

pub(super) fn convert(fields: &mut Fields, slice: &api::EndpointSlice) -> Option<EndpointSlice> {
    if is_foreign(&slice.metadata) {
        return None;
    }
    let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME))?;
    if service.is_empty() {
        return None;
    }
    if !is_subdomain(service) {
        let value = Quoted::new(service);
        fields.problem(format!("metadata.labels[{SERVICE_NAME}]"), Problem::BadName { value });
        return None;
    }
    let family = match slice.address_type.as_str() {
        "IPv4" => Family::Ipv4,
        "IPv6" => Family::Ipv6,
        "FQDN" => return None,
        other => {
            fields.problem("addressType", Problem::UnknownWord { value: Quoted::new(other), taken: "no address" });
            return None;
        }
    };
    let ports = ports(fields, slice.ports.as_deref().unwrap_or_default());
    let written = slice.endpoints.as_deref().unwrap_or_default();
    let endpoints =
        written.iter().enumerate().filter_map(|(index, written)| endpoint(fields, index, written, family)).collect();
    let reference = fields.reference();
    let namespace = reference.namespace.clone();
    Some(EndpointSlice {
        name: ObjectName { namespace: namespace.clone(), name: reference.name.clone() },
        service: ObjectName { namespace, name: service.as_str().into() },
        family,
        ports,
        endpoints,
    })
}

/// A port without a number means "all ports", which a Service port cannot lead to.
fn ports(fields: &mut Fields, written: &[api::EndpointPort]) -> Vec<EndpointPort> {
    let mut ports = Vec::with_capacity(written.len());
    for (index, port) in written.iter().enumerate() {
        let at = format!("ports[{index}]");
        let Some(number) = port.port else { continue };
        let (Some(name), Some(protocol), Some(port)) = (
            fields.port_name(format!("{at}.name"), port.name.as_deref()),
            fields.protocol(format!("{at}.protocol"), port.protocol.as_deref()),
            fields.port(format!("{at}.port"), number),
        ) else {
            continue;
        };
        ports.push(EndpointPort { name, protocol, port });
    }
    ports
}

fn endpoint(fields: &mut Fields, index: usize, written: &api::Endpoint, family: Family) -> Option<Endpoint> {
    let Some(text) = written.addresses.first() else {
        fields.problem(format!("endpoints[{index}].addresses"), Problem::Missing);
        return None;
    };
    let address = fields.address_of(format!("endpoints[{index}].addresses[0]"), text, family)?;
    let conditions = written.conditions.as_ref();
    let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
    let hints = written.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_deref()).unwrap_or_default();
    let zone_hints = names(zones.iter().map(|zone| zone.name.as_str()));
    let node_hints = names(nodes.iter().map(|node| node.name.as_str()));
    Some(Endpoint {
        address,
        ready,
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(ready),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        node: written.node_name.as_deref().filter(|name| !name.is_empty()).map(Into::into),
        zone_hints,
        node_hints,
    })
}

fn names<'a>(written: impl Iterator<Item = &'a str>) -> Vec<Arc<str>> {
    written.map(Into::into).collect()
}
