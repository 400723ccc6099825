//! Pure. The names of chains, as kube-proxy gives them: people and tools look for them.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use super::chain::{Base, Chain, Part, Port};

/// Letters of a hash that stand in a name: with the longest prefix it has 25, of the kernel's 28.
const HASH_LETTERS: usize = 16;
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

const SERVICES: &str = "KUBE-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";
const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
const CLUSTER_IPS: &str = "KUBE-CLUSTER-IPS";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const REFUSAL: &str = "KUBE-REJECT";
const FORWARD: &str = "KUBE-FORWARD";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const POSTROUTING: &str = "KUBE-POSTROUTING";

/// Begin the names of the chains of one Service port.
const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];
const ALONE: [&str; 15] = [
    SERVICES,
    NODE_PORTS,
    EXTERNAL_SERVICES,
    CLUSTER_IPS,
    REFUSAL,
    PROXY_FIREWALL,
    FORWARD,
    MARK_MASQ,
    POSTROUTING,
    "KUBE-PROXY-CANARY",
    // Of kube-proxy's mode ipvs.
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

impl Chain {
    /// The chain's name in its table.
    pub fn name(&self) -> String {
        match self {
            Chain::Base(base) => base.name().to_owned(),
            Chain::Services => SERVICES.to_owned(),
            Chain::NodePorts => NODE_PORTS.to_owned(),
            Chain::ExternalServices => EXTERNAL_SERVICES.to_owned(),
            Chain::ClusterIps => CLUSTER_IPS.to_owned(),
            Chain::Refusal => REFUSAL.to_owned(),
            Chain::ProxyFirewall => PROXY_FIREWALL.to_owned(),
            Chain::Forward => FORWARD.to_owned(),
            Chain::MarkMasq => MARK_MASQ.to_owned(),
            Chain::Postrouting => POSTROUTING.to_owned(),
            Chain::Of(port, part) => name_of_part(port, *part),
        }
    }
}

impl Base {
    /// As iptables writes it.
    pub fn name(self) -> &'static str {
        match self {
            Base::Prerouting => "PREROUTING",
            Base::Input => "INPUT",
            Base::Forward => "FORWARD",
            Base::Output => "OUTPUT",
            Base::Postrouting => "POSTROUTING",
        }
    }
}

fn name_of_part(port: &Port, part: Part) -> String {
    let number = |prefix: &str, number: u8| {
        // All but the first are needed by plans only that no Service of today makes.
        let suffix = if number == 0 { String::new() } else { format!("/{number}") };
        hashed(prefix, port, &suffix)
    };
    match part {
        Part::Backends(1) => hashed("KUBE-SVL-", port, ""),
        Part::Backends(set) => number("KUBE-SVC-", set),
        Part::External(entry) => number("KUBE-EXT-", entry),
        Part::Firewall(wall) => number("KUBE-FW-", wall),
        Part::Endpoint(at) => endpoint(port, at),
    }
}

fn endpoint(port: &Port, at: SocketAddr) -> String {
    hashed("KUBE-SEP-", port, &at.to_string())
}

/// `PREFIX-HASH`, hashed over the Service port's name, its protocol and what follows.
fn hashed(prefix: &str, port: &Port, suffix: &str) -> String {
    let digest = Sha256::digest(format!("{}{}{suffix}", port.name, port.protocol));
    let mut name = String::with_capacity(prefix.len() + HASH_LETTERS);
    name.push_str(prefix);
    // Five bits a letter: ten bytes are sixteen letters.
    let bits = digest.iter().take(10).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let letters = (0..HASH_LETTERS).map(|letter| (bits >> (75 - 5 * letter)) as usize & 31);
    name.extend(letters.map(|letter| char::from(BASE32[letter])));
    name
}

/// Whether a chain of this name is a Service proxy's: this program's, or kube-proxy's whose place it takes. Those that
/// kubelet and others make (KUBE-FIREWALL, KUBE-KUBELET-CANARY) are not.
pub fn is_ours(name: &str) -> bool {
    ALONE.contains(&name)
        || PREFIXES.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|hash| hash.len() == HASH_LETTERS && hash.bytes().all(|letter| BASE32.contains(&letter)))
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use signpost_core::object::{ObjectName, Protocol, ServicePortName};

    use super::*;

    fn web(port: &str, part: Part) -> String {
        let name = ServicePortName { service: ObjectName::new("default", "web"), port: port.into() };
        Chain::Of(Arc::new(Port { name, protocol: Protocol::Tcp }), part).name()
    }

    #[test]
    fn names_are_those_of_kube_proxy() {
        assert_eq!(web("", Part::Backends(0)), "KUBE-SVC-LOLE4ISW44XBNF3G");
        assert_eq!(web("http", Part::Backends(0)), "KUBE-SVC-CDGGSHYLG3RE2FKL");
        assert_eq!(web("http", Part::Backends(1)), "KUBE-SVL-CDGGSHYLG3RE2FKL");
        assert_eq!(web("http", Part::External(0)), "KUBE-EXT-CDGGSHYLG3RE2FKL");
        assert_eq!(web("http", Part::Firewall(0)), "KUBE-FW-CDGGSHYLG3RE2FKL");
        assert_eq!(web("", Part::Endpoint("10.244.1.7:8080".parse().unwrap())), "KUBE-SEP-DKWNLF34UGBVYALX");
    }

    #[test]
    fn further_sets_have_names_of_their_own() {
        let names = [0, 1, 2, 3].map(|set| web("", Part::Backends(set)));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert!(names.iter().all(|name| is_ours(name)));
    }

    #[test]
    fn what_kubelet_and_others_name_like_that_is_not_ours() {
        for name in ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-SEP", "KUBE-SVC-short", "KUBE-FW-cdggshylg3re2fkl"] {
            assert!(!is_ours(name), "{name}");
        }
        for name in ["KUBE-SERVICES", "KUBE-SEP-DKWNLF34UGBVYALX", "KUBE-PROXY-CANARY"] {
            assert!(is_ours(name), "{name}");
        }
    }
}
