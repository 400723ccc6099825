//! Pure. Messages as bytes (RFC 4271, section 4).

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;

use super::{Family, UNICAST};

/// Length of the header that every message has.
pub const HEADER: usize = 19;
/// No message is longer (without RFC 8654, which is not offered).
pub const MOST: usize = 4096;
/// Stands for an AS number that needs four octets where there is room for two (RFC 6793).
pub const AS_TRANS: u16 = 23456;

const MARKER: [u8; 16] = [0xff; 16];
const VERSION: u8 = 4;
const CAPABILITIES: u8 = 2;
/// In place of a parameter's kind: lengths have two octets from here on (RFC 9072).
const EXTENDED: u8 = 255;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first one.
    Open(Open),
    /// Routes; of those that come in only the form is looked at.
    Update,
    /// Why the session ends.
    Notification(Notification),
    /// Still there.
    Keepalive,
    /// Send all routes of the family again; `None`: of one that is not spoken.
    RouteRefresh(Option<Family>),
}

/// What a speaker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// Its AS number.
    pub asn: u32,
    /// Seconds of silence after which it takes the other for dead; 0: never.
    pub hold_time_s: u16,
    /// Its identifier.
    pub id: Ipv4Addr,
    /// What it can.
    pub capabilities: Capabilities,
}

/// What a speaker can.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Families of routes. Nothing said means IPv4 alone.
    pub families: BTreeSet<Family>,
    /// AS numbers have four octets.
    pub four_octets: bool,
    /// Route refresh.
    pub refresh: bool,
    /// Graceful restart.
    pub restart: Option<GracefulRestart>,
}

/// RFC 4724, section 3.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GracefulRestart {
    /// The speaker has just restarted.
    pub restarted: bool,
    /// The session's end by a NOTIFICATION is a restart too (RFC 8538).
    pub notification: bool,
    /// For so many seconds after a break the routes are to be kept; at most 4095.
    pub time_s: u16,
    /// Families whose forwarding went on meanwhile.
    pub forwarding: BTreeSet<Family>,
    /// Families that take part.
    pub families: BTreeSet<Family>,
}

/// Why a session ends (RFC 4271, section 4.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The sort of error.
    pub code: u8,
    /// Which of them.
    pub subcode: u8,
    /// More of it.
    pub data: Vec<u8>,
}

/// Why bytes are no message. Each is what a NOTIFICATION tells the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes before a message.
    #[error("a message begins without its marker")]
    Marker,
    /// Shorter or longer than a message can be.
    #[error("a message of length {length}")]
    Length {
        /// As the header says.
        length: u16,
    },
    /// A kind that there is not.
    #[error("a message of kind {kind}")]
    Kind {
        /// Its number.
        kind: u8,
    },
    /// Not version 4.
    #[error("BGP version {version}")]
    Version {
        /// As it says.
        version: u8,
    },
    /// Not an address of a host.
    #[error("an identifier that is none")]
    Identifier,
    /// One or two seconds.
    #[error("a hold time of {hold_time_s} s")]
    HoldTime {
        /// As it says.
        hold_time_s: u16,
    },
    /// A parameter of an OPEN.
    #[error("a malformed parameter in an OPEN")]
    Parameter,
    /// An UPDATE whose parts do not fit its length.
    #[error("a malformed UPDATE")]
    Update,
}

impl DecodeError {
    /// What the peer is told.
    pub fn notification(self) -> Notification {
        let (code, subcode, data) = match self {
            DecodeError::Marker => (1, 1, vec![]),
            DecodeError::Length { length } => (1, 2, length.to_be_bytes().to_vec()),
            DecodeError::Kind { kind } => (1, 3, vec![kind]),
            DecodeError::Version { .. } => (2, 1, vec![0, VERSION]),
            DecodeError::Identifier => (2, 3, vec![]),
            DecodeError::HoldTime { .. } => (2, 6, vec![]),
            DecodeError::Parameter => (2, 0, vec![]),
            DecodeError::Update => (3, 1, vec![]),
        };
        Notification { code, subcode, data }
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.code, self.subcode) {
            (1, _) => "message header error",
            (2, 2) => "OPEN error: bad peer AS",
            (2, 5) => "OPEN error: authentication failure",
            (2, 6) => "OPEN error: unacceptable hold time",
            (2, 7) => "OPEN error: unsupported capability",
            (2, _) => "OPEN error",
            (3, _) => "UPDATE error",
            (4, _) => "hold timer expired",
            (5, _) => "finite state machine error",
            (6, 2) => "cease: administrative shutdown",
            (6, 3) => "cease: peer de-configured",
            (6, 4) => "cease: administrative reset",
            (6, 5) => "cease: connection rejected",
            (6, 7) => "cease: connection collision resolution",
            (6, 10) => "cease: BFD down",
            (6, _) => "cease",
            _ => "unknown error",
        };
        write!(f, "{what} ({}/{})", self.code, self.subcode)
    }
}

/// The next message in a buffer, and how many bytes it took. `None`: it is not whole yet.
///
/// # Errors
/// The bytes are no message.
pub fn decode(buffer: &[u8]) -> Result<Option<(Message, usize)>, DecodeError> {
    let seen = buffer.len().min(MARKER.len());
    if buffer[..seen] != MARKER[..seen] {
        return Err(DecodeError::Marker);
    }
    let Some(header) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
    let (length, kind) = (u16::from_be_bytes([header[16], header[17]]), header[18]);
    let least = match kind {
        1 => HEADER + 10,
        2 => HEADER + 4,
        3 => HEADER + 2,
        4 => HEADER,
        5 => HEADER + 4,
        _ => return Err(DecodeError::Kind { kind }),
    };
    let whole = usize::from(length);
    if whole < least || whole > MOST || (kind == 4 && whole != HEADER) {
        return Err(DecodeError::Length { length });
    }
    let Some(body) = buffer.get(HEADER..whole) else { return Ok(None) };
    let message = match kind {
        1 => Message::Open(open(body)?),
        2 => {
            check_update(body)?;
            Message::Update
        }
        3 => Message::Notification(Notification { code: body[0], subcode: body[1], data: body[2..].to_vec() }),
        4 => Message::Keepalive,
        _ => Message::RouteRefresh(Family::of(u16::from_be_bytes([body[0], body[1]]), body[3])),
    };
    Ok(Some((message, whole)))
}

/// A message's bytes, of its kind and body.
pub(super) fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = MARKER.to_vec();
    bytes.extend(((HEADER + body.len()) as u16).to_be_bytes());
    bytes.push(kind);
    bytes.extend(body);
    bytes
}

/// A KEEPALIVE.
pub fn keepalive() -> Vec<u8> {
    framed(4, &[])
}

impl Notification {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = vec![self.code, self.subcode];
        body.extend(self.data.iter().take(MOST - HEADER - 2));
        framed(3, &body)
    }
}

impl Open {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let short = u16::try_from(self.asn).unwrap_or(AS_TRANS);
        let mut body = vec![VERSION];
        body.extend(short.to_be_bytes());
        body.extend(self.hold_time_s.to_be_bytes());
        body.extend(self.id.octets());
        let mut capabilities = Vec::new();
        let mut capability = |code: u8, value: &[u8]| {
            capabilities.extend([code, value.len() as u8]);
            capabilities.extend(value);
        };
        for family in &self.capabilities.families {
            let [high, low] = family.afi().to_be_bytes();
            capability(1, &[high, low, 0, UNICAST]);
        }
        if self.capabilities.refresh {
            capability(2, &[]);
        }
        if let Some(restart) = &self.capabilities.restart {
            capability(64, &restart.encode());
        }
        if self.capabilities.four_octets {
            capability(65, &self.asn.to_be_bytes());
        }
        if capabilities.is_empty() {
            body.push(0);
        } else {
            body.extend([capabilities.len() as u8 + 2, CAPABILITIES, capabilities.len() as u8]);
            body.extend(capabilities);
        }
        framed(1, &body)
    }
}

impl GracefulRestart {
    fn encode(&self) -> Vec<u8> {
        let flags = if self.restarted { 0x8000 } else { 0 } | if self.notification { 0x4000 } else { 0 };
        let mut value = (flags | (self.time_s & 0x0fff)).to_be_bytes().to_vec();
        for family in &self.families {
            value.extend(family.afi().to_be_bytes());
            value.extend([UNICAST, if self.forwarding.contains(family) { 0x80 } else { 0 }]);
        }
        value
    }

    fn decode(value: &[u8]) -> Option<GracefulRestart> {
        let (head, tuples) = value.split_first_chunk::<2>()?;
        let head = u16::from_be_bytes(*head);
        let mut restart = GracefulRestart {
            restarted: head & 0x8000 != 0,
            notification: head & 0x4000 != 0,
            time_s: head & 0x0fff,
            ..GracefulRestart::default()
        };
        for tuple in tuples.chunks_exact(4) {
            if let Some(family) = Family::of(u16::from_be_bytes([tuple[0], tuple[1]]), tuple[2]) {
                restart.families.insert(family);
                if tuple[3] & 0x80 != 0 {
                    restart.forwarding.insert(family);
                }
            }
        }
        Some(restart)
    }
}

fn open(body: &[u8]) -> Result<Open, DecodeError> {
    let (fixed, mut rest) = body.split_first_chunk::<10>().ok_or(DecodeError::Parameter)?;
    if fixed[0] != VERSION {
        return Err(DecodeError::Version { version: fixed[0] });
    }
    let id = Ipv4Addr::new(fixed[5], fixed[6], fixed[7], fixed[8]);
    if id.is_unspecified() {
        return Err(DecodeError::Identifier);
    }
    let hold_time_s = u16::from_be_bytes([fixed[3], fixed[4]]);
    if matches!(hold_time_s, 1 | 2) {
        return Err(DecodeError::HoldTime { hold_time_s });
    }
    let mut open = Open {
        asn: u32::from(u16::from_be_bytes([fixed[1], fixed[2]])),
        hold_time_s,
        id,
        capabilities: Capabilities::default(),
    };
    let mut length = usize::from(fixed[9]);
    let extended = fixed[9] == EXTENDED && rest.first() == Some(&EXTENDED);
    if extended {
        let [_, high, low, after @ ..] = rest else { return Err(DecodeError::Parameter) };
        (length, rest) = (usize::from(u16::from_be_bytes([*high, *low])), after);
    }
    if rest.len() != length {
        return Err(DecodeError::Parameter);
    }
    while !rest.is_empty() {
        let (kind, value, after) = parameter(rest, extended).ok_or(DecodeError::Parameter)?;
        if kind == CAPABILITIES {
            read_capabilities(value, &mut open).ok_or(DecodeError::Parameter)?;
        }
        rest = after;
    }
    Ok(open)
}

fn parameter(bytes: &[u8], extended: bool) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (length, rest) = if extended {
        let (length, rest) = rest.split_first_chunk::<2>()?;
        (usize::from(u16::from_be_bytes(*length)), rest)
    } else {
        let (length, rest) = rest.split_first()?;
        (usize::from(*length), rest)
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((*kind, value, rest))
}

fn read_capabilities(mut bytes: &[u8], open: &mut Open) -> Option<()> {
    while !bytes.is_empty() {
        let (code, value, rest) = parameter(bytes, false)?;
        match (code, value) {
            (1, [high, low, _, safi]) => {
                open.capabilities.families.extend(Family::of(u16::from_be_bytes([*high, *low]), *safi));
            }
            (2, []) => open.capabilities.refresh = true,
            (64, value) => open.capabilities.restart = GracefulRestart::decode(value),
            (65, [a, b, c, d]) => {
                open.capabilities.four_octets = true;
                open.asn = u32::from_be_bytes([*a, *b, *c, *d]);
            }
            _ => {}
        }
        bytes = rest;
    }
    Some(())
}

/// Whether the parts of an UPDATE fit its length. What they say does not matter here.
fn check_update(body: &[u8]) -> Result<(), DecodeError> {
    let part = |bytes: &[u8]| -> Option<usize> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        (rest.len() >= length).then_some(length + 2)
    };
    let withdrawn = part(body).ok_or(DecodeError::Update)?;
    part(&body[withdrawn..]).ok_or(DecodeError::Update)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own() -> Open {
        Open {
            asn: 4_200_000_001,
            hold_time_s: 90,
            id: Ipv4Addr::new(172, 18, 0, 11),
            capabilities: Capabilities {
                families: Family::ALL.into(),
                four_octets: true,
                refresh: true,
                restart: Some(GracefulRestart {
                    notification: true,
                    time_s: 120,
                    families: Family::ALL.into(),
                    ..GracefulRestart::default()
                }),
            },
        }
    }

    #[test]
    fn an_open_has_the_layout_of_the_rfc() {
        let open = Open {
            asn: 64512,
            hold_time_s: 90,
            id: Ipv4Addr::new(10, 0, 0, 1),
            capabilities: Capabilities {
                families: [Family::Ipv4].into(),
                four_octets: true,
                ..Capabilities::default()
            },
        };
        let mut expected = vec![0xff; 16];
        expected.extend([0, 43, 1, 4, 0xfc, 0, 0, 90, 10, 0, 0, 1, 14, 2, 12]);
        expected.extend([1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfc, 0]);
        assert_eq!(open.encode(), expected);
    }

    #[test]
    fn what_is_written_reads_back() {
        let bytes = own().encode();
        assert_eq!(decode(&bytes), Ok(Some((Message::Open(own()), bytes.len()))));
        assert_eq!(decode(&keepalive()), Ok(Some((Message::Keepalive, 19))));
        let why = Notification { code: 6, subcode: 2, data: vec![1, 2] };
        assert_eq!(decode(&why.encode()), Ok(Some((Message::Notification(why), 23))));
    }

    #[test]
    fn a_message_that_is_not_whole_waits() {
        let bytes = own().encode();
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), Ok(None), "{length}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_as_the_rfc_has_it() {
        let open = own().encode();
        let spoiled = |at: usize, value: u8| {
            let mut bytes = open.clone();
            bytes[at] = value;
            let error = decode(&bytes).unwrap_err();
            let told = error.notification();
            (told.code, told.subcode)
        };
        assert_eq!(spoiled(3, 0), (1, 1));
        assert_eq!(spoiled(18, 9), (1, 3));
        assert_eq!(spoiled(17, 18), (1, 2));
        assert_eq!(spoiled(16, 0x7f), (1, 2));
        assert_eq!(spoiled(19, 3), (2, 1));
        assert_eq!(spoiled(28, 200), (2, 0));
        let mut short_hold = own();
        short_hold.hold_time_s = 2;
        assert_eq!(decode(&short_hold.encode()), Err(DecodeError::HoldTime { hold_time_s: 2 }));
        assert_eq!(decode(&framed(2, &[0, 9, 0, 0])), Err(DecodeError::Update));
        assert_eq!(decode(&framed(2, &[0, 0, 0, 1])), Err(DecodeError::Update));
    }

    #[test]
    fn parameters_with_long_lengths_are_read() {
        let mut body = vec![4, 0xfc, 0, 0, 90, 10, 0, 0, 1, 255, 255, 0, 9, 2, 0, 6];
        body.extend([1, 4, 0, 2, 0, 1]);
        let Ok(Some((Message::Open(open), _))) = decode(&framed(1, &body)) else { panic!() };
        assert_eq!(open.capabilities.families, [Family::Ipv6].into());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0u8..7) {
            let _ = decode(&bytes);
            let _ = decode(&framed(kind, &bytes));
        }

        #[test]
        fn spoiled_opens_are_read_or_refused(spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
            let mut bytes = own().encode();
            for (at, value) in spoils {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _ = decode(&bytes);
        }
    }
}
