//! Pure. Addresses to give out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::{Column, Kind, Object};

/// A pool of addresses.
pub type IPAddressPool = Object<IPAddressPoolSpec>;

/// Which addresses a pool has, and for whom.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.IPAddressPoolSpec")]
pub struct IPAddressPoolSpec {
    /// Ranges: FIRST-LAST or ADDRESS/LENGTH, of either family.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Whether Services that name neither address nor pool may get one of these. Unset: yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_assign: Option<bool>,
    /// Leave out addresses that end in .0 and .255, which some old devices take for broadcasts.
    #[serde(rename = "avoidBuggyIPs", skip_serializing_if = "Option::is_none")]
    pub avoid_buggy_ips: Option<bool>,
    /// Keeps the pool to some Services, which then prefer it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_allocation: Option<ServiceAllocation>,
}

/// Whose Services a pool is for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.ServiceAllocation")]
pub struct ServiceAllocation {
    /// Of several pools that fit, the one with the lowest number is taken; 0 or unset comes last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Services of these namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Services of namespaces with such labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace_selectors: Vec<LabelSelector>,
    /// Services with such labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
}

/// How full a pool is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "io.metallb.v1beta1.IPAddressPoolStatus")]
pub struct IPAddressPoolStatus {
    /// IPv4 addresses that Services have.
    #[serde(rename = "assignedIPv4", default)]
    pub assigned_ipv4: i64,
    /// IPv6 addresses that Services have.
    #[serde(rename = "assignedIPv6", default)]
    pub assigned_ipv6: i64,
    /// IPv4 addresses that are left.
    #[serde(rename = "availableIPv4", default)]
    pub available_ipv4: i64,
    /// IPv6 addresses that are left; at most the greatest 64-bit number.
    #[serde(rename = "availableIPv6", default)]
    pub available_ipv6: i64,
}

impl Kind for IPAddressPoolSpec {
    const KIND: &'static str = "IPAddressPool";
    const PLURAL: &'static str = "ipaddresspools";
    const PURPOSE: &'static str = "Addresses that Services of type LoadBalancer may get.";
    const COLUMNS: &'static [Column] = &[
        Column::shown("Auto Assign", "boolean", &["spec", "autoAssign"]),
        Column::shown("Avoid Buggy IPs", "boolean", &["spec", "avoidBuggyIPs"]),
        Column::shown("Addresses", "string", &["spec", "addresses"]),
    ];
    type Status = IPAddressPoolStatus;
}
