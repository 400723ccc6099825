//! Pure. A step: exactly one verb, with the fields and expectations that fit it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use signpost_diagnose::doctor::cause::Code;
use signpost_diagnose::doctor::finding::Verdict;

use super::expect::{Expect, pattern};
use super::values::{FamilyRun, Mode};
use super::{Problem, raw};
use crate::scenario::address::{PodName, Source, Target};

/// One step and where it stands.
#[derive(Debug, Clone)]
pub struct Step {
    /// Line in the file, from 1.
    pub line: u64,
    /// What is done.
    pub kind: StepKind,
}

/// What a step does.
#[derive(Debug, Clone)]
pub enum StepKind {
    /// Sends packets and compares what comes.
    Probe {
        /// What is sent.
        probe: Box<Probe>,
        /// What must come.
        expect: Box<Expect>,
    },
    /// Creates or changes objects.
    Apply {
        /// The objects.
        objects: Vec<Value>,
        /// The API must refuse them with a message like this.
        refused: Option<String>,
    },
    /// Merge patch of one object.
    Patch(PatchStep),
    /// Deletes an object.
    Delete(DeleteStep),
    /// Changes a pod without the API's help: its readiness, its listeners, or its labels.
    Set {
        /// The pod.
        pod: String,
        /// The changes.
        change: PodChange,
    },
    /// Remembers addresses, or words, under names.
    Save(BTreeMap<String, SaveFrom>),
    /// The router sends an address to a node.
    Route(RouteStep),
    /// A field of an object must have a value.
    ExpectObject(ObjectStep),
    /// An event must be there.
    ExpectEvent(EventStep),
    /// Ends a node's daemon and starts it again.
    Restart(String),
    /// Ends it by SIGKILL; it stays down.
    Kill(String),
    /// Starts it.
    Start(String),
    /// Ends it by SIGTERM; it stays down.
    Stop(String),
    /// Puts a new version in its place.
    Upgrade(String),
    /// Starts it again in another mode.
    Mode {
        /// The node.
        node: String,
        /// The mode.
        to: Mode,
    },
    /// Cuts a node off.
    Cut(String),
    /// Joins it again.
    Mend(String),
    /// Lets time pass.
    Pause(Duration),
    /// Traffic in the background.
    Load(LoadStep),
    /// Ends it and counts what was lost.
    End {
        /// Name of the load.
        load: String,
        /// So many may be lost.
        lost: u64,
    },
    /// Runs a program.
    Exec {
        /// On what: a place like a probe's `from`; `None`: the router.
        on: Option<Source>,
        /// Program and arguments.
        run: Vec<String>,
        /// Whether every living daemon is waited for first.
        wait: bool,
        /// What must come of it.
        expect: ExecExpect,
    },
    /// Asks the doctor.
    Doctor(DoctorStep),
    /// Computes and measures the way of a packet.
    Trace(TraceStep),
}

/// A probe as the file says it.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The sender; `None` with `on`.
    pub from: Option<Source>,
    /// The destination; `None` with `on`.
    pub to: Option<Target>,
    /// Which family, in a dual-stack lab.
    pub family: Option<FamilyRun>,
    /// So many tries, no more and no less.
    pub tries: Option<u32>,
    /// Time between two tries.
    pub every: Option<Duration>,
    /// Keep the connection under this name.
    pub keep: Option<String>,
    /// Send on a kept one.
    pub on: Option<String>,
    /// The sender's port.
    pub source_port: Option<u16>,
    /// Payload bytes.
    pub size: Option<usize>,
    /// How long to wait for an answer.
    pub timeout: Duration,
    /// Wait for the daemons first.
    pub wait: bool,
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: String,
    /// Its group and version, where the kind alone does not tell.
    pub api_version: Option<String>,
    /// Its namespace; `None`: `default`, or none.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// `patch`.
#[derive(Debug, Clone)]
pub struct PatchStep {
    /// The object.
    pub object: ObjectRef,
    /// `status`, mostly.
    pub subresource: Option<String>,
    /// The merge patch.
    pub merge: Value,
}

/// `delete`.
#[derive(Debug, Clone)]
pub struct DeleteStep {
    /// The object.
    pub object: ObjectRef,
    /// Grace period in whole seconds.
    pub grace_s: Option<u32>,
    /// Wait until it is gone.
    pub wait: bool,
}

/// `set`: what changes in a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodChange {
    /// Reports itself ready, or not.
    pub ready: Option<bool>,
    /// Its echo server listens, or not.
    pub listening: Option<bool>,
    /// Labels set, or removed (`null`).
    pub labels: BTreeMap<String, Option<String>>,
}

/// `expect` on an object.
#[derive(Debug, Clone)]
pub struct ObjectStep {
    /// The object.
    pub object: ObjectRef,
    /// Path of the field.
    pub path: String,
    /// It equals this.
    pub equals: Option<Value>,
    /// It matches this regular expression.
    pub matches: Option<String>,
    /// At the latest then.
    pub within: Duration,
}

/// `expect` on an event.
#[derive(Debug, Clone)]
pub struct EventStep {
    /// Kind of the object it is about.
    pub kind: String,
    /// Name of the object it is about.
    pub name: String,
    /// Its reason.
    pub reason: String,
    /// At the latest then.
    pub within: Duration,
}

/// What `save` remembers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum SaveFrom {
    /// The address of a destination, as a probe's `to` words it.
    Place(String),
    /// A word for each family: an address of the file's own choice, a range.
    Words(BTreeMap<FamilyRun, String>),
}

/// `route`: what an announcer of the address would have brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteStep {
    /// A saved address (`$name`) or a literal one.
    pub to: String,
    /// The node; `None`: the router does not know the address any more.
    pub via: Option<String>,
}

/// `load`.
#[derive(Debug, Clone)]
pub struct LoadStep {
    /// Its name.
    pub name: String,
    /// The sender.
    pub from: Source,
    /// The destination.
    pub to: Target,
    /// Requests each second.
    pub rate_per_s: u32,
}

/// `doctor`: what it must say of a Service, or of the nodes.
#[derive(Debug, Clone)]
pub struct DoctorStep {
    /// Namespace and name of the Service; `None`: of the nodes as such.
    pub service: Option<PodName>,
    /// From one client; `None`: from a pod of each node.
    pub from: Option<Source>,
    /// To one destination; `None`: to every port of the Service.
    pub to: Option<Target>,
    /// The first cause.
    pub first: Option<Code>,
    /// Causes that must be among those that are told.
    pub codes: Vec<Code>,
    /// The verdict.
    pub verdict: Option<Verdict>,
    /// Whether every living daemon is waited for first.
    pub wait: bool,
    /// At the latest then.
    pub within: Duration,
}

/// `trace`: the way of a packet, computed and measured.
#[derive(Debug, Clone)]
pub struct TraceStep {
    /// The sender.
    pub from: Source,
    /// The destination.
    pub to: Target,
    /// Where the address that was asked for vanishes: node and place.
    pub vanishes: Option<String>,
    /// The hops of the request: `NODE: PLACE`, or the place alone if it is on no node; empty: not looked at.
    pub request: Vec<String>,
    /// Those of the answer.
    pub answer: Vec<String>,
    /// Whether the measured way must agree with the computed one, or must not.
    pub agrees: bool,
}

/// What must come of a program.
#[derive(Debug, Clone)]
pub struct ExecExpect {
    /// Its exit status.
    pub status: i32,
    /// Its output matches this.
    pub stdout: Option<String>,
    /// It is run again until then.
    pub within: Option<Duration>,
}

/// How long something may take that has no `within`.
const DEFAULT_WITHIN: Duration = Duration::from_secs(5);
/// How long a probe waits for an answer, if it does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// Turns the fields of a step into a step.
pub(super) fn check(mut raw: raw::Step, line: u64) -> Result<Step, Problem> {
    let verbs = verbs(&raw);
    match verbs.as_slice() {
        [] if raw.expect.is_none() => return Err(Problem::new("steps", "this step does nothing")),
        [] | [_] => {}
        [first, second, ..] => {
            return Err(Problem::new(second, format!("a step has one verb, and this one has {first} already")));
        }
    }
    let expect = raw.expect.take();
    if let (Some(verb), Some(_)) = (verbs.first(), &expect)
        && !["probe", "apply"].contains(verb)
    {
        return Err(Problem::new("expect", format!("{verb} takes no expect beside it")));
    }
    Ok(Step { line, kind: kind(raw, expect)? })
}

fn verbs(raw: &raw::Step) -> Vec<&'static str> {
    [
        ("probe", raw.probe.is_some()),
        ("apply", raw.apply.is_some()),
        ("patch", raw.patch.is_some()),
        ("delete", raw.delete.is_some()),
        ("set", raw.set.is_some()),
        ("save", raw.save.is_some()),
        ("route", raw.route.is_some()),
        ("restart", raw.restart.is_some()),
        ("kill", raw.kill.is_some()),
        ("start", raw.start.is_some()),
        ("stop", raw.stop.is_some()),
        ("upgrade", raw.upgrade.is_some()),
        ("mode", raw.mode.is_some()),
        ("cut", raw.cut.is_some()),
        ("mend", raw.mend.is_some()),
        ("pause", raw.pause.is_some()),
        ("load", raw.load.is_some()),
        ("end", raw.end.is_some()),
        ("exec", raw.exec.is_some()),
        ("doctor", raw.doctor.is_some()),
        ("trace", raw.trace.is_some()),
    ]
    .into_iter()
    .filter_map(|(verb, there)| there.then_some(verb))
    .collect()
}

fn kind(raw: raw::Step, expect: Option<raw::Expect>) -> Result<StepKind, Problem> {
    if let Some(raw) = raw.probe {
        let expect = Box::new(Expect::from_raw(expect.unwrap_or_default())?);
        return Ok(StepKind::Probe { probe: Box::new(probe(raw)?), expect });
    }
    if let Some(objects) = raw.apply {
        let refused =
            expect.map(|expect| expect.refused.ok_or(Problem::new("expect", "apply can only expect refused")));
        let refused = refused.transpose()?.map(|text| pattern("refused", text)).transpose()?;
        return Ok(StepKind::Apply { objects, refused });
    }
    if let Some(expect) = expect {
        return expectation(expect);
    }
    object_verb(raw)
}

fn object_verb(raw: raw::Step) -> Result<StepKind, Problem> {
    if let Some(patch) = raw.patch {
        let object = ObjectRef {
            kind: patch.kind,
            api_version: patch.api_version,
            namespace: patch.namespace,
            name: patch.name,
        };
        return Ok(StepKind::Patch(PatchStep { object, subresource: patch.subresource, merge: patch.merge }));
    }
    if let Some(delete) = raw.delete {
        let object = ObjectRef {
            kind: delete.kind,
            api_version: delete.api_version,
            namespace: delete.namespace,
            name: delete.name,
        };
        let grace_s = delete.grace.map(|grace| u32::try_from(grace.0.as_secs()).unwrap_or(u32::MAX));
        return Ok(StepKind::Delete(DeleteStep { object, grace_s, wait: delete.wait }));
    }
    if let Some(set) = raw.set {
        let change = PodChange { ready: set.ready, listening: set.listening, labels: set.labels.unwrap_or_default() };
        if change == PodChange::default() {
            return Err(Problem::new("set", "says nothing to set: ready, listening or labels"));
        }
        return Ok(StepKind::Set { pod: set.pod, change });
    }
    if let Some(names) = raw.save {
        return Ok(StepKind::Save(names));
    }
    if let Some(route) = raw.route {
        return Ok(StepKind::Route(RouteStep { to: route.to, via: route.via }));
    }
    node_verb(raw)
}

fn node_verb(raw: raw::Step) -> Result<StepKind, Problem> {
    type Verb = fn(String) -> StepKind;
    let named: [(&'static str, Option<String>, Verb); 5] = [
        ("restart", raw.restart, StepKind::Restart),
        ("kill", raw.kill, StepKind::Kill),
        ("start", raw.start, StepKind::Start),
        ("stop", raw.stop, StepKind::Stop),
        ("upgrade", raw.upgrade, StepKind::Upgrade),
    ];
    for (field, value, make) in named {
        if let Some(place) = value {
            let node = place.strip_prefix("node/").ok_or_else(|| Problem::new(field, "write node/NAME"))?;
            return Ok(make(node.to_owned()));
        }
    }
    if let Some(change) = raw.mode {
        return Ok(StepKind::Mode { node: change.node, to: change.to });
    }
    if let Some(cut) = raw.cut {
        return Ok(StepKind::Cut(cut.link));
    }
    if let Some(mend) = raw.mend {
        return Ok(StepKind::Mend(mend.link));
    }
    if let Some(pause) = raw.pause {
        return Ok(StepKind::Pause(pause.0));
    }
    traffic_verb(raw.load, raw.end, raw.exec, raw.doctor, raw.trace)
}

fn traffic_verb(
    load: Option<raw::Load>,
    end: Option<raw::End>,
    exec: Option<raw::Exec>,
    doctor: Option<raw::Doctor>,
    trace: Option<raw::Trace>,
) -> Result<StepKind, Problem> {
    if let Some(load) = load {
        let rate = load.rate.strip_suffix("/s").and_then(|rate| rate.parse().ok());
        let rate_per_s =
            rate.filter(|rate| *rate > 0).ok_or_else(|| Problem::new("rate", "write a rate like 200/s"))?;
        let from = load.from.parse().map_err(|problem: String| Problem::new("from", problem))?;
        let to = load.to.parse().map_err(|problem: String| Problem::new("to", problem))?;
        return Ok(StepKind::Load(LoadStep { name: load.name, from, to, rate_per_s }));
    }
    if let Some(end) = end {
        return Ok(StepKind::End { load: end.load, lost: end.expect.lost });
    }
    if let Some(exec) = exec {
        if exec.run.is_empty() {
            return Err(Problem::new("run", "names no program"));
        }
        let on = match exec.on.as_str() {
            "router" => None,
            place => Some(place.parse().map_err(|problem: String| Problem::new("on", problem))?),
        };
        let stdout = exec.expect.stdout.map(|text| pattern("stdout", text)).transpose()?;
        let within = exec.expect.within.map(|within| within.0);
        let expect = ExecExpect { status: exec.expect.status.unwrap_or(0), stdout, within };
        return Ok(StepKind::Exec { on, run: exec.run, wait: exec.wait.unwrap_or(true), expect });
    }
    if let Some(trace) = trace {
        return Ok(StepKind::Trace(trace_step(trace)?));
    }
    let doctor = doctor.ok_or_else(|| Problem::new("steps", "this step does nothing"))?;
    Ok(StepKind::Doctor(doctor_step(doctor)?))
}

fn trace_step(raw: raw::Trace) -> Result<TraceStep, Problem> {
    Ok(TraceStep {
        from: raw.from.parse().map_err(|problem: String| Problem::new("from", problem))?,
        to: raw.to.parse().map_err(|problem: String| Problem::new("to", problem))?,
        vanishes: raw.expect.vanishes,
        request: raw.expect.request,
        answer: raw.expect.answer,
        agrees: raw.expect.agrees.unwrap_or(true),
    })
}

fn doctor_step(raw: raw::Doctor) -> Result<DoctorStep, Problem> {
    let code = |text: &String| text.parse::<Code>().map_err(|error| Problem::new("code", error.to_string()));
    let expect = raw.expect;
    let verdict = expect.verdict.map(|text| {
        let known = serde_json::from_value::<Verdict>(Value::String(text.clone()));
        known.map_err(|_| Problem::new("verdict", format!("{text} is none: healthy, degraded, broken or undetermined")))
    });
    let step = DoctorStep {
        service: raw.service.as_deref().map(PodName::parse),
        wait: raw.wait.unwrap_or(true),
        from: raw.from.map(|text| text.parse().map_err(|problem: String| Problem::new("from", problem))).transpose()?,
        to: raw.to.map(|text| text.parse().map_err(|problem: String| Problem::new("to", problem))).transpose()?,
        first: expect.code.as_ref().map(code).transpose()?,
        codes: expect.codes.iter().map(code).collect::<Result<_, _>>()?,
        verdict: verdict.transpose()?,
        within: raw.within.map_or(DEFAULT_WITHIN, |within| within.0),
    };
    if step.first.is_none() && step.codes.is_empty() && step.verdict.is_none() {
        return Err(Problem::new("doctor", "expects nothing: code, codes or verdict"));
    }
    if step.service.is_none() && (step.from.is_some() || step.to.is_some()) {
        return Err(Problem::new("service", "from and to are of a Service"));
    }
    Ok(step)
}

fn probe(raw: raw::Probe) -> Result<Probe, Problem> {
    let from =
        raw.from.map(|text| text.parse().map_err(|problem: String| Problem::new("from", problem))).transpose()?;
    let to = raw.to.map(|text| text.parse().map_err(|problem: String| Problem::new("to", problem))).transpose()?;
    match (&raw.on, &from, &to) {
        (None, None, _) => return Err(Problem::new("from", "a probe needs a sender")),
        (None, _, None) => return Err(Problem::new("to", "a probe needs a destination")),
        (Some(_), _, Some(_)) => return Err(Problem::new("on", "a kept connection has its destination already")),
        _ => {}
    }
    if raw.tries == Some(0) {
        return Err(Problem::new("tries", "must be at least 1"));
    }
    Ok(Probe {
        from,
        to,
        family: raw.family,
        tries: raw.tries,
        every: raw.every.map(|every| every.0),
        keep: raw.keep,
        on: raw.on,
        source_port: raw.source_port,
        size: raw.size,
        timeout: raw.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0),
        wait: raw.wait,
    })
}

/// An `expect` that stands alone.
fn expectation(raw: raw::Expect) -> Result<StepKind, Problem> {
    let within = raw.within.map_or(DEFAULT_WITHIN, |within| within.0);
    if let Some(object) = raw.object {
        let path = raw.path.ok_or_else(|| Problem::new("path", "which field of the object?"))?;
        if raw.equals.is_some() == raw.matches.is_some() {
            return Err(Problem::new("path", "say either equals or matches"));
        }
        return Ok(StepKind::ExpectObject(ObjectStep {
            object: ObjectRef {
                kind: object.kind,
                api_version: object.api_version,
                namespace: object.namespace,
                name: object.name,
            },
            path,
            equals: raw.equals,
            matches: raw.matches.map(|text| pattern("matches", text)).transpose()?,
            within,
        }));
    }
    if let Some(event) = raw.event {
        let (kind, name) =
            event.on.split_once('/').ok_or_else(|| Problem::new("event", "on: write KIND/NAME, like Service/web"))?;
        return Ok(StepKind::ExpectEvent(EventStep {
            kind: kind.to_owned(),
            name: name.to_owned(),
            reason: event.reason,
            within,
        }));
    }
    Err(Problem::new("expect", "an expect that stands alone is about an object or an event"))
}
