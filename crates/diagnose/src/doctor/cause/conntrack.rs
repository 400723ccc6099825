//! Pure. Connection tracking.

use super::{Cause, Code, Step};

/// In the order of their codes.
pub(super) const CAUSES: [Cause; 6] = [
    Cause {
        code: Code::ConntrackFull,
        id: "SP501",
        step: Step::Conntrack,
        title: "connection tracking is full",
        fix: "raise net.netfilter.nf_conntrack_max; see which Service holds the entries",
        page: include_str!("../../../../../docs/causes/SP501.md"),
    },
    Cause {
        code: Code::ConntrackNearlyFull,
        id: "SP502",
        step: Step::Conntrack,
        title: "connection tracking is nearly full",
        fix: "raise net.netfilter.nf_conntrack_max before it is full",
        page: include_str!("../../../../../docs/causes/SP502.md"),
    },
    Cause {
        code: Code::StaleUdpFlow,
        id: "SP503",
        step: Step::Conntrack,
        title: "a UDP flow leads to a backend that is gone",
        fix: "delete the entry; signpost node does it by itself when it runs",
        page: include_str!("../../../../../docs/causes/SP503.md"),
    },
    Cause {
        code: Code::InsertFailed,
        id: "SP504",
        step: Step::Conntrack,
        title: "flows clash when they are entered into connection tracking",
        fix: "more source addresses, or a node-local DNS cache",
        page: include_str!("../../../../../docs/causes/SP504.md"),
    },
    Cause {
        code: Code::SnatPorts,
        id: "SP505",
        step: Step::Conntrack,
        title: "a node runs out of ports for what it masquerades to one backend",
        fix: "more backends or nodes; fewer, longer connections; externalTrafficPolicy: Local, which keeps the client's address",
        page: include_str!("../../../../../docs/causes/SP505.md"),
    },
    Cause {
        code: Code::LongLivedSkew,
        id: "SP506",
        step: Step::Conntrack,
        title: "long-lived connections lie unevenly on the backends",
        fix: "let clients or servers end connections after a while (max connection age), or balance in the client",
        page: include_str!("../../../../../docs/causes/SP506.md"),
    },
];
