//! The mode IPVS in a real kernel. Runs in a virtual machine with a kernel that has IPVS (`make vm`), so it is no part of
//! `cargo test`: `tools/vmtest.sh 6.1 TEST-PROGRAM --test-threads 1`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

#[allow(dead_code, reason = "shared with the tests of the other modes")]
#[path = "../kernel/net.rs"]
mod net;
#[allow(dead_code, reason = "shared with the tests of the other modes")]
#[path = "../kernel/plans.rs"]
mod plans;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use net::{Net, Netns, Outcome, SILENCE, Servers, addresses, reach, reach_within};
use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan, PlanChange, Target};
use signpost_core::walk::walk;
use signpost_datapath::Datapath;
use signpost_datapath::ipvs::{Change, Ipvs, IpvsConfig, Scheduler};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

fn mode(family: Family) -> Ipvs {
    Ipvs::new(family, IpvsConfig::default())
}

/// Brings a plan into the namespace's kernel as a node daemon does at its start; what it had to change.
fn program(node: &Netns, plan: &NodePlan, mode: &mut Ipvs) -> Change {
    node.run(|| {
        let have = mode.observe().unwrap();
        let change = mode.repair(&mode.program(plan), &have);
        mode.apply(&change).unwrap();
        change
    })
}

/// Who sends: where, with which address, and how it comes to the node.
fn clients(net: &Net, family: Family) -> [(&'static str, &Netns, std::net::IpAddr, Entry); 3] {
    let at = addresses(family);
    [
        ("pod", &net.a, at.a, Entry::Interface),
        ("node", &net.node, at.node, Entry::Local),
        ("outside", &net.outside, at.outside, Entry::Interface),
    ]
}

/// Sends until every member of the verdict was met, and fails on whatever else is met.
fn meets(who: &str, netns: &Netns, source: std::net::IpAddr, protocol: Protocol, to: SocketAddr, verdict: &Verdict) {
    let what = format!("{who} {protocol} {to}: {verdict:?}");
    match verdict {
        Verdict::Rewrite(members) => {
            // The node's own address is its own already, with and without masquerade.
            let seen = |member: &Rewrite| (member.to, member.masquerade || who == "node");
            let mut missing: BTreeSet<(SocketAddr, bool)> = members.iter().map(seen).collect();
            let wanted = missing.clone();
            for _ in 0..40 {
                let outcome = reach(netns, protocol, to);
                let Outcome::Answer { by, peer } = outcome else { panic!("{what}: {outcome:?}") };
                let met = (by, peer != source || who == "node");
                assert!(wanted.contains(&met), "{what}: met {by} from {peer}");
                missing.remove(&met);
                if missing.is_empty() {
                    return;
                }
            }
            panic!("{what}: never met {missing:?}");
        }
        Verdict::Reject => assert_eq!(reach(netns, protocol, to), Outcome::Refused, "{what}"),
        Verdict::Drop => assert_eq!(reach_within(netns, protocol, to, SILENCE), Outcome::Timeout, "{what}"),
        Verdict::NotOurs => panic!("{what}: nothing to compare"),
    }
}

#[test]
fn sockets_meet_what_the_walk_says() {
    let net = Net::new();
    let servers = Servers::new();
    for family in FAMILIES {
        let at = addresses(family);
        servers.serve(&net.a, SocketAddr::new(at.a, 8080));
        servers.serve(&net.b, SocketAddr::new(at.b, 8080));
        program(&net.node, &plans::everything(family), &mut mode(family));
    }
    for family in FAMILIES {
        let plan = plans::everything(family);
        let mode = mode(family);
        let program = mode.program(&plan);
        let places = plan.frontends.keys().map(|key| match *key {
            FrontendKey::Address { address, protocol, port } => (protocol, SocketAddr::new(address, port.get())),
            FrontendKey::NodePort { protocol, port } => (protocol, SocketAddr::new(addresses(family).node, port.get())),
        });
        // A port that a cluster address lacks, and an address that no Service has.
        let others = [
            (Protocol::Tcp, SocketAddr::new(plans::cluster_ip(family, 1), 9)),
            (Protocol::Udp, SocketAddr::new(plans::cluster_ip(family, 1), 9)),
            (Protocol::Tcp, SocketAddr::new(plans::cluster_ip(family, 200), 80)),
        ];
        for (protocol, to) in places.chain(others).filter(|(protocol, _)| *protocol != Protocol::Sctp) {
            for (who, netns, source, entry) in clients(&net, family) {
                let packet = Packet { protocol, source: SocketAddr::new(source, 40_000), destination: to, entry };
                let verdict = walk(&plan, &packet);
                assert_eq!(mode.walk(&program, &packet, None), verdict, "{who} {protocol} {to}");
                meets(who, netns, source, protocol, to, &verdict);
            }
        }
    }
}

#[test]
fn what_is_there_is_adopted_and_shown_as_people_look_for_it_and_cleaned_up() {
    let netns = Netns::new();
    let foreign = "-A -t 192.0.2.77:80 -s lc";
    netns.command("ipvsadm", foreign);
    for family in FAMILIES {
        let plan = plans::everything(family);
        let mut first = mode(family);
        assert!(!program(&netns, &plan, &mut first).is_empty());
        let change = program(&netns, &plan, &mut mode(family));
        assert!(change.is_empty(), "{change:?}");
    }
    let shown = netns.command("ipvsadm", "-Ln");
    let lines: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("TCP  10.96.0.1:80 rr")).take(3).collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[1].contains("-> 10.244.1.2:8080") && lines[1].contains("Masq    1"), "{shown}");
    assert!(netns.command("ipset", "list KUBE-CLUSTER-IP").contains("10.96.0.1,tcp:80"));
    assert!(netns.command("ip", "-br addr show kube-ipvs0").contains("10.96.0.1/32"));
    for family in FAMILIES {
        netns.run(|| mode(family).cleanup().unwrap());
    }
    assert_eq!(netns.command("ipset", "list -n"), "");
    let left = netns.command("ipvsadm", "-Sn");
    assert_eq!(left.trim(), foreign.trim(), "only what is not ours is left");
    for tool in ["iptables-save", "ip6tables-save"] {
        assert!(!netns.command(tool, "").contains("KUBE-"));
    }
    assert!(!netns.command("ip", "-br link").contains("kube-ipvs0"));
}

#[test]
fn a_destination_that_goes_keeps_its_connections_and_gets_no_new_ones() {
    let family = Family::Ipv4;
    let net = Net::new();
    let servers = Servers::new();
    let at = addresses(family);
    servers.serve(&net.a, SocketAddr::new(at.a, 8080));
    servers.serve(&net.b, SocketAddr::new(at.b, 8080));
    let mut plan = plans::empty(family);
    plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, Target::Backends(plans::backends(&[at.b])));
    let mut mode = Ipvs::new(family, IpvsConfig { drain: Duration::ZERO, ..IpvsConfig::default() });
    program(&net.node, &plan, &mut mode);
    let to = SocketAddr::new(plans::cluster_ip(family, 1), 80);
    let mut kept = net.outside.run(|| TcpStream::connect(to).unwrap());
    let mut hello = [0; 64];
    assert!(kept.read(&mut hello).unwrap() > 0);

    let mut after = plans::empty(family);
    plans::add_cluster_ip(&mut after, 1, Protocol::Tcp, Target::Backends(plans::backends(&[at.a])));
    let plan_change = PlanChange { set: after.frontends.clone(), ..PlanChange::default() };
    let mut wanted = mode.program(&plan);
    let change = mode.change(&wanted, &plan_change);
    net.node.run(|| mode.apply(&change).unwrap());
    mode.advance(&mut wanted, &change);
    for _ in 0..6 {
        assert!(matches!(reach(&net.outside, Protocol::Tcp, to), Outcome::Answer { by, .. } if by.ip() == at.a));
    }
    kept.write_all(b"still there?").unwrap();
    assert!(kept.read(&mut hello).unwrap() > 0);
    assert!(net.node.command("ipvsadm", "-Ln").contains("10.244.1.3:8080              Masq    0"));
    // Its time is over at once here.
    net.node.run(|| {
        let have = mode.observe().unwrap();
        mode.apply(&mode.repair(&wanted, &have)).unwrap();
    });
    assert!(!net.node.command("ipvsadm", "-Ln").contains("10.244.1.3:8080"));
}

#[test]
fn every_scheduler_and_affinity_loads_and_reads_back() {
    let netns = Netns::new();
    let mut plan = plans::everything(Family::Ipv4);
    for frontend in plan.frontends.values_mut().step_by(2) {
        frontend.affinity = Some(Duration::from_secs(10_800));
    }
    for scheduler in Scheduler::ALL {
        let mut mode = Ipvs::new(Family::Ipv4, IpvsConfig { scheduler, ..IpvsConfig::default() });
        program(&netns, &plan, &mut mode);
        let change = program(&netns, &plan, &mut mode);
        assert!(change.is_empty(), "{scheduler}: {change:?}");
    }
}

#[test]
fn what_somebody_deletes_comes_back() {
    let netns = Netns::new();
    let plan = plans::everything(Family::Ipv4);
    let mut mode = mode(Family::Ipv4);
    program(&netns, &plan, &mut mode);
    let commands = [
        ("ipvsadm", "-C"),
        ("ip", "link delete kube-ipvs0"),
        ("ip", "addr del 10.96.0.1/32 dev kube-ipvs0"),
        ("iptables", "-t nat -F"),
        ("iptables", "-F KUBE-IPVS-FILTER"),
        ("ipset", "flush KUBE-CLUSTER-IP"),
    ];
    for (program_name, arguments) in commands {
        netns.command(program_name, arguments);
        assert!(!program(&netns, &plan, &mut mode).is_empty(), "{program_name} {arguments}: nothing was missed");
        let change = program(&netns, &plan, &mut mode);
        assert!(change.is_empty(), "{program_name} {arguments}: {change:?}");
    }
}

#[test]
fn timeouts_strict_arp_and_servers_of_sctp_are_as_asked() {
    let netns = Netns::new();
    let plan = plans::everything(Family::Ipv4);
    let timeouts = [600, 60, 30].map(Duration::from_secs);
    let mut mode = Ipvs::new(Family::Ipv4, IpvsConfig { strict_arp: true, timeouts, ..IpvsConfig::default() });
    program(&netns, &plan, &mut mode);
    let shown = netns.command("ipvsadm", "-L --timeout");
    assert!(shown.contains("600 60 30"), "{shown}");
    let settings = ["arp_ignore", "arp_announce"].map(|name| format!("/proc/sys/net/ipv4/conf/all/{name}"));
    let values = netns.run(|| settings.map(|path| std::fs::read_to_string(path).unwrap().trim().to_owned()));
    assert_eq!(values, ["1", "2"]);
    assert!(netns.command("ipvsadm", "-Ln").lines().any(|line| line.starts_with("SCTP ")));
}

#[test]
fn what_kube_proxy_left_is_told_and_cleaned_up() {
    let netns = Netns::new();
    for (program_name, arguments) in [
        ("ip", "link add kube-ipvs0 type dummy"),
        ("ip", "addr add 10.96.0.1/32 dev kube-ipvs0"),
        ("ipset", "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536"),
        ("ipset", "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443"),
        ("ipvsadm", "-A -t 10.96.0.1:443 -s rr"),
        ("ipvsadm", "-a -t 10.96.0.1:443 -r 172.18.0.1:6443 -m"),
        ("iptables", "-t nat -N KUBE-SERVICES"),
        ("iptables", "-t nat -A PREROUTING -j KUBE-SERVICES"),
        ("iptables", "-t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"),
    ] {
        netns.command(program_name, arguments);
    }
    netns.run(|| {
        assert!(mode(Family::Ipv4).has_foreign().unwrap());
        let refused = mode(Family::Ipv4).observe().unwrap_err().to_string();
        assert!(refused.contains("kube-proxy's") && refused.contains("--take-over"), "{refused}");
        mode(Family::Ipv4).cleanup().unwrap();
    });
    assert_eq!(netns.command("ipvsadm", "-Sn").trim(), "");
    assert_eq!(netns.command("ipset", "list -n"), "");
    assert!(!netns.command("iptables-save", "").contains("KUBE-"));
    assert!(!netns.command("ip", "-br link").contains("kube-ipvs0"));
}
