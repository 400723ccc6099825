//! The mode iptables in a real kernel, in both iptables that there are.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use proptest::test_runner::{Config as ProptestConfig, TestRunner};
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{NodePlan, Target};
use signpost_datapath::Datapath;
use signpost_datapath::iptables::{Change, Iptables, IptablesConfig, IptablesError, Variant};

use crate::net::{Net, Netns, Outcome, Servers, addresses, reach};
use crate::{FAMILIES, plans, program_with, sockets_meet_the_walk, strategies};

const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// With a lock of the test's own: the machine's is everybody's.
fn config(variant: Option<Variant>) -> IptablesConfig {
    let lock = std::env::temp_dir().join(format!("signpost-test-{}.lock", std::process::id()));
    IptablesConfig { variant, lock_file: Some(lock), lock_wait: Duration::from_secs(60), ..IptablesConfig::default() }
}

pub(crate) fn iptables(family: Family, variant: Variant) -> Iptables {
    Iptables::new(family, config(Some(variant)))
}

/// What `iptables-save` prints, without what changes by itself.
fn saved(netns: &Netns, family: Family, variant: Variant) -> Vec<String> {
    let family = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    let variant = if variant == Variant::Nft { "nft" } else { "legacy" };
    let saved = netns.command(&format!("{family}-{variant}-save"), "");
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap().to_owned()).collect()
}

fn run(netns: &Netns, program: &str, words: &str) {
    let lock = config(None).lock_file.unwrap();
    let status =
        netns.run(|| Command::new(program).args(words.split(' ')).env("XTABLES_LOCKFILE", lock).status().unwrap());
    assert!(status.success(), "{program} {words}");
}

#[test]
fn sockets_meet_what_the_walk_says_in_iptables_nft() {
    sockets_meet_the_walk(|family| iptables(family, Variant::Nft));
}

#[test]
fn sockets_meet_what_the_walk_says_in_iptables_legacy() {
    sockets_meet_the_walk(|family| iptables(family, Variant::Legacy));
}

#[test]
fn any_plan_and_its_changes_load_and_read_back() {
    for variant in VARIANTS {
        let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
        let run = TestRunner::new(config).run(&strategies::plan_and_changes(), |(mut plan, changes)| {
            for frontend in plan.frontends.values_mut().step_by(2) {
                frontend.affinity = Some(Duration::from_secs(10_800));
            }
            let netns = Netns::new();
            netns.run(|| {
                let mut iptables = iptables(plan.family, variant);
                let mut program = iptables.program(&plan);
                let have = iptables.observe().unwrap();
                iptables.apply(&iptables.repair(&program, &have)).unwrap();
                let have = iptables.observe().unwrap();
                assert_eq!(iptables.repair(&program, &have), Change::none());
                for plan_change in &changes {
                    plan.apply(plan_change);
                    let change = iptables.change(&program, plan_change);
                    iptables.apply(&change).unwrap();
                    iptables.advance(&mut program, &change);
                    let have = iptables.observe().unwrap();
                    assert_eq!(iptables.repair(&iptables.program(&plan), &have), Change::none());
                }
            });
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn what_somebody_did_to_the_rules_is_put_right_and_others_rules_stay() {
    for (family, variant) in FAMILIES.into_iter().flat_map(|family| VARIANTS.map(|variant| (family, variant))) {
        let netns = Netns::new();
        let plan = plans::everything(family);
        let mut iptables = iptables(family, variant);
        let tool = match (family, variant) {
            (Family::Ipv4, Variant::Nft) => "iptables-nft",
            (Family::Ipv4, _) => "iptables-legacy",
            (Family::Ipv6, Variant::Nft) => "ip6tables-nft",
            (Family::Ipv6, _) => "ip6tables-legacy",
        };
        for theirs in ["-t nat -N CNI-HOSTPORT", "-t nat -A PREROUTING -j CNI-HOSTPORT", "-P FORWARD DROP"] {
            run(&netns, tool, theirs);
        }
        let empty = saved(&netns, family, variant);
        program_with(&netns, &plan, &mut iptables);
        let whole = saved(&netns, family, variant);
        for harm in [
            "-t nat -F KUBE-SERVICES",
            "-t nat -D KUBE-POSTROUTING 1",
            "-t nat -D PREROUTING 1",
            "-t filter -F INPUT",
            "-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
            "-t filter -I OUTPUT 1 -j KUBE-SERVICES",
        ] {
            run(&netns, tool, harm);
        }
        assert_ne!(saved(&netns, family, variant), whole);
        program_with(&netns, &plan, &mut iptables);
        assert_eq!(saved(&netns, family, variant), whole);
        let nothing = netns.run(|| {
            let have = iptables.observe().unwrap();
            iptables.repair(&iptables.program(&plan), &have)
        });
        assert!(nothing.is_empty(), "a restart writes nothing");
        netns.run(|| iptables.cleanup().unwrap());
        assert_eq!(saved(&netns, family, variant), empty);
    }
}

/// What kube-proxy of 1.36 leaves behind, in the main: other rules under the same names, jumps of another form.
const KUBE_PROXYS: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.77/32 -p udp -m comment --comment \"default/dns cluster IP\" -m udp --dport 53 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
COMMIT
";

fn restore(netns: &Netns, rules: &str) {
    netns.run(|| {
        let mut child = Command::new("iptables-nft-restore").arg("--noflush").stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn chains_of_kube_proxy_are_left_alone_unless_told() {
    let netns = Netns::new();
    restore(&netns, KUBE_PROXYS);
    let plan = plans::everything(Family::Ipv4);
    netns.run(|| {
        let mut iptables = Iptables::new(Family::Ipv4, config(None));
        let error = iptables.observe().unwrap_err();
        assert!(matches!(error, IptablesError::Foreign { .. }), "{error}");
        assert!(!iptables.remove_former(false).unwrap(), "they are not this program's to remove");
        assert_eq!(iptables.variant(), Some(Variant::Nft), "that in which chains are");

        let mut iptables = Iptables::new(Family::Ipv4, IptablesConfig { take_over: true, ..config(None) });
        let have = iptables.observe().unwrap();
        assert_eq!(have.udp_frontends(), ["10.96.0.77:53".parse().unwrap()]);
        iptables.apply(&iptables.repair(&iptables.program(&plan), &have)).unwrap();
        let have = Iptables::new(Family::Ipv4, config(None)).observe().unwrap();
        assert!(iptables.repair(&iptables.program(&plan), &have).is_empty());
    });
    let taken = saved(&netns, Family::Ipv4, Variant::Nft);
    let fresh = Netns::new();
    program_with(&fresh, &plan, &mut iptables(Family::Ipv4, Variant::Nft));
    let kubelets = |line: &String| line.contains("KUBE-FIREWALL");
    assert_eq!(taken.iter().filter(|line| kubelets(line)).count(), 2, "those of kubelet stay");
    let taken: Vec<String> = taken.into_iter().filter(|line| !kubelets(line)).collect();
    assert_eq!(taken, saved(&fresh, Family::Ipv4, Variant::Nft));
}

#[test]
fn another_mode_takes_over_and_cuts_no_connection() {
    use std::io::Read;
    use std::net::TcpStream;
    let net = Net::new();
    let servers = Servers::new();
    let family = Family::Ipv4;
    let at = addresses(family);
    servers.serve(&net.b, SocketAddr::new(at.b, 8080));
    let vip = SocketAddr::new(plans::cluster_ip(family, 1), 80);
    let mut plan = plans::empty(family);
    plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, Target::Backends(plans::backends(&[at.b])));
    let talks = |mut stream: &TcpStream| {
        let mut bytes = [0; 5];
        stream.write_all(b"still").unwrap();
        stream.read_exact(&mut bytes).is_ok()
    };
    for variant in VARIANTS {
        program_with(&net.node, &plan, &mut crate::nftables(family));
        let streams = [&net.outside, &net.a, &net.node].map(|netns| {
            let stream = netns.run(|| TcpStream::connect(vip).unwrap());
            crate::net::hello(&stream).unwrap();
            stream
        });
        program_with(&net.node, &plan, &mut iptables(family, variant));
        assert!(net.node.run(|| crate::nftables(family).remove_former(false).unwrap()));
        assert!(!net.node.run(|| crate::nftables(family).remove_former(false).unwrap()), "only once");
        assert!(streams.iter().all(talks));
        assert!(matches!(reach(&net.outside, Protocol::Tcp, vip), Outcome::Answer { .. }));
        program_with(&net.node, &plan, &mut crate::nftables(family));
        assert!(net.node.run(|| Iptables::new(family, config(None)).remove_former(false).unwrap()));
        assert!(streams.iter().all(talks));
        assert!(!saved(&net.node, family, variant).iter().any(|line| line.contains("KUBE-")));
        net.node.run(|| crate::nftables(family).cleanup().unwrap());
    }
}

#[test]
fn a_node_that_uses_the_old_iptables_is_served_in_it() {
    let netns = Netns::new();
    run(&netns, "iptables-legacy", "-t mangle -N KUBE-KUBELET-CANARY");
    netns.run(|| {
        let mut iptables = Iptables::new(Family::Ipv4, config(None));
        iptables.observe().unwrap();
        assert_eq!(iptables.variant(), Some(Variant::Legacy));
    });
}

#[test]
fn a_lock_that_is_held_is_waited_for_within_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let lock_file = folder.path().join("lock");
    let held = Flock::lock(File::create(&lock_file).unwrap(), FlockArg::LockExclusive).unwrap();
    let netns = Netns::new();
    let plan = plans::everything(Family::Ipv4);
    netns.run(|| {
        let patient = |seconds| IptablesConfig {
            lock_file: Some(lock_file.clone()),
            lock_wait: Duration::from_secs(seconds),
            ..config(Some(Variant::Legacy))
        };
        let mut iptables = Iptables::new(Family::Ipv4, patient(1));
        let have = iptables.observe().unwrap();
        let change = iptables.repair(&iptables.program(&plan), &have);
        let began = Instant::now();
        let error = iptables.apply(&change).unwrap_err();
        assert!(matches!(error, IptablesError::Locked { waited_s: 1, .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10));
        drop(held);
        iptables.apply(&change).unwrap();
    });
}

#[test]
fn affinity_keeps_a_client_at_its_backend_and_lets_go_of_one_that_left() {
    let net = Net::new();
    let servers = Servers::new();
    for family in FAMILIES {
        let at = addresses(family);
        servers.serve(&net.a, SocketAddr::new(at.a, 8080));
        servers.serve(&net.b, SocketAddr::new(at.b, 8080));
        let vip = SocketAddr::new(plans::cluster_ip(family, 1), 80);
        let service = |backends: &[std::net::IpAddr]| -> NodePlan {
            let mut plan = plans::empty(family);
            plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, Target::Backends(plans::backends(backends)));
            plan.frontends.values_mut().for_each(|frontend| frontend.affinity = Some(Duration::from_secs(60)));
            plan
        };
        let by = || match reach(&net.outside, Protocol::Tcp, vip) {
            Outcome::Answer { by, .. } => by.ip(),
            other => panic!("{other:?}"),
        };
        let mut iptables = iptables(family, Variant::Nft);
        program_with(&net.node, &service(&[at.a, at.b]), &mut iptables);
        let first = by();
        assert!((0..30).all(|_| by() == first));
        let other = if first == at.a { at.b } else { at.a };
        program_with(&net.node, &service(&[other]), &mut iptables);
        assert_eq!(by(), other);
        program_with(&net.node, &service(&[at.a, at.b]), &mut iptables);
        assert!((0..10).all(|_| by() == other || by() == first));
    }
}

#[test]
fn people_find_what_they_look_for() {
    let netns = Netns::new();
    let plan = plans::everything(Family::Ipv4);
    program_with(&netns, &plan, &mut iptables(Family::Ipv4, Variant::Nft));
    let listed = netns.command("iptables-nft", "-t nat -L KUBE-SERVICES -n");
    let line = listed.lines().find(|line| line.contains("10.96.0.1 ") && line.contains("tcp dpt:80")).unwrap();
    assert!(line.starts_with("KUBE-SVC-") && line.contains("default/cluster-ip-1:http cluster IP"), "{line}");
}
