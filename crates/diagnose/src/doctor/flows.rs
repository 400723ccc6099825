//! Pure. What connection tracking tells of a Service: flows to nowhere, ports that run out, connections that lie unevenly.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use signpost_core::object::{Family, ObjectName};
use signpost_core::plan::FrontendKind;

use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::{Ground, Plan};
use crate::planned::backends;
use crate::snapshot::{NodeState, PortUse};

/// The ports that masquerading may give to a flow from a port above 1023 (`nf_nat_l4proto_unique_tuple`).
const PORTS: usize = 64_512;
/// From this share on it is told.
const FULL_PERCENT: usize = 80;
/// Fewer connections may lie anyhow.
const FEWEST_CONNECTIONS: usize = 30;

/// UDP flows to a frontend of the Service that lead to no endpoint of it.
pub(super) fn stale(ground: &Ground<'_>, name: &str, service: &ObjectName) -> Vec<Finding> {
    let mut found = Vec::new();
    for flow in ground.udp_flows(name, service) {
        let family = Family::of(flow.to.ip());
        let Some(frontends) = ground.best_known(name, family, service) else { continue };
        let leads = frontends.iter().any(|(_, frontend)| backends(frontend).contains(&flow.backend));
        if !leads {
            found.push(
                Finding::new(
                    Code::StaleUdpFlow,
                    Severity::Degraded,
                    format!(
                        "a UDP flow of {} on node {name} leads to {}, which is no endpoint any more",
                        flow.client, flow.backend
                    ),
                )
                .measured(format!("conntrack: {} to {} is rewritten to {}", flow.client, flow.to, flow.backend))
                .on(name)
                .next(format!("on node {name}: conntrack -D -p udp --orig-dst {}", flow.to.ip())),
            );
        }
    }
    found
}

/// The backends of a Service, as a node knows them.
fn backends_of(ground: &Ground<'_>, node: &str, service: &ObjectName) -> BTreeSet<SocketAddr> {
    let families = [Family::Ipv4, Family::Ipv6].into_iter();
    let plans = families.flat_map(|family| [(family, Plan::Wanted), (family, Plan::Said)]);
    let frontends = plans.flat_map(|(family, plan)| ground.frontends(node, family, plan, service));
    frontends.flat_map(|(_, frontend)| backends(frontend)).collect()
}

/// The ports of a node that flows to backends of a Service take.
pub(super) fn ports_taken_by(
    ground: &Ground<'_>,
    name: &str,
    state: &NodeState,
    service: &ObjectName,
) -> Option<Finding> {
    let mut busy = state.conntrack.masqueraded.iter().filter(|one| is_nearly_all(one)).peekable();
    busy.peek()?;
    let backends = backends_of(ground, name, service);
    Some(ports_told(name, busy.find(|one| backends.contains(&one.backend))?))
}

/// A node that masquerades has a port for each flow to one destination.
pub(super) fn ports_taken(name: &str, state: &NodeState) -> Option<Finding> {
    let worst = state.conntrack.masqueraded.iter().find(|one| is_nearly_all(one))?;
    Some(ports_told(name, worst))
}

fn is_nearly_all(one: &PortUse) -> bool {
    one.flows * 100 >= PORTS * FULL_PERCENT
}

fn ports_told(name: &str, worst: &PortUse) -> Finding {
    let share = worst.flows * 100 / PORTS;
    Finding::new(
        Code::SnatPorts,
        Severity::Degraded,
        format!("node {name} has taken {share} % of the ports of {} towards {}", worst.by, worst.backend),
    )
    .measured(format!(
        "conntrack: {} {} flows are masqueraded to it, of {PORTS} that may be",
        worst.flows, worst.protocol
    ))
    .on(name)
    .next(format!("on node {name}: conntrack -L --reply-src {} | wc -l", worst.backend.ip()))
}

/// Connections that were made when there were other backends, and stay: new backends get none of them.
pub(super) fn uneven(ground: &Ground<'_>, service: &ObjectName) -> Vec<Finding> {
    let mut ports: BTreeMap<String, BTreeSet<SocketAddr>> = BTreeMap::new();
    let nodes = ground.snapshot.nodes.iter();
    for (node, family) in nodes.flat_map(|(node, state)| state.wanted.keys().map(move |family| (node, *family))) {
        for (_, frontend) in ground.frontends(node, family, Plan::Wanted, service) {
            // By client some backends may be meant to have more.
            if frontend.kind == FrontendKind::ClusterIp && frontend.affinity.is_none() {
                let name = format!("{} {family}", frontend.service_port);
                ports.entry(name).or_default().extend(backends(frontend));
            }
        }
    }
    ports.into_iter().filter_map(|(port, backends)| uneven_port(ground, &port, &backends)).collect()
}

fn uneven_port(ground: &Ground<'_>, port: &str, backends: &BTreeSet<SocketAddr>) -> Option<Finding> {
    let counts: Vec<(SocketAddr, usize)> = backends.iter().map(|backend| (*backend, ground.held(backend))).collect();
    let all: usize = counts.iter().map(|(_, count)| count).sum();
    let (most_at, most) = counts.iter().copied().max_by_key(|(_, count)| *count)?;
    if counts.len() < 2 || all < FEWEST_CONNECTIONS || !is_no_chance(all, counts.len(), most) {
        return None;
    }
    let told: Vec<String> = counts.iter().take(8).map(|(at, count)| format!("{at} {count}")).collect();
    let idle = counts.iter().filter(|(_, count)| *count == 0).count();
    Some(
        Finding::new(
            Code::LongLivedSkew,
            Severity::Degraded,
            format!(
                "{most_at} has {most} of {all} open connections to {port}; {idle} of {} backends have none",
                counts.len()
            ),
        )
        .measured(format!("conntrack, established: {}", told.join(", ")))
        .computed("a connection stays with the backend that it began with; only new ones are shared out"),
    )
}

/// Whether one of so many backends has half as many again as its share, and more than five standard deviations of an even
/// choice explain.
fn is_no_chance(all: usize, backends: usize, most: usize) -> bool {
    let (all, most) = (all as f64, most as f64);
    let share = 1.0 / backends as f64;
    let even = all * share;
    most >= 1.5 * even && most - even > 5.0 * (even * (1.0 - share)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_choice_is_not_called_uneven() {
        assert!(!is_no_chance(30, 2, 20));
        assert!(is_no_chance(30, 2, 30));
        assert!(!is_no_chance(1_000, 10, 140));
        assert!(is_no_chance(1_000, 10, 200));
    }
}
