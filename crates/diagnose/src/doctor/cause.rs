//! Pure. The causes that are told apart, each with a code that never changes its meaning and a page in `docs/causes/`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Where on the way from a name to an answer a cause lies, in the order in which one looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "each says itself in its title")]
pub enum Step {
    Name,
    Endpoints,
    Selector,
    Rules,
    Conntrack,
    Way,
    Outside,
    Family,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 8] = [
        Step::Name,
        Step::Endpoints,
        Step::Selector,
        Step::Rules,
        Step::Conntrack,
        Step::Way,
        Step::Outside,
        Step::Family,
    ];

    /// What it looks at, for people and for `--only` and `--skip`.
    pub fn title(self) -> &'static str {
        match self {
            Step::Name => "name",
            Step::Endpoints => "endpoints",
            Step::Selector => "selector",
            Step::Rules => "rules",
            Step::Conntrack => "conntrack",
            Step::Way => "way",
            Step::Outside => "outside",
            Step::Family => "family",
        }
    }
}

/// A cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the table says what each is")]
pub enum Code {
    NoSuchService,
    UndeclaredPort,
    OtherProtocol,
    NoDns,
    NotClusterDns,
    HeadlessNoneReady,
    HeadlessPort,
    ExternalNameAddress,
    AddressOfNobody,
    ExternalNameNoRules,
    NoneReady,
    PodsPending,
    PodsCrash,
    ReadinessGate,
    OnlyTerminating,
    NoSelectorNoSlices,
    SliceOfAnother,
    PortNames,
    SliceNotReady,
    SliceFamily,
    EndpointOfNobody,
    SlicesBehind,
    NamedPort,
    UnreadyServed,
    NothingListens,
    ListensOnLoopback,
    OtherFamilyOnly,
    NodeLost,
    SameAddress,
    ListensOtherProtocol,
    SelectorMatchesNothing,
    PodsElsewhere,
    SelectorTooBroad,
    OutsideServiceCidr,
    CidrOverlap,
    FrontendTaken,
    ForeignProxy,
    Malformed,
    NoClusterIp,
    InternalLocal,
    HintsStarve,
    DaemonDown,
    DaemonBehind,
    KernelDiffers,
    PlanBehind,
    Leftovers,
    BothIptables,
    AnotherProxy,
    MasqueradeMissing,
    ProgramWrong,
    NoFrontendOnNode,
    ConntrackFull,
    ConntrackNearlyFull,
    StaleUdpFlow,
    InsertFailed,
    NotForwarding,
    NotForwardingIpv6,
    Firewall,
    NoRoute,
    LinkDown,
    NeighbourFailed,
    StrictReversePath,
    PolicyIngress,
    PolicyEgress,
    PolicyServicePort,
    MtuDiffers,
    HairpinOff,
    LoadBalancerPending,
    ExternalLocal,
    SourceRanges,
    ExcludedNode,
    NoNodePorts,
    NodePortAddress,
    NodePortListener,
    NodePortEphemeral,
    ExternalIpUnrouted,
    FamiliesDiffer,
    PodLacksFamily,
    Unexplained,
}

/// What is known of a cause.
#[derive(Debug, Clone, Copy)]
pub struct Cause {
    /// The cause.
    pub code: Code,
    /// Its name for ever.
    pub id: &'static str,
    /// Where it lies.
    pub step: Step,
    /// In few words.
    pub title: &'static str,
    /// What to do.
    pub fix: &'static str,
    /// Its page, as Markdown.
    pub page: &'static str,
}

/// All of them, in the order of [`Code`].
pub const CAUSES: [Cause; 79] = [
    Cause {
        code: Code::NoSuchService,
        id: "SP101",
        step: Step::Name,
        title: "there is no such Service",
        fix: "use SERVICE.NAMESPACE, or create the Service",
        page: include_str!("../../../../docs/causes/SP101.md"),
    },
    Cause {
        code: Code::UndeclaredPort,
        id: "SP102",
        step: Step::Name,
        title: "the Service has no such port",
        fix: "dial the Service's port, not the pod's; or declare the port",
        page: include_str!("../../../../docs/causes/SP102.md"),
    },
    Cause {
        code: Code::OtherProtocol,
        id: "SP103",
        step: Step::Name,
        title: "the Service has the port, but for another protocol",
        fix: "declare the port for both protocols; each needs an entry of its own",
        page: include_str!("../../../../docs/causes/SP103.md"),
    },
    Cause {
        code: Code::NoDns,
        id: "SP104",
        step: Step::Name,
        title: "cluster DNS has no endpoint",
        fix: "bring CoreDNS back",
        page: include_str!("../../../../docs/causes/SP104.md"),
    },
    Cause {
        code: Code::NotClusterDns,
        id: "SP105",
        step: Step::Name,
        title: "the client does not ask cluster DNS",
        fix: "dnsPolicy: ClusterFirst, in the node's network ClusterFirstWithHostNet",
        page: include_str!("../../../../docs/causes/SP105.md"),
    },
    Cause {
        code: Code::HeadlessNoneReady,
        id: "SP106",
        step: Step::Name,
        title: "a headless Service has no ready endpoint",
        fix: "mend readiness, or publishNotReadyAddresses if peers must find each other before",
        page: include_str!("../../../../docs/causes/SP106.md"),
    },
    Cause {
        code: Code::HeadlessPort,
        id: "SP107",
        step: Step::Name,
        title: "a headless Service maps no ports",
        fix: "dial the targetPort",
        page: include_str!("../../../../docs/causes/SP107.md"),
    },
    Cause {
        code: Code::ExternalNameAddress,
        id: "SP108",
        step: Step::Name,
        title: "an ExternalName is an address",
        fix: "a Service without selector and an EndpointSlice with that address",
        page: include_str!("../../../../docs/causes/SP108.md"),
    },
    Cause {
        code: Code::AddressOfNobody,
        id: "SP109",
        step: Step::Name,
        title: "the address belongs to no Service",
        fix: "restart the client, or let it resolve the name again",
        page: include_str!("../../../../docs/causes/SP109.md"),
    },
    Cause {
        code: Code::ExternalNameNoRules,
        id: "SP110",
        step: Step::Name,
        title: "an ExternalName Service has no address and no ports",
        fix: "dial the other name and its own port",
        page: include_str!("../../../../docs/causes/SP110.md"),
    },
    Cause {
        code: Code::NoneReady,
        id: "SP201",
        step: Step::Endpoints,
        title: "no pod of the Service is ready",
        fix: "mend what the readiness probe asks for, or the probe",
        page: include_str!("../../../../docs/causes/SP201.md"),
    },
    Cause {
        code: Code::PodsPending,
        id: "SP202",
        step: Step::Endpoints,
        title: "no pod of the Service is scheduled or has an address",
        fix: "give the scheduler room, or mend the network of the node",
        page: include_str!("../../../../docs/causes/SP202.md"),
    },
    Cause {
        code: Code::PodsCrash,
        id: "SP203",
        step: Step::Endpoints,
        title: "the pods of the Service do not stay up",
        fix: "see what the container says before it ends",
        page: include_str!("../../../../docs/causes/SP203.md"),
    },
    Cause {
        code: Code::ReadinessGate,
        id: "SP204",
        step: Step::Endpoints,
        title: "a readiness gate is not met",
        fix: "mend the controller that sets the condition",
        page: include_str!("../../../../docs/causes/SP204.md"),
    },
    Cause {
        code: Code::OnlyTerminating,
        id: "SP205",
        step: Step::Endpoints,
        title: "only pods that end are left",
        fix: "more replicas, maxUnavailable: 0, a preStop pause",
        page: include_str!("../../../../docs/causes/SP205.md"),
    },
    Cause {
        code: Code::NoSelectorNoSlices,
        id: "SP206",
        step: Step::Endpoints,
        title: "the Service has no selector, and nobody gave it endpoints",
        fix: "write an EndpointSlice with the label kubernetes.io/service-name, or give the Service a selector",
        page: include_str!("../../../../docs/causes/SP206.md"),
    },
    Cause {
        code: Code::SliceOfAnother,
        id: "SP207",
        step: Step::Endpoints,
        title: "a slice names a Service that is not there",
        fix: "mend the slice's label kubernetes.io/service-name",
        page: include_str!("../../../../docs/causes/SP207.md"),
    },
    Cause {
        code: Code::PortNames,
        id: "SP208",
        step: Step::Endpoints,
        title: "the slice's port has another name than the Service's",
        fix: "give both the same name",
        page: include_str!("../../../../docs/causes/SP208.md"),
    },
    Cause {
        code: Code::SliceNotReady,
        id: "SP209",
        step: Step::Endpoints,
        title: "a slice that was written by hand says that it is not ready",
        fix: "set conditions.ready to true",
        page: include_str!("../../../../docs/causes/SP209.md"),
    },
    Cause {
        code: Code::SliceFamily,
        id: "SP210",
        step: Step::Endpoints,
        title: "the slices are of another family than the Service",
        fix: "a slice per family, with the right addressType",
        page: include_str!("../../../../docs/causes/SP210.md"),
    },
    Cause {
        code: Code::EndpointOfNobody,
        id: "SP211",
        step: Step::Endpoints,
        title: "an endpoint has an address that no pod has",
        fix: "delete the stale slice or Endpoints object, or mend who wrote it",
        page: include_str!("../../../../docs/causes/SP211.md"),
    },
    Cause {
        code: Code::SlicesBehind,
        id: "SP212",
        step: Step::Endpoints,
        title: "the slices lag behind the pods",
        fix: "see whether the EndpointSlice controller runs (kube-controller-manager)",
        page: include_str!("../../../../docs/causes/SP212.md"),
    },
    Cause {
        code: Code::NamedPort,
        id: "SP213",
        step: Step::Endpoints,
        title: "no pod has a port of the name that targetPort gives",
        fix: "name the containerPort, or write the number",
        page: include_str!("../../../../docs/causes/SP213.md"),
    },
    Cause {
        code: Code::UnreadyServed,
        id: "SP214",
        step: Step::Endpoints,
        title: "pods that are not ready get traffic",
        fix: "unset publishNotReadyAddresses if clients, not peers, use the Service",
        page: include_str!("../../../../docs/causes/SP214.md"),
    },
    Cause {
        code: Code::NothingListens,
        id: "SP215",
        step: Step::Endpoints,
        title: "nothing listens on the target port in the pod",
        fix: "set targetPort to the port that the program listens on",
        page: include_str!("../../../../docs/causes/SP215.md"),
    },
    Cause {
        code: Code::ListensOnLoopback,
        id: "SP216",
        step: Step::Endpoints,
        title: "the program listens on the pod's loopback only",
        fix: "let it listen on 0.0.0.0 or ::",
        page: include_str!("../../../../docs/causes/SP216.md"),
    },
    Cause {
        code: Code::OtherFamilyOnly,
        id: "SP217",
        step: Step::Endpoints,
        title: "the program listens in the other family only",
        fix: "let it listen on ::, which takes both",
        page: include_str!("../../../../docs/causes/SP217.md"),
    },
    Cause {
        code: Code::NodeLost,
        id: "SP218",
        step: Step::Endpoints,
        title: "endpoints are on a node that is not ready",
        fix: "bring the node back, or delete it so that its pods are replaced",
        page: include_str!("../../../../docs/causes/SP218.md"),
    },
    Cause {
        code: Code::SameAddress,
        id: "SP219",
        step: Step::Endpoints,
        title: "two pods have the same address",
        fix: "delete one of the pods; look at the network plugin's ranges",
        page: include_str!("../../../../docs/causes/SP219.md"),
    },
    Cause {
        code: Code::ListensOtherProtocol,
        id: "SP220",
        step: Step::Endpoints,
        title: "the program listens with the other protocol",
        fix: "mend the Service port's protocol",
        page: include_str!("../../../../docs/causes/SP220.md"),
    },
    Cause {
        code: Code::SelectorMatchesNothing,
        id: "SP301",
        step: Step::Selector,
        title: "the selector finds no pod",
        fix: "mend the selector or the labels of the pod template",
        page: include_str!("../../../../docs/causes/SP301.md"),
    },
    Cause {
        code: Code::PodsElsewhere,
        id: "SP302",
        step: Step::Selector,
        title: "the selector finds pods in another namespace only",
        fix: "put the Service where the pods are",
        page: include_str!("../../../../docs/causes/SP302.md"),
    },
    Cause {
        code: Code::SelectorTooBroad,
        id: "SP303",
        step: Step::Selector,
        title: "the selector finds pods of different programs",
        fix: "add a label that only the right pods have",
        page: include_str!("../../../../docs/causes/SP303.md"),
    },
    Cause {
        code: Code::OutsideServiceCidr,
        id: "SP304",
        step: Step::Selector,
        title: "the cluster address lies in no ServiceCIDR",
        fix: "delete the Service and create it anew",
        page: include_str!("../../../../docs/causes/SP304.md"),
    },
    Cause {
        code: Code::CidrOverlap,
        id: "SP305",
        step: Step::Selector,
        title: "the Service range overlaps pods or nodes",
        fix: "renumber: a ServiceCIDR that overlaps nothing",
        page: include_str!("../../../../docs/causes/SP305.md"),
    },
    Cause {
        code: Code::FrontendTaken,
        id: "SP306",
        step: Step::Selector,
        title: "two Services claim the same address and port",
        fix: "change one of the two",
        page: include_str!("../../../../docs/causes/SP306.md"),
    },
    Cause {
        code: Code::ForeignProxy,
        id: "SP307",
        step: Step::Selector,
        title: "the Service is meant for another proxy",
        fix: "remove the label, or run the proxy that it names",
        page: include_str!("../../../../docs/causes/SP307.md"),
    },
    Cause {
        code: Code::Malformed,
        id: "SP308",
        step: Step::Selector,
        title: "a part of the Service or its slices is malformed",
        fix: "mend the field",
        page: include_str!("../../../../docs/causes/SP308.md"),
    },
    Cause {
        code: Code::NoClusterIp,
        id: "SP309",
        step: Step::Selector,
        title: "the Service has no cluster address",
        fix: "see why the API gave none; delete the Service and create it anew",
        page: include_str!("../../../../docs/causes/SP309.md"),
    },
    Cause {
        code: Code::InternalLocal,
        id: "SP310",
        step: Step::Selector,
        title: "internalTrafficPolicy is Local, and the client's node has no endpoint",
        fix: "internalTrafficPolicy: Cluster, or a pod on every node",
        page: include_str!("../../../../docs/causes/SP310.md"),
    },
    Cause {
        code: Code::HintsStarve,
        id: "SP311",
        step: Step::Selector,
        title: "topology hints lead all traffic of a zone to few pods",
        fix: "more pods in the zone, or no trafficDistribution",
        page: include_str!("../../../../docs/causes/SP311.md"),
    },
    Cause {
        code: Code::DaemonDown,
        id: "SP401",
        step: Step::Rules,
        title: "the node daemon does not answer",
        fix: "start it again and see why it ended",
        page: include_str!("../../../../docs/causes/SP401.md"),
    },
    Cause {
        code: Code::DaemonBehind,
        id: "SP402",
        step: Step::Rules,
        title: "the node daemon cannot bring its rules into the kernel",
        fix: "see its log: which call the kernel refuses",
        page: include_str!("../../../../docs/causes/SP402.md"),
    },
    Cause {
        code: Code::KernelDiffers,
        id: "SP403",
        step: Step::Rules,
        title: "the kernel does not hold the rules that it should",
        fix: "find who else writes there (another proxy, a firewall's reload); the daemon mends it at its next comparison",
        page: include_str!("../../../../docs/causes/SP403.md"),
    },
    Cause {
        code: Code::PlanBehind,
        id: "SP404",
        step: Step::Rules,
        title: "the node daemon serves an older state of the objects",
        fix: "see whether the daemon reaches the API; restart it",
        page: include_str!("../../../../docs/causes/SP404.md"),
    },
    Cause {
        code: Code::Leftovers,
        id: "SP405",
        step: Step::Rules,
        title: "rules of another mode are still in the kernel",
        fix: "signpost node --cleanup in the old mode, or a reboot of the node",
        page: include_str!("../../../../docs/causes/SP405.md"),
    },
    Cause {
        code: Code::BothIptables,
        id: "SP406",
        step: Step::Rules,
        title: "both sorts of iptables hold rules of a Service proxy",
        fix: "flush one of the two",
        page: include_str!("../../../../docs/causes/SP406.md"),
    },
    Cause {
        code: Code::AnotherProxy,
        id: "SP407",
        step: Step::Rules,
        title: "another Service proxy is in charge",
        fix: "nothing, if that is meant; what that proxy does is not fully seen from here",
        page: include_str!("../../../../docs/causes/SP407.md"),
    },
    Cause {
        code: Code::MasqueradeMissing,
        id: "SP408",
        step: Step::Rules,
        title: "the answer does not come back by the node that rewrote the request",
        fix: "set --cluster-cidr (clusterCIDR) to the ranges of pods",
        page: include_str!("../../../../docs/causes/SP408.md"),
    },
    Cause {
        code: Code::ProgramWrong,
        id: "SP409",
        step: Step::Rules,
        title: "the rules say otherwise than the plan",
        fix: "report it, with `signpost doctor --save FILE`",
        page: include_str!("../../../../docs/causes/SP409.md"),
    },
    Cause {
        code: Code::NoFrontendOnNode,
        id: "SP410",
        step: Step::Rules,
        title: "the node has no rule for the Service",
        fix: "restart the node daemon; see whether its API answers",
        page: include_str!("../../../../docs/causes/SP410.md"),
    },
    Cause {
        code: Code::ConntrackFull,
        id: "SP501",
        step: Step::Conntrack,
        title: "connection tracking is full",
        fix: "raise net.netfilter.nf_conntrack_max; see which Service holds the entries",
        page: include_str!("../../../../docs/causes/SP501.md"),
    },
    Cause {
        code: Code::ConntrackNearlyFull,
        id: "SP502",
        step: Step::Conntrack,
        title: "connection tracking is nearly full",
        fix: "raise net.netfilter.nf_conntrack_max before it is full",
        page: include_str!("../../../../docs/causes/SP502.md"),
    },
    Cause {
        code: Code::StaleUdpFlow,
        id: "SP503",
        step: Step::Conntrack,
        title: "a UDP flow leads to a backend that is gone",
        fix: "delete the entry; signpost node does it by itself when it runs",
        page: include_str!("../../../../docs/causes/SP503.md"),
    },
    Cause {
        code: Code::InsertFailed,
        id: "SP504",
        step: Step::Conntrack,
        title: "flows clash when they are entered into connection tracking",
        fix: "more source addresses, or a node-local DNS cache",
        page: include_str!("../../../../docs/causes/SP504.md"),
    },
    Cause {
        code: Code::NotForwarding,
        id: "SP601",
        step: Step::Way,
        title: "the node does not forward packets",
        fix: "sysctl -w net.ipv4.ip_forward=1",
        page: include_str!("../../../../docs/causes/SP601.md"),
    },
    Cause {
        code: Code::NotForwardingIpv6,
        id: "SP602",
        step: Step::Way,
        title: "the node does not forward IPv6 packets",
        fix: "sysctl -w net.ipv6.conf.all.forwarding=1",
        page: include_str!("../../../../docs/causes/SP602.md"),
    },
    Cause {
        code: Code::Firewall,
        id: "SP603",
        step: Step::Way,
        title: "a firewall on the node stops the packet",
        fix: "let the ranges of pods through",
        page: include_str!("../../../../docs/causes/SP603.md"),
    },
    Cause {
        code: Code::NoRoute,
        id: "SP604",
        step: Step::Way,
        title: "the node has no route to the backend",
        fix: "bring the network plugin's routes back",
        page: include_str!("../../../../docs/causes/SP604.md"),
    },
    Cause {
        code: Code::LinkDown,
        id: "SP605",
        step: Step::Way,
        title: "the interface towards the backend is down",
        fix: "bring the link up",
        page: include_str!("../../../../docs/causes/SP605.md"),
    },
    Cause {
        code: Code::NeighbourFailed,
        id: "SP606",
        step: Step::Way,
        title: "the next hop does not answer",
        fix: "see whether the other node is up and the network between them",
        page: include_str!("../../../../docs/causes/SP606.md"),
    },
    Cause {
        code: Code::StrictReversePath,
        id: "SP607",
        step: Step::Way,
        title: "the kernel drops packets whose source is not reached by the interface that they come in at",
        fix: "sysctl rp_filter=2 on the interface",
        page: include_str!("../../../../docs/causes/SP607.md"),
    },
    Cause {
        code: Code::PolicyIngress,
        id: "SP608",
        step: Step::Way,
        title: "a NetworkPolicy denies the client",
        fix: "allow the client in a policy",
        page: include_str!("../../../../docs/causes/SP608.md"),
    },
    Cause {
        code: Code::PolicyEgress,
        id: "SP609",
        step: Step::Way,
        title: "a NetworkPolicy denies the way out",
        fix: "allow the backend in a policy",
        page: include_str!("../../../../docs/causes/SP609.md"),
    },
    Cause {
        code: Code::PolicyServicePort,
        id: "SP610",
        step: Step::Way,
        title: "a NetworkPolicy names the Service's port, not the pod's",
        fix: "write the targetPort into the policy",
        page: include_str!("../../../../docs/causes/SP610.md"),
    },
    Cause {
        code: Code::MtuDiffers,
        id: "SP611",
        step: Step::Way,
        title: "the largest packet differs along the way",
        fix: "the same MTU everywhere",
        page: include_str!("../../../../docs/causes/SP611.md"),
    },
    Cause {
        code: Code::HairpinOff,
        id: "SP612",
        step: Step::Way,
        title: "the bridge does not send packets back to the pod that they came from",
        fix: "hairpin mode on the port, or promiscuous mode on the bridge",
        page: include_str!("../../../../docs/causes/SP612.md"),
    },
    Cause {
        code: Code::LoadBalancerPending,
        id: "SP701",
        step: Step::Outside,
        title: "nobody gives the Service a load-balancer address",
        fix: "run a controller that gives addresses, or set loadBalancerClass to one that does",
        page: include_str!("../../../../docs/causes/SP701.md"),
    },
    Cause {
        code: Code::ExternalLocal,
        id: "SP702",
        step: Step::Outside,
        title: "externalTrafficPolicy is Local, and the node that the packet enters at has no endpoint",
        fix: "externalTrafficPolicy: Cluster, or a pod on every node that takes traffic in",
        page: include_str!("../../../../docs/causes/SP702.md"),
    },
    Cause {
        code: Code::SourceRanges,
        id: "SP703",
        step: Step::Outside,
        title: "the client is not in loadBalancerSourceRanges",
        fix: "add its range, or take all ranges away",
        page: include_str!("../../../../docs/causes/SP703.md"),
    },
    Cause {
        code: Code::ExcludedNode,
        id: "SP704",
        step: Step::Outside,
        title: "a node with endpoints is kept out of load balancing",
        fix: "remove the label",
        page: include_str!("../../../../docs/causes/SP704.md"),
    },
    Cause {
        code: Code::NoNodePorts,
        id: "SP705",
        step: Step::Outside,
        title: "the Service has no node ports",
        fix: "set allocateLoadBalancerNodePorts to true",
        page: include_str!("../../../../docs/causes/SP705.md"),
    },
    Cause {
        code: Code::NodePortAddress,
        id: "SP706",
        step: Step::Outside,
        title: "node ports do not answer at this address of the node",
        fix: "use the node's primary address, or widen nodePortAddresses",
        page: include_str!("../../../../docs/causes/SP706.md"),
    },
    Cause {
        code: Code::NodePortListener,
        id: "SP707",
        step: Step::Outside,
        title: "a process of the node listens on the node port",
        fix: "another node port, or another port for the process",
        page: include_str!("../../../../docs/causes/SP707.md"),
    },
    Cause {
        code: Code::NodePortEphemeral,
        id: "SP708",
        step: Step::Outside,
        title: "the node port lies among the ports that the node gives to its own connections",
        fix: "sysctl net.ipv4.ip_local_reserved_ports=30000-32767",
        page: include_str!("../../../../docs/causes/SP708.md"),
    },
    Cause {
        code: Code::ExternalIpUnrouted,
        id: "SP709",
        step: Step::Outside,
        title: "nothing leads to the external address",
        fix: "route the address to a node",
        page: include_str!("../../../../docs/causes/SP709.md"),
    },
    Cause {
        code: Code::FamiliesDiffer,
        id: "SP801",
        step: Step::Family,
        title: "Service and client have no family in common",
        fix: "ipFamilyPolicy: PreferDualStack",
        page: include_str!("../../../../docs/causes/SP801.md"),
    },
    Cause {
        code: Code::PodLacksFamily,
        id: "SP802",
        step: Step::Family,
        title: "the pods have no address of a family that the Service has",
        fix: "give pods both families (network plugin), or make the Service single-stack",
        page: include_str!("../../../../docs/causes/SP802.md"),
    },
    Cause {
        code: Code::Unexplained,
        id: "SP901",
        step: Step::Way,
        title: "it fails, and no known cause fits",
        fix: "see the hops; report it with `signpost doctor --save FILE`",
        page: include_str!("../../../../docs/causes/SP901.md"),
    },
];

impl Code {
    /// What is known of it.
    pub fn cause(self) -> &'static Cause {
        &CAUSES[self as usize]
    }

    /// Its name for ever.
    pub fn id(self) -> &'static str {
        self.cause().id
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// A text that names no cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no code of a cause: they are like SP201; docs/causes/README.md lists them")]
pub struct NoSuchCode(pub String);

impl FromStr for Code {
    type Err = NoSuchCode;

    fn from_str(text: &str) -> Result<Code, NoSuchCode> {
        let known = CAUSES.iter().find(|cause| cause.id.eq_ignore_ascii_case(text));
        known.map(|cause| cause.code).ok_or_else(|| NoSuchCode(text.to_owned()))
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_its_own_entry_and_page() {
        for (number, cause) in CAUSES.iter().enumerate() {
            assert_eq!(cause.code as usize, number, "{}: the table is in another order", cause.id);
            assert_eq!(cause.code.cause().id, cause.id);
            assert_eq!(cause.id.parse(), Ok(cause.code));
            let head = format!("# {}: {}\n", cause.id, cause.title);
            assert!(cause.page.starts_with(&head), "{}: its page begins otherwise", cause.id);
        }
        assert_eq!(CAUSES.iter().map(|cause| cause.id).collect::<BTreeSet<_>>().len(), CAUSES.len());
        assert!("SP999".parse::<Code>().is_err());
    }

    #[test]
    fn the_list_of_causes_names_all() {
        let list = include_str!("../../../../docs/causes/README.md");
        for cause in &CAUSES {
            assert!(list.contains(&format!("[{0}]({0}.md) | {1} |", cause.id, cause.title)), "{}", cause.id);
        }
    }
}
