//! Pure. What the API said, kept: objects by name, slices by Service, and what changed since it was last asked.
//!
//! First station of the flow: `Event` in, [`Dirty`] out. An object that is applied again as it was changes nothing, so
//! that a new list costs nothing downstream. A list is framed by [`Event::Reset`] and [`Event::Synced`]: what was there
//! before and is not applied again in between is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::intern::Interner;
use crate::object::{EndpointSlice, Family, Node, ObjectName, Service};

/// The kinds of objects that a node watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR.
    #[serde(rename = "ServiceCIDR")]
    ServiceCidr,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
}

impl fmt::Display for Kind {
    /// As the API names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
        })
    }
}

/// One thing that the API said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The Service is now so.
    ServiceApplied(Service),
    /// The Service is gone, or no longer ours.
    ServiceDeleted(ObjectName),
    /// The slice is now so.
    SliceApplied(EndpointSlice),
    /// The slice is gone, or no longer ours.
    SliceDeleted(ObjectName),
    /// The node is now so.
    NodeApplied(Node),
    /// The node is gone.
    NodeDeleted(Arc<str>),
    /// The ServiceCIDR object has these ranges.
    ServiceCidrsApplied {
        /// The object's name.
        name: Arc<str>,
        /// Its ranges.
        cidrs: Vec<IpNet>,
    },
    /// The ServiceCIDR object is gone.
    ServiceCidrsDeleted(Arc<str>),
    /// A new list of this kind begins. A second one before `Synced` begins the list anew.
    Reset(Kind),
    /// The list is complete.
    Synced(Kind),
}

/// What changed since [`Store::take_dirty`] was last called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Services whose object or slices changed; some may be in the store no more, or never have been.
    pub services: BTreeSet<ObjectName>,
    /// Nodes that changed, came or went.
    pub nodes: BTreeSet<Arc<str>>,
    /// Some ServiceCIDR changed.
    pub service_cidrs: bool,
}

impl Dirty {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Dirty::default()
    }

    /// Adds what another says.
    pub fn merge(&mut self, other: Dirty) {
        self.services.extend(other.services);
        self.nodes.extend(other.nodes);
        self.service_cidrs |= other.service_cidrs;
    }
}

/// The objects, as last heard.
#[derive(Debug, Default)]
pub struct Store {
    services: Table<ObjectName, Service>,
    slices: Table<ObjectName, EndpointSlice>,
    nodes: Table<Arc<str>, Node>,
    service_cidrs: Table<Arc<str>, Vec<IpNet>>,
    /// Sorted, never empty.
    slices_of: BTreeMap<ObjectName, Vec<ObjectName>>,
    dirty: Dirty,
    interner: Interner,
}

impl Store {
    /// An empty one, not synced.
    pub fn new() -> Store {
        Store::default()
    }

    /// Takes an event in. Costs in proportion to the object, except for the frame of a list, which costs in proportion
    /// to the kind's objects.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::ServiceApplied(mut service) => {
                self.interner.service(&mut service);
                let name = service.name.clone();
                if self.services.apply(name.clone(), service).is_some() {
                    self.dirty.services.insert(name);
                }
            }
            Event::ServiceDeleted(name) => self.delete_service(name),
            Event::SliceApplied(slice) => self.apply_slice(slice),
            Event::SliceDeleted(name) => self.delete_slice(&name),
            Event::NodeApplied(node) => {
                let name = node.name.clone();
                if self.nodes.apply(name.clone(), node).is_some() {
                    self.dirty.nodes.insert(name);
                }
            }
            Event::NodeDeleted(name) => self.delete_node(name),
            Event::ServiceCidrsApplied { name, cidrs } => {
                self.dirty.service_cidrs |= self.service_cidrs.apply(name, cidrs).is_some();
            }
            Event::ServiceCidrsDeleted(name) => self.delete_service_cidrs(&name),
            Event::Reset(kind) => self.reset(kind),
            Event::Synced(kind) => self.sync(kind),
        }
    }

    /// Whether every kind was listed to its end at least once. Stays so during later lists: until one is complete, what
    /// was known before holds.
    pub fn is_synced(&self) -> bool {
        Kind::ALL.into_iter().all(|kind| self.is_kind_synced(kind))
    }

    /// Whether this kind was listed to its end at least once.
    pub fn is_kind_synced(&self, kind: Kind) -> bool {
        match kind {
            Kind::Service => self.services.synced,
            Kind::EndpointSlice => self.slices.synced,
            Kind::Node => self.nodes.synced,
            Kind::ServiceCidr => self.service_cidrs.synced,
        }
    }

    /// What changed since the last call.
    pub fn take_dirty(&mut self) -> Dirty {
        mem::take(&mut self.dirty)
    }

    /// One Service.
    pub fn service(&self, name: &ObjectName) -> Option<&Arc<Service>> {
        self.services.objects.get(name)
    }

    /// All Services, by name.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.objects.values()
    }

    /// The slices that name this Service, by their own names. The Service itself need not be there.
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        let names = self.slices_of.get(service).into_iter().flatten();
        names.filter_map(|name| self.slices.objects.get(name))
    }

    /// One node.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.objects.get(name)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.objects.values()
    }

    /// The ranges of all ServiceCIDR objects in one family, sorted, without duplicates.
    pub fn service_cidrs(&self, family: Family) -> Vec<IpNet> {
        let ranges = self.service_cidrs.objects.values().flat_map(|cidrs| cidrs.iter());
        let ranges: BTreeSet<IpNet> =
            ranges.filter(|range| Family::of(range.addr()) == family).map(IpNet::trunc).collect();
        ranges.into_iter().collect()
    }

    fn apply_slice(&mut self, mut slice: EndpointSlice) {
        self.interner.slice(&mut slice);
        let (name, service) = (slice.name.clone(), slice.service.clone());
        let Some(before) = self.slices.apply(name.clone(), slice) else { return };
        if let Some(before) = before.filter(|before| before.service != service) {
            self.unlink(&name, &before.service);
        }
        let slices = self.slices_of.entry(service.clone()).or_default();
        if let Err(place) = slices.binary_search(&name) {
            slices.reserve_exact(1);
            slices.insert(place, name);
        }
        self.dirty.services.insert(service);
    }

    fn delete_service(&mut self, name: ObjectName) {
        if self.services.delete(&name).is_some() {
            self.dirty.services.insert(name);
        }
    }

    fn delete_slice(&mut self, name: &ObjectName) {
        if let Some(before) = self.slices.delete(name) {
            self.unlink(name, &before.service);
        }
    }

    fn delete_node(&mut self, name: Arc<str>) {
        if self.nodes.delete(&name).is_some() {
            self.dirty.nodes.insert(name);
        }
    }

    fn delete_service_cidrs(&mut self, name: &Arc<str>) {
        self.dirty.service_cidrs |= self.service_cidrs.delete(name).is_some();
    }

    fn unlink(&mut self, slice: &ObjectName, service: &ObjectName) {
        if let Some(slices) = self.slices_of.get_mut(service) {
            slices.retain(|name| name != slice);
            if slices.is_empty() {
                self.slices_of.remove(service);
            }
        }
        self.dirty.services.insert(service.clone());
    }

    fn reset(&mut self, kind: Kind) {
        match kind {
            Kind::Service => self.services.reset(),
            Kind::EndpointSlice => self.slices.reset(),
            Kind::Node => self.nodes.reset(),
            Kind::ServiceCidr => self.service_cidrs.reset(),
        }
    }

    fn sync(&mut self, kind: Kind) {
        match kind {
            Kind::Service => self.services.sync().into_iter().for_each(|name| self.delete_service(name)),
            Kind::EndpointSlice => self.slices.sync().iter().for_each(|name| self.delete_slice(name)),
            Kind::Node => self.nodes.sync().into_iter().for_each(|name| self.delete_node(name)),
            Kind::ServiceCidr => self.service_cidrs.sync().iter().for_each(|name| self.delete_service_cidrs(name)),
        }
        self.interner.forget_unused();
    }
}

/// The objects of one kind.
#[derive(Debug)]
struct Table<K, V> {
    objects: BTreeMap<K, Arc<V>>,
    /// During a list: what was there when it began and was not applied since.
    unseen: BTreeSet<K>,
    synced: bool,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table { objects: BTreeMap::new(), unseen: BTreeSet::new(), synced: false }
    }
}

impl<K: Ord + Clone, V: PartialEq> Table<K, V> {
    /// `None`: it was so already. Else what was there before.
    fn apply(&mut self, key: K, value: V) -> Option<Option<Arc<V>>> {
        self.unseen.remove(&key);
        if self.objects.get(&key).is_some_and(|before| **before == value) {
            return None;
        }
        Some(self.objects.insert(key, Arc::new(value)))
    }

    fn delete(&mut self, key: &K) -> Option<Arc<V>> {
        self.unseen.remove(key);
        self.objects.remove(key)
    }

    fn reset(&mut self) {
        self.unseen = self.objects.keys().cloned().collect();
    }

    /// Ends a list; gives what has to be deleted.
    fn sync(&mut self) -> BTreeSet<K> {
        self.synced = true;
        mem::take(&mut self.unseen)
    }
}

#[cfg(test)]
mod tests;
