//! Pure. The scenario file: what it may say, read from YAML text and checked, before anything runs.
//!
//! ```text
//! text ──▶ raw (serde, unknown keys refused) ──▶ Scenario (checked: each step has one verb, its fields fit)
//!      └────────────── FormatError: file, line, column, field ──────────────┘
//! ```
//!
//! Words that a later part of the project will run are read here all the same; `run` refuses them by name.

mod expect;
mod raw;
mod step;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::address::Scheme;

pub use self::expect::{Deviation, Expect, Fails, PeerExpect, Share};
pub use self::step::{
    DeleteStep, DoctorStep, EventStep, ExecExpect, LoadStep, ObjectRef, ObjectStep, PatchStep, PodChange, Probe,
    RouteStep, SaveFrom, Step, StepKind, TraceStep,
};
pub use self::values::{FamilyRun, Listen, Mode, NodeSpec, Router, parse_duration};

/// One scenario file.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Where it was read from.
    pub file: PathBuf,
    /// What it shows.
    pub name: String,
    /// The fact it holds and where that is known from.
    pub why: Option<String>,
    /// The cases of Kubernetes' end-to-end tests that it shows, each as `FILE: TITLE`.
    pub cases: Vec<String>,
    /// The nodes, in the order of their addresses.
    pub nodes: Vec<NodeSpec>,
    /// One run each.
    pub families: Vec<FamilyRun>,
    /// Where it is defined.
    pub modes: Vec<Mode>,
    /// What the router does.
    pub router: Router,
    /// Whether the cluster has its name service: if the file says so, or looks a name up.
    pub dns: bool,
    /// Whether each node has a cache for names.
    pub node_cache: bool,
    /// Configuration of the node daemons, as KubeProxyConfiguration names it.
    pub node: BTreeMap<String, Value>,
    /// Pods in short form.
    pub pods: Vec<ShortPod>,
    /// Objects, created before the first step.
    pub objects: Vec<Value>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A pod that runs the echo server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node it is on; `None`: the scheduler picks one.
    pub node: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Where the echo server listens.
    pub listen: Vec<Listen>,
    /// Whether the pod reports itself ready.
    pub ready: bool,
    /// How long it goes on serving after it was told to end, whole seconds.
    pub grace_s: Option<u64>,
    /// The address it listens on; `None`: all.
    pub bind: Option<std::net::IpAddr>,
    /// Whether it lives in the node's own network.
    pub host_network: bool,
}

/// A scenario file that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {}{problem}", file.display(), field.as_ref().map(|f| format!("{f}: ")).unwrap_or_default())]
pub struct FormatError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// The field, if one is at fault.
    pub field: Option<String>,
    /// What is wrong.
    pub problem: String,
}

/// A problem of one field, before it is known where in the file it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    field: &'static str,
    problem: String,
}

impl Problem {
    fn new(field: &'static str, problem: impl Into<String>) -> Problem {
        Problem { field, problem: problem.into() }
    }
}

/// Reads a scenario from the text of a file.
///
/// # Errors
/// [`FormatError`] with the place of the first fault.
pub fn parse(file: &Path, text: &str) -> Result<Scenario, FormatError> {
    let raw: raw::Scenario = serde_saphyr::from_str(text).map_err(|error| yaml_error(file, text, &error))?;
    let mut steps = Vec::with_capacity(raw.steps.len());
    for step in raw.steps {
        let (line, column) = (step.referenced.line(), step.referenced.column());
        let checked = step::check(step.value, line).map_err(|problem| FormatError {
            file: file.to_owned(),
            line: find_field(text, line, problem.field),
            column,
            field: Some(problem.field.to_owned()),
            problem: problem.problem,
        })?;
        steps.push(checked);
    }
    check_loads(&steps).map_err(|(line, problem)| FormatError {
        file: file.to_owned(),
        line: find_field(text, line, problem.field),
        column: 1,
        field: Some(problem.field.to_owned()),
        problem: problem.problem,
    })?;
    let scenario = Scenario {
        file: file.to_owned(),
        name: raw.name,
        why: raw.why,
        cases: raw.cases,
        nodes: raw.nodes.0,
        families: raw.families,
        modes: raw.modes,
        router: raw.router,
        dns: raw.dns || raw.node_cache || steps.iter().any(looks_up),
        node_cache: raw.node_cache,
        node: raw.node,
        pods: raw.pods.into_iter().map(raw::Pod::into_short_pod).collect(),
        objects: raw.objects,
        steps,
    };
    check_names(&scenario).map_err(|problem| FormatError {
        file: file.to_owned(),
        line: find_field(text, 1, problem.field),
        column: 1,
        field: Some(problem.field.to_owned()),
        problem: problem.problem,
    })?;
    Ok(scenario)
}

/// Whether a step needs a name server.
fn looks_up(step: &Step) -> bool {
    let target = match &step.kind {
        StepKind::Probe { probe, .. } => probe.to.as_ref(),
        StepKind::Load(load) => Some(&load.to),
        _ => None,
    };
    target.is_some_and(|to| matches!(to.scheme, Scheme::Dns(_)))
}

/// Each load is ended once, after its start: what nobody ends, nobody counts the losses of.
fn check_loads(steps: &[Step]) -> Result<(), (u64, Problem)> {
    let mut running = std::collections::BTreeMap::new();
    for step in steps {
        match &step.kind {
            StepKind::Load(load) if running.insert(load.name.as_str(), step.line).is_some() => {
                return Err((step.line, Problem::new("load", format!("a load {} runs already", load.name))));
            }
            StepKind::End { load, .. } if running.remove(load.as_str()).is_none() => {
                return Err((step.line, Problem::new("end", format!("no load {load} runs here"))));
            }
            _ => {}
        }
    }
    match running.into_iter().min_by_key(|(_, line)| *line) {
        Some((name, line)) => Err((line, Problem::new("load", format!("no step ends the load {name}")))),
        None => Ok(()),
    }
}

/// What only the whole file shows: pods on nodes that are not there, names given twice, empty lists.
fn check_names(scenario: &Scenario) -> Result<(), Problem> {
    if scenario.name.trim().is_empty() {
        return Err(Problem::new("name", "must not be empty"));
    }
    if scenario.nodes.is_empty() {
        return Err(Problem::new("nodes", "at least one node is needed"));
    }
    if scenario.families.is_empty() {
        return Err(Problem::new("families", "must not be empty"));
    }
    if scenario.modes.is_empty() {
        return Err(Problem::new("modes", "must not be empty"));
    }
    if scenario.steps.is_empty() {
        return Err(Problem::new("steps", "a scenario without steps shows nothing"));
    }
    let mut seen = std::collections::BTreeSet::new();
    for pod in &scenario.pods {
        if let Some(node) = pod.node.as_ref().filter(|node| scenario.nodes.iter().all(|known| known.name != **node)) {
            return Err(Problem::new("pods", format!("pod {}: there is no node {node}", pod.name)));
        }
        if !seen.insert((&pod.namespace, &pod.name)) {
            return Err(Problem::new("pods", format!("pod {} stands twice", pod.name)));
        }
    }
    Ok(())
}

fn yaml_error(file: &Path, text: &str, error: &serde_saphyr::Error) -> FormatError {
    let bare = error.without_snippet();
    let (line, column) = bare.location().map_or((1, 1), |at| (at.line(), at.column()));
    let mut problem = bare.to_string();
    // The place stands in front already.
    for suffix in [format!(" at line {line}, column {column}"), format!("line {line} column {column}: ")] {
        problem = problem.replace(&suffix, "");
    }
    FormatError { file: file.to_owned(), line, column, field: field_at(text, line, column), problem }
}

/// The key whose value stands at a place, or the key that stands there itself.
fn field_at(text: &str, line: u64, column: u64) -> Option<String> {
    let row = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let at = usize::try_from(column).ok()?.saturating_sub(1);
    let chars: Vec<char> = row.chars().collect();
    let word = |c: &char| c.is_alphanumeric() || *c == '_' || *c == '-';
    // A key that begins at the place.
    let here: String = chars.iter().skip(at).take_while(|c| word(c)).collect();
    if !here.is_empty() && chars.get(at + here.chars().count()) == Some(&':') {
        return Some(here);
    }
    // Else the last key before it.
    let before = chars.get(..at.min(chars.len()))?;
    let colon = before.iter().rposition(|c| *c == ':')?;
    let key: Vec<char> = before[..colon].iter().rev().take_while(|c| word(c)).copied().collect();
    (!key.is_empty()).then(|| key.into_iter().rev().collect())
}

/// The line at or after `from` that first names a field; `from` if none does.
fn find_field(text: &str, from: u64, field: &str) -> u64 {
    let key = format!("{field}:");
    let skip = usize::try_from(from).unwrap_or(usize::MAX).saturating_sub(1);
    let found = text.lines().skip(skip).position(|row| row.contains(&key));
    found.and_then(|offset| u64::try_from(offset).ok()).map_or(from, |offset| from + offset)
}
