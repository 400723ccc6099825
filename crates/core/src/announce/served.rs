//! Pure. What a load balancer's packets need of a node: which Services have addresses, and on which nodes their endpoints are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::object::{Endpoint, Family, ObjectName, TrafficPolicy};
use crate::store::{Dirty, Store};

/// A Service with load-balancer addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Those that nodes serve (`ipMode: VIP`).
    pub addresses: Vec<IpAddr>,
    /// Only nodes with endpoints may announce it.
    pub policy: TrafficPolicy,
    /// By family, the nodes that packets are best sent to: those with ready endpoints; if none is ready, those whose
    /// endpoints serve until they end. An endpoint without a node counts under the empty name. Without an entry: no endpoint.
    pub nodes: BTreeMap<Family, BTreeSet<Arc<str>>>,
}

/// All of them. Cheap to clone.
pub type AllServed = Arc<BTreeMap<ObjectName, Arc<Served>>>;

/// Keeps them in step with the store, at a cost in proportion to what changed.
#[derive(Debug, Default)]
pub struct ServedServices {
    all: AllServed,
}

impl ServedServices {
    /// Takes in what changed.
    pub fn update(&mut self, store: &Store, dirty: &Dirty) {
        for name in &dirty.services {
            let now = served(store, name);
            if self.all.get(name).map(AsRef::as_ref) == now.as_ref() {
                continue;
            }
            let all = Arc::make_mut(&mut self.all);
            match now {
                Some(now) => all.insert(name.clone(), Arc::new(now)),
                None => all.remove(name),
            };
        }
    }

    /// All, as of the last update.
    pub fn all(&self) -> AllServed {
        self.all.clone()
    }
}

fn served(store: &Store, name: &ObjectName) -> Option<Served> {
    let service = store.service(name)?;
    let addresses: Vec<IpAddr> =
        service.ingress.iter().filter(|ingress| ingress.vip).map(|ingress| ingress.address).collect();
    if addresses.is_empty() {
        return None;
    }
    let families: BTreeSet<Family> = addresses.iter().map(|address| Family::of(*address)).collect();
    let nodes = families.into_iter().map(|family| (family, nodes(store, name, family)));
    Some(Served {
        addresses,
        policy: service.external_policy,
        nodes: nodes.filter(|(_, nodes)| !nodes.is_empty()).collect(),
    })
}

fn nodes(store: &Store, name: &ObjectName, family: Family) -> BTreeSet<Arc<str>> {
    let endpoints = || {
        let slices = store.slices_of(name).filter(|slice| slice.family == family && !slice.ports.is_empty());
        slices.flat_map(|slice| &slice.endpoints)
    };
    let of = |useful: fn(&Endpoint) -> bool| -> BTreeSet<Arc<str>> {
        endpoints().filter(|one| useful(one)).map(|one| one.node.clone().unwrap_or_default()).collect()
    };
    let ready = of(|endpoint| endpoint.ready);
    if ready.is_empty() { of(|endpoint| endpoint.serving && endpoint.terminating) } else { ready }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{ip, number, service};
    use crate::object::{EndpointPort, EndpointSlice, Ingress, Protocol, Service};
    use crate::store::Event;

    fn endpoint(node: Option<&str>, ready: bool, terminating: bool) -> Endpoint {
        Endpoint {
            address: ip("10.244.1.2"),
            ready,
            serving: ready || terminating,
            terminating,
            node: node.map(Into::into),
            zone_hints: vec![],
            node_hints: vec![],
        }
    }

    fn slice(endpoints: Vec<Endpoint>) -> Event {
        Event::SliceApplied(EndpointSlice {
            name: ObjectName::new("default", "web-1"),
            service: ObjectName::new("default", "web"),
            family: Family::Ipv4,
            ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: number(8080) }],
            endpoints,
        })
    }

    fn load_balancer(vip: bool) -> Event {
        let service = service("web", &["10.96.0.1"]);
        Event::ServiceApplied(Service { ingress: vec![Ingress { address: ip("192.0.2.1"), vip }], ..service })
    }

    #[test]
    fn nodes_with_ready_endpoints_come_before_those_whose_endpoints_end() {
        let (mut store, mut services) = (Store::new(), ServedServices::default());
        let mut nodes = |events: Vec<Event>| -> Option<Vec<String>> {
            events.into_iter().for_each(|event| store.handle(event));
            let dirty = store.take_dirty();
            services.update(&store, &dirty);
            let all = services.all();
            let served = all.get(&ObjectName::new("default", "web"))?;
            Some(served.nodes.get(&Family::Ipv4).into_iter().flatten().map(ToString::to_string).collect())
        };
        let ending = endpoint(Some("n1"), false, true);
        let ready = endpoint(Some("n2"), true, false);
        assert_eq!(nodes(vec![load_balancer(true), slice(vec![ending.clone(), ready])]), Some(vec!["n2".into()]));
        assert_eq!(nodes(vec![slice(vec![ending])]), Some(vec!["n1".into()]));
        assert_eq!(nodes(vec![slice(vec![endpoint(Some("n1"), false, false)])]), Some(vec![]));
        assert_eq!(nodes(vec![slice(vec![endpoint(None, true, false)])]), Some(vec!["".into()]));
        assert_eq!(nodes(vec![load_balancer(false)]), None);
    }
}
