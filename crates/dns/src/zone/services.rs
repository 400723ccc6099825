//! Pure. Services with their slices, each at a place of its own, and the addresses that lead back to them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use signpost_core::object::ObjectName;

use crate::labels::key;
use crate::object::{Endpoint, Port, Service, Slice, StandsFor};

/// A place in the table.
type Place = u32;

/// All of them.
pub(super) struct Services {
    entries: Vec<Entry>,
    free: Vec<Place>,
    by_name: HashMap<Box<[u8]>, Place>,
    /// Which entry a slice stands in: its deletion does not say it, and its label may change.
    slices: HashMap<Box<[u8]>, Place>,
    /// In order, so that a range of them can be asked for.
    addresses: BTreeMap<IpAddr, Owners>,
    /// How many entries with a Service each has.
    namespaces: HashMap<Box<str>, u32>,
    known: usize,
    pod_names: bool,
}

/// A Service, slices of one, or both.
#[derive(Default)]
pub(super) struct Entry {
    name: Box<str>,
    namespace: Box<str>,
    service: Option<KnownService>,
    slices: Vec<KnownSlice>,
}

struct KnownService {
    list: u32,
    publish_not_ready: bool,
    stands_for: StandsFor,
}

pub(super) struct KnownSlice {
    list: u32,
    key: Box<[u8]>,
    /// By name and address, without duplicates.
    endpoints: Box<[KnownEndpoint]>,
    pub(super) ports: Box<[Port]>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KnownEndpoint {
    /// `None`: it goes by its address.
    pub(super) name: Option<Box<str>>,
    pub(super) address: IpAddr,
    ready: bool,
}

/// The entries that an address belongs to, and how many times each: most have one.
enum Owners {
    One(Owner),
    Many(Vec<Owner>),
}

#[derive(Clone, Copy)]
struct Owner {
    place: Place,
    times: u32,
}

impl Entry {
    /// The Service's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// `None`: there are slices, but no Service.
    pub(super) fn stands_for(&self) -> Option<&StandsFor> {
        self.service.as_ref().map(|service| &service.stands_for)
    }

    /// Its slices with those of their endpoints that count.
    pub(super) fn slices(&self) -> impl Iterator<Item = (&KnownSlice, impl Iterator<Item = &KnownEndpoint>)> {
        let all = self.service.as_ref().is_some_and(|service| service.publish_not_ready);
        self.slices.iter().map(move |slice| (slice, slice.endpoints.iter().filter(move |known| all || known.ready)))
    }

    /// The endpoints that count. One that two slices hold comes twice.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &KnownEndpoint> {
        self.slices().flat_map(|(_, endpoints)| endpoints)
    }

    /// Whether an endpoint may come twice.
    pub(super) fn may_repeat(&self) -> bool {
        self.slices.len() > 1
    }

    fn cluster_ips(&self) -> &[IpAddr] {
        match self.stands_for() {
            Some(StandsFor::ClusterIps { addresses, .. }) => addresses,
            _ => &[],
        }
    }
}

impl Services {
    pub(super) fn new(pod_names: bool) -> Services {
        Services {
            entries: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            slices: HashMap::new(),
            addresses: BTreeMap::new(),
            namespaces: HashMap::new(),
            known: 0,
            pod_names,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known
    }

    /// Whether nothing is kept, but free places.
    #[cfg(test)]
    pub(super) fn is_empty_inside(&self) -> bool {
        let kept = [self.by_name.len(), self.slices.len(), self.addresses.len(), self.namespaces.len(), self.known];
        kept == [0; 5] && self.free.len() == self.entries.len()
    }

    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    /// By the labels of its name and namespace.
    pub(super) fn get(&self, labels: &[u8]) -> Option<&Entry> {
        self.by_name.get(labels).map(|place| &self.entries[*place as usize])
    }

    /// The entries that an address belongs to, as a cluster address or an endpoint's.
    pub(super) fn of_address(&self, address: IpAddr) -> impl Iterator<Item = &Entry> {
        let owners = self.addresses.get(&address).map_or(&[][..], Owners::all);
        owners.iter().map(|owner| &self.entries[owner.place as usize])
    }

    /// The addresses in this range.
    pub(super) fn between(&self, first: IpAddr, last: IpAddr) -> impl Iterator<Item = IpAddr> {
        self.addresses.range(first..=last).map(|(address, _)| *address)
    }

    pub(super) fn apply(&mut self, service: Service, list: u32) {
        let place = self.place(&service.name.name, &service.name.namespace);
        let entry = &mut self.entries[place as usize];
        let before = entry.cluster_ips().to_vec();
        let new = entry.service.is_none();
        let Service { publish_not_ready, stands_for, .. } = service;
        entry.service = Some(KnownService { list, publish_not_ready, stands_for });
        let after = entry.cluster_ips().to_vec();
        if new {
            self.known += 1;
            *self.namespaces.entry(service.name.namespace.as_ref().into()).or_default() += 1;
        }
        self.readdress(place, &before, &after);
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        if let Some(place) = self.by_name.get(&key([&name.name, &name.namespace])).copied() {
            self.remove_at(place);
        }
    }

    fn remove_at(&mut self, place: Place) {
        let entry = &mut self.entries[place as usize];
        let before = entry.cluster_ips().to_vec();
        if entry.service.take().is_some() {
            self.known -= 1;
            if let Some(count) = self.namespaces.get_mut(&entry.namespace) {
                *count -= 1;
                if *count == 0 {
                    self.namespaces.remove(&entry.namespace);
                }
            }
        }
        self.readdress(place, &before, &[]);
        self.release(place);
    }

    pub(super) fn apply_slice(&mut self, slice: Slice, list: u32) {
        let key = slice_key(&slice.name);
        let place = self.place(&slice.service, &slice.name.namespace);
        if self.slices.get(&key).is_some_and(|old| *old != place) {
            self.remove_slice_of(&key);
        }
        let mut endpoints: Vec<KnownEndpoint> = slice.endpoints.into_iter().map(|e| known(e, self.pod_names)).collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        let after: Vec<IpAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
        let new = KnownSlice { list, key: key.clone(), endpoints: endpoints.into(), ports: slice.ports.into() };
        let entry = &mut self.entries[place as usize];
        let before = match entry.slices.iter_mut().find(|known| known.key == key) {
            Some(known) => std::mem::replace(known, new).endpoints,
            None => {
                entry.slices.push(new);
                Box::default()
            }
        };
        self.slices.insert(key, place);
        let before: Vec<IpAddr> = before.iter().map(|endpoint| endpoint.address).collect();
        self.readdress(place, &before, &after);
    }

    pub(super) fn remove_slice(&mut self, name: &ObjectName) {
        self.remove_slice_of(&slice_key(name));
    }

    fn remove_slice_of(&mut self, key: &[u8]) {
        let Some(place) = self.slices.remove(key) else { return };
        let entry = &mut self.entries[place as usize];
        if let Some(at) = entry.slices.iter().position(|known| *known.key == *key) {
            let gone = entry.slices.swap_remove(at);
            let before: Vec<IpAddr> = gone.endpoints.iter().map(|endpoint| endpoint.address).collect();
            self.readdress(place, &before, &[]);
        }
        self.release(place);
    }

    pub(super) fn drop_older(&mut self, list: u32) {
        let old = |(_, entry): &(usize, &Entry)| entry.service.as_ref().is_some_and(|known| known.list != list);
        let places: Vec<usize> = self.entries.iter().enumerate().filter(old).map(|(place, _)| place).collect();
        for place in places {
            self.remove_at(place as Place);
        }
    }

    pub(super) fn drop_older_slices(&mut self, list: u32) {
        let slices = self.entries.iter().flat_map(|entry| &entry.slices);
        let old: Vec<Box<[u8]>> = slices.filter(|known| known.list != list).map(|known| known.key.clone()).collect();
        for key in old {
            self.remove_slice_of(&key);
        }
    }

    /// The place of this name; a new one if it has none.
    fn place(&mut self, name: &str, namespace: &str) -> Place {
        let key = key([name, namespace]);
        if let Some(place) = self.by_name.get(&key) {
            return *place;
        }
        let entry = Entry { name: name.into(), namespace: namespace.into(), ..Entry::default() };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as Place
            }
        };
        self.by_name.insert(key, place);
        place
    }

    /// Gives a place back that holds nothing any more.
    fn release(&mut self, place: Place) {
        let entry = &mut self.entries[place as usize];
        if entry.service.is_none() && entry.slices.is_empty() {
            self.by_name.remove(&key([&entry.name, &entry.namespace]));
            *entry = Entry::default();
            self.free.push(place);
        }
    }

    fn readdress(&mut self, place: Place, before: &[IpAddr], after: &[IpAddr]) {
        // Added first: an address that stays is never without an owner, and its node in the tree stays too.
        for address in after {
            match self.addresses.get_mut(address) {
                Some(owners) => owners.add(place),
                None => {
                    self.addresses.insert(*address, Owners::One(Owner { place, times: 1 }));
                }
            }
        }
        for address in before {
            if self.addresses.get_mut(address).is_some_and(|owners| owners.remove(place)) {
                self.addresses.remove(address);
            }
        }
    }
}

impl Owners {
    fn all(&self) -> &[Owner] {
        match self {
            Owners::One(owner) => std::slice::from_ref(owner),
            Owners::Many(owners) => owners,
        }
    }

    fn add(&mut self, place: Place) {
        let known = match self {
            Owners::One(owner) => std::slice::from_mut(owner),
            Owners::Many(owners) => owners,
        };
        if let Some(owner) = known.iter_mut().find(|owner| owner.place == place) {
            owner.times += 1;
            return;
        }
        let new = Owner { place, times: 1 };
        match self {
            Owners::One(owner) => *self = Owners::Many(vec![*owner, new]),
            Owners::Many(owners) => owners.push(new),
        }
    }

    /// Whether nobody owns it any more.
    fn remove(&mut self, place: Place) -> bool {
        match self {
            Owners::One(owner) if owner.place == place => {
                owner.times -= 1;
                owner.times == 0
            }
            Owners::One(_) => false,
            Owners::Many(owners) => {
                if let Some(at) = owners.iter().position(|owner| owner.place == place) {
                    owners[at].times -= 1;
                    if owners[at].times == 0 {
                        owners.swap_remove(at);
                    }
                }
                owners.is_empty()
            }
        }
    }
}

fn known(endpoint: Endpoint, pod_names: bool) -> KnownEndpoint {
    let Endpoint { address, hostname, pod, ready } = endpoint;
    KnownEndpoint { name: hostname.or(if pod_names { pod } else { None }), address, ready }
}

fn slice_key(name: &ObjectName) -> Box<[u8]> {
    key([&name.namespace, &name.name])
}
