//! Pure. Who asks where: the packets whose ways are walked.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use signpost_core::object::{Family, ObjectName, Protocol};
use signpost_core::packet::Packet;

use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::ServiceObject;
use super::{Question, To, to_port};
use crate::address::{Destination, PortRef, Scheme, ServiceRef, Source, Target};
use crate::listed::NoAddress;
use crate::predict::{Indexed, Way};
use crate::trace::{Stage, first_packet};

/// More nodes than this are not asked from: what differs between nodes shows in the comparison of their rules.
const MOST_NODES: usize = 8;

/// One packet.
pub(super) struct Case<'a> {
    pub(super) stage: &'a Stage<'a>,
    pub(super) index: &'a Indexed<'a>,
    pub(super) from: Source,
    /// As a trace takes it.
    pub(super) to: Target,
    pub(super) packet: Packet,
    pub(super) ways: Vec<Way>,
    /// It was asked for, so that its failure is the whole answer.
    pub(super) asked: bool,
}

#[derive(Default)]
pub(super) struct Cases<'a> {
    pub(super) cases: Vec<Case<'a>>,
    /// Why some have no packet.
    pub(super) findings: Vec<Finding>,
}

pub(super) fn cases<'a>(
    ground: &Ground<'a>,
    service: ServiceObject<'a>,
    name: &ObjectName,
    question: &Question,
) -> Cases<'a> {
    let mut cases = Cases::default();
    if service.kind() == "ExternalName" {
        return cases;
    }
    let targets = targets(service, name, question);
    for (stage, index) in ground.stages {
        for (target, inside_only) in &targets {
            let services = |wanted: &ServiceRef| {
                ground.service(&ObjectName::new(&wanted.namespace, &wanted.name)).map(|service| service.0)
            };
            let resolved = ground.snapshot.objects.resolve_by(&services, target, stage.family, &BTreeMap::new());
            // A node has an address of a family in which the Service may not be there at all.
            let serves = |family| service.cluster_ips().into_iter().any(|ip| Family::of(ip) == family);
            let of_node = matches!(target.destination, Destination::NodePort(..));
            let resolved = resolved.and_then(|destination| {
                if of_node && !serves(stage.family) {
                    return Err(NoAddress::Family { name: name.to_string(), family: stage.family });
                }
                Ok(destination)
            });
            let destination = match resolved {
                Ok(destination) => destination,
                Err(error) => {
                    cases.no_address(ground, service, question, stage.family, target, &error);
                    continue;
                }
            };
            let Some(protocol) = protocol(question, target) else { continue };
            for from in senders(stage, index, question, *inside_only) {
                cases.add(stage, index, from, target, destination, protocol, question.to.is_some());
            }
        }
    }
    cases
}

fn protocol(question: &Question, target: &Target) -> Option<Protocol> {
    match &question.to {
        Some(To::Port(_, Some(protocol))) => Some(*protocol),
        _ => target.scheme.protocol(),
    }
}

impl<'a> Cases<'a> {
    #[allow(clippy::too_many_arguments, reason = "each is a part of one packet")]
    fn add(
        &mut self,
        stage: &'a Stage<'a>,
        index: &'a Indexed<'a>,
        from: Source,
        to: &Target,
        destination: SocketAddr,
        protocol: Protocol,
        asked: bool,
    ) {
        let Some(packet) = first_packet(index, &from, destination, protocol) else { return };
        let ways = stage.ways(index, &from, packet);
        self.cases.push(Case { stage, index, from, to: to.clone(), packet, ways, asked });
    }

    /// Only a destination that was asked for has to have an address in a family.
    fn no_address(
        &mut self,
        ground: &Ground<'_>,
        service: ServiceObject<'_>,
        question: &Question,
        family: Family,
        target: &Target,
        error: &NoAddress,
    ) {
        let Some(from) = &question.from else { return };
        let families: Vec<Family> = ground
            .stages
            .iter()
            .filter(|(stage, _)| stage.view.address_of(from).is_some())
            .map(|(stage, _)| stage.family)
            .collect();
        let served: Vec<Family> = service.cluster_ips().into_iter().map(Family::of).collect();
        if !served.is_empty() && families.iter().all(|family| !served.contains(family)) && families.contains(&family) {
            let say = |all: &[Family]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let cause = format!("the Service has {} addresses, and {from} has {} ones", say(&served), say(&families));
            self.findings.push(
                Finding::new(Code::FamiliesDiffer, Severity::Broken, cause)
                    .measured(error.to_string())
                    .next("kubectl get services -o wide"),
            );
        }
        if matches!(target.destination, Destination::NodePort(..)) && service.kind() == "LoadBalancer" {
            let off = service.0.pointer("/spec/allocateLoadBalancerNodePorts").and_then(serde_json::Value::as_bool);
            if off == Some(false) {
                self.findings.push(
                    Finding::new(Code::NoNodePorts, Severity::Broken, "the Service has no node ports")
                        .measured("spec.allocateLoadBalancerNodePorts is false")
                        .measured(error.to_string()),
                );
            }
        }
    }
}

/// The destinations, and whether only clients inside are to ask there.
fn targets(service: ServiceObject<'_>, name: &ObjectName, question: &Question) -> Vec<(Target, bool)> {
    match &question.to {
        Some(To::Target(target)) => return vec![(target.clone(), false)],
        Some(To::Port(port, protocol)) => {
            let named = service.ports().into_iter().find(|one| match port {
                PortRef::Number(number) => one.port == *number && protocol.is_none_or(|wanted| wanted == one.protocol),
                PortRef::Name(name) => one.name == *name,
                PortRef::None => true,
            });
            let of = protocol.or(named.map(|port| port.protocol)).unwrap_or(Protocol::Tcp);
            return vec![(to_port(name, port.clone(), of), false)];
        }
        None => {}
    }
    let reference = ServiceRef { namespace: name.namespace.to_string(), name: name.name.to_string() };
    let mut targets = Vec::new();
    for port in service.ports().into_iter().filter(|port| port.protocol != Protocol::Sctp) {
        let number = PortRef::Number(port.port);
        let scheme = if port.protocol == Protocol::Udp { Scheme::Udp } else { Scheme::Tcp };
        if !service.is_headless() {
            targets.push((to_port(name, number.clone(), port.protocol), true));
        }
        if !service.ingress().is_empty() {
            let destination = Destination::LoadBalancer(reference.clone(), number.clone());
            targets.push((Target { scheme: scheme.clone(), destination }, true));
        }
        if !service.external_ips().is_empty() {
            let destination = Destination::External(reference.clone(), number);
            targets.push((Target { scheme, destination }, true));
        }
    }
    targets
}

/// Who asks: whom the question names, else a pod of each node, or the node if it has none.
fn senders(stage: &Stage<'_>, index: &Indexed<'_>, question: &Question, inside_only: bool) -> Vec<Source> {
    if let Some(from) = &question.from {
        return vec![from.clone()];
    }
    let of_node = |node: &str| match index.some_pod_on(node) {
        Some(pod) => Source::Pod(pod.name.clone()),
        None => Source::Node(node.to_owned()),
    };
    let nodes = stage.view.nodes.iter().take(MOST_NODES).map(|node| of_node(&node.name));
    let outside = stage.view.outside.filter(|_| !inside_only).map(|_| Source::Outside);
    nodes.chain(outside).collect()
}
