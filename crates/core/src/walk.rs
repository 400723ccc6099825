//! Pure. What a plan does to a packet: the oracle that rules and kernels are compared with, and what `trace` prints.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use crate::object::{Family, Protocol};
use crate::packet::{Entry, Packet, Rewrite, Verdict};
use crate::plan::{Backends, Frontend, FrontendKey, NodePlan, Route, Target};

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
            let allowed = allowed(frontend, backends, remembered);
            let rewrites = allowed.map(|to| rewrite(plan, route, source, to));
            Verdict::Rewrite(rewrites.collect::<BTreeSet<Rewrite>>())
        }
    }
}

/// The same on a node that has the Services' addresses on a device of its own, as the mode IPVS: what is no port of a Service
/// there is refused, were the address an external one. Else the node's own processes would answer.
pub fn walk_with_addresses(plan: &NodePlan, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let to = packet.destination.ip();
    let has = |key: &FrontendKey| matches!(key, FrontendKey::Address { address, .. } if *address == to);
    let is_on_device =
        || !plan.node_addresses.contains(&to) && (plan.cluster_ips.contains(&to) || plan.frontends.keys().any(has));
    match walk_remembering(plan, packet, remembered) {
        Verdict::NotOurs | Verdict::Drop
            if Family::of(packet.source.ip()) == plan.family && frontend(plan, packet).is_none() && is_on_device() =>
        {
            Verdict::Reject
        }
        verdict => verdict,
    }
}

/// What a mode that answers `connect()` itself does before there is a packet: to a process of this node, or of a pod on it
/// (`entry` tells which; the source is not known yet). What it leaves alone ([`Verdict::NotOurs`]) meets [`walk`] as a packet.
///
/// A socket cannot be given another source, nor be left without any answer: routes that masquerade pods, dropped ones, and
/// frontends that only some sources may use are left to the packets. The node's own processes need no masquerade, since their
/// source is chosen after the rewriting. `remembered` is as in [`walk_remembering`].
pub fn walk_socket(plan: &NodePlan, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    if Family::of(packet.destination.ip()) != plan.family || packet.protocol == Protocol::Sctp {
        return Verdict::NotOurs;
    }
    let Some((_, frontend)) = frontend(plan, packet).filter(|(_, frontend)| frontend.source_ranges.is_empty()) else {
        return Verdict::NotOurs;
    };
    let origin = match packet.entry {
        Entry::Local => Origin::Node,
        Entry::Interface if plan.cluster_cidrs.is_empty() => Origin::Elsewhere,
        Entry::Interface => Origin::Pod,
    };
    let route = origin.route(frontend);
    match &route.target {
        Target::Reject => Verdict::Reject,
        Target::Backends(backends) if origin == Origin::Node || !route.masquerade => {
            let allowed = allowed(frontend, backends, remembered);
            Verdict::Rewrite(allowed.map(|to| Rewrite { to, masquerade: false }).collect())
        }
        Target::Backends(_) | Target::Drop => Verdict::NotOurs,
    }
}

/// The backends that a client may be sent to: the one that is remembered of it, as long as it is one of them; else all.
fn allowed(
    frontend: &Frontend,
    backends: &Backends,
    remembered: Option<SocketAddr>,
) -> impl Iterator<Item = SocketAddr> {
    let bound = remembered.filter(|_| frontend.affinity.is_some());
    let bound = bound.filter(|to| backends.iter().any(|backend| backend.address == *to));
    backends.iter().map(|backend| backend.address).filter(move |to| bound.is_none_or(|bound| bound == *to))
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
