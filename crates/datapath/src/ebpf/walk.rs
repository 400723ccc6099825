//! Pure. What the kernel programs do with what stands in the maps, step by step as `bpf/choose.h`, `bpf/sockets.bpf.c` and
//! `bpf/packets.bpf.c` do it. It knows nothing of plans: that it comes to the same verdicts as the walk of the plan shows that the maps say what
//! the plan means.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;
use signpost_core::object::{Family, Protocol, Rebalance};
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};
use signpost_core::plan::FrontendKey;

use super::layout::{CHUNK, FrontendValue, GuardId, Key, RouteValue, SetId, Value};
use super::program::Program;

/// Maps that can be looked into: a program's, or the kernel's.
pub trait Maps {
    /// What stands at a key.
    fn lookup(&self, key: &Key) -> Option<Value>;

    /// Whether an address is in one of the ranges of pods.
    fn is_pod(&self, address: IpAddr) -> bool {
        ranges_around(address).any(|range| self.lookup(&Key::PodNetwork(range)).is_some())
    }

    /// Whether a guard lets an address in.
    fn lets_in(&self, guard: GuardId, address: IpAddr) -> bool {
        ranges_around(address).any(|range| self.lookup(&Key::Source(guard, range)).is_some())
    }

    /// The places of a set's Maglev table; `None`: one is missing.
    fn places(&self, set: SetId, size: u32) -> Option<Vec<u16>> {
        let mut places = Vec::new();
        for index in 0..size.div_ceil(CHUNK as u32) {
            match self.lookup(&Key::Chunk(set, index)) {
                Some(Value::Places(chunk)) => places.extend(chunk.iter()),
                _ => return None,
            }
        }
        places.truncate(size as usize);
        Some(places)
    }
}

/// Every range that an address is in.
fn ranges_around(address: IpAddr) -> impl Iterator<Item = IpNet> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (0..=bits).filter_map(move |prefix| IpNet::new(address, prefix).ok()).map(|range| range.trunc())
}

impl Maps for Program {
    fn lookup(&self, key: &Key) -> Option<Value> {
        match key {
            Key::Frontend(family, key) if *family == self.family => {
                self.frontends.get(key).copied().map(Value::Frontend)
            }
            Key::Slot(set, index) => {
                let backend = self.sets.get(set)?.backends.get(usize::try_from(*index).ok()?)?;
                Some(Value::Backend(backend.address))
            }
            Key::Node(family) if *family == self.family => Some(Value::Node(self.node.value)),
            Key::Frontend(..) | Key::Node(_) => None,
            Key::Chunk(set, index) => {
                let places = self.sets.get(set)?.places();
                places.get(usize::try_from(*index).ok()?).cloned().map(Value::Places)
            }
            Key::NodePortIp(_) | Key::NodeIp(_) | Key::LocalEndpoint(_) | Key::PodNetwork(_) | Key::Source(..) => {
                self.has(key).then_some(Value::Member)
            }
        }
    }

    fn places(&self, set: SetId, size: u32) -> Option<Vec<u16>> {
        let set = self.sets.get(&set)?;
        let places = set.places().iter().flat_map(|chunk| chunk.iter().copied()).take(size as usize).collect();
        Some(places)
    }
}

/// The verdict of the socket hooks on a first connection or datagram. `remembered` is the backend that the client's living
/// entry in the map of affinities names. See [`signpost_core::walk::walk_socket`].
pub fn walk(maps: &impl Maps, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    if packet.protocol == Protocol::Sctp {
        return Verdict::NotOurs;
    }
    let Some(frontend) = find_frontend(maps, packet.destination, packet.protocol).filter(|found| !found.guarded) else {
        return Verdict::NotOurs;
    };
    let is_node = packet.entry == Entry::Local;
    match route(maps, &frontend, Family::of(packet.destination.ip()), is_node) {
        RouteValue::Reject => Verdict::Reject,
        RouteValue::Backends { set, count, masquerade, .. } if is_node || !masquerade => {
            let remembered = remembered.filter(|to| frontend.affinity_s > 0 && is_backend(maps, set, count, *to));
            match remembered {
                Some(to) => Verdict::Rewrite([Rewrite { to, masquerade: false }].into()),
                None => led_to(maps, set, count),
            }
        }
        RouteValue::Backends { .. } | RouteValue::Drop => Verdict::NotOurs,
    }
}

/// What a client of this node meets at a frontend.
fn route(maps: &impl Maps, frontend: &FrontendValue, family: Family, is_node: bool) -> RouteValue {
    let pods_known = matches!(maps.lookup(&Key::Node(family)), Some(Value::Node(node)) if node.pods_known);
    match (is_node, pods_known) {
        (true, _) => frontend.from_node,
        (false, true) => frontend.from_pod,
        (false, false) => frontend.from_elsewhere,
    }
}

/// Where a client of this node would be led by a frontend whose connections are to be spread anew: the wish, and the set with its
/// size. `None`: nobody asks for that, or it is led nowhere.
pub fn rebalanced(maps: &impl Maps, frontend: SocketAddr, is_node: bool) -> Option<(Rebalance, SetId, u32)> {
    let found = find_frontend(maps, frontend, Protocol::Tcp)?;
    match route(maps, &found, Family::of(frontend.ip()), is_node) {
        RouteValue::Backends { set, count, .. } => Some((found.rebalance?, set, count)),
        RouteValue::Reject | RouteValue::Drop => None,
    }
}

/// The backends of a set; fewer, if it goes away meanwhile.
pub fn backends(maps: &impl Maps, set: SetId, count: u32) -> BTreeSet<SocketAddr> {
    let backend = |index| match maps.lookup(&Key::Slot(set, index)) {
        Some(Value::Backend(to)) => Some(to),
        _ => None,
    };
    (0..count).map_while(backend).collect()
}

/// The verdict of the programs at the interfaces on the first packet of a flow that comes in by one. What they refuse
/// themselves is nothing: [`Verdict::NotOurs`] meets the rules. `remembered` is as in [`signpost_core::walk::walk_remembering`].
pub fn walk_packet(maps: &impl Maps, packet: &Packet, remembered: Option<SocketAddr>) -> Verdict {
    let source = packet.source.ip();
    if packet.protocol == Protocol::Sctp || Family::of(source) != Family::of(packet.destination.ip()) {
        return Verdict::NotOurs;
    }
    let Some(frontend) = find_frontend(maps, packet.destination, packet.protocol) else { return Verdict::NotOurs };
    if frontend.guarded && !maps.lets_in(frontend.guard, source) {
        return Verdict::Drop;
    }
    let route = if maps.is_pod(source) {
        frontend.from_pod
    } else if maps.lookup(&Key::NodeIp(source)).is_some() {
        frontend.from_node
    } else {
        frontend.from_elsewhere
    };
    let RouteValue::Backends { set, count, table, masquerade } = route else {
        return if route == RouteValue::Drop { Verdict::Drop } else { Verdict::NotOurs };
    };
    let remembered = remembered.filter(|to| frontend.affinity_s > 0 && is_backend(maps, set, count, *to));
    let led = match remembered {
        Some(to) => Verdict::Rewrite([Rewrite { to, masquerade: false }].into()),
        None if table > 0 => placed(maps, set, table),
        None => led_to(maps, set, count),
    };
    let Verdict::Rewrite(rewrites) = led else { return led };
    let is_local = maps.lookup(&Key::LocalEndpoint(source)).is_some();
    let with_source =
        |Rewrite { to, .. }: Rewrite| Rewrite { to, masquerade: masquerade || is_local && to.ip() == source };
    Verdict::Rewrite(rewrites.into_iter().map(with_source).collect())
}

fn find_frontend(maps: &impl Maps, to: SocketAddr, protocol: Protocol) -> Option<FrontendValue> {
    let port = NonZeroU16::new(to.port())?;
    let family = Family::of(to.ip());
    let value = |key| match maps.lookup(&Key::Frontend(family, key)) {
        Some(Value::Frontend(value)) => Some(value),
        _ => None,
    };
    value(FrontendKey::Address { address: to.ip(), protocol, port }).or_else(|| {
        maps.lookup(&Key::NodePortIp(to.ip()))?;
        value(FrontendKey::NodePort { protocol, port })
    })
}

/// Whether some client of a frontend may be led to a backend. A set that goes away under the look lets it look again.
pub fn leads_to(maps: &impl Maps, frontend: SocketAddr, protocol: Protocol, backend: SocketAddr) -> bool {
    let mut value = find_frontend(maps, frontend, protocol);
    loop {
        let routes = value.iter().flat_map(FrontendValue::routes);
        let is_led = routes.into_iter().any(|route| match route {
            RouteValue::Backends { set, count, .. } => is_backend(maps, set, count, backend),
            RouteValue::Reject | RouteValue::Drop => false,
        });
        let now = find_frontend(maps, frontend, protocol);
        if is_led || now == value {
            return is_led;
        }
        value = now;
    }
}

/// After how many seconds a socket is to be ended that came through a frontend to a backend; `None`: it stays, since the
/// backend is still one, or since nobody asked for its end.
pub fn ends_after_s(maps: &impl Maps, frontend: SocketAddr, protocol: Protocol, backend: SocketAddr) -> Option<u32> {
    let after_s = match protocol {
        Protocol::Udp => 0,
        Protocol::Tcp | Protocol::Sctp => find_frontend(maps, frontend, protocol)?.reset_after_s?,
    };
    (!leads_to(maps, frontend, protocol, backend)).then_some(after_s)
}

/// By halving, as the slots of a set are sorted.
fn is_backend(maps: &impl Maps, set: SetId, count: u32, backend: SocketAddr) -> bool {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        let Some(Value::Backend(found)) = maps.lookup(&Key::Slot(set, middle)) else { return false };
        match found.cmp(&backend) {
            Ordering::Equal => return true,
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    false
}

/// Every place of a table may be a flow's.
fn placed(maps: &impl Maps, set: SetId, size: u32) -> Verdict {
    let backend = |index: u16| match maps.lookup(&Key::Slot(set, index.into())) {
        Some(Value::Backend(to)) => Some(Rewrite { to, masquerade: false }),
        _ => None,
    };
    let places: Option<BTreeSet<u16>> = maps.places(set, size).map(|all| all.into_iter().collect());
    match places.and_then(|places| places.into_iter().map(backend).collect()) {
        Some(rewrites) => Verdict::Rewrite(rewrites),
        None => Verdict::NotOurs,
    }
}

/// Every slot may be drawn; one that is missing lets the kernel look the frontend up again.
fn led_to(maps: &impl Maps, set: SetId, count: u32) -> Verdict {
    let backend = |index| match maps.lookup(&Key::Slot(set, index)) {
        Some(Value::Backend(to)) => Some(Rewrite { to, masquerade: false }),
        _ => None,
    };
    match (0..count).map(backend).collect() {
        Some(rewrites) => Verdict::Rewrite(rewrites),
        None => Verdict::NotOurs,
    }
}
