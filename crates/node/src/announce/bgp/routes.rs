//! Pure. Which routes each peer is to have from this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use signpost_core::announce::advertise::{self, Advertisement, Announced};
use signpost_core::announce::served::AllServed;
use signpost_core::object::{Family, ObjectName};
use signpost_wire::bgp::{Prefix, Route};

use super::known::Known;

/// What is said of addresses, besides which they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BgpAdvertisement {
    /// Which addresses, by which nodes.
    pub selects: Advertisement,
    /// Length of the announced range by family.
    pub lengths: (u8, u8),
    /// Communities and preference.
    pub route: Route,
    /// Only to these; none: to all.
    pub peers: BTreeSet<Arc<str>>,
}

/// All routes of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// By peer.
    pub by_peer: BTreeMap<Arc<str>, BTreeMap<Prefix, Route>>,
    /// The Services behind them, each with its peers and addresses.
    pub services: BTreeMap<ObjectName, (BTreeSet<Arc<str>>, BTreeSet<IpAddr>)>,
}

/// What this node announces to whom.
pub fn routes(known: &Known, node: &Arc<str>, served: &AllServed, peers: &BTreeSet<Arc<str>>) -> Routes {
    let mut all = Routes::default();
    let nodes = known.nodes();
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
            for advertisement in &known.advertisements {
                let alone = std::slice::from_ref(&advertisement.selects);
                let candidates = advertise::candidates(&announced, Family::of(*address), alone, &nodes);
                if !candidates.is_ok_and(|found| found.nodes.contains_key(node)) {
                    continue;
                }
                let length = if address.is_ipv4() { advertisement.lengths.0 } else { advertisement.lengths.1 };
                let prefix = Prefix::new(*address, length);
                let chosen = |peer: &&Arc<str>| advertisement.peers.is_empty() || advertisement.peers.contains(*peer);
                for peer in peers.iter().filter(chosen) {
                    let route = all.by_peer.entry(peer.clone()).or_default().entry(prefix).or_default();
                    merge(route, &advertisement.route);
                    let (told, addresses) = all.services.entry(name.clone()).or_default();
                    told.insert(peer.clone());
                    addresses.insert(*address);
                }
            }
        }
    }
    all
}

/// Two advertisements of one prefix: all communities of both, the higher preference.
fn merge(route: &mut Route, other: &Route) {
    route.communities.extend(&other.communities);
    route.large_communities.extend(&other.large_communities);
    route.local_pref = route.local_pref.max(other.local_pref);
}
