//! Pure. Address families.

use super::{Cause, Code, Step};

/// In the order of their codes.
pub(super) const CAUSES: [Cause; 2] = [
    Cause {
        code: Code::FamiliesDiffer,
        id: "SP801",
        step: Step::Family,
        title: "Service and client have no family in common",
        fix: "ipFamilyPolicy: PreferDualStack",
        page: include_str!("../../../../../docs/causes/SP801.md"),
    },
    Cause {
        code: Code::PodLacksFamily,
        id: "SP802",
        step: Step::Family,
        title: "the pods have no address of a family that the Service has",
        fix: "give pods both families (network plugin), or make the Service single-stack",
        page: include_str!("../../../../../docs/causes/SP802.md"),
    },
];
