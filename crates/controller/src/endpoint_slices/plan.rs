//! Pure. From the endpoints there should be and the slices there are: the slices to create, to replace and to delete.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use signpost_core::object::Family;
use signpost_core::slices::{Fate, MAX_ENDPOINTS, pack};

use super::desired::{EndpointKey, PortKey, families, groups};
use super::topology::{self, Shares};
use crate::nodes::NodeFacts;
use crate::selector::Labels;

/// The label with the Service's name.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that says who keeps a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// What this controller puts there; the name of the one in kube-controller-manager, since it takes its place.
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
/// The label of slices of a Service without a cluster address.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// The annotation with the time of the change that led to a write.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What is to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Actions {
    /// New slices, without names.
    pub create: Vec<EndpointSlice>,
    /// Slices as they should be, with the resource version they were planned from.
    pub replace: Vec<EndpointSlice>,
    /// Slices that are no longer needed.
    pub delete: Vec<Arc<EndpointSlice>>,
}

/// Whether this controller keeps a slice.
pub fn is_managed(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

/// What is known of a node, by its name.
pub type NodeOf<'a> = dyn Fn(&str) -> Option<NodeFacts> + 'a;

/// What is to be written for one Service.
///
/// `existing` are the slices of its name that this controller keeps; `trigger` is the time of the change that led here.
/// `shares` are the zones', if the Service asks for topology-aware hints.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    (node, shares): (&NodeOf<'_>, Option<&Shares>),
    existing: &[Arc<EndpointSlice>],
    trigger: Option<Timestamp>,
) -> Actions {
    let mut actions = Actions::default();
    let mut by_type: BTreeMap<&str, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
        if is_owned_by(slice, service) {
            by_type.entry(&slice.address_type).or_default().push(slice);
        } else {
            actions.delete.push(slice.clone());
        }
    }
    for family in families(service) {
        let slices = by_type.remove(address_type(family)).unwrap_or_default();
        let writer = Writer { service, family, labels: labels(service), trigger };
        let mut groups = groups(service, family, pods, node);
        if let Some(shares) = shares {
            topology::hint(&mut groups, shares);
        }
        writer.plan(&slices, groups, &mut actions);
    }
    actions.delete.extend(by_type.into_values().flatten().cloned());
    actions
}

/// `IPv4` or `IPv6`.
pub fn address_type(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "IPv4",
        Family::Ipv6 => "IPv6",
    }
}

fn is_owned_by(slice: &EndpointSlice, service: &Service) -> bool {
    let mut owners = slice.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "Service" && Some(&owner.uid) == service.metadata.uid.as_ref())
}

/// The labels of a Service's slices: its own, and those that lead back to it.
pub fn labels(service: &Service) -> Labels {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default();
    if address.is_empty() || address == "None" {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), service.metadata.name.clone().unwrap_or_default());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

/// Plans the slices of one family.
struct Writer<'a> {
    service: &'a Service,
    family: Family,
    labels: Labels,
    trigger: Option<Timestamp>,
}

impl Writer<'_> {
    fn plan(&self, slices: &[&Arc<EndpointSlice>], mut groups: super::desired::Groups, actions: &mut Actions) {
        if groups.is_empty() {
            // A slice without endpoints says "nobody", where no slice would say "not looked at yet".
            groups.insert(Vec::new(), BTreeMap::new());
        }
        let mut by_ports: BTreeMap<Vec<PortKey>, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
        for slice in slices {
            by_ports.entry(ports_of(slice)).or_default().push(slice);
        }
        let mut created: VecDeque<(Vec<PortKey>, Vec<Endpoint>)> = VecDeque::new();
        let mut spare: VecDeque<&Arc<EndpointSlice>> = VecDeque::new();
        for (ports, desired) in groups {
            let slices = by_ports.remove(&ports).unwrap_or_default();
            if desired.is_empty() {
                self.placeholder(&slices, ports, &mut created, &mut spare, actions);
                continue;
            }
            let packing = pack(&slices.iter().map(|slice| keyed(slice)).collect::<Vec<_>>(), desired, MAX_ENDPOINTS);
            for (slice, fate) in slices.into_iter().zip(packing.existing) {
                match fate {
                    Fate::Unchanged => actions.replace.extend(self.relabelled(slice)),
                    Fate::Updated(endpoints) => actions.replace.push(self.rewritten(slice, &ports, endpoints)),
                    Fate::Deleted => spare.push_back(slice),
                }
            }
            created.extend(packing.created.into_iter().map(|endpoints| (ports.clone(), endpoints)));
        }
        spare.extend(by_ports.into_values().flatten());
        // A slice that would go is written anew instead of a new one: one write for the nodes instead of two.
        for (ports, endpoints) in created {
            match spare.pop_front() {
                Some(slice) => actions.replace.push(self.rewritten(slice, &ports, endpoints)),
                None => actions.create.push(self.created(&ports, endpoints)),
            }
        }
        actions.delete.extend(spare.into_iter().cloned());
    }

    /// Exactly one slice without endpoints.
    fn placeholder<'s>(
        &self,
        slices: &[&'s Arc<EndpointSlice>],
        ports: Vec<PortKey>,
        created: &mut VecDeque<(Vec<PortKey>, Vec<Endpoint>)>,
        spare: &mut VecDeque<&'s Arc<EndpointSlice>>,
        actions: &mut Actions,
    ) {
        let kept = slices.iter().position(|slice| slice.endpoints.as_ref().is_none_or(Vec::is_empty));
        match kept {
            Some(index) => actions.replace.extend(self.relabelled(slices[index])),
            None => created.push_back((ports, Vec::new())),
        }
        spare.extend(slices.iter().enumerate().filter(|(index, _)| Some(*index) != kept).map(|(_, slice)| *slice));
    }

    fn created(&self, ports: &[PortKey], endpoints: Vec<Endpoint>) -> EndpointSlice {
        let service = &self.service.metadata;
        EndpointSlice {
            metadata: ObjectMeta {
                namespace: service.namespace.clone(),
                generate_name: Some(format!("{}-", service.name.as_deref().unwrap_or_default())),
                labels: Some(self.labels.clone()),
                annotations: self.trigger.map(|time| [(TRIGGER_TIME.to_owned(), time.to_string())].into()),
                owner_references: Some(vec![owner(self.service)]),
                ..ObjectMeta::default()
            },
            address_type: address_type(self.family).to_owned(),
            endpoints: Some(endpoints),
            ports: Some(ports.iter().map(PortKey::to_port).collect()),
        }
    }

    fn rewritten(&self, slice: &EndpointSlice, ports: &[PortKey], endpoints: Vec<Endpoint>) -> EndpointSlice {
        let mut slice = slice.clone();
        slice.metadata.labels = Some(self.labels.clone());
        let annotations = slice.metadata.annotations.get_or_insert_default();
        match self.trigger {
            Some(time) => annotations.insert(TRIGGER_TIME.to_owned(), time.to_string()),
            None => annotations.remove(TRIGGER_TIME),
        };
        slice.endpoints = Some(endpoints);
        slice.ports = Some(ports.iter().map(PortKey::to_port).collect());
        slice
    }

    /// The slice with the labels it should have, if it has others.
    fn relabelled(&self, slice: &EndpointSlice) -> Option<EndpointSlice> {
        (slice.metadata.labels.as_ref() != Some(&self.labels)).then(|| {
            let mut slice = slice.clone();
            slice.metadata.labels = Some(self.labels.clone());
            slice
        })
    }
}

fn owner(service: &Service) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: service.metadata.name.clone().unwrap_or_default(),
        uid: service.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn ports_of(slice: &EndpointSlice) -> Vec<PortKey> {
    let mut ports: Vec<PortKey> = slice.ports.iter().flatten().map(|port: &EndpointPort| PortKey::of(port)).collect();
    ports.sort();
    ports
}

/// A slice's endpoints with who they are. One that has no address or no pod was not put there by this controller; it
/// gets a key that no pod has, and so goes.
fn keyed(slice: &EndpointSlice) -> Vec<(EndpointKey, Endpoint)> {
    let endpoints = slice.endpoints.iter().flatten();
    endpoints
        .map(|endpoint| {
            let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone()).unwrap_or_default();
            ((address.unwrap_or(IpAddr::from([0, 0, 0, 0])), pod), endpoint.clone())
        })
        .collect()
}
