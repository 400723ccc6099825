//! Pure. Announcing by BGP, and BFD beside it.

use k8s_openapi::api::core::v1::SecretReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::{Column, Kind, NoStatus, Object};

/// Says that addresses of some pools are announced to BGP peers.
pub type BGPAdvertisement = Object<BGPAdvertisementSpec>;
/// A router to talk BGP with.
pub type BGPPeer = Object<BGPPeerSpec>;
/// How fast BFD looks.
pub type BFDProfile = Object<BFDProfileSpec>;
/// Names for communities.
pub type Community = Object<CommunitySpec>;

/// Which addresses, with which attributes, to which peers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.BGPAdvertisementSpec")]
pub struct BGPAdvertisementSpec {
    /// Announce the network of this length that the address lies in, instead of the address (32).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregation_length: Option<i32>,
    /// The same for IPv6 (128).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregation_length_v6: Option<i32>,
    /// Local preference, for peers of the own AS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_pref: Option<i64>,
    /// Communities: `65000:1`, `large:65000:1:2`, or a name that a Community object gives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<String>,
    /// Addresses of these pools. Neither pools nor selectors of pools: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pools: Vec<String>,
    /// Addresses of pools with such labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_address_pool_selectors: Vec<LabelSelector>,
    /// Only nodes with labels that one of these wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selectors: Vec<LabelSelector>,
    /// Only to these peers. None: to all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Only Services with labels that one of these wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_selectors: Vec<LabelSelector>,
}

/// Who the peer is, and how to talk to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta2.BGPPeerSpec")]
pub struct BGPPeerSpec {
    /// The own AS number.
    #[serde(rename = "myASN", default)]
    pub my_asn: i64,
    /// The peer's.
    #[serde(rename = "peerASN", skip_serializing_if = "Option::is_none")]
    pub peer_asn: Option<i64>,
    /// In place of the number: `internal` (the own) or `external` (any other).
    #[serde(rename = "dynamicASN", skip_serializing_if = "Option::is_none")]
    pub dynamic_asn: Option<String>,
    /// Show this AS number to the peer.
    #[serde(rename = "localASN", skip_serializing_if = "Option::is_none")]
    pub local_asn: Option<i64>,
    /// The peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_address: Option<String>,
    /// In place of the address: the interface that the peer is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The own address of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// The peer's port (179).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_port: Option<i32>,
    /// A peer that is silent for so long is gone (90s).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_time: Option<String>,
    /// How often we say that we live (a third of the hold time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_time: Option<String>,
    /// How long to wait before connecting again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_time: Option<String>,
    /// The own BGP identifier, as an IPv4 address.
    #[serde(rename = "routerID", skip_serializing_if = "Option::is_none")]
    pub router_id: Option<String>,
    /// Only nodes with labels that one of these wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selectors: Vec<LabelSelector>,
    /// The password of the session (TCP MD5).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The Secret of type kubernetes.io/basic-auth that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_secret: Option<SecretReference>,
    /// The BFDProfile to watch the peer by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bfd_profile: Option<String>,
    /// The peer keeps our routes while we are away for a moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_graceful_restart: Option<bool>,
    /// The peer may be several hops away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebgp_multi_hop: Option<bool>,
    /// The VRF of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Only the session's own family.
    #[serde(rename = "disableMP", skip_serializing_if = "Option::is_none")]
    pub disable_mp: Option<bool>,
    /// Both families over this session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_stack_address_family: Option<bool>,
}

/// BFD's times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.BFDProfileSpec")]
pub struct BFDProfileSpec {
    /// Milliseconds between two packets that we can take, 10 to 60000 (300).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_interval: Option<i32>,
    /// Milliseconds between two packets that we send, 10 to 60000 (300).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmit_interval: Option<i32>,
    /// After so many missing packets the peer is gone, 2 to 255 (3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detect_multiplier: Option<i32>,
    /// Milliseconds between echo packets (50).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo_interval: Option<i32>,
    /// Echo packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo_mode: Option<bool>,
    /// Wait for the peer to begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive_mode: Option<bool>,
    /// Packets that came over more hops than this leaves do not count, 1 to 254.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_ttl: Option<i32>,
}

/// Names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.CommunitySpec")]
pub struct CommunitySpec {
    /// The names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<CommunityAlias>,
}

/// One name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "io.metallb.v1beta1.CommunityAlias")]
pub struct CommunityAlias {
    /// The name.
    #[serde(default)]
    pub name: String,
    /// `65000:1` or `large:65000:1:2`.
    #[serde(default)]
    pub value: String,
}

impl Kind for BGPAdvertisementSpec {
    const KIND: &'static str = "BGPAdvertisement";
    const PLURAL: &'static str = "bgpadvertisements";
    const PURPOSE: &'static str = "Announces addresses of pools to BGP peers.";
    const COLUMNS: &'static [Column] = &[
        Column::shown("IPAddressPools", "string", &["spec", "ipAddressPools"]),
        Column::shown("IPAddressPool Selectors", "string", &["spec", "ipAddressPoolSelectors"]),
        Column::shown("Peers", "string", &["spec", "peers"]),
        Column::wide("Node Selectors", "string", &["spec", "nodeSelectors"]),
    ];
    type Status = NoStatus;
}

impl Kind for BGPPeerSpec {
    const VERSION: &'static str = "v1beta2";
    const API_VERSION: &'static str = "metallb.io/v1beta2";
    const KIND: &'static str = "BGPPeer";
    const PLURAL: &'static str = "bgppeers";
    const PURPOSE: &'static str = "A router that nodes talk BGP with.";
    const COLUMNS: &'static [Column] = &[
        Column::shown("Address", "string", &["spec", "peerAddress"]),
        Column::shown("ASN", "string", &["spec", "peerASN"]),
        Column::shown("BFD Profile", "string", &["spec", "bfdProfile"]),
        Column::shown("Multi Hops", "string", &["spec", "ebgpMultiHop"]),
    ];
    type Status = NoStatus;
}

impl Kind for BFDProfileSpec {
    const KIND: &'static str = "BFDProfile";
    const PLURAL: &'static str = "bfdprofiles";
    const PURPOSE: &'static str = "The times of BFD, which finds a dead peer in less than a second.";
    const COLUMNS: &'static [Column] = &[
        Column::shown("Passive Mode", "boolean", &["spec", "passiveMode"]),
        Column::shown("Transmit Interval", "integer", &["spec", "transmitInterval"]),
        Column::shown("Receive Interval", "integer", &["spec", "receiveInterval"]),
        Column::shown("Multiplier", "integer", &["spec", "detectMultiplier"]),
    ];
    type Status = NoStatus;
}

impl Kind for CommunitySpec {
    const KIND: &'static str = "Community";
    const PLURAL: &'static str = "communities";
    const PURPOSE: &'static str = "Names for BGP communities.";
    const COLUMNS: &'static [Column] = &[];
    type Status = NoStatus;
}
