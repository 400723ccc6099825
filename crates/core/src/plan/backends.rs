//! Pure. Chooses the backends of a Service port among the endpoints that are offered for it.
//!
//! As kube-proxy does it (KEP-1669 for terminating endpoints, KEP-2433 and KEP-3015 for hints):
//! - Cluster: the ready endpoints. If every one of them carries a hint for some node, and one for this node, only those
//!   for this node; else the same question for zones; else all. No ready one anywhere: those that still serve while they
//!   terminate.
//! - Local: the ready endpoints on this node, whatever their hints; if there are none, those on this node that still serve while
//!   they terminate. The fallback is decided for Cluster and for Local separately.

use std::sync::Arc;

use crate::object::Endpoint;
use crate::plan::{Backend, Backends};
use crate::service_map::Offer;

/// Where the choosing node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The node's name.
    pub node: Arc<str>,
    /// Its zone, if a label names one.
    pub zone: Option<Arc<str>>,
}

impl Site {
    fn is_local(&self, endpoint: &Endpoint) -> bool {
        endpoint.node.as_ref() == Some(&self.node)
    }

    fn is_hinted_node(&self, endpoint: &Endpoint) -> bool {
        endpoint.node_hints.contains(&self.node)
    }

    fn is_hinted_zone(&self, endpoint: &Endpoint) -> bool {
        self.zone.as_ref().is_some_and(|zone| endpoint.zone_hints.contains(zone))
    }
}

/// What was chosen for one Service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// For the policy Cluster. `None`: no usable endpoint in the whole cluster.
    pub cluster: Option<Backends>,
    /// For the policy Local. `None`: no usable endpoint on this node.
    pub local: Option<Backends>,
}

/// Chooses. `offers` as [`crate::service_map::offers`] gives them: sorted by address, each once.
pub fn choose(offers: &[Offer<'_>], site: &Site) -> Choice {
    let hints = Hints::of(offers, site);
    let cluster = filter(offers, site, |endpoint| endpoint.ready && hints.allow(endpoint, site))
        .or_else(|| filter(offers, site, serves_while_terminating));
    let local = filter(offers, site, |endpoint| endpoint.ready && site.is_local(endpoint))
        .or_else(|| filter(offers, site, |endpoint| serves_while_terminating(endpoint) && site.is_local(endpoint)));
    Choice { cluster, local }
}

fn serves_while_terminating(endpoint: &Endpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

fn filter(offers: &[Offer<'_>], site: &Site, usable: impl Fn(&Endpoint) -> bool) -> Option<Backends> {
    let chosen = offers.iter().filter(|offer| usable(offer.endpoint));
    let chosen = chosen.map(|offer| Backend { address: offer.address, local: site.is_local(offer.endpoint) });
    let chosen: Vec<Backend> = chosen.collect();
    (!chosen.is_empty()).then(|| chosen.into())
}

/// Which hints hold for this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hints {
    None,
    Zone,
    Node,
}

impl Hints {
    fn of(offers: &[Offer<'_>], site: &Site) -> Hints {
        let ready = || offers.iter().map(|offer| offer.endpoint).filter(|endpoint| endpoint.ready);
        if ready().all(|endpoint| !endpoint.node_hints.is_empty()) && ready().any(|e| site.is_hinted_node(e)) {
            Hints::Node
        } else if ready().all(|endpoint| !endpoint.zone_hints.is_empty()) && ready().any(|e| site.is_hinted_zone(e)) {
            Hints::Zone
        } else {
            Hints::None
        }
    }

    fn allow(self, endpoint: &Endpoint, site: &Site) -> bool {
        match self {
            Hints::None => true,
            Hints::Zone => site.is_hinted_zone(endpoint),
            Hints::Node => site.is_hinted_node(endpoint),
        }
    }
}

#[cfg(test)]
mod tests;
