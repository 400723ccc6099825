//! Pure. What the API's objects say at one moment: where everything is (for the prediction) and which address and port a
//! destination means (for the packet).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use signpost_core::object::{Family, Protocol};

use crate::address::{Destination, PodName, PortRef, ServiceRef, Target};
use crate::field::{at, list, text};
use crate::predict::{ClusterView, NodeView, PodView};

/// The annotation of a Lease that records which node announces an address.
pub const ANNOUNCED: &str = "signpost.dev/address";

/// The objects, as the API lists them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listed {
    /// Nodes.
    pub nodes: Vec<Value>,
    /// Pods.
    pub pods: Vec<Value>,
    /// Services.
    pub services: Vec<Value>,
    /// EndpointSlices.
    pub slices: Vec<Value>,
    /// Endpoints of the older kind.
    pub endpoints: Vec<Value>,
    /// ServiceCIDRs.
    pub service_cidrs: Vec<Value>,
    /// NetworkPolicies.
    pub network_policies: Vec<Value>,
    /// Leases: among them the records of which node announces an address.
    pub leases: Vec<Value>,
    /// ServiceL2Statuses: which node answers for the addresses of a Service by ARP and NDP.
    pub l2_statuses: Vec<Value>,
    /// ServiceBGPStatuses: which node announces the addresses of a Service to which BGP peers.
    pub bgp_statuses: Vec<Value>,
}

/// What is known of a pod's listeners besides its object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listeners {
    /// Where it listens; `None`: not known, counts as everywhere.
    pub listens: Option<BTreeSet<(Protocol, u16)>>,
    /// The one address that it listens on; `None`: all.
    pub bind: Option<IpAddr>,
}

/// What the objects do not tell.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Further addresses of each node: on its pods' bridge, on `lo`.
    pub node_addresses: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The outside client's addresses.
    pub outside: Vec<IpAddr>,
    /// What else listens: the API.
    pub others: BTreeSet<SocketAddr>,
    /// Addresses that the router sends to a node.
    pub routes: BTreeMap<IpAddr, String>,
}

/// An address that a scenario's `save` step remembered, one of each family at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Saved {
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// The port, if one was saved with them.
    pub port: Option<u16>,
    /// A word that is no address.
    pub word: Option<String>,
}

/// Why a destination has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAddress {
    /// Nothing of that name.
    #[error("there is no {what} {name}")]
    Missing {
        /// Service, pod, node or saved address.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// It has no address of this sort.
    #[error("{name} has no {what}")]
    Without {
        /// Which address or port.
        what: String,
        /// Whose.
        name: String,
    },
    /// It has one, but of the other family.
    #[error("{name} has no {family} address")]
    Family {
        /// Whose.
        name: String,
        /// The family that was wanted.
        family: Family,
    },
    /// It should have one of the wanted family, but has not.
    #[error("{name} has no {family} address, though it is to have one of that family")]
    Lacks {
        /// Whose.
        name: String,
        /// The family that was wanted.
        family: Family,
    },
}

impl Listed {
    /// Where everything is, for one family. `listeners` tells of each pod where it listens.
    pub fn view(
        &self,
        family: Family,
        listeners: &dyn Fn(&PodName) -> Listeners,
        around: &Surroundings,
    ) -> ClusterView {
        self.view_of(family, listeners, around, &|_| true)
    }

    /// Where everything is, with those pods alone that are wanted.
    pub(crate) fn view_of(
        &self,
        family: Family,
        listeners: &dyn Fn(&PodName) -> Listeners,
        around: &Surroundings,
        wanted: &dyn Fn(&Value) -> bool,
    ) -> ClusterView {
        let of_family = |address: &IpAddr| Family::of(*address) == family;
        let pods = self.pods.iter().filter(|pod| wanted(pod));
        ClusterView {
            nodes: self.nodes.iter().filter_map(|node| node_view(node, family, around)).collect(),
            pods: pods.filter_map(|pod| pod_view(pod, family, listeners)).collect(),
            outside: around.outside.iter().copied().find(of_family),
            others: around.others.iter().copied().filter(|address| of_family(&address.ip())).collect(),
            routes: self.announced().chain(around.routes.clone()).collect(),
        }
    }

    /// The load-balancer addresses that nodes announce, each with its node: by the records of who announces what, else by
    /// what MetalLB's kinds tell of a Service.
    pub fn announced(&self) -> impl Iterator<Item = (IpAddr, String)> + '_ {
        let told = self.l2_statuses.len() + self.bgp_statuses.len() > 0;
        let named = self.services.iter().filter(|_| told);
        let by_name: HashMap<(&str, &str), &Value> = named.filter_map(|one| Some((full_name(one)?, one))).collect();
        let told = self.l2_statuses.iter().chain(&self.bgp_statuses).flat_map(move |status| {
            let of = |path: &str| text(status, path).filter(|text| !text.is_empty());
            let service = of("/status/serviceNamespace").zip(of("/status/serviceName"));
            let object = service.and_then(|name| by_name.get(&name).copied());
            let node = of("/status/node");
            object
                .zip(node)
                .into_iter()
                .flat_map(|(object, node)| ingress(object).into_iter().map(move |address| (address, node.to_owned())))
        });
        let recorded = self.leases.iter().filter_map(|lease| {
            let annotations = at(lease, "/metadata/annotations")?;
            let address = annotations.get(ANNOUNCED)?.as_str()?.parse().ok()?;
            let holder = text(lease, "/spec/holderIdentity").filter(|holder| !holder.is_empty())?;
            Some((address, holder.to_owned()))
        });
        told.chain(recorded)
    }

    /// The address and port that a destination means in one family. Without a port (ICMP echo) the port is 0.
    ///
    /// # Errors
    /// [`NoAddress`]
    pub fn resolve(
        &self,
        target: &Target,
        family: Family,
        saved: &BTreeMap<String, Saved>,
    ) -> Result<SocketAddr, NoAddress> {
        self.resolve_by(&|wanted| self.find_service(wanted), target, family, saved)
    }

    /// As [`Listed::resolve`], with a quicker way to a Service by its name than to go through all.
    pub(crate) fn resolve_by(
        &self,
        services: &FindService<'_>,
        target: &Target,
        family: Family,
        saved: &BTreeMap<String, Saved>,
    ) -> Result<SocketAddr, NoAddress> {
        let find = |wanted: &ServiceRef| services(wanted).ok_or_else(|| missing("Service", &wanted.name));
        let protocol = target.scheme.protocol();
        let (addresses, port, name) = match &target.destination {
            Destination::Literal(address) => (vec![address.ip()], address.port(), address.to_string()),
            Destination::Saved(name, port) => {
                let saved = saved.get(name).ok_or_else(|| missing("saved address", name))?;
                (saved.addresses.clone(), plain_port(port).or(saved.port).unwrap_or(0), format!("${name}"))
            }
            Destination::Node(name, port) => (self.node_addresses(name)?, plain_port(port).unwrap_or(0), name.clone()),
            Destination::Pod(pod, port) => {
                let object = self.pod(pod)?;
                let number = pod_port(object, port).or_else(|| plain_port(port)).unwrap_or(0);
                (pod_addresses(object), number, pod.to_string())
            }
            Destination::NodePort(node, service, port) => {
                let object = find(service)?;
                let found = match port {
                    PortRef::Name(name) => Some(named_port(object, name)?),
                    _ => service_port(object, port, protocol),
                };
                let number = found.and_then(|port| number(port, "nodePort"));
                let number = number.ok_or_else(|| without("node port", &service.name))?;
                (self.node_addresses(node)?, number, node.clone())
            }
            Destination::Cluster(service, port) => {
                let object = find(service)?;
                (texts(object, "/spec/clusterIPs"), frontend_port(object, port)?, service.name.clone())
            }
            Destination::External(service, port) => {
                let object = find(service)?;
                (texts(object, "/spec/externalIPs"), frontend_port(object, port)?, service.name.clone())
            }
            Destination::LoadBalancer(service, port) => {
                let object = find(service)?;
                (ingress(object), frontend_port(object, port)?, service.name.clone())
            }
            Destination::Name(name) => return Err(without("address before it is looked up", name)),
        };
        if addresses.is_empty() {
            return Err(without("such address", &name));
        }
        let address = addresses.into_iter().find(|address| Family::of(*address) == family);
        match address {
            Some(address) => Ok(SocketAddr::new(address, port)),
            None if promises(services, &target.destination, family) => Err(NoAddress::Lacks { name, family }),
            None => Err(NoAddress::Family { name, family }),
        }
    }

    /// What a scenario's `save` step remembers: all addresses of a destination, and its port if it names one.
    ///
    /// # Errors
    /// [`NoAddress`], if there is none of either family or a Service lacks one that it is to have.
    pub fn save(&self, target: &Target, saved: &BTreeMap<String, Saved>) -> Result<Saved, NoAddress> {
        let found: Vec<_> =
            [Family::Ipv4, Family::Ipv6].into_iter().map(|family| self.resolve(target, family, saved)).collect();
        if let Some(Err(error)) = found.iter().find(|found| matches!(found, Err(NoAddress::Lacks { .. }))) {
            return Err(error.clone());
        }
        let addresses: Vec<SocketAddr> = found.iter().filter_map(|found| found.as_ref().ok().copied()).collect();
        match (addresses.first(), found.into_iter().find_map(Result::err)) {
            (Some(first), _) => {
                let port = Some(first.port()).filter(|port| *port != 0);
                Ok(Saved { addresses: addresses.iter().map(SocketAddr::ip).collect(), port, word: None })
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Saved::default()),
        }
    }

    fn find_service(&self, wanted: &ServiceRef) -> Option<&Value> {
        self.services.iter().find(|object| is_named(object, &wanted.namespace, &wanted.name))
    }

    fn pod(&self, wanted: &PodName) -> Result<&Value, NoAddress> {
        let found = self.pods.iter().find(|object| is_named(object, &wanted.namespace, &wanted.name));
        found.ok_or_else(|| missing("pod", &wanted.to_string()))
    }

    fn node_addresses(&self, name: &str) -> Result<Vec<IpAddr>, NoAddress> {
        let found = self.nodes.iter().find(|object| text(object, "/metadata/name") == Some(name));
        found.map(internal_addresses).ok_or_else(|| missing("node", name))
    }
}

/// Finds a Service by its name.
pub(crate) type FindService<'a> = dyn Fn(&ServiceRef) -> Option<&'a Value> + 'a;

/// Whether a Service says that it is there in a family.
fn promises(services: &FindService<'_>, destination: &Destination, family: Family) -> bool {
    let (Destination::Cluster(service, _) | Destination::External(service, _) | Destination::LoadBalancer(service, _)) =
        destination
    else {
        return false;
    };
    let said = services(service).map_or(&[][..], |object| list(object, "/spec/ipFamilies")).iter();
    said.filter_map(Value::as_str).any(|said| said.eq_ignore_ascii_case(&family.to_string()))
}

fn node_view(node: &Value, family: Family, around: &Surroundings) -> Option<NodeView> {
    let name = text(node, "/metadata/name")?.to_owned();
    let own = internal_addresses(node);
    let primary = own.iter().copied().find(|address| Family::of(*address) == family)?;
    let more = around.node_addresses.get(&name).into_iter().flatten().copied();
    let cidrs = list(node, "/spec/podCIDRs").iter();
    Some(NodeView {
        name,
        primary,
        addresses: own.into_iter().chain(more).filter(|address| Family::of(*address) == family).collect(),
        pod_cidrs: cidrs.filter_map(|cidr| cidr.as_str()?.parse().ok()).collect(),
    })
}

fn pod_view(pod: &Value, family: Family, listeners: &dyn Fn(&PodName) -> Listeners) -> Option<PodView> {
    let name = PodName {
        namespace: text(pod, "/metadata/namespace")?.to_owned(),
        name: text(pod, "/metadata/name")?.to_owned(),
    };
    if matches!(text(pod, "/status/phase"), Some("Succeeded" | "Failed")) {
        return None;
    }
    let address = pod_addresses(pod).into_iter().find(|address| Family::of(*address) == family)?;
    let Listeners { listens, bind } = listeners(&name);
    Some(PodView {
        node: text(pod, "/spec/nodeName")?.to_owned(),
        address,
        host_network: at(pod, "/spec/hostNetwork").and_then(Value::as_bool).unwrap_or(false),
        listens,
        bind,
        name,
    })
}

/// An object's name.
pub fn name(object: &Value) -> Option<&str> {
    text(object, "/metadata/name")
}

/// The InternalIPs of a Node object.
pub fn internal_addresses(node: &Value) -> Vec<IpAddr> {
    let addresses = list(node, "/status/addresses").iter();
    let internal = addresses.filter(|address| text(address, "/type") == Some("InternalIP"));
    internal.filter_map(|address| text(address, "/address")?.parse().ok()).collect()
}

pub(crate) fn pod_addresses(pod: &Value) -> Vec<IpAddr> {
    let list = list(pod, "/status/podIPs").iter();
    list.filter_map(|address| text(address, "/ip")?.parse().ok()).collect()
}

fn ingress(service: &Value) -> Vec<IpAddr> {
    let list = list(service, "/status/loadBalancer/ingress").iter();
    list.filter_map(|address| text(address, "/ip")?.parse().ok()).collect()
}

fn texts(object: &Value, pointer: &str) -> Vec<IpAddr> {
    let list = list(object, pointer).iter();
    list.filter_map(|address| address.as_str()?.parse().ok()).collect()
}

/// The number to send to at a Service's address: of a named port its number, else the number as written.
fn frontend_port(service: &Value, port: &PortRef) -> Result<u16, NoAddress> {
    match port {
        PortRef::Number(number) => Ok(*number),
        PortRef::None => Ok(0),
        PortRef::Name(name) => Ok(number(named_port(service, name)?, "port").unwrap_or(0)),
    }
}

/// The entry of `spec.ports` with a name.
fn named_port<'a>(service: &'a Value, wanted: &str) -> Result<&'a Value, NoAddress> {
    let ports = at(service, "/spec/ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let found = ports.iter().find(|port| text(port, "/name") == Some(wanted));
    found.ok_or_else(|| {
        let names: Vec<&str> = ports.iter().filter_map(|port| text(port, "/name")).collect();
        let has = if names.is_empty() {
            "its ports have no names".to_owned()
        } else {
            format!("it has {}", names.join(", "))
        };
        without(&format!("port named {wanted}; {has}"), text(service, "/metadata/name").unwrap_or_default())
    })
}

/// The entry of `spec.ports`: by name, or by number and protocol.
fn service_port<'a>(service: &'a Value, wanted: &PortRef, protocol: Option<Protocol>) -> Option<&'a Value> {
    let mut ports = at(service, "/spec/ports")?.as_array()?.iter();
    ports.find(|port| match wanted {
        PortRef::Name(name) => text(port, "/name") == Some(name),
        PortRef::Number(wanted) => {
            let of = text(port, "/protocol").unwrap_or("TCP").to_lowercase();
            number(port, "port") == Some(*wanted) && protocol.is_none_or(|protocol| protocol.to_string() == of)
        }
        PortRef::None => true,
    })
}

/// The number of a container port with a name.
fn pod_port(pod: &Value, wanted: &PortRef) -> Option<u16> {
    let PortRef::Name(wanted) = wanted else { return None };
    let containers = at(pod, "/spec/containers")?.as_array()?.iter();
    let mut ports = containers.filter_map(|container| at(container, "/ports")?.as_array()).flatten();
    ports.find(|port| text(port, "/name") == Some(wanted)).and_then(|port| number(port, "containerPort"))
}

fn plain_port(port: &PortRef) -> Option<u16> {
    match port {
        PortRef::Number(number) => Some(*number),
        PortRef::Name(_) | PortRef::None => None,
    }
}

fn number(object: &Value, field: &str) -> Option<u16> {
    object.get(field)?.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0)
}

fn is_named(object: &Value, namespace: &str, name: &str) -> bool {
    text(object, "/metadata/name") == Some(name) && text(object, "/metadata/namespace") == Some(namespace)
}

fn full_name(object: &Value) -> Option<(&str, &str)> {
    Some((text(object, "/metadata/namespace")?, text(object, "/metadata/name")?))
}

fn missing(what: &'static str, name: &str) -> NoAddress {
    NoAddress::Missing { what, name: name.to_owned() }
}

fn without(what: &str, name: &str) -> NoAddress {
    NoAddress::Without { what: what.to_owned(), name: name.to_owned() }
}

#[cfg(test)]
mod tests;
