//! Pure. What there is in iptables: tables, chains, and which chain of the kernel leads to which of ours.
//!
//! ```text
//! nat     PREROUTING, OUTPUT ──▶ KUBE-SERVICES ──▶ KUBE-SVC-, KUBE-SVL- ──▶ KUBE-SEP- (DNAT)
//!                                  │      │  └───▶ KUBE-EXT- ──┴──▶ ▲
//!                                  │      └─▶ KUBE-FW- ──▶ ▲
//!                                  └─▶ KUBE-NODEPORTS ──▶ KUBE-EXT-
//!         POSTROUTING ──▶ KUBE-POSTROUTING (masquerade what KUBE-MARK-MASQ marked)
//! filter  INPUT, FORWARD, OUTPUT ──▶ KUBE-PROXY-FIREWALL, KUBE-EXTERNAL-SERVICES, KUBE-SERVICES ──▶ KUBE-CLUSTER-IPS ──▶ KUBE-REJECT
//!         FORWARD ──▶ KUBE-FORWARD
//! ```
//!
//! What nat translated is done with: filter looks only at the first packets of flows that nat left alone.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use signpost_core::object::{Protocol, ServicePortName};

use super::rule::{Action, Match, Rule};

/// A table. In the order in which a change of both is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Rewrites addresses.
    Nat,
    /// Refuses and drops.
    Filter,
}

impl Table {
    /// Both.
    pub const ALL: [Table; 2] = [Table::Nat, Table::Filter];

    /// As iptables writes it.
    pub fn name(self) -> &'static str {
        match self {
            Table::Nat => "nat",
            Table::Filter => "filter",
        }
    }
}

/// A Service port with its protocol: whose chains have names of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// The Service port.
    pub name: ServicePortName,
    /// Its protocol.
    pub protocol: Protocol,
}

/// The kernel's own chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "they are named as the kernel names them")]
pub enum Base {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// A chain of one of the tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chain {
    /// The kernel's own.
    Base(Base),
    /// KUBE-SERVICES: by address. In nat what leads to backends, in filter what does not.
    Services,
    /// KUBE-NODEPORTS: by node port.
    NodePorts,
    /// KUBE-EXTERNAL-SERVICES, in filter: external and load-balancer addresses that lead nowhere.
    ExternalServices,
    /// KUBE-CLUSTER-IPS, in filter: cluster addresses, of which a port that is none is rejected.
    ClusterIps,
    /// KUBE-REJECT, in filter: refuses, each protocol in its way.
    Refusal,
    /// KUBE-PROXY-FIREWALL, in filter: drops sources that a load-balancer address is not for.
    ProxyFirewall,
    /// KUBE-FORWARD: lets translated flows through where forwarding is forbidden otherwise.
    Forward,
    /// KUBE-MARK-MASQ: marks what is to be masqueraded.
    MarkMasq,
    /// KUBE-POSTROUTING: masquerades what is marked.
    Postrouting,
    /// One of a Service port's.
    Of(Arc<Port>, Part),
}

/// Which chain of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Chooses among one set of backends: KUBE-SVC- the first, KUBE-SVL- the second.
    Backends(u8),
    /// Decides by the client: KUBE-EXT-.
    External(u8),
    /// Lets only some sources through: KUBE-FW-.
    Firewall(u8),
    /// Rewrites to one backend: KUBE-SEP-.
    Endpoint(SocketAddr),
}

impl Chain {
    /// The backend that it rewrites to, if it does only that.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        match self {
            Chain::Of(_, Part::Endpoint(at)) => Some(*at),
            _ => None,
        }
    }
}

/// The rules of ours in the kernel's own chains, in order.
pub fn base_rules(table: Table, base: Base) -> Vec<Rule> {
    let to = |chain: Chain, comment: &str| Rule::new(comment, [], Action::Jump(chain));
    let first = |chain: Chain, comment: &str| {
        // What nat sent to a backend may look like a frontend again, and is none of filter's business.
        Rule::new(comment, [Match::New, Match::NotTranslated], Action::Jump(chain))
    };
    let refusals = || {
        [
            first(Chain::ProxyFirewall, "kubernetes load balancer sources"),
            first(Chain::ExternalServices, "kubernetes external service portals"),
            first(Chain::Services, "kubernetes service portals"),
        ]
    };
    match (table, base) {
        (Table::Nat, Base::Prerouting | Base::Output) => vec![to(Chain::Services, "kubernetes service portals")],
        (Table::Nat, Base::Postrouting) => vec![to(Chain::Postrouting, "kubernetes masquerade")],
        (Table::Filter, Base::Input | Base::Output) => refusals().into(),
        (Table::Filter, Base::Forward) => {
            let [firewall, external, services] = refusals();
            vec![firewall, to(Chain::Forward, "kubernetes forwarding"), external, services]
        }
        _ => Vec::new(),
    }
}

/// The kernel's chains of a table that have rules of ours.
pub fn bases(table: Table) -> &'static [Base] {
    match table {
        Table::Nat => &[Base::Prerouting, Base::Output, Base::Postrouting],
        Table::Filter => &[Base::Input, Base::Forward, Base::Output],
    }
}
