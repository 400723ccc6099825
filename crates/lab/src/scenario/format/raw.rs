//! Pure. The file as it is written, field by field, before the fields of a step are checked against its verb.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::ShortPod;
use super::expect::{Deviation, Fails};
use super::step::SaveFrom;
use super::values::{FamilyRun, Listen, Mode, Nodes, Router, Span};

fn both_families() -> Vec<FamilyRun> {
    vec![FamilyRun::Ipv4, FamilyRun::Ipv6]
}

fn all_modes() -> Vec<Mode> {
    Mode::ALL.to_vec()
}

fn one_node() -> Nodes {
    Nodes::numbered(1)
}

fn yes() -> bool {
    true
}

fn default_namespace() -> String {
    "default".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Scenario {
    pub name: String,
    pub why: Option<String>,
    #[serde(default)]
    pub cases: Vec<String>,
    #[serde(default = "one_node")]
    pub nodes: Nodes,
    #[serde(default = "both_families")]
    pub families: Vec<FamilyRun>,
    #[serde(default = "all_modes")]
    pub modes: Vec<Mode>,
    #[serde(default)]
    pub router: Router,
    #[serde(default)]
    pub dns: bool,
    #[serde(default)]
    pub node_cache: bool,
    #[serde(default)]
    pub node: BTreeMap<String, Value>,
    #[serde(default)]
    pub pods: Vec<Pod>,
    #[serde(default)]
    pub objects: Vec<Value>,
    pub steps: Vec<Spanned<Step>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Pod {
    name: String,
    #[serde(default = "default_namespace")]
    namespace: String,
    node: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    listen: Vec<Listen>,
    #[serde(default = "yes")]
    ready: bool,
    grace: Option<Span>,
    bind: Option<IpAddr>,
    #[serde(default)]
    host_network: bool,
}

impl Pod {
    pub(super) fn into_short_pod(self) -> ShortPod {
        ShortPod {
            namespace: self.namespace,
            name: self.name,
            node: self.node,
            labels: self.labels,
            listen: self.listen,
            ready: self.ready,
            grace_s: self.grace.map(|grace| grace.0.as_secs()),
            bind: self.bind,
            host_network: self.host_network,
        }
    }
}

/// Every verb that a step may have; exactly one must be there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub probe: Option<Probe>,
    pub expect: Option<Expect>,
    pub apply: Option<Vec<Value>>,
    pub patch: Option<Patch>,
    pub delete: Option<Delete>,
    pub set: Option<Set>,
    pub save: Option<BTreeMap<String, SaveFrom>>,
    pub route: Option<Route>,
    pub restart: Option<String>,
    pub kill: Option<String>,
    pub start: Option<String>,
    pub stop: Option<String>,
    pub upgrade: Option<String>,
    pub mode: Option<ModeChange>,
    pub cut: Option<Link>,
    pub mend: Option<Link>,
    pub pause: Option<Span>,
    pub load: Option<Load>,
    pub end: Option<End>,
    pub exec: Option<Exec>,
    pub doctor: Option<Doctor>,
    pub trace: Option<Trace>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Probe {
    pub from: Option<String>,
    pub to: Option<String>,
    pub family: Option<FamilyRun>,
    pub tries: Option<u32>,
    pub every: Option<Span>,
    pub keep: Option<String>,
    pub on: Option<String>,
    pub source_port: Option<u16>,
    pub size: Option<usize>,
    pub timeout: Option<Span>,
    #[serde(default = "yes")]
    pub wait: bool,
}

/// The expectations of all verbs; which of them may stand is the verb's business.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub reach: Option<Vec<String>>,
    pub only: Option<Vec<String>>,
    pub share: Option<BTreeMap<String, f64>>,
    pub sticky: Option<bool>,
    pub source: Option<String>,
    pub fails: Option<Fails>,
    pub within: Option<Span>,
    pub answers: Option<Vec<String>>,
    pub rcode: Option<String>,
    pub status: Option<u16>,
    pub header: Option<BTreeMap<String, String>>,
    pub body: Option<String>,
    #[serde(default)]
    pub mode: BTreeMap<Mode, Deviation>,
    #[serde(default)]
    pub family: BTreeMap<FamilyRun, Deviation>,
    pub refused: Option<String>,
    pub object: Option<ObjectRef>,
    pub path: Option<String>,
    pub equals: Option<Value>,
    pub matches: Option<String>,
    pub event: Option<Event>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ObjectRef {
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
    pub api_version: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Event {
    pub on: String,
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Patch {
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
    pub api_version: Option<String>,
    pub subresource: Option<String>,
    pub merge: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Delete {
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
    pub api_version: Option<String>,
    pub grace: Option<Span>,
    #[serde(default = "yes")]
    pub wait: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    pub pod: String,
    pub ready: Option<bool>,
    pub listening: Option<bool>,
    pub labels: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModeChange {
    pub node: String,
    pub to: Mode,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub link: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub to: String,
    pub via: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    pub name: String,
    pub from: String,
    pub to: String,
    pub rate: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub load: String,
    pub expect: EndExpect,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndExpect {
    pub lost: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exec {
    pub on: String,
    pub run: Vec<String>,
    pub wait: Option<bool>,
    #[serde(default)]
    pub expect: ExecExpect,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecExpect {
    pub status: Option<i32>,
    pub stdout: Option<String>,
    pub within: Option<Span>,
}

/// `doctor`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Doctor {
    pub service: Option<String>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub wait: Option<bool>,
    pub within: Option<Span>,
    pub expect: DoctorExpect,
}

/// What it must say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DoctorExpect {
    pub code: Option<String>,
    #[serde(default)]
    pub codes: Vec<String>,
    pub verdict: Option<String>,
}

/// `trace`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trace {
    pub from: String,
    pub to: String,
    pub expect: TraceExpect,
}

/// What it must show.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TraceExpect {
    pub vanishes: Option<String>,
    #[serde(default)]
    pub request: Vec<String>,
    #[serde(default)]
    pub answer: Vec<String>,
    pub agrees: Option<bool>,
}
