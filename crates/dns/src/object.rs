//! Pure. What the zone is made of: what DNS needs of Services, slices, namespaces and pods, and no more.
//!
//! These are not the core's objects, which are what a node's kernel needs: headless and ExternalName Services have
//! nothing for a kernel and everything for DNS.

use std::net::IpAddr;

use hickory_proto::rr::Name;
use signpost_core::object::ObjectName;

/// The kinds that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
    /// Namespaces: a name between a Service and `svc` exists without any Service too.
    Namespace,
    /// Pods, where they are asked for by address.
    Pod,
}

impl Kind {
    /// All, in the order of their places in a table.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Namespace, Kind::Pod];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Namespace => "Namespace",
            Kind::Pod => "Pod",
        }
    }
}

/// One change of the cluster, as the API told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A list of the kind begins. What is known stays in force until it is whole.
    Reset(Kind),
    /// The list is whole: what it did not hold is gone.
    Synced(Kind),
    /// Nothing changed.
    Nothing,
    /// A Service is there.
    Service(Service),
    /// A Service is gone.
    ServiceGone(ObjectName),
    /// A slice is there.
    Slice(Slice),
    /// A slice is gone.
    SliceGone(ObjectName),
    /// A namespace is there.
    Namespace(Box<str>),
    /// A namespace is gone.
    NamespaceGone(Box<str>),
    /// A pod is there.
    Pod(Pod),
    /// A pod is gone.
    PodGone(ObjectName),
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name. Both parts are DNS labels in lower case.
    pub name: ObjectName,
    /// Endpoints count whether they are ready or not.
    pub publish_not_ready: bool,
    /// What its name stands for.
    pub stands_for: StandsFor,
}

/// What the name of a Service stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StandsFor {
    /// Its cluster addresses, at most one per family, and what it offers there.
    ClusterIps {
        /// In the Service's order.
        addresses: Vec<IpAddr>,
        /// All of them.
        ports: Vec<Port>,
    },
    /// Its endpoints.
    Endpoints,
    /// Another name.
    Name(Box<Name>),
    /// Nothing (yet): its name is not to be found.
    Nothing,
}

/// A port of a Service or of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// In lower case. Empty: no SRV record names it.
    pub name: Box<str>,
    /// Over what.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

/// What runs over IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Its label in an SRV name.
    pub fn label(self) -> &'static [u8] {
        match self {
            Protocol::Tcp => b"_tcp",
            Protocol::Udp => b"_udp",
            Protocol::Sctp => b"_sctp",
        }
    }
}

/// Some endpoints of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The slice's own name.
    pub name: ObjectName,
    /// The Service's name, in the same namespace.
    pub service: Box<str>,
    /// One per address.
    pub endpoints: Vec<Endpoint>,
    /// What each endpoint offers.
    pub ports: Vec<Port>,
    /// When the change of a pod or Service was made that led to this state, in milliseconds since 1970.
    pub triggered_ms: Option<i64>,
}

/// One address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The endpoint's own hostname, in lower case.
    pub hostname: Option<Box<str>>,
    /// The pod's name, in lower case, if it is one DNS label.
    pub pod: Option<Box<str>>,
    /// Whether it is to be found.
    pub ready: bool,
}

/// A pod that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: ObjectName,
    /// At most one per family.
    pub addresses: Vec<IpAddr>,
}
