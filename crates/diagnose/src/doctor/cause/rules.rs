//! Pure. Node daemons, and what their kernels hold.

use super::{Cause, Code, Step};

/// In the order of their codes.
pub(super) const CAUSES: [Cause; 10] = [
    Cause {
        code: Code::DaemonDown,
        id: "SP401",
        step: Step::Rules,
        title: "the node daemon does not answer",
        fix: "start it again and see why it ended",
        page: include_str!("../../../../../docs/causes/SP401.md"),
    },
    Cause {
        code: Code::DaemonBehind,
        id: "SP402",
        step: Step::Rules,
        title: "the node daemon cannot bring its rules into the kernel",
        fix: "see its log: which call the kernel refuses",
        page: include_str!("../../../../../docs/causes/SP402.md"),
    },
    Cause {
        code: Code::KernelDiffers,
        id: "SP403",
        step: Step::Rules,
        title: "the kernel does not hold the rules that it should",
        fix: "find who else writes there (another proxy, a firewall's reload); the daemon mends it at its next comparison",
        page: include_str!("../../../../../docs/causes/SP403.md"),
    },
    Cause {
        code: Code::PlanBehind,
        id: "SP404",
        step: Step::Rules,
        title: "the node daemon serves an older state of the objects",
        fix: "see whether the daemon reaches the API; restart it",
        page: include_str!("../../../../../docs/causes/SP404.md"),
    },
    Cause {
        code: Code::Leftovers,
        id: "SP405",
        step: Step::Rules,
        title: "rules of another mode are still in the kernel",
        fix: "signpost node --cleanup in the old mode, or a reboot of the node",
        page: include_str!("../../../../../docs/causes/SP405.md"),
    },
    Cause {
        code: Code::BothIptables,
        id: "SP406",
        step: Step::Rules,
        title: "both sorts of iptables hold rules of a Service proxy",
        fix: "flush one of the two",
        page: include_str!("../../../../../docs/causes/SP406.md"),
    },
    Cause {
        code: Code::AnotherProxy,
        id: "SP407",
        step: Step::Rules,
        title: "another Service proxy is in charge",
        fix: "nothing, if that is meant; what that proxy does is not fully seen from here",
        page: include_str!("../../../../../docs/causes/SP407.md"),
    },
    Cause {
        code: Code::MasqueradeMissing,
        id: "SP408",
        step: Step::Rules,
        title: "the answer does not come back by the node that rewrote the request",
        fix: "set --cluster-cidr (clusterCIDR) to the ranges of pods",
        page: include_str!("../../../../../docs/causes/SP408.md"),
    },
    Cause {
        code: Code::ProgramWrong,
        id: "SP409",
        step: Step::Rules,
        title: "the rules say otherwise than the plan",
        fix: "report it, with `signpost doctor --save FILE`",
        page: include_str!("../../../../../docs/causes/SP409.md"),
    },
    Cause {
        code: Code::NoFrontendOnNode,
        id: "SP410",
        step: Step::Rules,
        title: "the node has no rule for the Service",
        fix: "restart the node daemon; see whether its API answers",
        page: include_str!("../../../../../docs/causes/SP410.md"),
    },
];
