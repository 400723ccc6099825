//! A probe step: the packet's fate by the plan, by the program, and by the kernel, compared with each other and with what
//! is expected.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Verdict};

use super::Run;
use crate::patience::patient;
use crate::scenario::address::{Scheme, Source};
use crate::scenario::expect::{
    Answer, MIN_TRIES, Outcome, Setting, kernel_agrees, outcomes_hold, prediction_holds, tries_for_shares,
    tries_to_see_all,
};
use crate::scenario::format::{Expect, Probe};
use crate::scenario::listed::NoAddress;
use crate::scenario::memory::{Asked, Client, Memory};
use crate::scenario::predict::{At, ClusterView, Prediction, predict};
use crate::scenario::probe::{self, Kept, Message, Shot};
use crate::scenario::stage::{Programmed, told};

/// Connections and sockets that stay open between steps.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    kept: BTreeMap<String, KeptOne>,
    memory: Memory,
}

#[derive(Debug)]
struct KeptOne {
    kept: Kept,
    shot: Shot,
    from: Source,
    family: Family,
}

/// The two walks' predictions of one packet.
pub(super) struct Predictions {
    pub(super) plan: Prediction,
    pub(super) program: Prediction,
    /// Each fate has the same chance: no affinity holds the client to one.
    spread: bool,
    /// Whom the nodes on the way remember.
    asked: Vec<Asked>,
}

/// An answer that must come is waited for so long at least: a machine with much to do is no fault, and silence would be one still.
const ANSWER: Duration = Duration::from_secs(4);

/// Time between two attempts of a probe with `within`.
const PAUSE: Duration = Duration::from_millis(30);

impl Run<'_> {
    pub(super) async fn probe(&mut self, probe: &Probe, expect: &Expect) -> Result<(), String> {
        if let Some(name) = &probe.on {
            return self.probe_kept(name, probe, expect).await;
        }
        if probe.wait {
            self.stage.settle().await?;
        }
        let deadline = expect.within.map(|within| Instant::now() + patient(within));
        loop {
            let Err(problem) = self.attempt(probe, expect).await else { return Ok(()) };
            if deadline.is_none_or(|deadline| Instant::now() > deadline) {
                return Err(problem);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Once, in every family that the probe concerns.
    async fn attempt(&mut self, probe: &Probe, expect: &Expect) -> Result<(), String> {
        let families = probe.family.unwrap_or(self.family).families();
        let mut tried = false;
        let mut other_family = None;
        for family in families {
            match self.attempt_in(probe, expect, *family).await {
                Ok(()) => tried = true,
                // In a dual-stack lab a Service may have one family alone.
                Err(AttemptError::NoAddress(error @ NoAddress::Family { .. })) => other_family = Some(error),
                Err(AttemptError::NoAddress(error)) => return Err(error.to_string()),
                Err(AttemptError::Failed(problem)) => return Err(problem),
            }
        }
        match other_family {
            Some(error) if !tried => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    async fn attempt_in(&mut self, probe: &Probe, expect: &Expect, family: Family) -> Result<(), AttemptError> {
        let (Some(from), Some(to)) = (&probe.from, &probe.to) else {
            return Err(AttemptError::Failed("the probe has no sender or destination".to_owned()));
        };
        let listed = self.stage.listed().await?;
        let view = listed.view(family, &|pod| self.listeners(pod), self.stage.around());
        let destination = listed.resolve(to, family, &self.saved).map_err(AttemptError::NoAddress)?;
        let message = message(&to.scheme)?;
        let shot = Shot {
            message,
            destination,
            source_port: probe.source_port,
            size: probe.size.unwrap_or(0),
            timeout: time_for(probe, expect),
        };
        let predictions = self.predictions(probe, &view, from, &to.scheme, &shot).await?;
        let outcomes = self.fire(probe, expect, &view, from, &shot, predictions.as_ref()).await?;
        self.attempts.remember(predictions.as_ref(), &outcomes);
        let setting = Setting { view: &view, sender: from };
        let problem = compare(expect, predictions.as_ref(), &outcomes, setting);
        match problem {
            None => Ok(()),
            Some(problem) => {
                let mut text = format!("{problem}\nprobe          from {from} to {destination} ({family})\n");
                let _ = writeln!(text, "expected       {}", show_expect(expect));
                text.push_str(&show_predictions(predictions.as_ref()));
                let _ = writeln!(text, "kernel         {}", show_outcomes(&outcomes));
                Err(AttemptError::Failed(text))
            }
        }
    }

    /// `None` where no walk tells: an ICMP echo, and a probe that does not wait for the daemons.
    pub(super) async fn predictions(
        &mut self,
        probe: &Probe,
        view: &ClusterView,
        from: &Source,
        scheme: &Scheme,
        shot: &Shot,
    ) -> Result<Option<Predictions>, String> {
        let Some(protocol) = scheme.protocol().filter(|_| probe.wait) else { return Ok(None) };
        let source = view.address_of(from).ok_or_else(|| format!("{from} is not there, or has no address"))?;
        self.stage.learn_programs().await?;
        Ok(Some(self.walk_both(view, from, protocol, source, shot)))
    }

    fn walk_both(
        &self,
        view: &ClusterView,
        from: &Source,
        protocol: Protocol,
        source: IpAddr,
        shot: &Shot,
    ) -> Predictions {
        let packet = Packet {
            protocol,
            source: SocketAddr::new(source, shot.source_port.unwrap_or(SOME_PORT)),
            destination: shot.destination,
            entry: Entry::Interface,
        };
        let family = Family::of(source);
        let (asked, now) = (RefCell::new(Vec::new()), Instant::now());
        let remembered = |node: &str, at: At, packet: &Packet| {
            let programmed = self.stage.programmed(node, family)?;
            let ask = ask(node, at, programmed, packet)?;
            let bound = self.attempts.memory.bound(&ask, now);
            asked.borrow_mut().push(ask);
            bound
        };
        let by_plan = |node: &str, at: At, packet: &Packet| {
            let remembered = remembered(node, at, packet);
            let programmed = self.stage.programmed(node, family);
            programmed.map_or(Verdict::NotOurs, |programmed| programmed.walk_plan(at, packet, remembered))
        };
        let plan = predict(view, &by_plan, from, packet);
        let by_program = |node: &str, at: At, packet: &Packet| {
            let remembered = remembered(node, at, packet);
            let programmed = self.stage.programmed(node, family);
            programmed.map_or(Verdict::NotOurs, |programmed| programmed.walk(at, packet, remembered))
        };
        let program = predict(view, &by_program, from, packet);
        let asked = asked.into_inner();
        let spread = asked.iter().all(|asked| asked.timeout.is_none());
        Predictions { plan, program, spread, asked }
    }

    async fn fire(
        &mut self,
        probe: &Probe,
        expect: &Expect,
        view: &ClusterView,
        from: &Source,
        shot: &Shot,
        predictions: Option<&Predictions>,
    ) -> Result<Vec<Outcome>, String> {
        let sockets = self.stage.sockets(from)?;
        let shot = shot.clone();
        if let Some(name) = &probe.keep {
            let (outcome, kept) = {
                let shot = shot.clone();
                blocking(move || probe::keep(&sockets, &shot)).await?
            };
            if let Some(kept) = kept {
                let family = Family::of(shot.destination.ip());
                self.attempts.kept.insert(name.clone(), KeptOne { kept, shot, from: from.clone(), family });
            }
            return Ok(vec![outcome]);
        }
        if expect.fails.is_some() && probe.tries.is_none() && shot.source_port.is_none() {
            return blocking(move || probe::side_by_side(&sockets, &shot, 3)).await;
        }
        let plan = predictions.map(|predictions| predictions.plan.clone()).unwrap_or_default();
        let every = probe.every;
        let most = most_tries(probe, expect, predictions);
        let exact = probe.tries.is_some() || expect.share.is_some();
        let (expect, view, sender) = (expect.clone(), view.clone(), from.clone());
        let spread = predictions.is_some_and(|predictions| predictions.spread);
        let enough = move |seen: &[Outcome]| {
            let failed = matches!(seen.last(), Some(Outcome::Failed { .. } | Outcome::Broken { .. }));
            let setting = Setting { view: &view, sender: &sender };
            let all =
                || outcomes_hold(&expect, seen, setting).is_ok() && kernel_agrees(&plan, seen, &view, spread).is_ok();
            !exact && (failed || (seen.len() >= MIN_TRIES && all()))
        };
        blocking(move || probe::in_turn(&sockets, &shot, most, every, enough)).await
    }

    /// A known flow: the walks are of first packets, so that only the expectation is compared.
    async fn probe_kept(&mut self, name: &str, probe: &Probe, expect: &Expect) -> Result<(), String> {
        if probe.wait {
            self.stage.settle().await?;
        }
        let mut one = self.attempts.kept.remove(name).ok_or_else(|| format!("no probe kept anything as {name}"))?;
        let listed = self.stage.listed().await?;
        let view = listed.view(one.family, &|pod| self.listeners(pod), self.stage.around());
        let deadline = expect.within.map(|within| Instant::now() + patient(within));
        let shot = Shot { size: probe.size.unwrap_or(0), timeout: time_for(probe, expect), ..one.shot.clone() };
        loop {
            let tries = probe.tries.unwrap_or(1);
            let shot = shot.clone();
            let (back, outcomes) = blocking(move || {
                let outcomes: Vec<_> = (0..tries).map(|_| probe::fire_again(&mut one.kept, &shot)).collect();
                (one, outcomes)
            })
            .await?;
            one = back;
            let setting = Setting { view: &view, sender: &one.from };
            let Err(problem) = outcomes_hold(expect, &outcomes, setting) else { break };
            if deadline.is_none_or(|deadline| Instant::now() > deadline) {
                let destination = one.shot.destination;
                return Err(format!(
                    "{problem}\nprobe          on {name}, kept from {} to {destination}\nexpected       {}\nkernel         {}",
                    one.from,
                    show_expect(expect),
                    show_outcomes(&outcomes),
                ));
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.attempts.kept.insert(name.to_owned(), one);
        Ok(())
    }
}

/// How long a probe waits for its answer.
fn time_for(probe: &Probe, expect: &Expect) -> Duration {
    let must_be_answered = expect.fails.is_none() && expect.within.is_none();
    patient(if must_be_answered { probe.timeout.max(ANSWER) } else { probe.timeout })
}

impl Attempts {
    /// Takes in where clients were sent. Whoever was not answered may be remembered for a backend that nobody saw.
    fn remember(&mut self, predictions: Option<&Predictions>, outcomes: &[Outcome]) {
        let now = Instant::now();
        for asked in predictions.iter().flat_map(|predictions| &predictions.asked) {
            for outcome in outcomes {
                match outcome {
                    Outcome::Answered(Answer { reached: Some(backend), .. }) => {
                        self.memory.reached(asked, *backend, now);
                    }
                    _ => self.memory.forget(&asked.client),
                }
            }
        }
    }
}

/// Whom a node may remember if it gets this packet; `None` if no backend gets it.
fn ask(node: &str, at: At, programmed: &Programmed, packet: &Packet) -> Option<Asked> {
    let (_, frontend) = signpost_core::walk::frontend(&programmed.plan, packet)?;
    let Verdict::Rewrite(rewrites) = programmed.walk_plan(at, packet, None) else { return None };
    let client = Client {
        node: node.to_owned(),
        service_port: frontend.service_port.clone(),
        protocol: packet.protocol,
        at,
        source: packet.source.ip(),
        destination: programmed.remembers_by_address().then_some(packet.destination),
    };
    let allowed = rewrites.iter().map(|rewrite| rewrite.to).collect();
    Some(Asked { client, allowed, timeout: frontend.affinity })
}

/// A port that a packet of a probe without `sourcePort` has in the walks: none looks at it.
const SOME_PORT: u16 = 40_000;

enum AttemptError {
    NoAddress(NoAddress),
    Failed(String),
}

impl From<String> for AttemptError {
    fn from(problem: String) -> AttemptError {
        AttemptError::Failed(problem)
    }
}

pub(super) fn message(scheme: &Scheme) -> Result<Message, String> {
    match scheme {
        Scheme::Tcp => Ok(Message::Tcp),
        Scheme::Udp => Ok(Message::Udp),
        Scheme::Http(path) => Ok(Message::Http(path.clone())),
        Scheme::Ping => Ok(Message::Ping),
        Scheme::Dns(_) => Err("a lookup has no answer of an echo server".to_owned()),
        Scheme::Raw => Err("raw: this version lacks raw bytes".to_owned()),
    }
}

fn most_tries(probe: &Probe, expect: &Expect, predictions: Option<&Predictions>) -> usize {
    if let Some(tries) = probe.tries {
        return tries as usize;
    }
    if let Some(share) = &expect.share {
        return tries_for_shares(share.within);
    }
    if expect.sticky == Some(true) || predictions.is_some_and(|predictions| !predictions.spread) {
        return STICKY_TRIES;
    }
    let predicted = predictions.map_or(0, |predictions| predictions.plan.len());
    tries_to_see_all(predicted.max(expect.reach.as_ref().map_or(0, Vec::len)))
}

/// With two backends, ten answers from one are chance once in five hundred runs; with affinity they are certain.
const STICKY_TRIES: usize = 10;

/// The first thing that does not hold.
fn compare(
    expect: &Expect,
    predictions: Option<&Predictions>,
    outcomes: &[Outcome],
    setting: Setting<'_>,
) -> Option<String> {
    if let Some(predictions) = predictions {
        if !predictions.plan.keys().eq(predictions.program.keys()) {
            return Some("walk(plan) and walk(program) disagree".to_owned());
        }
        let whole = predictions.spread && expect.sticky != Some(true) && expect.fails.is_none();
        if let Err(problem) = kernel_agrees(&predictions.plan, outcomes, setting.view, whole && outcomes.len() > 1) {
            return Some(format!("the walks and the kernel disagree: {problem}"));
        }
    }
    if let Err(problem) = outcomes_hold(expect, outcomes, setting) {
        return Some(format!("not as expected: {problem}"));
    }
    if let Some(predictions) = predictions
        && let Err(problem) = prediction_holds(expect, &predictions.plan, setting)
    {
        return Some(format!("the walks say otherwise than expected: {problem}"));
    }
    None
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(told)
}

pub(super) fn show_predictions(predictions: Option<&Predictions>) -> String {
    let Some(predictions) = predictions else { return "walks          tell nothing here\n".to_owned() };
    let mut text = String::new();
    for (name, prediction) in [("walk(plan)   ", &predictions.plan), ("walk(program)", &predictions.program)] {
        let _ = writeln!(text, "{name}  {}", show_fates(prediction));
    }
    for hops in predictions.plan.values() {
        let _ = writeln!(text, "               {}", hops.join(" -> "));
    }
    text
}

fn show_fates(prediction: &Prediction) -> String {
    prediction.keys().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Equal outcomes once, with their number.
fn show_outcomes(outcomes: &[Outcome]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry(outcome.to_string()).or_default() += 1;
    }
    let texts: Vec<_> = counts.into_iter().map(|(text, count)| format!("{count}x {text}")).collect();
    texts.join("; ")
}

/// What was expected, as the file words it.
fn show_expect(expect: &Expect) -> String {
    let mut parts = Vec::new();
    let list = |names: &[String]| names.join(", ");
    parts.extend(expect.reach.as_ref().map(|names| format!("reach [{}]", list(names))));
    parts.extend(expect.only.as_ref().map(|names| format!("only [{}]", list(names))));
    parts.extend(expect.share.as_ref().map(|share| format!("share {:?} within {}", share.of, share.within)));
    parts.extend(expect.sticky.map(|sticky| format!("sticky {sticky}")));
    parts.extend(expect.source.map(|source| format!("source {source:?}").to_lowercase()));
    parts.extend(expect.fails.map(|fails| format!("fails {fails}")));
    parts.extend(expect.status.map(|status| format!("status {status}")));
    parts.extend(expect.body.as_ref().map(|body| format!("body {body}")));
    parts.extend(expect.header.iter().map(|(name, value)| format!("header {name}: {value}")));
    parts.extend(expect.within.map(|within| format!("within {within:?}")));
    if parts.is_empty() { "any answer".to_owned() } else { parts.join(", ") }
}
