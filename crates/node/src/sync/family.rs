//! One family: its plan, its program, and what is known of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use signpost_core::object::{Family, ObjectName, Protocol, ServicePortName};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange};
use signpost_core::planner::{NodeConfig, Planner};
use signpost_core::store::{Dirty, Store};
use signpost_datapath::Datapath;
use signpost_datapath::conntrack::{Totals, Wanted, Worker, places};
use signpost_datapath::counts::{PacketCounts, PortCounts, Rebalancing, Room};
use tracing::{debug, error, info, warn};

use super::Retry;
use super::isolate::{self, Refused};
use crate::progress::Outcome;

/// One family of the node.
#[derive(Debug)]
pub struct FamilySync<D: Datapath> {
    family: Family,
    datapath: D,
    planner: Planner,
    /// What the kernel should hold; `None` before the first plan.
    program: Option<D::Program>,
    /// Whether the kernel is known to hold it.
    settled: bool,
    retry: Retry,
    /// Why the kernel last refused, since it last took something.
    refusal: Option<String>,
    /// Services that the kernel does not take: it holds of them what it held before, or nothing.
    withheld: BTreeMap<ObjectName, Withheld>,
    /// Those of them of which nobody was told yet.
    untold: Refused,
    /// Deletes flows that the kernel would go on leading to where nobody is; `None`: nobody does.
    flows: Option<Worker>,
    /// Something about UDP changed since the worker was told what is wanted.
    flows_changed: bool,
    /// The kernel was not looked at yet: what it holds then is a former process'.
    is_new: bool,
}

/// A Service that the kernel does not take.
#[derive(Debug)]
struct Withheld {
    reason: String,
    retry: Retry,
}

impl<D: Datapath> FamilySync<D> {
    /// Without a plan, and with nothing known of the kernel. `flows`: who deletes flows that a change made stale.
    pub fn new(family: Family, datapath: D, flows: Option<Worker>, config: NodeConfig) -> FamilySync<D> {
        FamilySync {
            family,
            datapath,
            planner: Planner::new(family, config),
            program: None,
            settled: false,
            retry: Retry::default(),
            refusal: None,
            withheld: BTreeMap::new(),
            untold: Refused::new(),
            flows,
            flows_changed: true,
            is_new: true,
        }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The plan after the last sync.
    pub fn plan(&self) -> &NodePlan {
        self.planner.plan()
    }

    /// What the kernel should hold; `None` before the first sync.
    pub fn program(&self) -> Option<&D::Program> {
        self.program.as_ref()
    }

    /// Whether the kernel holds the plan.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// When the kernel is to be asked again after it refused.
    pub fn retry_at(&self) -> Option<Instant> {
        let withheld = self.withheld.values().filter_map(|withheld| withheld.retry.at());
        self.retry.at().into_iter().chain(withheld).min()
    }

    /// How many Services the kernel does not take.
    pub fn withheld(&self) -> usize {
        self.withheld.len()
    }

    /// Services that the kernel does not take, with its reason, of which this was not told yet.
    pub fn take_untold(&mut self) -> Refused {
        std::mem::take(&mut self.untold)
    }

    /// Why the kernel refuses; `None`: it does not.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// See [`Datapath::generation`].
    pub fn generation(&mut self) -> Option<u32> {
        self.datapath.generation()
    }

    /// See [`Datapath::counts`].
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counts(&mut self) -> Result<BTreeMap<ServicePortName, PortCounts>, D::Error> {
        self.datapath.counts(self.planner.plan())
    }

    /// See [`Datapath::take_rebalancing`].
    pub fn take_rebalancing(&mut self) -> Vec<(ServicePortName, Rebalancing)> {
        self.datapath.take_rebalancing(self.planner.plan())
    }
    /// See [`Datapath::packets`].
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn packets(&mut self) -> Result<Option<PacketCounts>, D::Error> {
        self.datapath.packets()
    }

    /// See [`Datapath::room`]; nothing before the first sync.
    pub fn room(&self) -> Vec<Room> {
        self.program.as_ref().map(|program| self.datapath.room(program)).unwrap_or_default()
    }

    /// The next sync plans anew with this.
    pub fn set_config(&mut self, config: NodeConfig) {
        self.planner.set_config(config);
    }

    /// What became of stale flows, if anyone looks after them.
    pub fn flow_totals(&self) -> Option<&Totals> {
        self.flows.as_ref().map(Worker::totals)
    }

    /// Brings plan and kernel in step with the store. `dirty`: all that changed since the last call. `compare`: look at what the
    /// kernel really holds.
    pub fn sync(&mut self, store: &Store, dirty: &Dirty, compare: bool, now: Instant) -> Outcome {
        let planned = self.planner.update(store, dirty);
        let planned = self.with_withheld(planned, now);
        self.flows_changed |= self.touches_udp(store, dirty, &planned);
        let outcome = self.apply(&planned, compare, now);
        if self.settled
            && std::mem::take(&mut self.flows_changed)
            && let Some(flows) = &self.flows
        {
            flows.want(Wanted::of(self.planner.plan(), store));
        }
        outcome
    }

    /// Whether flows of UDP could have become stale: a frontend changed, or endpoints that the plan need not name.
    fn touches_udp(&self, store: &Store, dirty: &Dirty, planned: &PlanChange) -> bool {
        let is_udp = |key: &FrontendKey| !places(self.planner.plan(), key).is_empty();
        let has_udp = |name: &ObjectName| {
            store.service(name).is_some_and(|service| service.ports.iter().any(|port| port.protocol == Protocol::Udp))
        };
        planned.node.is_some()
            || planned.set.keys().chain(&planned.removed).any(is_udp)
            || dirty.services.iter().any(has_udp)
    }

    fn apply(&mut self, planned: &PlanChange, compare: bool, now: Instant) -> Outcome {
        let Some(program) = &mut self.program else {
            self.program = Some(self.datapath.program(self.planner.plan()));
            return self.repair(now);
        };
        if !self.settled {
            if !planned.is_empty() {
                let change = self.datapath.change(program, planned);
                self.datapath.advance(program, &change);
            }
            return if self.retry.at().is_some_and(|at| now < at) { Outcome::Postponed } else { self.repair(now) };
        }
        let changed = if planned.is_empty() { Outcome::Nothing } else { self.change(planned, now) };
        match changed {
            Outcome::Nothing | Outcome::Changed if compare => self.repair(now),
            changed => changed,
        }
    }

    /// Changes a kernel that is known to hold the program.
    fn change(&mut self, planned: &PlanChange, now: Instant) -> Outcome {
        let program = self.program.as_mut().expect("a change follows the first plan");
        let change = self.datapath.change(program, planned);
        if change == self.datapath.change(program, &PlanChange::default()) {
            // Not everything that a plan says is something in the kernel's words.
            self.datapath.advance(program, &change);
            return Outcome::Nothing;
        }
        let changed = match self.datapath.apply(&change) {
            Ok(()) => {
                self.datapath.advance(program, &change);
                Ok(Refused::new())
            }
            Err(error) if self.datapath.is_refusal(&error) => isolate::change(&mut self.datapath, program, planned),
            Err(error) => Err(error),
        };
        match changed {
            Ok(refused) => {
                self.tried(planned.set.values().map(|frontend| &frontend.service_port.service), refused, now);
                let (set, removed) = (planned.set.len(), planned.removed.len());
                debug!(family = %self.family, set, removed, "the plan's change is in the kernel");
                Outcome::Changed
            }
            Err(error) => {
                warn!(family = %self.family, %error, "the kernel refused a change; comparing it with the plan");
                // Whether or not it is in the kernel: it is what should be.
                let change = self.datapath.change(program, planned);
                self.datapath.advance(program, &change);
                self.settled = false;
                self.repair(now)
            }
        }
    }

    /// With all frontends of each withheld Service whose turn it is, or that the change touches. Not while the kernel's state
    /// is unknown: one Service that is refused would be looked for among all.
    fn with_withheld(&mut self, mut planned: PlanChange, now: Instant) -> PlanChange {
        if self.withheld.is_empty() || !self.settled {
            return planned;
        }
        let touched: BTreeSet<ObjectName> =
            planned.set.values().map(|frontend| frontend.service_port.service.clone()).collect();
        let is_due = |withheld: &Withheld| withheld.retry.at().is_some_and(|at| at <= now);
        let again = self.withheld.iter().filter(|(name, withheld)| is_due(withheld) || touched.contains(name));
        let again: BTreeSet<ObjectName> = again.map(|(name, _)| name.clone()).collect();
        let frontends = self.planner.plan().frontends.iter();
        let theirs: BTreeMap<_, _> = frontends
            .filter(|(_, frontend)| again.contains(&frontend.service_port.service))
            .map(|(key, frontend)| (*key, frontend.clone()))
            .collect();
        let alive: BTreeSet<&ObjectName> = theirs.values().map(|frontend| &frontend.service_port.service).collect();
        self.withheld.retain(|name, _| !again.contains(name) || alive.contains(name));
        planned.set.extend(theirs);
        planned
    }

    /// What came of these Services: those that are not refused are in.
    fn tried<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>, refused: Refused, now: Instant) {
        for name in services.filter(|name| !refused.contains_key(*name)) {
            if self.withheld.remove(name).is_some() {
                info!(family = %self.family, service = %name, "the kernel takes the Service's rules again");
            }
        }
        for (name, reason) in refused {
            let withheld = self
                .withheld
                .entry(name.clone())
                .or_insert_with(|| Withheld { reason: String::new(), retry: Retry::default() });
            let wait = withheld.retry.failed(now);
            if withheld.reason != reason {
                let again_in_ms = wait.as_millis() as u64;
                error!(family = %self.family, service = %name, reason, again_in_ms, "the kernel refuses the rules of a Service");
                withheld.reason.clone_from(&reason);
                self.untold.insert(name, reason);
            }
        }
    }

    /// Makes the kernel equal to the program, whatever it holds.
    fn repair(&mut self, now: Instant) -> Outcome {
        let program = self.program.as_ref().expect("a repair follows the first plan");
        let nothing = self.datapath.change(program, &PlanChange::default());
        let repaired = self.datapath.observe().and_then(|have| {
            let served = if std::mem::take(&mut self.is_new) { self.datapath.udp_frontends(&have) } else { Vec::new() };
            if let (false, Some(flows)) = (served.is_empty(), &self.flows) {
                flows.remember(served);
            }
            let change = self.datapath.repair(program, &have);
            if change == nothing {
                return Ok(false);
            }
            self.datapath.apply(&change).map(|()| true)
        });
        let repaired = match repaired {
            Err(error) if self.datapath.is_refusal(&error) => self.isolate_whole(now).map(|()| true),
            repaired => repaired,
        };
        match repaired {
            Ok(changed) => {
                if self.retry.failures() > 0 {
                    info!(family = %self.family, failures = self.retry.failures(), "the kernel takes changes again");
                } else if changed && self.settled {
                    warn!(family = %self.family, "the kernel did not hold what it should; it does again");
                }
                self.settled = true;
                self.retry = Retry::default();
                self.refusal = None;
                if changed { Outcome::Repaired } else { Outcome::Compared }
            }
            Err(error) => {
                self.settled = false;
                let wait = self.retry.failed(now);
                self.refusal = Some(error.to_string());
                error!(
                    family = %self.family,
                    %error,
                    failures = self.retry.failures(),
                    again_in_ms = wait.as_millis() as u64,
                    "the kernel cannot be made equal to the plan"
                );
                Outcome::Failed
            }
        }
    }

    /// Makes the kernel hold all that it takes of the plan.
    fn isolate_whole(&mut self, now: Instant) -> Result<(), D::Error> {
        let plan = self.planner.plan();
        let (program, refused) = isolate::whole(&mut self.datapath, plan)?;
        self.program = Some(program);
        let withheld: Vec<ObjectName> = self.withheld.keys().cloned().collect();
        self.tried(withheld.iter(), refused, now);
        Ok(())
    }
}
