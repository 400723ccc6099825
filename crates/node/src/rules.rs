//! Pure. What a node serves, in rows that a person reads: `signpost rules` asks the daemon for these and adds where in the
//! kernel each stands.
//!
//! ```text
//! Store, NodePlan ─▶ rows() ─▶ Listing ─(/rules, JSON)─▶ signpost rules ─▶ Datapath::observe, Locate ─▶ table
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use signpost_core::object::{Endpoint, Family, ObjectName, Protocol, ServicePort, ServicePortName, TrafficPolicy};
use signpost_core::plan::{Frontend, FrontendKey, FrontendKind, NodePlan, Route, Target};
use signpost_core::service_map::offers;
use signpost_core::store::Store;
use signpost_datapath::counts::{BackendCounts, PortCounts};
use signpost_datapath::locate::{End, Location};

use crate::mode::Mode;

/// What the daemon answers at `/rules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing<P> {
    /// The mode.
    pub mode: Mode,
    /// What is missing for more, and what is done in its place.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// The daemon's process: what it mounted may be seen by it alone.
    #[serde(default)]
    pub process: Option<u32>,
    /// Every Service that the node knows, so that a wrong name can be told from one without rules.
    pub services: BTreeSet<ObjectName>,
    /// Per family.
    pub families: BTreeMap<Family, FamilyListing<P>>,
}

/// What a family serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FamilyListing<P> {
    /// The rows that were asked for.
    pub rows: Vec<Row>,
    /// The whole of what the kernel should hold; `None`: nothing is programmed yet.
    pub program: Option<P>,
}

/// One frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Namespace and name of the Service, and the port's name.
    pub service_port: ServicePortName,
    /// The family.
    pub family: Family,
    /// Where it answers.
    pub frontend: FrontendKey,
    /// Which of the Service's addresses that is; not known: the kernel alone was read.
    pub kind: Option<FrontendKind>,
    /// The traffic policy that holds there; not known: the kernel alone was read.
    pub policy: Option<TrafficPolicy>,
    /// `sessionAffinity: ClientIP` with its timeout.
    pub affinity_s: Option<u64>,
    /// Who may use it; empty: everyone.
    pub source_ranges: Vec<IpNet>,
    /// What becomes of clients that no backend gets.
    pub ends: BTreeMap<Client, End>,
    /// The endpoints, those that get traffic first.
    pub backends: Vec<Backend>,
    /// Connections to its Service port for which there was no endpoint; `None`: the mode does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// Connections that were closed so that their clients reach new endpoints; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebalanced: Option<u64>,
    /// Where in the kernel it stands; empty until somebody looked.
    #[serde(default)]
    pub locations: Vec<Location>,
    /// Whether the daemon wants it; otherwise it was found in the kernel alone.
    pub planned: bool,
}

/// Whose packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Client {
    /// Pods of the cluster.
    Pod,
    /// The node itself.
    Node,
    /// All others.
    Elsewhere,
}

/// One endpoint of a frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Its address.
    pub address: SocketAddr,
    /// How it is.
    pub state: State,
    /// Its share of new flows against that of the others; 0: none.
    pub weight: u32,
    /// The node that it is on, if the slice says so.
    pub node: Option<Arc<str>>,
    /// Who is led to it.
    pub clients: BTreeSet<Client>,
    /// What became of connections to it through the Service port, by whichever frontend; `None`: the mode does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<BackendCounts>,
}

/// How an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Takes traffic.
    Ready,
    /// Ends, but serves still.
    Terminating,
    /// Takes none.
    NotReady,
    /// The kernel has it, and nobody knows how it is: there is no daemon to ask, or it is not in the daemon's plan.
    Unknown,
}

/// The rows of one family. `wanted`: of these Services alone.
pub fn rows(store: &Store, plan: &NodePlan, wanted: impl Fn(&ObjectName) -> bool) -> Vec<Row> {
    let mut rows: Vec<Row> = plan
        .frontends
        .iter()
        .filter(|(_, frontend)| wanted(&frontend.service_port.service))
        .map(|(key, frontend)| row(store, plan.family, *key, frontend))
        .collect();
    rows.sort_by(|a, b| (&a.service_port, a.kind, a.frontend).cmp(&(&b.service_port, b.kind, b.frontend)));
    rows
}

fn row(store: &Store, family: Family, key: FrontendKey, frontend: &Frontend) -> Row {
    let service = store.service(&frontend.service_port.service);
    let routes = [
        (Client::Pod, &frontend.from_pod),
        (Client::Node, &frontend.from_node),
        (Client::Elsewhere, &frontend.from_elsewhere),
    ];
    let policy = service.map(|service| match frontend.kind {
        FrontendKind::ClusterIp => service.internal_policy,
        _ => service.external_policy,
    });
    let ends = routes.iter().filter_map(|(client, route)| match route.target {
        Target::Reject => Some((*client, End::Reject)),
        Target::Drop => Some((*client, End::Drop)),
        Target::Backends(_) => None,
    });
    Row {
        service_port: frontend.service_port.clone(),
        family,
        frontend: key,
        kind: Some(frontend.kind),
        policy,
        affinity_s: frontend.affinity.map(|timeout| timeout.as_secs()),
        source_ranges: frontend.source_ranges.to_vec(),
        ends: ends.collect(),
        backends: backends(store, family, key, frontend, &routes),
        refused: None,
        rebalanced: None,
        locations: Vec::new(),
        planned: true,
    }
}

/// Those that are offered, and whatever else the plan leads to.
fn backends(
    store: &Store,
    family: Family,
    key: FrontendKey,
    frontend: &Frontend,
    routes: &[(Client, &Route)],
) -> Vec<Backend> {
    let name = &frontend.service_port;
    let ports = store.service(&name.service).map(|service| service.ports.as_slice()).unwrap_or_default();
    let is_its = |port: &&ServicePort| port.name == name.port && port.protocol == protocol(&key);
    let offered = ports.iter().find(is_its).map(|port| offers(store, &name.service, port, family)).unwrap_or_default();
    let mut all: BTreeMap<SocketAddr, Backend> = offered
        .iter()
        .map(|offer| {
            let (state, node) = (state(offer.endpoint), offer.endpoint.node.clone());
            (offer.address, Backend { state, weight: 0, node, ..Backend::unknown(offer.address, 0) })
        })
        .collect();
    for (client, route) in routes {
        let Target::Backends(backends) = &route.target else { continue };
        for address in backends.iter().map(|backend| backend.address) {
            let backend = all.entry(address).or_insert_with(|| Backend::unknown(address, 1));
            backend.weight = 1;
            backend.clients.insert(*client);
        }
    }
    let mut all: Vec<Backend> = all.into_values().collect();
    all.sort_by_key(|backend| (backend.weight == 0, backend.address));
    all
}

fn protocol(key: &FrontendKey) -> Protocol {
    match key {
        FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. } => *protocol,
    }
}

fn state(endpoint: &Endpoint) -> State {
    match (endpoint.ready, endpoint.serving, endpoint.terminating) {
        (true, ..) => State::Ready,
        (false, true, true) => State::Terminating,
        _ => State::NotReady,
    }
}

impl Backend {
    /// One of which only the address is known, and the weight that the kernel gives it.
    pub fn unknown(address: SocketAddr, weight: u32) -> Backend {
        Backend { address, state: State::Unknown, weight, node: None, clients: BTreeSet::new(), counts: None }
    }
}

impl Row {
    /// Takes in what was counted at its Service port.
    pub fn count(&mut self, counts: Option<&PortCounts>) {
        let Some(counts) = counts else { return };
        self.refused = Some(counts.refused);
        self.rebalanced = Some(counts.rebalanced).filter(|closed| *closed > 0);
        for backend in &mut self.backends {
            backend.counts = Some(counts.backends.get(&backend.address).copied().unwrap_or_default());
        }
    }

    /// Whether the kernel holds all of it; `true` as well if nobody looked.
    pub fn is_held(&self) -> bool {
        self.locations.iter().all(|location| location.held)
    }
}
