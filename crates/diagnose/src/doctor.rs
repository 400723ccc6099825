//! Pure. Why a Service does not work, out of a snapshot.
//!
//! ```text
//! Snapshot ─▶ Ground ─┬─▶ cases: who asks where ─▶ ways (the walk) ─▶ what each way meets ─┐
//!                     └─▶ judges of objects and nodes ─────────────────────────────────────┴─▶ Diagnosis
//! ```
//!
//! The walk decides whether it works; the judges say why not. So nothing is called broken while the walk finds an answer
//! on each of its ways, and nothing healthy whose nodes were not read.

mod case;
pub mod cause;
mod endpoints;
pub mod finding;
mod flows;
mod ground;
mod name;
mod nodes;
mod object;
mod outside;
mod policy;
mod selector;
mod steps;
#[cfg(test)]
mod tests;
pub mod text;
mod way;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use signpost_core::object::{ObjectName, Protocol};

use crate::address::{Destination, PortRef, Scheme, ServiceRef, Source, Target};
use crate::nearest::nearest;
use crate::predict::Indexed;
use crate::snapshot::{API_VERSION, Snapshot};
use crate::trace::Stage;

use cause::{Code, Step};
use finding::{Diagnosis, Finding, Severity, StepSeen, Verdict};
use ground::Ground;
use object::ServiceObject;

/// The kind in its JSON.
pub const KIND: &str = "Diagnosis";

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// One Service, or all of [`Question::namespace`].
    pub service: Option<ObjectName>,
    /// All Services of one namespace; with neither: of all.
    pub namespace: Option<String>,
    /// From one client. Default: from a pod of each node.
    pub from: Option<Source>,
    /// To one destination. Default: to every port of the Service at its addresses.
    pub to: Option<To>,
    /// Steps to look at; empty: all.
    pub only: BTreeSet<Step>,
    /// Steps to leave out.
    pub skip: BTreeSet<Step>,
}

/// Where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// A port of the Service's cluster address, with a protocol if one is asked for.
    Port(PortRef, Option<Protocol>),
    /// Any destination, as a trace takes it.
    Target(Target),
}

/// Why there is no diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DoctorError {
    /// Nothing is in the snapshot to look at.
    #[error("the objects of the cluster could not be read: {0}")]
    NothingRead(String),
    /// The client is not there.
    #[error("there is no {0}, or it has no address")]
    NoSender(String),
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// When the snapshot was taken.
    pub taken_at: String,
    /// Of what.
    pub origin: String,
    /// The worst of all.
    pub verdict: Verdict,
    /// Each Service that was asked for.
    pub services: Vec<Diagnosis>,
    /// What concerns nodes, and no Service alone.
    pub nodes: Option<Diagnosis>,
}

/// Looks.
///
/// # Errors
/// [`DoctorError`]
pub fn diagnose(snapshot: &Snapshot, question: &Question) -> Result<Report, DoctorError> {
    let services_unread = snapshot.unknown.iter().find(|unknown| matches!(&*unknown.what, "services" | "objects"));
    if let Some(unknown) = services_unread {
        return Err(DoctorError::NothingRead(unknown.why.clone()));
    }
    let stages: Vec<Stage<'_>> = snapshot.families().into_iter().map(|family| Stage::of(snapshot, family)).collect();
    if let Some(from) = &question.from
        && stages.iter().all(|stage| stage.view.address_of(from).is_none())
    {
        return Err(DoctorError::NoSender(from.to_string()));
    }
    let indexes: Vec<(&Stage<'_>, Indexed<'_>)> =
        stages.iter().map(|stage| (stage, Indexed::of(&stage.view))).collect();
    let ground = Ground::of(snapshot, &indexes);
    let mut services: Vec<Diagnosis> = match &question.service {
        Some(name) => vec![match ground.service(name) {
            Some(service) => one(&ground, service, name, question),
            None => no_such_service(&ground, name),
        }],
        None => ground
            .services()
            .filter(|(name, _)| question.namespace.as_ref().is_none_or(|wanted| **wanted == *name.namespace))
            .map(|(name, service)| one(&ground, service, name, question))
            .collect(),
    };
    let mut nodes = question.service.is_none().then(|| nodes::diagnosis(&ground));
    for diagnosis in services.iter_mut().chain(&mut nodes) {
        restrict(diagnosis, question);
    }
    services.sort_by(|a, b| a.verdict.cmp(&b.verdict).then_with(|| a.subject.cmp(&b.subject)));
    let verdict = services.iter().chain(&nodes).map(|diagnosis| diagnosis.verdict).min().unwrap_or(Verdict::Healthy);
    Ok(Report {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        taken_at: snapshot.taken_at.clone(),
        origin: snapshot.origin.clone(),
        verdict,
        services,
        nodes,
    })
}

/// What a node finds in itself, without any object of the API; see [`crate::collect::glance`].
pub fn of_itself(node: &str, state: &crate::snapshot::NodeState) -> Vec<Finding> {
    nodes::of_itself(node, state)
}

/// Without the steps that are not to be looked at.
fn restrict(diagnosis: &mut Diagnosis, question: &Question) {
    if question.only.is_empty() && question.skip.is_empty() {
        return;
    }
    let wanted =
        |step: Step| (question.only.is_empty() || question.only.contains(&step)) && !question.skip.contains(&step);
    diagnosis.findings.retain(|finding| wanted(finding.code.cause().step));
    diagnosis.steps.retain(|seen| wanted(seen.step));
    let of_nodes = |seen: &StepSeen| matches!(seen.step, Step::Rules | Step::Conntrack | Step::Way);
    diagnosis.conclude(diagnosis.unknown.is_empty() || !diagnosis.steps.iter().any(of_nodes));
}

fn no_such_service(ground: &Ground<'_>, name: &ObjectName) -> Diagnosis {
    let known: BTreeSet<ObjectName> = ground.services().map(|(name, _)| name.clone()).collect();
    let near = nearest(&name.name, Some(&name.namespace), &known);
    let elsewhere: Vec<String> =
        known.iter().filter(|other| other.name == name.name).map(ToString::to_string).collect();
    let mut finding = Finding::new(
        Code::NoSuchService,
        Severity::Broken,
        format!("there is no Service {} in namespace {}", name.name, name.namespace),
    )
    .measured(format!("the API lists {} Services", known.len()));
    if let Some(other) = elsewhere.first() {
        let (namespace, own) = other.split_once('/').unwrap_or(("default", other));
        finding = finding
            .measured(format!("{} is one", elsewhere.join(", ")))
            .fix(format!("from another namespace its name is {own}.{namespace}"));
    } else if !near.is_empty() {
        finding = finding.measured(format!("near to it: {}", near.join(", ")));
    }
    let mut diagnosis = Diagnosis {
        subject: name.to_string(),
        verdict: Verdict::Broken,
        findings: vec![finding.next("kubectl get services -A")],
        steps: Vec::new(),
        ways: (0, 0),
        unknown: Vec::new(),
    };
    diagnosis.settle();
    diagnosis
}

fn one(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName, question: &Question) -> Diagnosis {
    let mut findings = name::judge(ground, service, question);
    let cases = case::cases(ground, service, name, question);
    findings.extend(cases.findings);
    findings.extend(endpoints::judge(ground, service, name, &cases.cases));
    findings.extend(selector::judge(ground, service, name));
    findings.extend(outside::judge(ground, service, name, question));
    let mut passed = BTreeSet::new();
    let (mut all, mut answered) = (0, 0);
    for case in &cases.cases {
        let met = way::judge(ground, name, case);
        all += case.ways.len();
        answered += met.answered;
        passed.extend(met.nodes);
        findings.extend(met.findings);
    }
    findings.extend(nodes::judge(ground, name, &passed));
    findings.extend(policy::judge(ground, &cases.cases));
    findings.retain(|finding| ground.is_founded(finding.code));
    explained(&mut findings);
    let unknown = ground.unknown(&passed);
    let mut diagnosis = Diagnosis {
        subject: name.to_string(),
        verdict: Verdict::Healthy,
        findings,
        steps: Vec::new(),
        ways: (answered, all),
        unknown,
    };
    diagnosis.settle();
    let known = diagnosis.unknown.is_empty() && passed.iter().all(|node| ground.is_read(node));
    diagnosis.conclude(known);
    diagnosis.steps = steps::seen(ground, service, name, &diagnosis, &passed);
    diagnosis
}

/// What nothing explains is told only if nothing else explains it.
fn explained(findings: &mut Vec<Finding>) {
    let other = findings.iter().any(|one| one.severity == Severity::Broken && one.code != Code::Unexplained);
    if other {
        findings.retain(|finding| finding.code != Code::Unexplained);
    }
}

/// A Service's port as the target of a packet.
fn to_port(name: &ObjectName, port: PortRef, protocol: Protocol) -> Target {
    let service = ServiceRef { namespace: name.namespace.to_string(), name: name.name.to_string() };
    let scheme = if protocol == Protocol::Udp { Scheme::Udp } else { Scheme::Tcp };
    Target { scheme, destination: Destination::Cluster(service, port) }
}
