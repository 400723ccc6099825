//! Pure. A snapshot, indexed for judges: made once, asked for every Service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use serde_json::Value;
use signpost_cluster::Malformed;
use signpost_core::object::{Family, ObjectName, Protocol};

use super::object::{PodObject, ServiceObject, SliceObject, object_name, text};
use crate::planned::Understood;
use crate::predict::Indexed;
use crate::snapshot::{NodeState, Snapshot, Unknown};
use crate::trace::Stage;

/// Who claims an address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    /// The stronger the smaller.
    pub(super) strength: u8,
    /// The Service.
    pub(super) service: ObjectName,
}

pub(super) struct Ground<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) stages: &'a [(&'a Stage<'a>, Indexed<'a>)],
    pub(super) understood: Understood,
    pub(super) pods: Vec<PodObject<'a>>,
    services: BTreeMap<ObjectName, &'a Value>,
    pods_by_name: HashMap<(&'a str, &'a str), usize>,
    pods_by_namespace: BTreeMap<&'a str, Vec<usize>>,
    /// By namespace, and key and value of a label.
    pods_by_label: HashMap<(String, String, String), Vec<usize>>,
    /// The nodes and families whose plan is not what the objects ask for.
    pub(super) plans_differ: BTreeSet<(&'a str, Family)>,
    slices_by_namespace: BTreeMap<&'a str, Vec<SliceObject<'a>>>,
    slices_by_service: BTreeMap<ObjectName, Vec<SliceObject<'a>>>,
    /// By address (`None`: at nodes), protocol and port.
    pub(super) claims: HashMap<(Option<IpAddr>, Protocol, u16), BTreeSet<Claim>>,
    /// Node objects by name.
    pub(super) nodes: BTreeMap<&'a str, &'a Value>,
}

impl<'a> Ground<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, stages: &'a [(&'a Stage<'a>, Indexed<'a>)]) -> Ground<'a> {
        let objects = &snapshot.objects;
        let pods: Vec<PodObject<'a>> = objects.pods.iter().map(PodObject).collect();
        let mut ground = Ground {
            snapshot,
            stages,
            understood: Understood::of(objects),
            services: objects.services.iter().filter_map(|one| Some((object_name(one)?, one))).collect(),
            pods_by_name: HashMap::new(),
            pods_by_namespace: BTreeMap::new(),
            pods_by_label: HashMap::new(),
            plans_differ: BTreeSet::new(),
            slices_by_namespace: BTreeMap::new(),
            slices_by_service: BTreeMap::new(),
            claims: HashMap::new(),
            nodes: objects.nodes.iter().filter_map(|node| Some((text(node, "/metadata/name")?, node))).collect(),
            pods,
        };
        for (number, pod) in ground.pods.iter().enumerate() {
            let name = text(pod.0, "/metadata/name").unwrap_or_default();
            ground.pods_by_name.insert((pod.namespace(), name), number);
            ground.pods_by_namespace.entry(pod.namespace()).or_default().push(number);
            for (key, value) in pod.labels() {
                let label = (pod.namespace().to_owned(), key, value);
                ground.pods_by_label.entry(label).or_default().push(number);
            }
        }
        for slice in objects.slices.iter().map(SliceObject) {
            let namespace = text(slice.0, "/metadata/namespace").unwrap_or_default();
            ground.slices_by_namespace.entry(namespace).or_default().push(slice);
            if let Some(service) = slice.service() {
                ground.slices_by_service.entry(ObjectName::new(namespace, service)).or_default().push(slice);
            }
        }
        for (name, state) in &snapshot.nodes {
            let differs = state.plans.iter().filter(|(family, plan)| {
                state.wanted.get(family).is_some_and(|wanted| wanted.frontends != plan.frontends)
            });
            ground.plans_differ.extend(differs.map(|(family, _)| (name.as_str(), *family)));
        }
        ground.claim();
        ground
    }

    fn claim(&mut self) {
        for (name, value) in &self.services {
            let service = ServiceObject(value);
            let mut claim = |address, protocol, port, strength| {
                let claim = Claim { strength, service: name.clone() };
                self.claims.entry((address, protocol, port)).or_default().insert(claim);
            };
            for port in service.ports() {
                for (strength, addresses) in
                    [(0, service.cluster_ips()), (2, service.external_ips()), (3, service.ingress())]
                {
                    addresses.into_iter().for_each(|at| claim(Some(at), port.protocol, port.port, strength));
                }
                if let Some(number) = port.node_port {
                    claim(None, port.protocol, number, 1);
                }
            }
        }
    }

    pub(super) fn services(&self) -> impl Iterator<Item = (&ObjectName, ServiceObject<'a>)> {
        self.services.iter().map(|(name, value)| (name, ServiceObject(value)))
    }

    pub(super) fn service(&self, name: &ObjectName) -> Option<ServiceObject<'a>> {
        self.services.get(name).copied().map(ServiceObject)
    }

    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<PodObject<'a>> {
        self.pods_by_name.get(&(namespace, name)).map(|number| self.pods[*number])
    }

    pub(super) fn pods_in(&self, namespace: &str) -> impl Iterator<Item = PodObject<'a>> {
        self.pods_by_namespace.get(namespace).into_iter().flatten().map(|number| self.pods[*number])
    }

    /// The pods of a namespace that a selector finds; an empty one finds none.
    pub(super) fn pods_of(&self, namespace: &str, selector: &BTreeMap<String, String>) -> Vec<PodObject<'a>> {
        let labels = selector.iter().map(|(key, value)| {
            self.pods_by_label.get(&(namespace.to_owned(), key.clone(), value.clone())).map_or(&[][..], Vec::as_slice)
        });
        // The label that the fewest pods have.
        let fewest = labels.min_by_key(|pods| pods.len()).unwrap_or_default();
        fewest.iter().map(|number| self.pods[*number]).filter(|pod| pod.has_all(selector)).collect()
    }

    pub(super) fn slices_in(&self, namespace: &str) -> &[SliceObject<'a>] {
        self.slices_by_namespace.get(namespace).map_or(&[], Vec::as_slice)
    }

    pub(super) fn slices_of(&self, name: &ObjectName) -> &[SliceObject<'a>] {
        self.slices_by_service.get(name).map_or(&[], Vec::as_slice)
    }

    /// What is malformed of a Service and its slices.
    pub(super) fn malformed(&self, name: &ObjectName) -> impl Iterator<Item = &Malformed> {
        let slices: BTreeSet<&str> = self.slices_of(name).iter().map(|slice| slice.name()).collect();
        let is_of = move |one: &&Malformed| {
            let object = &one.object;
            *object.namespace == *name.namespace
                && ((object.kind == "Service" && *object.name == *name.name)
                    || (object.kind == "EndpointSlice" && slices.contains(&*object.name)))
        };
        self.understood.malformed.iter().filter(is_of)
    }

    pub(super) fn node(&self, name: &str) -> Option<&'a NodeState> {
        self.snapshot.nodes.get(name).filter(|state| state.unreached.is_none())
    }

    /// Whether what the node's kernel does is known.
    pub(super) fn is_read(&self, name: &str) -> bool {
        self.node(name).is_some_and(|state| !state.kernel.is_empty() && state.unknown.is_empty())
    }

    /// What was not read of the cluster and of these nodes.
    pub(super) fn unknown(&self, nodes: &BTreeSet<String>) -> Vec<Unknown> {
        let mut all = self.snapshot.unknown.clone();
        for name in nodes {
            match self.snapshot.nodes.get(name) {
                Some(NodeState { unreached: Some(why), .. }) => {
                    all.push(Unknown { what: format!("node {name}"), why: why.clone() });
                }
                Some(state) => all.extend(state.unknown.iter().map(|unknown| Unknown {
                    what: format!("node {name}: {}", unknown.what),
                    why: unknown.why.clone(),
                })),
                None => all.push(Unknown { what: format!("node {name}"), why: "it is not listed".to_owned() }),
            }
        }
        all
    }
}

/// What is wrong with an object, in one line.
pub(super) fn said(malformed: &Malformed) -> String {
    let problems: Vec<String> = malformed.problems.iter().map(ToString::to_string).collect();
    format!("{}: {}", malformed.object, problems.join("; "))
}
