//! Pure. The messages of sock_diag(7): which sockets are connected in a network namespace, and the end of one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use signpost_core::object::{Family, Protocol};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
/// TCP_ESTABLISHED; so UDP calls a connected socket.
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSE_WAIT: u8 = 8;
const HEADER: usize = 16;
/// `struct inet_diag_sockid` and `struct inet_diag_msg`.
const ID: usize = 48;
const MESSAGE: usize = 72;

/// A connected socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// As it was made: an IPv6 socket may be connected to an IPv4 address.
    pub family: Family,
    /// The number by which kernel programs know it.
    pub cookie: u64,
    /// Whom it is connected to.
    pub peer: SocketAddr,
    /// Whether both ends still may send.
    pub is_established: bool,
    /// Ports and addresses as the kernel names them.
    id: [u8; ID],
}

impl Connected {
    /// One that cannot be: without addresses and ports.
    pub fn nobody() -> Connected {
        let peer = SocketAddr::from(([0, 0, 0, 0], 0));
        Connected { family: Family::Ipv4, cookie: 0, peer, is_established: false, id: [0; ID] }
    }
}

/// What the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// One of the list.
    Socket(Connected),
    /// The list is at its end.
    Done,
    /// An error number; 0: it is done.
    Acknowledged(i32),
}

/// Asks for all sockets of a family and protocol that are connected, or on their way to it.
pub fn list(family: Family, protocol: Protocol) -> Vec<u8> {
    let states = match protocol {
        Protocol::Tcp => 1 << ESTABLISHED | 1 << SYN_SENT | 1 << CLOSE_WAIT,
        Protocol::Udp | Protocol::Sctp => 1 << ESTABLISHED,
    };
    request(BY_FAMILY, REQUEST | DUMP, family, protocol, states, &[0; ID])
}

/// Ends a socket: its process is told that the connection was aborted.
pub fn destroy(socket: &Connected, protocol: Protocol) -> Vec<u8> {
    request(DESTROY, REQUEST | ACKNOWLEDGE, socket.family, protocol, u32::MAX, &socket.id)
}

fn request(kind: u16, flags: u16, family: Family, protocol: Protocol, states: u32, id: &[u8; ID]) -> Vec<u8> {
    let mut body = vec![family_number(family), protocol_number(protocol), 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    let length = u32::try_from(HEADER + body.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]); // sequence and port: one request at a time on a socket of its own
    message.extend(body);
    message
}

/// The answers in what was received.
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut all = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(message) = bytes.get(HEADER..length) else { break };
        all.extend(match kind {
            NLMSG_DONE => Some(Answer::Done),
            NLMSG_ERROR => {
                message.first_chunk().map(|code| Answer::Acknowledged(i32::from_ne_bytes(*code).saturating_neg()))
            }
            BY_FAMILY => connected(message).map(Answer::Socket),
            _ => None,
        });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

fn connected(message: &[u8]) -> Option<Connected> {
    let message = message.first_chunk::<MESSAGE>()?;
    let family = match message[0] {
        2 => Family::Ipv4,
        10 => Family::Ipv6,
        _ => return None,
    };
    let id: [u8; ID] = *message[4..].first_chunk()?;
    let port = u16::from_be_bytes([id[2], id[3]]);
    let address: [u8; 16] = *id[20..].first_chunk()?;
    let address = match family {
        Family::Ipv4 => IpAddr::from([address[0], address[1], address[2], address[3]]),
        Family::Ipv6 => Ipv6Addr::from(address).to_canonical(),
    };
    // Two halves, the lower one first.
    let cookie = id[40..].first_chunk::<8>().map(|halves| {
        let half = |at: usize| u32::from_ne_bytes([halves[at], halves[at + 1], halves[at + 2], halves[at + 3]]);
        u64::from(half(4)) << 32 | u64::from(half(0))
    })?;
    let (peer, is_established) = (SocketAddr::new(address, port), message[1] == ESTABLISHED);
    Some(Connected { family, cookie, peer, is_established, id })
}

fn family_number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: u8, id: [u8; ID]) -> Vec<u8> {
        let mut bytes = (88_u32).to_ne_bytes().to_vec();
        bytes.extend(BY_FAMILY.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([family, ESTABLISHED, 0, 0]);
        bytes.extend(id);
        bytes.extend([0; 20]);
        bytes
    }

    #[test]
    fn a_listed_socket_is_named_to_the_kernel_as_it_named_it() {
        let mut id = [0; ID];
        id[..4].copy_from_slice(&[0x9c, 0x40, 0, 53]);
        id[20..24].copy_from_slice(&[10, 244, 1, 2]);
        id[40..48].copy_from_slice(&[7_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat());
        let [Answer::Socket(found)] = answers(&message(2, id))[..] else { panic!("one socket") };
        assert_eq!((found.peer, found.cookie), ("10.244.1.2:53".parse().unwrap(), 1 << 32 | 7));
        let request = destroy(&found, Protocol::Udp);
        assert_eq!(request.len(), 72);
        assert_eq!(&request[24..], &id);
        assert_eq!(&request[16..18], &[2, 17]);
    }

    #[test]
    fn ipv4_through_ipv6_is_ipv4() {
        let mut id = [0; ID];
        id[20..36].copy_from_slice(&"::ffff:10.244.1.2".parse::<Ipv6Addr>().unwrap().octets());
        let [Answer::Socket(found)] = answers(&message(10, id))[..] else { panic!("one socket") };
        assert_eq!((found.peer.ip(), found.family), ([10, 244, 1, 2].into(), Family::Ipv6));
    }

    #[test]
    fn broken_messages_end_the_reading() {
        let whole = message(2, [0; ID]);
        for end in 0..whole.len() {
            assert!(answers(&whole[..end]).is_empty(), "{end}");
        }
        assert!(answers(&[0; 64]).is_empty() || answers(&[0; 64]).len() < 8);
    }
}
