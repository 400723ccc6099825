//! The loop with the real modes over kernels in memory, with an error at every call, a death at every call, a Service that the
//! kernel refuses, and somebody else's rules beside.

use std::fmt;
use std::sync::PoisonError;

use signpost_datapath::fake::{FakeIptables, FakeIpvs, FakeNftables};
use signpost_datapath::iptables::IptablesError;
use signpost_datapath::iptables::chain::Table;
use signpost_datapath::ipvs::{self, IpvsError};
use signpost_datapath::nftables::NftablesError;
use signpost_datapath::nftables::render::render;

use super::*;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is refused, and nothing is done.
    Refused,
    /// It cannot be made.
    Unreachable,
    /// All is done, and yet it fails.
    Unsure,
    /// A part is done, where that can be: one table of two.
    Half,
}

const FAULTS: [Fault; 4] = [Fault::Refused, Fault::Unreachable, Fault::Unsure, Fault::Half];

/// A mode whose kernel is in memory.
trait InMemory: Datapath<Program: Send, Change: Send, Observed: Send> + fmt::Debug + Send {
    fn empty() -> Self;
    fn error(fault: Fault) -> Self::Error;
    /// Carries out a part, if there are parts.
    fn half(&mut self, change: &Self::Change);
    fn text(change: &Self::Change) -> String;
    /// Somebody else takes away everything that is ours.
    fn flush(&mut self);
    /// What is nobody's business but others'.
    fn others(&self) -> Vec<String>;
}

impl InMemory for FakeNftables {
    fn empty() -> FakeNftables {
        FakeNftables::new(Family::Ipv4)
    }

    fn error(fault: Fault) -> NftablesError {
        match fault {
            Fault::Unreachable => NftablesError::Missing { program: "nft".into() },
            _ => NftablesError::Refused { op: "change rules", family: Family::Ipv4, said: "a fault".to_owned() },
        }
    }

    fn half(&mut self, _change: &Self::Change) {}

    fn text(change: &Self::Change) -> String {
        let mut bytes = Vec::new();
        render(change, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn flush(&mut self) {
        self.kernel_mut().table = None;
    }

    /// A table of one's own: that nothing else is touched shows in the text of every change, see [`Shared::apply`].
    fn others(&self) -> Vec<String> {
        Vec::new()
    }
}

const OTHERS: &str = "*nat\n:CNI-HOSTPORT - [0:0]\n-A PREROUTING -j CNI-HOSTPORT\n-A CNI-HOSTPORT -p tcp -m tcp --dport 90 -j \
                      DNAT --to-destination 192.0.2.1:90\nCOMMIT\n*filter\n:KUBE-FIREWALL - [0:0]\n-A OUTPUT -j KUBE-FIREWALL\nCOMMIT\n";

impl InMemory for FakeIptables {
    fn empty() -> FakeIptables {
        let mut fake = FakeIptables::new(Family::Ipv4);
        fake.restore(OTHERS).unwrap();
        fake
    }

    fn error(fault: Fault) -> IptablesError {
        match fault {
            Fault::Unreachable => IptablesError::Locked { op: "change the rules", waited_s: 5 },
            _ => IptablesError::Refused {
                op: "change the rules",
                program: "iptables-restore".to_owned(),
                said: "a fault".to_owned(),
            },
        }
    }

    fn half(&mut self, change: &Self::Change) {
        // What would be refused is refused in part as well.
        let _ = self.apply_first_table(change);
    }

    fn text(change: &Self::Change) -> String {
        let mut bytes = Vec::new();
        change.write(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn flush(&mut self) {
        *self = FakeIptables::empty();
    }

    fn others(&self) -> Vec<String> {
        let chains = [
            (Table::Nat, "CNI-HOSTPORT"),
            (Table::Nat, "PREROUTING"),
            (Table::Filter, "KUBE-FIREWALL"),
            (Table::Filter, "OUTPUT"),
        ];
        let rules =
            chains.iter().flat_map(|(table, chain)| self.rules(*table, chain).expect("others' chains stay").to_vec());
        let own = |rule: &String| rule.contains("-j KUBE-") && !rule.contains("KUBE-FIREWALL");
        rules.filter(|rule| !own(rule)).collect()
    }
}

impl InMemory for FakeIpvs {
    fn empty() -> FakeIpvs {
        let mut fake = FakeIpvs::new(Family::Ipv4);
        fake.restore(OTHERS).unwrap();
        fake
    }

    fn error(fault: Fault) -> IpvsError {
        match fault {
            Fault::Unreachable => IpvsError::Rules(FakeIptables::error(fault)),
            // As of a scheduler that the kernel has not.
            _ => IpvsError::Server { request: "a fault".to_owned(), source: std::io::ErrorKind::NotFound.into() },
        }
    }

    /// Servers and addresses, but not all else.
    fn half(&mut self, change: &Self::Change) {
        self.apply_some(change, 2);
    }

    fn text(change: &Self::Change) -> String {
        format!("{:?}\n{}{}", change.coming, change.sets, change.rules)
    }

    fn flush(&mut self) {
        FakeIpvs::flush(self);
        self.restore(OTHERS).unwrap();
    }

    fn others(&self) -> Vec<String> {
        let chains = [
            (ipvs::rule::Table::Nat, "CNI-HOSTPORT"),
            (ipvs::rule::Table::Nat, "PREROUTING"),
            (ipvs::rule::Table::Filter, "KUBE-FIREWALL"),
            (ipvs::rule::Table::Filter, "OUTPUT"),
        ];
        let rules = chains.iter().flat_map(|(table, chain)| self.rules(*table, chain).expect("others' chains stay"));
        let own = |rule: &String| rule.contains("-j KUBE-") && !rule.contains("KUBE-FIREWALL");
        rules.filter(|rule| !own(rule)).collect()
    }
}

/// A kernel that outlives its daemon, with faults.
#[derive(Debug)]
struct Shared<D>(Arc<Mutex<Faulty<D>>>);

impl<D> Clone for Shared<D> {
    fn clone(&self) -> Shared<D> {
        Shared(self.0.clone())
    }
}

#[derive(Debug)]
struct Faulty<D> {
    kernel: D,
    calls: usize,
    /// Which of the calls, counted from 0, goes wrong, and how.
    fault: Option<(usize, Fault)>,
    /// Every call goes wrong: somebody else holds the lock.
    locked: bool,
    /// A change whose text has this in it is refused.
    poison: Option<&'static str>,
}

impl<D: InMemory> Shared<D> {
    fn new(fault: Option<(usize, Fault)>, poison: Option<&'static str>) -> Shared<D> {
        Shared(Arc::new(Mutex::new(Faulty { kernel: D::empty(), calls: 0, fault, locked: false, poison })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Faulty<D>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn decide<T>(&self, f: impl FnOnce(&D) -> T) -> T {
        self.with(|faulty| f(&faulty.kernel))
    }

    /// Whether the kernel holds the rules of a plan, and others' as they were.
    fn holds(&self, plan: &NodePlan) -> bool {
        self.with(|faulty| {
            let want = faulty.kernel.program(plan);
            let have = faulty.kernel.observe().unwrap();
            let nothing = faulty.kernel.change(&want, &PlanChange::default());
            assert_eq!(faulty.kernel.others(), D::empty().others(), "others' rules are as they were");
            faulty.kernel.repair(&want, &have) == nothing
        })
    }
}

impl<D: InMemory> Faulty<D> {
    fn fault(&mut self) -> Option<Fault> {
        let call = self.calls;
        self.calls += 1;
        if self.locked {
            return Some(Fault::Unreachable);
        }
        self.fault.filter(|(at, _)| *at == call).map(|(_, fault)| fault)
    }
}

impl<D: InMemory> Datapath for Shared<D> {
    type Program = D::Program;
    type Change = D::Change;
    type Observed = D::Observed;
    type Error = D::Error;

    fn program(&self, plan: &NodePlan) -> D::Program {
        self.decide(|kernel| kernel.program(plan))
    }

    fn change(&self, before: &D::Program, plan: &PlanChange) -> D::Change {
        self.decide(|kernel| kernel.change(before, plan))
    }

    fn advance(&self, program: &mut D::Program, change: &D::Change) {
        self.decide(|kernel| kernel.advance(program, change));
    }

    fn repair(&self, want: &D::Program, have: &D::Observed) -> D::Change {
        self.decide(|kernel| kernel.repair(want, have))
    }

    fn walk(&self, program: &D::Program, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
        self.decide(|kernel| kernel.walk(program, packet, remembered))
    }

    fn is_refusal(&self, error: &D::Error) -> bool {
        self.decide(|kernel| kernel.is_refusal(error))
    }

    fn is_atomic(&self) -> bool {
        self.decide(|kernel| kernel.is_atomic())
    }

    fn observe(&mut self) -> Result<D::Observed, D::Error> {
        self.with(|faulty| match faulty.fault() {
            Some(fault) => Err(D::error(fault)),
            None => faulty.kernel.observe(),
        })
    }

    fn apply(&mut self, change: &D::Change) -> Result<(), D::Error> {
        self.with(|faulty| {
            let fault = faulty.fault();
            let text = D::text(change);
            let tables = text.lines().filter(|line| line.starts_with("add table") || line.starts_with("delete table"));
            assert!(tables.clone().all(|line| line.ends_with("table ip kube-proxy")), "{text}");
            if faulty.poison.is_some_and(|poison| text.contains(poison)) {
                if !faulty.kernel.is_atomic() {
                    faulty.kernel.half(change);
                }
                return Err(D::error(Fault::Refused));
            }
            let Some(fault) = fault else { return faulty.kernel.apply(change) };
            match fault {
                Fault::Unsure => faulty.kernel.apply(change)?,
                Fault::Half => faulty.kernel.half(change),
                Fault::Refused | Fault::Unreachable => {}
            }
            Err(D::error(fault))
        })
    }
}

/// A daemon, and the events that it has seen: the next one sees them too.
struct Node<D: InMemory> {
    kernel: Shared<D>,
    sync: SyncLoop<Shared<D>>,
    metrics: Arc<Metrics>,
    now: Instant,
    revision: u64,
    objects: Vec<Event>,
}

impl<D: InMemory> Node<D> {
    fn new(kernel: Shared<D>) -> Node<D> {
        let (sync, metrics) = Node::daemon(&kernel);
        let mut node = Node { kernel, sync, metrics, now: Instant::now(), revision: 100, objects: Vec::new() };
        node.list();
        node
    }

    fn daemon(kernel: &Shared<D>) -> (SyncLoop<Shared<D>>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let datapaths = vec![(Family::Ipv4, kernel.clone(), None)];
        let (options, config) = options(PodRanges::Cluster(vec!["10.244.0.0/16".parse().unwrap()]));
        (SyncLoop::new(options, config, datapaths, Arc::new(Progress::new()), metrics.clone()), metrics)
    }

    /// The process dies, and a new one begins with the same kernel.
    fn restart(&mut self) {
        (self.sync, self.metrics) = Node::daemon(&self.kernel);
        self.list();
    }

    fn list(&mut self) {
        let mut events: Vec<Event> = Kind::ALL.into_iter().map(Event::Reset).collect();
        events.push(Event::NodeApplied(node()));
        events.extend(self.objects.clone());
        events.extend(Kind::ALL.into_iter().map(Event::Synced));
        events.into_iter().for_each(|event| self.hear(event));
    }

    fn hear(&mut self, event: Event) {
        let kind = match &event {
            Event::ServiceApplied(_) | Event::ServiceDeleted(_) => Kind::Service,
            Event::SliceApplied(_) | Event::SliceDeleted(_) => Kind::EndpointSlice,
            Event::NodeApplied(_) | Event::NodeDeleted(_) => Kind::Node,
            Event::ServiceCidrsApplied { .. } | Event::ServiceCidrsDeleted(_) => Kind::ServiceCidr,
            Event::Reset(kind) | Event::Synced(kind) => *kind,
        };
        self.revision += 1;
        self.sync.observe(Observed::Event { event, kind, revision: self.revision, triggered_ms: None }, self.now);
    }

    fn see(&mut self, event: Event) {
        self.objects.push(event.clone());
        self.hear(event);
    }

    fn run_for(&mut self, limit: Duration) {
        let end = self.now + limit;
        while let Some(due) = self.sync.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            let now = self.now;
            self.sync.step(&mut || now);
        }
        self.now = end;
    }

    fn holds_the_plan(&self) -> bool {
        self.kernel.holds(self.sync.families[0].plan())
    }
}

/// What happens to every node of these tests: Services come, lose and get endpoints, and go; somebody flushes.
fn story<D: InMemory>(node: &mut Node<D>, mut between: impl FnMut(&mut Node<D>)) {
    let moment = Duration::from_millis(50);
    node.see(Event::ServiceApplied(service("web", 1)));
    node.see(Event::SliceApplied(slice("web", 1)));
    node.run_for(moment);
    between(node);
    node.see(Event::ServiceApplied(service("more", 2)));
    node.run_for(moment);
    between(node);
    node.see(Event::SliceApplied(slice("more", 7)));
    node.see(Event::SliceApplied(slice("web", 2)));
    node.run_for(moment);
    between(node);
    node.kernel.with(|faulty| faulty.kernel.flush());
    node.see(Event::ServiceDeleted(ObjectName::new("default", "web")));
    node.run_for(moment);
    between(node);
    node.see(Event::SliceApplied(slice("more", 8)));
    node.run_for(Duration::from_secs(90));
}

fn an_error_at_every_call_is_mended<D: InMemory>() {
    for dies in [false, true] {
        for fault in FAULTS {
            let mut last = usize::MAX;
            for call in 0.. {
                let mut node = Node::new(Shared::<D>::new(Some((call, fault)), None));
                story(&mut node, |node| {
                    let failed = node.kernel.with(|faulty| faulty.calls > call);
                    if dies && failed && last != call {
                        last = call;
                        node.restart();
                        node.run_for(Duration::from_millis(50));
                    }
                });
                assert!(node.holds_the_plan(), "call {call}, {fault:?}, dies: {dies}");
                assert_eq!(node.sync.families[0].withheld(), 0, "call {call}, {fault:?}: no Service is to blame");
                if node.kernel.with(|faulty| faulty.calls) <= call {
                    assert!(call > 8, "only {call} calls were made");
                    break;
                }
            }
        }
    }
}

#[test]
fn nftables_mends_an_error_and_a_death_at_every_call() {
    an_error_at_every_call_is_mended::<FakeNftables>();
}

#[test]
fn iptables_mends_an_error_and_a_death_at_every_call() {
    an_error_at_every_call_is_mended::<FakeIptables>();
}

#[test]
fn ipvs_mends_an_error_and_a_death_at_every_call() {
    an_error_at_every_call_is_mended::<FakeIpvs>();
}

#[test]
fn a_lock_that_is_held_for_a_minute_is_told_and_what_waited_goes_in_afterwards() {
    let mut node = Node::new(Shared::<FakeIptables>::new(None, None));
    node.see(Event::ServiceApplied(service("web", 1)));
    node.see(Event::SliceApplied(slice("web", 1)));
    node.run_for(Duration::from_secs(1));
    node.kernel.with(|faulty| faulty.locked = true);
    let calls = node.kernel.with(|faulty| faulty.calls);
    node.see(Event::SliceApplied(slice("web", 2)));
    node.run_for(Duration::from_secs(60));
    let (family, reason) = node.sync.refusals().next().unwrap();
    assert!(family == Family::Ipv4 && reason.contains("another program has held /run/xtables.lock"), "{reason}");
    assert!(node.metrics.text(None, &Default::default()).contains("failures_total{ip_family=\"IPv4\"}"));
    assert!(node.kernel.with(|faulty| faulty.calls) - calls < 20, "each try waits for the lock");
    assert_eq!(node.sync.families[0].withheld(), 0, "no Service is to blame");
    node.kernel.with(|faulty| faulty.locked = false);
    node.run_for(Duration::from_secs(31));
    assert!(node.holds_the_plan());
    assert_eq!(node.sync.refusals().count(), 0);
}

/// The address of the Service that the kernel refuses.
const POISON: &str = "10.96.0.13";

fn without(plan: &NodePlan, service: &str) -> NodePlan {
    let mut plan = plan.clone();
    plan.frontends.retain(|_, frontend| &*frontend.service_port.service.name != service);
    plan
}

/// Its address among those in use is no rule of its own.
fn frontend_of(poison: &str) -> &'static str {
    match poison {
        // As nft and as iptables name a frontend there.
        "nftables" => "10.96.0.13 . tcp . 80",
        "ipvs" => "address: 10.96.0.13,",
        _ => "-d 10.96.0.13/32 -p tcp",
    }
}

fn one_refused_service_costs_the_others_nothing<D: InMemory>(mode: &str) {
    let poison = frontend_of(mode);
    assert!(poison.contains(POISON));
    let mut node = Node::new(Shared::<D>::new(None, Some(poison)));
    for number in 1..=20 {
        let name = format!("s{number}");
        node.see(Event::ServiceApplied(service(&name, number)));
        node.see(Event::SliceApplied(slice(&name, number)));
    }
    for fresh in [true, false] {
        if !fresh {
            node.restart();
        }
        node.run_for(Duration::from_secs(5));
        let plan = node.sync.families[0].plan().clone();
        assert!(node.kernel.holds(&without(&plan, "s13")), "all but the one are in the kernel");
        let told = node.sync.take_withheld();
        let [(Family::Ipv4, name, reason)] = &told[..] else { panic!("{told:?}") };
        assert!(*name == ObjectName::new("default", "s13") && reason.contains("a fault"), "{told:?}");
        let text = node.metrics.text(None, &Default::default());
        assert!(text.contains("signpost_services_refused_by_kernel{ip_family=\"IPv4\"} 1\n"), "{text}");
        assert_eq!(node.sync.refusals().count(), 0, "the node itself is well");
    }
    // The others go on, and the bad one is tried again less and less.
    let calls = node.kernel.with(|faulty| faulty.calls);
    node.see(Event::SliceApplied(slice("s5", 99)));
    node.run_for(Duration::from_secs(60));
    let plan = node.sync.families[0].plan().clone();
    assert!(node.kernel.holds(&without(&plan, "s13")));
    assert!(node.sync.take_withheld().is_empty(), "the same is told once");
    let more = node.kernel.with(|faulty| faulty.calls) - calls;
    assert!(more < 120, "{more} calls in a minute");
    // The kernel takes it at last.
    node.kernel.with(|faulty| faulty.poison = None);
    node.run_for(Duration::from_secs(60));
    assert!(node.holds_the_plan());
    assert!(
        node.metrics
            .text(None, &Default::default())
            .contains("signpost_services_refused_by_kernel{ip_family=\"IPv4\"} 0\n")
    );
}

#[test]
fn nftables_programs_all_services_but_the_one_that_the_kernel_refuses() {
    one_refused_service_costs_the_others_nothing::<FakeNftables>("nftables");
}

#[test]
fn iptables_programs_all_services_but_the_one_that_the_kernel_refuses() {
    one_refused_service_costs_the_others_nothing::<FakeIptables>("iptables");
}

#[test]
fn ipvs_programs_all_services_but_the_one_that_the_kernel_refuses() {
    one_refused_service_costs_the_others_nothing::<FakeIpvs>("ipvs");
}

#[test]
fn a_change_of_a_service_that_is_refused_leaves_what_it_had() {
    let mut node = Node::new(Shared::<FakeNftables>::new(None, Some("10.244.1.66")));
    node.see(Event::ServiceApplied(service("web", 1)));
    node.see(Event::SliceApplied(slice("web", 1)));
    node.run_for(Duration::from_secs(1));
    node.see(Event::SliceApplied(slice("web", 66)));
    node.see(Event::ServiceApplied(service("more", 2)));
    node.run_for(Duration::from_millis(50));
    let holds = node.kernel.with(|faulty| {
        let have = faulty.kernel.observe().unwrap();
        let table = have.table.unwrap();
        let text = format!("{:?}", table.sets);
        (text.contains("10.244.1.1:8080"), text.contains("10.244.1.66"))
    });
    assert_eq!(holds, (true, false));
    // It is deleted: nothing is to be told or tried any more.
    node.see(Event::ServiceDeleted(ObjectName::new("default", "web")));
    node.run_for(Duration::from_secs(90));
    assert!(node.holds_the_plan());
    assert_eq!(node.sync.families[0].withheld(), 0);
}

/// Of a node whose kernel does not take the Service s13, and of one whose kernel takes nothing: neither has made a step.
pub(crate) fn in_trouble()
-> [SyncLoop<impl Datapath<Program: serde::Serialize + Send> + fmt::Debug + Send + 'static>; 2] {
    [Some(frontend_of("nftables")), None].map(|poison| {
        let mut node = Node::new(Shared::<FakeNftables>::new(None, poison));
        node.kernel.with(|faulty| faulty.locked = poison.is_none());
        node.see(Event::ServiceApplied(service("s13", 13)));
        node.see(Event::SliceApplied(slice("s13", 13)));
        node.sync
    })
}
