//! Pure. Conntrack's netlink messages: two requests, and the flows in the answers.
//!
//! `linux/netlink.h`, `linux/netfilter/nfnetlink.h`, `linux/netfilter/nfnetlink_conntrack.h`. A message is a header of 16
//! bytes, four more of nfnetlink, then attributes: length, type and value, each padded to four bytes. Headers are in the
//! machine's byte order, what is of the network in the network's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use signpost_core::object::Family;

use super::flow::{Flow, Tuple};

const HEADER: usize = 16;
const SUBSYSTEM: u16 = 1 << 8; // NFNL_SUBSYS_CTNETLINK
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
const NESTED: u16 = 0x8000;
const TYPE: u16 = 0x3fff;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IP_V4_SOURCE: u16 = 1;
const IP_V4_DESTINATION: u16 = 2;
const IP_V6_SOURCE: u16 = 3;
const IP_V6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const PROTOCOL_SOURCE: u16 = 2;
const PROTOCOL_DESTINATION: u16 = 3;
const FILTER_ORIGINAL: u16 = 1;
/// Compare the protocol's number (net/netfilter/nf_internals.h, `CTA_FILTER_F_CTA_PROTO_NUM`).
const FILTER_BY_PROTOCOL: u32 = 1 << 3;
/// `CTA_PROTOINFO`, in it `CTA_PROTOINFO_TCP`, in it `CTA_PROTOINFO_TCP_STATE`.
const PROTOCOL_INFO: u16 = 4;
const INFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
/// `TCP_CONNTRACK_ESTABLISHED` (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
const ESTABLISHED: u8 = 3;
/// The number of UDP.
pub const UDP: u8 = 17;
/// The number of TCP.
pub const TCP: u8 = 6;

/// Asks for all flows of a protocol and a family. The kernel leaves out what is of another protocol since Linux 5.8.
pub fn list(protocol: u8, family: Family, sequence: u32) -> Vec<u8> {
    request(GET, DUMP, family, sequence, |message| {
        nested(message, TUPLE_ORIGINAL, |tuple| {
            nested(tuple, TUPLE_PROTOCOL, |inner| attribute(inner, PROTOCOL_NUMBER, &[protocol]));
        });
        nested(message, FILTER, |filter| attribute(filter, FILTER_ORIGINAL, &FILTER_BY_PROTOCOL.to_ne_bytes()));
    })
}

/// Asks to delete exactly this flow, and to be told.
pub fn delete(flow: &Flow, sequence: u32) -> Vec<u8> {
    let family = Family::of(flow.original.source.ip());
    request(DELETE, ACK, family, sequence, |message| {
        nested(message, TUPLE_ORIGINAL, |tuple| {
            nested(tuple, TUPLE_IP, |ips| {
                address(ips, [IP_V4_SOURCE, IP_V6_SOURCE], flow.original.source.ip());
                address(ips, [IP_V4_DESTINATION, IP_V6_DESTINATION], flow.original.destination.ip());
            });
            nested(tuple, TUPLE_PROTOCOL, |protocol| {
                attribute(protocol, PROTOCOL_NUMBER, &[UDP]);
                attribute(protocol, PROTOCOL_SOURCE, &flow.original.source.port().to_be_bytes());
                attribute(protocol, PROTOCOL_DESTINATION, &flow.original.destination.port().to_be_bytes());
            });
        });
        attribute(message, ID, &flow.id.to_be_bytes());
    })
}

fn request(kind: u16, flags: u16, family: Family, sequence: u32, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]); // from: filled in by the kernel
    // Address family, version, resource: nfgenmsg.
    message.extend([if family == Family::Ipv4 { 2 } else { 10 }, 0, 0, 0]);
    fill(&mut message);
    let length = u32::try_from(message.len()).expect("a request is a few hundred bytes");
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("no attribute here is longer than an address");
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn nested(message: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut value = Vec::new();
    fill(&mut value);
    attribute(message, kind | NESTED, &value);
}

fn address(message: &mut Vec<u8>, [v4, v6]: [u16; 2], address: IpAddr) {
    match address {
        IpAddr::V4(address) => attribute(message, v4, &address.octets()),
        IpAddr::V6(address) => attribute(message, v6, &address.octets()),
    }
}

/// One message of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A flow; `None`: one that is not of this kind (another protocol's).
    Flow(Option<Flow>),
    /// The list ends. `interrupted`: the table changed its size meanwhile, so that flows may be missing.
    Done {
        /// See above.
        interrupted: bool,
    },
    /// Acknowledged (0), or refused with this error number.
    Acknowledged(i32),
    /// Something else, to be passed over.
    Other,
}

/// The messages in what one read gave, with the sequence numbers of the requests they answer; of flows those of a protocol.
pub fn answers(mut bytes: &[u8], protocol: u8) -> impl Iterator<Item = (u32, Answer)> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u32_at(message, 8)?, answer(message, protocol)))
    })
}

fn answer(message: &[u8], protocol: u8) -> Answer {
    let (kind, flags) = (u16_at(message, 4).unwrap_or_default(), u16_at(message, 6).unwrap_or_default());
    match kind {
        NEW => Answer::Flow(flow(message, protocol)),
        DONE => Answer::Done { interrupted: flags & DUMP_INTERRUPTED != 0 },
        ERROR => Answer::Acknowledged(u32_at(message, HEADER).map_or(0, |error| error.cast_signed().wrapping_neg())),
        _ => Answer::Other,
    }
}

fn flow(message: &[u8], protocol: u8) -> Option<Flow> {
    let (mut original, mut reply, mut id, mut zone, mut established) = (None, None, 0, 0, false);
    for (kind, value) in attributes(message.get(HEADER + 4..)?) {
        match kind {
            TUPLE_ORIGINAL => original = tuple(value, protocol),
            TUPLE_REPLY => reply = tuple(value, protocol),
            ID => id = u32::from_be_bytes(value.try_into().ok()?),
            PROTOCOL_INFO => established = tcp_state(value) == Some(ESTABLISHED),
            ZONE => zone = u16::from_be_bytes(value.try_into().ok()?),
            _ => {}
        }
    }
    Some(Flow { original: original?, reply: reply?, id, zone, established })
}

fn tcp_state(value: &[u8]) -> Option<u8> {
    let (_, of_tcp) = attributes(value).find(|(kind, _)| *kind == INFO_TCP)?;
    let (_, state) = attributes(of_tcp).find(|(kind, _)| *kind == TCP_STATE)?;
    state.first().copied()
}

fn tuple(value: &[u8], protocol: u8) -> Option<Tuple> {
    let (mut source, mut destination, mut ports, mut number) = (None, None, [0, 0], 0);
    for (kind, value) in attributes(value) {
        for (inner, value) in attributes(value) {
            match (kind, inner) {
                (TUPLE_IP, IP_V4_SOURCE | IP_V6_SOURCE) => source = ip(value),
                (TUPLE_IP, IP_V4_DESTINATION | IP_V6_DESTINATION) => destination = ip(value),
                (TUPLE_PROTOCOL, PROTOCOL_NUMBER) => number = *value.first()?,
                (TUPLE_PROTOCOL, PROTOCOL_SOURCE) => ports[0] = u16::from_be_bytes(value.try_into().ok()?),
                (TUPLE_PROTOCOL, PROTOCOL_DESTINATION) => ports[1] = u16::from_be_bytes(value.try_into().ok()?),
                _ => {}
            }
        }
    }
    let [from, to] = ports;
    (number == protocol)
        .then_some(Tuple { source: SocketAddr::new(source?, from), destination: SocketAddr::new(destination?, to) })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = |value: [u8; 4]| Ipv4Addr::from(value).into();
    let v6 = |value: [u8; 16]| Ipv6Addr::from(value).into();
    value.try_into().map(v4).or_else(|_| value.try_into().map(v6)).ok()
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
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

    fn a_flow(zone: u16) -> Flow {
        let socket = |text: &str| -> SocketAddr { text.parse().unwrap() };
        Flow {
            original: Tuple { source: socket("10.244.1.2:4000"), destination: socket("10.96.0.10:53") },
            reply: Tuple { source: socket("10.244.2.9:5353"), destination: socket("10.244.1.2:4000") },
            id: 0xdead_beef,
            zone,
            established: false,
        }
    }

    /// A message as the kernel writes it, from what a request for deletion has in common with it.
    fn as_listed(flow: &Flow) -> Vec<u8> {
        let reply = Flow { original: flow.reply, ..*flow };
        let mut message = delete(flow, 7);
        let of_reply = delete(&reply, 7);
        let original_end = HEADER + 4 + usize::from(u16_at(&of_reply, HEADER + 4).unwrap());
        let mut tuple = of_reply[HEADER + 4..original_end].to_vec();
        tuple[2..4].copy_from_slice(&(TUPLE_REPLY | NESTED).to_ne_bytes());
        message.extend(tuple);
        attribute(&mut message, ZONE, &flow.zone.to_be_bytes());
        message[4..6].copy_from_slice(&NEW.to_ne_bytes());
        let length = u32::try_from(message.len()).unwrap();
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message
    }

    #[test]
    fn flows_are_read_from_a_listing() {
        let mut bytes = as_listed(&a_flow(0));
        bytes.extend(as_listed(&a_flow(9)));
        let read: Vec<_> = answers(&bytes, UDP).collect();
        assert_eq!(read, [(7, Answer::Flow(Some(a_flow(0)))), (7, Answer::Flow(Some(a_flow(9))))]);
    }

    #[test]
    fn a_flow_of_another_protocol_is_passed_over() {
        let mut bytes = as_listed(&a_flow(0));
        let at = bytes.iter().position(|byte| *byte == UDP).unwrap();
        bytes[at] = 6;
        assert_eq!(answers(&bytes, UDP).next(), Some((7, Answer::Flow(None))));
    }

    #[test]
    fn a_refusal_tells_its_error_number() {
        let mut bytes = 36u32.to_ne_bytes().to_vec();
        bytes.extend(ERROR.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(5u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend((-2i32).to_ne_bytes());
        bytes.extend([0; 16]);
        assert_eq!(answers(&bytes, UDP).collect::<Vec<_>>(), [(5, Answer::Acknowledged(2))]);
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes: Vec<u8>, cut in 0usize..200, flip in 0usize..200, with: u8) {
            answers(&bytes, UDP).take(10_000).for_each(drop);
            let mut listed = as_listed(&a_flow(1));
            listed.truncate(cut.max(1));
            let at = flip % listed.len();
            listed[at] = with;
            answers(&listed, UDP).take(10_000).for_each(drop);
        }
    }
}
