//! Pure. All objects at one revision, by kind, namespace and name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use serde_json::Value;
use signpost_core::allocator::{AddressError, PortError};

use super::allocations::{Allocations, Holding};

use crate::object;
use crate::registry::{KindInfo, SLOTS};

/// An object as it was stored. Never changed in place: a change is a new one.
#[derive(Debug, PartialEq)]
pub struct Object {
    /// The object; its `metadata.resourceVersion` is `revision`.
    pub value: Value,
    /// The store's revision when this was written.
    pub revision: u64,
}

/// Namespace (empty for what lives in none) and name.
pub type Name = (String, String);

/// One write to one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// The store's revision that this write made.
    pub revision: u64,
    /// The kind's place.
    pub slot: usize,
    /// Namespace and name.
    pub name: Name,
    /// What was there.
    pub before: Option<Arc<Object>>,
    /// What is there now. After a deletion: the last state, with the deletion's revision.
    pub object: Arc<Object>,
    /// The object is gone.
    pub deleted: bool,
}

/// All objects at one revision.
#[derive(Debug, Clone)]
pub struct Objects {
    kinds: Vec<BTreeMap<Name, Arc<Object>>>,
    /// Of the last change of each kind.
    kind_revisions: Vec<u64>,
    revision: u64,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects { kinds: vec![BTreeMap::new(); SLOTS], kind_revisions: vec![0; SLOTS], revision: 0 }
    }
}

impl Objects {
    /// Objects as they were loaded, at the revisions they had.
    pub fn restored(kinds: Vec<BTreeMap<Name, Arc<Object>>>, kind_revisions: Vec<u64>, revision: u64) -> Objects {
        Objects { kinds, kind_revisions, revision }
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision of the last change of a kind, deletions included.
    pub fn kind_revision(&self, slot: usize) -> u64 {
        self.kind_revisions[slot]
    }

    /// One object.
    pub fn get(&self, kind: &KindInfo, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.kinds[kind.slot].get(&(namespace.to_owned(), name.to_owned()))
    }

    /// All objects of a kind, or those of one namespace, by namespace and name.
    pub fn list(&self, kind: &KindInfo, namespace: Option<&str>) -> impl Iterator<Item = &Arc<Object>> {
        let start = (namespace.unwrap_or("").to_owned(), String::new());
        self.kinds[kind.slot]
            .range(start..)
            .take_while(move |((of, _), _)| namespace.is_none_or(|wanted| wanted == of))
            .map(|(_, object)| object)
    }

    /// Makes a change. Changes come in the order of their revisions.
    pub fn apply(&mut self, change: &Change) {
        if change.deleted {
            self.kinds[change.slot].remove(&change.name);
        } else {
            self.kinds[change.slot].insert(change.name.clone(), change.object.clone());
        }
        self.kind_revisions[change.slot] = change.revision;
        self.revision = change.revision;
    }
}

/// Writes that belong together, on top of the objects as they are. Nothing is changed until the store takes them.
pub struct Transaction<'a> {
    base: &'a Objects,
    changes: Vec<Change>,
    allocations: &'a mut Allocations,
    /// Taken for these writes; given back if they come to nothing.
    taken: Vec<Holding>,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        for holding in self.taken.drain(..) {
            self.allocations.release(holding);
        }
    }
}

impl<'a> Transaction<'a> {
    /// No writes yet.
    pub fn new(base: &'a Objects, allocations: &'a mut Allocations) -> Transaction<'a> {
        Transaction { base, changes: Vec::new(), allocations, taken: Vec::new() }
    }

    /// The objects before these writes.
    pub fn base(&self) -> &'a Objects {
        self.base
    }

    /// What is free and what is taken.
    pub fn allocations(&self) -> &Allocations {
        self.allocations
    }

    /// The writes, in order. What they took is theirs now.
    pub fn into_changes(mut self) -> Vec<Change> {
        self.taken.clear();
        std::mem::take(&mut self.changes)
    }

    /// Takes a certain address of a service network.
    ///
    /// # Errors
    /// As the allocator says.
    pub fn reserve_address(&mut self, network: usize, address: IpAddr) -> Result<(), AddressError> {
        self.allocations.reserve_address(network, address)?;
        self.taken.push(Holding::Address(address));
        Ok(())
    }

    /// Takes any address of a service network.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate_address(&mut self, network: usize, random: u64) -> Result<IpAddr, AddressError> {
        let address = self.allocations.allocate_address(network, random)?;
        self.taken.push(Holding::Address(address));
        Ok(address)
    }

    /// Takes a certain node port.
    ///
    /// # Errors
    /// As the allocator says.
    pub fn reserve_port(&mut self, port: NonZeroU16) -> Result<(), PortError> {
        self.allocations.ports.reserve(port)?;
        self.taken.push(Holding::Port(port));
        Ok(())
    }

    /// Takes any node port.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate_port(&mut self, random: u64) -> Result<NonZeroU16, PortError> {
        let port = self.allocations.ports.allocate(random)?;
        self.taken.push(Holding::Port(port));
        Ok(port)
    }

    /// One object, as these writes leave it.
    pub fn get(&self, kind: &KindInfo, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let written = self
            .changes
            .iter()
            .rev()
            .find(|change| change.slot == kind.slot && change.name.0 == namespace && change.name.1 == name);
        match written {
            Some(change) => (!change.deleted).then(|| change.object.clone()),
            None => self.base.get(kind, namespace, name).cloned(),
        }
    }

    fn next_revision(&self) -> u64 {
        self.base.revision() + 1 + self.changes.len() as u64
    }

    /// Writes an object under the names in its metadata and gives it its resourceVersion.
    pub fn put(&mut self, kind: &KindInfo, value: Value) -> Arc<Object> {
        self.write(kind, value, false)
    }

    /// Removes an object that is there; `value` is its last state.
    pub fn delete(&mut self, kind: &KindInfo, value: Value) -> Arc<Object> {
        self.write(kind, value, true)
    }

    fn write(&mut self, kind: &KindInfo, mut value: Value, deleted: bool) -> Arc<Object> {
        let name = (object::namespace(&value).to_owned(), object::name(&value).to_owned());
        let revision = self.next_revision();
        object::metadata(&mut value).insert("resourceVersion".to_owned(), revision.to_string().into());
        let before = self.get(kind, &name.0, &name.1);
        let object = Arc::new(Object { value, revision });
        self.changes.push(Change { revision, slot: kind.slot, name, before, object: object.clone(), deleted });
        object
    }
}
