//! One peer: a connection, a session over it, and another one when it ends.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use signpost_wire::bgp::{Config, Event, Family, PeerAs, Prefix, Route, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::sys;

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A connection that is not there after so long will not come.
const CONNECT: Duration = Duration::from_secs(10);
/// Far more than a direct link needs: who checks that a peer is near wants 255 to begin with (RFC 5082).
const HOPS: u32 = 255;
/// Cease, administrative shutdown (RFC 4486).
const SHUTDOWN: u8 = 2;

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

/// Holds a session with the peer until nobody has routes for it any more.
pub async fn run(
    name: Arc<str>,
    options: PeerOptions,
    mut routes: watch::Receiver<BTreeMap<Prefix, Route>>,
    states: mpsc::Sender<(Arc<str>, PeerState)>,
) {
    let (mut wait, mut restarted) = (FIRST_WAIT, true);
    let mut said = String::new();
    loop {
        let began = Instant::now();
        let tell = |state: &'static str, trouble: Option<String>| {
            let state = PeerState { state, address: options.address.ip().to_string(), trouble };
            let (states, name) = (states.clone(), name.clone());
            async move {
                // The announcer may have ended.
                let _ = states.send((name, state)).await;
            }
        };
        tell("Connect", None).await;
        let ended = tokio::select! {
            connected = connect(&options) => match connected {
                Ok(stream) => hold(&name, &options, stream, &mut routes, restarted, &tell).await,
                Err(error) => Err(format!("no connection to {}: {error}", options.address)),
            },
            () = gone(&mut routes) => return,
        };
        let Err(trouble) = ended else { return };
        restarted = false;
        if trouble != said {
            warn!(peer = %name, address = %options.address, trouble, "the BGP session is down; trying again");
            said.clone_from(&trouble);
        }
        tell("Active", Some(trouble)).await;
        if began.elapsed() > LONGEST_WAIT {
            wait = FIRST_WAIT;
        }
        let pause = options.connect_time.unwrap_or(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
        tokio::select! {
            () = tokio::time::sleep(pause + pause.mul_f64(random_unit() / 4.0)) => {}
            () = gone(&mut routes) => return,
        }
    }
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

/// Holds the session. `Ok`: the announcer wants it to end.
async fn hold<F: Future<Output = ()>>(
    name: &Arc<str>,
    options: &PeerOptions,
    mut stream: TcpStream,
    routes: &mut watch::Receiver<BTreeMap<Prefix, Route>>,
    restarted: bool,
    tell: &impl Fn(&'static str, Option<String>) -> F,
) -> Result<(), String> {
    let local = stream.local_addr().map_err(|error| error.to_string())?.ip().to_canonical();
    let own = if local.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let mut next_hops = options.next_hops.clone();
    if options.own_family_only {
        next_hops.clear();
    }
    next_hops.insert(own, local);
    let config = Config {
        asn: options.asn,
        peer: options.peer,
        id: options.id,
        hold_time: options.hold_time,
        keepalive: options.keepalive,
        next_hops,
        graceful_restart_s: options.graceful_restart.then_some(120),
        restarted,
    };
    let start = Instant::now();
    let mut session = Session::new(config, start.elapsed());
    let mut buffer = vec![0; 65_536];
    session.want(routes.borrow_and_update().clone(), start.elapsed());
    tell("OpenSent", None).await;
    loop {
        let output = session.take_output();
        stream.write_all(&output).await.map_err(|error| format!("the connection broke: {error}"))?;
        let deadline = session.deadline().map(|deadline| start + deadline);
        let step = tokio::select! {
            changed = routes.changed() => match changed {
                Ok(()) => {
                    let now = routes.borrow_and_update().clone();
                    session.want(now, start.elapsed());
                    Ok(Vec::new())
                }
                Err(_) => {
                    // A peer that holds the routes for us while we are away is to hear nothing.
                    if !options.graceful_restart {
                        session.cease(SHUTDOWN);
                        // The connection may be gone already.
                        let _ = stream.write_all(&session.take_output()).await;
                    }
                    return Ok(());
                }
            },
            read = stream.read(&mut buffer) => match read {
                Ok(0) => return Err("the peer closed the connection".to_owned()),
                Ok(length) => session.receive(&buffer[..length], start.elapsed()),
                Err(error) => return Err(format!("the connection broke: {error}")),
            },
            () = super::super::until(deadline), if deadline.is_some() => session.tick(start.elapsed()).map(|()| Vec::new()),
        };
        match step {
            Ok(events) => {
                for event in events {
                    match event {
                        Event::Established(families) => {
                            info!(peer = %name, address = %options.address, ?families, "the BGP session stands");
                            tell("Established", None).await;
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
                return Err(down.to_string());
            }
        }
    }
}
