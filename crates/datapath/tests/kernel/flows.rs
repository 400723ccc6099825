//! Flows through a table that changes, and what the node's own processes meet.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{NodePlan, Target};
use signpost_datapath::Datapath;
use signpost_datapath::nftables::Change;

use crate::net::{Net, Outcome, SILENCE, Servers, addresses, hello, reach, reach_within};
use crate::{FAMILIES, nftables, plans, program};

fn talks(mut stream: &TcpStream) -> bool {
    let mut bytes = [0; 5];
    stream.write_all(b"still").unwrap();
    stream.read_exact(&mut bytes).is_ok() && &bytes == b"still"
}

#[test]
fn an_established_flow_outlives_every_change() {
    let net = Net::new();
    let servers = Servers::new();
    for family in FAMILIES {
        let at = addresses(family);
        servers.serve(&net.a, SocketAddr::new(at.a, 8080));
        servers.serve(&net.b, SocketAddr::new(at.b, 8080));
        let vip = plans::cluster_ip(family, 1);
        let service = |target: Target| {
            let mut plan = plans::empty(family);
            plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, target);
            plan
        };
        program(&net.node, &service(Target::Backends(plans::backends(&[at.b]))));
        // One that is masqueraded and one that is not.
        let streams = [&net.outside, &net.a].map(|netns| {
            let stream = netns.run(|| TcpStream::connect((vip, 80)).unwrap());
            assert!(hello(&stream).unwrap().starts_with(&SocketAddr::new(at.b, 8080).to_string()));
            stream
        });
        let apply = |change: &Change| net.node.run(|| nftables(family).apply(change).unwrap());
        let elsewhere: NodePlan = service(Target::Backends(plans::backends(&[at.a])));
        program(&net.node, &elsewhere);
        assert!(streams.iter().all(talks), "its backend is none any more");
        program(&net.node, &service(Target::Reject));
        assert!(streams.iter().all(talks), "the Service has no endpoint any more");
        program(&net.node, &plans::empty(family));
        assert!(streams.iter().all(talks), "the Service is gone");
        apply(&Change::load(&nftables(family).program(&elsewhere), true));
        assert!(streams.iter().all(talks), "the table was replaced");
        assert!(matches!(reach(&net.outside, Protocol::Tcp, SocketAddr::new(vip, 80)),
            Outcome::Answer { by, .. } if by.ip() == at.a));
    }
}

#[test]
fn flows_live_on_without_the_rules_that_began_them_while_the_hooks_are_kept() {
    let net = Net::new();
    let servers = Servers::new();
    for family in FAMILIES {
        let at = addresses(family);
        servers.serve(&net.b, SocketAddr::new(at.b, 8080));
        let vip = SocketAddr::new(plans::cluster_ip(family, 1), 80);
        let mut plan = plans::empty(family);
        plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, Target::Backends(plans::backends(&[at.b])));
        program(&net.node, &plan);
        let streams = [&net.outside, &net.a, &net.node].map(|netns| {
            let stream = netns.run(|| TcpStream::connect(vip).unwrap());
            hello(&stream).unwrap();
            stream
        });
        net.node.run(|| {
            let mut nftables = nftables(family);
            nftables.keep_flows().unwrap();
            nftables.keep_flows().unwrap();
            assert!(nftables.remove_former(false).unwrap());
        });
        assert!(streams.iter().all(talks));
        assert_eq!(reach_within(&net.outside, Protocol::Tcp, vip, SILENCE), Outcome::Timeout, "new ones are not led");
        assert!(net.node.run(|| nftables(family).release_flows().unwrap()));
        assert!(!net.node.run(|| nftables(family).release_flows().unwrap()), "only once");
    }
}

#[test]
fn the_nodes_own_processes_are_refused_at_once() {
    let net = Net::new();
    for family in FAMILIES {
        let plan = plans::everything(family);
        program(&net.node, &plan);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for to in [
                SocketAddr::new(plans::cluster_ip(family, 3), 80),
                SocketAddr::new(plans::cluster_ip(family, 1), 81),
                SocketAddr::new(addresses(family).node, 30_004),
            ] {
                let start = Instant::now();
                assert_eq!(reach(&net.node, protocol, to), Outcome::Refused, "{protocol} {to}");
                // A refusal that is not at once is one of the second try, a second later.
                assert!(start.elapsed() < Duration::from_millis(900), "{protocol} {to}: {:?}", start.elapsed());
            }
        }
    }
}

#[test]
fn each_backend_is_as_likely() {
    let net = Net::new();
    let servers = Servers::new();
    let at = addresses(Family::Ipv4);
    let plan = plans::everything(Family::Ipv4);
    servers.serve(&net.a, SocketAddr::new(at.a, 8080));
    servers.serve(&net.b, SocketAddr::new(at.b, 8080));
    program(&net.node, &plan);
    let mut count: BTreeMap<Outcome, u32> = BTreeMap::new();
    for _ in 0..400 {
        let to = SocketAddr::new(plans::cluster_ip(Family::Ipv4, 1), 80);
        *count.entry(reach(&net.outside, Protocol::Tcp, to)).or_default() += 1;
    }
    // A fair coin leaves this range about once in ten million runs.
    assert!(count.len() == 2 && count.values().all(|times| (147..=253).contains(times)), "{count:?}");
}
