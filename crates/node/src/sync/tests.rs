//! The loop against a kernel in memory that refuses at any call.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Mutex;

use signpost_core::object::{
    Endpoint, EndpointPort, EndpointSlice, ObjectName, Protocol, Service, ServicePort, TrafficPolicy,
};
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{NodePlan, PlanChange};
use signpost_core::planner::NodePortAddresses;

use super::*;

pub(crate) mod faults;
mod room;

/// A kernel that holds a plan as it is.
#[derive(Debug, Default)]
struct Kernel {
    holds: Option<NodePlan>,
    /// What was asked of it, in order.
    calls: Vec<&'static str>,
    /// The calls, counted from 0, that it refuses.
    refuses: BTreeSet<usize>,
    /// Whether a refused call did its work before it failed.
    lies: bool,
    generation: Option<u32>,
    /// Its maps.
    rooms: Vec<Room>,
}

impl Kernel {
    fn transaction(&mut self) {
        self.generation = self.generation.map(|generation| generation + 1);
    }
}

#[derive(Debug, Clone)]
struct Fake(Arc<Mutex<Kernel>>);

#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct Refused;

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Whole(Box<NodePlan>),
    Change(Box<PlanChange>),
}

impl Fake {
    fn call<T>(&self, name: &'static str, work: impl FnOnce(&mut Kernel) -> T) -> Result<T, Refused> {
        let mut kernel = self.0.lock().unwrap();
        let refused = kernel.refuses.contains(&kernel.calls.len());
        kernel.calls.push(name);
        if refused && !kernel.lies {
            return Err(Refused);
        }
        let done = work(&mut kernel);
        if refused { Err(Refused) } else { Ok(done) }
    }
}

impl Datapath for Fake {
    type Program = NodePlan;
    type Change = Step;
    type Observed = Option<NodePlan>;
    type Error = Refused;

    fn program(&self, plan: &NodePlan) -> NodePlan {
        plan.clone()
    }

    fn change(&self, _before: &NodePlan, plan: &PlanChange) -> Step {
        Step::Change(Box::new(plan.clone()))
    }

    fn advance(&self, program: &mut NodePlan, change: &Step) {
        match change {
            Step::Whole(plan) => program.clone_from(plan),
            Step::Change(change) => program.apply(change),
        }
    }

    fn repair(&self, want: &NodePlan, have: &Option<NodePlan>) -> Step {
        if have.as_ref() == Some(want) { Step::Change(Box::default()) } else { Step::Whole(Box::new(want.clone())) }
    }

    fn walk(&self, program: &NodePlan, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        signpost_core::walk::walk_remembering(program, packet, remembered)
    }

    fn observe(&mut self) -> Result<Option<NodePlan>, Refused> {
        self.call("observe", |kernel| kernel.holds.clone())
    }

    fn apply(&mut self, change: &Step) -> Result<(), Refused> {
        self.call("apply", |kernel| {
            kernel.transaction();
            match change {
                Step::Whole(plan) => kernel.holds = Some((**plan).clone()),
                Step::Change(change) => kernel.holds.as_mut().expect("a change follows the whole").apply(change),
            }
        })
    }

    fn room(&self, _program: &NodePlan) -> Vec<Room> {
        self.0.lock().unwrap().rooms.clone()
    }

    fn generation(&mut self) -> Option<u32> {
        self.0.lock().unwrap().generation
    }
}

/// The loop with its kernel and a clock that only moves when told.
struct World {
    sync: SyncLoop<Fake>,
    kernel: Arc<Mutex<Kernel>>,
    progress: Arc<Progress>,
    now: Instant,
    revision: u64,
}

const NODE: &str = "n1";

impl World {
    fn new(kernel: Kernel) -> World {
        World::with(kernel, PodRanges::Cluster(vec![]))
    }

    fn with(kernel: Kernel, pods: PodRanges) -> World {
        let kernel = Arc::new(Mutex::new(kernel));
        let progress = Arc::new(Progress::new());
        let (options, config) = options(pods);
        let datapaths = vec![(Family::Ipv4, Fake(kernel.clone()), None)];
        let metrics = Arc::new(Metrics::new());
        let sync = SyncLoop::new(options, config, datapaths, progress.clone(), metrics);
        World { sync, kernel, progress, now: Instant::now(), revision: 100 }
    }

    /// One that holds a Service, and whose kernel was not told of anything yet but that.
    fn started(kernel: Kernel) -> World {
        let mut world = World::new(kernel);
        world.list(&[Event::ServiceApplied(service("web", 1)), Event::SliceApplied(slice("web", 1))], true);
        world.step();
        world
    }

    fn see(&mut self, event: Event) {
        let kind = match &event {
            Event::ServiceApplied(_) | Event::ServiceDeleted(_) => Kind::Service,
            Event::SliceApplied(_) | Event::SliceDeleted(_) => Kind::EndpointSlice,
            Event::NodeApplied(_) | Event::NodeDeleted(_) => Kind::Node,
            Event::ServiceCidrsApplied { .. } | Event::ServiceCidrsDeleted(_) => Kind::ServiceCidr,
            Event::Reset(kind) | Event::Synced(kind) => *kind,
        };
        self.revision += 1;
        let revision = if matches!(event, Event::Reset(_)) { 0 } else { self.revision };
        self.sync.observe(Observed::Event { event, kind, revision, triggered_ms: None }, self.now);
    }

    /// A list of every kind, with these objects in it.
    fn list(&mut self, objects: &[Event], with_node: bool) {
        for kind in Kind::ALL {
            self.see(Event::Reset(kind));
        }
        objects.iter().for_each(|event| self.see(event.clone()));
        if with_node {
            self.see(Event::NodeApplied(node()));
        }
        for kind in Kind::ALL {
            self.see(Event::Synced(kind));
        }
    }

    fn step(&mut self) {
        let now = self.now;
        self.sync.step(&mut || now);
    }

    /// Lets the time pass to each step that is due, until nothing is before `limit`.
    fn run_for(&mut self, limit: Duration) {
        let end = self.now + limit;
        while let Some(due) = self.sync.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.step();
        }
        self.now = end;
    }

    fn calls(&self) -> Vec<&'static str> {
        self.kernel.lock().unwrap().calls.clone()
    }

    fn forget_calls(&self) {
        self.kernel.lock().unwrap().calls.clear();
    }

    fn kernel_holds_the_plan(&self) -> bool {
        self.kernel.lock().unwrap().holds.as_ref() == Some(self.sync.families[0].plan())
    }
}

fn options(pods: PodRanges) -> (SyncOptions, NodeConfig) {
    let options = SyncOptions {
        node: NODE.into(),
        mode: Mode::Nftables,
        lacks: ["ebpf cannot be used here".to_owned()].into(),
        pods,
        min_sync_period: Duration::ZERO,
        sync_period: Duration::from_secs(30),
    };
    let config = NodeConfig {
        node: NODE.into(),
        cluster_cidrs: vec![],
        masquerade_all: false,
        node_addresses: BTreeSet::from([IpAddr::from([172, 18, 0, 11])]),
        node_port_addresses: NodePortAddresses::Primary,
        localhost_node_ports: false,
        source_ranges_on_node_ports: false,
        node_cache: false,
    };
    (options, config)
}

fn node() -> Node {
    Node {
        name: NODE.into(),
        addresses: vec![IpAddr::from([172, 18, 0, 11])],
        pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
        labels: BTreeMap::new(),
    }
}

fn service(name: &str, number: u8) -> Service {
    Service {
        name: ObjectName::new("default", name),
        cluster_ips: vec![IpAddr::from([10, 96, 0, number])],
        external_ips: vec![],
        ingress: vec![],
        source_ranges: vec![],
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: NonZeroU16::new(80).unwrap(),
            node_port: None,
        }],
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity: None,
        reset_after: None,
        rebalance: None,
        health_check_node_port: None,
        scheduler: None,
    }
}

fn slice(service: &str, number: u8) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("default", &format!("{service}-1")),
        service: ObjectName::new("default", service),
        family: Family::Ipv4,
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: NonZeroU16::new(8080).unwrap() }],
        endpoints: vec![Endpoint {
            address: IpAddr::from([10, 244, 1, number]),
            ready: true,
            serving: true,
            terminating: false,
            node: Some(NODE.into()),
            zone_hints: vec![],
            node_hints: vec![],
        }],
    }
}

#[test]
fn nothing_is_done_before_every_kind_and_the_node_are_known() {
    let mut world = World::new(Kernel::default());
    world.list(&[Event::ServiceApplied(service("web", 1))], false);
    world.run_for(Duration::from_secs(120));
    assert!(world.calls().is_empty());
    assert_eq!(world.progress.programmed(), None);
    assert!(!world.progress.health().is_ready());
    assert_eq!(world.progress.health().waiting(), Some("Node n1"));
    world.see(Event::NodeApplied(node()));
    world.run_for(Duration::ZERO);
    assert_eq!(world.calls(), ["observe", "apply"]);
    assert!(world.kernel_holds_the_plan() && world.progress.health().is_ready());
    assert_eq!(world.progress.health().waiting(), None);
}

#[test]
fn a_restart_changes_nothing_in_a_kernel_that_is_right() {
    let world = World::started(Kernel::default());
    let left = world.kernel.lock().unwrap().holds.clone();
    let world = World::started(Kernel { holds: left.clone(), ..Kernel::default() });
    assert_eq!(world.calls(), ["observe"]);
    assert_eq!(world.kernel.lock().unwrap().holds, left);
    assert!(world.progress.programmed().is_some());
}

#[test]
fn a_change_after_a_rest_is_due_at_once_and_applied_alone() {
    let mut world = World::started(Kernel::default());
    world.now += Duration::from_secs(1);
    world.forget_calls();
    world.see(Event::SliceApplied(slice("web", 2)));
    assert_eq!(world.sync.due(), Some(world.now));
    world.step();
    assert_eq!(world.calls(), ["apply"], "the kernel is not read for a change");
    assert!(world.kernel_holds_the_plan());
    assert_eq!(world.progress.programmed().unwrap().endpoint_slice, world.revision);
}

#[test]
fn a_change_right_after_a_start_of_seconds_is_not_kept_waiting() {
    let mut world = World::new(Kernel::default());
    world.list(&[Event::ServiceApplied(service("web", 1)), Event::SliceApplied(slice("web", 1))], true);
    let mut clock = world.now;
    world.sync.step(&mut || {
        clock += Duration::from_secs(1);
        clock
    });
    world.now = clock;
    world.see(Event::SliceApplied(slice("web", 2)));
    assert_eq!(world.sync.due(), Some(world.now));
}

#[test]
fn what_changes_nothing_is_programmed_without_a_call_of_the_kernel() {
    let mut world = World::started(Kernel::default());
    world.forget_calls();
    world.see(Event::SliceApplied(slice("web", 1)));
    world.see(Event::SliceDeleted(ObjectName::new("default", "unknown")));
    world.run_for(Duration::from_secs(1));
    assert!(world.calls().is_empty());
    assert_eq!(world.progress.programmed().unwrap().endpoint_slice, world.revision);
}

#[test]
fn a_new_list_takes_away_only_what_is_not_in_it() {
    let mut world = World::started(Kernel::default());
    world.see(Event::ServiceApplied(service("other", 2)));
    world.run_for(Duration::from_secs(1));
    world.forget_calls();
    for kind in Kind::ALL {
        world.see(Event::Reset(kind));
    }
    world.run_for(Duration::from_secs(1));
    assert!(world.calls().is_empty(), "a list that only begins changes nothing");
    world.list(&[Event::ServiceApplied(service("web", 1)), Event::SliceApplied(slice("web", 1))], true);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.calls(), ["apply"]);
    let kernel = world.kernel.lock().unwrap();
    assert_eq!(kernel.holds.as_ref().unwrap().cluster_ips, BTreeSet::from([IpAddr::from([10, 96, 0, 1])]));
}

/// Whatever call the kernel refuses, and whether or not it did its work before: in the end it holds the plan, and
/// nothing was called programmed before.
#[test]
fn a_refusal_at_any_call_is_mended() {
    for lies in [false, true] {
        for first in 0..8 {
            for length in [1, 3] {
                let refuses = (first..first + length).collect();
                let mut world = World::started(Kernel { refuses, lies, ..Kernel::default() });
                for number in 2..6 {
                    world.see(Event::SliceApplied(slice("web", number)));
                    world.see(Event::ServiceApplied(service("more", number)));
                    world.run_for(Duration::from_millis(50));
                    let told = world.progress.programmed().is_some_and(|told| told.service == world.revision);
                    assert!(!told || world.kernel_holds_the_plan(), "told too early: {first} {length} {lies}");
                }
                world.run_for(Duration::from_secs(10));
                assert!(world.kernel_holds_the_plan(), "{first} {length} {lies}: {:?}", world.calls());
                assert_eq!(world.progress.programmed().unwrap().service, world.revision);
                assert!(world.progress.health().is_live(world.now, Duration::from_secs(60)));
            }
        }
    }
}

#[test]
fn a_kernel_that_goes_on_refusing_is_asked_less_and_less_and_the_daemon_says_it_is_not_well() {
    let mut world = World::started(Kernel { refuses: (2..10_000).collect(), ..Kernel::default() });
    let began = world.now;
    world.see(Event::SliceApplied(slice("web", 2)));
    world.run_for(Duration::from_secs(600));
    let calls = world.calls().len();
    assert!((20..60).contains(&calls), "{calls} calls in ten minutes");
    assert_eq!(world.sync.refusals().collect::<Vec<_>>(), [(Family::Ipv4, "refused")]);
    let health = world.progress.health();
    assert!(!health.is_live(world.now, Duration::from_secs(60)));
    assert!(health.is_live(began + Duration::from_secs(59), Duration::from_secs(60)));
}

#[test]
fn rules_that_someone_else_removed_come_back_with_the_timer() {
    let mut world = World::started(Kernel::default());
    world.kernel.lock().unwrap().holds = None;
    world.run_for(Duration::from_secs(29));
    assert!(!world.kernel_holds_the_plan());
    world.run_for(Duration::from_secs(2));
    assert!(world.kernel_holds_the_plan());
}

#[test]
fn where_the_kernel_counts_its_generations_they_come_back_within_seconds() {
    let mut world = World::started(Kernel { generation: Some(7), ..Kernel::default() });
    world.run_for(Duration::from_secs(5));
    world.forget_calls();
    world.see(Event::SliceApplied(slice("web", 2)));
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.calls(), ["apply"], "our own changes are no disturbance");
    {
        let mut kernel = world.kernel.lock().unwrap();
        kernel.holds = None;
        kernel.transaction();
    }
    world.run_for(Duration::from_millis(1100));
    assert!(world.kernel_holds_the_plan());
    assert_eq!(world.calls(), ["apply", "observe", "apply"]);
}

#[test]
fn a_change_of_others_between_ours_is_noticed() {
    let mut world = World::started(Kernel { generation: Some(7), ..Kernel::default() });
    world.run_for(Duration::from_secs(5));
    {
        let mut kernel = world.kernel.lock().unwrap();
        kernel.holds.as_mut().unwrap().frontends.clear();
        kernel.transaction();
    }
    world.see(Event::SliceApplied(slice("web", 2)));
    world.run_for(Duration::from_secs(2));
    assert!(world.kernel_holds_the_plan());
}

#[test]
fn others_who_change_their_rules_all_the_time_do_not_keep_us_busy() {
    let mut world = World::started(Kernel { generation: Some(7), ..Kernel::default() });
    world.run_for(Duration::from_secs(5));
    world.forget_calls();
    for _ in 0..600 {
        world.kernel.lock().unwrap().transaction();
        world.run_for(Duration::from_millis(100));
    }
    let compared = world.calls().len();
    assert!((20..=61).contains(&compared), "{compared} comparisons in a minute");
    assert!(world.calls().iter().all(|call| *call == "observe"));
}

#[test]
fn a_node_object_that_goes_away_takes_no_rule_with_it() {
    let mut world = World::started(Kernel::default());
    let before = world.kernel.lock().unwrap().holds.clone();
    assert_eq!(before.as_ref().unwrap().node_port_addresses.len(), 1);
    world.forget_calls();
    world.see(Event::NodeDeleted(NODE.into()));
    world.run_for(Duration::from_secs(1));
    assert!(world.calls().is_empty());
    assert!(!world.progress.health().is_ready() && world.progress.health().is_live(world.now, Duration::ZERO));
    world.see(Event::NodeApplied(node()));
    assert!(world.progress.health().is_ready());
}

#[test]
fn a_node_that_leaves_is_not_ready_but_serves() {
    let mut world = World::started(Kernel::default());
    world.sync.observe(Observed::Eligible { node: NODE.into(), eligible: false }, world.now);
    world.sync.observe(Observed::Eligible { node: "n2".into(), eligible: true }, world.now);
    assert!(!world.progress.health().is_ready());
    world.sync.observe(Observed::Eligible { node: NODE.into(), eligible: true }, world.now);
    assert!(world.progress.health().is_ready());
}

#[test]
fn new_addresses_of_the_node_are_planned_with() {
    let mut world = World::started(Kernel::default());
    let addresses = BTreeSet::from([IpAddr::from([172, 18, 0, 11]), IpAddr::from([10, 0, 0, 1])]);
    world.sync.set_node_addresses(addresses.clone(), world.now);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.kernel.lock().unwrap().holds.as_ref().unwrap().node_addresses, addresses);
}

#[test]
fn with_node_cidr_the_nodes_own_pods_count_as_pods() {
    let mut world = World::with(Kernel::default(), PodRanges::Node);
    world.list(&[], true);
    world.run_for(Duration::ZERO);
    assert_eq!(world.sync.families[0].plan().cluster_cidrs, ["10.244.1.0/24".parse().unwrap()]);
    world.see(Event::NodeApplied(Node { pod_cidrs: vec!["10.244.9.0/24".parse().unwrap()], ..node() }));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.sync.families[0].plan().cluster_cidrs, ["10.244.9.0/24".parse().unwrap()]);
    assert!(world.kernel_holds_the_plan());
}

#[test]
fn a_storm_is_applied_in_few_steps() {
    let mut world = World::started(Kernel::default());
    world.now += Duration::from_secs(5);
    world.forget_calls();
    let step_takes = Duration::from_millis(15);
    // A change every millisecond for a second, while each call of the kernel takes 15 ms.
    for number in 0..1000_u32 {
        world.see(Event::SliceApplied(slice("web", u8::try_from(number % 250).unwrap())));
        if world.sync.due().is_some_and(|due| due <= world.now) {
            let mut clock = world.now;
            world.sync.step(&mut || {
                let read = clock;
                clock += step_takes / 3;
                read
            });
        }
        world.now += Duration::from_millis(1);
    }
    let steps = world.calls().len();
    assert!((20..60).contains(&steps), "{steps} steps for 1000 changes");
}
