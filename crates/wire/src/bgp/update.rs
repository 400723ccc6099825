//! Pure. UPDATE messages that announce and withdraw routes (RFC 4271, section 4.3; RFC 4760).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::message::{AS_TRANS, HEADER, MOST, framed};
use super::{Family, UNICAST};

const WELL_KNOWN: u8 = 0x40;
const OPTIONAL: u8 = 0x80;
const OPTIONAL_TRANSITIVE: u8 = 0xc0;
const EXTENDED_LENGTH: u8 = 0x10;

const ORIGIN: u8 = 1;
const AS_PATH: u8 = 2;
const NEXT_HOP: u8 = 3;
const LOCAL_PREF: u8 = 5;
const COMMUNITIES: u8 = 8;
const MP_REACH: u8 = 14;
const MP_UNREACH: u8 = 15;
const EXTENDED_COMMUNITIES: u8 = 16;
const AS4_PATH: u8 = 17;
const LARGE_COMMUNITIES: u8 = 32;
const AS_SEQUENCE: u8 = 2;

/// A community: the route is about to go, others are to be preferred (RFC 8326).
pub const GRACEFUL_SHUTDOWN: u32 = 0xffff_0000;

/// A range of addresses that packets are wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The range of `length` bits that an address lies in. Longer than the address has bits: the address.
    pub fn new(address: IpAddr, length: u8) -> Prefix {
        match address {
            IpAddr::V4(address) => {
                let length = length.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Prefix { address: Ipv4Addr::from(u32::from(address) & mask).into(), length }
            }
            IpAddr::V6(address) => {
                let length = length.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Prefix { address: Ipv6Addr::from(u128::from(address) & mask).into(), length }
            }
        }
    }

    /// Its family.
    pub fn family(&self) -> Family {
        if self.address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }

    /// Its first address and its length.
    pub fn parts(&self) -> (IpAddr, u8) {
        (self.address, self.length)
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        let whole = usize::from(self.length).div_ceil(8);
        bytes.push(self.length);
        match self.address {
            IpAddr::V4(address) => bytes.extend(&address.octets()[..whole]),
            IpAddr::V6(address) => bytes.extend(&address.octets()[..whole]),
        }
    }
}

/// What is said of a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// How much it is preferred, within the own AS.
    pub local_pref: Option<u32>,
    /// RFC 1997.
    pub communities: BTreeSet<u32>,
    /// RFC 8092.
    pub large_communities: BTreeSet<(u32, u32, u32)>,
    /// In bytes per second, as a weight among equal routes (draft-ietf-idr-link-bandwidth).
    pub bandwidth: Option<u32>,
}

/// How a session writes paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// The own AS number, as the peer is to see it.
    pub asn: u32,
    /// The peer is of the own AS.
    pub internal: bool,
    /// AS numbers have four octets.
    pub four_octets: bool,
    /// Where packets are to be sent, by family.
    pub next_hops: BTreeMap<Family, IpAddr>,
}

/// The messages that announce prefixes of one family with the same attributes. None, if there is no next hop of the family.
pub fn announce(dialect: &Dialect, route: &Route, family: Family, prefixes: &[Prefix]) -> Vec<Vec<u8>> {
    let Some(next_hop) = dialect.next_hops.get(&family) else { return Vec::new() };
    let before = attributes(dialect, route, *next_hop);
    // A prefix takes up to 17 bytes; the rest of an MP_REACH_NLRI 25, the two lengths 4.
    let room = MOST - HEADER - before.len() - 4 - 25;
    prefixes
        .chunks((room / 17).max(1))
        .map(|prefixes| {
            let mut reachable = Vec::new();
            prefixes.iter().for_each(|prefix| prefix.encode(&mut reachable));
            match next_hop {
                IpAddr::V4(_) => update(&[], &before, &reachable),
                IpAddr::V6(next_hop) => {
                    let mut value = family.afi().to_be_bytes().to_vec();
                    value.extend([UNICAST, 16]);
                    value.extend(next_hop.octets());
                    value.push(0);
                    value.extend(reachable);
                    // RFC 7606, section 5.1, wants it first.
                    let mut all = attribute(OPTIONAL, MP_REACH, &value);
                    all.extend(&before);
                    update(&[], &all, &[])
                }
            }
        })
        .collect()
}

/// The messages that withdraw prefixes of one family.
pub fn withdraw(family: Family, prefixes: &[Prefix]) -> Vec<Vec<u8>> {
    prefixes
        .chunks((MOST - HEADER - 16) / 17)
        .map(|prefixes| {
            let mut gone = Vec::new();
            prefixes.iter().for_each(|prefix| prefix.encode(&mut gone));
            match family {
                Family::Ipv4 => update(&gone, &[], &[]),
                Family::Ipv6 => update(&[], &attribute(OPTIONAL, MP_UNREACH, &unreachable(family, &gone)), &[]),
            }
        })
        .collect()
}

/// Says that all routes of a family were told (RFC 4724, section 2).
pub fn end_of_rib(family: Family) -> Vec<u8> {
    match family {
        Family::Ipv4 => update(&[], &[], &[]),
        Family::Ipv6 => update(&[], &attribute(OPTIONAL, MP_UNREACH, &unreachable(family, &[])), &[]),
    }
}

fn unreachable(family: Family, prefixes: &[u8]) -> Vec<u8> {
    let mut value = family.afi().to_be_bytes().to_vec();
    value.push(UNICAST);
    value.extend(prefixes);
    value
}

fn update(withdrawn: &[u8], attributes: &[u8], reachable: &[u8]) -> Vec<u8> {
    let mut body = (withdrawn.len() as u16).to_be_bytes().to_vec();
    body.extend(withdrawn);
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend(reachable);
    framed(2, &body)
}

fn attribute(flags: u8, code: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 4);
    match u8::try_from(value.len()) {
        Ok(length) => bytes.extend([flags, code, length]),
        Err(_) => {
            bytes.extend([flags | EXTENDED_LENGTH, code]);
            bytes.extend((value.len() as u16).to_be_bytes());
        }
    }
    bytes.extend(value);
    bytes
}

/// All but MP_REACH_NLRI, in the order of their codes.
fn attributes(dialect: &Dialect, route: &Route, next_hop: IpAddr) -> Vec<u8> {
    let mut all = attribute(WELL_KNOWN, ORIGIN, &[0]);
    let mut path = Vec::new();
    if !dialect.internal {
        path.extend([AS_SEQUENCE, 1]);
        match (dialect.four_octets, u16::try_from(dialect.asn)) {
            (true, _) => path.extend(dialect.asn.to_be_bytes()),
            (false, short) => path.extend(short.unwrap_or(AS_TRANS).to_be_bytes()),
        }
    }
    all.extend(attribute(WELL_KNOWN, AS_PATH, &path));
    if let IpAddr::V4(next_hop) = next_hop {
        all.extend(attribute(WELL_KNOWN, NEXT_HOP, &next_hop.octets()));
    }
    if dialect.internal {
        all.extend(attribute(WELL_KNOWN, LOCAL_PREF, &route.local_pref.unwrap_or(100).to_be_bytes()));
    }
    if !route.communities.is_empty() {
        let value: Vec<u8> = route.communities.iter().take(200).flat_map(|one| one.to_be_bytes()).collect();
        all.extend(attribute(OPTIONAL_TRANSITIVE, COMMUNITIES, &value));
    }
    if let Some(bandwidth) = route.bandwidth {
        let short = u16::try_from(dialect.asn).unwrap_or(AS_TRANS).to_be_bytes();
        let mut value = vec![0x40, 0x04, short[0], short[1]];
        value.extend((bandwidth as f32).to_be_bytes());
        all.extend(attribute(OPTIONAL_TRANSITIVE, EXTENDED_COMMUNITIES, &value));
    }
    if !dialect.internal && !dialect.four_octets && dialect.asn > u32::from(u16::MAX) {
        let mut value = vec![AS_SEQUENCE, 1];
        value.extend(dialect.asn.to_be_bytes());
        all.extend(attribute(OPTIONAL_TRANSITIVE, AS4_PATH, &value));
    }
    if !route.large_communities.is_empty() {
        let large = route.large_communities.iter().take(80);
        let value: Vec<u8> =
            large.flat_map(|(a, b, c)| [a, b, c].into_iter().flat_map(|part| part.to_be_bytes())).collect();
        all.extend(attribute(OPTIONAL_TRANSITIVE, LARGE_COMMUNITIES, &value));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::message::{Message, decode};

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap())
    }

    fn dialect() -> Dialect {
        Dialect {
            asn: 64512,
            internal: false,
            four_octets: true,
            next_hops: [
                (Family::Ipv4, "172.18.0.11".parse().unwrap()),
                (Family::Ipv6, "fd00:172:18::11".parse().unwrap()),
            ]
            .into(),
        }
    }

    #[test]
    fn a_route_of_ipv4_has_the_layout_of_the_rfc() {
        let route = Route { communities: [0xffff_0000 | 0xff01].into(), ..Route::default() };
        let messages = announce(&dialect(), &route, Family::Ipv4, &[prefix("172.18.15.200/32")]);
        let mut body = vec![0, 0, 0, 30];
        body.extend([0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfc, 0, 0x40, 3, 4, 172, 18, 0, 11]);
        body.extend([0xc0, 8, 4, 0xff, 0xff, 0xff, 0x01]);
        let length = body.len() - 4;
        body[3] = length as u8;
        body.extend([32, 172, 18, 15, 200]);
        assert_eq!(messages, [framed(2, &body)]);
    }

    #[test]
    fn a_route_of_ipv6_carries_its_next_hop_with_it() {
        let messages = announce(&dialect(), &Route::default(), Family::Ipv6, &[prefix("fd00::1/127")]);
        let body = &messages[0][HEADER..];
        assert_eq!(body[4..12], [0x80, 14, 38, 0, 2, 1, 16, 0xfd]);
        assert_eq!(body[26..30], [0x11, 0, 127, 0xfd]);
    }

    #[test]
    fn prefixes_are_cut_to_their_length() {
        for (text, expected) in [
            ("10.1.2.3/24", ("10.1.2.0", 24)),
            ("10.1.2.3/0", ("0.0.0.0", 0)),
            ("10.1.2.3/99", ("10.1.2.3", 32)),
            ("fd00:1::5/16", ("fd00::", 16)),
        ] {
            assert_eq!(prefix(text).parts(), (expected.0.parse().unwrap(), expected.1));
        }
        let mut bytes = Vec::new();
        prefix("10.1.2.3/17").encode(&mut bytes);
        assert_eq!(bytes, [17, 10, 1, 0]);
    }

    #[test]
    fn an_old_peer_gets_a_stand_in_and_the_real_number_beside_it() {
        let old = Dialect { asn: 4_200_000_001, four_octets: false, ..dialect() };
        let body = announce(&old, &Route::default(), Family::Ipv4, &[prefix("10.0.0.1/32")])[0][HEADER..].to_vec();
        assert_eq!(body[8..15], [0x40, 2, 4, 2, 1, 0x5b, 0xa0]);
        let at = body.windows(3).position(|part| part == [0xc0, 17, 6]).unwrap();
        assert_eq!(body[at + 5..at + 9], 4_200_000_001_u32.to_be_bytes());
    }

    #[test]
    fn within_the_own_as_the_path_is_empty_and_preference_is_told() {
        let own = Dialect { internal: true, ..dialect() };
        let route = Route { local_pref: Some(250), ..Route::default() };
        let body = announce(&own, &route, Family::Ipv4, &[prefix("10.0.0.1/32")])[0][HEADER..].to_vec();
        assert_eq!(body[8..11], [0x40, 2, 0]);
        assert_eq!(body[18..25], [0x40, 5, 4, 0, 0, 0, 250]);
    }

    #[test]
    fn thousands_of_prefixes_are_cut_into_messages_that_fit() {
        for (family, text) in [(Family::Ipv4, "10.0.0.0"), (Family::Ipv6, "fd00::")] {
            let first: IpAddr = text.parse().unwrap();
            let prefixes: Vec<Prefix> = (0..5000_u32)
                .map(|n| match first {
                    IpAddr::V4(first) => Prefix::new(IpAddr::V4((u32::from(first) + n).into()), 32),
                    IpAddr::V6(first) => Prefix::new(IpAddr::V6((u128::from(first) + u128::from(n)).into()), 128),
                })
                .collect();
            let route = Route {
                communities: (0..200).collect(),
                large_communities: (0..80).map(|n| (n, n, n)).collect(),
                ..Route::default()
            };
            for message in
                announce(&dialect(), &route, family, &prefixes).into_iter().chain(withdraw(family, &prefixes))
            {
                assert!(message.len() <= MOST);
                assert_eq!(decode(&message), Ok(Some((Message::Update, message.len()))));
            }
        }
        assert_eq!(end_of_rib(Family::Ipv4).len(), 23);
        assert_eq!(end_of_rib(Family::Ipv6)[HEADER..], [0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1]);
    }
}
