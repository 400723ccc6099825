//! Pure. Which cluster addresses and node ports are taken, kept beside the objects that take them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::Value;
use signpost_core::allocator::{AddressAllocator, PortAllocator};

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

/// The allocators, one per service network, and the node ports'.
#[derive(Debug, Clone)]
pub struct Allocations {
    /// In the order of the configuration: the first one's family is the primary one.
    pub addresses: Vec<AddressAllocator>,
    /// The node ports, health check node ports among them.
    pub ports: PortAllocator,
}

impl Allocations {
    /// Everything is free.
    pub fn new(service_cidrs: &[IpNet], node_ports: RangeInclusive<u16>) -> Allocations {
        Allocations {
            addresses: service_cidrs.iter().map(|&cidr| AddressAllocator::new(cidr)).collect(),
            ports: PortAllocator::new(node_ports),
        }
    }

    /// With what the Services of `objects` hold, and nothing else.
    pub fn rebuild(&mut self, objects: &Objects) {
        let cidrs: Vec<IpNet> = self.addresses.iter().map(AddressAllocator::range).collect();
        *self = Allocations::new(&cidrs, self.ports.range());
        for service in objects.list(registry::known("Service"), None) {
            holdings(&service.value).into_iter().for_each(|holding| self.hold(holding));
        }
    }

    /// Follows a write.
    pub fn apply(&mut self, change: &Change) {
        if change.slot != registry::known("Service").slot {
            return;
        }
        let before = change.before.as_ref().map_or_else(BTreeSet::new, |before| holdings(&before.value));
        let after = if change.deleted { BTreeSet::new() } else { holdings(&change.object.value) };
        before.difference(&after).for_each(|&holding| self.release(holding));
        after.difference(&before).for_each(|&holding| self.hold(holding));
    }

    /// What is outside of every range, or taken already, is not counted twice.
    fn hold(&mut self, holding: Holding) {
        match holding {
            Holding::Address(address) => {
                for allocator in &mut self.addresses {
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
            Holding::Address(address) => self.addresses.iter_mut().for_each(|allocator| allocator.release(address)),
            Holding::Port(port) => self.ports.release(port),
        }
    }
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
