//! Pure. A snapshot, indexed for judges: made once, asked for every Service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use signpost_cluster::Malformed;
use signpost_core::object::{Family, ObjectName, Protocol};
use signpost_core::plan::{Frontend, FrontendKey, NodePlan};

use super::cause::Code;
use super::object::{PodObject, ServiceObject, SliceObject, object_name, text};
use crate::planned::Understood;
use crate::predict::Indexed;
use crate::snapshot::{NodeState, Snapshot, UdpFlow, Unknown};
use crate::trace::Stage;

/// Who claims an address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    /// The stronger the smaller.
    pub(super) strength: u8,
    /// The Service.
    pub(super) service: ObjectName,
}

/// One of a node's plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Plan {
    /// What its daemon says.
    Said,
    /// What the objects ask for.
    Wanted,
}

/// The frontends of a Service in one plan.
type Frontends<'a> = Vec<(&'a FrontendKey, &'a Frontend)>;
type ByService<'a> = HashMap<&'a ObjectName, Frontends<'a>>;

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
    frontends: HashMap<&'a str, HashMap<(Family, Plan), ByService<'a>>>,
    /// The UDP flows of each node to an address of a Service.
    udp_flows: HashMap<&'a str, HashMap<ObjectName, Vec<&'a UdpFlow>>>,
    /// How many TCP connections are open to an address and port, where most of them were seen.
    held: HashMap<SocketAddr, usize>,
    policies: HashMap<&'a str, Vec<&'a Value>>,
    /// The namespaces in which a pod has a label.
    namespaces_by_label: HashMap<(String, String), BTreeSet<&'a str>>,
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
            frontends: HashMap::new(),
            udp_flows: HashMap::new(),
            held: HashMap::new(),
            policies: HashMap::new(),
            namespaces_by_label: HashMap::new(),
            plans_differ: BTreeSet::new(),
            slices_by_namespace: BTreeMap::new(),
            slices_by_service: BTreeMap::new(),
            claims: HashMap::new(),
            nodes: objects.nodes.iter().filter_map(|node| Some((text(node, "/metadata/name")?, node))).collect(),
            pods,
        };
        ground.index_pods();
        for slice in objects.slices.iter().map(SliceObject) {
            let namespace = text(slice.0, "/metadata/namespace").unwrap_or_default();
            ground.slices_by_namespace.entry(namespace).or_default().push(slice);
            if let Some(service) = slice.service() {
                ground.slices_by_service.entry(ObjectName::new(namespace, service)).or_default().push(slice);
            }
        }
        for policy in &objects.network_policies {
            let namespace = text(policy, "/metadata/namespace").unwrap_or_default();
            ground.policies.entry(namespace).or_default().push(policy);
        }
        ground.claim();
        for (name, state) in &snapshot.nodes {
            ground.index_node(name, state);
        }
        ground
    }

    fn index_pods(&mut self) {
        for (number, pod) in self.pods.iter().enumerate() {
            let (namespace, name) = (pod.namespace(), text(pod.0, "/metadata/name").unwrap_or_default());
            self.pods_by_name.insert((namespace, name), number);
            self.pods_by_namespace.entry(namespace).or_default().push(number);
            for (key, value) in pod.labels() {
                if !pod.is_over() {
                    self.namespaces_by_label.entry((key.clone(), value.clone())).or_default().insert(namespace);
                }
                self.pods_by_label.entry((namespace.to_owned(), key, value)).or_default().push(number);
            }
        }
    }

    fn index_node(&mut self, name: &'a str, state: &'a NodeState) {
        for (plan, plans) in [(Plan::Said, &state.plans), (Plan::Wanted, &state.wanted)] {
            for (family, of_node) in plans {
                self.frontends.entry(name).or_default().insert((*family, plan), by_service(of_node));
            }
        }
        let differs = state
            .plans
            .iter()
            .filter(|(family, plan)| state.wanted.get(family).is_some_and(|wanted| wanted.frontends != plan.frontends));
        self.plans_differ.extend(differs.map(|(family, _)| (name, *family)));
        for flow in &state.conntrack.translated_udp {
            let claims = self.claims.get(&(Some(flow.to.ip()), Protocol::Udp, flow.to.port()));
            if let Some(owner) = claims.and_then(|claims| claims.first()) {
                let of_node = self.udp_flows.entry(name).or_default();
                of_node.entry(owner.service.clone()).or_default().push(flow);
            }
        }
        // Each connection passes the node of its backend, and maybe that of its client too.
        for one in &state.conntrack.established {
            let most = self.held.entry(one.backend).or_default();
            *most = (*most).max(one.flows);
        }
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

    /// The other namespaces that have a living pod with each of these labels: not with all of them in one, necessarily.
    pub(super) fn namespaces_with(&self, selector: &BTreeMap<String, String>) -> BTreeSet<&'a str> {
        let mut all = selector.iter().map(|(key, value)| {
            self.namespaces_by_label.get(&(key.clone(), value.clone())).cloned().unwrap_or_default()
        });
        let first = all.next().unwrap_or_default();
        all.fold(first, |kept, next| kept.intersection(&next).copied().collect())
    }

    /// The frontends of a Service in a plan of a node.
    pub(super) fn frontends(
        &self,
        node: &str,
        family: Family,
        plan: Plan,
        service: &ObjectName,
    ) -> &[(&'a FrontendKey, &'a Frontend)] {
        let of_plan = self.frontends.get(node).and_then(|plans| plans.get(&(family, plan)));
        of_plan.and_then(|services| services.get(service)).map_or(&[], Vec::as_slice)
    }

    /// The frontends of a Service that a node is to have, else that it says that it has; `None`: neither is known.
    pub(super) fn best_known(
        &self,
        node: &str,
        family: Family,
        service: &ObjectName,
    ) -> Option<&[(&'a FrontendKey, &'a Frontend)]> {
        let plans = self.frontends.get(node)?;
        let plan = [Plan::Wanted, Plan::Said].into_iter().find(|plan| plans.contains_key(&(family, *plan)))?;
        Some(self.frontends(node, family, plan, service))
    }

    /// The UDP flows of a node to an address of a Service.
    pub(super) fn udp_flows(&self, node: &str, service: &ObjectName) -> &[&'a UdpFlow] {
        self.udp_flows.get(node).and_then(|flows| flows.get(service)).map_or(&[], Vec::as_slice)
    }

    /// How many TCP connections are open to an address and port.
    pub(super) fn held(&self, backend: &SocketAddr) -> usize {
        self.held.get(backend).copied().unwrap_or(0)
    }

    /// The NetworkPolicies of a namespace.
    pub(super) fn policies_of(&self, namespace: &str) -> &[&'a Value] {
        self.policies.get(namespace).map_or(&[], Vec::as_slice)
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

    /// Whether what a cause is concluded from was read: without the pods, say, nobody knows that a selector finds none.
    pub(super) fn is_founded(&self, code: Code) -> bool {
        let needs: &[&str] = match code {
            Code::SelectorMatchesNothing | Code::PodsElsewhere | Code::EndpointOfNobody => &["pods"],
            Code::NoSelectorNoSlices
            | Code::SliceOfAnother
            | Code::PortNames
            | Code::SliceNotReady
            | Code::SliceFamily
            | Code::SlicesBehind
            | Code::PodLacksFamily
            | Code::NoDns
            | Code::PlanBehind
            | Code::InternalLocal
            | Code::ExternalLocal => &["endpointslices"],
            Code::HeadlessNoneReady | Code::Unexplained => &["pods", "endpointslices"],
            _ => &[],
        };
        !needs.iter().any(|kind| self.is_unread(kind))
    }

    fn is_unread(&self, kind: &str) -> bool {
        self.snapshot.unknown.iter().any(|unknown| unknown.what == kind)
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

fn by_service(plan: &NodePlan) -> ByService<'_> {
    let mut services = ByService::new();
    for (key, frontend) in &plan.frontends {
        services.entry(&frontend.service_port.service).or_default().push((key, frontend));
    }
    services
}

/// What is wrong with an object, in one line.
pub(super) fn said(malformed: &Malformed) -> String {
    let problems: Vec<String> = malformed.problems.iter().map(ToString::to_string).collect();
    format!("{}: {}", malformed.object, problems.join("; "))
}
