//! One Service that the kernel refuses must not cost the others. A refused change is tried again in halves, until what
//! cannot go in is known by name and everything else is in.
//!
//! ```text
//! change of 8 Services ─▶ refused ─┬▶ 4: in
//!                                  └▶ 4: refused ─┬▶ 2: in
//!                                                 └▶ 2: refused ─┬▶ 1: in
//!                                                                └▶ 1: withheld
//! ```

use std::collections::BTreeMap;

use signpost_core::object::ObjectName;
use signpost_core::plan::{Frontend, FrontendKey, NodePlan, PlanChange};
use signpost_datapath::Datapath;

/// So many are found by name. Of more, the cause is hardly theirs: whoever is not in by then is withheld untried.
const MOST: usize = 32;

/// Services with the reason for which the kernel does not take them.
pub(super) type Refused = BTreeMap<ObjectName, String>;

type Services = Vec<(ObjectName, BTreeMap<FrontendKey, Frontend>)>;

/// The frontends of these Services.
fn services<'a>(frontends: impl Iterator<Item = (&'a FrontendKey, &'a Frontend)>) -> Services {
    let mut services: BTreeMap<ObjectName, BTreeMap<FrontendKey, Frontend>> = BTreeMap::new();
    for (key, frontend) in frontends {
        services.entry(frontend.service_port.service.clone()).or_default().insert(*key, frontend.clone());
    }
    services.into_iter().collect()
}

/// Carries out a change that was refused. The kernel is brought to `program` first, since it may be that somebody else changed
/// it; then the change is tried again, first as a whole, then what is no Service's, then what goes in of `planned.set`.
/// Afterwards the kernel holds what `program` has become.
///
/// # Errors
/// What is no Service's was refused, or the kernel cannot be reached: its state is unknown.
pub(super) fn change<D: Datapath>(
    datapath: &mut D,
    program: &mut D::Program,
    planned: &PlanChange,
) -> Result<Refused, D::Error> {
    let have = datapath.observe()?;
    datapath.apply(&datapath.repair(program, &have))?;
    match apply(datapath, program, planned) {
        Err(error) if datapath.is_refusal(&error) => restore(datapath, program)?,
        done => return done.map(|()| Refused::new()),
    }
    apply(datapath, program, &PlanChange { set: BTreeMap::new(), ..planned.clone() })?;
    let mut isolation = Isolation { datapath, program, refused: Refused::new() };
    isolation.add(&services(planned.set.iter()))?;
    Ok(isolation.refused)
}

/// Makes the kernel hold what goes in of a plan, whatever it holds. It goes without some Services until they were tried: half of
/// them if that is enough, so that the rules of as many as possible stay in force.
///
/// # Errors
/// Even a plan without Services is refused, or the kernel cannot be reached.
pub(super) fn whole<D: Datapath>(datapath: &mut D, plan: &NodePlan) -> Result<(D::Program, Refused), D::Error> {
    let all = services(plan.frontends.iter());
    let (first, second) = all.split_at(all.len() / 2);
    let mut last = None;
    for (stays, waits) in [(second, first), (first, second), (&[][..], &all[..])] {
        let frontends = stays.iter().flat_map(|(_, frontends)| frontends.clone()).collect();
        let mut program = datapath.program(&NodePlan { frontends, ..plan.clone() });
        let have = datapath.observe()?;
        match datapath.apply(&datapath.repair(&program, &have)) {
            Ok(()) => {
                let mut isolation = Isolation { datapath, program: &mut program, refused: Refused::new() };
                isolation.add(waits)?;
                let refused = isolation.refused;
                return Ok((program, refused));
            }
            Err(error) if datapath.is_refusal(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("the list is not empty, and all of it was refused"))
}

fn apply<D: Datapath>(datapath: &mut D, program: &mut D::Program, planned: &PlanChange) -> Result<(), D::Error> {
    let change = datapath.change(program, planned);
    datapath.apply(&change)?;
    datapath.advance(program, &change);
    Ok(())
}

/// After a refusal of which a part may be in the kernel: takes that part out.
fn restore<D: Datapath>(datapath: &mut D, program: &D::Program) -> Result<(), D::Error> {
    if datapath.is_atomic() {
        return Ok(());
    }
    let have = datapath.observe()?;
    datapath.apply(&datapath.repair(program, &have))
}

struct Isolation<'a, D: Datapath> {
    datapath: &'a mut D,
    program: &'a mut D::Program,
    refused: Refused,
}

impl<D: Datapath> Isolation<'_, D> {
    fn add(&mut self, services: &[(ObjectName, BTreeMap<FrontendKey, Frontend>)]) -> Result<(), D::Error> {
        if services.is_empty() {
            return Ok(());
        }
        let set = services.iter().flat_map(|(_, frontends)| frontends.clone()).collect();
        let error = match apply(self.datapath, self.program, &PlanChange { set, ..PlanChange::default() }) {
            Ok(()) => return Ok(()),
            Err(error) if self.datapath.is_refusal(&error) => error,
            Err(error) => return Err(error),
        };
        restore(self.datapath, self.program)?;
        if services.len() == 1 || self.refused.len() >= MOST {
            self.refused.extend(services.iter().map(|(name, _)| (name.clone(), error.to_string())));
            return Ok(());
        }
        let (first, second) = services.split_at(services.len() / 2);
        self.add(first)?;
        self.add(second)
    }
}
