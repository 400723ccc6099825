//! Programs in a real kernel, in network namespaces of their own: what sockets meet is what `walk` says, and a table
//! that is there is adopted, not rebuilt. Needs root and nft.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod adoption;
mod conntrack;
mod ebpf;
mod flows;
mod iptables;
mod net;
mod plans;
mod sockets;
#[allow(dead_code, reason = "shared with the crate's own tests, which use all of it")]
#[path = "../../src/strategies.rs"]
mod strategies;
mod strays;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan};
use signpost_core::walk::walk;
use signpost_datapath::Datapath;
use signpost_datapath::nftables::{Nftables, NftablesConfig};

use net::{Addresses, Net, Netns, Outcome, SILENCE, Servers, addresses, reach, reach_within};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

fn nftables(family: Family) -> Nftables {
    Nftables::new(family, NftablesConfig::default())
}

/// Brings a plan into the namespace's kernel as a node daemon does at its start.
fn program(netns: &Netns, plan: &NodePlan) {
    program_with(netns, plan, &mut nftables(plan.family));
}

/// The same in a mode.
fn program_with<D: Datapath + Send>(netns: &Netns, plan: &NodePlan, datapath: &mut D) {
    netns.run(|| {
        let have = datapath.observe().unwrap();
        datapath.apply(&datapath.repair(&datapath.program(plan), &have)).unwrap();
    });
}

/// Who sends: where, and with which address.
#[derive(Debug, Clone, Copy)]
enum Client {
    PodA,
    Node,
    Outside,
}

impl Client {
    fn at(self, net: &Net, addresses: Addresses) -> (&Netns, IpAddr, Entry) {
        match self {
            Client::PodA => (&net.a, addresses.a, Entry::Interface),
            Client::Node => (&net.node, addresses.node, Entry::Local),
            Client::Outside => (&net.outside, addresses.outside, Entry::Interface),
        }
    }
}

/// Sends until every member of the walk's verdict was met, and fails on whatever else is met.
fn compare<D: Datapath>(net: &Net, plan: &NodePlan, datapath: &D, client: Client, protocol: Protocol, to: SocketAddr) {
    let (netns, source, entry) = client.at(net, addresses(plan.family));
    let packet = Packet { protocol, source: SocketAddr::new(source, 40_000), destination: to, entry };
    let verdict = walk(plan, &packet);
    assert_eq!(datapath.walk(&datapath.program(plan), &packet, None), verdict, "{client:?} {protocol} {to}");
    meets(client, netns, source, protocol, to, &verdict);
}

/// Sends until every member of a verdict was met, and fails on whatever else is met.
fn meets(client: Client, netns: &Netns, source: IpAddr, protocol: Protocol, to: SocketAddr, verdict: &Verdict) {
    let missing = |members: &BTreeSet<Rewrite>| {
        let mut missing = members.clone();
        // Of four equal ones, one is missed in 100 tries with a probability of 1e-12.
        for _ in 0..100 {
            let outcome = reach(netns, protocol, to);
            let Outcome::Answer { by, peer } = outcome else { panic!("{client:?} {protocol} {to}: {outcome:?}") };
            let met = Rewrite { to: by, masquerade: peer != source };
            assert!(members.contains(&met), "{client:?} {protocol} {to}: {met:?} from {peer}, not in {members:?}");
            missing.remove(&met);
            if missing.is_empty() {
                break;
            }
        }
        missing
    };
    let what = format!("{client:?} {protocol} {to}: {verdict:?}");
    match verdict {
        // The node's own address is its own already, with and without masquerade.
        Verdict::Rewrite(members) if matches!(client, Client::Node) => {
            let unmarked = members.iter().map(|member| Rewrite { masquerade: false, ..*member });
            let through_cni0 = |by: SocketAddr| {
                let outcome = reach(netns, protocol, to);
                matches!(outcome, Outcome::Answer { by: met, .. } if met == by)
            };
            for member in unmarked {
                assert!((0..100).any(|_| through_cni0(member.to)), "{what}");
            }
        }
        Verdict::Rewrite(members) => assert_eq!(missing(members), BTreeSet::new(), "{what}"),
        Verdict::Reject => assert_eq!(reach(netns, protocol, to), Outcome::Refused, "{what}"),
        Verdict::Drop => assert_eq!(reach_within(netns, protocol, to, SILENCE), Outcome::Timeout, "{what}"),
        Verdict::NotOurs => panic!("{what}: nothing to compare"),
    }
}

#[test]
fn sockets_meet_what_the_walk_says() {
    sockets_meet_the_walk(nftables);
}

fn sockets_meet_the_walk<D: Datapath + Send>(mode: impl Fn(Family) -> D) {
    let net = Net::new();
    let servers = Servers::new();
    for family in FAMILIES {
        let places = addresses(family);
        for (netns, address) in [(&net.a, places.a), (&net.b, places.b)] {
            servers.serve(netns, SocketAddr::new(address, 8080));
        }
        program_with(&net.node, &plans::everything(family), &mut mode(family));
    }
    for family in FAMILIES {
        let plan = plans::everything(family);
        let mode = mode(family);
        for key in plan.frontends.keys() {
            let (address, protocol, port) = match *key {
                FrontendKey::Address { address, protocol, port } => (address, protocol, port),
                FrontendKey::NodePort { protocol, port } => (addresses(family).node, protocol, port),
            };
            for client in [Client::PodA, Client::Node, Client::Outside] {
                if protocol != Protocol::Sctp {
                    compare(&net, &plan, &mode, client, protocol, SocketAddr::new(address, port.get()));
                }
            }
        }
        for client in [Client::PodA, Client::Node, Client::Outside] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                compare(&net, &plan, &mode, client, protocol, SocketAddr::new(plans::cluster_ip(family, 1), 9));
            }
            compare(&net, &plan, &mode, client, Protocol::Tcp, SocketAddr::new(plans::cluster_ip(family, 200), 80));
        }
    }
}
