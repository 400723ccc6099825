//! Pure. Which cluster addresses and node ports are taken, kept beside the objects that take them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::Value;
use signpost_core::allocator::{AddressAllocator, AddressError, PortAllocator};

use super::objects::{Change, Objects};
use crate::object;
use crate::registry;

/// Something a Service holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holding {
    /// A cluster address.
    Address(IpAddr),
    /// A node port, of any protocol.
    Port(NonZeroU16),
}

/// The allocators, one per service network, those of further ranges, and the node ports'.
#[derive(Debug, Clone)]
pub struct Allocations {
    /// In the order of the configuration: the first one's family is the primary one.
    pub addresses: Vec<AddressAllocator>,
    /// Of ServiceCIDR objects that somebody made (KEP-1880), by name; one that is to be deleted gives out no more.
    more: BTreeMap<String, Vec<AddressAllocator>>,
    /// The node ports, health check node ports among them.
    pub ports: PortAllocator,
    /// Every address that is taken, in whatever range.
    held: BTreeSet<IpAddr>,
}

impl Allocations {
    /// Everything is free.
    pub fn new(service_cidrs: &[IpNet], node_ports: RangeInclusive<u16>) -> Allocations {
        Allocations {
            addresses: service_cidrs.iter().map(|&cidr| AddressAllocator::new(cidr)).collect(),
            more: BTreeMap::new(),
            ports: PortAllocator::new(node_ports),
            held: BTreeSet::new(),
        }
    }

    /// With the ranges of `objects` and what their Services hold, and nothing else.
    pub fn rebuild(&mut self, objects: &Objects) {
        let cidrs: Vec<IpNet> = self.addresses.iter().map(AddressAllocator::range).collect();
        *self = Allocations::new(&cidrs, self.ports.range());
        for range in objects.list(registry::known("ServiceCIDR"), None) {
            self.set_ranges(&range.value);
        }
        for service in objects.list(registry::known("Service"), None) {
            holdings(&service.value).into_iter().for_each(|holding| self.hold(holding));
        }
    }

    /// Follows a write.
    pub fn apply(&mut self, change: &Change) {
        if change.slot == registry::known("ServiceCIDR").slot {
            match change.deleted {
                true => drop(self.more.remove(&change.name.1)),
                false => self.set_ranges(&change.object.value),
            }
        }
        if change.slot != registry::known("Service").slot {
            return;
        }
        let before = change.before.as_ref().map_or_else(BTreeSet::new, |before| holdings(&before.value));
        let after = if change.deleted { BTreeSet::new() } else { holdings(&change.object.value) };
        before.difference(&after).for_each(|&holding| self.release(holding));
        after.difference(&before).for_each(|&holding| self.hold(holding));
    }

    /// Takes up a ServiceCIDR object, as far as its ranges are not there already.
    fn set_ranges(&mut self, range: &Value) {
        let name = object::name(range);
        if name == CONFIGURED || object::is_terminating(range) {
            self.more.remove(name);
            return;
        }
        let cidrs = ranges(range);
        let known = self.more.get(name).map(|known| known.iter().map(AddressAllocator::range).collect::<Vec<_>>());
        if known.as_ref() == Some(&cidrs) {
            return;
        }
        let held = &self.held;
        let allocators = cidrs.into_iter().map(|cidr| {
            let mut allocator = AddressAllocator::new(cidr);
            // Those outside of it are none of its business.
            held.iter().for_each(|address| drop(allocator.reserve(*address)));
            allocator
        });
        self.more.insert(name.to_owned(), allocators.collect());
    }

    fn all(&mut self) -> impl Iterator<Item = &mut AddressAllocator> {
        self.addresses.iter_mut().chain(self.more.values_mut().flatten())
    }

    /// Takes a certain address of a service network, or of another range of its family.
    ///
    /// # Errors
    /// As the network's allocator says, if no range has it.
    pub fn reserve_address(&mut self, network: usize, address: IpAddr) -> Result<(), AddressError> {
        let first = match self.addresses[network].reserve(address) {
            Err(first @ AddressError::NotInRange { .. }) => first,
            other => return other.map(|()| self.hold(Holding::Address(address))),
        };
        let mut taken = self.more.values_mut().flatten().map(|allocator| allocator.reserve(address));
        match taken.find(|taken| !matches!(taken, Err(AddressError::NotInRange { .. }))) {
            Some(taken) => taken.map(|()| self.hold(Holding::Address(address))),
            None => Err(first),
        }
    }

    /// Takes any address of a service network; if it has none left, of another range of its family.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate_address(&mut self, network: usize, random: u64) -> Result<IpAddr, AddressError> {
        let is_v4 = self.addresses[network].range().addr().is_ipv4();
        let mut given = self.addresses[network].allocate(random);
        for allocator in self.more.values_mut().flatten() {
            if given.is_err() && allocator.range().addr().is_ipv4() == is_v4 {
                given = allocator.allocate(random).or(given);
            }
        }
        given.inspect(|address| self.hold(Holding::Address(*address)))
    }

    /// What is outside of every range, or taken already, is not counted twice.
    fn hold(&mut self, holding: Holding) {
        match holding {
            Holding::Address(address) => {
                self.held.insert(address);
                for allocator in self.all() {
                    // An address of another range, or one that the transaction took for this very write.
                    let _ = allocator.reserve(address);
                }
            }
            Holding::Port(port) => {
                // As above.
                let _ = self.ports.reserve(port);
            }
        }
    }

    /// Gives something back.
    pub fn release(&mut self, holding: Holding) {
        match holding {
            Holding::Address(address) => {
                self.held.remove(&address);
                self.all().for_each(|allocator| allocator.release(address));
            }
            Holding::Port(port) => self.ports.release(port),
        }
    }
}

/// The ServiceCIDR object of the ranges that the server is started with.
pub const CONFIGURED: &str = "kubernetes";

/// The ranges of a ServiceCIDR object.
pub fn ranges(range: &Value) -> Vec<IpNet> {
    let cidrs = object::items(range, &["spec", "cidrs"]).iter().filter_map(Value::as_str);
    cidrs.filter_map(|cidr| cidr.parse().ok()).collect()
}

/// What a Service holds.
pub fn holdings(service: &Value) -> BTreeSet<Holding> {
    let addresses = object::items(service, &["spec", "clusterIPs"]).iter().filter_map(Value::as_str);
    let mut holdings: BTreeSet<Holding> =
        addresses.filter_map(|address| address.parse().ok()).map(Holding::Address).collect();
    let ports =
        object::items(service, &["spec", "ports"]).iter().filter_map(|port| object::number(port, &["nodePort"]));
    let health = object::number(service, &["spec", "healthCheckNodePort"]);
    holdings.extend(ports.chain(health).filter_map(port).map(Holding::Port));
    holdings
}

/// A number as a port; `None` for 0 and what is none.
pub fn port(number: i64) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}
