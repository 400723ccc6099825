//! BFD beside BGP: a thread with its own sockets and a raised priority, so that a busy daemon does not look like a dead one.
//!
//! ```text
//! sessions that are wanted ──▶ thread: wire::bfd, UDP 3784 (one hop) and 4784 (several) ──▶ how each stands
//! ```

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, recvmsg, setsockopt,
    socket, sockopt,
};
use signpost_wire::bfd::{MULTI_HOP, Packet, Profile, SINGLE_HOP, Session, State};
use tokio::net::UdpSocket as Socket;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, info, warn};

use crate::sys;

/// What a packet of one hop has, and must have (RFC 5881, section 5).
const HOPS: u8 = 255;
/// The ports that packets of one hop are sent from (RFC 5881, section 4).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;
/// So many tries to find one that is free.
const TRIES: u32 = 64;
/// Longer datagrams are cut off: they are no BFD.
const MOST: usize = 256;

/// A session as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BfdOptions {
    /// The peer.
    pub peer: IpAddr,
    /// The own address; `None`: the kernel chooses.
    pub source: Option<IpAddr>,
    /// The peer may be several hops away.
    pub multi_hop: bool,
    /// What a packet of several hops must still have.
    pub minimum_ttl: u8,
    /// How fast.
    pub profile: Profile,
}

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BfdState {
    /// Its state.
    pub state: State,
    /// How often the peer was lost: fell silent, or said that it lost us. To be held down on purpose is no loss.
    pub losses: u64,
    /// The hops that the peer's last packet had left, if it was thrown away for having fewer than it must.
    pub too_far: Option<u8>,
}

/// All of them, by peer.
pub type BfdStates = BTreeMap<Arc<str>, BfdState>;

/// The thread, seen from outside. It ends when this is dropped.
pub struct Bfd {
    wanted: watch::Sender<BTreeMap<Arc<str>, BfdOptions>>,
    leaving: mpsc::Sender<oneshot::Sender<()>>,
    states: watch::Receiver<BfdStates>,
}

impl Bfd {
    /// Starts it, without sessions and sockets.
    ///
    /// # Errors
    /// No thread.
    pub fn start() -> io::Result<Bfd> {
        let (wanted, follow) = watch::channel(BTreeMap::new());
        let (states, told) = watch::channel(BfdStates::new());
        let (leaving, leave) = mpsc::channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("bfd".to_owned()).spawn(move || {
            if let Err(error) = sys::raise_priority() {
                debug!(%error, "BFD runs with the priority of all: a busy node may be taken for a dead one");
            }
            runtime.block_on(run(follow, states, leave));
        })?;
        Ok(Bfd { wanted, leaving, states: told })
    }

    /// These sessions are wanted, and no others. One that is wanted as before goes on.
    pub fn want(&self, sessions: BTreeMap<Arc<str>, BfdOptions>) {
        self.wanted.send_if_modified(|current| {
            let changed = *current != sessions;
            *current = sessions;
            changed
        });
    }

    /// How sessions stand.
    pub fn states(&self) -> watch::Receiver<BfdStates> {
        self.states.clone()
    }

    /// Tells every peer that the end is on purpose.
    pub async fn leave(&self) {
        let (done, waits) = oneshot::channel();
        if self.leaving.send(done).await.is_ok() {
            // The thread may have ended: then there is nobody to be told.
            let _ = waits.await;
        }
    }
}

/// A session that runs.
struct Running {
    options: BfdOptions,
    session: Session,
    /// Sends; packets come in by the sockets of all.
    socket: UdpSocket,
    losses: u64,
    too_far: Option<u8>,
    mine: u32,
}

/// Where packets of all sessions come in.
struct Inlets {
    /// Of one hop and of several, IPv4 and IPv6.
    sockets: Vec<(bool, Socket)>,
}

struct Engine {
    start: Instant,
    sessions: BTreeMap<Arc<str>, Running>,
    random: RandomState,
    numbered: u32,
}

async fn run(
    mut wanted: watch::Receiver<BTreeMap<Arc<str>, BfdOptions>>,
    states: watch::Sender<BfdStates>,
    mut leave: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut engine =
        Engine { start: Instant::now(), sessions: BTreeMap::new(), random: RandomState::new(), numbered: 0 };
    let mut inlets: Option<Inlets> = None;
    let mut retry = false;
    loop {
        let deadline = engine.sessions.values().filter_map(|one| one.session.deadline()).min();
        let deadline = deadline.map(|at| engine.start + at);
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                retry = !engine.keep(&wanted.borrow_and_update().clone());
            }
            () = tokio::time::sleep(super::super::RETRY), if retry => {
                retry = !engine.keep(&wanted.borrow().clone());
            }
            () = super::super::until(deadline), if deadline.is_some() => engine.tick(),
            received = receive(inlets.as_ref()), if inlets.is_some() => {
                let (several, received) = received;
                engine.receive(several, &received);
            }
            Some(done) = leave.recv() => {
                engine.leave();
                // Whoever asked may have stopped waiting.
                let _ = done.send(());
                return;
            }
        }
        if inlets.is_none() && !engine.sessions.is_empty() {
            match Inlets::open() {
                Ok(opened) => inlets = Some(opened),
                Err(error) => {
                    warn!(%error, "BFD's ports cannot be listened at: no session comes up");
                    tokio::time::sleep(super::super::RETRY).await;
                }
            }
        }
        let now = engine.states();
        states.send_if_modified(|current| {
            let changed = *current != now;
            *current = now;
            changed
        });
    }
}

/// A packet that came in.
struct Received {
    from: IpAddr,
    hops: u8,
    bytes: Vec<u8>,
}

async fn receive(inlets: Option<&Inlets>) -> (bool, Received) {
    let Some(inlets) = inlets else { return std::future::pending().await };
    loop {
        let waiting = inlets.sockets.iter().map(|(several, socket)| {
            Box::pin(async move {
                // A socket that fails is looked at again with the others.
                let _ = socket.readable().await;
                (*several, socket)
            })
        });
        let ((several, socket), ..) = futures::future::select_all(waiting).await;
        let read = socket.try_io(tokio::io::Interest::READABLE, || read_packet(socket));
        match read {
            Ok((from, Some(hops), bytes)) => return (several, Received { from: from.to_canonical(), hops, bytes }),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => debug!(%error, "a packet of BFD could not be read"),
        }
    }
}

impl Inlets {
    fn open() -> io::Result<Inlets> {
        let mut sockets = Vec::new();
        for (several, port) in [(false, SINGLE_HOP), (true, MULTI_HOP)] {
            sockets.push((several, inlet((Ipv4Addr::UNSPECIFIED, port).into())?));
            match inlet((Ipv6Addr::UNSPECIFIED, port).into()) {
                Ok(socket) => sockets.push((several, socket)),
                Err(error) => debug!(%error, "no BFD over IPv6"),
            }
        }
        Ok(Inlets { sockets })
    }
}

/// Such a socket tells how many hops a packet has left.
fn inlet(address: SocketAddr) -> io::Result<Socket> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, None)?;
    if address.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4RecvTtl, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Socket::from_std(socket.into())
}

/// Who sent a packet, how many hops it had left, if that is known, and its bytes.
fn read_packet(socket: &Socket) -> io::Result<(IpAddr, Option<u8>, Vec<u8>)> {
    let mut bytes = vec![0; MOST];
    let mut space = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
    let hops = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::Ipv4Ttl(hops) | ControlMessageOwned::Ipv6HopLimit(hops) => u8::try_from(hops).ok(),
        _ => None,
    });
    let from = message.address.as_ref().and_then(|from| {
        let v4 = from.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| from.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    let length = message.bytes;
    bytes.truncate(length);
    Ok((from.ok_or(io::ErrorKind::InvalidData)?, hops, bytes))
}

impl Engine {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends and starts sessions; `false`: not all that are wanted could be started.
    fn keep(&mut self, wanted: &BTreeMap<Arc<str>, BfdOptions>) -> bool {
        self.sessions.retain(|name, running| {
            let stays = wanted.get(name) == Some(&running.options);
            if !stays {
                info!(peer = %name, "a BFD session ends, as it is not wanted any more");
                running.say_farewell();
            }
            stays
        });
        let mut all = true;
        for (name, options) in wanted {
            if self.sessions.contains_key(name) {
                continue;
            }
            match self.open(options) {
                Ok(running) => drop(self.sessions.insert(name.clone(), running)),
                Err(error) => {
                    debug!(peer = %name, %error, "a BFD session has no socket; trying again");
                    all = false;
                }
            }
        }
        all
    }

    fn open(&mut self, options: &BfdOptions) -> io::Result<Running> {
        self.numbered = self.numbered.wrapping_add(1);
        // Unlike those of a former life, which the peer may still know.
        let mine = (self.random.hash_one(self.numbered) as u32).max(1);
        let own = options.source.unwrap_or(match options.peer {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        let span = u32::from(SOURCE_PORTS.end() - SOURCE_PORTS.start()) + 1;
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for attempt in 0..TRIES {
            let port = SOURCE_PORTS.start() + ((mine.wrapping_add(attempt * 7919)) % span) as u16;
            match UdpSocket::bind(SocketAddr::new(own, port)) {
                Ok(socket) => {
                    sys::set_hops(&socket, options.peer.is_ipv4(), HOPS.into())?;
                    socket.set_nonblocking(true)?;
                    let port = if options.multi_hop { MULTI_HOP } else { SINGLE_HOP };
                    socket.connect(SocketAddr::new(options.peer, port))?;
                    let session = Session::new(options.profile, mine, self.now());
                    let options = options.clone();
                    return Ok(Running { options, session, socket, losses: 0, too_far: None, mine });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tick(&mut self) {
        let now = self.now();
        for (name, running) in &mut self.sessions {
            let before = running.session.state();
            let jitter = self.random.hash_one((running.mine, now)) as u8;
            while running.session.deadline().is_some_and(|at| at <= now) {
                match running.session.tick(now, jitter) {
                    Some(packet) => running.send(&packet),
                    // An expiry without a packet that is due.
                    None => break,
                }
            }
            running.watch(name, before);
        }
    }

    fn receive(&mut self, several: bool, received: &Received) {
        let Ok(packet) = Packet::decode(&received.bytes) else { return };
        let now = self.now();
        let found = self.sessions.iter_mut().find(|(_, running)| {
            running.options.peer == received.from
                && running.options.multi_hop == several
                && (packet.yours == 0 || packet.yours == running.mine)
        });
        let Some((name, running)) = found else { return };
        let least = if several { running.options.minimum_ttl } else { HOPS };
        if received.hops < least {
            if running.too_far.replace(received.hops).is_none() {
                warn!(peer = %name, hops = received.hops, least, "BFD's packets have come from too far away: they are thrown away");
            }
            return;
        }
        running.too_far = None;
        let before = running.session.state();
        if let Some(answer) = running.session.receive(&packet, now) {
            running.send(&answer);
        }
        running.watch(name, before);
        // A change of state is to be told at once.
        self.tick();
    }

    fn leave(&mut self) {
        self.sessions.values_mut().for_each(Running::say_farewell);
    }

    fn states(&self) -> BfdStates {
        let state = |running: &Running| BfdState {
            state: running.session.state(),
            losses: running.losses,
            too_far: running.too_far,
        };
        self.sessions.iter().map(|(name, running)| (name.clone(), state(running))).collect()
    }
}

impl Running {
    fn send(&self, packet: &Packet) {
        // A packet that cannot be sent is a lost one: the peer may be away (ECONNREFUSED), the link down.
        if let Err(error) = self.socket.send(&packet.encode()) {
            debug!(peer = %self.options.peer, %error, "a packet of BFD could not be sent");
        }
    }

    fn say_farewell(&mut self) {
        let last = self.session.admin_down();
        self.send(&last);
        // A second one, as single packets get lost.
        self.send(&last);
    }

    fn watch(&mut self, name: &Arc<str>, before: State) {
        let now = self.session.state();
        if now == before {
            return;
        }
        let diagnostic = self.session.diagnostic();
        info!(peer = %name, from = ?before, to = ?now, ?diagnostic, "a BFD session changed its state");
        let lost = before == State::Up && now == State::Down;
        if lost && !self.session.peer_ended_it() {
            self.losses += 1;
        }
    }
}
