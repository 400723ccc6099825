//! What the announcer counts, under MetalLB's names: dashboards and alerts go on working.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signpost_core::load_balancer::Pool;
use signpost_core::object::{Family, ObjectName};
use signpost_wire::bgp::{Session, State};

use crate::prometheus::Text;

/// Cheap to clone; all are one.
#[derive(Debug, Clone, Default)]
pub struct Numbers(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    node: Arc<str>,
    /// By protocol: which Services are announced, at which addresses.
    announced: BTreeMap<&'static str, BTreeMap<ObjectName, Vec<IpAddr>>>,
    addresses: BTreeMap<IpAddr, Address>,
    peers: BTreeMap<Arc<str>, Peer>,
    pools: BTreeMap<Arc<str>, PoolUse>,
    /// By part.
    configuration: BTreeMap<&'static str, Configuration>,
}

/// What was heard and said of an address on the nodes' own network.
#[derive(Debug, Clone, Copy, Default)]
struct Address {
    requests: u64,
    answers: u64,
    gratuitous: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Peer {
    up: bool,
    updates: u64,
    /// Of sessions that are over.
    former_updates: u64,
    announced: usize,
    pending: usize,
}

/// How many addresses a pool has, and how many are given out, of IPv4 and IPv6.
#[derive(Debug, Clone, Copy, Default)]
struct PoolUse {
    total: [f64; 2],
    used: [u64; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Configuration {
    updates: u64,
    errors: u64,
    stale: bool,
}

impl Numbers {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Held for additions only: there is no half-done state after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node's name.
    pub fn set_node(&self, node: &Arc<str>) {
        self.inner().node = node.clone();
    }

    /// These Services are announced by a protocol (`layer2` or `bgp`).
    pub fn announced(&self, protocol: &'static str, services: BTreeMap<ObjectName, Vec<IpAddr>>) {
        self.inner().announced.insert(protocol, services);
    }

    /// Somebody asked where an address is, and got an answer.
    pub fn answered(&self, address: IpAddr) {
        let mut inner = self.inner();
        let counted = inner.addresses.entry(address).or_default();
        (counted.requests, counted.answers) = (counted.requests + 1, counted.answers + 1);
    }

    /// The segment was told where an address is.
    pub fn gratuitous(&self, address: IpAddr) {
        self.inner().addresses.entry(address).or_default().gratuitous += 1;
    }

    /// A session goes on.
    pub fn session(&self, peer: &Arc<str>, session: &Session) {
        let mut inner = self.inner();
        let counted = inner.peers.entry(peer.clone()).or_default();
        counted.up = session.state() == State::Established;
        counted.updates = session.updates();
        counted.announced = if counted.up { session.told().len() } else { 0 };
        counted.pending = session.wanted().saturating_sub(counted.announced);
    }

    /// The session with a peer is over.
    pub fn session_over(&self, peer: &Arc<str>) {
        if let Some(counted) = self.inner().peers.get_mut(peer) {
            counted.former_updates += std::mem::take(&mut counted.updates);
            (counted.up, counted.announced) = (false, 0);
        }
    }

    /// These are the peers.
    pub fn keep_peers(&self, is_peer: impl Fn(&Arc<str>) -> bool) {
        self.inner().peers.retain(|name, _| is_peer(name));
    }

    /// These are the pools, and these addresses of them are given out.
    pub fn pools(&self, pools: &[Pool], used: &[IpAddr]) {
        let of = |pool: &Pool, family| used.iter().filter(|one| Family::of(**one) == family && pool.has(**one)).count();
        let pools = pools.iter().map(|pool| {
            let total = [Family::Ipv4, Family::Ipv6].map(|family| pool.size(family) as f64);
            let used = [Family::Ipv4, Family::Ipv6].map(|family| of(pool, family) as u64);
            (pool.name.clone(), PoolUse { total, used })
        });
        self.inner().pools = pools.collect();
    }

    /// Whether a part of the configuration was read.
    pub fn is_configured(&self, part: &'static str) -> bool {
        self.inner().configuration.contains_key(part)
    }

    /// A part of the configuration was read; `faults`: so much of it cannot be used, and its last good form is.
    pub fn configured(&self, part: &'static str, faults: usize) {
        let mut inner = self.inner();
        let configuration = inner.configuration.entry(part).or_default();
        configuration.updates += 1;
        configuration.errors += faults as u64;
        configuration.stale = faults > 0;
    }

    /// All of it; nothing while nothing is configured.
    pub(crate) fn write(&self, text: &mut Text) {
        let inner = self.inner();
        if inner.configuration.is_empty() {
            return;
        }
        inner.write_announced(text);
        inner.write_sessions(text);
        inner.write_pools(text);
        let parts = || inner.configuration.values();
        let (updates, errors) =
            (parts().map(|part| part.updates).sum::<u64>(), parts().map(|part| part.errors).sum::<u64>());
        let stale = parts().any(|part| part.stale);
        for (name, kind, help, value) in [
            ("metallb_k8s_client_updates_total", "counter", "Times that the configuration was read", updates as f64),
            ("metallb_k8s_client_update_errors_total", "counter", "Faults that were found in it", errors as f64),
            ("metallb_k8s_client_config_loaded_bool", "gauge", "1: there is a configuration", 1.0),
            (
                "metallb_k8s_client_config_stale_bool",
                "gauge",
                "1: a part is in force in its last good form",
                f64::from(u8::from(stale)),
            ),
        ] {
            text.head(name, kind, help);
            text.sample(name, &[], value);
        }
    }
}

impl Inner {
    fn write_announced(&self, text: &mut Text) {
        let name = "metallb_speaker_announced";
        text.head(name, "gauge", "Services that this node announces");
        for (protocol, services) in &self.announced {
            for (service, addresses) in services {
                for address in addresses {
                    let (service, address) = (service.to_string(), address.to_string());
                    let labels =
                        [("service", &*service), ("protocol", protocol), ("node", &*self.node), ("ip", &*address)];
                    text.sample(name, &labels, 1.0);
                }
            }
        }
        type Count = fn(&Address) -> u64;
        let counters: [(&str, &str, Count); 3] = [
            ("metallb_layer2_requests_received", "Questions for an address that this node has", |one| one.requests),
            ("metallb_layer2_responses_sent", "Answers to them", |one| one.answers),
            ("metallb_layer2_gratuitous_sent", "Times that the segment was told of an address", |one| one.gratuitous),
        ];
        for (name, help, count) in counters {
            text.head(name, "counter", help);
            for (address, counted) in &self.addresses {
                text.sample(name, &[("ip", &address.to_string())], count(counted) as f64);
            }
        }
    }

    fn write_sessions(&self, text: &mut Text) {
        type Value = fn(&Peer) -> f64;
        let numbers: [(&str, &str, &str, Value); 4] = [
            ("metallb_bgp_session_up", "gauge", "1: the session stands", |peer| f64::from(u8::from(peer.up))),
            ("metallb_bgp_updates_total", "counter", "UPDATEs that were sent", |peer| {
                (peer.former_updates + peer.updates) as f64
            }),
            ("metallb_bgp_announced_prefixes_total", "gauge", "Routes that the peer has", |peer| peer.announced as f64),
            ("metallb_bgp_pending_prefixes_total", "gauge", "Routes that the peer is to have and has not", |peer| {
                peer.pending as f64
            }),
        ];
        for (name, kind, help, value) in numbers {
            text.head(name, kind, help);
            for (peer, counted) in &self.peers {
                text.sample(name, &[("peer", peer)], value(counted));
            }
        }
    }

    fn write_pools(&self, text: &mut Text) {
        type Sum = fn(&[f64; 2]) -> f64;
        let sums: [(&str, Sum); 3] =
            [("", |both| both[0] + both[1]), ("ipv4_", |both| both[0]), ("ipv6_", |both| both[1])];
        for (family, sum) in sums {
            let names = [
                (format!("metallb_allocator_{family}addresses_total"), "Addresses of a pool"),
                (format!("metallb_allocator_{family}addresses_in_use_total"), "Addresses of a pool that are given out"),
            ];
            for (at, (name, help)) in names.iter().enumerate() {
                text.head(name, "gauge", help);
                for (pool, counted) in &self.pools {
                    let both = if at == 0 { counted.total } else { counted.used.map(|used| used as f64) };
                    text.sample(name, &[("pool", pool)], sum(&both));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(numbers: &Numbers) -> String {
        let mut text = Text::new();
        numbers.write(&mut text);
        text.finish()
    }

    #[test]
    fn numbers_have_metallbs_names() {
        let numbers = Numbers::default();
        assert_eq!(written(&numbers), "", "nothing is configured");
        numbers.set_node(&"n1".into());
        numbers.configured("l2", 1);
        let address: IpAddr = "172.18.15.200".parse().unwrap();
        let web = ObjectName::new("default", "web");
        numbers.announced("layer2", [(web, vec![address])].into());
        numbers.answered(address);
        numbers.gratuitous(address);
        let pool = Pool {
            name: "default".into(),
            labels: signpost_core::labels::Labels::new(),
            ranges: vec!["172.18.15.200-172.18.15.210".parse().unwrap()],
            auto_assign: true,
            avoid_buggy: false,
            allocation: None,
        };
        numbers.pools(&[pool], &[address]);
        let text = written(&numbers);
        for line in [
            "metallb_speaker_announced{service=\"default/web\",protocol=\"layer2\",node=\"n1\",ip=\"172.18.15.200\"} 1",
            "metallb_layer2_requests_received{ip=\"172.18.15.200\"} 1",
            "metallb_layer2_responses_sent{ip=\"172.18.15.200\"} 1",
            "metallb_layer2_gratuitous_sent{ip=\"172.18.15.200\"} 1",
            "metallb_allocator_addresses_total{pool=\"default\"} 11",
            "metallb_allocator_ipv4_addresses_in_use_total{pool=\"default\"} 1",
            "metallb_allocator_ipv6_addresses_total{pool=\"default\"} 0",
            "metallb_k8s_client_config_loaded_bool 1",
            "metallb_k8s_client_config_stale_bool 1",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is missing in\n{text}");
        }
    }
}
