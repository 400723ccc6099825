//! Pure. Reads fields of one object and remembers what was wrong with them.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use signpost_core::object::{Family, Protocol, TrafficPolicy};

use super::{FieldProblem, Malformed, ObjectReference, Problem, Quoted, parse_address, parse_range};

/// So many problems of one object are told; a slice may have a hundred endpoints that are wrong in the same way.
const TOLD_PROBLEMS: usize = 8;

/// One object under conversion.
pub(super) struct Fields {
    reference: ObjectReference,
    problems: Vec<FieldProblem>,
}

impl Fields {
    pub(super) fn new(reference: ObjectReference) -> Fields {
        Fields { reference, problems: Vec::new() }
    }

    pub(super) fn reference(&self) -> &ObjectReference {
        &self.reference
    }

    pub(super) fn into_malformed(self) -> Option<Malformed> {
        let Fields { reference, problems, .. } = self;
        if problems.is_empty() { None } else { Some(Malformed { object: reference, problems }) }
    }

    pub(super) fn problem(&mut self, field: impl Into<String>, problem: Problem) {
        if self.problems.len() < TOLD_PROBLEMS {
            self.problems.push(FieldProblem { field: field.into(), problem });
        }
    }

    /// Whether the object has a name that may stand in rules, logs and URLs.
    pub(super) fn check_identity(&mut self, metadata: &ObjectMeta) -> bool {
        let name = metadata.name.as_deref().unwrap_or_default();
        if !is_subdomain(name) {
            self.problem("metadata.name", Problem::BadName { value: Quoted::new(name) });
            return false;
        }
        match metadata.namespace.as_deref() {
            None | Some("") => {
                let namespaced = matches!(self.reference.kind, "Service" | "EndpointSlice");
                if namespaced {
                    self.problem("metadata.namespace", Problem::Missing);
                }
                !namespaced
            }
            Some(namespace) if is_label(namespace) => true,
            Some(namespace) => {
                self.problem("metadata.namespace", Problem::BadName { value: Quoted::new(namespace) });
                false
            }
        }
    }

    /// An address that is not of a sort that cannot be served.
    pub(super) fn address(&mut self, field: impl Into<String>, text: &str) -> Option<IpAddr> {
        let Some(address) = parse_address(text) else {
            self.problem(field, Problem::NotAnAddress { value: Quoted::new(text) });
            return None;
        };
        if let Some(what) = special(address) {
            self.problem(field, Problem::SpecialAddress { value: Quoted::new(text), what });
            return None;
        }
        Some(address)
    }

    /// The usable ones of a list of addresses, each once.
    pub(super) fn addresses(&mut self, field: &str, texts: &[String]) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match self.address(field.clone(), text) {
                Some(address) if addresses.contains(&address) => {
                    self.problem(field, Problem::Duplicate { value: Quoted::new(text) });
                }
                Some(address) => addresses.push(address),
                None => {}
            }
        }
        addresses
    }

    /// The usable ones of a list of ranges, without the bits beyond their length.
    pub(super) fn ranges(&mut self, field: &str, texts: &[String]) -> Vec<IpNet> {
        let mut ranges = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match parse_range(text) {
                Some(range) if ranges.contains(&range) => {}
                Some(range) => ranges.push(range),
                None => self.problem(format!("{field}[{index}]"), Problem::NotARange { value: Quoted::new(text) }),
            }
        }
        ranges
    }

    pub(super) fn port(&mut self, field: impl Into<String>, value: i32) -> Option<NonZeroU16> {
        let port = u16::try_from(value).ok().and_then(NonZeroU16::new);
        if port.is_none() {
            self.problem(field, Problem::PortOutOfRange { value: value.into() });
        }
        port
    }

    /// A port's protocol; unset is TCP.
    pub(super) fn protocol(&mut self, field: impl Into<String>, text: Option<&str>) -> Option<Protocol> {
        match text {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(other) => {
                self.problem(field, Problem::UnknownProtocol { value: Quoted::new(other) });
                None
            }
        }
    }

    /// A port's name: empty, or a DNS label.
    pub(super) fn port_name(&mut self, field: impl Into<String>, text: Option<&str>) -> Option<Arc<str>> {
        match text.unwrap_or_default() {
            name if name.is_empty() || is_label(name) => Some(name.into()),
            name => {
                self.problem(field, Problem::BadName { value: Quoted::new(name) });
                None
            }
        }
    }

    pub(super) fn policy(&mut self, field: &str, text: Option<&str>) -> TrafficPolicy {
        match text {
            None | Some("" | "Cluster") => TrafficPolicy::Cluster,
            Some("Local") => TrafficPolicy::Local,
            Some(other) => {
                self.problem(field, Problem::UnknownWord { value: Quoted::new(other), taken: "Cluster" });
                TrafficPolicy::Cluster
            }
        }
    }

    /// An address of the family that the object says it has.
    pub(super) fn address_of(&mut self, field: impl Into<String>, text: &str, family: Family) -> Option<IpAddr> {
        let field = field.into();
        let address = self.address(field.as_str(), text)?;
        if Family::of(address) == family {
            return Some(address);
        }
        self.problem(field, Problem::WrongFamily { value: Quoted::new(text), family });
        None
    }
}

fn special(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if link_local {
        Some("a link-local address")
    } else if address == IpAddr::from([255; 4]) {
        Some("the broadcast address")
    } else {
        None
    }
}

/// RFC 1123 label: what a namespace or a port is named.
pub(super) fn is_label(text: &str) -> bool {
    let inside = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inside) && !text.starts_with('-') && !text.ends_with('-')
}

/// RFC 1123 subdomain: what most objects are named.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}
