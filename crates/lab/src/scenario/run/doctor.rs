//! What the doctor says: in a step of its own, and as a second opinion after each probe.

use std::time::{Duration, Instant};

use signpost_core::object::ObjectName;
use signpost_diagnose::doctor::finding::{Diagnosis, Verdict};
use signpost_diagnose::doctor::text::{Style, text};
use signpost_diagnose::doctor::{Question, Report, To, diagnose};

use super::{PAUSE, Run};
use crate::patience::patient;
use crate::scenario::address::{Destination, Source, Target};
use crate::scenario::format::{DoctorStep, Expect, Fails, Probe};
use crate::scenario::stage::told;

/// How long a second opinion may take to be the right one.
const SECOND_OPINION: Duration = Duration::from_secs(10);

impl Run<'_> {
    pub(super) async fn doctor(&mut self, step: &DoctorStep) -> Result<(), String> {
        if step.wait {
            self.stage.settle().await?;
        }
        let name = step.service.as_ref().map(|service| ObjectName::new(&service.namespace, &service.name));
        let deadline = Instant::now() + patient(step.within);
        loop {
            let report = self.ask_doctor(name.as_ref(), step.from.as_ref(), step.to.as_ref()).await?;
            let said = if name.is_some() { report.services.first() } else { report.nodes.as_ref() };
            let Some(diagnosis) = said else { return Err("the doctor says nothing".to_owned()) };
            let Some(wanted) = differs(step, diagnosis) else { return Ok(()) };
            if Instant::now() > deadline {
                return Err(format!("expected   {wanted}\ncame       {}", text(&report, Style::default())));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask_doctor(
        &self,
        service: Option<&ObjectName>,
        from: Option<&Source>,
        to: Option<&Target>,
    ) -> Result<Report, String> {
        let snapshot = self.stage.inspect().await?;
        let to = to.map(|to| self.without_saved(to)).transpose()?;
        let question =
            Question { service: service.cloned(), from: from.cloned(), to: to.map(To::Target), ..Question::default() };
        diagnose(&snapshot, &question).map_err(told)
    }

    /// A saved address as a literal.
    pub(super) fn without_saved(&self, to: &Target) -> Result<Target, String> {
        let Destination::Saved(name, _) = &to.destination else { return Ok(to.clone()) };
        let saved = self.saved.get(name).ok_or_else(|| format!("there is no saved address {name}"))?;
        let address = saved.addresses.first().ok_or_else(|| format!("${name} has no address"))?;
        let port = match &to.destination {
            Destination::Saved(_, crate::scenario::address::PortRef::Number(number)) => *number,
            _ => saved.port.unwrap_or(0),
        };
        Ok(Target { destination: Destination::Literal((*address, port).into()), ..to.clone() })
    }

    /// After a probe that came out as expected: the doctor must not call broken what got an answer, and must not call
    /// healthy what got none.
    pub(super) async fn second_opinion(&mut self, probe: &Probe, expect: &Expect) -> Result<(), String> {
        let (Some(from), Some(to)) = (&probe.from, &probe.to) else { return Ok(()) };
        // An echo, a lookup, and what was sent before the nodes were ready are no question to the doctor.
        if to.scheme.protocol().is_none() || !probe.wait || probe.on.is_some() {
            return Ok(());
        }
        let (Destination::Cluster(service, _)
        | Destination::LoadBalancer(service, _)
        | Destination::External(service, _)
        | Destination::NodePort(_, service, _)) = &to.destination
        else {
            return Ok(());
        };
        let name = ObjectName::new(&service.namespace, &service.name);
        let fails = expect.fails.is_some();
        // What a node tells of itself through the API comes a moment after it serves.
        let deadline = Instant::now() + patient(SECOND_OPINION);
        loop {
            let report = self.ask_doctor(Some(&name), Some(from), Some(to)).await?;
            let Some(diagnosis) = report.services.first() else { return Ok(()) };
            let problem = match diagnosis.verdict {
                Verdict::Broken if !fails => "the probe got its answers",
                Verdict::Healthy if fails && expect.fails != Some(Fails::Any) => "the probe got no answer",
                _ => return Ok(()),
            };
            if Instant::now() > deadline {
                return Err(format!("{problem}, but the doctor says: {}", text(&report, Style::default())));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// What should be and is not.
fn differs(step: &DoctorStep, diagnosis: &Diagnosis) -> Option<String> {
    if let Some(verdict) = step.verdict.filter(|verdict| *verdict != diagnosis.verdict) {
        return Some(format!("verdict {verdict:?}").to_lowercase());
    }
    if let Some(first) = step.first
        && diagnosis.findings.first().map(|finding| finding.code) != Some(first)
    {
        return Some(format!("{first} {} first", first.cause().title));
    }
    let has = |code| diagnosis.findings.iter().any(|finding| finding.code == code);
    step.codes.iter().find(|code| !has(**code)).map(|code| format!("{code} {} among the causes", code.cause().title))
}
