//! Pure. What can be wrong with an object that the API let in, said so that its owner can mend it.

use std::fmt;
use std::sync::Arc;

use signpost_core::object::Family;

/// An object that is not, or not wholly, as it must be. What is whole of it is still served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Which object.
    pub object: ObjectReference,
    /// What is wrong, never empty.
    pub problems: Vec<FieldProblem>,
}

/// An object as an Event's `involvedObject` names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    /// Such as `v1` or `discovery.k8s.io/v1`.
    pub api_version: &'static str,
    /// Such as `Service`.
    pub kind: &'static str,
    /// Its namespace; empty if its kind has none.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid; empty if unknown.
    pub uid: Arc<str>,
}

impl fmt::Display for ObjectReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// A problem and the field that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// What is wrong with a field. The texts say what was left out because of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not an IP address.
    #[error("{value} is not an IP address; ignored")]
    NotAnAddress {
        /// As written.
        value: Quoted,
    },
    /// An address that no packet may be sent to from here: unspecified, loopback, link-local, multicast.
    #[error("{value} is {what}, which cannot be served; ignored")]
    SpecialAddress {
        /// As written.
        value: Quoted,
        /// Of what sort it is.
        what: &'static str,
    },
    /// An address of the other family than the object says.
    #[error("{value} is not {family}; ignored")]
    WrongFamily {
        /// As written.
        value: Quoted,
        /// What it had to be.
        family: Family,
    },
    /// Not an address range.
    #[error("{value} is not an address range such as 10.0.0.0/8; ignored")]
    NotARange {
        /// As written.
        value: Quoted,
    },
    /// Source ranges are given, none can be read, and "no ranges" would mean "everyone".
    #[error("no range can be read; the load-balancer addresses are not served")]
    NoUsableRange,
    /// Connections cannot both stay with a backend and be spread anew.
    #[error("clients with sessionAffinity would be led back to where they were; off is taken")]
    RebalanceWithAffinity,
    /// Not a port number.
    #[error("{value} is not in 1-65535; ignored")]
    PortOutOfRange {
        /// As written.
        value: i64,
    },
    /// A protocol that no Service has.
    #[error("{value} is not TCP, UDP or SCTP; ignored")]
    UnknownProtocol {
        /// As written.
        value: Quoted,
    },
    /// A word that the field does not know.
    #[error("{value} is not known here; {taken} is taken")]
    UnknownWord {
        /// As written.
        value: Quoted,
        /// What is taken in its place.
        taken: &'static str,
    },
    /// A time out of its bounds.
    #[error("{value} is not in 1-86400 seconds; {taken} is taken")]
    TimeoutOutOfRange {
        /// As written.
        value: i64,
        /// What is taken in its place.
        taken: u64,
    },
    /// Not a name that Kubernetes allows.
    #[error("{value} is not a name that Kubernetes allows; ignored")]
    BadName {
        /// As written.
        value: Quoted,
    },
    /// The same again.
    #[error("{value} is there twice; the later one is ignored")]
    Duplicate {
        /// What is there twice.
        value: Quoted,
    },
    /// A field without which the object means nothing.
    #[error("is missing; ignored")]
    Missing,
    /// Nothing usable is left.
    #[error("no usable value is left; the object is not served")]
    NothingLeft,
    /// The object's JSON does not have the form of its kind.
    #[error("cannot be read: {reason}; the object is not served")]
    Unreadable {
        /// What the decoder said.
        reason: Quoted,
    },
}

/// A text out of an object: shown in quotes, with control characters escaped, cut short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quoted(String);

/// Longest text of an object that is shown.
const SHOWN_CHARS: usize = 80;

impl Quoted {
    /// A copy of `text`, no longer than is shown.
    pub fn new(text: &str) -> Quoted {
        let mut short: String = text.chars().take(SHOWN_CHARS).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        Quoted(short)
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
