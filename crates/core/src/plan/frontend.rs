//! Pure. The frontends of one Service: every address and port at which it answers, in one family.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::node_cache;
use crate::object::{Family, Protocol, Service, ServicePort, ServicePortName};
use crate::plan::backends::{Choice, Site, choose};
use crate::plan::policy::{Masquerade, Routes, routes};
use crate::plan::{Backend, Frontend, FrontendKey, FrontendKind, Route, Target};
use crate::service_map::offers;
use crate::store::Store;

/// What a Service's frontends depend on besides the Service and its slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The family to plan for.
    pub family: Family,
    /// The node to plan for.
    pub site: Site,
    /// When sources are rewritten at cluster addresses.
    pub masquerade: Masquerade,
    /// The node's first address in this family.
    pub primary: Option<IpAddr>,
    /// Whether the node's cache answers for the cluster's name service.
    pub node_cache: bool,
    /// Where node ports answer, if source ranges guard them; `None`: they do not.
    pub guarded: Option<BTreeSet<IpAddr>>,
}

/// All frontends of a Service. None at all in a family that it has no cluster address of: its endpoints never have one
/// either, so an external address or a node port could only refuse. If it claims one key twice, the claim of the lower kind counts, then that of the port that is
/// written first.
pub fn frontends(store: &Store, service: &Service, around: &Surroundings) -> BTreeMap<FrontendKey, Frontend> {
    let mut frontends = BTreeMap::new();
    if !service.cluster_ips.iter().any(|address| Family::of(*address) == around.family) {
        return frontends;
    }
    let source_ranges = source_ranges(service, around.family);
    for port in &service.ports {
        let choice = choose(&offers(store, &service.name, port, around.family), &around.site);
        let guarded = around.guarded.as_ref().filter(|_| !source_ranges.is_empty());
        for (key, kind) in keys(service, port, around.family, guarded) {
            let ranges = match kind {
                FrontendKind::LoadBalancer => with_own_address(&source_ranges, key, around.primary),
                FrontendKind::NodePort if guarded.is_some() => source_ranges.clone(),
                _ => Arc::default(),
            };
            let mut frontend = frontend(service, port, kind, &choice, around.masquerade, ranges);
            if around.node_cache && kind == FrontendKind::ClusterIp && is_for_names(service, port) {
                lead_to_cache(&mut frontend, around.family);
            }
            insert(&mut frontends, key, frontend);
        }
    }
    frontends
}

fn is_for_names(service: &Service, port: &ServicePort) -> bool {
    port.port.get() == node_cache::PORT && port.protocol != Protocol::Sctp && node_cache::is_name_service(&service.name)
}

/// Whoever asks is answered on this node, whatever the Service's endpoints and policies are: the source stays as it is, since the
/// answer comes back through this node in any case.
fn lead_to_cache(frontend: &mut Frontend, family: Family) {
    let backend = Backend { address: node_cache::socket_address(family), local: true };
    let route = Route { target: Target::Backends(Arc::from([backend])), masquerade: false };
    frontend.from_pod = route.clone();
    frontend.from_node = route.clone();
    frontend.from_elsewhere = route;
    frontend.affinity = None;
}

fn insert(frontends: &mut BTreeMap<FrontendKey, Frontend>, key: FrontendKey, frontend: Frontend) {
    match frontends.get(&key) {
        Some(other) if other.kind <= frontend.kind => {}
        _ => {
            frontends.insert(key, frontend);
        }
    }
}

fn frontend(
    service: &Service,
    port: &ServicePort,
    kind: FrontendKind,
    choice: &Choice,
    masquerade: Masquerade,
    source_ranges: Arc<[IpNet]>,
) -> Frontend {
    let Routes { from_pod, from_node, from_elsewhere } = routes(kind, service, choice, masquerade);
    Frontend {
        service_port: ServicePortName { service: service.name.clone(), port: port.name.clone() },
        kind,
        from_pod,
        from_node,
        from_elsewhere,
        source_ranges,
        affinity: service.affinity,
        scheduler: service.scheduler,
        reset_after: service.reset_after,
        rebalance: service.rebalance,
    }
}

/// The keys that one port claims. A node port that source ranges guard is one at each of the addresses where it answers,
/// `guarded`: to guard addresses every mode knows.
fn keys(
    service: &Service,
    port: &ServicePort,
    family: Family,
    guarded: Option<&BTreeSet<IpAddr>>,
) -> Vec<(FrontendKey, FrontendKind)> {
    let (protocol, number) = (port.protocol, port.port);
    let cluster = service.cluster_ips.iter().map(|address| (*address, FrontendKind::ClusterIp));
    let external = service.external_ips.iter().map(|address| (*address, FrontendKind::ExternalIp));
    let ingress = service.ingress.iter().filter(|ingress| ingress.vip);
    let ingress = ingress.map(|ingress| (ingress.address, FrontendKind::LoadBalancer));
    let addresses = cluster.chain(external).chain(ingress).filter(|(address, _)| Family::of(*address) == family);
    let addresses = addresses.map(|(address, kind)| (FrontendKey::Address { address, protocol, port: number }, kind));
    let node_ports = port.node_port.into_iter().flat_map(|port| match guarded {
        None => vec![FrontendKey::NodePort { protocol, port }],
        Some(at) => at.iter().map(|address| FrontendKey::Address { address: *address, protocol, port }).collect(),
    });
    addresses.chain(node_ports.map(|key| (key, FrontendKind::NodePort))).collect()
}

fn source_ranges(service: &Service, family: Family) -> Arc<[IpNet]> {
    service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family).map(IpNet::trunc).collect()
}

/// When the load balancer puts its address onto the node, what the node sends there carries the same address as its source.
/// A node that may use the address must not be shut out by that.
fn with_own_address(ranges: &Arc<[IpNet]>, key: FrontendKey, primary: Option<IpAddr>) -> Arc<[IpNet]> {
    let FrontendKey::Address { address, .. } = key else { return ranges.clone() };
    let node_may = primary.is_some_and(|primary| ranges.iter().any(|range| range.contains(&primary)));
    if !node_may || ranges.iter().any(|range| range.contains(&address)) {
        return ranges.clone();
    }
    ranges.iter().copied().chain([IpNet::from(address)]).collect()
}
