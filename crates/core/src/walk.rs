//! Pure. What a plan does to a packet: the oracle that rules and kernels are compared with, and what `trace` prints.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use crate::object::Family;
use crate::packet::{Packet, Rewrite, Verdict};
use crate::plan::{Frontend, FrontendKey, NodePlan, Route, Target};

/// Whom a packet counts as coming from. See [`Frontend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A pod of the cluster.
    Pod,
    /// The node itself.
    Node,
    /// Anybody else.
    Elsewhere,
}

impl Origin {
    /// By the source address alone, pods first.
    pub fn of(plan: &NodePlan, source: IpAddr) -> Origin {
        if plan.cluster_cidrs.iter().any(|range| range.contains(&source)) {
            Origin::Pod
        } else if plan.node_addresses.contains(&source) {
            Origin::Node
        } else {
            Origin::Elsewhere
        }
    }

    /// What it meets at a frontend.
    pub fn route(self, frontend: &Frontend) -> &Route {
        match self {
            Origin::Pod => &frontend.from_pod,
            Origin::Node => &frontend.from_node,
            Origin::Elsewhere => &frontend.from_elsewhere,
        }
    }
}

/// The frontend that a packet's destination is, if any: an address of a Service, else a node port.
pub fn frontend<'a>(plan: &'a NodePlan, packet: &Packet) -> Option<(FrontendKey, &'a Frontend)> {
    let (address, protocol) = (packet.destination.ip(), packet.protocol);
    let port = NonZeroU16::new(packet.destination.port())?;
    let at_address = FrontendKey::Address { address, protocol, port };
    let at_node = plan.node_port_addresses.contains(&address).then_some(FrontendKey::NodePort { protocol, port });
    [Some(at_address), at_node].into_iter().flatten().find_map(|key| Some((key, plan.frontends.get(&key)?)))
}

/// What the node does to the first packet of a flow from a client that it does not remember. One of another family than
/// the plan's is none of its business.
pub fn walk(plan: &NodePlan, packet: &Packet) -> Verdict {
    walk_remembering(plan, packet, None)
}

/// The same for a client that may be remembered: `remembered` is the backend that its living affinity entry for this
/// Service port names. An entry binds only while the backend is one of those that the client may be sent to; one that left
/// or became unready is let go at once. Without affinity no entry counts.
pub fn walk_remembering(plan: &NodePlan, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let (source, destination) = (packet.source.ip(), packet.destination.ip());
    if Family::of(source) != plan.family || Family::of(destination) != plan.family {
        return Verdict::NotOurs;
    }
    let Some((_, frontend)) = frontend(plan, packet) else { return without_frontend(plan, destination) };
    if !frontend.source_ranges.is_empty() && !frontend.source_ranges.iter().any(|range| range.contains(&source)) {
        return Verdict::Drop;
    }
    let route = Origin::of(plan, source).route(frontend);
    match &route.target {
        Target::Reject => Verdict::Reject,
        Target::Drop => Verdict::Drop,
        Target::Backends(backends) => {
            let bound = remembered.filter(|_| frontend.affinity.is_some());
            let bound = bound.filter(|to| backends.iter().any(|backend| backend.address == *to));
            let allowed =
                backends.iter().map(|backend| backend.address).filter(|to| bound.is_none_or(|bound| bound == *to));
            let rewrites = allowed.map(|to| rewrite(plan, route, source, to));
            Verdict::Rewrite(rewrites.collect::<BTreeSet<Rewrite>>())
        }
    }
}

fn rewrite(plan: &NodePlan, route: &Route, source: IpAddr, to: SocketAddr) -> Rewrite {
    let is_hairpin = to.ip() == source && plan.local_endpoints.contains(&source);
    Rewrite { to, masquerade: route.masquerade || is_hairpin }
}

/// A cluster address says which of its ports do not exist; one that no Service has says nothing.
fn without_frontend(plan: &NodePlan, destination: IpAddr) -> Verdict {
    if plan.cluster_ips.contains(&destination) {
        Verdict::Reject
    } else if plan.service_cidrs.iter().any(|range| range.contains(&destination)) {
        Verdict::Drop
    } else {
        Verdict::NotOurs
    }
}

#[cfg(test)]
mod tests;
