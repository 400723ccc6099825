//! Pure. Clients from outside.

use super::{Cause, Code, Step};

/// In the order of their codes.
pub(super) const CAUSES: [Cause; 9] = [
    Cause {
        code: Code::LoadBalancerPending,
        id: "SP701",
        step: Step::Outside,
        title: "nobody gives the Service a load-balancer address",
        fix: "run a controller that gives addresses, or set loadBalancerClass to one that does",
        page: include_str!("../../../../../docs/causes/SP701.md"),
    },
    Cause {
        code: Code::ExternalLocal,
        id: "SP702",
        step: Step::Outside,
        title: "externalTrafficPolicy is Local, and the node that the packet enters at has no endpoint",
        fix: "externalTrafficPolicy: Cluster, or a pod on every node that takes traffic in",
        page: include_str!("../../../../../docs/causes/SP702.md"),
    },
    Cause {
        code: Code::SourceRanges,
        id: "SP703",
        step: Step::Outside,
        title: "the client is not in loadBalancerSourceRanges",
        fix: "add its range, or take all ranges away",
        page: include_str!("../../../../../docs/causes/SP703.md"),
    },
    Cause {
        code: Code::ExcludedNode,
        id: "SP704",
        step: Step::Outside,
        title: "a node with endpoints is kept out of load balancing",
        fix: "remove the label",
        page: include_str!("../../../../../docs/causes/SP704.md"),
    },
    Cause {
        code: Code::NoNodePorts,
        id: "SP705",
        step: Step::Outside,
        title: "the Service has no node ports",
        fix: "set allocateLoadBalancerNodePorts to true",
        page: include_str!("../../../../../docs/causes/SP705.md"),
    },
    Cause {
        code: Code::NodePortAddress,
        id: "SP706",
        step: Step::Outside,
        title: "node ports do not answer at this address of the node",
        fix: "use the node's primary address, or widen nodePortAddresses",
        page: include_str!("../../../../../docs/causes/SP706.md"),
    },
    Cause {
        code: Code::NodePortListener,
        id: "SP707",
        step: Step::Outside,
        title: "a process of the node listens on the node port",
        fix: "another node port, or another port for the process",
        page: include_str!("../../../../../docs/causes/SP707.md"),
    },
    Cause {
        code: Code::NodePortEphemeral,
        id: "SP708",
        step: Step::Outside,
        title: "the node port lies among the ports that the node gives to its own connections",
        fix: "sysctl net.ipv4.ip_local_reserved_ports=30000-32767",
        page: include_str!("../../../../../docs/causes/SP708.md"),
    },
    Cause {
        code: Code::ExternalIpUnrouted,
        id: "SP709",
        step: Step::Outside,
        title: "nothing leads to the external address",
        fix: "route the address to a node",
        page: include_str!("../../../../../docs/causes/SP709.md"),
    },
];
