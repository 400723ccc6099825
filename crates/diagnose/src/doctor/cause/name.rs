//! Pure. The name of a Service, and what the client dials.

use super::{Cause, Code, Step};

/// In the order of their codes.
pub(super) const CAUSES: [Cause; 10] = [
    Cause {
        code: Code::NoSuchService,
        id: "SP101",
        step: Step::Name,
        title: "there is no such Service",
        fix: "use SERVICE.NAMESPACE, or create the Service",
        page: include_str!("../../../../../docs/causes/SP101.md"),
    },
    Cause {
        code: Code::UndeclaredPort,
        id: "SP102",
        step: Step::Name,
        title: "the Service has no such port",
        fix: "dial the Service's port, not the pod's; or declare the port",
        page: include_str!("../../../../../docs/causes/SP102.md"),
    },
    Cause {
        code: Code::OtherProtocol,
        id: "SP103",
        step: Step::Name,
        title: "the Service has the port, but for another protocol",
        fix: "declare the port for both protocols; each needs an entry of its own",
        page: include_str!("../../../../../docs/causes/SP103.md"),
    },
    Cause {
        code: Code::NoDns,
        id: "SP104",
        step: Step::Name,
        title: "cluster DNS has no endpoint",
        fix: "bring CoreDNS back",
        page: include_str!("../../../../../docs/causes/SP104.md"),
    },
    Cause {
        code: Code::NotClusterDns,
        id: "SP105",
        step: Step::Name,
        title: "the client does not ask cluster DNS",
        fix: "dnsPolicy: ClusterFirst, in the node's network ClusterFirstWithHostNet",
        page: include_str!("../../../../../docs/causes/SP105.md"),
    },
    Cause {
        code: Code::HeadlessNoneReady,
        id: "SP106",
        step: Step::Name,
        title: "a headless Service has no ready endpoint",
        fix: "mend readiness, or publishNotReadyAddresses if peers must find each other before",
        page: include_str!("../../../../../docs/causes/SP106.md"),
    },
    Cause {
        code: Code::HeadlessPort,
        id: "SP107",
        step: Step::Name,
        title: "a headless Service maps no ports",
        fix: "dial the targetPort",
        page: include_str!("../../../../../docs/causes/SP107.md"),
    },
    Cause {
        code: Code::ExternalNameAddress,
        id: "SP108",
        step: Step::Name,
        title: "an ExternalName is an address",
        fix: "a Service without selector and an EndpointSlice with that address",
        page: include_str!("../../../../../docs/causes/SP108.md"),
    },
    Cause {
        code: Code::AddressOfNobody,
        id: "SP109",
        step: Step::Name,
        title: "the address belongs to no Service",
        fix: "restart the client, or let it resolve the name again",
        page: include_str!("../../../../../docs/causes/SP109.md"),
    },
    Cause {
        code: Code::ExternalNameNoRules,
        id: "SP110",
        step: Step::Name,
        title: "an ExternalName Service has no address and no ports",
        fix: "dial the other name and its own port",
        page: include_str!("../../../../../docs/causes/SP110.md"),
    },
];
