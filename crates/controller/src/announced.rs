//! Says on each load balancer who announces its addresses and, for every node that does not, why not: a condition in its
//! status.
//!
//! ```text
//! Service, pools' labels, advertisements, nodes, slices ──▶ who may (core) ─┐
//! ServiceL2Status, ServiceBGPStatus (what nodes say that they do) ──────────┴─▶ words ──▶ condition
//! ```
//!
//! Nodes decide for themselves; here their decision is explained, by the same rules.

mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use signpost_core::announce::advertise::{Advertisement, Announcer};
use signpost_core::announce::served::Served;
use signpost_core::labels::Labels;
use signpost_core::object::{Family, ObjectName, TrafficPolicy};
use signpost_metallb::{ALLOCATED_FROM_POOL, convert};

use crate::cache::Index;
use crate::context::{Context, WriteError};
use crate::controller;
use crate::queue::{Outcome, Queue};
use crate::world::labelled;
use crate::{nodes, wishes};
use words::Scene;

/// The condition's type.
pub const CONDITION: &str = "signpost.dev/Announced";

/// Has no memory.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "announced";
    const WORKERS: usize = 1;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.announced
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        let Some(service) = context.world.services.get(key) else { return Ok(Outcome::Done) };
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let addresses = wishes::ingress(&service);
        let wanted = if addresses.is_empty() || !wishes::is_concerned(&service) {
            None
        } else {
            Some(condition(context, key, &service, addresses))
        };
        write(context, &service, wanted).await.map(|()| Outcome::Done)
    }
}

/// All load balancers are looked at.
pub fn route_all(context: &Context) {
    for service in context.world.services.select(&Index::LoadBalancer) {
        context.queues.announced.add(crate::cache::name_of(service.as_ref()));
    }
}

/// A load balancer is looked at; of other Services nothing is said.
pub fn route(context: &Context, name: ObjectName) {
    if context.world.services.get(&name).is_some_and(|service| wishes::is_concerned(&service)) {
        context.queues.announced.add(name);
    }
}

fn condition(context: &Context, name: &ObjectName, service: &Service, addresses: Vec<IpAddr>) -> Condition {
    let world = &context.world;
    let pool = wishes::annotation(service, ALLOCATED_FROM_POOL).unwrap_or_default();
    let pools = world.pools.all();
    let pool_object = pools.iter().find(|object| object.name() == pool);
    let slices = world.slices.select(&labelled(&name.namespace, "kubernetes.io/service-name", &name.name));
    let by_node = |node: &Arc<Node>| {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let ready = nodes::is_ready(node) && node.metadata.deletion_timestamp.is_none();
        (name, Announcer { labels: convert::labels(node.metadata.labels.as_ref()), ready, addresses: Vec::new() })
    };
    let is_of = |named: &str, namespace: &str| *named == *name.name && *namespace == *name.namespace;
    let mut layer2 = BTreeSet::new();
    for object in world.l2_statuses.all() {
        if let Some(status) = object.status.as_ref().filter(|one| is_of(&one.service_name, &one.service_namespace)) {
            layer2.insert(Arc::from(status.node.as_str()));
        }
    }
    let mut bgp: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
    for object in world.bgp_statuses.all() {
        if let Some(status) = object.status.as_ref().filter(|one| is_of(&one.service_name, &one.service_namespace)) {
            bgp.insert(status.node.as_str().into(), status.peers.clone());
        }
    }
    let scene = Scene {
        service: name,
        labels: &convert::labels(service.metadata.labels.as_ref()),
        pool,
        pool_labels: &pool_object.map_or_else(Labels::new, |object| convert::labels(object.metadata.labels.as_ref())),
        served: &served(service, addresses, &slices),
        nodes: &world.nodes.all().iter().map(by_node).collect(),
        l2_advertisements: &l2_advertisements(context),
        bgp_advertisements: &bgp_advertisements(context),
        layer2: &layer2,
        bgp: &bgp,
    };
    let words::Told { announced, reason, message } = words::tell(&scene);
    Condition {
        type_: CONDITION.to_owned(),
        status: if announced { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: service.metadata.generation,
        last_transition_time: Time(Timestamp::now()),
    }
}

/// Those that can be used: a node keeps the last good form of others, which is not known here.
fn l2_advertisements(context: &Context) -> Vec<Advertisement> {
    context.world.l2_advertisements.all().iter().filter_map(|one| convert::l2_advertisement(one).ok()).collect()
}

fn bgp_advertisements(context: &Context) -> Vec<Advertisement> {
    context.world.bgp_advertisements.all().iter().filter_map(|one| convert::bgp_selects(one).ok()).collect()
}

fn served(service: &Service, addresses: Vec<IpAddr>, slices: &[Arc<EndpointSlice>]) -> Served {
    let is_local = service.spec.as_ref().is_some_and(|spec| spec.external_traffic_policy.as_deref() == Some("Local"));
    let families: BTreeSet<Family> = addresses.iter().map(|address| Family::of(*address)).collect();
    let nodes = families.into_iter().map(|family| (family, nodes_of(slices, family)));
    Served {
        addresses,
        policy: if is_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster },
        nodes: nodes.filter(|(_, nodes)| !nodes.is_empty()).collect(),
    }
}

/// Where the endpoints of a family are: those that are ready; if none is, those that serve until they end.
fn nodes_of(slices: &[Arc<EndpointSlice>], family: Family) -> BTreeSet<Arc<str>> {
    let of = |useful: fn(Option<bool>, Option<bool>, Option<bool>) -> bool| -> BTreeSet<Arc<str>> {
        let kind = if family == Family::Ipv4 { "IPv4" } else { "IPv6" };
        let endpoints =
            slices.iter().filter(|slice| slice.address_type == kind).flat_map(|slice| slice.endpoints.iter().flatten());
        let useful = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            useful(conditions.ready, conditions.serving, conditions.terminating)
        });
        useful.map(|endpoint| endpoint.node_name.as_deref().unwrap_or_default().into()).collect()
    };
    let ready = of(|ready, _, _| ready != Some(false));
    if ready.is_empty() { of(|_, serving, ending| serving == Some(true) && ending == Some(true)) } else { ready }
}

/// Puts our condition among the others, or takes it out; nothing is written if it says what it said.
async fn write(context: &Context, service: &Arc<Service>, wanted: Option<Condition>) -> Result<(), WriteError> {
    let current = service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let (ours, mut all): (Vec<Condition>, Vec<Condition>) =
        current.into_iter().partition(|condition| condition.type_ == CONDITION);
    let ours = ours.into_iter().next();
    let said = |one: &Condition| (one.status.clone(), one.reason.clone(), one.message.clone());
    if ours.as_ref().map(said) == wanted.as_ref().map(said) {
        return Ok(());
    }
    if let Some(mut wanted) = wanted {
        if let Some(before) = ours.filter(|before| before.status == wanted.status) {
            wanted.last_transition_time = before.last_transition_time;
        }
        all.push(wanted);
    }
    // As of this version: the list is replaced whole, and others have conditions in it.
    let version = &service.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": all}});
    context.patch_status(service.as_ref(), &patch).await.map(drop)
}
