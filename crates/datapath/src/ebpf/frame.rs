//! Frames for tests: made, taken apart, and their sums held. An Ethernet header, then IPv4 or IPv6, then TCP, UDP, or an ICMP
//! error about another one.

use std::net::{IpAddr, SocketAddr};

use signpost_core::object::Protocol;

pub const ETHERNET: usize = 14;
pub const SYN: u8 = 2;
pub const ACK: u8 = 16;
pub const FIN: u8 = 1;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    pub protocol: Protocol,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// What kind of fragment: its identification, where it begins (in units of eight bytes), whether more come.
pub type Fragment = (u32, u16, bool);

fn l3_bytes(address: IpAddr) -> usize {
    if address.is_ipv4() { 20 } else { 40 }
}

/// One's complement sum of the words.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0_u64;
    for part in parts {
        for word in part.chunks(2) {
            total += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The header that sums of transport protocols count besides.
fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let length = u16::try_from(length).unwrap().to_be_bytes();
    [octets(source), octets(destination), vec![0, protocol], length.to_vec()].concat()
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// The transport header with its data, and its sum.
fn transport(said: Said, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = [said.source.port().to_be_bytes(), said.destination.port().to_be_bytes()].concat();
    let sum_at = match said.protocol {
        Protocol::Tcp => {
            bytes.extend([0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
            16
        }
        _ => {
            bytes.extend(u16::try_from(8 + data.len()).unwrap().to_be_bytes());
            bytes.extend([0, 0]);
            6
        }
    };
    bytes.extend(data);
    let pseudo = pseudo(said.source.ip(), said.destination.ip(), number(said.protocol), bytes.len());
    let sum = !sum(&[&pseudo, &bytes]);
    bytes[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// An IP header with what follows.
fn network(source: IpAddr, destination: IpAddr, protocol: u8, fragment: Option<Fragment>, body: &[u8]) -> Vec<u8> {
    let mut bytes;
    if source.is_ipv4() {
        let length = u16::try_from(20 + body.len()).unwrap().to_be_bytes();
        let (id, offset, more) = fragment.unwrap_or((1, 0, false));
        let offset = (offset | if more { 0x2000 } else { 0 }).to_be_bytes();
        bytes =
            vec![0x45, 0, length[0], length[1], (id >> 8) as u8, id as u8, offset[0], offset[1], 64, protocol, 0, 0];
        bytes.extend([octets(source), octets(destination)].concat());
        let sum = (!sum(&[&bytes])).to_be_bytes();
        bytes[10..12].copy_from_slice(&sum);
    } else {
        let more = if fragment.is_some() { 8 } else { 0 };
        let length = u16::try_from(body.len() + more).unwrap().to_be_bytes();
        bytes = vec![0x60, 0, 0, 0, length[0], length[1], if more > 0 { 44 } else { protocol }, 64];
        bytes.extend([octets(source), octets(destination)].concat());
        if let Some((id, offset, more)) = fragment {
            bytes.extend([protocol, 0]);
            bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
            bytes.extend(id.to_be_bytes());
        }
    }
    [bytes, body.to_vec()].concat()
}

fn ethernet(source: IpAddr, packet: Vec<u8>) -> Vec<u8> {
    let kind: [u8; 2] = if source.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, &packet].concat()
}

/// A whole packet.
pub fn frame(said: Said, flags: u8) -> Vec<u8> {
    let body = transport(said, flags, b"signpost");
    let (source, destination) = (said.source.ip(), said.destination.ip());
    ethernet(source, network(source, destination, number(said.protocol), None, &body))
}

/// A packet in two fragments: the first has the ports.
pub fn fragments(said: Said, id: u32) -> [Vec<u8>; 2] {
    let body = transport(said, 0, &[7; 40]);
    let (source, destination) = (said.source.ip(), said.destination.ip());
    let part = |offset, more, bytes: &[u8]| {
        ethernet(source, network(source, destination, number(said.protocol), Some((id, offset, more)), bytes))
    };
    [part(0, true, &body[..24]), part(3, false, &body[24..])]
}

/// An ICMP error of kind "destination unreachable" from somebody about a packet.
pub fn error(from: IpAddr, about: Said) -> Vec<u8> {
    let (source, destination) = (about.source.ip(), about.destination.ip());
    let inner = network(source, destination, number(about.protocol), None, &transport(about, ACK, b"signpost"));
    let mut body = vec![if from.is_ipv4() { 3 } else { 1 }, 3, 0, 0, 0, 0, 0, 0];
    body.extend(inner);
    let sum = !if from.is_ipv4() { sum(&[&body]) } else { sum(&[&pseudo(from, source, 58, body.len()), &body]) };
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    ethernet(from, network(from, source, if from.is_ipv4() { 1 } else { 58 }, None, &body))
}

fn addresses(packet: &[u8], is_ipv4: bool) -> [IpAddr; 2] {
    if is_ipv4 {
        let at = |from: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[from..from + 4]).unwrap());
        [at(12), at(16)]
    } else {
        let at = |from: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[from..from + 16]).unwrap());
        [at(8), at(24)]
    }
}

fn port(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn is_ipv4(frame: &[u8]) -> bool {
    frame[12] == 8
}

/// What a whole packet says; its sums must be right.
pub fn read(frame: &[u8]) -> Said {
    let packet = &frame[ETHERNET..];
    let [source, destination] = addresses(packet, is_ipv4(frame));
    if source.is_ipv4() {
        assert_eq!(sum(&[&packet[..20]]), 0xffff, "the sum of the IPv4 header");
    }
    let protocol = if is_ipv4(frame) { packet[9] } else { packet[6] };
    let body = &packet[l3_bytes(source)..];
    assert_eq!(sum(&[&pseudo(source, destination, protocol, body.len()), body]), 0xffff, "the sum of the data");
    Said {
        protocol: if protocol == 6 { Protocol::Tcp } else { Protocol::Udp },
        source: SocketAddr::new(source, port(body, 0)),
        destination: SocketAddr::new(destination, port(body, 2)),
    }
}

/// The addresses of a fragment; IPv4's sum must be right.
pub fn read_fragment(frame: &[u8]) -> [IpAddr; 2] {
    let packet = &frame[ETHERNET..];
    if is_ipv4(frame) {
        assert_eq!(sum(&[&packet[..20]]), 0xffff, "the sum of the IPv4 header");
    }
    addresses(packet, is_ipv4(frame))
}

/// The addresses of an ICMP error, and what the packet that it tells of says. All sums but that packet's own must be right.
pub fn read_error(frame: &[u8]) -> ([IpAddr; 2], Said) {
    let packet = &frame[ETHERNET..];
    let [source, destination] = addresses(packet, is_ipv4(frame));
    let body = &packet[l3_bytes(source)..];
    let inner = &body[8..];
    if source.is_ipv4() {
        assert_eq!(sum(&[&packet[..20]]), 0xffff, "the sum of the IPv4 header");
        assert_eq!(sum(&[body]), 0xffff, "the sum of the error");
        assert_eq!(sum(&[&inner[..20]]), 0xffff, "the sum of the header within");
    } else {
        assert_eq!(sum(&[&pseudo(source, destination, 58, body.len()), body]), 0xffff, "the sum of the error");
    }
    let [from, to] = addresses(inner, source.is_ipv4());
    let protocol = if source.is_ipv4() { inner[9] } else { inner[6] };
    let data = &inner[l3_bytes(source)..];
    let about = Said {
        protocol: if protocol == 6 { Protocol::Tcp } else { Protocol::Udp },
        source: SocketAddr::new(from, port(data, 0)),
        destination: SocketAddr::new(to, port(data, 2)),
    };
    ([source, destination], about)
}
