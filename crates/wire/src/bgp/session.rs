//! Pure. One BGP session over one connection, from the first OPEN to its end (RFC 4271, section 8). When to connect again is the
//! business of whoever holds the connection.
//!
//! Times are spans since any fixed moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::Family;
use super::message::{Capabilities, GracefulRestart, Message, Notification, Open, decode, keepalive};
use super::update::{Dialect, Prefix, Route, announce, end_of_rib, withdraw};

/// Before the peer's OPEN said how long it may be silent (RFC 4271, section 8.2.2).
const FIRST_HOLD: Duration = Duration::from_secs(240);

/// Which AS the peer must be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAs {
    /// This one.
    Number(u32),
    /// The own.
    Internal,
    /// Any but the own.
    External,
}

/// What a session is held with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The own AS number.
    pub asn: u32,
    /// The peer's.
    pub peer: PeerAs,
    /// The own identifier.
    pub id: Ipv4Addr,
    /// After so long a silence the peer is dead; at least 3 s, or zero: never.
    pub hold_time: Duration,
    /// How often to say that we live; `None`: three times per hold time.
    pub keepalive: Option<Duration>,
    /// Where packets are to be sent, by family: the families that are spoken.
    pub next_hops: BTreeMap<Family, IpAddr>,
    /// For so many seconds the peer is to keep our routes when the connection breaks.
    pub graceful_restart_s: Option<u16>,
    /// This process has just started, and its kernel forwarded meanwhile.
    pub restarted: bool,
}

/// How far the session is, as RFC 4271 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Our OPEN is sent.
    OpenSent,
    /// The peer's OPEN is here and fine.
    OpenConfirm,
    /// Routes may be told.
    Established,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session stands, with these families of routes.
    Established(BTreeSet<Family>),
    /// The peer asks for all routes again, and gets them.
    Refreshed(Family),
}

/// Why the session is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Down {
    /// The peer ended it.
    #[error("the peer ended the session: {0}")]
    ByPeer(Notification),
    /// We did: the NOTIFICATION is in the output.
    #[error("{why}")]
    ByUs {
        /// For people.
        why: String,
    },
}

/// A session.
#[derive(Debug)]
pub struct Session {
    config: Config,
    state: State,
    hold: Duration,
    every: Option<Duration>,
    heard_at: Duration,
    said_at: Duration,
    input: Vec<u8>,
    output: Vec<u8>,
    dialect: Dialect,
    /// Those that both speak.
    families: BTreeSet<Family>,
    wanted: BTreeMap<Prefix, Route>,
    told: BTreeMap<Prefix, Route>,
    peer: Option<(Ipv4Addr, u32)>,
    updates: u64,
}

impl Session {
    /// A connection was made: the OPEN is in the output.
    pub fn new(config: Config, now: Duration) -> Session {
        let families: BTreeSet<Family> = config.next_hops.keys().copied().collect();
        let restart = config.graceful_restart_s.map(|time_s| GracefulRestart {
            restarted: config.restarted,
            notification: true,
            time_s: time_s.min(4095),
            forwarding: families.clone(),
            families: families.clone(),
        });
        let open = Open {
            asn: config.asn,
            hold_time_s: u16::try_from(config.hold_time.as_secs()).unwrap_or(u16::MAX),
            id: config.id,
            capabilities: Capabilities { families, four_octets: true, refresh: true, restart },
        };
        Session {
            dialect: Dialect {
                asn: config.asn,
                internal: false,
                four_octets: false,
                next_hops: config.next_hops.clone(),
            },
            config,
            state: State::OpenSent,
            hold: FIRST_HOLD,
            every: None,
            heard_at: now,
            said_at: now,
            input: Vec::new(),
            output: open.encode(),
            families: BTreeSet::new(),
            wanted: BTreeMap::new(),
            told: BTreeMap::new(),
            peer: None,
            updates: 0,
        }
    }

    /// Of two connections with one peer, whether the one that this speaker opened stays: it does if its identifier is the
    /// higher one, or its AS number, if the identifiers are the same (RFC 4271, section 6.8; RFC 6286). `None`: the peer's are
    /// not known yet.
    pub fn own_connection_stays(&self) -> Option<bool> {
        let (id, asn) = self.peer?;
        Some((u32::from(self.config.id), self.config.asn) > (u32::from(id), asn))
    }

    /// How many UPDATEs were made.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// How many routes are wanted.
    pub fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// How far it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// What the peer has been told.
    pub fn told(&self) -> &BTreeMap<Prefix, Route> {
        &self.told
    }

    /// Bytes for the peer; they are taken away.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Bytes from the peer.
    ///
    /// # Errors
    /// The session is over.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<Vec<Event>, Down> {
        self.input.extend(bytes);
        let mut events = Vec::new();
        loop {
            let (message, length) = match decode(&self.input) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(events),
                Err(error) => return Err(self.end(error.notification(), error.to_string())),
            };
            self.input.drain(..length);
            self.heard_at = now;
            events.extend(self.handle(message, now)?);
        }
    }

    /// The time has come that [`Session::deadline`] named.
    ///
    /// # Errors
    /// The peer was silent for too long.
    pub fn tick(&mut self, now: Duration) -> Result<(), Down> {
        if !self.hold.is_zero() && now >= self.heard_at + self.hold {
            let why = format!("the peer was silent for {} s (hold time)", self.hold.as_secs());
            return Err(self.end(Notification { code: 4, subcode: 0, data: vec![] }, why));
        }
        if self.every.is_some_and(|every| now >= self.said_at + every) {
            self.say(&keepalive(), now);
        }
        Ok(())
    }

    /// When [`Session::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        let hold = (!self.hold.is_zero()).then(|| self.heard_at + self.hold);
        let next = self.every.map(|every| self.said_at + every);
        hold.into_iter().chain(next).min()
    }

    /// These routes are to be known to the peer, and no others: what differs is told.
    pub fn want(&mut self, routes: BTreeMap<Prefix, Route>, now: Duration) {
        self.wanted = routes;
        self.tell_difference(now);
    }

    /// Ends the session: a NOTIFICATION goes out. `subcode` of Cease (RFC 4486).
    pub fn cease(&mut self, subcode: u8) {
        let told = Notification { code: 6, subcode, data: vec![] };
        self.output.extend(told.encode());
    }

    fn handle(&mut self, message: Message, now: Duration) -> Result<Option<Event>, Down> {
        match (self.state, message) {
            (_, Message::Notification(why)) => Err(Down::ByPeer(why)),
            (State::OpenSent, Message::Open(open)) => self.opened(open, now).map(|()| None),
            (State::OpenConfirm, Message::Keepalive) => {
                self.state = State::Established;
                self.tell_difference(now);
                for family in self.families.clone() {
                    self.say(&end_of_rib(family), now);
                }
                Ok(Some(Event::Established(self.families.clone())))
            }
            (State::Established, Message::Keepalive | Message::Update) => Ok(None),
            (State::Established, Message::RouteRefresh(family)) => {
                Ok(family.and_then(|family| self.refresh(family, now)))
            }
            (state, _) => {
                let subcode = match state {
                    State::OpenSent => 1,
                    State::OpenConfirm => 2,
                    State::Established => 3,
                };
                let why = format!("the peer sent something that does not belong into state {state:?}");
                Err(self.end(Notification { code: 5, subcode, data: vec![] }, why))
            }
        }
    }

    fn opened(&mut self, open: Open, now: Duration) -> Result<(), Down> {
        self.peer = Some((open.id, open.asn));
        let internal = open.asn == self.config.asn;
        let fits = match self.config.peer {
            PeerAs::Number(asn) => open.asn == asn,
            PeerAs::Internal => internal,
            PeerAs::External => !internal,
        };
        if !fits {
            let why = format!("the peer is of AS {}, not of the configured one", open.asn);
            return Err(self.end(Notification { code: 2, subcode: 2, data: vec![] }, why));
        }
        if internal && open.id == self.config.id {
            let why = format!("the peer has the same identifier, {}", open.id);
            return Err(self.end(Notification { code: 2, subcode: 3, data: vec![] }, why));
        }
        let theirs = Duration::from_secs(open.hold_time_s.into());
        self.hold = self.config.hold_time.min(theirs);
        let third = self.hold / 3;
        self.every = (!self.hold.is_zero()).then(|| self.config.keepalive.map_or(third, |own| own.min(third)));
        (self.dialect.internal, self.dialect.four_octets) = (internal, open.capabilities.four_octets);
        let mut spoken = open.capabilities.families;
        if spoken.is_empty() {
            spoken.insert(Family::Ipv4);
        }
        self.families = self.config.next_hops.keys().copied().filter(|family| spoken.contains(family)).collect();
        if self.families.is_empty() {
            let why = "the peer speaks none of our address families".to_owned();
            return Err(self.end(Notification { code: 2, subcode: 7, data: vec![] }, why));
        }
        self.state = State::OpenConfirm;
        self.say(&keepalive(), now);
        Ok(())
    }

    fn refresh(&mut self, family: Family, now: Duration) -> Option<Event> {
        if !self.families.contains(&family) {
            return None;
        }
        self.told.retain(|prefix, _| prefix.family() != family);
        self.tell_difference(now);
        Some(Event::Refreshed(family))
    }

    fn tell_difference(&mut self, now: Duration) {
        if self.state != State::Established {
            return;
        }
        for family in self.families.clone() {
            let gone: Vec<Prefix> = self
                .told
                .keys()
                .filter(|prefix| prefix.family() == family && !self.wanted.contains_key(*prefix))
                .copied()
                .collect();
            let messages = withdraw(family, &gone);
            self.updates += messages.len() as u64;
            messages.iter().for_each(|message| self.say(message, now));
            let mut new: BTreeMap<&Route, Vec<Prefix>> = BTreeMap::new();
            for (prefix, route) in self.wanted.iter().filter(|(prefix, _)| prefix.family() == family) {
                if self.told.get(prefix) != Some(route) {
                    new.entry(route).or_default().push(*prefix);
                }
            }
            let messages: Vec<Vec<u8>> =
                new.iter().flat_map(|(route, prefixes)| announce(&self.dialect, route, family, prefixes)).collect();
            self.updates += messages.len() as u64;
            messages.iter().for_each(|message| self.say(message, now));
        }
        self.told = self
            .wanted
            .iter()
            .filter(|(prefix, _)| self.families.contains(&prefix.family()))
            .map(|(prefix, route)| (*prefix, route.clone()))
            .collect();
    }

    fn say(&mut self, message: &[u8], now: Duration) {
        self.output.extend(message);
        self.said_at = now;
    }

    fn end(&mut self, told: Notification, why: String) -> Down {
        self.output.extend(told.encode());
        Down::ByUs { why }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bgp::message::DecodeError;

    const START: Duration = Duration::from_secs(1000);

    fn config() -> Config {
        Config {
            asn: 64512,
            peer: PeerAs::Number(64513),
            id: Ipv4Addr::new(172, 18, 0, 11),
            hold_time: Duration::from_secs(90),
            keepalive: None,
            next_hops: [
                (Family::Ipv4, "172.18.0.11".parse().unwrap()),
                (Family::Ipv6, "fd00:172:18::11".parse().unwrap()),
            ]
            .into(),
            graceful_restart_s: None,
            restarted: false,
        }
    }

    fn peer(asn: u32, hold_time_s: u16) -> Vec<u8> {
        let capabilities = Capabilities { families: Family::ALL.into(), four_octets: true, ..Capabilities::default() };
        Open { asn, hold_time_s, id: Ipv4Addr::new(172, 18, 0, 1), capabilities }.encode()
    }

    fn established(config: Config) -> Session {
        let mut session = Session::new(config, START);
        session.receive(&peer(64513, 30), START).unwrap();
        let events = session.receive(&keepalive(), START).unwrap();
        assert_eq!(events, [Event::Established(Family::ALL.into())]);
        session.take_output();
        session
    }

    /// The messages of an output, the UPDATEs as they are.
    fn messages(mut bytes: &[u8]) -> Vec<Message> {
        let mut all = Vec::new();
        while let Some((message, length)) = decode(bytes).unwrap() {
            all.push(message);
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty());
        all
    }

    fn routes(addresses: &[&str]) -> BTreeMap<Prefix, Route> {
        addresses.iter().map(|address| (Prefix::new(address.parse().unwrap(), 128), Route::default())).collect()
    }

    #[test]
    fn a_session_opens_and_tells_its_routes_and_their_end() {
        let mut session = Session::new(config(), START);
        assert!(matches!(messages(&session.take_output())[..], [Message::Open(_)]));
        session.want(routes(&["10.0.0.1", "fd00::1"]), START);
        assert_eq!(session.take_output(), []);
        session.receive(&peer(64513, 30), START).unwrap();
        assert_eq!(messages(&session.take_output()), [Message::Keepalive]);
        session.receive(&keepalive(), START).unwrap();
        let output = session.take_output();
        // A route and an end of each family.
        assert_eq!(messages(&output), vec![Message::Update; 4]);
        assert!(output.ends_with(&end_of_rib(Family::Ipv6)));
        session.want(routes(&["10.0.0.1", "10.0.0.2"]), START);
        assert_eq!(messages(&session.take_output()), vec![Message::Update; 2], "one more, one less");
        session.want(routes(&["10.0.0.1", "10.0.0.2"]), START);
        assert_eq!(session.take_output(), []);
    }

    #[test]
    fn the_shorter_hold_time_counts_and_is_enforced() {
        let mut session = established(config());
        assert_eq!(session.deadline(), Some(START + Duration::from_secs(10)));
        session.tick(START + Duration::from_secs(10)).unwrap();
        assert_eq!(messages(&session.take_output()), [Message::Keepalive]);
        session.tick(START + Duration::from_secs(29)).unwrap();
        session.take_output();
        let down = session.tick(START + Duration::from_secs(30)).unwrap_err();
        assert!(down.to_string().contains("silent for 30 s"), "{down}");
        let told = Notification { code: 4, subcode: 0, data: vec![] };
        assert_eq!(messages(&session.take_output()), [Message::Notification(told)]);
    }

    #[test]
    fn a_peer_of_another_as_is_refused_with_the_reason() {
        for (expected, asn, fits) in [
            (PeerAs::Number(64513), 64514, false),
            (PeerAs::Internal, 64512, true),
            (PeerAs::Internal, 64513, false),
            (PeerAs::External, 64513, true),
            (PeerAs::External, 64512, false),
        ] {
            let mut session = Session::new(Config { peer: expected, ..config() }, START);
            let result = session.receive(&peer(asn, 90), START);
            assert_eq!(result.is_ok(), fits, "{expected:?} {asn}");
            if !fits {
                let last = messages(&session.take_output()).pop();
                assert_eq!(last, Some(Message::Notification(Notification { code: 2, subcode: 2, data: vec![] })));
            }
        }
    }

    #[test]
    fn what_does_not_belong_into_a_state_ends_the_session() {
        let mut early = Session::new(config(), START);
        assert!(early.receive(&keepalive(), START).is_err());
        let mut twice = established(config());
        assert!(twice.receive(&peer(64513, 90), START).is_err());
        let mut garbage = established(config());
        let error = garbage.receive(&[0; 19], START).unwrap_err();
        assert_eq!(error, Down::ByUs { why: DecodeError::Marker.to_string() });
        let why = Notification { code: 6, subcode: 2, data: vec![] };
        assert_eq!(established(config()).receive(&why.encode(), START), Err(Down::ByPeer(why)));
    }

    #[test]
    fn a_refresh_brings_all_routes_of_the_family_again() {
        let mut session = established(config());
        session.want(routes(&["10.0.0.1", "fd00::1"]), START);
        session.take_output();
        let refresh = super::super::message::framed(5, &[0, 2, 0, 1]);
        assert_eq!(session.receive(&refresh, START).unwrap(), [Event::Refreshed(Family::Ipv6)]);
        assert_eq!(messages(&session.take_output()), [Message::Update]);
    }

    #[test]
    fn a_family_that_the_peer_does_not_speak_is_not_told() {
        let mut session = Session::new(config(), START);
        let old =
            Open { asn: 64513, hold_time_s: 0, id: Ipv4Addr::new(1, 1, 1, 1), capabilities: Capabilities::default() };
        session.receive(&old.encode(), START).unwrap();
        session.receive(&keepalive(), START).unwrap();
        session.take_output();
        session.want(routes(&["fd00::1", "10.0.0.1"]), START);
        assert_eq!(session.told().len(), 1);
        assert_eq!(session.deadline(), None, "a hold time of zero: nobody waits for anybody");
    }

    proptest! {
        /// In pieces of any size, with any byte spoiled: the session goes on or ends, and what it says is always whole.
        #[test]
        fn any_input_in_any_pieces_leaves_whole_output(
            spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            pieces in prop::collection::vec(1usize..40, 1..20),
        ) {
            let mut bytes = [peer(64513, 30), keepalive(), super::super::message::framed(5, &[0, 1, 0, 1])].concat();
            for (at, value) in spoils {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let mut session = Session::new(config(), START);
            session.want(routes(&["10.0.0.1", "fd00::1"]), START);
            let mut rest = &bytes[..];
            for piece in pieces.iter().cycle() {
                let (now, later) = rest.split_at((*piece).min(rest.len()));
                rest = later;
                if session.receive(now, START).is_err() || rest.is_empty() {
                    break;
                }
            }
            messages(&session.take_output());
        }
    }
}
