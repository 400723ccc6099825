//! Pure. The Endpoints object of a Service: its first family only, terminating pods left out, at most 1,000 addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use signpost_core::object::Family;

use crate::endpoint_slices::desired::{PortKey, families, hostname, ports, publishes_not_ready, target};
use crate::endpoint_slices::plan::{MANAGED_BY as SLICE_MANAGED_BY, SERVICE_NAME, TRIGGER_TIME, labels};
use crate::pods;

/// The label that says who keeps an Endpoints object.
pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// What this controller puts there.
pub const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MAX_ADDRESSES: usize = 1000;

/// Whether this controller keeps an Endpoints object.
pub fn is_managed(endpoints: &Endpoints) -> bool {
    endpoints.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

/// The object as it should be, if it is not so already.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    existing: Option<&Endpoints>,
    trigger: Option<Timestamp>,
) -> Option<Endpoints> {
    let family = families(service)[0];
    let (subsets, truncated) = subsets(service, family, pods);
    let mut labels = labels(service);
    labels.remove(SERVICE_NAME);
    labels.remove(SLICE_MANAGED_BY);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if let Some(existing) = existing {
        let same = existing.subsets.as_deref().unwrap_or_default() == subsets
            && existing.metadata.labels.as_ref() == Some(&labels);
        if same {
            return None;
        }
    }
    let mut wanted = existing.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            namespace: service.metadata.namespace.clone(),
            name: service.metadata.name.clone(),
            ..ObjectMeta::default()
        },
        subsets: None,
    });
    wanted.metadata.labels = Some(labels);
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    for (key, value) in [
        (TRIGGER_TIME, trigger.map(|time| time.to_string())),
        (OVER_CAPACITY, truncated.then(|| "truncated".to_owned())),
    ] {
        match value {
            Some(value) => annotations.insert(key.to_owned(), value),
            None => annotations.remove(key),
        };
    }
    wanted.subsets = (!subsets.is_empty()).then_some(subsets);
    Some(wanted)
}

/// Addresses with the same ports together, and whether some were left out.
fn subsets(service: &Service, family: Family, pods: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let publishes_all = publishes_not_ready(service);
    let mut found: Vec<(bool, IpAddr, &Arc<Pod>)> = pods
        .iter()
        .filter(|pod| !pods::is_finished(pod) && (publishes_all || !pods::is_terminating(pod)))
        .filter_map(|pod| {
            let address = pods::addresses(pod).into_iter().find(|address| Family::of(*address) == family)?;
            Some((!(publishes_all || pods::is_ready(pod)), address, pod))
        })
        .collect();
    // Ready ones first: they are kept when there are too many.
    found.sort_by(|a, b| (a.0, a.1, &a.2.metadata.uid).cmp(&(b.0, b.1, &b.2.metadata.uid)));
    let truncated = found.len() > MAX_ADDRESSES;
    found.truncate(MAX_ADDRESSES);

    let mut by_ports: BTreeMap<Vec<PortKey>, EndpointSubset> = BTreeMap::new();
    for (not_ready, address, pod) in found {
        let ports = ports(service, pod);
        if ports.is_empty() && !service.spec.as_ref().is_some_and(|spec| spec.ports.as_ref().is_none_or(Vec::is_empty))
        {
            continue;
        }
        let entry = EndpointAddress {
            ip: address.to_string(),
            hostname: hostname(service, pod),
            node_name: pods::node(pod).map(str::to_owned),
            target_ref: Some(target(pod)),
        };
        let subset = by_ports.entry(ports).or_default();
        let list = if not_ready { &mut subset.not_ready_addresses } else { &mut subset.addresses };
        list.get_or_insert_default().push(entry);
    }
    let subsets = by_ports.into_iter().map(|(ports, mut subset)| {
        subset.ports = (!ports.is_empty()).then(|| ports.iter().map(port).collect());
        subset
    });
    (subsets.collect(), truncated)
}

fn port(key: &PortKey) -> EndpointPort {
    EndpointPort {
        name: (!key.name.is_empty()).then(|| key.name.clone()),
        protocol: Some(key.protocol.clone()),
        port: key.port.unwrap_or_default(),
        app_protocol: key.app_protocol.clone(),
    }
}
