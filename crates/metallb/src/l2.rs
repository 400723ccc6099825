//! Pure. Announcing by ARP and NDP.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::{Column, Kind, NoStatus, Object};

/// Says that addresses of some pools are answered for on the nodes' own network.
pub type L2Advertisement = Object<L2AdvertisementSpec>;

/// Which addresses, by which nodes, on which interfaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.L2AdvertisementSpec")]
pub struct L2AdvertisementSpec {
    /// Addresses of these pools. Neither pools nor selectors of pools: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pools: Vec<String>,
    /// Addresses of pools with such labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pool_selectors: Vec<LabelSelector>,
    /// Only nodes with labels that one of these wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selectors: Vec<LabelSelector>,
    /// Only these interfaces. None: those whose network has the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Only Services with labels that one of these wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
}

impl Kind for L2AdvertisementSpec {
    const KIND: &'static str = "L2Advertisement";
    const PLURAL: &'static str = "l2advertisements";
    const PURPOSE: &'static str = "Answers ARP and NDP for addresses of pools.";
    const COLUMNS: &'static [Column] = &[
        Column::shown("IPAddressPools", "string", &["spec", "ipAddressPools"]),
        Column::shown("IPAddressPool Selectors", "string", &["spec", "ipAddressPoolSelectors"]),
        Column::shown("Interfaces", "string", &["spec", "interfaces"]),
        Column::wide("Node Selectors", "string", &["spec", "nodeSelectors"]),
    ];
    type Status = NoStatus;
}
