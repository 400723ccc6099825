//! Pure. The objects a Service is made of, as this project uses them: checked, slim, without Kubernetes' optional
//! fields. The crate `cluster` makes them from API objects and refuses what is malformed; nothing here parses text.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::scheduler::Scheduler;

/// An IP family. A plan is made per family, and a dual-stack Service is two plans' business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "ipv4",
            Family::Ipv6 => "ipv6",
        })
    }
}

/// A transport protocol a Service port may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Protocol {
    /// Lower case, as nftables and iptables write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name in it.
    pub name: Arc<str>,
}

impl ObjectName {
    /// A name from its two parts.
    pub fn new(namespace: &str, name: &str) -> ObjectName {
        ObjectName { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One port of one Service. Shown as `namespace/name` or `namespace/name:port`, as kube-proxy shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServicePortName {
    /// The Service.
    pub service: ObjectName,
    /// The port's name; empty if it has none.
    pub port: Arc<str>,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// `externalTrafficPolicy` or `internalTrafficPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    #[default]
    Cluster,
    /// Only endpoints on the node that the packet is on.
    Local,
}

/// A load-balancer address from `status.loadBalancer.ingress`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingress {
    /// The address.
    pub address: IpAddr,
    /// `ipMode: VIP`: the node serves the address. With `Proxy` it must not.
    pub vip: bool,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// The port's name; empty if it has none. Joins it to the slice ports of the same name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the Service's addresses.
    pub port: NonZeroU16,
    /// The port at the nodes' addresses, if any.
    pub node_port: Option<NonZeroU16>,
}

/// How connections that live long are spread anew after a scale-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rebalance {
    /// How much more than its even share of the connections a backend may have, in percent of that share.
    pub within_percent: u16,
    /// The most that is closed in a second, in percent of a Service port's connections; never 0.
    pub rate_percent: u8,
}

/// A Service that a node has to serve. ExternalName and headless Services, and those with a foreign
/// `service.kubernetes.io/service-proxy-name` label, never become one of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// The cluster addresses: one or two, never of the same family.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// `spec.loadBalancerSourceRanges`; empty: everyone.
    pub source_ranges: Vec<IpNet>,
    /// The ports, as written.
    pub ports: Vec<ServicePort>,
    /// For clients outside of the cluster.
    pub external_policy: TrafficPolicy,
    /// For clients inside of the cluster.
    pub internal_policy: TrafficPolicy,
    /// `sessionAffinity: ClientIP` with its timeout.
    pub affinity: Option<Duration>,
    /// The annotation `signpost.dev/tcp-when-endpoint-gone`: how long after its endpoint is gone a TCP connection is reset;
    /// `None`: it is left. Of use in one mode only.
    pub reset_after: Option<Duration>,
    /// The annotation `signpost.dev/rebalance`: whether connections that live long are spread anew after a scale-up. Of use in one
    /// mode only.
    pub rebalance: Option<Rebalance>,
    /// `spec.healthCheckNodePort`, when the policy and type give one.
    pub health_check_node_port: Option<NonZeroU16>,
    /// The annotation `signpost.dev/ipvs-scheduler`. Of use in one mode only.
    pub scheduler: Option<Scheduler>,
}

/// One endpoint of a slice: a pod, mostly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The address (the first one; the API says that others are not to be used).
    pub address: IpAddr,
    /// `conditions.ready`: unset counts as true.
    pub ready: bool,
    /// `conditions.serving`: unset counts as `ready`.
    pub serving: bool,
    /// `conditions.terminating`: unset counts as false.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `hints.forZones`.
    pub zone_hints: Vec<Arc<str>>,
    /// `hints.forNodes`.
    pub node_hints: Vec<Arc<str>>,
}

/// A port of a slice. One without a number (the API allows it: "all ports") never becomes one of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// The name; empty if it has none.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the endpoints' addresses.
    pub port: NonZeroU16,
}

/// An EndpointSlice that belongs to a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// Namespace and name of the slice.
    pub name: ObjectName,
    /// The Service it belongs to (label `kubernetes.io/service-name`).
    pub service: ObjectName,
    /// The family of all its addresses.
    pub family: Family,
    /// Its ports; they hold for every endpoint.
    pub ports: Vec<EndpointPort>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// `status.addresses` of type InternalIP, the primary first.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// All labels; the zone is `topology.kubernetes.io/zone`.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
}

impl Node {
    /// The node's zone, if its label names one.
    pub fn zone(&self) -> Option<&Arc<str>> {
        self.labels.get("topology.kubernetes.io/zone")
    }
}
