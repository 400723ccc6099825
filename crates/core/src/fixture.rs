//! Pure. For this crate's tests: objects in few words, and a node that plans and walks.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use crate::object::{
    Endpoint, EndpointPort, EndpointSlice, Family, Ingress, Node, ObjectName, Protocol, Service, ServicePort,
    TrafficPolicy,
};
use crate::packet::{Entry, Packet, Rewrite, Verdict};
use crate::plan::{NodePlan, PlanChange};
use crate::planner::{NodeConfig, NodePortAddresses, Planner};
use crate::store::{Event, Store};
use crate::walk::walk;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).expect("a test's port is not 0")
}

pub(crate) fn service(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        name: ObjectName::new("default", name),
        cluster_ips: cluster_ips.iter().map(|address| ip(address)).collect(),
        external_ips: Vec::new(),
        ingress: Vec::new(),
        source_ranges: Vec::new(),
        ports: Vec::new(),
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity: None,
        reset_after: None,
        rebalance: None,
        health_check_node_port: None,
        scheduler: None,
    }
}

impl Service {
    pub(crate) fn port(self, name: &str, port: u16) -> Service {
        self.protocol_port(name, Protocol::Tcp, port)
    }

    pub(crate) fn protocol_port(mut self, name: &str, protocol: Protocol, port: u16) -> Service {
        self.ports.push(ServicePort { name: name.into(), protocol, port: number(port), node_port: None });
        self
    }

    /// Of the port that was written last.
    pub(crate) fn node_port(mut self, port: u16) -> Service {
        self.ports.last_mut().expect("a port was written").node_port = Some(number(port));
        self
    }

    pub(crate) fn external_ip(mut self, address: &str) -> Service {
        self.external_ips.push(ip(address));
        self
    }

    pub(crate) fn ingress(mut self, address: &str) -> Service {
        self.ingress.push(Ingress { address: ip(address), vip: true });
        self
    }

    pub(crate) fn sources(mut self, range: &str) -> Service {
        self.source_ranges.push(range.parse().expect("a test's range is one"));
        self
    }

    pub(crate) fn external_local(mut self) -> Service {
        self.external_policy = TrafficPolicy::Local;
        self
    }

    pub(crate) fn internal_local(mut self) -> Service {
        self.internal_policy = TrafficPolicy::Local;
        self
    }

    pub(crate) fn sticky(mut self, seconds: u64) -> Service {
        self.affinity = Some(Duration::from_secs(seconds));
        self
    }
}

/// A slice of the Service `default/SERVICE`; its family is that of its first endpoint.
pub(crate) fn slice(name: &str, service: &str, ports: &[(&str, u16)], endpoints: Vec<Endpoint>) -> EndpointSlice {
    let ports = ports.iter().map(|(name, port)| EndpointPort {
        name: (*name).into(),
        protocol: Protocol::Tcp,
        port: number(*port),
    });
    EndpointSlice {
        name: ObjectName::new("default", name),
        service: ObjectName::new("default", service),
        family: endpoints.first().map_or(Family::Ipv4, |endpoint| Family::of(endpoint.address)),
        ports: ports.collect(),
        endpoints,
    }
}

/// A ready endpoint.
pub(crate) fn endpoint(address: &str, node: &str) -> Endpoint {
    Endpoint {
        address: ip(address),
        ready: true,
        serving: true,
        terminating: false,
        node: Some(node.into()),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    }
}

impl Endpoint {
    pub(crate) fn unready(mut self) -> Endpoint {
        (self.ready, self.serving) = (false, false);
        self
    }

    /// Not ready, but still serving while it ends.
    pub(crate) fn terminating(mut self) -> Endpoint {
        (self.ready, self.serving, self.terminating) = (false, true, true);
        self
    }

    /// Ending, and serving no more.
    pub(crate) fn ended(mut self) -> Endpoint {
        (self.ready, self.serving, self.terminating) = (false, false, true);
        self
    }

    pub(crate) fn for_zones(mut self, zones: &[&str]) -> Endpoint {
        self.zone_hints = zones.iter().map(|zone| (*zone).into()).collect();
        self
    }

    pub(crate) fn for_nodes(mut self, nodes: &[&str]) -> Endpoint {
        self.node_hints = nodes.iter().map(|node| (*node).into()).collect();
        self
    }
}

pub(crate) fn node(name: &str, zone: Option<&str>, addresses: &[&str]) -> Node {
    Node {
        name: name.into(),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        pod_cidrs: Vec::new(),
        labels: zone.iter().map(|zone| ("topology.kubernetes.io/zone".into(), (*zone).into())).collect(),
    }
}

/// The node n1 with two addresses per family, of which the first is the primary one.
pub(crate) fn config() -> NodeConfig {
    NodeConfig {
        node: "n1".into(),
        cluster_cidrs: vec!["10.180.0.0/16".parse().expect("a range"), "fd00:180::/48".parse().expect("a range")],
        masquerade_all: false,
        node_addresses: ["192.168.0.2", "192.168.1.2", "127.0.0.1", "fd00:168::2", "fd00:168:1::2", "::1", "fe80::2"]
            .into_iter()
            .map(ip)
            .collect(),
        node_port_addresses: NodePortAddresses::Primary,
        localhost_node_ports: false,
        source_ranges_on_node_ports: false,
        node_cache: false,
    }
}

/// A store and a planner of n1, in step.
pub(crate) struct Stage {
    pub(crate) store: Store,
    pub(crate) planner: Planner,
}

impl Stage {
    pub(crate) fn new(family: Family, config: NodeConfig) -> Stage {
        let mut stage = Stage { store: Store::new(), planner: Planner::new(family, config) };
        stage.tell([Event::NodeApplied(node("n1", Some("a"), &["192.168.0.2", "fd00:168::2"]))]);
        stage
    }

    pub(crate) fn tell(&mut self, events: impl IntoIterator<Item = Event>) -> PlanChange {
        events.into_iter().for_each(|event| self.store.handle(event));
        let dirty = self.store.take_dirty();
        self.planner.update(&self.store, &dirty)
    }

    pub(crate) fn with(mut self, service: Service, slices: impl IntoIterator<Item = EndpointSlice>) -> Stage {
        self.tell([Event::ServiceApplied(service)]);
        self.tell(slices.into_iter().map(Event::SliceApplied));
        self
    }

    pub(crate) fn plan(&self) -> &NodePlan {
        self.planner.plan()
    }

    /// The fate of a TCP packet.
    pub(crate) fn walk(&self, source: &str, destination: &str) -> Verdict {
        self.walk_protocol(Protocol::Tcp, source, destination)
    }

    pub(crate) fn walk_protocol(&self, protocol: Protocol, source: &str, destination: &str) -> Verdict {
        walk(self.plan(), &packet(protocol, source, destination))
    }
}

pub(crate) fn packet(protocol: Protocol, source: &str, destination: &str) -> Packet {
    let source = SocketAddr::new(ip(source), 40_000);
    Packet { protocol, source, destination: socket(destination), entry: Entry::Interface }
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Rewritten to one of these, the source kept.
pub(crate) fn to(backends: &[&str]) -> Verdict {
    Verdict::Rewrite(backends.iter().map(|to| Rewrite { to: socket(to), masquerade: false }).collect())
}

/// Rewritten to one of these, the source the node's.
pub(crate) fn masqueraded(backends: &[&str]) -> Verdict {
    Verdict::Rewrite(backends.iter().map(|to| Rewrite { to: socket(to), masquerade: true }).collect())
}
