//! Pure. From an Endpoints object and the slices that mirror it: what is to be written.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use signpost_core::object::Family;

use crate::endpoint_slices::desired::PortKey;
use crate::endpoint_slices::plan::{Actions, MANAGED_BY, SERVICE_NAME, address_type};
use crate::endpoints::plan::is_managed;
use crate::selector::Labels;

/// What stands in [`MANAGED_BY`] of a mirrored slice; the name of the controller in kube-controller-manager.
pub const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// The label of Endpoints that are not to be mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints that served as a lock.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// kubectl's copy of what was applied: it speaks of the Endpoints.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const TRIGGER_TIME: &str = crate::endpoint_slices::plan::TRIGGER_TIME;
/// So many addresses of a subset are mirrored, as the real controller has it.
const MOST_ADDRESSES: usize = 1_000;

/// Endpoints of a slice, by address.
type Slots = BTreeMap<IpAddr, Endpoint>;

/// Whether a slice is the mirror of some Endpoints.
pub fn is_mirror(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

/// Whether Endpoints are to be mirrored: made by hand, for a Service that has no selector.
fn is_wanted(endpoints: &Endpoints, service: &Service) -> bool {
    let metadata = &endpoints.metadata;
    let has = |map: &Option<Labels>, key: &str| map.as_ref().is_some_and(|map| map.contains_key(key));
    let skips = metadata.labels.as_ref().and_then(|labels| labels.get(SKIP)).is_some_and(|skip| skip == "true");
    let selects = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()).is_some_and(|pairs| !pairs.is_empty());
    let ends = metadata.deletion_timestamp.is_some() || service.metadata.deletion_timestamp.is_some();
    !(skips || selects || ends || is_managed(endpoints) || has(&metadata.annotations, LEADER))
}

/// What is to be written for the Endpoints of one name; `existing` are the slices that mirror them now.
pub fn plan(endpoints: Option<&Endpoints>, service: Option<&Service>, existing: &[Arc<EndpointSlice>]) -> Actions {
    let mut actions = Actions::default();
    let (Some(endpoints), Some(service)) = (endpoints, service) else {
        actions.delete.extend(existing.iter().cloned());
        return actions;
    };
    let mut wanted = if is_wanted(endpoints, service) { groups(endpoints) } else { BTreeMap::new() };
    for slice in existing.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
        let mut ports: Vec<PortKey> = slice.ports.iter().flatten().map(PortKey::of).collect();
        ports.sort();
        match wanted.remove(&(slice.address_type.clone(), ports.clone())) {
            Some(slots) => {
                let new = EndpointSlice { metadata: slice.metadata.clone(), ..mirror(endpoints, slice, &ports, slots) };
                let new = with_marks(new, endpoints);
                if new != **slice {
                    actions.replace.push(new);
                }
            }
            None => actions.delete.push(slice.clone()),
        }
    }
    for ((kind, ports), slots) in wanted {
        let bare = EndpointSlice { address_type: kind, ..EndpointSlice::default() };
        actions.create.push(with_marks(mirror(endpoints, &bare, &ports, slots), endpoints));
    }
    actions
}

/// By address type and ports. Subsets with the same ports become one.
fn groups(endpoints: &Endpoints) -> BTreeMap<(String, Vec<PortKey>), Slots> {
    let mut groups: BTreeMap<(String, Vec<PortKey>), Slots> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let others = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, is_ready) in ready.chain(others).take(MOST_ADDRESSES) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else { continue };
            let group = groups.entry((address_type(Family::of(ip)).to_owned(), ports.clone())).or_default();
            group.entry(ip).or_insert_with(|| endpoint(address, is_ready));
        }
    }
    groups
}

fn ports(subset: &EndpointSubset) -> Vec<PortKey> {
    let mut ports: Vec<PortKey> = subset
        .ports
        .iter()
        .flatten()
        .map(|port| PortKey {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: Some(port.port),
            app_protocol: port.app_protocol.clone(),
        })
        .collect();
    ports.sort();
    ports
}

fn endpoint(address: &EndpointAddress, is_ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(is_ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn mirror(endpoints: &Endpoints, like: &EndpointSlice, ports: &[PortKey], slots: Slots) -> EndpointSlice {
    let metadata = &endpoints.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    EndpointSlice {
        address_type: like.address_type.clone(),
        endpoints: Some(slots.into_values().collect()),
        ports: Some(ports.iter().map(PortKey::to_port).collect()),
        metadata: ObjectMeta {
            namespace: metadata.namespace.clone(),
            generate_name: Some(format!("{name}-")),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Endpoints".to_owned(),
                name,
                uid: metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
    }
}

/// With the labels and annotations of the Endpoints, and those that lead back to them.
fn with_marks(mut slice: EndpointSlice, endpoints: &Endpoints) -> EndpointSlice {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.metadata.name.clone().unwrap_or_default());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != APPLIED && key != TRIGGER_TIME);
    slice.metadata.labels = Some(labels);
    slice.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    slice
}
