//! What the announcer knows of the API: pools, advertisements, load balancers, nodes and the records of ownership.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use futures::Stream;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource};
use signpost_cluster::convert;
use signpost_cluster::watch::{Told, Watches};
use signpost_core::announce::advertise::{Advertisement, Announcer};
use signpost_core::labels::Labels;
use signpost_core::load_balancer::Pool;
use signpost_core::object::ObjectName;
use signpost_metallb::convert::{Fault, Pools, l2_advertisement, labels};
use signpost_metallb::{ALLOCATED_FROM_POOL, IPAddressPool, L2Advertisement, NAMESPACE};

use super::records;

/// One thing that the API said.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // each is moved once, from a queue into a table
pub enum Word {
    /// Of a pool.
    Pool(Told<IPAddressPool>),
    /// Of an advertisement.
    Advertisement(Told<L2Advertisement>),
    /// Of a load balancer.
    Service(Told<Service>),
    /// Of a node.
    Node(Told<Node>),
    /// Of a record.
    Record(Told<Lease>),
}

/// Watches what says whether anything is to be announced at all: a few small objects.
pub fn watch_configuration(client: Client, server: &str) -> impl Stream<Item = Word> + Send + Unpin + use<> {
    let mut watches = Watches::new(client, server);
    watches.add_optional("IPAddressPool", None, |told| vec![Word::Pool(told)]);
    watches.add_optional("L2Advertisement", None, |told| vec![Word::Advertisement(told)]);
    watches.into_stream()
}

/// Watches what else is needed once something is.
pub fn watch_cluster(client: Client, server: &str) -> impl Stream<Item = Word> + Send + Unpin + use<> {
    let mut watches = Watches::new(client, server);
    let only = |field: &str| Some(field.to_owned());
    watches.add_optional("Service", only("spec.type=LoadBalancer"), |told| vec![Word::Service(told)]);
    watches.add_optional("Node", None, |told| vec![Word::Node(told)]);
    watches.add_namespaced("Lease", NAMESPACE, |told| vec![Word::Record(told)]);
    watches.into_stream()
}

/// A load balancer, as far as announcing needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancer {
    /// The Service's uid, for Events.
    pub uid: String,
    /// Its labels.
    pub labels: Labels,
    /// The pool that its addresses came from, as the controller wrote it.
    pub pool: Option<Arc<str>>,
}

/// Everything.
#[derive(Default)]
pub struct Known {
    pools: Table<IPAddressPool>,
    advertisements: Table<L2Advertisement>,
    /// By namespace and name.
    pub services: Table<LoadBalancer>,
    nodes: Table<Announcer>,
    records: Table<Lease>,
    read_pools: Pools,
    /// The pools that can be used.
    pub usable_pools: Vec<Pool>,
    /// The advertisements that can be used.
    pub usable_advertisements: Vec<Advertisement>,
    /// What cannot.
    pub faults: Vec<Fault>,
}

impl Known {
    /// Takes in what the API said.
    pub fn hear(&mut self, word: Word) {
        match word {
            Word::Pool(told) => {
                self.pools.hear(told, Some);
                let pools: Vec<Arc<IPAddressPool>> = self.pools.objects.values().map(|entry| entry.1.clone()).collect();
                self.usable_pools = self.read_pools.update(&pools).0;
            }
            Word::Advertisement(told) => {
                self.advertisements.hear(told, Some);
                self.read_advertisements();
            }
            Word::Service(told) => self.services.hear(told, |service| Some(load_balancer(&service))),
            Word::Node(told) => self.nodes.hear(told, |node| Some(announcer(&node))),
            Word::Record(told) => self.records.hear(told, |lease| records::address(&lease).map(|_| lease)),
        }
    }

    /// Whether all kinds are known.
    pub fn is_whole(&self) -> bool {
        self.pools.synced
            && self.advertisements.synced
            && self.services.synced
            && self.nodes.synced
            && self.records.synced
    }

    /// The nodes, by name.
    pub fn nodes(&self) -> BTreeMap<Arc<str>, Announcer> {
        self.nodes.by_name()
    }

    /// The record of an address.
    pub fn record(&self, address: IpAddr) -> Option<&Arc<Lease>> {
        let name = ObjectName::new(NAMESPACE, &records::name(address));
        self.records.objects.get(&name).map(|entry| &entry.1)
    }

    /// Who has each address, by the records.
    pub fn holders(&self) -> BTreeMap<IpAddr, Arc<str>> {
        let records = self.records.objects.values();
        records.filter_map(|(_, lease)| Some((records::address(lease)?, records::holder(lease).into()))).collect()
    }

    /// Takes the API's answer to a write of ours as news.
    pub fn wrote(&mut self, lease: Lease) {
        self.records.apply(lease, Some);
    }

    /// The record is gone: we deleted it, or it was not found.
    pub fn forgot(&mut self, address: IpAddr) {
        self.records.objects.remove(&ObjectName::new(NAMESPACE, &records::name(address)));
    }

    /// The pool of a Service's address: the one that the controller wrote down, else the one that has the address.
    pub fn pool_of(&self, service: &LoadBalancer, address: IpAddr) -> Option<Arc<str>> {
        let by_address = || self.usable_pools.iter().find(|pool| pool.has(address)).map(|pool| pool.name.clone());
        service.pool.clone().or_else(by_address)
    }

    /// The labels of a pool.
    pub fn pool_labels(&self, pool: &str) -> Labels {
        let found = self.pools.objects.values().find(|(_, object)| object.name() == pool);
        labels(found.and_then(|(_, object)| object.metadata.labels.as_ref()))
    }

    /// One that is spoiled keeps its last good form, as pools do.
    fn read_advertisements(&mut self) {
        let former = std::mem::take(&mut self.usable_advertisements);
        self.faults.clear();
        for (_, object) in self.advertisements.objects.values() {
            match l2_advertisement(object) {
                Ok(read) => self.usable_advertisements.push(read),
                Err(problem) => {
                    self.faults.push(Fault { name: object.name().into(), problem });
                    self.usable_advertisements.extend(former.iter().find(|one| &*one.name == object.name()).cloned());
                }
            }
        }
    }
}

/// What announcing needs of a Service.
pub fn load_balancer(service: &Service) -> LoadBalancer {
    let annotations = service.metadata.annotations.as_ref();
    LoadBalancer {
        uid: service.metadata.uid.clone().unwrap_or_default(),
        labels: labels(service.metadata.labels.as_ref()),
        pool: annotations.and_then(|all| all.get(ALLOCATED_FROM_POOL)).map(|pool| pool.as_str().into()),
    }
}

/// What announcing needs of a node.
pub fn announcer(node: &Node) -> Announcer {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = node.metadata.deletion_timestamp.is_none();
    for condition in conditions {
        ready &= match condition.type_.as_str() {
            "Ready" => condition.status == "True",
            "NetworkUnavailable" => condition.status != "True",
            _ => true,
        };
    }
    let addresses = convert::node(node).object.map(|state| state.node.addresses).unwrap_or_default();
    Announcer { labels: labels(node.metadata.labels.as_ref()), ready, addresses }
}

/// The objects of one kind, with their revisions.
#[derive(Debug)]
pub struct Table<T> {
    objects: BTreeMap<ObjectName, (u64, Arc<T>)>,
    /// During a list: what was there before and was not told of since.
    unseen: BTreeSet<ObjectName>,
    synced: bool,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { objects: BTreeMap::new(), unseen: BTreeSet::new(), synced: false }
    }
}

impl<T: Clone> Table<T> {
    /// Copies of all objects, by their names alone: of a kind that lives in no namespace.
    pub fn by_name(&self) -> BTreeMap<Arc<str>, T> {
        self.objects.iter().map(|(name, (_, object))| (name.name.clone(), object.as_ref().clone())).collect()
    }
}

impl<T> Table<T> {
    /// Whether the first list was whole.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// All objects.
    pub fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values().map(|entry| &entry.1)
    }

    /// An object.
    pub fn get(&self, name: &ObjectName) -> Option<&Arc<T>> {
        self.objects.get(name).map(|entry| &entry.1)
    }

    /// Takes in what the API said of an object; `None` of `convert`: it is none of these.
    pub fn hear<K: Resource<DynamicType = ()>>(&mut self, told: Told<K>, convert: impl FnOnce(K) -> Option<T>) {
        match told {
            Told::Reset => self.unseen = self.objects.keys().cloned().collect(),
            Told::Synced { .. } => {
                for name in std::mem::take(&mut self.unseen) {
                    self.objects.remove(&name);
                }
                self.synced = true;
            }
            Told::Applied { object, .. } => self.apply(object, convert),
            Told::Deleted { metadata, .. } | Told::Unreadable { metadata, .. } => {
                let name = object_name(&metadata);
                // What we wrote since, under the same name, is another object.
                if self.objects.get(&name).is_none_or(|(known, _)| *known <= revision(&metadata)) {
                    self.objects.remove(&name);
                }
                self.unseen.remove(&name);
            }
            Told::Bookmark { .. } => {}
        }
    }

    fn apply<K: Resource<DynamicType = ()>>(&mut self, object: K, convert: impl FnOnce(K) -> Option<T>) {
        let (name, revision) = (object_name(object.meta()), revision(object.meta()));
        self.unseen.remove(&name);
        if self.objects.get(&name).is_some_and(|(known, _)| *known > revision) {
            return;
        }
        match convert(object) {
            Some(object) => self.objects.insert(name, (revision, Arc::new(object))),
            None => self.objects.remove(&name),
        };
    }
}

fn object_name(metadata: &ObjectMeta) -> ObjectName {
    convert::object_name(metadata)
}

fn revision(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}
