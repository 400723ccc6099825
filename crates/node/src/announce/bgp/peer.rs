//! One peer: a connection, a session over it, and another one when it ends. Whoever of the two connects first gets the
//! session; of two connections at once the one stays that the speaker with the higher identifier opened.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use signpost_wire::bgp::{Config, Event, Family, Notification, PeerAs, Prefix, Route, Session, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use super::bfd::BfdStates;
use crate::announce::numbers::Numbers;
use crate::sys;

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A connection that is not there after so long will not come.
const CONNECT: Duration = Duration::from_secs(10);
/// Far more than a direct link needs: who checks that a peer is near wants 255 to begin with (RFC 5082).
const HOPS: u32 = 255;
/// Cease, administrative shutdown (RFC 4486).
const SHUTDOWN: u8 = 2;
/// Cease, connection collision resolution (RFC 4486).
const COLLISION: u8 = 7;
/// Cease, BFD down (RFC 9384).
const BFD_DOWN: u8 = 10;

/// A peer as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerOptions {
    /// The own AS number.
    pub asn: u32,
    /// The peer's.
    pub peer: PeerAs,
    /// Where it listens.
    pub address: SocketAddr,
    /// The own address; `None`: the kernel chooses.
    pub source: Option<IpAddr>,
    /// The own identifier.
    pub id: std::net::Ipv4Addr,
    /// See [`Config`].
    pub hold_time: Duration,
    /// See [`Config`].
    pub keepalive: Option<Duration>,
    /// Between two tries, if it is fixed.
    pub connect_time: Option<Duration>,
    /// TCP MD5.
    pub password: Option<String>,
    /// The node's addresses by family: where packets of the other family are to be sent.
    pub next_hops: BTreeMap<Family, IpAddr>,
    /// Only the session's own family.
    pub own_family_only: bool,
    /// The peer keeps the routes while this process is away.
    pub graceful_restart: bool,
    /// The VRF device that connections are made in.
    pub vrf: Option<String>,
}

/// How a session stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerState {
    /// RFC 4271's name of the state.
    pub state: &'static str,
    /// The peer's address.
    pub address: String,
    /// Why the last session ended, or none came about.
    pub trouble: Option<String>,
}

/// What a peer's task is given.
pub struct Ends {
    /// The routes that the peer is to have. Closed: the session is to end.
    pub routes: watch::Receiver<BTreeMap<Prefix, Route>>,
    /// Connections that the peer made.
    pub incoming: mpsc::Receiver<TcpStream>,
    /// How BFD's sessions stand.
    pub bfd: watch::Receiver<BfdStates>,
    /// Where changes of the session are told.
    pub states: mpsc::Sender<(Arc<str>, PeerState)>,
    /// Where the session is counted.
    pub numbers: Numbers,
}

/// Why a connection is over.
enum End {
    /// The announcer wants no session any more.
    Wanted,
    /// Something went wrong.
    Broken(String),
    /// The peer's own connection takes its place.
    Replaced(TcpStream),
}

/// Holds a session with the peer until nobody has routes for it any more.
pub async fn run(name: Arc<str>, options: PeerOptions, mut ends: Ends) {
    let (mut wait, mut restarted) = (FIRST_WAIT, true);
    let mut said = String::new();
    let mut next: Option<TcpStream> = None;
    loop {
        let began = Instant::now();
        tell(&name, &options, &ends, "Connect", None).await;
        let ended = match next.take() {
            Some(stream) => hold(&name, &options, (stream, false), &mut ends, restarted).await,
            None => tokio::select! {
                connected = connect(&options) => match connected {
                    Ok(stream) => hold(&name, &options, (stream, true), &mut ends, restarted).await,
                    Err(error) => End::Broken(format!("no connection to {}: {error}", options.address)),
                },
                Some(stream) = ends.incoming.recv() => hold(&name, &options, (stream, false), &mut ends, restarted).await,
                () = gone(&mut ends.routes) => return,
            },
        };
        restarted = false;
        let trouble = match ended {
            End::Wanted => return,
            End::Replaced(stream) => {
                debug!(peer = %name, "the peer's connection takes the place of ours");
                next = Some(stream);
                continue;
            }
            End::Broken(trouble) => trouble,
        };
        if trouble != said {
            warn!(peer = %name, address = %options.address, trouble, "the BGP session is down; trying again");
            said.clone_from(&trouble);
        }
        tell(&name, &options, &ends, "Active", Some(trouble)).await;
        if began.elapsed() > LONGEST_WAIT {
            wait = FIRST_WAIT;
        }
        let pause = options.connect_time.unwrap_or(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
        tokio::select! {
            () = tokio::time::sleep(pause + pause.mul_f64(random_unit() / 4.0)) => {}
            Some(stream) = ends.incoming.recv() => next = Some(stream),
            () = gone(&mut ends.routes) => return,
        }
    }
}

async fn tell(name: &Arc<str>, options: &PeerOptions, ends: &Ends, state: &'static str, trouble: Option<String>) {
    let state = PeerState { state, address: options.address.ip().to_string(), trouble };
    // The announcer may have ended.
    let _ = ends.states.send((name.clone(), state)).await;
}

/// Until BFD has lost the peer once more than `before`.
async fn lost(bfd: &mut watch::Receiver<BfdStates>, name: &Arc<str>, before: u64) {
    while losses(bfd, name) <= before {
        if bfd.changed().await.is_err() {
            // BFD ended: it loses nobody any more.
            std::future::pending::<()>().await;
        }
    }
}

fn losses(bfd: &mut watch::Receiver<BfdStates>, name: &Arc<str>) -> u64 {
    bfd.borrow_and_update().get(name).map_or(0, |state| state.losses)
}

/// Until the announcer has no routes for this peer any more.
async fn gone(routes: &mut watch::Receiver<BTreeMap<Prefix, Route>>) {
    while routes.changed().await.is_ok() {}
}

/// In 0..1; the standard library's hasher is seeded at random.
fn random_unit() -> f64 {
    f64::from(RandomState::new().hash_one(0) as u32) / (f64::from(u32::MAX) + 1.0)
}

async fn connect(options: &PeerOptions) -> io::Result<TcpStream> {
    let socket = if options.address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    sys::set_hops(&socket, options.address.is_ipv4(), HOPS)?;
    if let Some(password) = &options.password {
        sys::set_tcp_md5(&socket, options.address, password)?;
    }
    if let Some(vrf) = &options.vrf {
        let bound = socket.bind_device(Some(vrf.as_bytes()));
        bound.map_err(|error| io::Error::new(error.kind(), format!("the vrf {vrf} cannot be used: {error}")))?;
    }
    if let Some(source) = options.source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    match tokio::time::timeout(CONNECT, socket.connect(options.address)).await {
        Ok(connected) => {
            let stream = connected?;
            stream.set_nodelay(true)?;
            Ok(stream)
        }
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {CONNECT:?}"))),
    }
}

/// What the session over a connection is held with.
fn config(options: &PeerOptions, local: IpAddr, restarted: bool) -> Config {
    let own = if local.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let mut next_hops = options.next_hops.clone();
    if options.own_family_only {
        next_hops.clear();
    }
    next_hops.insert(own, local);
    Config {
        asn: options.asn,
        peer: options.peer,
        id: options.id,
        hold_time: options.hold_time,
        keepalive: options.keepalive,
        next_hops,
        graceful_restart_s: options.graceful_restart.then_some(120),
        restarted,
    }
}

/// Holds the session over a connection, which is this node's own or the peer's.
async fn hold(
    name: &Arc<str>,
    options: &PeerOptions,
    (mut stream, is_own): (TcpStream, bool),
    ends: &mut Ends,
    restarted: bool,
) -> End {
    let local = match stream.local_addr() {
        Ok(local) => local.ip().to_canonical(),
        Err(error) => return End::Broken(format!("the connection broke: {error}")),
    };
    let start = Instant::now();
    let mut session = Session::new(config(options, local, restarted), start.elapsed());
    let mut buffer = vec![0; 65_536];
    session.want(ends.routes.borrow_and_update().clone(), start.elapsed());
    let before = losses(&mut ends.bfd, name);
    let mut second: Option<TcpStream> = None;
    tell(name, options, ends, "OpenSent", None).await;
    loop {
        let output = session.take_output();
        if let Err(error) = stream.write_all(&output).await {
            return broken(format!("the connection broke: {error}"), second);
        }
        ends.numbers.session(name, &session);
        let deadline = session.deadline().map(|deadline| start + deadline);
        let step = tokio::select! {
            changed = ends.routes.changed() => match changed {
                Ok(()) => {
                    let now = ends.routes.borrow_and_update().clone();
                    session.want(now, start.elapsed());
                    Ok(Vec::new())
                }
                Err(_) => {
                    // A peer that holds the routes for us while we are away is to hear nothing.
                    if !options.graceful_restart {
                        farewell(&mut session, &mut stream, SHUTDOWN).await;
                    }
                    return End::Wanted;
                }
            },
            read = stream.read(&mut buffer) => match read {
                Ok(0) => return broken("the peer closed the connection".to_owned(), second),
                Ok(length) => session.receive(&buffer[..length], start.elapsed()),
                Err(error) => return broken(format!("the connection broke: {error}"), second),
            },
            Some(other) = ends.incoming.recv() => {
                second = Some(other);
                Ok(Vec::new())
            }
            () = lost(&mut ends.bfd, name, before) => {
                farewell(&mut session, &mut stream, BFD_DOWN).await;
                return broken("BFD lost the peer".to_owned(), second);
            }
            () = super::super::until(deadline), if deadline.is_some() => session.tick(start.elapsed()).map(|()| Vec::new()),
        };
        match step {
            Ok(events) => {
                for event in events {
                    match event {
                        Event::Established(families) => {
                            info!(peer = %name, address = %options.address, ?families, "the BGP session stands");
                            tell(name, options, ends, "Established", None).await;
                        }
                        Event::Refreshed(family) => {
                            debug!(peer = %name, ?family, "the peer asked for all routes again")
                        }
                    }
                }
            }
            Err(down) => {
                // The connection may be gone already.
                let _ = stream.write_all(&session.take_output()).await;
                return broken(down.to_string(), second);
            }
        }
        if let Some(other) = second.take() {
            match replaces(&session, is_own) {
                // One that stands is not given up for a new one: whoever lost it will say so.
                Some(false) => refuse(options, other).await,
                Some(true) => {
                    farewell(&mut session, &mut stream, COLLISION).await;
                    return End::Replaced(other);
                }
                None => second = Some(other),
            }
        }
    }
}

/// Whether a second connection, made by the peer, takes the place of this one. `None`: the peer's identifier is not known yet.
fn replaces(session: &Session, is_own: bool) -> Option<bool> {
    if session.state() == State::Established {
        return Some(false);
    }
    // Two of the peer's own: it gave the first one up.
    if is_own { session.own_connection_stays().map(|stays| !stays) } else { Some(true) }
}

fn broken(trouble: String, second: Option<TcpStream>) -> End {
    second.map_or(End::Broken(trouble), End::Replaced)
}

async fn farewell(session: &mut Session, stream: &mut TcpStream, subcode: u8) {
    session.cease(subcode);
    // The connection may be gone already.
    let _ = stream.write_all(&session.take_output()).await;
}

/// Tells a connection that is not wanted why (RFC 4271, section 6.8).
async fn refuse(options: &PeerOptions, mut stream: TcpStream) {
    let why = Notification { code: 6, subcode: COLLISION, data: vec![] };
    debug!(address = %options.address, "a second connection of the peer is refused: the session stands");
    // It may be gone already.
    let _ = stream.write_all(&why.encode()).await;
}
