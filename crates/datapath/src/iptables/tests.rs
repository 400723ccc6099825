//! What must hold for every plan: the rules mean what the plan means, a change is what differs, and whatever the kernel
//! was left with becomes what is wanted.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use proptest::prelude::*;
use signpost_core::object::{Family, ObjectName, Protocol, ServicePortName};
use signpost_core::packet::{Entry, Packet, Verdict};
use signpost_core::plan::{
    Backend, Frontend, FrontendKey, FrontendKind, NodeFacts, NodePlan, PlanChange, Route, Target,
};
use signpost_core::walk::walk_remembering;

use super::chain::Table;
use super::change::{Change, advance, change, cleanup, repair};
use super::locate::{found, locate};
use super::observed::Observed;
use super::program::Program;
use super::walk::{fates, walk};
use crate::Datapath;
use crate::fake::FakeIptables;
use crate::strategies::{between, packet, places, plan, plan_and_changes, plan_of};

/// The kernel as iptables shows it: takes what is restored, and refuses what the real one refuses.
#[derive(Debug, Clone)]
struct Kernel(FakeIptables);

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.save() == other.save()
    }
}

impl Kernel {
    fn new() -> Kernel {
        Kernel(FakeIptables::new(Family::Ipv4))
    }

    fn restore(&mut self, change: &Change) {
        self.0.apply(change).unwrap();
    }

    fn save(&self) -> String {
        self.0.save()
    }

    /// Only the tables that come before it were reached.
    fn restore_until(&mut self, change: &Change, table: Table) {
        let mut part = change.clone();
        part.tables.retain(|other, _| *other < table);
        self.restore(&part);
    }

    /// Rules of one table.
    fn rules(&self, table: &str) -> usize {
        let saved = self.save();
        let (_, of_table) = saved.split_once(&format!("*{table}\n")).unwrap();
        of_table.lines().take_while(|line| *line != "COMMIT").filter(|line| line.starts_with("-A ")).count()
    }

    /// What somebody else restores.
    fn take(&mut self, table: &str, line: &str) {
        self.0.restore(&format!("*{table}\n{line}\nCOMMIT\n")).unwrap();
    }

    fn observed(&self) -> Observed {
        Observed::of(&self.save())
    }

    fn holding(plan: &NodePlan) -> Kernel {
        let mut kernel = Kernel::new();
        kernel.restore(&repair(&Program::of(plan), &kernel.observed()));
        kernel
    }
}

/// Makes Service ports have several frontends, as real ones do, with and without affinity.
fn shared(mut plan: NodePlan) -> NodePlan {
    plan.frontends.values_mut().for_each(share);
    plan
}

fn share(frontend: &mut Frontend) {
    let name = &mut frontend.service_port.service.name;
    let few = name.bytes().map(u32::from).sum::<u32>();
    *name = format!("s{}", few % 2).into();
    if few.is_multiple_of(3) {
        frontend.affinity = Some(std::time::Duration::from_secs(10));
    }
    if few.is_multiple_of(5) && frontend.kind == FrontendKind::LoadBalancer {
        frontend.kind = FrontendKind::ClusterIp;
        frontend.from_node = frontend.from_elsewhere.clone();
        frontend.from_pod.target = frontend.from_elsewhere.target.clone();
        frontend.source_ranges = [].into();
    }
}

/// A backend that is the frontend itself: filter can't tell that nat was there. No Service is hurt by that, since such
/// a backend is on this node, where nobody is refused then.
fn leads_to_itself(plan: &NodePlan, packet: &Packet) -> bool {
    let frontend = signpost_core::walk::frontend(plan, packet);
    frontend.is_some_and(|(_, frontend)| {
        let routes = [&frontend.from_pod, &frontend.from_node, &frontend.from_elsewhere];
        routes.into_iter().any(|route| match &route.target {
            Target::Backends(backends) => backends.iter().any(|backend| backend.address == packet.destination),
            _ => false,
        })
    })
}

fn plan_and_packets() -> impl Strategy<Value = (NodePlan, Vec<Packet>)> {
    let plans = prop_oneof![plan(), plan().prop_map(shared)];
    plans.prop_flat_map(|plan| (Just(plan.clone()), prop::collection::vec(packet(plan.family), 20)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_frontend_is_located_and_the_kernel_alone_tells_its_backends(plan in plan()) {
        let plan = shared(plan);
        let program = Program::of(&plan);
        let mut kernel = Kernel::holding(&plan);
        let keys: BTreeSet<FrontendKey> = plan.frontends.keys().copied().collect();
        let located = locate(&program, &kernel.observed(), &keys);
        prop_assert!(located.values().flatten().all(|location| location.held));
        let found = found(&kernel.observed());
        for (key, frontend) in &plan.frontends {
            let in_use = |to: &SocketAddr| {
                let pods_count = !plan.cluster_cidrs.is_empty();
                let routes = [(&frontend.from_pod, pods_count), (&frontend.from_node, true), (&frontend.from_elsewhere, true)];
                routes.iter().any(|(route, counts)| match &route.target {
                    Target::Backends(backends) => *counts && backends.iter().any(|backend| backend.address == *to),
                    _ => false,
                })
            };
            let told = found.get(key).map(|found| found.backends.clone()).unwrap_or_default();
            prop_assert!(told.keys().all(in_use), "{key}: {told:?}");
            prop_assert!(!located.get(key).is_none_or(Vec::is_empty), "{key} stands somewhere");
        }
        // A chain that somebody empties is missed where it is used.
        let chain = kernel.observed().ours(Table::Nat).find(|name| name.starts_with("KUBE-SEP-")).map(str::to_owned);
        if let Some(chain) = chain {
            kernel.take("nat", &format!(":{chain} - [0:0]"));
            let missed = locate(&program, &kernel.observed(), &keys).into_values().flatten().filter(|at| !at.held);
            let missed: BTreeSet<String> = missed.map(|at| at.name).collect();
            prop_assert_eq!(missed, BTreeSet::from([format!("nat {chain}")]));
        }
    }

    #[test]
    fn the_rules_do_what_the_plan_says((plan, packets) in plan_and_packets(), at: prop::sample::Index) {
        let program = Program::of(&plan);
        for packet in packets.iter().filter(|packet| !leads_to_itself(&plan, packet)) {
            for remembered in [None, Some(*at.get(&places(plan.family)))] {
                let wanted = walk_remembering(&plan, packet, remembered);
                prop_assert_eq!(walk(&program, packet, remembered), wanted, "{:?} {:?}", packet, remembered);
            }
        }
    }

    #[test]
    fn each_backend_is_as_likely((plan, packets) in plan_and_packets()) {
        let mut plan = plan;
        plan.frontends.values_mut().for_each(|frontend| frontend.affinity = None);
        let program = Program::of(&plan);
        for packet in packets.iter().filter(|packet| !leads_to_itself(&plan, packet)) {
            let fates = fates(&program, packet, None);
            let share = 1.0 / fates.len() as f64;
            prop_assert!(fates.values().all(|chance| (chance - share).abs() < 1e-6), "{:?}", fates);
        }
    }
}

proptest! {
    // Each state is brought into a kernel of text.
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_change_writes_what_differs((plan, changes) in plan_and_changes(), with_shared: bool) {
        let (mut plan, mut changes) = (plan, changes);
        if with_shared {
            plan = shared(plan);
            changes.iter_mut().flat_map(|change| change.set.values_mut()).for_each(share);
        }
        let mut program = Program::of(&plan);
        let mut kernel = Kernel::holding(&plan);
        for plan_change in &changes {
            plan.apply(plan_change);
            let change = change(&program, plan_change);
            advance(&mut program, &change);
            prop_assert_eq!(&program, &Program::of(&plan));
            kernel.restore(&change);
            prop_assert_eq!(&kernel, &Kernel::holding(&plan));
        }
    }

    #[test]
    fn a_change_that_changes_nothing_writes_nothing(plan in plan()) {
        let program = Program::of(&plan);
        let same = PlanChange { set: plan.frontends.clone(), ..PlanChange::default() };
        prop_assert!(change(&program, &same).is_empty());
        prop_assert_eq!(change(&program, &PlanChange::default()), Change::none());
    }

    #[test]
    fn repair_leads_from_any_plan_to_any_other(
        (before, after) in crate::strategies::family().prop_flat_map(|family| (plan_of(family), plan_of(family)))
    ) {
        let (before, after) = (shared(before), shared(after));
        let mut kernel = Kernel::holding(&before);
        let want = Program::of(&after);
        let by_change = change(&Program::of(&before), &between(&before, &after));
        let by_repair = repair(&want, &kernel.observed());
        prop_assert_eq!(&by_repair.tables, &by_change.tables);
        kernel.restore(&by_repair);
        prop_assert_eq!(&kernel, &Kernel::holding(&after));
        prop_assert_eq!(repair(&want, &kernel.observed()), Change::none());
    }

    #[test]
    fn in_the_form_for_iptables_nft_a_change_does_the_same(
        (before, after) in (plan_of(Family::Ipv4), plan_of(Family::Ipv4))
    ) {
        let (before, mut after) = (shared(before), shared(after));
        // Many chains, of which the kernel may have none.
        (1..=20).for_each(|number| web(&mut after, number, &["10.244.1.7:8080", "10.244.2.9:8080"]));
        for mut kernel in [Kernel::new(), Kernel::holding(&before)] {
            let change = repair(&Program::of(&after), &kernel.observed());
            let mut text = Vec::new();
            change.write_for_nft(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            prop_assert!(text.contains("\n-S\n"));
            kernel.0.restore(&text).unwrap();
            prop_assert_eq!(&kernel, &Kernel::holding(&after));
        }
    }

    #[test]
    fn a_change_that_stopped_between_the_tables_is_brought_to_its_end(
        (before, after) in crate::strategies::family().prop_flat_map(|family| (plan_of(family), plan_of(family)))
    ) {
        let mut kernel = Kernel::holding(&before);
        kernel.restore_until(&change(&Program::of(&before), &between(&before, &after)), Table::Filter);
        kernel.restore(&repair(&Program::of(&after), &kernel.observed()));
        prop_assert_eq!(&kernel, &Kernel::holding(&after));
    }

    #[test]
    fn a_program_reads_back_from_json(plan in plan()) {
        let program = Program::of(&shared(plan));
        let json = serde_json::to_string(&program).unwrap();
        prop_assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
    }

    #[test]
    fn cleanup_takes_out_what_is_ours_and_nothing_else(plan in plan()) {
        let mut with_others = Kernel::new();
        for line in [
            ":KUBE-KUBELET-CANARY - [0:0]",
            ":CNI-HOSTPORT-DNAT - [0:0]",
            "-A CNI-HOSTPORT-DNAT -j RETURN",
            "-A PREROUTING -j CNI-HOSTPORT-DNAT",
        ] {
            with_others.take("nat", line);
        }
        let mut kernel = with_others.clone();
        kernel.restore(&repair(&Program::of(&plan), &kernel.observed()));
        prop_assert_ne!(&kernel, &with_others);
        kernel.restore(&cleanup(&kernel.observed()));
        prop_assert_eq!(kernel, with_others);
    }
}

const NODE: &str = "172.18.0.11";

fn empty() -> NodePlan {
    let node: IpAddr = NODE.parse().unwrap();
    let facts = NodeFacts {
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        node_addresses: [node].into(),
        node_port_addresses: [node].into(),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
    };
    NodePlan::empty(Family::Ipv4, facts)
}

fn to(backends: &[&str], masquerade: bool) -> Route {
    let backends = backends.iter().map(|at| Backend { address: at.parse().unwrap(), local: false });
    Route { target: Target::Backends(backends.collect()), masquerade }
}

fn frontend(service: &str, kind: FrontendKind, [from_pod, from_node, from_elsewhere]: [Route; 3]) -> Frontend {
    Frontend {
        service_port: ServicePortName { service: ObjectName::new("default", service), port: "http".into() },
        kind,
        from_pod,
        from_node,
        from_elsewhere,
        source_ranges: Arc::new([]),
        affinity: None,
        scheduler: None,
        reset_after: None,
        rebalance: None,
    }
}

fn at(text: &str) -> FrontendKey {
    let at: SocketAddr = text.parse().unwrap();
    FrontendKey::Address { address: at.ip(), protocol: Protocol::Tcp, port: NonZeroU16::new(at.port()).unwrap() }
}

fn node_port(port: u16) -> FrontendKey {
    FrontendKey::NodePort { protocol: Protocol::Tcp, port: NonZeroU16::new(port).unwrap() }
}

/// One with everything that there is: cluster address, node port and load balancer, of which the outside meets only the
/// endpoint that is on this node.
fn web(plan: &mut NodePlan, number: u16, backends: &[&str]) {
    let name = format!("web-{number}");
    let name = if number == 1 { "web" } else { &name };
    let [high, low] = number.to_be_bytes();
    let cluster_ip = SocketAddr::new([10, 96, high, low].into(), 80);
    plan.cluster_ips.insert(cluster_ip.ip());
    let inside = [to(backends, false), to(backends, true), to(backends, true)];
    let outside = [to(backends, false), to(backends, true), to(&backends[..1], false)];
    plan.frontends.insert(at(&cluster_ip.to_string()), frontend(name, FrontendKind::ClusterIp, inside));
    let on_nodes = frontend(name, FrontendKind::NodePort, outside.clone());
    plan.frontends.insert(node_port(30_000 + number), on_nodes);
    let mut balanced = frontend(name, FrontendKind::LoadBalancer, outside);
    balanced.source_ranges = ["203.0.113.0/24".parse().unwrap()].into();
    plan.frontends.insert(at(&SocketAddr::new([192, 0, 2 + high, low].into(), 80).to_string()), balanced);
}

#[test]
fn the_rules_of_a_service_are_readable() {
    let mut plan = empty();
    web(&mut plan, 1, &["10.244.1.7:8080", "10.244.2.9:8080"]);
    plan.local_endpoints.insert([10, 244, 1, 7].into());
    let mut bare = frontend("bare", FrontendKind::ClusterIp, [to(&[], false), to(&[], false), to(&[], false)]);
    for route in [&mut bare.from_pod, &mut bare.from_node, &mut bare.from_elsewhere] {
        route.target = Target::Reject;
    }
    plan.frontends.insert(at("10.96.0.42:80"), bare);
    plan.cluster_ips.insert([10, 96, 0, 42].into());
    let saved = Kernel::holding(&plan).save();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/iptables/testdata/web.rules");
    if std::env::var_os("SIGNPOST_REWRITE_GOLDEN").is_some() {
        std::fs::write(golden, &saved).unwrap();
    }
    assert_eq!(saved, std::fs::read_to_string(golden).unwrap(), "SIGNPOST_REWRITE_GOLDEN=1 rewrites it");
}

/// With its Services, chains and rules of nat and filter.
fn size(services: u16) -> [usize; 4] {
    let mut plan = empty();
    (1..=services).for_each(|number| web(&mut plan, number, &["10.244.1.7:8080", "10.244.2.9:8080"]));
    let kernel = Kernel::holding(&plan);
    let observed = kernel.observed();
    let chains = |table| observed.ours(table).count();
    [chains(Table::Nat), kernel.rules("nat"), chains(Table::Filter), kernel.rules("filter")]
}

#[test]
fn a_service_of_two_endpoints_and_three_addresses_costs_so_many_rules() {
    let none = size(0);
    assert_eq!(none, [4, 9, 7, 18]);
    let per_service = [6, 14, 0, 2];
    for services in [1, 1_000] {
        let expected: Vec<usize> =
            none.iter().zip(per_service).map(|(fixed, each)| fixed + each * usize::from(services)).collect();
        assert_eq!(size(services).as_slice(), expected);
    }
}

#[test]
fn a_change_of_an_endpoint_writes_only_the_chains_of_its_service() {
    let mut before = empty();
    (1..=50).for_each(|number| web(&mut before, number, &["10.244.1.7:8080", "10.244.2.9:8080"]));
    let mut after = before.clone();
    web(&mut after, 9, &["10.244.1.7:8080", "10.244.2.10:8080"]);
    let change = change(&Program::of(&before), &between(&before, &after));
    let nat = change.table(Table::Nat).unwrap();
    assert!(change.table(Table::Filter).is_none());
    assert_eq!((nat.set.len(), nat.removed.len(), nat.base.len()), (2, 1, 0), "{nat:?}");
}

/// The address of a node may be that of a load balancer, too, and its port that of a node port.
#[test]
fn whom_an_address_leads_nowhere_is_not_taken_for_somebody_at_a_node_port() {
    let mut plan = empty();
    web(&mut plan, 1, &["10.244.1.7:8080"]);
    let here = format!("{NODE}:30001");
    let mut guarded = frontend(
        "other",
        FrontendKind::LoadBalancer,
        [to(&["10.244.1.8:1"], false), to(&["10.244.1.8:1"], false), to(&["10.244.1.8:1"], false)],
    );
    guarded.source_ranges = ["203.0.113.0/24".parse().unwrap()].into();
    plan.frontends.insert(at(&here), guarded);
    for (source, ours) in [("198.51.100.1:4000", false), ("203.0.113.9:4000", true)] {
        let source: SocketAddr = source.parse().unwrap();
        let packet =
            Packet { protocol: Protocol::Tcp, source, destination: here.parse().unwrap(), entry: Entry::Interface };
        let verdict = walk(&Program::of(&plan), &packet, None);
        assert_eq!(verdict, walk_remembering(&plan, &packet, None));
        assert_eq!(matches!(verdict, Verdict::Rewrite(_)), ours, "{verdict:?}");
    }
}

#[test]
fn what_an_object_claims_cannot_leave_its_comment() {
    let mut plan = empty();
    web(&mut plan, 1, &["10.244.1.7:8080"]);
    for frontend in plan.frontends.values_mut() {
        frontend.service_port.service.name = "x\"\n-A FORWARD -j ACCEPT\\".into();
        frontend.service_port.port = "\u{7f}ü".repeat(200).into();
    }
    let kernel = Kernel::holding(&plan);
    assert!(kernel.0.rules(Table::Filter, "FORWARD").unwrap().iter().all(|rule| rule.contains("KUBE-")));
    assert!(kernel.save().lines().all(|line| !line.starts_with("-A FORWARD -j ACCEPT")));
}
