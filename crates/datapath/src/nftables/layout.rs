//! Pure. What stands in the table whatever the Services are: its name, its sets and maps, and the mark.
//!
//! Set and map names are kube-proxy's where the thing is the same, since people and run books list them by name.

use std::fmt;

use signpost_core::object::{Family, Protocol};

/// The table, one per family.
pub const TABLE: &str = "kube-proxy";

/// A table that keeps flows of a former mode alive, see [`super::Nftables::keep_flows`].
pub const FORMER_TABLE: &str = "signpost-former";

/// The mark of a packet that is to be masqueraded: kube-proxy's bit 14. It lives from the choice of a backend to
/// postrouting and no longer.
pub const MASQUERADE_MARK: u32 = 0x4000;

/// The index of the first backend of a frontend's second set is this, of its third twice this. More backends than
/// this in one set are cut off; the API allows some 100,000 pods in a cluster.
pub const SET_STRIDE: u32 = 1_000_000;

/// So many clients are remembered, of all Services together. The kernel reserves 4 MB for the set; each element takes some
/// 100 bytes more. Further clients are served, but not remembered.
pub const AFFINITY_MOST: u32 = 262_144;

/// A set or a map of the table.
///
/// The endpoint maps are one per protocol. A key of `meta l4proto . th dport`, which would do with one map, and a
/// `typeof` of the data in terms of one protocol do not go together: nft 1.0.6 then restricts the first rule of each
/// transaction to that protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Set: ranges that pods have their addresses of.
    PodNetworks,
    /// Set: ranges that cluster addresses are given out of.
    ServiceCidrs,
    /// Set: this node's addresses.
    NodeIps,
    /// Set: those of this node's addresses at which node ports answer.
    NodeportIps,
    /// Set: cluster addresses in use.
    ClusterIps,
    /// Set: `address . address` of each endpoint on this node.
    HairpinConnections,
    /// Map: `address . protocol . port` of frontends that not everyone may use -> jump to the check.
    FirewallIps,
    /// Set: `address . protocol . port . source range` of who may.
    FirewallSources,
    /// Map: `address . protocol . port` -> the chain that chooses a backend.
    ServiceIps,
    /// Map: `protocol . port` at a node -> the chain that chooses a backend.
    ServiceNodeports,
    /// Map: `address . protocol . port` of frontends that lead to no backend -> reject or drop.
    NoEndpointServices,
    /// Map: `protocol . port` of node ports that lead to no backend -> reject or drop.
    NoEndpointNodeports,
    /// Map: `address . port . index` -> `address . port` of the backend.
    ServiceEndpoints(Protocol),
    /// Map: `port . index` -> `address . port` of the backend.
    NodeportEndpoints(Protocol),
    /// Set: `client . Service port . address . port` of the backend that the client was sent to. Filled by the packets,
    /// emptied by time; nobody else touches it.
    Affinity,
}

impl Set {
    /// All of them.
    pub const ALL: [Set; 19] = [
        Set::PodNetworks,
        Set::ServiceCidrs,
        Set::NodeIps,
        Set::NodeportIps,
        Set::ClusterIps,
        Set::HairpinConnections,
        Set::FirewallIps,
        Set::FirewallSources,
        Set::ServiceIps,
        Set::ServiceNodeports,
        Set::NoEndpointServices,
        Set::NoEndpointNodeports,
        Set::ServiceEndpoints(Protocol::Tcp),
        Set::ServiceEndpoints(Protocol::Udp),
        Set::ServiceEndpoints(Protocol::Sctp),
        Set::NodeportEndpoints(Protocol::Tcp),
        Set::NodeportEndpoints(Protocol::Udp),
        Set::NodeportEndpoints(Protocol::Sctp),
        Set::Affinity,
    ];

    /// Its name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Set::PodNetworks => "pod-networks",
            Set::ServiceCidrs => "service-cidrs",
            Set::NodeIps => "node-ips",
            Set::NodeportIps => "nodeport-ips",
            Set::ClusterIps => "cluster-ips",
            Set::HairpinConnections => "hairpin-connections",
            Set::FirewallIps => "firewall-ips",
            Set::FirewallSources => "firewall-sources",
            Set::ServiceIps => "service-ips",
            Set::ServiceNodeports => "service-nodeports",
            Set::NoEndpointServices => "no-endpoint-services",
            Set::NoEndpointNodeports => "no-endpoint-nodeports",
            Set::ServiceEndpoints(Protocol::Tcp) => "service-endpoints-tcp",
            Set::ServiceEndpoints(Protocol::Udp) => "service-endpoints-udp",
            Set::ServiceEndpoints(Protocol::Sctp) => "service-endpoints-sctp",
            Set::NodeportEndpoints(Protocol::Tcp) => "nodeport-endpoints-tcp",
            Set::NodeportEndpoints(Protocol::Udp) => "nodeport-endpoints-udp",
            Set::NodeportEndpoints(Protocol::Sctp) => "nodeport-endpoints-sctp",
            Set::Affinity => "affinity",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Set> {
        Set::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Whether an element has data.
    pub fn is_map(self) -> bool {
        !matches!(
            self,
            Set::PodNetworks
                | Set::ServiceCidrs
                | Set::NodeIps
                | Set::NodeportIps
                | Set::ClusterIps
                | Set::HairpinConnections
                | Set::FirewallSources
                | Set::Affinity
        )
    }

    /// Whether packets fill it.
    pub fn is_dynamic(self) -> bool {
        self == Set::Affinity
    }

    /// Its type and what it is for, as nft declares it.
    ///
    /// The index has no type that can be named, hence `typeof` with some `numgen`.
    pub fn declaration(self, family: Family) -> String {
        let (ip, address) = (ip(family), address_type(family));
        let body = match self {
            Set::PodNetworks => format!("type {address}; flags interval; comment \"pods of the cluster\""),
            Set::ServiceCidrs => {
                format!("type {address}; flags interval; comment \"where cluster addresses are from\"")
            }
            Set::NodeIps => format!("type {address}; comment \"this node\""),
            Set::NodeportIps => format!("type {address}; comment \"where node ports answer\""),
            Set::ClusterIps => format!("type {address}; comment \"cluster addresses in use\""),
            Set::HairpinConnections => format!("type {address} . {address}; comment \"endpoints on this node\""),
            Set::FirewallSources => {
                format!(
                    "type {address} . inet_proto . inet_service . {address}; flags interval; comment \"source ranges\""
                )
            }
            Set::FirewallIps => frontend_map(address, "frontends with source ranges"),
            Set::ServiceIps => frontend_map(address, "cluster, external and load-balancer addresses"),
            Set::NoEndpointServices => frontend_map(address, "frontends that lead to no endpoint"),
            Set::ServiceNodeports => nodeport_map("node ports"),
            Set::NoEndpointNodeports => nodeport_map("node ports that lead to no endpoint"),
            Set::ServiceEndpoints(protocol) => format!(
                "typeof {ip} daddr . {protocol} dport . numgen random mod 2 : {ip} daddr . {protocol} dport; comment \
                 \"endpoints by frontend and index\""
            ),
            Set::NodeportEndpoints(protocol) => format!(
                "typeof {protocol} dport . numgen random mod 2 : {ip} daddr . {protocol} dport; comment \
                 \"endpoints by node port and index\""
            ),
            Set::Affinity => format!(
                "type {address} . mark . {address} . inet_service; flags dynamic,timeout; size {AFFINITY_MOST}; comment \
                 \"clients, Service ports, and the backends they were sent to\""
            ),
        };
        format!("{body};")
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn frontend_map(address: &str, comment: &str) -> String {
    format!("type {address} . inet_proto . inet_service : verdict; comment \"{comment}\"")
}

fn nodeport_map(comment: &str) -> String {
    format!("type inet_proto . inet_service : verdict; comment \"{comment}\"")
}

/// The word that begins a family's table and its matches.
pub fn ip(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

fn address_type(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ipv4_addr",
        Family::Ipv6 => "ipv6_addr",
    }
}

/// FNV-1a over some text: to notice that it changed, nothing more.
pub fn fingerprint<'a>(texts: impl IntoIterator<Item = &'a str>) -> u32 {
    let bytes = texts.into_iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_found_by_its_name() {
        for set in Set::ALL {
            assert_eq!(Set::from_name(set.name()), Some(set));
        }
        assert_eq!(Set::from_name("service-ip"), None);
    }
}
