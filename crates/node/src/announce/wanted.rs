//! Who may have which address, where this node could answer for it, and for which Services that is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use signpost_core::announce::advertise::{self, Announced};
use signpost_core::announce::served::AllServed;
use signpost_core::object::{Family, ObjectName};
use signpost_wire::mac::Mac;

use super::interfaces::{self, Interface};
use super::known::Known;
use super::responder::Place;
use super::told::{self, AllAnnounced};

/// What is to be announced.
#[derive(Default)]
pub(super) struct Wanted {
    /// Who may have each address.
    pub candidates: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Where this node can answer for each.
    pub places: BTreeMap<IpAddr, Vec<(Place, Arc<str>, Mac)>>,
    /// The Services of each, with its pool.
    pub services: BTreeMap<IpAddr, Vec<(ObjectName, String, Arc<str>)>>,
}

/// As of what is known, on this node.
pub(super) fn wanted(known: &Known, served: &AllServed, interfaces: &[Interface], node: &Arc<str>) -> Wanted {
    let mut wanted = Wanted::default();
    let nodes = known.nodes();
    let own = nodes.get(node).map(|node| node.addresses.clone()).unwrap_or_default();
    for (name, one) in served.iter() {
        let Some(service) = known.services.get(name) else { continue };
        for address in &one.addresses {
            let Some(pool) = known.pool_of(service, *address) else { continue };
            let pool_labels = known.pool_labels(&pool);
            let announced = Announced {
                service: name,
                labels: &service.labels,
                pool: &pool,
                pool_labels: &pool_labels,
                served: one,
            };
            let family = Family::of(*address);
            let Ok(found) = advertise::candidates(&announced, family, &known.usable_advertisements, &nodes) else {
                continue;
            };
            if let Some(named) = found.nodes.get(node) {
                let on = interfaces::for_address(interfaces, *address, named, &own);
                let places = on.iter().map(|one| ((one.index, *address), one.name.clone(), one.mac));
                wanted.places.insert(*address, places.collect());
            }
            let may: BTreeSet<Arc<str>> = found.nodes.into_keys().collect();
            // Services that share an address go to a node that all of them can have, if there is one.
            let both = wanted.candidates.get(address).map(|former| former & &may).filter(|both| !both.is_empty());
            wanted.candidates.insert(*address, both.unwrap_or(may));
            wanted.services.entry(*address).or_default().push((name.clone(), service.uid.clone(), pool));
        }
    }
    wanted
}

impl Wanted {
    /// What this node announces: `mine` tells of an address whether it answers for it.
    pub(super) fn announced(
        &self,
        holders: &BTreeMap<IpAddr, Arc<str>>,
        mine: &dyn Fn(&IpAddr) -> bool,
    ) -> AllAnnounced {
        let mut all = AllAnnounced::new();
        for (address, services) in &self.services {
            let places = self.places.get(address).map(Vec::as_slice).unwrap_or_default();
            if !mine(address) || places.is_empty() {
                continue;
            }
            for (name, uid, pool) in services {
                let one = all.entry(name.clone()).or_insert_with(|| told::Announced {
                    uid: uid.clone(),
                    addresses: BTreeSet::new(),
                    pool: pool.clone(),
                    interfaces: BTreeSet::new(),
                    holders: BTreeSet::new(),
                });
                one.addresses.insert(*address);
                one.interfaces.extend(places.iter().map(|(_, name, _)| name.clone()));
            }
        }
        for (address, services) in &self.services {
            for (name, _, _) in services {
                if let (Some(one), Some(holder)) = (all.get_mut(name), holders.get(address)) {
                    one.holders.insert(holder.clone());
                }
            }
        }
        all
    }
}
