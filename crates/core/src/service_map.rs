//! Pure. Joins a Service port with the endpoints that its slices offer for it, in one family.
//!
//! Between [`Store`] and `plan::backends`: what is offered here, is chosen from there. A slice port belongs to a Service
//! port if name and protocol are the same; its number may differ from slice to slice.

use std::net::SocketAddr;

use crate::object::{Endpoint, Family, ObjectName, ServicePort};
use crate::store::Store;

/// An endpoint at the port that the slice gives for one Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// The endpoint with its conditions and hints.
    pub endpoint: &'a Endpoint,
}

impl Offer<'_> {
    /// What an endpoint is good for: 2 ready, 1 serving while it terminates, 0 nothing.
    fn worth(&self) -> u8 {
        if self.endpoint.ready { 2 } else { u8::from(self.endpoint.serving && self.endpoint.terminating) }
    }
}

/// The endpoints offered for one port of a Service: sorted by address, each address once. While an endpoint moves from
/// one slice to another both may have it; then the more useful entry counts, and of equals that of the slice whose name
/// comes first. Addresses of the other family are left out.
pub fn offers<'a>(store: &'a Store, service: &ObjectName, port: &ServicePort, family: Family) -> Vec<Offer<'a>> {
    let mut offers = Vec::new();
    for slice in store.slices_of(service).filter(|slice| slice.family == family) {
        let ports = slice.ports.iter().filter(|offered| offered.name == port.name && offered.protocol == port.protocol);
        for number in ports.map(|offered| offered.port.get()) {
            let endpoints = slice.endpoints.iter().filter(|endpoint| Family::of(endpoint.address) == family);
            offers.extend(
                endpoints.map(|endpoint| Offer { address: SocketAddr::new(endpoint.address, number), endpoint }),
            );
        }
    }
    offers.sort_by(|a, b| a.address.cmp(&b.address).then(b.worth().cmp(&a.worth())));
    offers.dedup_by_key(|offer| offer.address);
    offers
}
