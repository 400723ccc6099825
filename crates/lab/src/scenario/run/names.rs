//! A probe that looks a name up: the question's way to the name server by the walks, the answer by the server.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use signpost_core::object::Family;

use super::Run;
use super::attempt::{blocking, show_predictions};
use crate::cluster_dns;
use crate::kubelet;
use crate::patience::patient;
use crate::scenario::address::{Destination, PodName, PortRef, Question, Scheme, ServiceRef, Source, Target};
use crate::scenario::format::{Expect, Probe};
use crate::scenario::lookup::{Lookup, look_up};
use crate::scenario::names::{Places, families_in, filled, holds, record_type, wanted};
use crate::scenario::predict::{Answerer, Fate};
use crate::scenario::probe::{Message, Shot};
use crate::scenario::stage::told;

/// The name servers follow the API by themselves: what they say must be right at the latest then, if nothing else is said.
const WITHIN: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// So many questions, since each may go to another of the name servers.
const TRIES: u32 = 4;

impl Run<'_> {
    pub(super) async fn look_up(&mut self, probe: &Probe, question: &Question, expect: &Expect) -> Result<(), String> {
        if probe.wait {
            self.stage.settle().await?;
        }
        let deadline = Instant::now() + patient(expect.within.unwrap_or(WITHIN));
        loop {
            let mut problem = None;
            for family in probe.family.unwrap_or(self.family).families() {
                problem = self.look_up_in(probe, question, expect, *family).await?;
                if problem.is_some() {
                    break;
                }
            }
            match problem {
                None => return Ok(()),
                Some(problem) if Instant::now() > deadline => return Err(problem),
                Some(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// What does not hold, of all tries over one family.
    async fn look_up_in(
        &mut self,
        probe: &Probe,
        question: &Question,
        expect: &Expect,
        family: Family,
    ) -> Result<Option<String>, String> {
        let (Some(from), Some(Target { destination: Destination::Name(name), .. })) = (&probe.from, &probe.to) else {
            return Err("a lookup needs a sender and a name".to_owned());
        };
        let listed = self.stage.listed().await?;
        let places = Places { listed: &listed, saved: &self.saved };
        let kind = record_type(&question.kind, family)?;
        let server = listed.resolve(&name_server(), family, &self.saved).map_err(told)?;
        let families = families_in(kind, family, self.family.families());
        let lookup = Lookup {
            name: filled(name, families.first().copied().filter(|_| families.len() == 1).unwrap_or(family), places)?,
            kind,
            by_tcp: question.tcp,
            server,
            searches: match from {
                Source::Pod(pod) => kubelet::searches(&pod.namespace),
                _ => Vec::new(),
            },
            timeout: patient(probe.timeout),
        };
        // Pods that come and go: their addresses may not be there yet.
        let answers = match expect.answers.as_ref().map(|answers| wanted(answers, &families, places)).transpose() {
            Ok(answers) => answers,
            Err(problem) => return Ok(Some(problem)),
        };
        let mut text = String::new();
        if probe.wait {
            let view = listed.view(family, &|pod| self.listeners(pod), self.stage.around());
            let shot =
                Shot { message: Message::Udp, destination: server, source_port: None, size: 0, timeout: probe.timeout };
            let scheme = Scheme::Dns(question.clone());
            let predictions = self.predictions(probe, &view, from, &scheme, &shot).await?;
            text = show_predictions(predictions.as_ref());
            if let Some(predictions) = &predictions {
                if !predictions.plan.keys().eq(predictions.program.keys()) {
                    return Ok(Some(format!("walk(plan) and walk(program) disagree\n{text}")));
                }
                let arrives = predictions.plan.keys().all(|fate| matches!(fate, Fate::Reached { .. }));
                let by = |fate: &Fate| match (fate, &expect.only) {
                    (Fate::Reached { by: Answerer::Pod(pod), .. }, Some(only)) => {
                        only.iter().any(|name| PodName::parse(name) == *pod)
                    }
                    (_, only) => only.is_none(),
                };
                if arrives == expect.fails.is_some() || !predictions.plan.keys().all(by) {
                    return Ok(Some(format!("the walks say otherwise than expected\n{text}")));
                }
            }
        }
        let sockets = self.stage.sockets(from)?;
        let tries = probe.tries.unwrap_or(TRIES);
        let every = probe.every;
        let asked = lookup.clone();
        let (expected, records) = (expect.clone(), answers.clone());
        let problem = blocking(move || {
            (0..tries).find_map(|number| {
                if let Some(every) = every.filter(|_| number > 0) {
                    std::thread::sleep(every);
                }
                holds(&expected, records.as_ref(), &look_up(&sockets, &asked)).err()
            })
        });
        Ok(problem.await?.map(|came| {
            let mut whole = format!(
                "not as expected: {came}\nprobe          from {from}, {} of {name} at {server}\n",
                question.kind
            );
            let rcode = expect.rcode.as_deref().unwrap_or("NOERROR");
            let _ = match (&answers, expect.fails) {
                (_, Some(fails)) => writeln!(whole, "expected       fails {fails}"),
                (Some(answers), None) => writeln!(whole, "expected       {rcode}, {answers:?}"),
                (None, None) => writeln!(whole, "expected       {rcode}"),
            };
            whole + &text
        }))
    }
}

/// Where pods send their questions.
pub(super) fn name_server() -> Target {
    let service = ServiceRef { namespace: cluster_dns::NAMESPACE.to_owned(), name: cluster_dns::SERVICE.to_owned() };
    let question = Question { kind: "A".to_owned(), tcp: false };
    Target { scheme: Scheme::Dns(question), destination: Destination::Cluster(service, PortRef::Number(53)) }
}
