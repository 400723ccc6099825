//! Addresses for Services of type LoadBalancer, out of IPAddressPools.
//!
//! ```text
//! Service, pools, who has which address ──▶ choose (core) ──▶ status.loadBalancer, annotation, finalizer, Events
//!                                     └──────────────────────▶ IPAddressPool.status, ConfigurationState
//! ```
//!
//! Who has which address stands in the Services' own status: it survives every restart, and an address whose Service is gone
//! is free. One worker: two Services never choose at the same time. While there is no pool, an address that somebody else
//! put into a status is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use signpost_core::labels::Labels;
use signpost_core::load_balancer::{Chosen, Others, Pool, Sharing, choose};
use signpost_core::object::{Family, ObjectName};
use signpost_metallb::convert::{self, Fault, Pools};
use signpost_metallb::state::{ConfigurationStateSpec, ConfigurationStateStatus};
use signpost_metallb::{ALLOCATED_FROM_POOL, ConfigurationState, IPAddressPool, NAMESPACE};

use crate::cache::{Index, Transition, name_of};
use crate::context::{Context, WriteError};
use crate::controller;
use crate::events::Severity;
use crate::queue::{Outcome, Queue};
use crate::queues::LoadBalancerKey;
use crate::wishes;
use crate::world::World;

const COMPONENT: &str = "load-balancer-controller";
/// Holds a deleted Service until its address is free again, as cloud controllers do it.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// The label of a ConfigurationState that names the node that it is of.
const NODE_NAME: &str = "metallb.io/node-name";
/// For so long an address that was given back is given out last: clients and routers may still know it as another's.
const REST: Duration = Duration::from_secs(60);

/// The controller's own memory: none of it is needed.
#[derive(Default)]
pub struct Controller {
    /// The last good forms of pools.
    pools: Mutex<Pools>,
    /// When addresses were given back.
    resting: Mutex<BTreeMap<IpAddr, Instant>>,
    /// Faults of pools that were told.
    told: Mutex<Vec<Fault>>,
}

impl controller::Controller for Controller {
    type Key = LoadBalancerKey;
    const NAME: &'static str = "load balancers";
    const WORKERS: usize = 1;

    fn queue(context: &Context) -> &Queue<LoadBalancerKey> {
        &context.queues.load_balancers
    }

    async fn reconcile(&self, context: &Context, key: &LoadBalancerKey) -> Result<Outcome, WriteError> {
        match key {
            LoadBalancerKey::Service(name) => self.look_at(context, name).await,
            LoadBalancerKey::Pools => self.tell_of_pools(context).await,
        }
        .map(|()| Outcome::Done)
    }
}

/// A Service changed: it is looked at; if it gave an address back, those that wait are too.
pub fn route_service(context: &Context, change: &Transition<Service>) {
    let addresses = |service: &Option<Arc<Service>>| service.as_deref().map(wishes::ingress).unwrap_or_default();
    let (before, after) = (addresses(&change.old), addresses(&change.new));
    let concerned = change.old.iter().chain(&change.new).find(|service| wishes::is_concerned(service));
    let Some(service) = concerned else { return };
    context.queues.load_balancers.add(LoadBalancerKey::Service(name_of(service.as_ref())));
    if before != after {
        context.queues.load_balancers.add(LoadBalancerKey::Pools);
    }
    if before.iter().any(|address| !after.contains(address)) {
        for waiting in context.world.services.select(&Index::LoadBalancer) {
            if wishes::ingress(&waiting).is_empty() {
                context.queues.load_balancers.add(LoadBalancerKey::Service(name_of(waiting.as_ref())));
            }
        }
    }
}

/// The addresses that a node found to be somebody else's.
fn found_in_use(state: &ConfigurationState) -> BTreeSet<IpAddr> {
    state.status.iter().flat_map(|status| status.addresses_in_use()).collect()
}

/// A node found an address to be somebody else's, or no longer: whoever has it may have to get another.
pub fn route_state(context: &Context, change: &Transition<ConfigurationState>) {
    let found = |state: &Option<Arc<ConfigurationState>>| state.as_deref().map(found_in_use).unwrap_or_default();
    if change.new.is_none() || found(&change.old) != found(&change.new) {
        route_all(context);
    }
}

/// All Services that concern this controller are looked at.
pub fn route_all(context: &Context) {
    context.queues.load_balancers.add(LoadBalancerKey::Pools);
    for service in context.world.services.select(&Index::LoadBalancer) {
        context.queues.load_balancers.add(LoadBalancerKey::Service(name_of(service.as_ref())));
    }
}

impl Controller {
    fn pools(&self, context: &Context) -> (Vec<Pool>, Vec<Fault>) {
        lock(&self.pools).update(&context.world.pools.all())
    }

    async fn look_at(&self, context: &Context, name: &ObjectName) -> Result<(), WriteError> {
        let Some(service) = context.world.services.get(name) else { return Ok(()) };
        if service.metadata.deletion_timestamp.is_some() {
            return self.let_go(context, &service).await;
        }
        if !wishes::is_ours(&service, context.options.load_balancer_class.as_deref()) {
            return self.give_back(context, &service, None).await;
        }
        let current = wishes::ingress(&service);
        let (pools, faults) = self.pools(context);
        let pool = wishes::annotation(&service, ALLOCATED_FROM_POOL);
        let held = pool.is_some_and(|pool| {
            faults.iter().any(|fault| &*fault.name == pool) && pools.iter().all(|good| &*good.name != pool)
        });
        // Nothing is known of the pool but that it is spoiled: whoever has an address of it keeps it.
        if (held || (pool.is_none() && context.world.pools.all().is_empty())) && !current.is_empty() {
            return Ok(());
        }
        let request = match wishes::request(&service, &namespace_labels(&context.world, &name.namespace)) {
            Ok(request) => request,
            Err(problem) => return self.refuse(context, &service, &problem).await,
        };
        let others = Elsewhere::new(&context.world, name, self.still_resting());
        match choose(&pools, &request, &others) {
            Ok(chosen) => self.assign(context, &service, &chosen).await,
            Err(refusal) => self.refuse(context, &service, &refusal.to_string()).await,
        }
    }

    /// The Service gets what was chosen. The mark is written before the address: an address without one is not ours.
    async fn assign(&self, context: &Context, service: &Arc<Service>, chosen: &Chosen) -> Result<(), WriteError> {
        let current = wishes::ingress(service);
        let ip_mode = wishes::ip_mode(service);
        if let Some(lost) = &chosen.lost {
            tell(
                context,
                service,
                Severity::Warning,
                "ClearAssignment",
                format!("{} is given up: {lost}", all(&current)),
            );
        }
        let mut service = service.clone();
        if wishes::annotation(&service, ALLOCATED_FROM_POOL) != Some(&chosen.pool) || !has_finalizer(&service) {
            service = Arc::new(context.patch(service.as_ref(), &marked(&service, Some(&chosen.pool))).await?);
        }
        let wanted: Vec<Value> =
            chosen.addresses.iter().map(|address| json!({"ip": address, "ipMode": ip_mode})).collect();
        if wishes::written_ingress(&service) == wanted {
            return Ok(());
        }
        context.patch_status(service.as_ref(), &json!({"status": {"loadBalancer": {"ingress": wanted}}})).await?;
        self.rest(current.iter().filter(|address| !chosen.addresses.contains(address)));
        if current != chosen.addresses {
            let message = format!("Assigned IP {} from pool {}", all(&chosen.addresses), chosen.pool);
            tell(context, &service, Severity::Normal, "IPAllocated", message);
        }
        Ok(())
    }

    /// The Service cannot have an address, and loses the one that it had.
    async fn refuse(&self, context: &Context, service: &Arc<Service>, why: &str) -> Result<(), WriteError> {
        tell(context, service, Severity::Warning, "AllocationFailed", format!("Failed to allocate IP: {why}"));
        self.give_back(context, service, Some(why)).await
    }

    /// Takes an address that we gave, and our marks, off a Service.
    async fn give_back(&self, context: &Context, service: &Arc<Service>, why: Option<&str>) -> Result<(), WriteError> {
        if wishes::annotation(service, ALLOCATED_FROM_POOL).is_none() && !has_finalizer(service) {
            return Ok(());
        }
        let current = wishes::ingress(service);
        let mut service = service.clone();
        if !current.is_empty() {
            let none = json!({"status": {"loadBalancer": {"ingress": null}}});
            service = Arc::new(context.patch_status(service.as_ref(), &none).await?);
            self.rest(current.iter());
            let why = why.unwrap_or("the Service asks for no address of ours any more");
            tell(
                context,
                &service,
                Severity::Normal,
                "ClearAssignment",
                format!("{} is given back: {why}", all(&current)),
            );
        }
        context.patch(service.as_ref(), &marked(&service, None)).await?;
        Ok(())
    }

    /// A deleted Service may go. Its address rests from now on.
    async fn let_go(&self, context: &Context, service: &Arc<Service>) -> Result<(), WriteError> {
        if !has_finalizer(service) {
            return Ok(());
        }
        let addresses = wishes::ingress(service);
        context.patch(service.as_ref(), &json!({"metadata": {"finalizers": other_finalizers(service)}})).await?;
        self.rest(addresses.iter());
        Ok(())
    }

    fn rest<'a>(&self, addresses: impl Iterator<Item = &'a IpAddr>) {
        let now = Instant::now();
        lock(&self.resting).extend(addresses.map(|address| (*address, now)));
    }

    fn still_resting(&self) -> BTreeSet<IpAddr> {
        let mut resting = lock(&self.resting);
        resting.retain(|_, since| since.elapsed() < REST);
        resting.keys().copied().collect()
    }

    /// Each pool's status, an Event on each that cannot be used as it is, and what the component says of the configuration.
    async fn tell_of_pools(&self, context: &Context) -> Result<(), WriteError> {
        let (pools, faults) = self.pools(context);
        let objects = context.world.pools.all();
        let in_use: BTreeSet<IpAddr> =
            context.world.services.select(&Index::LoadBalancer).iter().flat_map(|one| wishes::ingress(one)).collect();
        for object in &objects {
            let counted = pools.iter().find(|pool| &*pool.name == object.name()).map(|pool| count(pool, &in_use));
            if let Some(status) = counted
                && object.status.as_ref() != Some(&status)
            {
                context.patch_status(object.as_ref(), &json!({"status": status})).await?;
            }
        }
        let told = std::mem::replace(&mut *lock(&self.told), faults.clone());
        for fault in faults.iter().filter(|fault| !told.contains(fault)) {
            tracing::warn!(pool = %fault.name, problem = fault.problem, "a pool cannot be used as it is written");
            if let Some(object) = objects.iter().find(|object| object.name() == &*fault.name) {
                let message = format!("{}; its last good form stays in force", fault.problem);
                context.events.tell(COMPONENT, object.as_ref(), Severity::Warning, "InvalidPool", message);
            }
        }
        tell_state(context, &objects, &faults).await
    }
}

async fn tell_state(context: &Context, objects: &[Arc<IPAddressPool>], faults: &[Fault]) -> Result<(), WriteError> {
    let Some(first) = objects.first() else { return Ok(()) };
    let namespace = first.metadata.namespace.as_deref().unwrap_or(NAMESPACE);
    let problems: Vec<String> = faults.iter().map(|fault| format!("pool {}: {}", fault.name, fault.problem)).collect();
    let status = ConfigurationStateStatus {
        result: if faults.is_empty() { "Valid" } else { "Invalid" }.to_owned(),
        last_error: problems.join("; "),
        conditions: Vec::new(),
    };
    let name = ObjectName::new(namespace, "controller");
    let state = match context.world.states.get(&name) {
        Some(state) => state,
        None => {
            let labels = BTreeMap::from([("metallb.io/component-type".to_owned(), "controller".to_owned())]);
            let metadata = ObjectMeta {
                name: Some(name.name.to_string()),
                namespace: Some(namespace.to_owned()),
                labels: Some(labels),
                ..ObjectMeta::default()
            };
            let state = ConfigurationState::new(metadata, ConfigurationStateSpec {});
            match context.create(&state).await {
                Ok(state) => Arc::new(state),
                // The namespace is going, and the pools with it.
                Err(error) if error.is_namespace_ending() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    if state.status.as_ref() != Some(&status) {
        let patch = json!({"status": {"result": status.result, "lastError": status.last_error}});
        context.patch_status(state.as_ref(), &patch).await?;
    }
    Ok(())
}

fn count(pool: &Pool, in_use: &BTreeSet<IpAddr>) -> signpost_metallb::pool::IPAddressPoolStatus {
    let used = |family| in_use.iter().filter(|address| Family::of(**address) == family && pool.has(**address)).count();
    let left = |family, used: usize| i64::try_from(pool.size(family).saturating_sub(used as u128)).unwrap_or(i64::MAX);
    let (ipv4, ipv6) = (used(Family::Ipv4), used(Family::Ipv6));
    signpost_metallb::pool::IPAddressPoolStatus {
        assigned_ipv4: i64::try_from(ipv4).unwrap_or(i64::MAX),
        assigned_ipv6: i64::try_from(ipv6).unwrap_or(i64::MAX),
        available_ipv4: left(Family::Ipv4, ipv4),
        available_ipv6: left(Family::Ipv6, ipv6),
    }
}

/// The labels of a namespace; none if it is not known.
fn namespace_labels(world: &World, namespace: &str) -> Labels {
    let found = world.namespaces.get(&ObjectName::new("", namespace));
    convert::labels(found.as_ref().and_then(|found| found.metadata.labels.as_ref()))
}

/// What the caches say of everybody but one Service.
struct Elsewhere<'a> {
    world: &'a World,
    besides: &'a ObjectName,
    resting: BTreeSet<IpAddr>,
    node_addresses: BTreeMap<IpAddr, String>,
    pod_ranges: Vec<(IpNet, String)>,
    /// What nodes found that somebody else has, and which node.
    in_use: BTreeMap<IpAddr, String>,
}

impl Elsewhere<'_> {
    fn new<'a>(world: &'a World, besides: &'a ObjectName, resting: BTreeSet<IpAddr>) -> Elsewhere<'a> {
        let (mut node_addresses, mut pod_ranges) = (BTreeMap::new(), Vec::new());
        for node in world.nodes.all() {
            let name = node.metadata.name.clone().unwrap_or_default();
            let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            let parsed = addresses.filter_map(|address| address.address.parse().ok());
            node_addresses.extend(parsed.map(|address| (address, name.clone())));
            let ranges = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
            pod_ranges.extend(ranges.filter_map(|range| Some((range.parse().ok()?, name.clone()))));
        }
        let mut in_use = BTreeMap::new();
        for state in world.states.all() {
            let node =
                state.metadata.labels.as_ref().and_then(|labels| labels.get(NODE_NAME)).cloned().unwrap_or_default();
            in_use.extend(found_in_use(&state).into_iter().map(|address| (address, node.clone())));
        }
        Elsewhere { world, besides, resting, node_addresses, pod_ranges, in_use }
    }
}

impl Others for Elsewhere<'_> {
    fn users(&self, address: IpAddr) -> Vec<(ObjectName, Sharing)> {
        let users = self.world.services.select(&Index::Ingress(address));
        let named = users.iter().map(|service| (name_of(service.as_ref()), wishes::sharing(service)));
        named.filter(|(name, _)| name != self.besides).collect()
    }

    fn shared(&self, key: &str) -> BTreeSet<IpAddr> {
        let sharers = self.world.services.select(&Index::SharingKey(key.into()));
        let others = sharers.iter().filter(|service| name_of(service.as_ref()) != *self.besides);
        others.flat_map(|service| wishes::ingress(service)).collect()
    }

    fn reserved(&self, address: IpAddr) -> Option<String> {
        if let Some(node) = self.node_addresses.get(&address) {
            return Some(format!("it is an address of node {node}"));
        }
        let pods = self.pod_ranges.iter().find(|(range, _)| range.contains(&address));
        pods.map(|(range, node)| format!("it lies in {range}, the range of node {node}'s pods"))
    }

    fn is_resting(&self, address: IpAddr) -> bool {
        self.resting.contains(&address)
    }

    fn in_use(&self, address: IpAddr) -> Option<String> {
        self.in_use.get(&address).map(|node| format!("on the segment of node {node}"))
    }
}

fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn other_finalizers(service: &Service) -> Vec<&String> {
    service.metadata.finalizers.iter().flatten().filter(|finalizer| *finalizer != FINALIZER).collect()
}

/// A patch that puts our marks on a Service or takes them off.
fn marked(service: &Service, pool: Option<&str>) -> Value {
    let mut finalizers: Vec<&str> = other_finalizers(service).into_iter().map(String::as_str).collect();
    if pool.is_some() {
        finalizers.push(FINALIZER);
    }
    json!({"metadata": {"annotations": {ALLOCATED_FROM_POOL: pool}, "finalizers": finalizers}})
}

fn tell(context: &Context, service: &Arc<Service>, severity: Severity, reason: &'static str, message: String) {
    context.events.tell(COMPONENT, service.as_ref(), severity, reason, message);
}

fn all(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Held for a moment of pure work: there is no half-done state after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
