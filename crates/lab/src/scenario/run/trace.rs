//! The way of a packet, computed and measured, which must be one.

use std::collections::BTreeMap;

use signpost_diagnose::trace::measured::text;
use signpost_diagnose::trace::{Hop, Question, Trace, trace};

use super::Run;
use crate::measure::{measure, places};
use crate::scenario::format::TraceStep;
use crate::scenario::stage::told;

impl Run<'_> {
    pub(super) async fn trace(&mut self, step: &TraceStep) -> Result<(), String> {
        self.stage.settle().await?;
        let snapshot = self.stage.inspect().await?;
        let to = self.without_saved(&step.to)?;
        let question = Question { from: step.from.clone(), to, family: Some(self.first_family()), protocol: None };
        let computed = trace(&snapshot, &question).map_err(told)?;
        if let Some(wanted) = differs(step, &computed) {
            return Err(wanted);
        }
        let mut spaces = BTreeMap::new();
        for (name, place) in places(&snapshot, &step.from, &computed) {
            spaces.insert(name, self.stage.namespace_of(&place)?);
        }
        let (sockets, from) = (self.stage.sockets(&step.from)?, step.from.clone());
        let measured = tokio::task::spawn_blocking(move || measure(&spaces, &sockets, &from, &computed));
        let measured = measured.await.map_err(told)?.map_err(told)?;
        match (step.agrees, measured.disagreements.is_empty()) {
            (true, false) => Err(format!("expected   measured and computed agree\ncame       {}", text(&measured))),
            (false, true) => Err(format!("expected   measured and computed disagree\ncame       {}", text(&measured))),
            _ => Ok(()),
        }
    }
}

/// What should be and is not.
fn differs(step: &TraceStep, computed: &Trace) -> Option<String> {
    let way = computed.ways.first()?;
    let said = |hop: &Hop| hop.node.as_ref().map_or(hop.place.clone(), |node| format!("{node}: {}", hop.place));
    let compare = |what: &str, wanted: &[String], hops: &[Hop]| {
        let came: Vec<String> = hops.iter().map(said).collect();
        let differs = !wanted.is_empty() && wanted != came;
        differs.then(|| format!("expected   {what} by {}\ncame       {}", wanted.join(", "), came.join(", ")))
    };
    let vanishes =
        computed.vanishes_at.and_then(|number| way.forward.iter().find(|hop| hop.number == number)).map(said);
    if let Some(wanted) = step.vanishes.as_ref().filter(|wanted| Some(*wanted) != vanishes.as_ref()) {
        let came = vanishes.unwrap_or_else(|| "it does not vanish".to_owned());
        return Some(format!("expected   the address vanishes at {wanted}\ncame       {came}"));
    }
    compare("request", &step.request, &way.forward).or_else(|| compare("answer", &step.answer, &way.reply))
}
