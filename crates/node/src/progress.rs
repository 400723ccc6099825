//! What others may know of the loop: how far it is, and whether it is well.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use signpost_core::announce::served::AllServed;
use signpost_core::object::ObjectName;
use signpost_core::store::Kind;
use tokio::sync::watch;

/// Ready endpoints on this node, by where it is asked (`healthCheckNodePort`) and for which Service.
pub type Checks = BTreeMap<(SocketAddr, ObjectName), usize>;

/// The highest resourceVersion of each kind, up to which everything is known. Zero: nothing yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Revisions {
    /// Of Services.
    pub service: u64,
    /// Of EndpointSlices.
    pub endpoint_slice: u64,
    /// Of Nodes.
    pub node: u64,
    /// Of ServiceCIDRs.
    #[serde(rename = "ServiceCIDR")]
    pub service_cidr: u64,
}

impl Revisions {
    /// The one of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Service => self.service,
            Kind::EndpointSlice => self.endpoint_slice,
            Kind::Node => self.node,
            Kind::ServiceCidr => self.service_cidr,
        }
    }

    pub(crate) fn set(&mut self, kind: Kind, revision: u64) {
        *match kind {
            Kind::Service => &mut self.service,
            Kind::EndpointSlice => &mut self.endpoint_slice,
            Kind::Node => &mut self.node,
            Kind::ServiceCidr => &mut self.service_cidr,
        } = revision;
    }

    pub(crate) fn raise(&mut self, kind: Kind, revision: u64) {
        self.set(kind, self.of(kind).max(revision));
    }
}

/// What one step of one family did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The plan did not change, and the kernel was not looked at.
    Nothing,
    /// A change of the plan was applied.
    Changed,
    /// The kernel was compared, and held what it should.
    Compared,
    /// The kernel was compared, and mended.
    Repaired,
    /// The kernel or its tool refused.
    Failed,
    /// It refused before, and its time to be asked again has not come.
    Postponed,
}

/// Shared between the loop and those who ask.
#[derive(Debug)]
pub struct Progress {
    programmed: watch::Sender<Option<Revisions>>,
    checks: watch::Sender<Checks>,
    served: watch::Sender<AllServed>,
    health: Mutex<Health>,
}

impl Progress {
    /// Nothing is programmed yet.
    pub fn new() -> Progress {
        Progress {
            programmed: watch::Sender::new(None),
            checks: watch::Sender::new(Checks::new()),
            served: watch::Sender::new(AllServed::default()),
            health: Mutex::new(Health::default()),
        }
    }

    /// What is seen and in the kernel, in every family; `None`: nothing yet.
    pub fn programmed(&self) -> Option<Revisions> {
        *self.programmed.borrow()
    }

    /// Follows [`Progress::programmed`].
    pub fn follow(&self) -> watch::Receiver<Option<Revisions>> {
        self.programmed.subscribe()
    }

    /// Follows what health checks of Services are to answer.
    pub fn checks(&self) -> watch::Receiver<Checks> {
        self.checks.subscribe()
    }

    /// Follows the Services with load-balancer addresses, as the kernel serves them.
    pub fn served(&self) -> watch::Receiver<AllServed> {
        self.served.subscribe()
    }

    pub(crate) fn publish_served(&self, served: AllServed) {
        self.served.send_if_modified(|current| {
            let changed = !Arc::ptr_eq(current, &served);
            *current = served;
            changed
        });
    }

    pub(crate) fn publish_checks(&self, checks: Checks) {
        self.checks.send_if_modified(|current| {
            let changed = *current != checks;
            *current = checks;
            changed
        });
    }

    /// Whether all is well.
    pub fn health(&self) -> MutexGuard<'_, Health> {
        // Held for assignments only: there is no half-done state after a panic.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, revisions: Revisions) {
        self.programmed.send_if_modified(|current| {
            let changed = *current != Some(revisions);
            *current = Some(revisions);
            changed
        });
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

/// What `/healthz` and `/livez` answer from.
#[derive(Debug, Default)]
pub struct Health {
    last_updated: Option<SystemTime>,
    /// The oldest change that is not in the kernel.
    pending_since: Option<Instant>,
    waiting_for: Option<String>,
    node_missing: bool,
    node_leaving: bool,
}

impl Health {
    /// Whether the loop itself is well: no change waits longer than `timeout`.
    pub fn is_live(&self, now: Instant, timeout: Duration) -> bool {
        self.pending_since.is_none_or(|since| now.saturating_duration_since(since) <= timeout)
    }

    /// Whether the node should get traffic: the kernel holds a plan, and the node stays.
    pub fn is_ready(&self) -> bool {
        self.last_updated.is_some() && self.is_node_eligible()
    }

    /// Whether the Node object is there and stays.
    pub fn is_node_eligible(&self) -> bool {
        !self.node_missing && !self.node_leaving
    }

    /// When the kernel last was known to hold the plan.
    pub fn last_updated(&self) -> Option<SystemTime> {
        self.last_updated
    }

    /// What is missing before the start.
    pub fn waiting(&self) -> Option<&str> {
        self.waiting_for.as_deref()
    }

    pub(crate) fn is_waiting_for_another(&self, what: &str) -> bool {
        self.waiting_for.as_deref() != Some(what)
    }

    pub(crate) fn waiting_for(&mut self, what: Option<String>) {
        self.waiting_for = what;
    }

    pub(crate) fn pending(&mut self, since: Instant) {
        self.pending_since.get_or_insert(since);
    }

    pub(crate) fn updated(&mut self) {
        self.pending_since = None;
        self.last_updated = Some(SystemTime::now());
    }

    pub(crate) fn node_present(&mut self, present: bool) {
        self.node_missing = !present;
    }

    pub(crate) fn eligible(&mut self, eligible: bool) {
        self.node_leaving = !eligible;
    }
}
