//! Who looks again after which change: one place that shows how the controllers hang together.
//!
//! ```text
//! Service ─────┬──▶ slices, endpoints, addresses Deployment ──▶ deployments
//! IPAddressPool, Namespace ──▶ addresses of all Services
//! L2Advertisement, BGPAdvertisement, ServiceL2Status, ServiceBGPStatus ──▶ announced
//! Pod ─────────┼──▶ slices, endpoints (of the Services that select it), its ReplicaSet or StatefulSet, scheduler
//! Node ────────┴──▶ slices (of the pods on it), scheduler
//! EndpointSlice ──▶ slices, mirrors              ReplicaSet ──▶ replica sets, its Deployment
//! Endpoints ──────▶ endpoints, mirrors           StatefulSet, ControllerRevision ──▶ stateful sets
//! every object with owners, every owner ──▶ garbage
//! ```

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource;
use signpost_core::object::ObjectName;
use signpost_metallb::{
    BGPAdvertisement, ConfigurationState, IPAddressPool, L2Advertisement, ServiceBGPStatus, ServiceL2Status,
};

use crate::cache::{Cache, Index, Transition, name_of};
use crate::context::{Context, Watched};
use crate::queues::Collected;
use crate::world::World;
use crate::{
    announced, endpoint_slices, endpoints, garbage, load_balancers, lookup, mirroring, nodes, pods, scheduler, selector,
};

/// Old and new, as far as there are both.
fn versions<K>(change: &Transition<K>) -> impl Iterator<Item = &Arc<K>> {
    change.old.iter().chain(&change.new)
}

/// Whether old and new are the same object: a resync, which leaves nothing out.
fn is_resync<K>(change: &Transition<K>) -> bool {
    matches!((&change.old, &change.new), (Some(old), Some(new)) if Arc::ptr_eq(old, new))
}

impl Watched for Pod {
    fn cache(world: &World) -> &Cache<Pod> {
        &world.pods
    }

    fn route(context: &Context, change: &Transition<Pod>) {
        garbage::route(context, Some(Collected::Pod), change);
        if let Some(new) = change.new.as_ref().filter(|pod| scheduler::is_waiting(pod)) {
            context.queues.scheduler.add(name_of(new.as_ref()));
        }
        if is_resync(change) {
            return;
        }
        if endpoint_changed(change) {
            for service in versions(change).flat_map(|pod| lookup::services_of_pod(&context.world, pod)) {
                context.queues.slices.add(service.clone());
                context.queues.endpoints.add(service);
            }
        }
        for pod in versions(change) {
            wake_workloads(context, pod);
        }
        if let (Some(old), None) = (&change.old, &change.new) {
            wake_deployment_of(context, old);
        }
    }
}

/// Whether a pod changed in anything that its endpoints show.
fn endpoint_changed(change: &Transition<Pod>) -> bool {
    let facts = |pod: &Arc<Pod>| {
        let spec = pod.spec.as_ref();
        let name = (spec.and_then(|spec| spec.hostname.clone()), spec.and_then(|spec| spec.subdomain.clone()));
        let state = (pods::is_ready(pod), pods::is_terminating(pod), pods::is_finished(pod));
        let place = (pods::addresses(pod), pods::node(pod).map(str::to_owned));
        (pod.metadata.uid.clone(), pod.metadata.labels.clone(), name, state, place)
    };
    change.old.as_ref().map(facts) != change.new.as_ref().map(facts)
}

/// The ReplicaSet or StatefulSet of a pod; for a pod that nobody controls, those that may adopt it.
fn wake_workloads(context: &Context, pod: &Pod) {
    let namespace: Arc<str> = pod.metadata.namespace.as_deref().unwrap_or_default().into();
    if let Some(owner) = pods::controller(pod.metadata.owner_references.as_ref()) {
        let name = ObjectName { namespace, name: owner.name.as_str().into() };
        match owner.kind.as_str() {
            "ReplicaSet" => context.queues.replica_sets.add(name),
            "StatefulSet" => context.queues.stateful_sets.add(name),
            _ => {}
        }
        return;
    }
    let labels = pod.metadata.labels.as_ref();
    if labels.is_none_or(|labels| labels.is_empty()) {
        return;
    }
    for set in context.world.replica_sets.in_namespace(&namespace) {
        if set.spec.as_ref().is_some_and(|spec| selector::matches(labels, &spec.selector)) {
            context.queues.replica_sets.add(name_of(set.as_ref()));
        }
    }
    for set in context.world.stateful_sets.in_namespace(&namespace) {
        if set.spec.as_ref().is_some_and(|spec| selector::matches(labels, &spec.selector)) {
            context.queues.stateful_sets.add(name_of(set.as_ref()));
        }
    }
}

/// A Deployment that recreates waits for the last old pod, which its ReplicaSet's status no longer counts.
fn wake_deployment_of(context: &Context, pod: &Pod) {
    let Some(owner) = pods::controller(pod.metadata.owner_references.as_ref()) else { return };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(set) = context.world.replica_sets.get(&ObjectName::new(namespace, &owner.name)) {
        wake_owner(context, set.as_ref());
    }
}

fn wake_owner(context: &Context, set: &ReplicaSet) {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(owner) = pods::controller(set.metadata.owner_references.as_ref()) {
        if owner.kind == "Deployment" {
            context.queues.deployments.add(ObjectName::new(namespace, &owner.name));
        }
        return;
    }
    for deployment in context.world.deployments.in_namespace(&namespace.into()) {
        let labels = set.metadata.labels.as_ref();
        if deployment.spec.as_ref().is_some_and(|spec| selector::matches(labels, &spec.selector)) {
            context.queues.deployments.add(name_of(deployment.as_ref()));
        }
    }
}

impl Watched for Service {
    fn cache(world: &World) -> &Cache<Service> {
        &world.services
    }

    fn route(context: &Context, change: &Transition<Service>) {
        garbage::route(context, Some(Collected::Service), change);
        load_balancers::route_service(context, change);
        for service in versions(change) {
            announced::route(context, name_of(service.as_ref()));
        }
        for service in versions(change) {
            context.queues.slices.add(name_of(service.as_ref()));
            context.queues.endpoints.add(name_of(service.as_ref()));
            context.queues.mirrored.add(name_of(service.as_ref()));
        }
    }
}

impl Watched for EndpointSlice {
    fn cache(world: &World) -> &Cache<EndpointSlice> {
        &world.slices
    }

    fn route(context: &Context, change: &Transition<EndpointSlice>) {
        garbage::route(context, Some(Collected::EndpointSlice), change);
        for slice in versions(change) {
            let queue = if endpoint_slices::plan::is_managed(slice) {
                &context.queues.slices
            } else if mirroring::plan::is_mirror(slice) {
                &context.queues.mirrored
            } else {
                continue;
            };
            let labels = slice.metadata.labels.as_ref();
            if let Some(service) = labels.and_then(|labels| labels.get(endpoint_slices::plan::SERVICE_NAME)) {
                let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
                queue.add(ObjectName::new(namespace, service));
                announced::route(context, ObjectName::new(namespace, service));
            }
        }
    }
}

impl Watched for Endpoints {
    fn cache(world: &World) -> &Cache<Endpoints> {
        &world.endpoints
    }

    fn route(context: &Context, change: &Transition<Endpoints>) {
        garbage::route(context, Some(Collected::Endpoints), change);
        // Hand-made Endpoints without a Service must not be named: the controller would take them for left-overs.
        for endpoints in versions(change) {
            let name = name_of(endpoints.as_ref());
            context.queues.mirrored.add(name.clone());
            if endpoints::plan::is_managed(endpoints) || context.world.services.get(&name).is_some() {
                context.queues.endpoints.add(name);
            }
        }
    }
}

impl Watched for Node {
    fn cache(world: &World) -> &Cache<Node> {
        &world.nodes
    }

    fn route(context: &Context, change: &Transition<Node>) {
        garbage::route(context, None, change);
        let zone = |node: &Arc<Node>| nodes::facts(node);
        if change.old.as_ref().map(zone) != change.new.as_ref().map(zone) {
            let name = versions(change).next().map(|node| name_of(node.as_ref()).name).unwrap_or_default();
            for pod in context.world.pods.select(&Index::Node(name)) {
                for service in lookup::services_of_pod(&context.world, &pod) {
                    context.queues.slices.add(service);
                }
            }
        }
        let weight = |node: &Arc<Node>| (nodes::facts(node), nodes::is_ready(node), allocatable(node));
        if change.old.as_ref().map(weight) != change.new.as_ref().map(weight) {
            let asking = context.world.services.all();
            for service in asking.iter().filter(|service| endpoint_slices::topology::is_asked_for(service)) {
                context.queues.slices.add(name_of(service.as_ref()));
            }
        }
        if scheduling_changed(change) {
            announced::route_all(context);
            for pod in scheduler::waiting(context) {
                context.queues.scheduler.add(name_of(pod.as_ref()));
            }
        }
    }
}

fn allocatable(node: &Node) -> Option<Quantity> {
    node.status.as_ref()?.allocatable.as_ref()?.get("cpu").cloned()
}

/// Whether a node changed in what the scheduler asks of it; its heartbeat is nothing of that.
fn scheduling_changed(change: &Transition<Node>) -> bool {
    let facts = |node: &Arc<Node>| {
        (
            node.metadata.labels.clone(),
            node.metadata.deletion_timestamp.is_some(),
            node.spec.clone(),
            nodes::is_ready(node),
        )
    };
    change.old.as_ref().map(facts) != change.new.as_ref().map(facts)
}

impl Watched for Namespace {
    fn cache(world: &World) -> &Cache<Namespace> {
        &world.namespaces
    }

    fn route(context: &Context, change: &Transition<Namespace>) {
        let labels = |namespace: &Arc<Namespace>| namespace.metadata.labels.clone();
        if change.old.as_ref().map(labels) != change.new.as_ref().map(labels) {
            load_balancers::route_all(context);
        }
    }
}

impl Watched for IPAddressPool {
    fn cache(world: &World) -> &Cache<IPAddressPool> {
        &world.pools
    }

    fn route(context: &Context, change: &Transition<IPAddressPool>) {
        // Its status, which this controller writes, asks for nothing.
        let asked = |pool: &Arc<IPAddressPool>| (pool.spec.clone(), pool.metadata.labels.clone());
        if is_resync(change) || change.old.as_ref().map(asked) != change.new.as_ref().map(asked) {
            load_balancers::route_all(context);
        }
    }
}

impl Watched for ConfigurationState {
    fn cache(world: &World) -> &Cache<ConfigurationState> {
        &world.states
    }

    fn route(context: &Context, change: &Transition<ConfigurationState>) {
        load_balancers::route_state(context, change);
    }
}

impl Watched for L2Advertisement {
    fn cache(world: &World) -> &Cache<L2Advertisement> {
        &world.l2_advertisements
    }

    fn route(context: &Context, _: &Transition<L2Advertisement>) {
        announced::route_all(context);
    }
}

impl Watched for BGPAdvertisement {
    fn cache(world: &World) -> &Cache<BGPAdvertisement> {
        &world.bgp_advertisements
    }

    fn route(context: &Context, _: &Transition<BGPAdvertisement>) {
        announced::route_all(context);
    }
}

impl Watched for ServiceL2Status {
    fn cache(world: &World) -> &Cache<ServiceL2Status> {
        &world.l2_statuses
    }

    fn route(context: &Context, change: &Transition<ServiceL2Status>) {
        for status in versions(change).filter_map(|object| object.status.as_ref()) {
            announced::route(context, ObjectName::new(&status.service_namespace, &status.service_name));
        }
    }
}

impl Watched for ServiceBGPStatus {
    fn cache(world: &World) -> &Cache<ServiceBGPStatus> {
        &world.bgp_statuses
    }

    fn route(context: &Context, change: &Transition<ServiceBGPStatus>) {
        for status in versions(change).filter_map(|object| object.status.as_ref()) {
            announced::route(context, ObjectName::new(&status.service_namespace, &status.service_name));
        }
    }
}

impl Watched for ReplicaSet {
    fn cache(world: &World) -> &Cache<ReplicaSet> {
        &world.replica_sets
    }

    fn route(context: &Context, change: &Transition<ReplicaSet>) {
        garbage::route(context, Some(Collected::ReplicaSet), change);
        for set in versions(change) {
            context.queues.replica_sets.add(name_of(set.as_ref()));
            wake_owner(context, set);
        }
    }
}

impl Watched for Deployment {
    fn cache(world: &World) -> &Cache<Deployment> {
        &world.deployments
    }

    fn route(context: &Context, change: &Transition<Deployment>) {
        garbage::route(context, Some(Collected::Deployment), change);
        for deployment in versions(change) {
            context.queues.deployments.add(name_of(deployment.as_ref()));
        }
    }
}

impl Watched for StatefulSet {
    fn cache(world: &World) -> &Cache<StatefulSet> {
        &world.stateful_sets
    }

    fn route(context: &Context, change: &Transition<StatefulSet>) {
        garbage::route(context, Some(Collected::StatefulSet), change);
        for set in versions(change) {
            context.queues.stateful_sets.add(name_of(set.as_ref()));
        }
    }
}

impl Watched for ControllerRevision {
    fn cache(world: &World) -> &Cache<ControllerRevision> {
        &world.revisions
    }

    fn route(context: &Context, change: &Transition<ControllerRevision>) {
        garbage::route(context, Some(Collected::ControllerRevision), change);
        for revision in versions(change) {
            let owner = pods::controller(revision.meta().owner_references.as_ref());
            if let Some(owner) = owner.filter(|owner| owner.kind == "StatefulSet") {
                let namespace = revision.metadata.namespace.as_deref().unwrap_or_default();
                context.queues.stateful_sets.add(ObjectName::new(namespace, &owner.name));
            }
        }
    }
}
