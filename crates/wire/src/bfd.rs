//! Pure. BFD (RFC 5880): a peer that falls silent is found in a fraction of a second. Asynchronous mode, without echo and
//! authentication.
//!
//! Times are spans since any fixed moment.

use std::time::Duration;

/// Length of a packet without authentication.
pub const LENGTH: usize = 24;
/// The port of sessions over one hop (RFC 5881).
pub const SINGLE_HOP: u16 = 3784;
/// The port of sessions over several hops (RFC 5883).
pub const MULTI_HOP: u16 = 4784;

/// A session that does not stand sends no faster (RFC 5880, section 6.8.3).
const SLOW: Duration = Duration::from_secs(1);
const VERSION: u8 = 1;
const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const AUTHENTICATION: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

/// How far a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Held down on purpose.
    AdminDown,
    /// Nothing is heard, or the peer hears nothing.
    Down,
    /// The peer is heard.
    Init,
    /// Both hear each other.
    Up,
}

/// Why a session went down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Diagnostic {
    /// No reason.
    None,
    /// Nothing was heard for too long.
    Expired,
    /// The peer said that it is down.
    PeerDown,
    /// On purpose.
    AdminDown,
    /// Another of RFC 5880's.
    Other(u8),
}

/// A control packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The sender's state.
    pub state: State,
    /// Why it went down last.
    pub diagnostic: Diagnostic,
    /// An answer is asked for.
    pub poll: bool,
    /// This is that answer.
    pub is_final: bool,
    /// The sender asks the receiver not to send.
    pub demand: bool,
    /// After so many missing packets the sender is gone. Never 0.
    pub multiplier: u8,
    /// The sender's number of the session. Never 0.
    pub mine: u32,
    /// The receiver's, as far as the sender knows it; else 0.
    pub yours: u32,
    /// Microseconds between two packets that the sender would like to send.
    pub desired_tx_us: u32,
    /// Microseconds between two packets that it can take; 0: it wants none.
    pub required_rx_us: u32,
}

/// Why bytes are no packet (RFC 5880, section 6.8.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short, or shorter than it says.
    #[error("the packet breaks off")]
    Short,
    /// Not version 1.
    #[error("BFD version {version}")]
    Version {
        /// As it says.
        version: u8,
    },
    /// A multiplier of 0, no session, more than one receiver.
    #[error("a packet that nobody may send")]
    Malformed,
    /// Authentication, which is not configured.
    #[error("a packet with authentication")]
    Authenticated,
}

impl Packet {
    /// Reads a datagram.
    ///
    /// # Errors
    /// It is to be thrown away.
    pub fn decode(bytes: &[u8]) -> Result<Packet, DecodeError> {
        let fixed: &[u8; LENGTH] = bytes.first_chunk().ok_or(DecodeError::Short)?;
        if fixed[0] >> 5 != VERSION {
            return Err(DecodeError::Version { version: fixed[0] >> 5 });
        }
        let length = usize::from(fixed[3]);
        if length < LENGTH || length > bytes.len() {
            return Err(DecodeError::Short);
        }
        if fixed[1] & AUTHENTICATION != 0 {
            return Err(DecodeError::Authenticated);
        }
        let number = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let state = match fixed[1] >> 6 {
            0 => State::AdminDown,
            1 => State::Down,
            2 => State::Init,
            _ => State::Up,
        };
        let diagnostic = match fixed[0] & 0x1f {
            0 => Diagnostic::None,
            1 => Diagnostic::Expired,
            3 => Diagnostic::PeerDown,
            7 => Diagnostic::AdminDown,
            other => Diagnostic::Other(other),
        };
        let packet = Packet {
            state,
            diagnostic,
            poll: fixed[1] & POLL != 0,
            is_final: fixed[1] & FINAL != 0,
            demand: fixed[1] & DEMAND != 0,
            multiplier: fixed[2],
            mine: number(4),
            yours: number(8),
            desired_tx_us: number(12),
            required_rx_us: number(16),
        };
        let lost = packet.yours == 0 && matches!(state, State::Init | State::Up);
        if packet.multiplier == 0 || packet.mine == 0 || fixed[1] & MULTIPOINT != 0 || lost {
            return Err(DecodeError::Malformed);
        }
        Ok(packet)
    }

    /// The datagram.
    pub fn encode(&self) -> [u8; LENGTH] {
        let diagnostic = match self.diagnostic {
            Diagnostic::None => 0,
            Diagnostic::Expired => 1,
            Diagnostic::PeerDown => 3,
            Diagnostic::AdminDown => 7,
            Diagnostic::Other(other) => other & 0x1f,
        };
        let state = match self.state {
            State::AdminDown => 0,
            State::Down => 1,
            State::Init => 2,
            State::Up => 3,
        };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let mut bytes = [0; LENGTH];
        bytes[0] = VERSION << 5 | diagnostic;
        bytes[1] = state << 6 | flag(self.poll, POLL) | flag(self.is_final, FINAL) | flag(self.demand, DEMAND);
        bytes[2] = self.multiplier;
        bytes[3] = LENGTH as u8;
        bytes[4..8].copy_from_slice(&self.mine.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.yours.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.desired_tx_us.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.required_rx_us.to_be_bytes());
        bytes
    }
}

/// How fast a session is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Between two packets that we send.
    pub transmit: Duration,
    /// Between two packets that we can take.
    pub receive: Duration,
    /// After so many missing packets the peer is gone.
    pub multiplier: u8,
    /// Say nothing before the peer does.
    pub passive: bool,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    profile: Profile,
    state: State,
    diagnostic: Diagnostic,
    mine: u32,
    heard: Option<Heard>,
    polling: bool,
    send_at: Option<Duration>,
}

/// What was last heard of the peer.
#[derive(Debug, Clone, Copy)]
struct Heard {
    packet: Packet,
    at: Duration,
}

impl Session {
    /// One that is down. `mine` tells this node's sessions apart and is not 0.
    pub fn new(profile: Profile, mine: u32, now: Duration) -> Session {
        Session {
            profile,
            state: State::Down,
            diagnostic: Diagnostic::None,
            mine: mine.max(1),
            heard: None,
            polling: false,
            send_at: (!profile.passive).then_some(now),
        }
    }

    /// How far it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it went down last.
    pub fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    /// Whether the peer's last word was that it is down on purpose: that says nothing about the way to it (RFC 5882, section
    /// 3.2).
    pub fn peer_ended_it(&self) -> bool {
        self.heard.is_some_and(|heard| heard.packet.state == State::AdminDown)
    }

    /// Takes a packet in; gives one back that is to be sent at once.
    pub fn receive(&mut self, packet: &Packet, now: Duration) -> Option<Packet> {
        if packet.yours != 0 && packet.yours != self.mine {
            return None;
        }
        self.heard = Some(Heard { packet: *packet, at: now });
        self.polling &= !packet.is_final;
        let before = self.state;
        self.state = match (self.state, packet.state) {
            (State::AdminDown, _) => return None,
            (State::Down, State::Down) => State::Init,
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => State::Up,
            (State::Init | State::Up, State::AdminDown) | (State::Up, State::Down) => {
                self.diagnostic = Diagnostic::PeerDown;
                State::Down
            }
            (state, _) => state,
        };
        if self.state == State::Up && before != State::Up {
            // The intervals of a session that stands are not those of one that does not.
            (self.polling, self.diagnostic) = (true, Diagnostic::None);
        }
        if self.state != before || self.send_at.is_none() {
            self.send_at = Some(now);
        }
        packet.poll.then(|| Packet { poll: false, is_final: true, ..self.packet() })
    }

    /// The time has come that [`Session::deadline`] named: gives a packet that is to be sent. `jitter`: any number.
    pub fn tick(&mut self, now: Duration, jitter: u8) -> Option<Packet> {
        if self.expires().is_some_and(|at| at <= now) {
            (self.state, self.diagnostic, self.heard, self.polling) = (State::Down, Diagnostic::Expired, None, false);
            self.send_at = Some(now);
        }
        if self.send_at.is_none_or(|at| at > now) {
            return None;
        }
        self.send_at = self.interval().map(|interval| {
            // A quarter less at most, at least a tenth with a multiplier of one (section 6.8.7).
            let (least, span) = if self.profile.multiplier == 1 { (0.75, 0.15) } else { (0.75, 0.25) };
            now + interval.mul_f64(least + span * f64::from(jitter) / 255.0)
        });
        Some(self.packet())
    }

    /// When [`Session::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.expires().into_iter().chain(self.send_at).min()
    }

    /// Holds the session down on purpose: the peer is not to take it for a failure. Gives the packet that says so.
    pub fn admin_down(&mut self) -> Packet {
        (self.state, self.diagnostic, self.polling) = (State::AdminDown, Diagnostic::AdminDown, false);
        self.packet()
    }

    /// When the peer is gone, if nothing is heard until then.
    fn expires(&self) -> Option<Duration> {
        let heard = self.heard.filter(|_| matches!(self.state, State::Init | State::Up))?;
        let between = self.profile.receive.max(Duration::from_micros(heard.packet.desired_tx_us.into()));
        Some(heard.at + between * u32::from(heard.packet.multiplier))
    }

    /// Between two of our packets; `None`: the peer wants none.
    fn interval(&self) -> Option<Duration> {
        let own = self.desired();
        match self.heard {
            Some(heard) if heard.packet.required_rx_us == 0 => None,
            Some(heard) => Some(own.max(Duration::from_micros(heard.packet.required_rx_us.into()))),
            None => Some(own),
        }
    }

    fn desired(&self) -> Duration {
        if self.state == State::Up { self.profile.transmit } else { self.profile.transmit.max(SLOW) }
    }

    fn packet(&self) -> Packet {
        let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        Packet {
            state: self.state,
            diagnostic: self.diagnostic,
            poll: self.polling,
            is_final: false,
            demand: false,
            multiplier: self.profile.multiplier.max(1),
            mine: self.mine,
            yours: self.heard.map_or(0, |heard| heard.packet.mine),
            desired_tx_us: micros(self.desired()),
            required_rx_us: micros(self.profile.receive),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAST: Profile = Profile {
        transmit: Duration::from_millis(100),
        receive: Duration::from_millis(100),
        multiplier: 3,
        passive: false,
    };

    /// Two sessions on one link; `cut` throws packets away.
    struct Link {
        ends: [Session; 2],
        now: Duration,
        cut: bool,
    }

    impl Link {
        fn new() -> Link {
            let now = Duration::from_secs(5);
            Link { ends: [Session::new(FAST, 1, now), Session::new(FAST, 2, now)], now, cut: false }
        }

        /// Time passes, and what is due is sent.
        fn pass(&mut self, span: Duration) {
            let end = self.now + span;
            while let Some(next) = self.ends.iter().filter_map(Session::deadline).min().filter(|next| *next <= end) {
                self.now = self.now.max(next);
                for one in 0..2 {
                    let mut flying = self.ends[one].tick(self.now, 200);
                    let mut to = 1 - one;
                    while let Some(packet) = flying.filter(|_| !self.cut) {
                        let bytes = packet.encode();
                        flying = self.ends[to].receive(&Packet::decode(&bytes).unwrap(), self.now);
                        to = 1 - to;
                    }
                }
            }
            self.now = end;
        }

        fn states(&self) -> [State; 2] {
            [self.ends[0].state(), self.ends[1].state()]
        }
    }

    #[test]
    fn a_packet_has_the_layout_of_the_rfc() {
        let packet = Session::new(FAST, 0x0102_0304, Duration::ZERO).packet();
        let expected = [0x20, 0x40, 3, 24, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 1, 0x86, 0xa0, 0, 0, 0, 0];
        assert_eq!(packet.encode(), expected);
        assert_eq!(Packet::decode(&expected), Ok(packet));
    }

    #[test]
    fn two_ends_come_up_and_a_cut_is_found_within_the_detection_time() {
        let mut link = Link::new();
        link.pass(Duration::from_secs(3));
        assert_eq!(link.states(), [State::Up; 2]);
        link.pass(Duration::from_secs(10));
        assert_eq!(link.states(), [State::Up; 2], "it stays up");
        link.cut = true;
        link.pass(Duration::from_millis(301));
        assert_eq!(link.states(), [State::Down; 2]);
        assert_eq!(link.ends[0].diagnostic(), Diagnostic::Expired);
        link.cut = false;
        link.pass(Duration::from_secs(3));
        assert_eq!(link.states(), [State::Up; 2]);
    }

    #[test]
    fn an_end_that_is_held_down_is_no_failure() {
        let mut link = Link::new();
        link.pass(Duration::from_secs(3));
        let last = link.ends[0].admin_down();
        link.ends[1].receive(&last, link.now);
        assert_eq!(link.ends[1].diagnostic(), Diagnostic::PeerDown);
        assert!(link.ends[1].peer_ended_it() && !link.ends[0].peer_ended_it());
        assert_eq!(last.diagnostic, Diagnostic::AdminDown);
    }

    #[test]
    fn a_passive_end_waits_for_the_other() {
        let passive = Session::new(Profile { passive: true, ..FAST }, 1, Duration::ZERO);
        assert_eq!(passive.deadline(), None);
    }

    #[test]
    fn packets_that_nobody_may_send_are_refused() {
        let good = Session::new(FAST, 7, Duration::ZERO).packet().encode();
        for (at, value, error) in [
            (0, 0x40, DecodeError::Version { version: 2 }),
            (1, 0x40 | AUTHENTICATION, DecodeError::Authenticated),
            (1, 0x40 | MULTIPOINT, DecodeError::Malformed),
            (1, 0xc0, DecodeError::Malformed),
            (2, 0, DecodeError::Malformed),
            (3, 25, DecodeError::Short),
            (3, 23, DecodeError::Short),
            (7, 0, DecodeError::Malformed),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Packet::decode(&bytes), Err(error), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_what_is_read_is_written_back(bytes in prop::collection::vec(any::<u8>(), 0..40), head in 0x20u8..0x40) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = head;
            }
            if let Some(length) = bytes.get_mut(3) {
                *length = 24;
            }
            if let Ok(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
            }
        }

        /// Whatever comes in, a session answers within its rules and asks for a time that is not past for ever.
        #[test]
        fn no_packet_breaks_a_session(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 24), 0..30)) {
            let mut session = Session::new(FAST, 1, Duration::ZERO);
            let mut now = Duration::ZERO;
            for mut bytes in packets {
                (bytes[0], bytes[3]) = (0x20, 24);
                bytes[8..12].copy_from_slice(&1u32.to_be_bytes());
                if let Ok(packet) = Packet::decode(&bytes) {
                    session.receive(&packet, now);
                }
                now += Duration::from_millis(50);
                session.tick(now, 7);
                prop_assert!(session.deadline().is_none_or(|next| next > now));
            }
        }
    }
}
