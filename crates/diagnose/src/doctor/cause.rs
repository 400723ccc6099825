//! Pure. The causes that are told apart, each with a code that never changes its meaning and a page in `docs/causes/`; a table
//! for each step from a name to an answer.

mod conntrack;
mod endpoints;
mod family;
mod name;
mod outside;
mod rules;
mod selector;
mod way;

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
    SnatPorts,
    LongLivedSkew,
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

/// What nothing else explains.
const REST: [Cause; 1] = [Cause {
    code: Code::Unexplained,
    id: "SP901",
    step: Step::Way,
    title: "it fails, and no known cause fits",
    fix: "see the hops; report it with `signpost doctor --save FILE`",
    page: include_str!("../../../../docs/causes/SP901.md"),
}];

/// The tables, in the order in which one looks.
const TABLES: [&[Cause]; 9] = [
    &name::CAUSES,
    &endpoints::CAUSES,
    &selector::CAUSES,
    &rules::CAUSES,
    &conntrack::CAUSES,
    &way::CAUSES,
    &outside::CAUSES,
    &family::CAUSES,
    &REST,
];

/// All of them, in the order of [`Code`].
pub const CAUSES: [Cause; 81] = joined();

const fn joined() -> [Cause; 81] {
    let mut all = [REST[0]; 81];
    let (mut next, mut table) = (0, 0);
    while table < TABLES.len() {
        let mut at = 0;
        while at < TABLES[table].len() {
            all[next] = TABLES[table][at];
            next += 1;
            at += 1;
        }
        table += 1;
    }
    assert!(next == all.len(), "the number of causes is another");
    all
}

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
