//! Everything of one node, but for the comparison of its rules.

use serde_json::Value;
use signpost_core::object::Family;
use signpost_datapath::iptables::names::is_ours;

use super::{daemon, flows, host};
use crate::firewall::{read_iptables, read_nftables};
use crate::network;
use crate::snapshot::{NodeState, ProxyTrace, Unknown};

/// What a node tells of itself without its rules: cheap enough to be looked at all the time.
pub(super) fn glance() -> NodeState {
    let mut state = NodeState { sysctls: host::sysctls(), ..NodeState::default() };
    flows::conntrack(&mut state);
    if let Ok(interfaces) = host::json("ip", &["-json", "-details", "address"]) {
        state.interfaces = network::interfaces(&interfaces);
    }
    state
}

pub(super) fn look() -> NodeState {
    let said = daemon::ask();
    let mut state = NodeState {
        daemon: said.state,
        plans: said.plans,
        programs: said.programs,
        unknown: said.unknown,
        sysctls: host::sysctls(),
        listeners: host::listeners(),
        ..NodeState::default()
    };
    flows::conntrack(&mut state);
    ways(&mut state);
    nftables(&mut state);
    iptables(&mut state);
    proxies(&mut state);
    state
}

fn ways(state: &mut NodeState) {
    let mut take = |what: &str, found: Result<Value, String>| match found {
        Ok(value) => value,
        Err(why) => {
            state.unknown.push(Unknown { what: what.to_owned(), why });
            Value::Null
        }
    };
    let interfaces = take("interfaces", host::json("ip", &["-json", "-details", "address"]));
    let routes4 = take("routes", host::json("ip", &["-4", "-json", "route", "show"]));
    let routes6 = take("IPv6 routes", host::json("ip", &["-6", "-json", "route", "show"]));
    let neighbours = take("neighbours", host::json("ip", &["-json", "neighbour", "show"]));
    state.interfaces = network::interfaces(&interfaces);
    state.routes = network::routes(&routes4, Family::Ipv4);
    state.routes.extend(network::routes(&routes6, Family::Ipv6));
    state.neighbours = network::neighbours(&neighbours);
}

/// The tables that iptables makes when it writes by nftables.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

fn nftables(state: &mut NodeState) {
    let listing = match host::json("nft", &["-json", "list", "tables"]) {
        Ok(listing) => listing,
        Err(why) => return state.unknown.push(Unknown { what: "tables of nftables".to_owned(), why }),
    };
    for table in listing.get("nftables").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| table.pointer(&format!("/table/{field}")).and_then(Value::as_str);
        let (Some(family), Some(name)) = (text("family"), text("name")) else { continue };
        if name == signpost_datapath::nftables::layout::TABLE {
            state.proxies.push(ProxyTrace {
                of: "nftables".to_owned(),
                found: format!("table {family} {name}"),
                acts: true,
            });
        } else if !(matches!(family, "ip" | "ip6") && OF_IPTABLES.contains(&name)) && is_plain(name) {
            match host::json("nft", &["-json", "-t", "list", "table", family, name]) {
                Ok(listing) => state.firewall.extend(read_nftables(&listing)),
                Err(why) => {
                    state.unknown.push(Unknown { what: format!("rules of table {family} {name}"), why });
                }
            }
        }
    }
}

/// Whether a name may be handed to a tool.
fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}

fn iptables(state: &mut NodeState) {
    let mut variants = Vec::new();
    for (family, nft, legacy, tables) in [
        (Family::Ipv4, "iptables-nft-save", "iptables-legacy-save", "/proc/thread-self/net/ip_tables_names"),
        (Family::Ipv6, "ip6tables-nft-save", "ip6tables-legacy-save", "/proc/thread-self/net/ip6_tables_names"),
    ] {
        // To list a table of the old sort that is not there makes it.
        let old = std::fs::read_to_string(tables).is_ok_and(|names| !names.trim().is_empty());
        for (tool, name) in [(nft, "iptables"), (legacy, "iptables-legacy")] {
            if tool == legacy && !old {
                continue;
            }
            match host::run(tool, &[]) {
                Ok(saved) => {
                    state.firewall.extend(read_iptables(name, family, &saved));
                    let ours = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
                    let ours = ours.filter(|chain| is_ours(chain)).count();
                    if ours > 0 {
                        variants.push((name, family, ours, saved.contains("-j KUBE-SERVICES")));
                    }
                    if saved.contains(":CILIUM_") {
                        state.proxies.push(ProxyTrace {
                            of: "cilium".to_owned(),
                            found: format!("chains CILIUM_* in {name}"),
                            acts: false,
                        });
                    }
                }
                Err(why) if old || !why.contains("No such file") => {
                    state.unknown.push(Unknown { what: format!("{family} rules of {name}"), why });
                }
                // No tool of that name: nobody uses it here.
                Err(_) => {}
            }
        }
    }
    for (name, family, chains, acts) in variants {
        let found = format!("{chains} {family} chains KUBE-* in {name}");
        state.proxies.push(ProxyTrace { of: name.to_owned(), found, acts });
    }
}

fn proxies(state: &mut NodeState) {
    for interface in &state.interfaces {
        let of = match interface.name.as_str() {
            "kube-ipvs0" => "ipvs",
            "cilium_host" => "cilium",
            _ => continue,
        };
        let acts = of == "cilium" || !interface.addresses.is_empty();
        let found = format!("interface {} with {} addresses", interface.name, interface.addresses.len());
        state.proxies.push(ProxyTrace { of: of.to_owned(), found, acts });
    }
    state.proxies.sort();
    state.proxies.dedup();
}
