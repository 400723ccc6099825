//! From what the API says to what the kernel holds.
//!
//! ```text
//! Observed ──▶ Store ──▶ per family: Planner ──▶ PlanChange ──▶ Datapath::change ──▶ apply ──▶ Progress
//!                           │                        after an error, at start, on a timer:
//!                           └───────────────────────── observe ──▶ repair ──▶ apply
//! ```
//!
//! [`SyncLoop`] has no clock and no task: it is told the time, does one step, and says when it wants the next. What
//! drives it is `daemon`. So a test with a fake kernel sees every step.

mod checks;
mod family;
mod isolate;
mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::Serialize;
use signpost_cluster::Observed;
use signpost_core::announce::served::ServedServices;
use signpost_core::object::{Family, Node, ObjectName, ServicePortName};
use signpost_core::planner::NodeConfig;
use signpost_core::store::{Event, Kind, Store};
use signpost_datapath::Datapath;
use signpost_datapath::conntrack::Worker;
use signpost_datapath::counts::{PacketCounts, PortCounts, Rebalancing, Room};
use tracing::{info, warn};

use crate::config::PodRanges;
use crate::metrics::{Counted, Metrics};
use crate::mode::Mode;
use crate::progress::{Outcome, Progress, Revisions};
use crate::rules::{FamilyListing, Listing, rows};
pub use checks::HealthChecks;
pub use family::FamilySync;
use pace::{Pace, Retry};

/// How often it is said again what is waited for.
const SAY_AGAIN: Duration = Duration::from_secs(30);
/// The kernel is compared with what it should hold at most this part of the time,
const COMPARE_SHARE: u32 = 200;
/// and at most this part if others change it all the time.
const DISTURBED_SHARE: u32 = 20;
/// From this on a map of the kernel is said to be nearly full, until it is emptier than that.
const CROWDED_PERCENT: u64 = 80;
const ROOMY_PERCENT: u64 = 75;
/// So many changes that wait are timed.
const MOST_TRIGGERS: usize = 10_000;
/// How often it is asked whether others changed it.
const LOOK: Duration = Duration::from_secs(1);

/// What the loop is to do, from configuration.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// The node's name.
    pub node: Arc<str>,
    /// The mode of the datapaths.
    pub mode: Mode,
    /// What is not there, and what is done in its place.
    pub lacks: Arc<[String]>,
    /// Who counts as a pod.
    pub pods: PodRanges,
    /// See `NodeOptions`.
    pub min_sync_period: Duration,
    /// See `NodeOptions`.
    pub sync_period: Duration,
}

/// Keeps the kernel equal to the plan, for every family.
#[derive(Debug)]
pub struct SyncLoop<D: Datapath> {
    options: SyncOptions,
    config: NodeConfig,
    store: Store,
    families: Vec<FamilySync<D>>,
    checks: HealthChecks,
    served: ServedServices,
    /// The node as it was last, should its object be deleted under us.
    own: Option<Node>,
    /// All is known that the first comparison needs; from then on the kernel is kept in step.
    started: bool,
    waiting_since: Option<Instant>,
    pace: Pace,
    /// A change waits since then.
    queued: Option<Instant>,
    compare_at: Option<Instant>,
    /// Before that, no disturbance leads to a comparison.
    undisturbed_until: Option<Instant>,
    /// The kernel's generation after our last step, if it has one, and when to ask for it again.
    generation: Option<u32>,
    look_at: Option<Instant>,
    seen: Revisions,
    /// Slices' changes that wait for the kernel: when they were triggered, in milliseconds since 1970.
    triggers_ms: Vec<i64>,
    /// Maps of the kernel of which it was said that they are nearly full.
    crowded: BTreeSet<&'static str>,
    /// Those of them of which nobody was told yet.
    untold_crowded: Vec<Room>,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
}

impl<D: Datapath> SyncLoop<D> {
    /// Whether the kernel is kept in step, not still waited for what has to be known before.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Nothing is done before [`SyncLoop::step`].
    pub fn new(
        options: SyncOptions,
        config: NodeConfig,
        datapaths: Vec<(Family, D, Option<Worker>)>,
        progress: Arc<Progress>,
        metrics: Arc<Metrics>,
    ) -> SyncLoop<D> {
        let families = datapaths
            .into_iter()
            .map(|(family, datapath, flows)| FamilySync::new(family, datapath, flows, config.clone()))
            .collect();
        SyncLoop {
            pace: Pace::new(options.min_sync_period),
            options,
            config,
            store: Store::new(),
            families,
            checks: HealthChecks::default(),
            served: ServedServices::default(),
            own: None,
            started: false,
            waiting_since: None,
            queued: None,
            compare_at: None,
            undisturbed_until: None,
            generation: None,
            look_at: None,
            seen: Revisions::default(),
            triggers_ms: Vec::new(),
            crowded: BTreeSet::new(),
            untold_crowded: Vec::new(),
            progress,
            metrics,
        }
    }

    /// Takes in what the API said. Cheap; the kernel is not touched.
    pub fn observe(&mut self, observed: Observed, now: Instant) {
        match observed {
            Observed::Event { event, kind, revision, triggered_ms } => {
                if let Event::NodeApplied(node) = &event
                    && node.name == self.options.node
                {
                    self.node_applied(node.clone());
                }
                match &event {
                    Event::Reset(_) => {}
                    Event::Synced(_) => self.seen.set(kind, revision),
                    _ => {
                        self.seen.raise(kind, revision);
                        self.metrics.change_seen(kind);
                    }
                }
                self.triggers_ms
                    .extend(triggered_ms.filter(|_| self.started && self.triggers_ms.len() < MOST_TRIGGERS));
                self.store.handle(event);
                if kind == Kind::Node {
                    self.keep_own_node();
                }
            }
            Observed::Bookmark { kind, revision } => self.seen.raise(kind, revision),
            Observed::Eligible { node, eligible } => {
                if node == self.options.node {
                    self.progress.health().eligible(eligible);
                }
                return;
            }
            Observed::Malformed(malformed) => {
                self.metrics.malformed(malformed.object.kind);
                return;
            }
        }
        self.queue(now);
    }

    /// The node's addresses changed.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Instant) {
        if self.config.node_addresses != addresses {
            info!(addresses = addresses.len(), "the node's addresses changed");
            self.config.node_addresses = addresses;
            self.reconfigure();
            self.queue(now);
        }
    }

    /// The node's cache for names is ready, or is not any more.
    pub fn set_node_cache(&mut self, is_ready: bool, now: Instant) {
        if self.config.node_cache != is_ready {
            self.config.node_cache = is_ready;
            self.reconfigure();
            self.queue(now);
        }
    }

    /// Who is behind the pods' interfaces changed.
    pub fn set_pods_behind(&mut self, behind: &BTreeSet<IpNet>, now: Instant) {
        let PodRanges::Interfaces(_) = self.options.pods else { return };
        if !self.config.cluster_cidrs.iter().eq(behind) {
            self.config.cluster_cidrs = behind.iter().copied().collect();
            self.reconfigure();
            self.queue(now);
        }
    }

    /// When the next step is due; `None`: not before something is observed.
    pub fn due(&self) -> Option<Instant> {
        if !self.started {
            return self.queued.or(self.waiting_since.map(|since| since + SAY_AGAIN));
        }
        let changes = self.queued.map(|queued| self.pace.not_before(queued));
        let retries = self.families.iter().filter_map(|family| family.retry_at());
        changes.into_iter().chain(self.compare_at).chain(self.look_at).chain(retries).min()
    }

    /// Does what is due. May take as long as the kernel takes. `clock` is read after each call of the kernel.
    pub fn step(&mut self, clock: &mut dyn FnMut() -> Instant) {
        let now = clock();
        if !self.started && !self.may_start(now) {
            return;
        }
        let generation = self.generation();
        if self.started && generation != self.generation {
            self.disturbed(now);
        }
        let compare = !self.started || self.compare_at.is_some_and(|at| at <= now);
        let retry = self.families.iter().filter_map(|family| family.retry_at()).any(|at| at <= now);
        self.started = true;
        self.look_at = generation.map(|_| now + LOOK);
        if compare || retry || self.queued.is_some() {
            self.sync(compare, generation, clock);
        } else {
            self.generation = generation;
        }
    }

    fn sync(&mut self, compare: bool, generation: Option<u32>, clock: &mut dyn FnMut() -> Instant) {
        let now = clock();
        let dirty = self.store.take_dirty();
        self.checks.update(&self.store, &dirty, &self.options.node);
        self.served.update(&self.store, &dirty);
        let mut outcomes = Vec::with_capacity(self.families.len());
        for family in &mut self.families {
            let began = clock();
            let outcome = family.sync(&self.store, &dirty, compare, began);
            self.metrics.synced(family.family(), &outcome, clock() - began);
            self.metrics.flows(family.family(), family.flow_totals());
            self.metrics.withheld(family.family(), family.withheld());
            outcomes.push(outcome);
        }
        self.tell_room();
        let ended = clock();
        if compare {
            // No rest after it: it is rare, and the first change after a start of seconds should not wait as long again.
            self.compare_at = Some(ended + self.options.sync_period.max((ended - now) * COMPARE_SHARE));
            self.undisturbed_until = Some(ended + LOOK.max((ended - now) * DISTURBED_SHARE));
        } else {
            self.pace.worked(now, ended);
        }
        self.generation = self.generation();
        let ours = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Changed | Outcome::Repaired)).count();
        let expected = generation.map(|before| before.wrapping_add(ours as u32));
        // After a refusal it is not known what was done, but the next step compares anyway.
        if !outcomes.contains(&Outcome::Failed) && self.generation != expected {
            self.disturbed(ended);
        }
        self.queued = None;
        if self.families.iter().all(FamilySync::is_settled) {
            self.done(now, ended);
        } else {
            self.progress.health().pending(now);
        }
    }

    /// Says it before a map of the kernel is full: when one is full, a change of a Service fails.
    fn tell_room(&mut self) {
        let mut all: BTreeMap<&'static str, Room> = BTreeMap::new();
        for room in self.families.iter().flat_map(FamilySync::room) {
            all.entry(room.map).and_modify(|both| both.used += room.used).or_insert(room);
        }
        for room in all.into_values() {
            let Room { map, used, most, flag } = room;
            self.metrics.room(map, used, most);
            let share = used * 100 / most.max(1);
            if share >= CROWDED_PERCENT && self.crowded.insert(map) {
                warn!(map, used, most, flag, "a map of the kernel is nearly full: the flag gives it more room");
                self.untold_crowded.push(room);
            } else if share < ROOMY_PERCENT {
                self.crowded.remove(map);
            }
        }
    }

    /// Maps of the kernel that became nearly full, each told once until it is emptier.
    pub fn take_crowded(&mut self) -> Vec<Room> {
        std::mem::take(&mut self.untold_crowded)
    }

    /// What happened to connections that are spread anew.
    pub fn take_rebalancing(&mut self) -> Vec<(Family, ServicePortName, Rebalancing)> {
        let told = self.families.iter_mut().flat_map(|family| {
            let of = family.family();
            family.take_rebalancing().into_iter().map(move |(port, what)| (of, port, what))
        });
        told.collect()
    }

    fn generation(&mut self) -> Option<u32> {
        self.families.first_mut().and_then(FamilySync::generation)
    }

    /// Someone else changed the kernel's rules, ours or their own.
    fn disturbed(&mut self, now: Instant) {
        let soon = self.undisturbed_until.map_or(now, |until| until.max(now));
        self.compare_at = Some(self.compare_at.map_or(soon, |at| at.min(soon)));
    }

    /// The families whose kernel refuses, and why.
    pub fn refusals(&self) -> impl Iterator<Item = (Family, &str)> {
        self.families.iter().filter_map(|family| Some((family.family(), family.refusal()?)))
    }

    /// Services that the kernel does not take, and why; each is told once for each reason.
    pub fn take_withheld(&mut self) -> Vec<(Family, ObjectName, String)> {
        let told = self.families.iter_mut().flat_map(|family| {
            let of = family.family();
            family.take_untold().into_iter().map(move |(name, reason)| (of, name, reason))
        });
        told.collect()
    }

    /// Plans and programs of all families as JSON: `{"ipv4": ..., "ipv6": ...}`.
    ///
    /// # Errors
    /// One of them cannot be written as JSON.
    pub fn plans(&self) -> Result<String, serde_json::Error> {
        self.json(FamilySync::plan)
    }

    /// The whole programs, see [`SyncLoop::plans`].
    ///
    /// # Errors
    /// One of them cannot be written as JSON.
    pub fn programs(&self) -> Result<String, serde_json::Error>
    where
        D::Program: Serialize,
    {
        self.json(FamilySync::program)
    }

    /// The rows that `wanted` asks for with the whole programs, as JSON.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn listing(&mut self, wanted: &dyn Fn(&ObjectName) -> bool) -> Result<String, serde_json::Error>
    where
        D::Program: Serialize,
    {
        let mut counts = self.counts();
        let store = &self.store;
        let mut part = |family: &FamilySync<D>| {
            let mut rows = rows(store, family.plan(), wanted);
            let counts = counts.remove(&family.family()).unwrap_or_default();
            rows.iter_mut().for_each(|row| row.count(counts.get(&row.service_port)));
            FamilyListing { rows, program: family.program().cloned() }
        };
        serde_json::to_string(&Listing {
            mode: self.options.mode,
            lacks: self.options.lacks.to_vec(),
            process: Some(std::process::id()),
            families: self.families.iter().map(|family| (family.family(), part(family))).collect(),
            services: store.services().map(|service| service.name.clone()).collect(),
        })
    }

    /// What became of connections through Services, where the mode counts that.
    pub fn counts(&mut self) -> BTreeMap<Family, BTreeMap<ServicePortName, PortCounts>> {
        let mut all = BTreeMap::new();
        for family in &mut self.families {
            match family.counts() {
                Ok(counts) => drop(all.insert(family.family(), counts)),
                Err(error) => warn!(family = %family.family(), %error, "the kernel does not say what it counted"),
            }
        }
        all
    }

    /// All that the kernel counted.
    pub fn counted(&mut self) -> Counted {
        let mut packets: Option<PacketCounts> = None;
        for family in &mut self.families {
            match family.packets() {
                Ok(Some(more)) => *packets.get_or_insert_default() += more,
                Ok(None) => {}
                Err(error) => {
                    warn!(family = %family.family(), %error, "the kernel does not say what its rules counted")
                }
            }
        }
        Counted { services: self.counts(), packets }
    }

    fn json<'a, T: Serialize>(&'a self, part: impl Fn(&'a FamilySync<D>) -> T) -> Result<String, serde_json::Error> {
        let parts: BTreeMap<String, T> =
            self.families.iter().map(|family| (family.family().to_string(), part(family))).collect();
        serde_json::to_string(&parts)
    }

    fn queue(&mut self, now: Instant) {
        if self.queued.is_none() {
            self.queued = Some(now);
            self.metrics.queued();
        }
        if self.started {
            self.progress.health().pending(now);
        }
    }

    fn node_applied(&mut self, node: Node) {
        self.progress.health().node_present(true);
        let pods_changed = self.options.pods == PodRanges::Node
            && self.own.as_ref().map(|own| &own.pod_cidrs) != Some(&node.pod_cidrs);
        if pods_changed {
            self.config.cluster_cidrs.clone_from(&node.pod_cidrs);
            self.reconfigure();
        }
        self.own = Some(node);
    }

    /// A node that is taken out of the cluster under us goes on serving with what was known of it; only load balancers are told.
    fn keep_own_node(&mut self) {
        let Some(own) = &self.own else { return };
        if self.store.node(&self.options.node).is_none() {
            warn!(node = %self.options.node, "the Node object is gone; what it said stays in force");
            self.progress.health().node_present(false);
            self.store.handle(Event::NodeApplied(own.clone()));
        }
    }

    fn reconfigure(&mut self) {
        for family in &mut self.families {
            family.set_config(self.config.clone());
        }
    }

    /// Whether all is known that a first comparison needs. Before, a rule that is still right could be taken for
    /// wrong. Says what is missing, now and then.
    fn may_start(&mut self, now: Instant) -> bool {
        self.queued = None;
        let unsynced: Vec<String> = Kind::ALL
            .into_iter()
            .filter(|kind| !self.store.is_kind_synced(*kind))
            .map(|kind| kind.to_string())
            .collect();
        let node_known = self.store.node(&self.options.node).is_some();
        if unsynced.is_empty() && node_known {
            info!("everything needed is known; the kernel is compared with it");
            self.progress.health().waiting_for(None);
            return true;
        }
        let missing = if unsynced.is_empty() { format!("Node {}", self.options.node) } else { unsynced.join(", ") };
        let say = self.waiting_since.is_none_or(|since| now >= since + SAY_AGAIN);
        if unsynced.is_empty() && (say || self.progress.health().is_waiting_for_another(&missing)) {
            warn!(node = %self.options.node, "waiting for the Node object; if it never comes, --hostname-override names another node");
            self.waiting_since = Some(now);
        } else if say {
            info!(missing, "waiting for the API");
            self.waiting_since = Some(now);
        }
        self.progress.health().waiting_for(Some(missing));
        false
    }

    fn done(&mut self, began: Instant, ended: Instant) {
        if self.progress.programmed().is_none() {
            info!(took_ms = (ended - began).as_millis() as u64, "the kernel holds the plan");
        }
        self.metrics.programmed(&self.triggers_ms);
        self.triggers_ms.clear();
        self.progress.health().updated();
        let addresses = self.families.iter().map(|family| (family.family(), &family.plan().node_port_addresses));
        self.progress.publish_checks(self.checks.checks(addresses));
        self.progress.publish_served(self.served.all());
        self.progress.publish(self.seen);
    }
}

#[cfg(test)]
pub(crate) mod tests;
