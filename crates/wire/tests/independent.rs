//! What is sent by BGP, read by a codec that others wrote (zettabgp 0.6.0).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use signpost_wire::bgp::message::HEADER;
use signpost_wire::bgp::update::{Dialect, announce, end_of_rib, withdraw};
use signpost_wire::bgp::{Capabilities, Family, Notification, Open, Prefix, Route};
use zettabgp::prelude::{
    BgpAddrs, BgpAttrItem, BgpCapability, BgpMessage, BgpNotificationMessage, BgpOpenMessage, BgpSessionParams,
    BgpTransportMode, BgpUpdateMessage,
};

fn session() -> BgpSessionParams {
    let capabilities = vec![BgpCapability::SafiIPv4u, BgpCapability::SafiIPv6u, BgpCapability::CapASN32(64512)];
    let id = Ipv4Addr::new(10, 0, 0, 1);
    let mut session = BgpSessionParams::new(64513, 90, BgpTransportMode::IPv4, id, capabilities);
    session.fuzzy_pathid = false;
    session
}

fn read(message: &[u8]) -> BgpUpdateMessage {
    let mut update = BgpUpdateMessage::new();
    update.decode_from(&session(), &message[HEADER..]).expect("the other codec reads it");
    update
}

type Prefixes = BTreeSet<(IpAddr, u8)>;

fn prefixes(addresses: &BgpAddrs) -> Prefixes {
    match addresses {
        BgpAddrs::IPV4U(all) => all.iter().map(|one| (one.addr.into(), one.prefixlen)).collect(),
        BgpAddrs::IPV6U(all) => all.iter().map(|one| (one.addr.into(), one.prefixlen)).collect(),
        _ => BTreeSet::new(),
    }
}

/// What a message announces and what it withdraws, in either place.
fn told(update: &BgpUpdateMessage) -> (Prefixes, Prefixes) {
    let (mut new, mut gone) = (prefixes(&update.updates), prefixes(&update.withdraws));
    for attribute in &update.attrs {
        match attribute {
            BgpAttrItem::MPUpdates(updates) => new.extend(prefixes(&updates.addrs)),
            BgpAttrItem::MPWithdraws(withdraws) => gone.extend(prefixes(&withdraws.addrs)),
            _ => {}
        }
    }
    (new, gone)
}

fn dialect() -> Dialect {
    let hop = |text: &str| text.parse().expect("an address");
    Dialect {
        asn: 4_200_000_001,
        internal: false,
        four_octets: true,
        next_hops: [(Family::Ipv4, hop("172.18.0.11")), (Family::Ipv6, hop("fd00:172:18::11"))].into(),
    }
}

#[test]
fn an_open_and_a_notification_say_what_they_are_to_say() {
    let capabilities = Capabilities {
        families: Family::ALL.into(),
        four_octets: true,
        refresh: true,
        restart: Some(Default::default()),
    };
    let open = Open { asn: 4_200_000_001, hold_time_s: 90, id: Ipv4Addr::new(172, 18, 0, 11), capabilities };
    let mut read = BgpOpenMessage::new();
    read.decode_from(&session(), &open.encode()[HEADER..]).expect("the other codec reads it");
    assert_eq!((read.hold_time, read.router_id), (90, open.id));
    for wanted in [
        BgpCapability::SafiIPv4u,
        BgpCapability::SafiIPv6u,
        BgpCapability::CapRR,
        BgpCapability::CapASN32(4_200_000_001),
    ] {
        assert!(read.caps.contains(&wanted), "{wanted:?} is not in {:?}", read.caps);
    }
    let cease = Notification { code: 6, subcode: 2, data: vec![] };
    let mut read = BgpNotificationMessage::new();
    read.decode_from(&session(), &cease.encode()[HEADER..]).expect("the other codec reads it");
    assert_eq!((read.error_code, read.error_subcode), (6, 2));
}

#[test]
fn the_end_of_the_routes_is_empty() {
    for family in Family::ALL {
        assert_eq!(told(&read(&end_of_rib(family))), (BTreeSet::new(), BTreeSet::new()));
    }
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        (any::<u32>(), 0u8..=32).prop_map(|(address, length)| Prefix::new(IpAddr::from(address.to_be_bytes()), length)),
        (any::<u128>(), 0u8..=128)
            .prop_map(|(address, length)| Prefix::new(IpAddr::from(address.to_be_bytes()), length)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn routes_are_read_as_they_were_meant(
        all in prop::collection::btree_set(any_prefix(), 1..60),
        communities in prop::collection::btree_set(any::<u32>(), 0..5),
        large in prop::collection::btree_set(any::<(u32, u32, u32)>(), 0..5),
    ) {
        let route = Route { communities: communities.clone(), large_communities: large.clone(), ..Route::default() };
        for family in Family::ALL {
            let of: Vec<Prefix> = all.iter().copied().filter(|prefix| prefix.family() == family).collect();
            let meant: BTreeSet<(IpAddr, u8)> = of.iter().map(Prefix::parts).collect();
            let (mut new, mut gone) = (BTreeSet::new(), BTreeSet::new());
            for message in announce(&dialect(), &route, family, &of) {
                let update = read(&message);
                new.extend(told(&update).0);
                for attribute in &update.attrs {
                    match attribute {
                        BgpAttrItem::CommunityList(list) => {
                            prop_assert_eq!(list.value.iter().map(|one| one.value).collect::<BTreeSet<_>>(), communities.clone());
                        }
                        BgpAttrItem::LargeCommunityList(list) => {
                            let read: BTreeSet<_> = list.value.iter().map(|one| (one.ga, one.ldp1, one.ldp2)).collect();
                            prop_assert_eq!(read, large.clone());
                        }
                        BgpAttrItem::ASPath(path) => {
                            prop_assert!(format!("{path:?}").contains("4200000001"), "{:?}", path);
                        }
                        _ => {}
                    }
                }
            }
            for message in withdraw(family, &of) {
                gone.extend(told(&read(&message)).1);
            }
            prop_assert_eq!(&new, &meant);
            prop_assert_eq!(&gone, &meant);
        }
    }
}
