//! Pure. What each kind of client meets at a frontend, by the Service's traffic policies.
//!
//! | frontend | policy | from a pod | from this node | from elsewhere |
//! |---|---|---|---|---|
//! | cluster address | internal Cluster | cluster | cluster, masq. | cluster, masq. |
//! | cluster address | internal Local | local | local, masq. | local, masq. |
//! | any other | external Cluster | cluster, masq. | cluster, masq. | cluster, masq. |
//! | any other | external Local | cluster | cluster, masq. | local |
//!
//! At a cluster address "masq." needs the cluster's ranges to be known, else nobody can tell who is no pod; with
//! masquerade-all pods are masqueraded there too. An external Local policy lets the cluster's own clients reach every
//! endpoint: they would meet the load balancer's choice of another node if they left the cluster (KEP-2086, kubernetes#95786).

use crate::object::{Service, TrafficPolicy};
use crate::plan::backends::Choice;
use crate::plan::{FrontendKind, Route, Target};

/// When sources are rewritten at cluster addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masquerade {
    /// For every client.
    pub all: bool,
    /// For clients that are no pods; that is, the cluster's ranges are known.
    pub not_pods: bool,
}

/// The routes of one frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// See [`crate::plan::Frontend::from_pod`].
    pub from_pod: Route,
    /// See [`crate::plan::Frontend::from_node`].
    pub from_node: Route,
    /// See [`crate::plan::Frontend::from_elsewhere`].
    pub from_elsewhere: Route,
}

/// The routes of a frontend of this kind.
pub fn routes(kind: FrontendKind, service: &Service, choice: &Choice, masquerade: Masquerade) -> Routes {
    let cluster = |masquerade| Route { target: target(choice, TrafficPolicy::Cluster), masquerade };
    let by = |policy, masquerade| Route { target: target(choice, policy), masquerade };
    match (kind, service.external_policy) {
        (FrontendKind::ClusterIp, _) => {
            let not_pods = by(service.internal_policy, masquerade.all || masquerade.not_pods);
            Routes {
                from_pod: by(service.internal_policy, masquerade.all),
                from_node: not_pods.clone(),
                from_elsewhere: not_pods,
            }
        }
        (_, TrafficPolicy::Cluster) => {
            Routes { from_pod: cluster(true), from_node: cluster(true), from_elsewhere: cluster(true) }
        }
        (_, TrafficPolicy::Local) => Routes {
            from_pod: cluster(false),
            from_node: cluster(true),
            from_elsewhere: by(TrafficPolicy::Local, false),
        },
    }
}

/// No endpoint in the whole cluster refuses, so that clients learn at once; none on this node drops, since another node
/// may have one and the client's packet only came here while a load balancer has yet to notice.
fn target(choice: &Choice, policy: TrafficPolicy) -> Target {
    let backends = match policy {
        TrafficPolicy::Cluster => &choice.cluster,
        TrafficPolicy::Local => &choice.local,
    };
    match (backends, &choice.cluster) {
        (Some(backends), _) => Target::Backends(backends.clone()),
        (None, Some(_)) => Target::Drop,
        (None, None) => Target::Reject,
    }
}
