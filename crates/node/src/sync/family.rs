//! One family: its plan, its program, and what is known of the kernel.

use std::time::Instant;

use signpost_core::object::{Family, ObjectName, Protocol};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange};
use signpost_core::planner::{NodeConfig, Planner};
use signpost_core::store::{Dirty, Store};
use signpost_datapath::Datapath;
use signpost_datapath::conntrack::{Totals, Wanted, Worker, places};
use tracing::{debug, error, info, warn};

use super::Retry;
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
    /// Deletes flows that the kernel would go on leading to where nobody is; `None`: nobody does.
    flows: Option<Worker>,
    /// Something about UDP changed since the worker was told what is wanted.
    flows_changed: bool,
    /// The kernel was not looked at yet: what it holds then is a former process'.
    is_new: bool,
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
        self.retry.at()
    }

    /// Why the kernel refuses; `None`: it does not.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// See [`Datapath::generation`].
    pub fn generation(&mut self) -> Option<u32> {
        self.datapath.generation()
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
        if !self.settled || compare {
            if !planned.is_empty() {
                let change = self.datapath.change(program, planned);
                self.datapath.advance(program, &change);
            }
            return if self.retry.at().is_some_and(|at| now < at) { Outcome::Postponed } else { self.repair(now) };
        }
        if planned.is_empty() {
            return Outcome::Nothing;
        }
        let change = self.datapath.change(program, planned);
        if change == self.datapath.change(program, &PlanChange::default()) {
            // Not everything that a plan says is something in the kernel's words.
            self.datapath.advance(program, &change);
            return Outcome::Nothing;
        }
        let applied = self.datapath.apply(&change);
        // Whether or not it is in the kernel: it is what should be.
        self.datapath.advance(program, &change);
        match applied {
            Ok(()) => {
                debug!(
                    family = %self.family,
                    set = planned.set.len(),
                    removed = planned.removed.len(),
                    "the plan's change is in the kernel"
                );
                Outcome::Changed
            }
            Err(error) => {
                warn!(family = %self.family, %error, "the kernel refused a change; comparing it with the plan");
                self.settled = false;
                self.repair(now)
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
}
