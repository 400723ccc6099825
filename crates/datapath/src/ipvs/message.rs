//! Pure. Generic netlink messages of IPVS: requests as bytes, answers as values. Follows linux/ip_vs.h,
//! linux/genetlink.h and linux/netlink.h. A port and an address are big endian, all else is as the machine has it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use signpost_core::object::{Family, Protocol};

use super::server::{FLAGS, OWN_TIMEOUT_S, PERSISTENT, Place, ServerKey, Settings};

/// What is asked of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Makes a server.
    NewServer(ServerKey, Settings),
    /// Changes one.
    SetServer(ServerKey, Settings),
    /// Removes one with its destinations.
    DeleteServer(ServerKey),
    /// Adds a destination, of weight 1.
    NewDestination(ServerKey, SocketAddr),
    /// Gives it a weight: 0 takes no new connections.
    SetWeight(ServerKey, SocketAddr, u32),
    /// Removes one.
    DeleteDestination(ServerKey, SocketAddr),
    /// How long connections without packets are remembered. Zero: as it is.
    SetTimeouts {
        /// TCP.
        tcp: Duration,
        /// TCP after a FIN.
        tcp_fin: Duration,
        /// UDP.
        udp: Duration,
    },
}

/// A server as the kernel tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedServer {
    /// The scheduler's name.
    pub scheduler: String,
    /// Those of [`FLAGS`].
    pub flags: u32,
    /// Of a persistent one.
    pub timeout_s: u32,
    /// Its destinations.
    pub destinations: BTreeMap<SocketAddr, ObservedDestination>,
}

impl ObservedServer {
    /// Whether this program made it: by its destinations, or by a number that means nothing to a server that is not
    /// persistent.
    pub fn is_own(&self) -> bool {
        let is_marked = self.flags & PERSISTENT == 0 && self.timeout_s == OWN_TIMEOUT_S;
        is_marked || self.destinations.values().any(|one| one.is_own)
    }
}

/// A destination as the kernel tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObservedDestination {
    /// 0: takes no new connections.
    pub weight: u32,
    /// Connections that it has, live and ending.
    pub connections: u32,
    /// Those of them that are live. The kernel counts none of UDP.
    pub active: u32,
    /// Whether this program made it, see [`OWN_MOST_CONNECTIONS`].
    pub is_own: bool,
}

/// The bound on connections that destinations get: none in truth, and a number by which they are known again.
pub const OWN_MOST_CONNECTIONS: u32 = 0x7f53_4947;

/// One message of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A server.
    Server(ServerKey, ObservedServer),
    /// A destination.
    Destination(SocketAddr, ObservedDestination),
    /// The number of a family of generic netlink.
    FamilyId(u16),
    /// The end of a list; whether it may lack something.
    Done {
        /// It changed while it was listed.
        interrupted: bool,
    },
    /// An errno; 0: done.
    Acknowledged(i32),
    /// Something of no interest: another family's.
    Other,
}

/// What `GETFAMILY` is sent to.
pub const CONTROL: u16 = 0x10;
const VERSION: u8 = 1;
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

mod command {
    pub const NEW_SERVICE: u8 = 1;
    pub const SET_SERVICE: u8 = 2;
    pub const DEL_SERVICE: u8 = 3;
    pub const GET_SERVICE: u8 = 4;
    pub const NEW_DEST: u8 = 5;
    pub const SET_DEST: u8 = 6;
    pub const DEL_DEST: u8 = 7;
    pub const GET_DEST: u8 = 8;
    pub const SET_CONFIG: u8 = 12;
    /// Of the control family.
    pub const GET_FAMILY: u8 = 3;
}

mod attribute {
    pub const SERVICE: u16 = 1;
    pub const DEST: u16 = 2;
    pub const TIMEOUT_TCP: u16 = 4;
    pub const TIMEOUT_TCP_FIN: u16 = 5;
    pub const TIMEOUT_UDP: u16 = 6;

    pub const SERVICE_FAMILY: u16 = 1;
    pub const SERVICE_PROTOCOL: u16 = 2;
    pub const SERVICE_ADDRESS: u16 = 3;
    pub const SERVICE_PORT: u16 = 4;
    pub const SERVICE_MARK: u16 = 5;
    pub const SERVICE_SCHEDULER: u16 = 6;
    pub const SERVICE_FLAGS: u16 = 7;
    pub const SERVICE_TIMEOUT: u16 = 8;
    pub const SERVICE_NETMASK: u16 = 9;

    pub const DEST_ADDRESS: u16 = 1;
    pub const DEST_PORT: u16 = 2;
    pub const DEST_METHOD: u16 = 3;
    pub const DEST_WEIGHT: u16 = 4;
    pub const DEST_MOST: u16 = 5;
    pub const DEST_LEAST: u16 = 6;
    pub const DEST_ACTIVE: u16 = 7;
    pub const DEST_INACTIVE: u16 = 8;
    pub const DEST_FAMILY: u16 = 11;

    pub const CONTROL_ID: u16 = 1;
    pub const CONTROL_NAME: u16 = 2;
}

/// `AF_INET` and `AF_INET6`.
fn family_number(family: Family) -> u16 {
    match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

fn protocol_number(protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn protocol(number: u16) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|one| protocol_number(*one) == number)
}

/// A message that is being written.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u16, flags: u16, sequence: u32, command: u8) -> Writer {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([command, VERSION, 0, 0]);
        Writer(bytes)
    }

    fn put(&mut self, kind: u16, content: &[u8]) {
        let length = u16::try_from(4 + content.len()).expect("contents are short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn put_u16(&mut self, kind: u16, number: u16) {
        self.put(kind, &number.to_ne_bytes());
    }

    fn put_u32(&mut self, kind: u16, number: u32) {
        self.put(kind, &number.to_ne_bytes());
    }

    fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Writer)) {
        let at = self.0.len();
        self.put(kind | NESTED, &[]);
        inside(self);
        let length = u16::try_from(self.0.len() - at).expect("requests are short");
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("requests are short");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }

    fn address(&mut self, kind: u16, address: IpAddr) {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes.copy_from_slice(&address.octets()),
        }
        self.put(kind, &bytes);
    }

    fn server(&mut self, family: Family, key: ServerKey, settings: Option<Settings>) {
        self.nest(attribute::SERVICE, |out| {
            out.put_u16(attribute::SERVICE_FAMILY, family_number(family));
            match key {
                ServerKey::At(place) => {
                    out.put_u16(attribute::SERVICE_PROTOCOL, protocol_number(place.protocol));
                    out.address(attribute::SERVICE_ADDRESS, place.address);
                    out.put(attribute::SERVICE_PORT, &place.port.get().to_be_bytes());
                }
                ServerKey::Marked(mark) => out.put_u32(attribute::SERVICE_MARK, mark),
            }
            let Some(settings) = settings else { return };
            let (scheduler, flags, timeout_s) = settings.parts();
            out.put(attribute::SERVICE_SCHEDULER, format!("{scheduler}\0").as_bytes());
            // The flags, and which of them are meant.
            let flags = [flags.to_ne_bytes(), FLAGS.to_ne_bytes()].concat();
            out.put(attribute::SERVICE_FLAGS, &flags);
            out.put_u32(attribute::SERVICE_TIMEOUT, timeout_s);
            // A client is one address: a whole mask, or the length of a whole prefix.
            let one_address = if family == Family::Ipv4 { u32::MAX } else { 128 };
            out.put_u32(attribute::SERVICE_NETMASK, one_address);
        });
    }

    fn destination(&mut self, family: Family, at: SocketAddr, weight: Option<u32>) {
        self.nest(attribute::DEST, |out| {
            out.put_u16(attribute::DEST_FAMILY, family_number(family));
            out.address(attribute::DEST_ADDRESS, at.ip());
            out.put(attribute::DEST_PORT, &at.port().to_be_bytes());
            let Some(weight) = weight else { return };
            // 0: by translating addresses.
            out.put_u32(attribute::DEST_METHOD, 0);
            out.put_u32(attribute::DEST_WEIGHT, weight);
            out.put_u32(attribute::DEST_MOST, OWN_MOST_CONNECTIONS);
            out.put_u32(attribute::DEST_LEAST, 0);
        });
    }
}

/// Asks for the number of the family IPVS. If the kernel has it as a module, this loads it.
pub fn get_family(sequence: u32) -> Vec<u8> {
    let mut out = Writer::new(CONTROL, 0, sequence, command::GET_FAMILY);
    out.put(attribute::CONTROL_NAME, b"IPVS\0");
    out.finish()
}

/// Asks for all servers, of both families.
pub fn list_servers(ipvs: u16, sequence: u32) -> Vec<u8> {
    Writer::new(ipvs, DUMP, sequence, command::GET_SERVICE).finish()
}

/// Asks for a server's destinations.
pub fn list_destinations(ipvs: u16, sequence: u32, family: Family, key: ServerKey) -> Vec<u8> {
    let mut out = Writer::new(ipvs, DUMP, sequence, command::GET_DEST);
    out.server(family, key, None);
    out.finish()
}

/// A request, to be acknowledged.
pub fn request(ipvs: u16, sequence: u32, family: Family, request: &Request) -> Vec<u8> {
    let command = match request {
        Request::NewServer(..) => command::NEW_SERVICE,
        Request::SetServer(..) => command::SET_SERVICE,
        Request::DeleteServer(_) => command::DEL_SERVICE,
        Request::NewDestination(..) => command::NEW_DEST,
        Request::SetWeight(..) => command::SET_DEST,
        Request::DeleteDestination(..) => command::DEL_DEST,
        Request::SetTimeouts { .. } => command::SET_CONFIG,
    };
    let mut out = Writer::new(ipvs, ACK, sequence, command);
    match *request {
        Request::NewServer(key, settings) | Request::SetServer(key, settings) => {
            out.server(family, key, Some(settings));
        }
        Request::DeleteServer(key) => out.server(family, key, None),
        Request::NewDestination(key, at) => {
            out.server(family, key, None);
            out.destination(family, at, Some(1));
        }
        Request::SetWeight(key, at, weight) => {
            out.server(family, key, None);
            out.destination(family, at, Some(weight));
        }
        Request::DeleteDestination(key, at) => {
            out.server(family, key, None);
            out.destination(family, at, None);
        }
        Request::SetTimeouts { tcp, tcp_fin, udp } => {
            let timeouts =
                [(attribute::TIMEOUT_TCP, tcp), (attribute::TIMEOUT_TCP_FIN, tcp_fin), (attribute::TIMEOUT_UDP, udp)];
            for (kind, timeout) in timeouts {
                out.put_u32(kind, u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
            }
        }
    }
    out.finish()
}

/// The messages in what one read gave: to which request, and what. Of another address family's servers nothing is told.
pub fn answers(mut bytes: &[u8], family: Family) -> impl Iterator<Item = (u32, Answer)> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags, sequence) = (u16_at(message, 4)?, u16_at(message, 6)?, u32_at(message, 8)?);
        Some((sequence, answer(kind, flags, &message[HEADER..], family)))
    })
}

fn answer(kind: u16, flags: u16, body: &[u8], family: Family) -> Answer {
    let errno = || u32_at(body, 0).unwrap_or_default().cast_signed().wrapping_neg();
    match kind {
        TYPE_ERROR => Answer::Acknowledged(errno()),
        TYPE_DONE if errno() > 0 => Answer::Acknowledged(errno()),
        TYPE_DONE => Answer::Done { interrupted: flags & DUMP_INTERRUPTED != 0 },
        _ => item(kind, body.get(GENERIC_HEADER..).unwrap_or_default(), family).unwrap_or(Answer::Other),
    }
}

fn item(kind: u16, body: &[u8], family: Family) -> Option<Answer> {
    if kind == CONTROL {
        let id = attributes(body).find(|(kind, _)| *kind == attribute::CONTROL_ID)?.1;
        return Some(Answer::FamilyId(u16_at(id, 0)?));
    }
    let (kind, content) = attributes(body).next()?;
    let parts: BTreeMap<u16, &[u8]> = attributes(content).collect();
    let number = |kind: u16| u32_at(parts.get(&kind)?, 0);
    match kind {
        attribute::SERVICE => {
            if u16_at(parts.get(&attribute::SERVICE_FAMILY)?, 0)? != family_number(family) {
                return None;
            }
            let scheduler = parts.get(&attribute::SERVICE_SCHEDULER)?;
            let scheduler = scheduler.split(|byte| *byte == 0).next().unwrap_or_default();
            let server = ObservedServer {
                scheduler: String::from_utf8_lossy(scheduler).into_owned(),
                flags: number(attribute::SERVICE_FLAGS)? & FLAGS,
                timeout_s: number(attribute::SERVICE_TIMEOUT)?,
                destinations: BTreeMap::new(),
            };
            Some(Answer::Server(server_key(&parts, family)?, server))
        }
        attribute::DEST => {
            let at = SocketAddr::new(
                address(parts.get(&attribute::DEST_ADDRESS)?, family)?,
                be16(parts.get(&attribute::DEST_PORT)?)?,
            );
            let active = number(attribute::DEST_ACTIVE)?;
            let connections = active.saturating_add(number(attribute::DEST_INACTIVE)?);
            let is_own = number(attribute::DEST_MOST)? == OWN_MOST_CONNECTIONS;
            let weight = number(attribute::DEST_WEIGHT)?;
            Some(Answer::Destination(at, ObservedDestination { weight, connections, active, is_own }))
        }
        _ => None,
    }
}

fn server_key(parts: &BTreeMap<u16, &[u8]>, family: Family) -> Option<ServerKey> {
    if let Some(mark) = parts.get(&attribute::SERVICE_MARK) {
        return Some(ServerKey::Marked(u32_at(mark, 0)?));
    }
    Some(ServerKey::At(Place {
        address: address(parts.get(&attribute::SERVICE_ADDRESS)?, family)?,
        protocol: protocol(u16_at(parts.get(&attribute::SERVICE_PROTOCOL)?, 0)?)?,
        port: NonZeroU16::new(be16(parts.get(&attribute::SERVICE_PORT)?)?)?,
    }))
}

fn address(bytes: &[u8], family: Family) -> Option<IpAddr> {
    match family {
        Family::Ipv4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?).into()),
        Family::Ipv6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(..16)?).ok()?).into()),
    }
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn be16(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(..2)?.try_into().ok()?))
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

    use super::super::server::{Scheduler, Stickiness};
    use super::*;

    fn place(text: &str) -> Place {
        let at: SocketAddr = text.parse().unwrap();
        Place { address: at.ip(), protocol: Protocol::Tcp, port: NonZeroU16::new(at.port()).unwrap() }
    }

    const ROUND: Settings = Settings { scheduler: Scheduler::Rr, stickiness: Stickiness::Persistent(10_800) };

    #[test]
    fn a_server_reads_back_as_it_was_written() {
        for (family, at) in [(Family::Ipv4, "10.96.0.42:80"), (Family::Ipv6, "[fd00:10:96::42]:80")] {
            for key in [ServerKey::At(place(at)), ServerKey::Marked(0x4900_1234)] {
                let bytes = request(23, 7, family, &Request::NewServer(key, ROUND));
                let server = ObservedServer {
                    scheduler: "rr".to_owned(),
                    flags: super::super::server::PERSISTENT,
                    timeout_s: 10_800,
                    destinations: BTreeMap::new(),
                };
                assert_eq!(answers(&bytes, family).collect::<Vec<_>>(), [(7, Answer::Server(key, server))]);
            }
        }
    }

    #[test]
    fn servers_of_the_other_family_are_passed_over() {
        let key = ServerKey::At(place("10.96.0.42:80"));
        let bytes = request(23, 7, Family::Ipv4, &Request::NewServer(key, ROUND));
        assert_eq!(answers(&bytes, Family::Ipv6).collect::<Vec<_>>(), [(7, Answer::Other)]);
    }

    #[test]
    fn a_request_has_the_bytes_that_the_kernel_reads() {
        let key = ServerKey::Marked(0x0102_0304);
        let bytes =
            request(0x1c, 1, Family::Ipv4, &Request::DeleteDestination(key, "10.244.1.7:8080".parse().unwrap()));
        let expected: Vec<u8> = [
            &[76, 0, 0, 0, 0x1c, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
            &[7, 1, 0, 0],
            &[20, 0, 1, 0x80, 6, 0, 1, 0, 2, 0, 0, 0, 8, 0, 5, 0, 4, 3, 2, 1],
            &[36 + 4 - 4, 0, 2, 0x80, 6, 0, 11, 0, 2, 0, 0, 0],
            &[20, 0, 1, 0, 10, 244, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[6, 0, 2, 0, 0x1f, 0x90, 0, 0],
        ]
        .concat();
        if cfg!(target_endian = "little") {
            let mut expected = expected;
            let length = expected.len();
            expected[0] = u8::try_from(length).unwrap();
            let dest_at = 16 + 4 + 20;
            expected[dest_at] = u8::try_from(length - dest_at).unwrap();
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn a_refusal_tells_its_error_number() {
        let mut bytes = 36u32.to_ne_bytes().to_vec();
        bytes.extend(TYPE_ERROR.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(5u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend((-17i32).to_ne_bytes());
        bytes.extend([0; 16]);
        assert_eq!(answers(&bytes, Family::Ipv4).collect::<Vec<_>>(), [(5, Answer::Acknowledged(17))]);
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes: Vec<u8>, cut in 0usize..200, flip in 0usize..200, with: u8) {
            answers(&bytes, Family::Ipv4).take(10_000).for_each(drop);
            let key = ServerKey::At(place("10.96.0.42:80"));
            let mut listed = request(23, 7, Family::Ipv4, &Request::NewServer(key, ROUND));
            listed.truncate(cut.max(1));
            let at = flip % listed.len();
            listed[at] = with;
            answers(&listed, Family::Ipv6).take(10_000).for_each(drop);
        }
    }
}
