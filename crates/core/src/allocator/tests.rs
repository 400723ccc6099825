//! Facts of the bands and texts: Kubernetes 1.36, `pkg/registry/core/service/{ip,port}allocator`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn addresses(range: &str) -> AddressAllocator {
    AddressAllocator::new(range.parse().unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

#[test]
fn lower_bands_have_the_sizes_that_kubernetes_documents() {
    for (range, size, lower) in [
        ("10.96.0.0/12", (1 << 20) - 2, 256),
        ("10.96.0.0/16", 65_534, 256),
        ("10.96.0.0/20", 4094, 256),
        ("10.96.0.0/24", 254, 16),
        ("10.96.0.0/22", 1022, 64),
        ("10.96.0.0/27", 30, 16),
        ("10.96.0.0/28", 14, 0),
        ("10.96.0.0/30", 2, 0),
        ("10.96.0.0/31", 0, 0),
        ("10.96.0.1/32", 0, 0),
        ("fd00::/112", 65_535, 256),
        ("fd00::/120", 255, 16),
        ("fd00::/124", 15, 0),
        ("fd00::/64", (1 << 64) - 1, 256),
        ("::/0", u128::MAX - 1, 256),
        ("0.0.0.0/0", (1 << 32) - 2, 256),
    ] {
        let bands = addresses(range).bands;
        assert_eq!((bands.size, bands.lower), (size, lower), "{range}");
    }
    for (range, lower) in [(30_000..=32_767, 86), (30_000..=30_015, 0), (30_000..=30_199, 16), (1..=65_535, 128)] {
        assert_eq!(PortAllocator::new(range.clone()).bands.lower, lower, "{range:?}");
    }
}

#[test]
fn an_allocated_address_comes_from_the_upper_band_while_it_lasts() {
    let mut allocator = addresses("10.96.0.0/27");
    let upper: BTreeSet<IpAddr> = (0..14).map(|random| allocator.allocate(random * 7).unwrap()).collect();
    assert_eq!(
        (upper.len(), *upper.first().unwrap(), *upper.last().unwrap()),
        (14, ip("10.96.0.17"), ip("10.96.0.30"))
    );
    let lower: BTreeSet<IpAddr> = (0..16).map(|random| allocator.allocate(random * 7).unwrap()).collect();
    assert_eq!((lower.len(), *lower.first().unwrap(), *lower.last().unwrap()), (16, ip("10.96.0.1"), ip("10.96.0.16")));
    assert_eq!(allocator.allocate(0), Err(AddressError::Full { range: "10.96.0.0/27".parse().unwrap() }));
}

#[test]
fn an_allocated_port_comes_from_the_upper_band_while_it_lasts() {
    let mut allocator = PortAllocator::new(PortAllocator::DEFAULT_RANGE);
    let upper: Vec<u16> = (0..2682).map(|_| allocator.allocate(99).unwrap().get()).collect();
    assert_eq!((upper.iter().min(), upper.iter().max()), (Some(&30_086), Some(&32_767)));
    assert!((30_000..30_086).contains(&allocator.allocate(99).unwrap().get()));
}

#[test]
fn a_range_with_nothing_to_give_is_full() {
    assert!(matches!(addresses("10.96.0.1/32").allocate(5), Err(AddressError::Full { .. })));
    let backwards = RangeInclusive::new(32_767, 30_000);
    assert!(matches!(PortAllocator::new(backwards).allocate(5), Err(PortError::Full { .. })));
    assert!(PortAllocator::new(0..=1).allocate(0).is_ok_and(|given| given == port(1)));
}

#[test]
fn refusals_have_the_texts_of_the_api_server() {
    let mut allocator = addresses("10.96.0.0/16");
    allocator.reserve(ip("10.96.0.10")).unwrap();
    let text = |result: Result<(), AddressError>| result.unwrap_err().to_string();
    assert_eq!(text(allocator.reserve(ip("10.96.0.10"))), "provided IP is already allocated");
    for outside in ["10.95.0.1", "10.96.0.0", "10.96.255.255", "10.97.0.0", "fd00::1"] {
        assert_eq!(
            text(allocator.reserve(ip(outside))),
            format!("the provided IP ({outside}) is not in the valid range. The range of valid IPs is 10.96.0.0/16"),
        );
    }
    let mut allocator = PortAllocator::new(PortAllocator::DEFAULT_RANGE);
    allocator.reserve(port(30_080)).unwrap();
    assert_eq!(allocator.reserve(port(30_080)).unwrap_err().to_string(), "provided port is already allocated");
    assert_eq!(
        allocator.reserve(port(80)).unwrap_err().to_string(),
        "provided port is not in the valid range. The range of valid ports is 30000-32767",
    );
}

#[test]
fn what_is_released_can_be_had_again() {
    let mut allocator = addresses("fd00:10:96::/112");
    allocator.reserve(ip("fd00:10:96::a")).unwrap();
    assert!(allocator.is_taken(ip("fd00:10:96::a")));
    allocator.release(ip("fd00:10:96::a"));
    allocator.release(ip("10.0.0.1"));
    assert_eq!(allocator.taken(), 0);
    allocator.reserve(ip("fd00:10:96::a")).unwrap();
}

proptest! {
    /// Any order of asking: no address twice, none outside, as many as there are.
    #[test]
    fn every_address_is_given_out_once(randoms in prop::collection::vec(any::<u64>(), 254), fixed in 1u8..255) {
        let mut allocator = addresses("192.0.2.0/24");
        let fixed = IpAddr::from([192, 0, 2, fixed]);
        allocator.reserve(fixed).unwrap();
        let mut given = BTreeSet::from([fixed]);
        for random in &randoms[..253] {
            let address = allocator.allocate(*random).unwrap();
            prop_assert!(allocator.range().contains(&address));
            prop_assert!(given.insert(address));
        }
        prop_assert!(allocator.allocate(randoms[253]).is_err());
    }
}
