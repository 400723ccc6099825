//! Pure. A snapshot without its addresses: each becomes another one, the same everywhere, and what lay in one range lies in
//! one range still, so that every verdict stays what it was.
//!
//! Bit by bit, as Crypto-PAn does it: whether a bit is flipped depends on the bits before it and on a key that nobody keeps.
//! The first byte of an IPv4 address and the first two of an IPv6 one stay: so none becomes a loopback or multicast address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use serde_json::Value;
use sha2::{Digest, Sha256};
use signpost_core::plan::{Backend, Frontend, NodePlan, Target};

use crate::listed::ANNOUNCED;
use crate::snapshot::Snapshot;

/// Replaces every address. `key`: random, and different each time.
///
/// # Errors
/// None in a snapshot that was read or taken; its form is checked anew.
pub fn redact(snapshot: &Snapshot, key: &[u8; 32]) -> Result<Snapshot, serde_json::Error> {
    let mut value = serde_json::to_value(snapshot)?;
    replace(&mut value, key);
    let mut redacted: Snapshot = serde_json::from_value(value)?;
    for plan in redacted.nodes.values_mut().flat_map(|node| node.plans.values_mut()) {
        sort(plan);
    }
    Ok(redacted)
}

fn replace(value: &mut Value, key: &[u8; 32]) {
    match value {
        Value::String(text) => *text = self::text(text, key),
        Value::Array(list) => list.iter_mut().for_each(|value| replace(value, key)),
        Value::Object(fields) => {
            // Annotations hold what anybody puts there.
            if let Some(Value::Object(annotations)) = fields.get_mut("annotations") {
                annotations.retain(|name, _| name == ANNOUNCED);
            }
            let renamed = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                replace(&mut value, key);
                (self::text(&name, key), value)
            });
            fields.extend(renamed);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A text with its addresses replaced, whatever stands around them.
fn text(text: &str, key: &[u8; 32]) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ":.[]/".contains(c);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (token, after) = rest.split_at(length);
        out.push_str(&word(token, key));
        let mut others = after.chars();
        out.extend(others.next());
        rest = others.as_str();
    }
    out
}

fn word(token: &str, key: &[u8; 32]) -> String {
    let bare = token.trim_end_matches([':', '.', ',']);
    let end = &token[bare.len()..];
    if let Ok(address) = bare.parse::<IpAddr>() {
        return format!("{}{end}", other(address, key));
    }
    if let Ok(socket) = bare.parse::<SocketAddr>() {
        return format!("{}{end}", SocketAddr::new(other(socket.ip(), key), socket.port()));
    }
    if let Ok(range) = bare.parse::<IpNet>() {
        let address = other(range.addr(), key);
        let is_network = range.trunc() == range;
        let whole = |other: IpNet| if is_network { other.trunc() } else { other };
        return IpNet::new(address, range.prefix_len())
            .map_or_else(|_| token.to_owned(), |other| format!("{}{end}", whole(other)));
    }
    // A frontend: `10.96.0.1:80/tcp`.
    match bare.rsplit_once('/') {
        Some((place, protocol)) => match place.parse::<SocketAddr>() {
            Ok(socket) => format!("{}/{protocol}{end}", SocketAddr::new(other(socket.ip(), key), socket.port())),
            Err(_) => token.to_owned(),
        },
        None => token.to_owned(),
    }
}

fn other(address: IpAddr, key: &[u8; 32]) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_unspecified() || v4.is_link_local() || v4.is_multicast() => address,
        IpAddr::V4(v4) => {
            let bits = scrambled(u128::from(v4.to_bits()) << 96, 8, 32, key) >> 96;
            Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or_default()).into()
        }
        IpAddr::V6(v6)
            if v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() || v6.is_multicast() =>
        {
            address
        }
        IpAddr::V6(v6) => Ipv6Addr::from_bits(scrambled(v6.to_bits(), 16, 128, key)).into(),
    }
}

/// The first `length` bits, those after the first `kept` each flipped or not by what came before.
fn scrambled(bits: u128, kept: u32, length: u32, key: &[u8; 32]) -> u128 {
    let mut out = bits;
    for at in kept..length {
        let prefix = bits & !(u128::MAX >> at);
        let mut hash = Sha256::new();
        hash.update(key);
        hash.update([u8::try_from(at).unwrap_or(u8::MAX)]);
        hash.update(prefix.to_be_bytes());
        if hash.finalize()[0] & 1 == 1 {
            out ^= 1 << (127 - at);
        }
    }
    out
}

/// Backends are sorted by address, and the addresses are others now.
fn sort(plan: &mut NodePlan) {
    let sort_one = |target: &mut Target| {
        if let Target::Backends(backends) = target {
            let mut sorted: Vec<Backend> = backends.to_vec();
            sorted.sort_unstable();
            *backends = sorted.into();
        }
    };
    for Frontend { from_pod, from_node, from_elsewhere, .. } in plan.frontends.values_mut() {
        for route in [from_pod, from_node, from_elsewhere] {
            sort_one(&mut route.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    #[test]
    fn what_lies_in_one_range_lies_in_one_range_still() {
        let to = |text: &str| super::text(text, &KEY);
        let range: IpNet = to("10.244.1.0/24").parse().unwrap();
        for inside in ["10.244.1.2", "10.244.1.254"] {
            assert!(range.trunc().contains(&to(inside).parse::<IpAddr>().unwrap()), "{inside}");
        }
        assert!(!range.trunc().contains(&to("10.244.2.2").parse::<IpAddr>().unwrap()));
        let range: IpNet = to("fd00:10:244:1::/64").parse().unwrap();
        assert!(range.trunc().contains(&to("fd00:10:244:1::9").parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn addresses_are_found_wherever_they_stand() {
        for text in ["10.96.0.10:80/tcp", "[fd00::1]:53/udp", "192.0.2.1", "route to 10.1.2.3: none", "a 10.88.0.0/16."]
        {
            let redacted = super::text(text, &KEY);
            assert_ne!(redacted, text);
        }
        for text in ["127.0.0.1", "::1", "0.0.0.0", "nodeport:30080/tcp", "web-1", "v1.30.4", "KUBE-SVC-X", "::"] {
            assert_eq!(super::text(text, &KEY), text);
        }
    }
}
