//! Pure. Routing netlink messages, as far as the device `kube-ipvs0` and its addresses need them. Follows
//! linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use signpost_core::object::Family;

/// The device that has the Services' addresses, so that their packets are the node's own. It is never up.
pub const DEVICE: &str = "kube-ipvs0";

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
/// `IFLA_IFNAME`, `IFLA_LINKINFO` and `IFLA_INFO_KIND`.
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_KIND: u16 = 1;
/// `IFA_ADDRESS` and `IFA_LOCAL`.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// `IFA_F_NODAD`: an address of IPv6 serves at once.
const NO_DUPLICATE_DETECTION: u8 = 0x02;
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).expect("requests are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + content.len()).expect("contents are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Makes the device.
pub fn new_device(sequence: u32) -> Vec<u8> {
    let kind = attribute(LINK_KIND, b"dummy");
    let name = format!("{DEVICE}\0");
    let body = [vec![0; 16], attribute(LINK_NAME, name.as_bytes()), attribute(LINK_INFO | NESTED, &kind)].concat();
    message(NEW_LINK, ACK | CREATE | EXCLUSIVE, sequence, &body)
}

/// Removes it with all its addresses.
pub fn delete_device(sequence: u32) -> Vec<u8> {
    let name = format!("{DEVICE}\0");
    message(DELETE_LINK, ACK, sequence, &[vec![0; 16], attribute(LINK_NAME, name.as_bytes())].concat())
}

fn address_body(device: u32, address: IpAddr) -> Vec<u8> {
    let (family, bits, flags) = match address {
        IpAddr::V4(_) => (2, 32, 0),
        IpAddr::V6(_) => (10, 128, NO_DUPLICATE_DETECTION),
    };
    let mut body = vec![family, bits, flags, 0];
    body.extend(device.to_ne_bytes());
    body.extend(attribute(LOCAL, &octets(address)));
    body.extend(attribute(ADDRESS, &octets(address)));
    body
}

/// Gives the device of this number an address.
pub fn add_address(sequence: u32, device: u32, address: IpAddr) -> Vec<u8> {
    message(NEW_ADDRESS, ACK | CREATE | EXCLUSIVE, sequence, &address_body(device, address))
}

/// Takes an address from it.
pub fn delete_address(sequence: u32, device: u32, address: IpAddr) -> Vec<u8> {
    message(DELETE_ADDRESS, ACK, sequence, &address_body(device, address))
}

/// Asks for the addresses of all devices, of one family.
pub fn list_addresses(sequence: u32, family: Family) -> Vec<u8> {
    let family = if family == Family::Ipv4 { 2 } else { 10 };
    message(GET_ADDRESS, DUMP, sequence, &[family, 0, 0, 0, 0, 0, 0, 0])
}

/// One message of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// An address, and the number of its device.
    Address(u32, IpAddr),
    /// The end of a list; whether it may lack something.
    Done {
        /// It changed while it was listed.
        interrupted: bool,
    },
    /// An errno; 0: done.
    Acknowledged(i32),
    /// Something of no interest.
    Other,
}

/// The messages in what one read gave: to which request, and what.
pub fn answers(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Answer)> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags, sequence) = (u16_at(message, 4)?, u16_at(message, 6)?, u32_at(message, 8)?);
        let body = &message[HEADER..];
        let answer = match kind {
            TYPE_ERROR => Answer::Acknowledged(u32_at(body, 0)?.cast_signed().wrapping_neg()),
            TYPE_DONE => Answer::Done { interrupted: flags & DUMP_INTERRUPTED != 0 },
            NEW_ADDRESS => address(body).unwrap_or(Answer::Other),
            _ => Answer::Other,
        };
        Some((sequence, answer))
    })
}

fn address(body: &[u8]) -> Option<Answer> {
    let device = u32_at(body, 4)?;
    let mut found = None;
    let mut rest = body.get(ADDRESS_HEADER..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let content = rest.get(4..usize::from(length))?;
        // IPv6 has no `LOCAL`; of a device with a peer `ADDRESS` is the peer's.
        let is_better = kind & TYPE_MASK == LOCAL || (kind & TYPE_MASK == ADDRESS && found.is_none());
        if is_better {
            found = match *content {
                [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
                _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(content).ok()?).into()),
            };
        }
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Answer::Address(device, found?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_reads_back_as_it_was_written() {
        for text in ["10.96.0.42", "fd00:10:96::42"] {
            let address: IpAddr = text.parse().unwrap();
            let bytes = [add_address(3, 9, address), delete_address(4, 9, address)].concat();
            let found: Vec<_> = answers(&bytes).collect();
            assert_eq!(found, [(3, Answer::Address(9, address)), (4, Answer::Other)]);
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes: Vec<u8>, cut in 0usize..80, flip in 0usize..80, with: u8) {
            answers(&bytes).take(10_000).for_each(drop);
            let mut listed = add_address(1, 2, [10, 96, 0, 1].into());
            listed.truncate(cut.max(1));
            let at = flip % listed.len();
            listed[at] = with;
            answers(&listed).take(10_000).for_each(drop);
        }
    }
}
