//! Files of `/proc` and tools, of the network namespace that the calling thread is in.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::Value;
use signpost_core::object::Protocol;

use crate::network::{Listener, listeners as parse_listeners};

/// The switches that a packet's way depends on.
const SYSCTLS: [&str; 12] = [
    "net.ipv4.ip_forward",
    "net.ipv4.conf.all.forwarding",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.all.disable_ipv6",
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_buckets",
];

pub(super) fn listeners() -> BTreeSet<Listener> {
    let tables = [("tcp", Protocol::Tcp), ("tcp6", Protocol::Tcp), ("udp", Protocol::Udp), ("udp6", Protocol::Udp)];
    let read = |(name, protocol): (&str, Protocol)| {
        // A kernel without IPv6 has no such table, and nobody who listens in it.
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
        parse_listeners(&table, protocol)
    };
    tables.into_iter().flat_map(read).collect()
}

pub(super) fn sysctls() -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> =
        SYSCTLS.iter().filter_map(|name| Some(((*name).to_owned(), sysctl(name)?))).collect();
    for (directory, setting) in [("ipv4", "rp_filter"), ("ipv4", "forwarding"), ("ipv6", "forwarding")] {
        let conf = format!("/proc/sys/net/{directory}/conf");
        for interface in std::fs::read_dir(&conf).into_iter().flatten().flatten() {
            let name = interface.file_name().to_string_lossy().into_owned();
            if let Ok(value) = std::fs::read_to_string(interface.path().join(setting)) {
                found.insert(format!("net.{directory}.conf.{name}.{setting}"), value.trim().to_owned());
            }
        }
    }
    found
}

/// The value of a switch; `None`: this kernel has none of that name.
pub(super) fn sysctl(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::read_to_string(path).ok().map(|value| value.trim().to_owned())
}

/// The sums over processors of `/proc/net/stat/nf_conntrack`.
pub(super) fn conntrack_counters() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack").unwrap_or_default();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let mut counters = BTreeMap::new();
    for line in lines {
        for (name, value) in names.iter().zip(line.split_whitespace()) {
            *counters.entry((*name).to_owned()).or_insert(0) += u64::from_str_radix(value, 16).unwrap_or(0);
        }
    }
    counters
}

/// The output of a tool.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// The output of a tool, as JSON.
pub(super) fn json(program: &str, arguments: &[&str]) -> Result<Value, String> {
    let text = run(program, arguments)?;
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(&text).map_err(|error| format!("{program} {}: {error}", arguments.join(" ")))
}
