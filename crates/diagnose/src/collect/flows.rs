//! Connection tracking of the network namespace that the calling thread is in.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use signpost_core::object::{Family, Protocol};
use signpost_datapath::conntrack::{Conntrack, Flow};

use super::host;
use crate::snapshot::{ConntrackState, Held, NodeState, PortUse, UdpFlow, Unknown};

/// More flows than this are not kept one by one.
const MOST_FLOWS: usize = 2_000;
/// More destinations than this are not kept; those with the most flows are.
const MOST_PLACES: usize = 1_000;

pub(super) fn conntrack(state: &mut NodeState) {
    let number = |name: &str| host::sysctl(name).and_then(|value| value.parse().ok());
    state.conntrack = ConntrackState {
        count: number("net.netfilter.nf_conntrack_count"),
        max: number("net.netfilter.nf_conntrack_max"),
        counters: host::conntrack_counters(),
        ..ConntrackState::default()
    };
    let mut counted = Counted::default();
    for family in [Family::Ipv4, Family::Ipv6] {
        let conntrack = Conntrack::new(family);
        let read = conntrack.flows().and_then(|flows| {
            for flow in flows.into_iter().filter(|flow| flow.zone == 0) {
                counted.count(Protocol::Udp, &flow);
                if flow.is_translated() && state.conntrack.translated_udp.len() < MOST_FLOWS {
                    state.conntrack.translated_udp.push(UdpFlow {
                        client: flow.original.source,
                        to: flow.original.destination,
                        backend: flow.reply.source,
                    });
                }
            }
            conntrack.each_tcp(|flow| counted.count(Protocol::Tcp, &flow))
        });
        if let Err(error) = read {
            state.unknown.push(Unknown { what: format!("{family} flows of conntrack"), why: error.to_string() });
        }
    }
    let masqueraded = most(counted.masqueraded).into_iter();
    state.conntrack.masqueraded =
        masqueraded.map(|((protocol, by, backend), flows)| PortUse { by, backend, protocol, flows }).collect();
    let established = most(counted.established).into_iter();
    state.conntrack.established = established.map(|(backend, flows)| Held { backend, flows }).collect();
}

#[derive(Default)]
struct Counted {
    masqueraded: HashMap<(Protocol, IpAddr, SocketAddr), usize>,
    established: HashMap<SocketAddr, usize>,
}

impl Counted {
    fn count(&mut self, protocol: Protocol, flow: &Flow) {
        if flow.is_masqueraded() {
            let place = (protocol, flow.reply.destination.ip(), flow.reply.source);
            *self.masqueraded.entry(place).or_default() += 1;
        }
        if flow.established {
            *self.established.entry(flow.reply.source).or_default() += 1;
        }
    }
}

/// Those with the most, in an order that does not depend on chance.
fn most<K: Hash + Ord>(counted: HashMap<K, usize>) -> Vec<(K, usize)> {
    let mut all: Vec<(K, usize)> = counted.into_iter().collect();
    all.sort_by(|(a, many), (b, few)| few.cmp(many).then_with(|| a.cmp(b)));
    all.truncate(MOST_PLACES);
    all
}
