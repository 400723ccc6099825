//! Pure. BGP-4 for a speaker that only announces: its own routes go out, what comes in is checked and thrown away.
//!
//! RFC 4271 with multiprotocol (4760), four-octet AS numbers (6793), capabilities (5492), route refresh (2918), communities
//! (1997), large communities (8092) and graceful restart (4724, with the N-bit of 8538).
//!
//! ```text
//! bytes from the peer ──▶ session ──▶ bytes for the peer, events
//!                            ▲
//! routes that are wanted ────┘
//! ```

pub mod message;
pub mod session;
pub mod update;

pub use message::{Capabilities, DecodeError, Message, Notification, Open};
pub use session::{Config, Down, Event, PeerAs, Session, State};
pub use update::{GRACEFUL_SHUTDOWN, Prefix, Route};

/// An address family of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 unicast.
    Ipv4,
    /// IPv6 unicast.
    Ipv6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    fn afi(self) -> u16 {
        match self {
            Family::Ipv4 => 1,
            Family::Ipv6 => 2,
        }
    }

    fn of(afi: u16, safi: u8) -> Option<Family> {
        match (afi, safi) {
            (1, UNICAST) => Some(Family::Ipv4),
            (2, UNICAST) => Some(Family::Ipv6),
            _ => None,
        }
    }
}

const UNICAST: u8 = 1;
