//! What a process finds in the kernel: adopted if it is as it should be, put right where it is not, and only ours.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::Target;
use signpost_datapath::Datapath;
use signpost_datapath::nftables::{Change, NftablesError};

use crate::net::{Netns, addresses};
use crate::{FAMILIES, nftables, plans, program, strategies};

fn ip(family: Family) -> &'static str {
    if family == Family::Ipv4 { "ip" } else { "ip6" }
}

/// What a process that starts now would change.
fn repair(netns: &Netns, plan: &signpost_core::plan::NodePlan) -> Change {
    netns.run(|| {
        let mut nftables = nftables(plan.family);
        let have = nftables.observe().unwrap();
        nftables.repair(&nftables.program(plan), &have)
    })
}

#[test]
fn a_restart_changes_nothing() {
    let netns = Netns::new();
    for family in FAMILIES {
        let plan = plans::everything(family);
        program(&netns, &plan);
        let before = netns.command("nft", "-a list ruleset");
        assert_eq!(repair(&netns, &plan), Change::none(family));
        program(&netns, &plan);
        assert_eq!(netns.command("nft", "-a list ruleset"), before);
    }
}

#[test]
fn what_somebody_did_to_the_table_is_put_right() {
    let netns = Netns::new();
    for family in FAMILIES {
        let plan = plans::everything(family);
        let table = format!("{} kube-proxy", ip(family));
        program(&netns, &plan);
        let before = netns.command("nft", &format!("list table {table}"));
        let vip = plans::cluster_ip(family, 1);
        let harms = [
            format!("delete element {table} service-ips {{ {vip} . tcp . 80 }}"),
            format!("delete element {table} service-endpoints-udp {{ {vip} . 80 . 1 }}"),
            format!("add element {table} cluster-ips {{ {} }}", plans::cluster_ip(family, 99)),
            format!("add element {table} hairpin-connections {{ {vip} . {} }}", addresses(family).a),
            format!("add element {table} no-endpoint-services {{ {vip} . icmp . 7 : drop }}"),
            format!("add element {table} pod-networks {{ {} }}", plans::cluster_ip(family, 99)),
            format!("flush chain {table} services"),
            format!("flush chain {table} spread-tcp-2"),
            format!("insert rule {table} services drop"),
            format!("add rule {table} nat-output counter accept"),
            format!("add chain {table} somebodys {{ type filter hook input priority 0; policy drop; }}"),
            format!("add chain {table} nat-output {{ policy drop; }}"),
            format!("delete rule {table} nat-output handle {}", handle(&netns, &table, "nat-output")),
            format!("flush set {table} cluster-ips"),
            format!("flush table {table}"),
            format!("delete table {table}"),
        ];
        for harm in &harms {
            netns.command("nft", harm);
            assert_ne!(netns.command("nft", "list ruleset"), before, "{harm}");
            let change = repair(&netns, &plan);
            assert!(!change.is_empty(), "{harm}");
            let is_rebuilt =
                harm.contains("delete table") || harm.contains("policy drop; }") && harm.contains("nat-output");
            assert_eq!(change.load.is_some(), is_rebuilt, "{harm}");
            netns.run(|| nftables(family).apply(&change).unwrap());
            assert_eq!(repair(&netns, &plan), Change::none(family), "{harm}");
        }
    }
}

/// The handle of a chain's first rule.
fn handle(netns: &Netns, table: &str, chain: &str) -> String {
    let listing = netns.command("nft", &format!("-a list chain {table} {chain}"));
    let rule = listing.lines().find(|line| line.contains("jump services")).unwrap();
    rule.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn ranges_at_the_edges_read_back() {
    let netns = Netns::new();
    let edges = [
        &["0.0.0.0/0", "::/0"][..],
        &["0.0.0.0/8", "255.255.255.0/24", "10.0.0.0/24", "10.0.1.0/24", "10.0.2.1/32", "10.0.2.2/32"],
        &["::/16", "ffff::/16", "fd00::/64", "fd00:0:0:1::/64", "fd00::2:0:0:1/128", "255.255.255.255/32"],
    ];
    for family in FAMILIES {
        for ranges in edges {
            let mut plan = plans::everything(family);
            plan.cluster_cidrs = ranges.iter().map(|range| range.parse().unwrap()).collect();
            plan.service_cidrs = plan.cluster_cidrs.clone();
            for frontend in plan.frontends.values_mut() {
                if !frontend.source_ranges.is_empty() {
                    frontend.source_ranges = plan.cluster_cidrs.clone().into();
                }
            }
            program(&netns, &plan);
            assert_eq!(repair(&netns, &plan), Change::none(family), "{ranges:?}");
        }
    }
}

#[test]
fn other_tables_are_left_alone() {
    let netns = Netns::new();
    netns.command("nft", "add table ip mine");
    netns.command("nft", "add chain ip mine c { type nat hook output priority -90; }");
    netns.command("nft", "add rule ip mine c ip daddr 198.51.100.1 dnat to 198.51.100.2");
    let mine = netns.command("nft", "-a list ruleset");
    for family in FAMILIES {
        program(&netns, &plans::everything(family));
        netns.run(|| nftables(family).cleanup().unwrap());
        // Nothing is there any more, which is fine.
        netns.run(|| nftables(family).cleanup().unwrap());
    }
    assert_eq!(netns.command("nft", "-a list ruleset"), mine);
}

#[test]
fn a_table_of_kube_proxy_is_left_alone_unless_told() {
    let netns = Netns::new();
    netns.command("nft", "add table ip kube-proxy");
    netns.command("nft", "add chain ip kube-proxy service-endpoints-check");
    netns.run(|| {
        let error = nftables(Family::Ipv4).observe().unwrap_err();
        assert!(matches!(error, NftablesError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("nft delete table ip kube-proxy"), "{error}");
        let error = nftables(Family::Ipv4).cleanup().unwrap_err();
        assert!(matches!(error, NftablesError::Foreign { .. }), "{error}");
        let config = signpost_datapath::nftables::NftablesConfig { take_over: true, ..Default::default() };
        let mut nftables = signpost_datapath::nftables::Nftables::new(Family::Ipv4, config);
        let plan = plans::everything(Family::Ipv4);
        let have = nftables.observe().unwrap();
        nftables.apply(&nftables.repair(&nftables.program(&plan), &have)).unwrap();
    });
    assert!(!netns.command("nft", "list ruleset").contains("service-endpoints-check"));
}

#[test]
fn a_refused_change_changes_nothing() {
    let netns = Netns::new();
    let mut plan = plans::everything(Family::Ipv4);
    program(&netns, &plan);
    let before = netns.command("nft", "-a list ruleset");
    netns.run(|| {
        let mut nftables = nftables(Family::Ipv4);
        let program = nftables.program(&plan);
        plans::add_cluster_ip(&mut plan, 9, Protocol::Tcp, Target::Reject);
        let have = nftables.observe().unwrap();
        let mut change = nftables.repair(&nftables.program(&plan), &have);
        // It ends with the removal of something that is not there.
        change.chains.removed.insert("nowhere".to_owned());
        let error = nftables.apply(&change).unwrap_err();
        assert!(matches!(error, NftablesError::Refused { .. }), "{error}");
        let have = nftables.observe().unwrap();
        assert!(nftables.repair(&program, &have).is_empty());
    });
    assert_eq!(netns.command("nft", "-a list ruleset"), before);
}

#[test]
fn any_plan_and_its_changes_load_and_read_back() {
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    let run = TestRunner::new(config).run(&strategies::plan_and_changes(), |(mut plan, changes)| {
        let netns = Netns::new();
        netns.run(|| {
            let mut nftables = nftables(plan.family);
            let mut program = nftables.program(&plan);
            nftables.apply(&nftables.repair(&program, &Default::default())).unwrap();
            for plan_change in &changes {
                plan.apply(plan_change);
                let change = nftables.change(&program, plan_change);
                nftables.apply(&change).unwrap();
                nftables.advance(&mut program, &change);
                let have = nftables.observe().unwrap();
                assert_eq!(nftables.repair(&nftables.program(&plan), &have), Change::none(plan.family));
            }
        });
        Ok(())
    });
    run.unwrap();
}
