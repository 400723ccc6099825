//! Pure. What `healthCheckNodePort` of each Service is to answer on this node, per family as kube-proxy has it: whether a load
//! balancer should send the Service's packets here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use signpost_core::object::{Family, ObjectName, Service};
use signpost_core::service_map::offers;
use signpost_core::store::{Dirty, Store};

use crate::progress::Checks;

/// Keeps them in step with the store, at a cost in proportion to what changed.
#[derive(Debug, Default)]
pub struct HealthChecks {
    services: BTreeMap<ObjectName, (NonZeroU16, BTreeMap<Family, usize>)>,
}

impl HealthChecks {
    /// Takes in what changed.
    pub fn update(&mut self, store: &Store, dirty: &Dirty, node: &str) {
        for name in &dirty.services {
            match store.service(name).and_then(|service| Some((service, service.health_check_node_port?))) {
                Some((service, port)) => {
                    let families = service.cluster_ips.iter().map(|address| Family::of(*address));
                    let ready = families.map(|family| (family, ready_here(store, service, family, node)));
                    self.services.insert(name.clone(), (port, ready.collect()));
                }
                None => {
                    self.services.remove(name);
                }
            }
        }
    }

    /// All of them, at the addresses where node ports answer.
    pub fn checks<'a>(&self, addresses: impl Iterator<Item = (Family, &'a BTreeSet<IpAddr>)>) -> Checks {
        let addresses: Vec<(Family, &IpAddr)> =
            addresses.flat_map(|(family, all)| all.iter().map(move |address| (family, address))).collect();
        let of_service = |(name, (port, ready)): (&ObjectName, &(NonZeroU16, BTreeMap<Family, usize>))| {
            let at = addresses.iter().filter_map(|(family, address)| {
                let at = SocketAddr::new(**address, port.get());
                Some(((at, name.clone()), *ready.get(family)?))
            });
            at.collect::<Vec<_>>()
        };
        self.services.iter().flat_map(of_service).collect()
    }
}

/// Endpoints, not ports of them: an address counts once. Those that end count no more, though they may still serve.
fn ready_here(store: &Store, service: &Service, family: Family, node: &str) -> usize {
    let mut addresses = BTreeSet::new();
    for port in &service.ports {
        for offer in offers(store, &service.name, port, family) {
            if offer.endpoint.ready && offer.endpoint.node.as_deref() == Some(node) {
                addresses.insert(offer.address.ip());
            }
        }
    }
    addresses.len()
}
