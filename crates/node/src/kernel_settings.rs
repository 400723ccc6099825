//! Settings of the node's network namespace that are changed when, and only when, the configuration asks for it.

use std::fs;

use signpost_core::planner::NodePortAddresses;
use tracing::{info, warn};

use crate::config::NodeOptions;
use crate::mode::Mode;

const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
const BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// Whether node ports answer at 127.0.0.1: as with kube-proxy in the mode iptables alone, and for IPv4 alone.
pub fn localhost_node_ports(options: &NodeOptions, mode: Mode) -> bool {
    options.localhost_node_ports && mode == Mode::Iptables
}

/// Makes the settings. A refusal is told; all else works.
pub fn apply(options: &NodeOptions, mode: Mode) {
    let ranges = match &options.node_port_addresses {
        NodePortAddresses::Cidrs(ranges) => &ranges[..],
        NodePortAddresses::Primary | NodePortAddresses::All => &[],
    };
    let loopback = ranges.iter().any(|range| range.network().is_loopback() || range.prefix_len() == 0);
    if localhost_node_ports(options, mode) {
        if loopback || options.node_port_addresses == NodePortAddresses::All {
            set(ROUTE_LOCALNET, "node ports answer at 127.0.0.1");
        }
    } else if loopback {
        warn!(%mode, "node ports do not answer at loopback: that is for the mode iptables, with localhostNodePorts");
    }
    if options.tcp_be_liberal {
        set(BE_LIBERAL, "conntrack accepts TCP packets out of their window");
    }
}

/// Leaves what is set already as it is.
fn set(path: &str, why: &'static str) {
    if fs::read_to_string(path).is_ok_and(|value| value.trim() == "1") {
        return;
    }
    match fs::write(path, "1") {
        Ok(()) => info!(path, why, "a setting of the kernel was changed"),
        Err(error) => warn!(path, why, %error, "a setting of the kernel cannot be changed"),
    }
}
