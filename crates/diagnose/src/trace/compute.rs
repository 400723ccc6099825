//! Pure. From a snapshot and a question to the ways of the packet.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Verdict};
use signpost_core::plan::{FrontendKind, NodePlan};
use signpost_core::walk;

use super::{BackendMet, Evidence, FrontendMet, Header, KIND, Question, SOME_PORT, Trace, TraceError, WayTraced, hops};
use crate::address::{PodName, Source};
use crate::field::text;
use crate::listed::{Listeners, NoAddress, internal_addresses, pod_addresses};
use crate::network::Listener;
use crate::planned;
use crate::predict::{Answerer, At, ClusterView, Fate, Indexed, Step, Way, ways};
use crate::program::Program;
use crate::snapshot::{API_VERSION, Snapshot};

/// The cluster of one family, ready to send packets through.
pub struct Stage<'a> {
    /// What it is made of.
    pub snapshot: &'a Snapshot,
    /// The family.
    pub family: Family,
    /// Where everything is.
    pub view: ClusterView,
}

impl<'a> Stage<'a> {
    /// Of one family of a snapshot.
    pub fn of(snapshot: &'a Snapshot, family: Family) -> Stage<'a> {
        Stage::with(snapshot, family, &|_| true)
    }

    /// Of one family, with those pods alone that are wanted.
    fn with(snapshot: &'a Snapshot, family: Family, wanted: &dyn Fn(&Value) -> bool) -> Stage<'a> {
        let listeners = |pod: &PodName| listeners(snapshot, pod, family);
        let view = snapshot.objects.view_of(family, &listeners, &snapshot.surroundings(), wanted);
        Stage { snapshot, family, view }
    }

    /// What a node does, by the rules that it has; else by what it plans; else by what it should plan, as packets.
    pub fn walk(&self, node: &str, at: At, packet: &Packet) -> Verdict {
        match (at, self.program(node), self.plan(node)) {
            (At::Socket, Some(program), _) => program.walk_socket(packet, None),
            (At::Packet, Some(program), _) => program.walk(packet, None),
            (At::Packet, None, Some(plan)) => walk::walk(plan, packet),
            (At::Socket, None, _) | (_, None, None) => Verdict::NotOurs,
        }
    }

    /// The rules of a node, if they are known.
    pub fn program(&self, node: &str) -> Option<&'a Program> {
        self.snapshot.nodes.get(node)?.programs.get(&self.family)
    }

    /// The plan of a node: its own, else what it should be.
    pub fn plan(&self, node: &str) -> Option<&'a NodePlan> {
        let state = self.snapshot.nodes.get(node)?;
        state.plans.get(&self.family).or_else(|| state.wanted.get(&self.family))
    }

    /// How far what a node does is known.
    pub fn evidence(&self, node: &str) -> Evidence {
        let read = self.snapshot.nodes.get(node).is_some_and(|state| !state.plans.is_empty());
        if read { Evidence::Computed } else { Evidence::Assumed }
    }

    /// Every way of a packet.
    pub fn ways(&self, index: &Indexed<'_>, from: &Source, packet: Packet) -> Vec<Way> {
        ways(index, &|node, at, packet| self.walk(node, at, packet), from, packet)
    }
}

/// The first packet of a flow; `None`: the sender is not there.
pub fn first_packet(index: &Indexed<'_>, from: &Source, to: SocketAddr, protocol: Protocol) -> Option<Packet> {
    let source = SocketAddr::new(index.address_of(from)?, SOME_PORT);
    Some(Packet { protocol, source, destination: to, entry: Entry::Interface })
}

/// Where a pod listens, in one family. Sockets that wait at all IPv6 addresses are taken to serve IPv4 too.
fn listeners(snapshot: &Snapshot, pod: &PodName, family: Family) -> Listeners {
    let of_pod = snapshot.pods.get(&format!("{}/{}", pod.namespace, pod.name));
    let Some(state) = of_pod.filter(|state| state.unreached.is_none()) else {
        return Listeners::default();
    };
    let serves = |listener: &&Listener| {
        let address = listener.address;
        !address.is_loopback() && (Family::of(address) == family || (address.is_unspecified() && address.is_ipv6()))
    };
    let found = state.listeners.iter().filter(serves).map(|listener| (listener.protocol, listener.port)).collect();
    Listeners { listens: Some(found), bind: None }
}

/// Computes a trace.
///
/// # Errors
/// [`TraceError`]
pub fn trace(snapshot: &Snapshot, question: &Question) -> Result<Trace, TraceError> {
    let protocol = question.to.scheme.protocol().ok_or(TraceError::NoTransport)?;
    let protocol = question.protocol.unwrap_or(protocol);
    let Walked { stage, packet, mut found } = walked(snapshot, question, protocol)?;
    let destination = packet.destination;
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    let traced: Vec<WayTraced> = found.iter().map(|way| hops::traced(&stage, way)).collect();
    let reached = !traced.is_empty() && traced.iter().all(|way| way.answers);
    Ok(Trace {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        from: question.from.to_string(),
        to: destination.to_string(),
        packet: Header { source: packet.source, destination },
        protocol,
        family: stage.family,
        frontend: frontend(&stage, &found),
        vanishes_at: traced.first().and_then(|way| vanishes(way, destination)),
        backends: backends(&found),
        outcome: outcome(&found),
        reached,
        assumptions: assumptions(&stage, &found),
        ways: traced,
    })
}

/// A packet that was sent through a cluster.
struct Walked<'a> {
    stage: Stage<'a>,
    packet: Packet,
    found: Vec<Way>,
}

/// In the family in which both have an address.
fn walked<'a>(snapshot: &'a Snapshot, question: &Question, protocol: Protocol) -> Result<Walked<'a>, TraceError> {
    let families = question.family.map_or_else(|| vec![Family::Ipv4, Family::Ipv6], |family| vec![family]);
    let mut first_error = None;
    for family in families {
        match snapshot.objects.resolve(&question.to, family, &BTreeMap::new()) {
            Ok(destination) => {
                if let Some(walked) = walked_to(snapshot, family, &question.from, destination, protocol) {
                    return Ok(walked);
                }
                first_error.get_or_insert(TraceError::NoSender(question.from.to_string()));
            }
            Err(error @ NoAddress::Family { .. }) if first_error.is_none() => first_error = Some(error.into()),
            Err(error @ (NoAddress::Family { .. } | NoAddress::Lacks { .. })) => {
                first_error.get_or_insert(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(first_error.unwrap_or_else(|| TraceError::NoSender(question.from.to_string())))
}

/// Every way, through a cluster of those pods alone that are on one: to look at each pod of a large cluster takes longer
/// than all the rest. `None`: the sender is not there.
fn walked_to<'a>(
    snapshot: &'a Snapshot,
    family: Family,
    from: &Source,
    destination: SocketAddr,
    protocol: Protocol,
) -> Option<Walked<'a>> {
    let mut asked = likely(snapshot, family, destination, protocol);
    // Where many pods share an address: those in the networks of nodes.
    asked.extend(snapshot.objects.nodes.iter().flat_map(internal_addresses));
    loop {
        let is_asked =
            |pod: &Value| pod_addresses(pod).iter().any(|address| asked.contains(address)) || is_sender(pod, from);
        let stage = Stage::with(snapshot, family, &is_asked);
        let index = Indexed::of(&stage.view);
        let packet = first_packet(&index, from, destination, protocol)?;
        let found = stage.ways(&index, from, packet);
        let known = asked.len();
        // A walk asks for no pod but at an address that its packet is for.
        asked.extend(found.iter().flat_map(|way| &way.steps).map(|step| step.packet().destination.ip()));
        if asked.len() == known {
            return Some(Walked { stage, packet, found });
        }
    }
}

/// The addresses that the packet may be for on its way, as far as the plans tell.
fn likely(snapshot: &Snapshot, family: Family, destination: SocketAddr, protocol: Protocol) -> HashSet<IpAddr> {
    let packet = Packet { protocol, source: destination, destination, entry: Entry::Interface };
    let plans = snapshot.nodes.values().flat_map(|state| [state.plans.get(&family), state.wanted.get(&family)]);
    let frontends = plans.flatten().filter_map(|plan| walk::frontend(plan, &packet));
    let backends = frontends.flat_map(|(_, frontend)| planned::backends(frontend)).map(|backend| backend.ip());
    backends.chain([destination.ip()]).collect()
}

fn is_sender(pod: &Value, from: &Source) -> bool {
    let Source::Pod(name) = from else { return false };
    text(pod, "/metadata/name") == Some(&name.name) && text(pod, "/metadata/namespace") == Some(&name.namespace)
}

fn frontend(stage: &Stage<'_>, found: &[Way]) -> Option<FrontendMet> {
    found.first()?.steps.iter().find_map(|step| {
        let (Step::AtSocket { node, before, .. } | Step::Ruled { node, before, .. }) = step else { return None };
        let (key, frontend) = walk::frontend(stage.plan(node)?, before)?;
        Some(FrontendMet {
            service_port: frontend.service_port.to_string(),
            key: key.to_string(),
            kind: kind(frontend.kind).to_owned(),
            node: node.clone(),
        })
    })
}

/// A frontend's kind, for people.
pub(super) fn kind(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "cluster address",
        FrontendKind::NodePort => "node port",
        FrontendKind::ExternalIp => "external address",
        FrontendKind::LoadBalancer => "load-balancer address",
    }
}

fn vanishes(way: &WayTraced, destination: SocketAddr) -> Option<usize> {
    let hop = way.forward.iter().find(|hop| hop.before.destination == destination && hop.changed().1)?;
    Some(hop.number)
}

fn backends(found: &[Way]) -> Vec<BackendMet> {
    let mut all: BTreeMap<SocketAddr, BackendMet> = BTreeMap::new();
    for way in found {
        let Some(Step::Arrived { node, by, pod, packet }) = way.steps.last() else { continue };
        let name = match (by, pod) {
            (Some(Answerer::Pod(name)), _) | (None, Some(name)) => name.to_string(),
            (Some(Answerer::Address(at)), _) => at.to_string(),
            (None, None) => "nobody".to_owned(),
        };
        let entry = all.entry(packet.destination).or_insert(BackendMet {
            name,
            at: packet.destination,
            node: node.clone(),
            share: 0.0,
            answers: matches!(way.fate, Fate::Reached { .. }),
        });
        entry.share += way.share;
    }
    all.into_values().collect()
}

fn outcome(found: &[Way]) -> String {
    let mut parts: BTreeMap<&'static str, f64> = BTreeMap::new();
    for way in found {
        let word = match way.fate {
            Fate::Reached { .. } => "an answer comes back",
            Fate::Refused => "refused",
            Fate::Dropped => "dropped",
            Fate::Lost => "lost on the way",
        };
        *parts.entry(word).or_default() += way.share;
    }
    match parts.len() {
        0 => "nothing is known of its way".to_owned(),
        1 => parts.keys().map(|word| (*word).to_owned()).collect(),
        _ => parts.iter().map(|(word, share)| format!("{word}: {:.0} %", share * 100.0)).collect::<Vec<_>>().join(", "),
    }
}

fn assumptions(stage: &Stage<'_>, found: &[Way]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for step in found.iter().flat_map(|way| &way.steps) {
        match step {
            Step::Ruled { node, .. } if stage.evidence(node) == Evidence::Assumed => {
                all.insert(format!("node {node} was not read: it is taken to do what the objects ask for"));
            }
            Step::Arrived { by: Some(Answerer::Pod(pod)), .. } => {
                let name = format!("{}/{}", pod.namespace, pod.name);
                let read = stage.snapshot.pods.get(&name).is_some_and(|state| state.unreached.is_none());
                let on_host = stage.view.pod(pod).is_some_and(|pod| pod.host_network);
                if !read && !on_host {
                    all.insert(format!("pod {pod} was not read: it is taken to listen"));
                }
            }
            _ => {}
        }
    }
    all
}

/// The node that owns an address, if one does.
pub(super) fn node_with(view: &ClusterView, address: IpAddr) -> Option<&str> {
    view.nodes.iter().find(|node| node.addresses.contains(&address)).map(|node| node.name.as_str())
}
