//! Pure. The elements of the sets and maps.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use signpost_core::object::{Family, ServicePortName};
use signpost_core::plan::FrontendKey;

use super::chain::Chain;

/// What an element is found by. Each set has keys of one form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `address`.
    Address(IpAddr),
    /// A range of addresses; those of one set do not overlap.
    Network(IpNet),
    /// `address . address`, the same twice.
    Loop(IpAddr),
    /// `[address .] protocol . port`.
    Frontend(FrontendKey),
    /// `[address .] port . index`, in the map of its protocol.
    Endpoint(FrontendKey, u32),
    /// `address . protocol . port . range`.
    Source(FrontendKey, IpNet),
}

impl fmt::Display for Key {
    /// As nft reads and writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Address(address) => write!(f, "{address}"),
            Key::Network(range) => write!(f, "{range}"),
            Key::Loop(address) => write!(f, "{address} . {address}"),
            Key::Frontend(frontend) => write_frontend(f, frontend),
            Key::Endpoint(frontend, index) => {
                if let FrontendKey::Address { address, .. } = frontend {
                    write!(f, "{address} . ")?;
                }
                let (FrontendKey::Address { port, .. } | FrontendKey::NodePort { port, .. }) = frontend;
                write!(f, "{port} . {index}")
            }
            Key::Source(frontend, range) => {
                write_frontend(f, frontend)?;
                write!(f, " . {range}")
            }
        }
    }
}

fn write_frontend(f: &mut fmt::Formatter<'_>, key: &FrontendKey) -> fmt::Result {
    match key {
        FrontendKey::Address { address, protocol, port } => write!(f, "{address} . {protocol} . {port}"),
        FrontendKey::NodePort { protocol, port } => write!(f, "{protocol} . {port}"),
    }
}

/// What a map gives for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Data {
    /// Nothing: it is a set.
    Member,
    /// To a chain, and not back.
    Goto(Chain),
    /// To a chain and back.
    Jump(Chain),
    /// Dropped.
    Drop,
    /// A backend.
    To(SocketAddr),
    /// Something that we never write, found in the kernel.
    Foreign,
}

/// An element without its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Value {
    /// What a map gives.
    pub data: Data,
    /// Names the Service port. Only in maps of frontends: 100,000 endpoints would pay for it in time and memory.
    pub comment: Option<Box<str>>,
}

impl Value {
    /// One without a comment.
    pub fn plain(data: Data) -> Value {
        Value { data, comment: None }
    }
}

/// The most that nft takes.
const COMMENT_MOST_BYTES: usize = 128;

/// A comment that names a Service port. Kubernetes allows nothing in names that nft could stumble over; what comes all
/// the same, from an object that nobody checked, becomes a question mark.
pub fn comment(service_port: &ServicePortName) -> Box<str> {
    let mut text: String = service_port.to_string().chars().map(|c| if is_plain(c) { c } else { '?' }).collect();
    if text.len() > COMMENT_MOST_BYTES {
        text.truncate(COMMENT_MOST_BYTES - 3);
        text.push_str("...");
    }
    text.into()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':')
}

/// Ranges of one family, sorted, in their shortest form and without those that lie in another: what an interval set
/// takes. Order and repetition of the input do not matter.
pub fn disjoint(family: Family, ranges: &[IpNet]) -> Vec<IpNet> {
    let mut sorted: Vec<IpNet> =
        ranges.iter().filter(|range| Family::of(range.addr()) == family).map(IpNet::trunc).collect();
    sorted.sort_unstable_by_key(|range| (range.addr(), range.prefix_len()));
    // Two ranges are nested or apart, and the wider of two that begin alike comes first.
    sorted.dedup_by(|later, earlier| earlier.contains(&*later));
    sorted
}

#[cfg(test)]
mod tests {
    use signpost_core::object::ObjectName;

    use super::*;

    fn name(namespace: &str, name: &str, port: &str) -> ServicePortName {
        ServicePortName { service: ObjectName::new(namespace, name), port: port.into() }
    }

    #[test]
    fn a_comment_is_the_service_port() {
        assert_eq!(&*comment(&name("default", "web", "http")), "default/web:http");
        assert_eq!(&*comment(&name("default", "web", "")), "default/web");
    }

    #[test]
    fn a_hostile_name_cannot_leave_the_comment() {
        let text = comment(&name("a\" : drop }\nflush ruleset #", "b\\;\u{0}", "\u{fc}\u{1F600}"));
        assert_eq!(&*text, "a??:?drop???flush?ruleset??/b???:??");
    }

    #[test]
    fn a_long_comment_is_cut() {
        let long = "x".repeat(63);
        let text = comment(&name(&long, &long, &long));
        assert_eq!(text.len(), 128);
        assert!(text.ends_with("..."));
    }

    #[test]
    fn ranges_become_disjoint() {
        let ranges: Vec<IpNet> =
            ["10.1.0.0/16", "10.0.0.0/8", "10.0.0.7/8", "11.0.0.0/24", "fd00::/8", "192.0.2.1/32", "11.0.1.0/24"]
                .map(|text| text.parse().unwrap())
                .to_vec();
        let got: Vec<String> = disjoint(Family::Ipv4, &ranges).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["10.0.0.0/8", "11.0.0.0/24", "11.0.1.0/24", "192.0.2.1/32"]);
        assert_eq!(disjoint(Family::Ipv6, &ranges).len(), 1);
        let everything = ["0.0.0.0/0".parse().unwrap(), ranges[0]];
        assert_eq!(disjoint(Family::Ipv4, &everything), [everything[0]]);
    }
}
