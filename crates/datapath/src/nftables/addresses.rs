//! The addresses of load balancers, in a table of their own beside the rules of whatever mode: they answer ping, and what is
//! sent to a port of theirs that is no Service's ends here.
//!
//! Without the second, such a packet would be forwarded to where it came from: the address is on no interface, and its way
//! leads back to the router, which sends it here again until its hops are used up.
//!
//! ```text
//! prerouting, output (nat):  echo request to one of them ──▶ this node itself answers, under that address
//! forward (after the mode's own rules):  still to one of them ──▶ dropped
//! ```

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::IpAddr;

use signpost_core::object::Family;

use super::NftablesError;
use super::apply::Nft;

/// The table's name; its family is inet.
pub const TABLE: &str = "signpost-addresses";

/// Puts the table in place of the former one; without addresses it goes.
///
/// # Errors
/// nft is missing, or the kernel refused.
pub fn set(addresses: &BTreeSet<IpAddr>, answer_ping: bool) -> Result<(), NftablesError> {
    let nft = Nft { program: OsString::from("nft"), family: Family::Ipv4 };
    let script = script(addresses, answer_ping);
    nft.run("set the addresses of load balancers", |out| out.write_all(script.as_bytes()))
}

/// The whole transaction.
fn script(addresses: &BTreeSet<IpAddr>, answer_ping: bool) -> String {
    let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\n");
    if addresses.is_empty() {
        return text;
    }
    text += &format!("table inet {TABLE} {{\n");
    let mut drops = String::new();
    let mut answers = String::new();
    for (set, kind, ip, echo) in [
        ("ipv4", "ipv4_addr", "ip", "icmp type echo-request"),
        ("ipv6", "ipv6_addr", "ip6", "icmpv6 type echo-request"),
    ] {
        let of_family = addresses.iter().filter(|address| address.is_ipv4() == (set == "ipv4"));
        let elements: Vec<String> = of_family.map(ToString::to_string).collect();
        if elements.is_empty() {
            continue;
        }
        text += &format!("  set {set} {{ type {kind}; elements = {{ {} }}; }}\n", elements.join(", "));
        drops += &format!("    {ip} daddr @{set} drop\n");
        answers += &format!("    {ip} daddr @{set} {echo} redirect\n");
    }
    // After the modes' rules: the kernel's own place for them is -100 for nat, 0 for filter.
    if answer_ping {
        text += &format!("  chain ping {{\n    type nat hook prerouting priority -90\n{answers}  }}\n");
        text += &format!("  chain own-ping {{\n    type nat hook output priority -90\n{answers}  }}\n");
    }
    text += &format!("  chain unused-ports {{\n    type filter hook forward priority 10\n{drops}  }}\n}}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_goes_with_the_last_address() {
        assert_eq!(
            script(&BTreeSet::new(), true),
            "add table inet signpost-addresses\ndelete table inet signpost-addresses\n"
        );
    }

    #[test]
    fn a_family_without_addresses_has_no_rules_and_ping_is_a_wish() {
        let four: BTreeSet<IpAddr> = ["172.18.15.200".parse().unwrap(), "172.18.15.201".parse().unwrap()].into();
        let text = script(&four, true);
        assert!(text.contains("elements = { 172.18.15.200, 172.18.15.201 }") && !text.contains("ip6"), "{text}");
        assert!(text.contains("ip daddr @ipv4 icmp type echo-request redirect"), "{text}");
        let silent = script(&four, false);
        assert!(silent.contains("ip daddr @ipv4 drop") && !silent.contains("redirect"), "{silent}");
        let six = script(&["fd00:172:18::15:200".parse().unwrap()].into(), true);
        assert!(
            six.contains("ip6 daddr @ipv6 icmpv6 type echo-request redirect") && !six.contains("ip daddr"),
            "{six}"
        );
    }
}
