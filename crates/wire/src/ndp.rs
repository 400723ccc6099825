//! Pure. Neighbour solicitations and advertisements (RFC 4861, sections 4.3 and 4.4) as whole IPv6 packets: the address that is
//! answered for is on no interface, so that no kernel writes the header or the checksum for us.

use std::net::Ipv6Addr;

use crate::mac::Mac;

/// All nodes of the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const HEADER: usize = 40;
/// Type, code, checksum, flags, target.
const BODY: usize = 24;
/// An option with an Ethernet address.
const OPTION: usize = 8;
/// Length of an advertisement as a packet.
pub const ADVERTISEMENT_LENGTH: usize = HEADER + BODY + OPTION;

const ICMPV6: u8 = 58;
/// What only a neighbour can send: each router takes one off (RFC 4861, section 7.1.1).
const HOP_LIMIT: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ROUTER: u8 = 0x80;

/// Who is at `target`?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Solicitation {
    /// Who asks; unspecified: somebody who wants the address and looks whether it is free.
    pub source: Ipv6Addr,
    /// Where the packet went: the target's group, or the target itself.
    pub destination: Ipv6Addr,
    /// The address that is asked for.
    pub target: Ipv6Addr,
    /// The asker's Ethernet address, if he says it.
    pub source_mac: Option<Mac>,
}

/// `target` is at `mac`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advertisement {
    /// Who says so.
    pub source: Ipv6Addr,
    /// To whom.
    pub destination: Ipv6Addr,
    /// The address.
    pub target: Ipv6Addr,
    /// Where it is.
    pub mac: Mac,
    /// In answer to a question.
    pub solicited: bool,
    /// Takes the place of what was known before.
    pub overrides: bool,
}

/// Why bytes are no such packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short, or shorter than it says.
    #[error("the packet breaks off")]
    Short,
    /// Not what it is looked at for.
    #[error("not this sort of packet")]
    Other,
    /// It came over a router.
    #[error("hop limit {hop_limit}: it is not from this link")]
    NotFromHere {
        /// Its hop limit.
        hop_limit: u8,
    },
    /// Spoiled.
    #[error("wrong checksum")]
    Checksum,
    /// An option without length, or one that goes beyond the end.
    #[error("malformed option")]
    Option,
    /// A group cannot be asked for.
    #[error("{target} is no address of a station")]
    Target {
        /// As written.
        target: Ipv6Addr,
    },
}

/// The group that solicitations for an address go to (RFC 4291, section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let tail = [u16::from_be_bytes([0xff, a]), u16::from_be_bytes([b, c])];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, tail[0], tail[1])
}

/// The Ethernet address that packets to a group go to (RFC 2464, section 7).
pub fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

impl Solicitation {
    /// Reads a whole IPv6 packet.
    ///
    /// # Errors
    /// It is something else, or not as RFC 4861, section 7.1.1, wants it.
    pub fn decode(packet: &[u8]) -> Result<Solicitation, DecodeError> {
        let message = Message::decode(packet, SOLICITATION)?;
        if message.source.is_unspecified() && !message.destination.is_multicast() {
            return Err(DecodeError::Other);
        }
        Ok(Solicitation {
            source: message.source,
            destination: message.destination,
            target: message.target,
            source_mac: message.option(SOURCE_LINK_LAYER)?,
        })
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let option = self.source_mac.map(|mac| (SOURCE_LINK_LAYER, mac));
        encode(self.source, self.destination, SOLICITATION, 0, self.target, option)
    }

    /// The answer: the address is at `mac`. Who looks whether it is free is told with everybody else that it is not.
    pub fn answer(&self, mac: Mac) -> Advertisement {
        let probe = self.source.is_unspecified();
        Advertisement {
            source: self.target,
            destination: if probe { ALL_NODES } else { self.source },
            target: self.target,
            mac,
            solicited: !probe,
            overrides: true,
        }
    }
}

impl Advertisement {
    /// Tells everybody that `target` is at `mac` now.
    pub fn unsolicited(target: Ipv6Addr, mac: Mac) -> Advertisement {
        Advertisement { source: target, destination: ALL_NODES, target, mac, solicited: false, overrides: true }
    }

    /// Reads a whole IPv6 packet. One without the Ethernet address is refused: nothing can be learnt from it.
    ///
    /// # Errors
    /// It is something else, or not as RFC 4861, section 7.1.2, wants it.
    pub fn decode(packet: &[u8]) -> Result<Advertisement, DecodeError> {
        let message = Message::decode(packet, ADVERTISEMENT)?;
        let solicited = message.flags & SOLICITED != 0;
        if solicited && message.destination.is_multicast() {
            return Err(DecodeError::Other);
        }
        Ok(Advertisement {
            source: message.source,
            destination: message.destination,
            target: message.target,
            mac: message.option(TARGET_LINK_LAYER)?.ok_or(DecodeError::Option)?,
            solicited,
            overrides: message.flags & OVERRIDE != 0,
        })
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let flags = if self.solicited { SOLICITED } else { 0 } | if self.overrides { OVERRIDE } else { 0 };
        encode(self.source, self.destination, ADVERTISEMENT, flags, self.target, Some((TARGET_LINK_LAYER, self.mac)))
    }
}

/// What both have.
struct Message<'a> {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    flags: u8,
    target: Ipv6Addr,
    options: &'a [u8],
}

impl Message<'_> {
    fn decode(packet: &[u8], kind: u8) -> Result<Message<'_>, DecodeError> {
        let header: &[u8; HEADER] = packet.first_chunk().ok_or(DecodeError::Short)?;
        if header[0] >> 4 != 6 || header[6] != ICMPV6 {
            return Err(DecodeError::Other);
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let body = packet.get(HEADER..HEADER + length).ok_or(DecodeError::Short)?;
        let fixed: &[u8; BODY] = body.first_chunk().ok_or(DecodeError::Short)?;
        if fixed[0] != kind || fixed[1] != 0 {
            return Err(DecodeError::Other);
        }
        if header[7] != HOP_LIMIT {
            return Err(DecodeError::NotFromHere { hop_limit: header[7] });
        }
        let (source, destination) = (address(header, 8), address(header, 24));
        if checksum(source, destination, body) != 0 {
            return Err(DecodeError::Checksum);
        }
        let target = address(fixed, 8);
        if target.is_multicast() || target.is_unspecified() {
            return Err(DecodeError::Target { target });
        }
        Ok(Message { source, destination, flags: fixed[4] & !ROUTER, target, options: &body[BODY..] })
    }

    /// The Ethernet address in an option; the first counts.
    fn option(&self, kind: u8) -> Result<Option<Mac>, DecodeError> {
        let mut rest = self.options;
        let mut found = None;
        while !rest.is_empty() {
            let length = rest.get(1).map_or(0, |length| usize::from(*length) * 8);
            if length == 0 {
                return Err(DecodeError::Option);
            }
            let option = rest.get(..length).ok_or(DecodeError::Option)?;
            if let ([this, _, a, b, c, d, e, f], None) = (option, found)
                && *this == kind
            {
                found = Some(Mac([*a, *b, *c, *d, *e, *f]));
            }
            rest = &rest[length..];
        }
        Ok(found)
    }
}

fn encode(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: Option<(u8, Mac)>,
) -> Vec<u8> {
    let mut body = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    body.extend(target.octets());
    if let Some((option, mac)) = option {
        body.extend([option, 1]);
        body.extend(mac.0);
    }
    let sum = checksum(source, destination, &body).to_be_bytes();
    body[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x60, 0, 0, 0, 0, body.len() as u8, ICMPV6, HOP_LIMIT];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(body);
    packet
}

fn address<const N: usize>(bytes: &[u8; N], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    octets.into()
}

/// RFC 8200, section 8.1: over the addresses, the length, the protocol and the message. Of a whole message it is 0.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum()
    };
    let mut sum =
        words(&source.octets()) + words(&destination.octets()) + body.len() as u64 + u64::from(ICMPV6) + words(body);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: Mac = Mac([2, 0, 0, 0, 0, 0x11]);
    const ASKER: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn question() -> Solicitation {
        let target = ip("fd00:172:18::15:200");
        Solicitation {
            source: ip("fd00:172:18::1"),
            destination: solicited_node(target),
            target,
            source_mac: Some(ASKER),
        }
    }

    #[test]
    fn groups_are_made_of_the_last_three_bytes() {
        assert_eq!(solicited_node(ip("fd00:172:18::15:1234")), ip("ff02::1:ff15:1234"));
        assert_eq!(group_mac(ip("ff02::1:ff15:1234")), Mac([0x33, 0x33, 0xff, 0x15, 0x12, 0x34]));
    }

    /// Written down by hand after RFC 4861; the checksum is summed up by hand too.
    #[test]
    fn an_advertisement_has_the_layout_of_the_rfc() {
        let bytes = Advertisement::unsolicited(ip("fd00::1"), NODE).encode();
        assert_eq!(bytes.len(), ADVERTISEMENT_LENGTH);
        assert_eq!(bytes[..8], [0x60, 0, 0, 0, 0, 32, 58, 255]);
        assert_eq!(bytes[8..24], ip("fd00::1").octets());
        assert_eq!(bytes[24..40], ip("ff02::1").octets());
        assert_eq!(bytes[40..42], [136, 0]);
        assert_eq!(bytes[44..48], [0x20, 0, 0, 0]);
        assert_eq!(bytes[48..64], ip("fd00::1").octets());
        assert_eq!(bytes[64..], [2, 1, 2, 0, 0, 0, 0, 0x11]);
        // fd00+1 + ff02+1 + 20 + 3a + 8800 + 2000 + fd00+1 + 0201 + 0200 + 0011 = 3a571, folded a574, inverted 5a8b.
        assert_eq!(bytes[42..44], [0x5a, 0x8b]);
    }

    #[test]
    fn a_question_is_answered_with_override_and_to_its_asker() {
        let read = Solicitation::decode(&question().encode()).unwrap();
        assert_eq!(read, question());
        let answer = Advertisement::decode(&read.answer(NODE).encode()).unwrap();
        assert_eq!((answer.destination, answer.target, answer.mac), (read.source, read.target, NODE));
        assert!(answer.solicited && answer.overrides);
    }

    #[test]
    fn who_looks_whether_the_address_is_free_is_told_with_everybody() {
        let probe = Solicitation { source: Ipv6Addr::UNSPECIFIED, source_mac: None, ..question() };
        let answer = Solicitation::decode(&probe.encode()).unwrap().answer(NODE);
        assert_eq!((answer.destination, answer.solicited, answer.overrides), (ALL_NODES, false, true));
    }

    #[test]
    fn what_a_neighbour_would_not_send_is_refused() {
        let good = question().encode();
        for (at, value, error) in [
            (7, 254, DecodeError::NotFromHere { hop_limit: 254 }),
            (6, 17, DecodeError::Other),
            (0, 0x40, DecodeError::Other),
            (40, 136, DecodeError::Other),
            (41, 1, DecodeError::Other),
            (42, good[42] ^ 1, DecodeError::Checksum),
            (5, 200, DecodeError::Short),
            (5, 20, DecodeError::Short),
        ] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(Solicitation::decode(&bytes), Err(error), "byte {at}");
        }
        let group = Solicitation { target: ip("ff02::5"), ..question() }.encode();
        assert_eq!(Solicitation::decode(&group), Err(DecodeError::Target { target: ip("ff02::5") }));
        assert_eq!(Advertisement::decode(&good), Err(DecodeError::Other));
    }

    #[test]
    fn an_option_without_length_is_no_endless_loop() {
        let message = Message {
            source: ip("fd00::1"),
            destination: ip("fd00::2"),
            flags: 0,
            target: ip("fd00::3"),
            options: &[14, 0, 1, 1, 1, 1, 1, 1],
        };
        assert_eq!(message.option(1), Err(DecodeError::Option));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = (Solicitation::decode(&bytes), Advertisement::decode(&bytes));
        }

        #[test]
        fn spoiled_packets_are_read_or_refused(spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut in 0usize..90) {
            let mut bytes = question().encode();
            for (at, value) in spoils {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut);
            let _ = Solicitation::decode(&bytes);
        }

        #[test]
        fn what_is_written_reads_back(source: u128, target: u128, mac: [u8; 6], solicited: bool, overrides: bool) {
            let target = Ipv6Addr::from(target >> 8);
            prop_assume!(!target.is_unspecified());
            let (source, destination) = (Ipv6Addr::from(source), ip("fd00::9"));
            let said = Advertisement { source, destination, target, mac: Mac(mac), solicited, overrides };
            prop_assert_eq!(Advertisement::decode(&said.encode()), Ok(said));
        }
    }
}
