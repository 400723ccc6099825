//! Pure. What controller and nodes tell: kinds that nobody writes by hand.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::{Column, Kind, Object};

/// Which node answers ARP and NDP for a Service.
pub type ServiceL2Status = Object<ServiceL2StatusSpec>;
/// Which node announces a Service to which BGP peers.
pub type ServiceBGPStatus = Object<ServiceBGPStatusSpec>;
/// Whether a component could use the configuration.
pub type ConfigurationState = Object<ConfigurationStateSpec>;
/// How a node's BGP session stands.
pub type BGPSessionState = Object<BGPSessionStateSpec>;

/// Nothing is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.v1beta1.ServiceL2StatusSpec")]
pub struct ServiceL2StatusSpec {}

/// Nothing is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.v1beta1.ServiceBGPStatusSpec")]
pub struct ServiceBGPStatusSpec {}

/// Nothing is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.v1beta1.ConfigurationStateSpec")]
pub struct ConfigurationStateSpec {}

/// Nothing is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.frrk8s.v1beta1.BGPSessionStateSpec")]
pub struct BGPSessionStateSpec {}

/// Who answers for what, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.MetalLBServiceL2Status")]
pub struct ServiceL2StatusStatus {
    /// The node.
    #[serde(default)]
    pub node: String,
    /// The Service.
    #[serde(default)]
    pub service_name: String,
    /// Its namespace.
    #[serde(default)]
    pub service_namespace: String,
    /// The interfaces on which the node answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceInfo>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.v1beta1.InterfaceInfo")]
pub struct InterfaceInfo {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// Who announces what to whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.MetalLBServiceBGPStatus")]
pub struct ServiceBGPStatusStatus {
    /// The node.
    #[serde(default)]
    pub node: String,
    /// The Service.
    #[serde(default)]
    pub service_name: String,
    /// Its namespace.
    #[serde(default)]
    pub service_namespace: String,
    /// The peers that have the route.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// What a component says of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.ConfigurationStateStatus")]
pub struct ConfigurationStateStatus {
    /// Valid, Invalid or Unknown.
    #[serde(default)]
    pub result: String,
    /// What is wrong; empty if nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// The parts of the component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The condition of a node's ConfigurationState that says whether the addresses that it would announce are free.
pub const ADDRESSES_FREE: &str = "AddressesFree";

/// What its message says: the addresses that somebody else on the segment has.
pub fn in_use(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    addresses.into_iter().map(|address| address.to_string()).collect::<Vec<_>>().join(", ")
}

impl ConfigurationStateStatus {
    /// The addresses that [`in_use`] wrote into it.
    pub fn addresses_in_use(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let conditions = self.conditions.iter().filter(|one| one.type_ == ADDRESSES_FREE && one.status == "False");
        conditions.flat_map(|one| one.message.split(", ").filter_map(|address| address.parse().ok()))
    }
}

/// How a session stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.frrk8s.v1beta1.BGPSessionStateStatus")]
pub struct BGPSessionStateStatus {
    /// RFC 4271's name of the state.
    #[serde(default)]
    pub bgp_status: String,
    /// BFD's state, or N/A.
    #[serde(default)]
    pub bfd_status: String,
    /// The node.
    #[serde(default)]
    pub node: String,
    /// The peer's address.
    #[serde(default)]
    pub peer: String,
    /// The VRF.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vrf: String,
}

const NODE: Column = Column::shown("Node", "string", &["status", "node"]);
const SERVICE: Column = Column::shown("Service Name", "string", &["status", "serviceName"]);
const NAMESPACE: Column = Column::shown("Service Namespace", "string", &["status", "serviceNamespace"]);

impl Kind for ServiceL2StatusSpec {
    const KIND: &'static str = "ServiceL2Status";
    const PLURAL: &'static str = "servicel2statuses";
    const PURPOSE: &'static str = "Tells which node answers ARP and NDP for a Service.";
    const COLUMNS: &'static [Column] =
        &[Column::shown("Allocated Node", "string", &["status", "node"]), SERVICE, NAMESPACE];
    type Status = ServiceL2StatusStatus;
}

impl Kind for ServiceBGPStatusSpec {
    const KIND: &'static str = "ServiceBGPStatus";
    const PLURAL: &'static str = "servicebgpstatuses";
    const PURPOSE: &'static str = "Tells which BGP peers have a node's route to a Service.";
    const COLUMNS: &'static [Column] = &[NODE, SERVICE, NAMESPACE];
    type Status = ServiceBGPStatusStatus;
}

impl Kind for ConfigurationStateSpec {
    const KIND: &'static str = "ConfigurationState";
    const PLURAL: &'static str = "configurationstates";
    const PURPOSE: &'static str = "Tells whether a component could use the configuration.";
    const COLUMNS: &'static [Column] = &[
        Column::shown("Result", "string", &["status", "result"]),
        Column::shown("LastError", "string", &["status", "lastError"]),
        Column::shown("Age", "date", &["metadata", "creationTimestamp"]),
    ];
    type Status = ConfigurationStateStatus;
}

impl Kind for BGPSessionStateSpec {
    const GROUP: &'static str = "frrk8s.metallb.io";
    const API_VERSION: &'static str = "frrk8s.metallb.io/v1beta1";
    const KIND: &'static str = "BGPSessionState";
    const PLURAL: &'static str = "bgpsessionstates";
    const PURPOSE: &'static str = "Tells how a node's BGP session with a peer stands.";
    const COLUMNS: &'static [Column] = &[
        NODE,
        Column::shown("Peer", "string", &["status", "peer"]),
        Column::shown("VRF", "string", &["status", "vrf"]),
        Column::shown("BGP", "string", &["status", "bgpStatus"]),
        Column::shown("BFD", "string", &["status", "bfdStatus"]),
    ];
    type Status = BGPSessionStateStatus;
}
