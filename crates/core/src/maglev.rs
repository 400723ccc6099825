//! Pure. A table that spreads flows over backends so that all nodes with the same backends choose alike, and so that a backend
//! that goes takes few other flows along (Maglev, Eisenbud et al., NSDI 2016, section 3.4).
//!
//! Each backend has an order of its own in which it wants the places of the table; in turn each takes the first one that is
//! still free. A backend that goes leaves its places; those that the others had mostly stay theirs.
//!
//! That holds as long as the table keeps its size. Sizes are few, so that it hardly ever changes: where the number of backends
//! passes 16, 64, 256 and so on, most flows that nobody tracks move.

use std::net::{IpAddr, SocketAddr};

use crate::object::Protocol;

/// So many places a backend has at least: shares differ by a hundredth at most.
pub const PLACES_PER_BACKEND: u32 = 100;

/// The most backends of a table.
pub const MOST_BACKENDS: usize = 1 << 16;

/// How many places the table of so many backends has: a prime number. 0: it needs none, or would be too large.
pub fn size(backends: usize) -> u32 {
    SIZES.iter().find(|(most, _)| backends <= *most && backends > 1).map_or(0, |(_, size)| *size)
}

/// By the most backends: the first prime number with [`PLACES_PER_BACKEND`] for each.
const SIZES: [(usize, u32); 7] = [
    (16, 1_601),
    (64, 6_421),
    (256, 25_601),
    (1_024, 102_407),
    (4_096, 409_609),
    (16_384, 1_638_431),
    (MOST_BACKENDS, 6_553_621),
];

/// The table: of each place the index of its backend. Empty if `size` is 0.
pub fn table(backends: &[SocketAddr]) -> Vec<u16> {
    let size = size(backends.len());
    let mut orders: Vec<Order> = backends.iter().map(|backend| Order::of(backend, size)).collect();
    let mut places: Vec<Option<u16>> = vec![None; size as usize];
    let mut free = size;
    while free > 0 {
        for (index, order) in (0..).zip(&mut orders) {
            let place = loop {
                let place = order.next(size) as usize;
                if places[place].is_none() {
                    break place;
                }
            };
            places[place] = Some(index);
            free -= 1;
            if free == 0 {
                break;
            }
        }
    }
    places.into_iter().flatten().collect()
}

/// The number by which a flow finds its place: never 0. `seed` tells frontends apart. As in `packets.bpf.c`.
pub fn flow_hash(seed: u64, protocol: Protocol, client: SocketAddr) -> u64 {
    let number: u64 = match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    };
    let hash = words(client.ip()).into_iter().fold(seed, |hash, word| mixed(hash, word.into()));
    mixed(hash, (u64::from(client.port()) << 8) | number).max(1)
}

/// The words of an address, IPv4's as `::ffff:a.b.c.d`.
fn words(address: IpAddr) -> [u32; 4] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// The order in which a backend wants the places: the first, and the step to the next.
struct Order {
    place: u32,
    step: u32,
}

impl Order {
    fn of(backend: &SocketAddr, size: u32) -> Order {
        let hash = |seed| flow_hash(seed, Protocol::Tcp, *backend);
        let below = |hash: u64, limit: u32| (hash % u64::from(limit.max(1))) as u32;
        Order { place: below(hash(0x5167_6e70), size), step: 1 + below(hash(0x6f73_7421), size.saturating_sub(1)) }
    }

    fn next(&mut self, size: u32) -> u32 {
        let place = self.place;
        self.place = (place + self.step) % size;
        place
    }
}

fn mixed(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backends() -> impl Strategy<Value = Vec<SocketAddr>> {
        let one = (any::<bool>(), 0..5_000_u16, 1..4_u16).prop_map(|(is_ipv6, host, port)| {
            let address = if is_ipv6 {
                format!("fd00:10:244::{host:x}").parse().unwrap()
            } else {
                IpAddr::from([10, 244, (host >> 8) as u8, host as u8])
            };
            SocketAddr::new(address, 8080 + port)
        });
        prop::collection::btree_set(one, 2..60).prop_map(|set| set.into_iter().collect())
    }

    /// The backend of each place.
    fn chosen(backends: &[SocketAddr]) -> Vec<SocketAddr> {
        table(backends).into_iter().map(|index| backends[usize::from(index)]).collect()
    }

    fn flows() -> impl Iterator<Item = u64> {
        let client = |n: u32| SocketAddr::new(IpAddr::from([192, 0, 2, (n % 200) as u8]), 1024 + (n / 200) as u16);
        (0..20_000).map(move |n| flow_hash(7, Protocol::Tcp, client(n)))
    }

    fn is_prime(number: u32) -> bool {
        number > 1 && (2..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
    }

    fn led_to(table: &[SocketAddr], flow: u64) -> SocketAddr {
        table[(flow % table.len() as u64) as usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn each_backend_has_its_share(backends in backends()) {
            let table = table(&backends);
            prop_assert!(is_prime(table.len() as u32));
            for index in 0..backends.len() {
                let places = table.iter().filter(|place| usize::from(**place) == index).count();
                let fair = table.len() / backends.len();
                prop_assert!(places >= 100 && (fair..=fair + 1).contains(&places), "{} of {}", places, table.len());
            }
        }

        #[test]
        fn every_node_chooses_alike(backends in backends(), client: (u32, u16)) {
            let (one, other) = (chosen(&backends), chosen(&backends.clone()));
            let flow = flow_hash(3, Protocol::Udp, SocketAddr::new(IpAddr::from(client.0.to_be_bytes()), client.1));
            prop_assert_eq!(led_to(&one, flow), led_to(&other, flow));
        }

        #[test]
        fn a_backend_that_goes_moves_about_its_own_flows(backends in backends(), at: prop::sample::Index) {
            let gone = *at.get(&backends);
            let left: Vec<SocketAddr> = backends.iter().copied().filter(|backend| *backend != gone).collect();
            prop_assume!(size(left.len()) == size(backends.len()));
            let (before, after) = (chosen(&backends), chosen(&left));
            let moved = flows().filter(|flow| led_to(&before, *flow) != led_to(&after, *flow)).count();
            let share = moved as f64 / flows().count() as f64;
            prop_assert!(share <= 1.6 / backends.len() as f64 + 0.03, "{} of {} moved", share, backends.len());
        }
    }

    #[test]
    fn flows_are_spread_evenly() {
        let backends: Vec<SocketAddr> = (1..=10).map(|n| SocketAddr::new(IpAddr::from([10, 0, 0, n]), 80)).collect();
        let table = chosen(&backends);
        for backend in &backends {
            let share = flows().filter(|flow| led_to(&table, *flow) == *backend).count() as f64 / 20_000.0;
            assert!((0.09..0.11).contains(&share), "{backend}: {share}");
        }
    }

    #[test]
    fn sizes_are_the_first_prime_numbers_with_room_for_all() {
        for (most, size) in SIZES {
            let least = most as u32 * PLACES_PER_BACKEND;
            assert_eq!((least..).find(|number| is_prime(*number)), Some(size));
        }
        assert_eq!((size(0), size(1), size(2), size(17)), (0, 0, 1_601, 6_421));
        assert_eq!((size(MOST_BACKENDS), size(MOST_BACKENDS + 1), table(&[]).len()), (6_553_621, 0, 0));
    }

    #[test]
    fn one_flow_always_has_the_same_number() {
        // Written down, since kernels that run another release must agree.
        let client = "192.0.2.10:40000".parse().unwrap();
        assert_eq!(flow_hash(1, Protocol::Tcp, client), flow_hash(1, Protocol::Tcp, client));
        assert_ne!(flow_hash(1, Protocol::Tcp, client), flow_hash(2, Protocol::Tcp, client));
        assert_ne!(flow_hash(1, Protocol::Tcp, client), flow_hash(1, Protocol::Udp, client));
    }
}
