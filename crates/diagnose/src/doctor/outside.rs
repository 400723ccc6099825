//! Pure. What keeps clients outside from a Service.

use std::collections::BTreeSet;

use signpost_core::object::ObjectName;

use super::Question;
use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::{ServiceObject, endpoint_ready, text};

/// The label that keeps a node out of load balancing.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

pub(super) fn judge(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    _question: &Question,
) -> Vec<Finding> {
    let mut found = Vec::new();
    if service.kind() == "LoadBalancer" && service.0.pointer("/status/loadBalancer/ingress/0").is_none() {
        let class = text(service.0, "/spec/loadBalancerClass");
        let class = class.map_or("no class".to_owned(), |class| format!("class {class}"));
        found.push(
            Finding::new(
                Code::LoadBalancerPending,
                Severity::Degraded,
                "nobody gives the Service a load-balancer address",
            )
            .measured(format!("status.loadBalancer.ingress is empty; {class}"))
            .next(format!("kubectl describe service -n {} {}", name.namespace, name.name)),
        );
    }
    found.extend(excluded(ground, service, name));
    found.extend(node_ports(ground, service));
    found
}

fn excluded(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Option<Finding> {
    let local = text(service.0, "/spec/externalTrafficPolicy") == Some("Local");
    if service.kind() != "LoadBalancer" || !local {
        return None;
    }
    let nodes: BTreeSet<&str> = ground
        .slices_of(name)
        .iter()
        .flat_map(|slice| slice.endpoints())
        .filter(|endpoint| endpoint_ready(endpoint))
        .filter_map(|endpoint| text(endpoint, "/nodeName"))
        .collect();
    let is_excluded =
        |node: &str| ground.nodes.get(node).and_then(|node| node.pointer("/metadata/labels")?.get(EXCLUDED)).is_some();
    (!nodes.is_empty() && nodes.iter().all(|node| is_excluded(node))).then(|| {
        Finding::new(
            Code::ExcludedNode,
            Severity::Degraded,
            format!(
                "every node with an endpoint is kept out of load balancing: {}",
                nodes.into_iter().collect::<Vec<_>>().join(", ")
            ),
        )
        .measured(format!("label {EXCLUDED}, and externalTrafficPolicy is Local"))
    })
}

fn node_ports(ground: &Ground<'_>, service: ServiceObject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for port in service.ports() {
        let Some(number) = port.node_port else { continue };
        for (name, state) in &ground.snapshot.nodes {
            let taken = state
                .listeners
                .iter()
                .find(|one| one.port == number && one.protocol == port.protocol && !one.address.is_loopback());
            if let Some(taken) = taken {
                let at = std::net::SocketAddr::new(taken.address, number);
                found.push(
                    Finding::new(
                        Code::NodePortListener,
                        Severity::Degraded,
                        format!("a process of node {name} listens on node port {number}: its clients meet the Service"),
                    )
                    .measured(format!("socket {at}/{}", port.protocol))
                    .on(name),
                );
            }
            let range = state.sysctls.get("net.ipv4.ip_local_port_range");
            let reserved = state.sysctls.get("net.ipv4.ip_local_reserved_ports");
            let inside = range.is_some_and(|range| {
                let bounds: Vec<u16> = range.split_whitespace().filter_map(|bound| bound.parse().ok()).collect();
                matches!(bounds.as_slice(), [from, to] if (*from..=*to).contains(&number))
            });
            if inside && !reserved.is_some_and(|reserved| is_reserved(reserved, number)) {
                found.push(
                    Finding::new(
                        Code::NodePortEphemeral,
                        Severity::Degraded,
                        format!("node {name} may give node port {number} to a connection of its own"),
                    )
                    .measured(format!("net.ipv4.ip_local_port_range is {}", range.map_or("", String::as_str)))
                    .on(name),
                );
            }
        }
    }
    found
}

fn is_reserved(reserved: &str, port: u16) -> bool {
    reserved.split(',').any(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        matches!((from.trim().parse::<u16>(), to.trim().parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&port))
    })
}
