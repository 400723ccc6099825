//! Pure. ARP for IPv4 over Ethernet (RFC 826): 28 bytes after the Ethernet header.

use std::net::Ipv4Addr;

use crate::mac::Mac;

/// Length of a packet; what follows is padding.
pub const LENGTH: usize = 28;

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Question or answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Who has `target_ip`?
    Request,
    /// `sender_ip` is at `sender_mac`.
    Reply,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Question or answer.
    pub operation: Operation,
    /// Who sends it.
    pub sender_mac: Mac,
    /// Its address; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Whom it is for; without meaning in a question.
    pub target_mac: Mac,
    /// The address that is asked for, or the asker's.
    pub target_ip: Ipv4Addr,
}

/// Why bytes are no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short.
    #[error("{length} bytes are too few for ARP")]
    Short {
        /// How many there are.
        length: usize,
    },
    /// ARP for other networks.
    #[error("ARP, but not for IPv4 over Ethernet")]
    Foreign,
    /// RARP and others.
    #[error("ARP operation {operation} is neither request nor reply")]
    Operation {
        /// Its number.
        operation: u16,
    },
}

impl Packet {
    /// Reads the bytes after the Ethernet header.
    ///
    /// # Errors
    /// It is something else.
    pub fn decode(bytes: &[u8]) -> Result<Packet, DecodeError> {
        let bytes: &[u8; LENGTH] = bytes.first_chunk().ok_or(DecodeError::Short { length: bytes.len() })?;
        if bytes[..6] != HEAD {
            return Err(DecodeError::Foreign);
        }
        let operation = match u16::from_be_bytes([bytes[6], bytes[7]]) {
            1 => Operation::Request,
            2 => Operation::Reply,
            operation => return Err(DecodeError::Operation { operation }),
        };
        let mac =
            |at: usize| Mac([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3], bytes[at + 4], bytes[at + 5]]);
        let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        Ok(Packet { operation, sender_mac: mac(8), sender_ip: ip(14), target_mac: mac(18), target_ip: ip(24) })
    }

    /// The bytes after the Ethernet header.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..6].copy_from_slice(&HEAD);
        bytes[7] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        bytes[8..14].copy_from_slice(&self.sender_mac.0);
        bytes[14..18].copy_from_slice(&self.sender_ip.octets());
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        bytes[24..].copy_from_slice(&self.target_ip.octets());
        bytes
    }

    /// The answer to a question: the address that is asked for is at `mac`.
    pub fn answer(&self, mac: Mac) -> Packet {
        Packet {
            operation: Operation::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Tells everybody that `ip` is at `mac` now: once as a question and once as an answer, as some devices heed the one and
    /// some the other (RFC 5227, section 3).
    pub fn gratuitous(ip: Ipv4Addr, mac: Mac) -> [Packet; 2] {
        [Operation::Request, Operation::Reply].map(|operation| Packet {
            operation,
            sender_mac: mac,
            sender_ip: ip,
            target_mac: Mac::BROADCAST,
            target_ip: ip,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: Mac = Mac([2, 0, 0, 0, 0, 0x11]);
    const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 1]);

    /// As RFC 826 lays it out: who has 172.18.15.200? tell 172.18.0.1.
    const QUESTION: [u8; 28] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 172, 18, 0, 1, 0, 0, 0, 0, 0, 0, 172, 18, 15, 200];

    #[test]
    fn a_question_is_answered_to_its_asker() {
        let question = Packet::decode(&QUESTION).unwrap();
        assert_eq!(question.encode(), QUESTION);
        let answer = question.answer(NODE).encode();
        let expected = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 0x11, 172, 18, 15, 200, 2, 0, 0, 0, 0, 1, 172, 18, 0, 1];
        assert_eq!(answer, expected);
        assert_eq!(Packet::decode(&answer).unwrap().target_mac, ROUTER);
    }

    #[test]
    fn a_gratuitous_pair_names_the_address_twice() {
        let ip = Ipv4Addr::new(172, 18, 15, 200);
        for packet in Packet::gratuitous(ip, NODE) {
            assert_eq!((packet.sender_ip, packet.target_ip, packet.sender_mac), (ip, ip, NODE));
            assert_eq!(packet.target_mac, Mac::BROADCAST);
        }
    }

    #[test]
    fn what_is_no_arp_for_ipv4_over_ethernet_is_refused() {
        assert_eq!(Packet::decode(&QUESTION[..27]), Err(DecodeError::Short { length: 27 }));
        for (at, value, error) in [
            (1, 6, DecodeError::Foreign),
            (2, 0x86, DecodeError::Foreign),
            (4, 8, DecodeError::Foreign),
            (5, 16, DecodeError::Foreign),
            (7, 3, DecodeError::Operation { operation: 3 }),
            (6, 1, DecodeError::Operation { operation: 257 }),
        ] {
            let mut bytes = QUESTION;
            bytes[at] = value;
            assert_eq!(Packet::decode(&bytes), Err(error), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_what_is_read_is_written_back(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(&packet.encode()[..], &bytes[..LENGTH]);
            }
        }

        #[test]
        fn spoiled_packets_are_read_or_refused(at in 0usize..LENGTH, value: u8, length in 0usize..40) {
            let mut bytes = QUESTION.to_vec();
            bytes[at] = value;
            bytes.resize(length, 0);
            if let Ok(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(&packet.encode()[..], &bytes[..LENGTH]);
            }
        }
    }
}
