//! One scenario in one mode and family: builds its cluster in a lab, goes through the steps, stops at the first that does
//! not hold.

mod attempt;
mod doctor;
mod load;
mod names;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signpost_core::object::Family;

use self::attempt::Attempts;
use self::load::Load;
use super::address::{PodName, Scheme};
use super::format::{
    EventStep, FamilyRun, Mode, ObjectStep, PodChange, RouteStep, SaveFrom, Scenario, ShortPod, Step, StepKind,
};
use super::light::pod_object;
use super::listed::{Listeners, Saved};
use super::objects::ObjectError;
use super::report::Failure;
use super::stage::{Stage, told};
use crate::patience::patient;

/// Time between two looks at something that must come to hold.
const PAUSE: Duration = Duration::from_millis(20);

/// What a run carries from step to step.
struct Run<'a> {
    stage: &'a mut Stage,
    scenario: &'a Scenario,
    mode: Mode,
    family: FamilyRun,
    saved: BTreeMap<String, Saved>,
    /// Pods whose echo server was told not to listen.
    silent: BTreeSet<PodName>,
    attempts: Attempts,
    loads: BTreeMap<String, Load>,
}

/// Runs a scenario in a lab that has its nodes, mode and families and nothing else.
///
/// # Errors
/// The step that does not hold, and what came instead.
pub async fn run(stage: &mut Stage, scenario: &Scenario, mode: Mode, family: FamilyRun) -> Result<(), Failure> {
    let mut run = Run {
        stage,
        scenario,
        mode,
        family,
        saved: BTreeMap::new(),
        silent: BTreeSet::new(),
        attempts: Attempts::default(),
        loads: BTreeMap::new(),
    };
    run.build().await.map_err(|detail| Failure { line: 1, detail })?;
    for step in &scenario.steps {
        run.step(step).await.map_err(|detail| Failure { line: step.line, detail })?;
    }
    Ok(())
}

impl Run<'_> {
    /// Pods in short form first: their addresses then follow the order of the file.
    async fn build(&mut self) -> Result<(), String> {
        let objects = self.stage.objects().clone();
        let namespaces: BTreeSet<&str> = self.scenario.pods.iter().map(|pod| pod.namespace.as_str()).collect();
        for namespace in namespaces.into_iter().filter(|namespace| *namespace != "default") {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            objects.apply(&object).await.map_err(|error| error.to_string())?;
        }
        for pod in &self.scenario.pods {
            objects.create(&pod_object(pod)).await.map_err(|error| error.to_string())?;
        }
        for object in &self.scenario.objects {
            objects.create(&self.filled(object)).await.map_err(|error| error.to_string())?;
        }
        // The first step finds a cluster at rest: a pod that it deletes has run.
        self.stage.settle().await
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match &step.kind {
            StepKind::Probe { probe, expect } => {
                let expect = expect.in_run(self.mode, self.family);
                if let Some(Scheme::Dns(question)) = probe.to.as_ref().map(|to| &to.scheme) {
                    return self.look_up(probe, question, &expect).await;
                }
                self.probe(probe, &expect).await?;
                if self.stage.asks_doctor { self.second_opinion(probe, &expect).await } else { Ok(()) }
            }
            StepKind::Apply { objects, refused } => self.apply(objects, refused.as_deref()).await,
            StepKind::Patch(patch) => {
                let objects = self.stage.objects();
                let merge = self.filled(&patch.merge);
                objects.patch(&patch.object, patch.subresource.as_deref(), &merge).await.map_err(told)
            }
            StepKind::Delete(delete) => {
                self.stage.objects().delete(&delete.object, delete.grace_s, delete.wait).await.map_err(told)
            }
            StepKind::Set { pod, change } => self.set(pod, change).await,
            StepKind::Save(names) => self.save(names).await,
            StepKind::Route(route) => self.route(route).await,
            StepKind::ExpectObject(expect) => self.expect_object(expect).await,
            StepKind::ExpectEvent(expect) => self.expect_event(expect).await,
            StepKind::Pause(pause) => {
                tokio::time::sleep(*pause).await;
                Ok(())
            }
            StepKind::Load(load) => self.load(load).await,
            StepKind::End { load, lost } => self.end_load(load, *lost).await,
            StepKind::Exec { on, run, wait, expect } => self.exec(on.as_ref(), run, *wait, expect).await,
            other => self.daemon_step(other).await,
        }
    }

    async fn daemon_step(&mut self, kind: &StepKind) -> Result<(), String> {
        match kind {
            StepKind::Restart(node) => {
                self.stage.stop_daemon(node, false).await?;
                self.stage.start_daemon(node).await
            }
            StepKind::Kill(node) => self.stage.stop_daemon(node, true).await,
            StepKind::Stop(node) => self.stage.stop_daemon(node, false).await,
            StepKind::Start(node) => self.stage.start_daemon(node).await,
            StepKind::Upgrade(_) => Err(not_yet("upgrade", "replacing a node daemon by another version")),
            StepKind::Mode { node, to } => self.stage.change_mode(node, *to).await,
            StepKind::Cut(node) => self.stage.set_link(node, false).await,
            StepKind::Mend(node) => self.stage.set_link(node, true).await,
            StepKind::Doctor(step) => self.doctor(step).await,
            StepKind::Trace(step) => self.trace(step).await,
            _ => unreachable!("Run::step has every other verb"),
        }
    }

    async fn apply(&mut self, list: &[Value], refused: Option<&str>) -> Result<(), String> {
        let mut results = Vec::new();
        for object in list {
            let result = self.stage.objects().apply(&self.filled(object)).await;
            if refused.is_none() {
                result.map_err(told)?;
            } else {
                results.push(result);
            }
        }
        refused.map_or(Ok(()), |pattern| all_refused(pattern, &results))
    }

    /// With the saved addresses and words in place of texts like `$name`: in a lab that is used again, pods' addresses
    /// differ. `$family` is the run's first one, as the API words it; `${name}` stands inside of a text.
    fn filled(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if text == "$family" => match self.first_family() {
                Family::Ipv4 => json!("IPv4"),
                Family::Ipv6 => json!("IPv6"),
            },
            Value::String(text) => {
                let saved = text.strip_prefix('$').and_then(|name| self.saved.get(name));
                let families = self.family.families();
                let address = families
                    .iter()
                    .find_map(|family| saved?.addresses.iter().find(|address| Family::of(**address) == *family));
                let word = || saved.and_then(|saved| saved.word.as_ref()).map(|word| json!(word));
                let whole = address.map(|address| json!(address)).or_else(word);
                whole.unwrap_or_else(|| json!(self.filled_in(text)))
            }
            Value::Array(list) => list.iter().map(|value| self.filled(value)).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.filled(value))).collect(),
            other => other.clone(),
        }
    }

    /// With the saved addresses in place of `${NAME}` inside of a longer text, such as a file's.
    fn filled_in(&self, text: &str) -> String {
        let family = self.first_family();
        let saved = self.saved.iter().filter_map(|(name, saved)| {
            let address = saved.addresses.iter().find(|address| Family::of(**address) == family)?;
            Some((format!("${{{name}}}"), address.to_string()))
        });
        saved.fold(text.to_owned(), |text, (name, address)| text.replace(&name, &address))
    }

    async fn set(&mut self, pod: &str, change: &PodChange) -> Result<(), String> {
        let name = PodName::parse(pod);
        if !change.labels.is_empty() {
            let merge = json!({"metadata": {"labels": change.labels}});
            self.stage.patch_pod(&name, &merge).await?;
        }
        if let Some(ready) = change.ready {
            self.stage.set_ready(&name, ready).await?;
        }
        if let Some(listening) = change.listening {
            self.stage.set_listening(&name, listening).await?;
            if listening {
                self.silent.remove(&name);
            } else {
                self.silent.insert(name);
            }
        }
        Ok(())
    }

    fn first_family(&self) -> Family {
        self.family.families().first().copied().unwrap_or(Family::Ipv4)
    }

    async fn save(&mut self, names: &BTreeMap<String, SaveFrom>) -> Result<(), String> {
        self.stage.settle().await?;
        let listed = self.stage.listed().await?;
        for (name, what) in names {
            let saved = match what {
                SaveFrom::Words(words) => self.worded(name, words)?,
                SaveFrom::Place(place) => {
                    // An address alone is enough here.
                    let target = place.parse().or_else(|_| format!("ping://{place}").parse())?;
                    listed.save(&target, &self.saved).map_err(told)?
                }
            };
            self.saved.insert(name.clone(), saved);
        }
        Ok(())
    }

    /// The words for the families of this run; those that are addresses may be sent to.
    fn worded(&self, name: &str, words: &BTreeMap<FamilyRun, String>) -> Result<Saved, String> {
        let runs = [(FamilyRun::Ipv4, Family::Ipv4), (FamilyRun::Ipv6, Family::Ipv6)];
        let of_run = runs.into_iter().filter(|(_, family)| self.family.families().contains(family));
        let words: Vec<&String> = of_run.filter_map(|(run, _)| words.get(&run)).collect();
        let first = words.first().ok_or_else(|| format!("save: {name} says nothing for {}", self.family))?;
        let addresses: Vec<IpAddr> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let word = addresses.is_empty().then(|| (*first).clone());
        Ok(Saved { addresses, word, ..Saved::default() })
    }

    async fn route(&mut self, route: &RouteStep) -> Result<(), String> {
        let addresses = match route.to.strip_prefix('$') {
            Some(name) => self.saved.get(name).map(|saved| saved.addresses.clone()).unwrap_or_default(),
            None => route.to.parse().into_iter().collect(),
        };
        if addresses.is_empty() {
            return Err(format!("route: {} is no address", route.to));
        }
        for address in addresses {
            self.stage.set_route(address, route.via.as_deref()).await?;
        }
        Ok(())
    }

    async fn expect_object(&self, expect: &ObjectStep) -> Result<(), String> {
        let deadline = Instant::now() + patient(expect.within);
        loop {
            let problem = self.object_differs(expect).await?;
            match problem {
                None => return Ok(()),
                Some(problem) if Instant::now() >= deadline => return Err(problem),
                Some(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// What does not hold at this moment.
    async fn object_differs(&self, expect: &ObjectStep) -> Result<Option<String>, String> {
        let path = expect.path.trim_matches(['{', '}']);
        let path = if path.starts_with('$') { path.to_owned() } else { format!("${path}") };
        let object = self.stage.objects().find(&expect.object).await.map_err(told)?.unwrap_or(Value::Null);
        let values = jsonpath_rust::JsonPath::query(&object, &path).map_err(told)?;
        let (wanted, holds) = match (&expect.equals, &expect.matches) {
            (Some(equals), _) => (format!("equals {equals}"), values.contains(&equals)),
            (None, Some(pattern)) => {
                (format!("matches {pattern}"), values.iter().any(|value| is_match(pattern, &plain(value))))
            }
            (None, None) => ("is there".to_owned(), !values.is_empty()),
        };
        let came = values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Ok((!holds).then(|| format!("expected   {path} {wanted}\ncame       {came}")))
    }

    async fn expect_event(&self, expect: &EventStep) -> Result<(), String> {
        let deadline = Instant::now() + patient(expect.within);
        loop {
            let reasons = self.reasons_on(&expect.kind, &expect.name).await?;
            if reasons.contains(&expect.reason) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let came = reasons.into_iter().collect::<Vec<_>>().join(", ");
                let EventStep { kind, name, reason, .. } = expect;
                return Err(format!("expected   event {reason} on {kind}/{name}\ncame       {came}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn reasons_on(&self, kind: &str, name: &str) -> Result<BTreeSet<String>, String> {
        let events = self.stage.objects().list("Event").await.map_err(told)?;
        let text = |event: &Value, pointer: &str| event.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let about = events.iter().filter(|event| {
            text(event, "/involvedObject/kind").as_deref() == Some(kind)
                && text(event, "/involvedObject/name").as_deref() == Some(name)
        });
        Ok(about.filter_map(|event| text(event, "/reason")).collect())
    }

    /// Where a pod listens, as the scenario has it.
    fn listeners(&self, name: &PodName) -> Listeners {
        let is_it = |short: &&ShortPod| short.namespace == name.namespace && short.name == name.name;
        let known = self.scenario.pods.iter().find(is_it);
        let listens = |short: &ShortPod| short.listen.iter().map(|at| (at.protocol, at.port.get())).collect();
        Listeners {
            listens: if self.silent.contains(name) { Some(BTreeSet::new()) } else { known.map(listens) },
            bind: known.and_then(|known| known.bind),
        }
    }
}

/// Each object must have been refused by the API itself, with words that match.
fn all_refused(pattern: &str, results: &[Result<(), ObjectError>]) -> Result<(), String> {
    if results.is_empty() {
        return Err(format!("expected   refused: {pattern}\ncame       no object to refuse"));
    }
    for (index, result) in results.iter().enumerate() {
        let came = match result {
            Ok(()) => "the API took it".to_owned(),
            Err(error @ ObjectError::Refused { .. }) if is_match(pattern, &error.to_string()) => continue,
            Err(error) => error.to_string(),
        };
        let (number, of) = (index + 1, results.len());
        return Err(format!("expected   refused: {pattern}\ncame       object {number} of {of}: {came}"));
    }
    Ok(())
}

/// Patterns were compiled once when the file was read.
fn is_match(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}

/// A string without its quotes, everything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn not_yet(word: &str, what: &str) -> String {
    format!("{word}: this version lacks {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_must_be_refused_in_the_expected_words() {
        let refused = |message: &str| {
            Err(ObjectError::Refused { what: "Service/web".to_owned(), message: message.to_owned(), code: 422 })
        };
        let incomplete = || Err(ObjectError::Incomplete { what: "already".to_owned(), field: "kind" });
        let taken = || refused("port is already allocated");
        assert_eq!(all_refused("already", &[taken(), taken()]), Ok(()));
        for (results, came) in [
            (vec![taken(), Ok(())], "object 2 of 2: the API took it"),
            (vec![Ok(()), taken()], "object 1 of 2: the API took it"),
            (vec![refused("out of range"), taken()], "object 1 of 2: the API refuses Service/web: out of range"),
            (vec![incomplete()], "object 1 of 1: already: no kind"),
            (Vec::new(), "no object to refuse"),
        ] {
            let problem = all_refused("already", &results).unwrap_err();
            assert!(problem.ends_with(came), "{problem}");
        }
    }
}
