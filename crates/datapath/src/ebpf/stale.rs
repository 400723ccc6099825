//! Ends sockets that are connected to a backend which is none any more: a connected UDP socket would go on sending to nobody,
//! and no later call of its process would let it choose anew. TCP connections are ended only where the Service asks for it,
//! at once or after a grace; and after a scale-up some of those that live long, where it asks for that ([`super::rebalance`]).
//!
//! ```text
//! a change of frontends ─▶ every network namespace with a process of the node ─▶ its connected sockets
//!    ─▶ those that came through a frontend (the map of peers) ─┬▶ no backend of it now? ─▶ ended
//!                                                              └▶ it was scaled up? ─▶ Episode ─▶ some are closed
//! ```
//!
//! Only the maps are asked, the same that the programs read: so it needs no memory of what was, and what became stale while
//! no daemon ran is found as well. A socket that was connected to the pod itself is in no map and stays. A grace is counted
//! from the first look that finds a socket without its backend, so that a restart of the daemon begins it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use signpost_core::object::{Family, Protocol, Rebalance};
use tracing::{info, warn};

use super::diag::{self, Answer, Connected};
use super::layout::{Key, SetId, Table, Value, endpoint, endpoint_of};
use super::rebalance::{self, Connection, Episode, Group};
use super::walk::{Maps, backends, ends_after_s, rebalanced};
use crate::counts::Rebalancing;

/// The pause between two looks at all sockets.
const PAUSE: Duration = Duration::from_millis(200);
/// Longer than the kernel ever takes for its next answer.
const PATIENCE_S: i64 = 5;
/// Room for one answer.
const ANSWER_BYTES: usize = 1 << 16;

/// The thread that looks. It ends when this is dropped, after a look that runs.
#[derive(Debug)]
pub struct Worker {
    orders: Sender<Order>,
    done: Arc<Mutex<Done>>,
}

/// What is looked at.
#[derive(Debug, Clone, Default)]
pub(super) struct Order {
    /// TCP as well: some frontend asks that its connections be ended.
    pub tcp: bool,
    /// Service ports with more backends than before, whose connections are spread anew.
    pub scaled_up: BTreeMap<u64, Rebalance>,
}

/// What was done so far.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Sockets that were ended, since their backend is gone.
    pub ended: u64,
    /// Connections that were closed to be spread anew, by the number of their Service port.
    pub rebalanced: BTreeMap<u64, u64>,
    /// What happened of that, and nobody was told yet.
    pub untold: Vec<(u64, Rebalancing)>,
}

/// What nobody asks for is forgotten from so many on.
const MOST_UNTOLD: usize = 1_000;

/// Since when sockets are without their backend: by cookie and peer.
type Since = BTreeMap<(u64, SocketAddr), Instant>;

/// The kernel's own maps.
pub(super) struct LiveMaps {
    /// Handles of [`Table::ALL`], in that order.
    pub tables: Vec<MapHandle>,
    /// Which frontend a socket's peer stands for.
    pub peers: MapHandle,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn start(maps: LiveMaps, cgroup: PathBuf) -> io::Result<Worker> {
        let (orders, received) = channel();
        let done = Arc::new(Mutex::new(Done::default()));
        let own = fs::metadata("/proc/thread-self/ns/net")?.ino();
        let work = Work { maps, cgroup, own, done: done.clone(), since: Since::new(), episodes: BTreeMap::new() };
        thread::Builder::new().name("stale-sockets".to_owned()).spawn(move || work.run(&received))?;
        Ok(Worker { orders, done })
    }

    /// Something about frontends changed. Does not wait.
    pub(super) fn look(&self, order: Order) {
        if self.orders.send(order).is_err() {
            warn!("the thread that ends stale sockets has ended");
        }
    }

    /// What was done so far.
    pub(super) fn done(&self) -> MutexGuard<'_, Done> {
        lock(&self.done)
    }
}

fn lock(done: &Mutex<Done>) -> MutexGuard<'_, Done> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread knows.
struct Work {
    maps: LiveMaps,
    cgroup: PathBuf,
    /// The number of the node's own network namespace.
    own: u64,
    done: Arc<Mutex<Done>>,
    since: Since,
    /// By the number of the Service port.
    episodes: BTreeMap<u64, Episode>,
}

impl Work {
    fn run(mut self, orders: &Receiver<Order>) {
        let (mut tcp, mut due) = (false, None);
        loop {
            let first = match wait(orders, due) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // What came meanwhile is looked at together.
            for order in first.into_iter().chain(orders.try_iter()) {
                tcp |= order.tcp;
                self.scaled_up(order.scaled_up);
            }
            due = self.look(tcp || !self.episodes.is_empty());
            thread::sleep(PAUSE); // the most that a storm of changes may take of the machine
        }
    }

    fn scaled_up(&mut self, ports: BTreeMap<u64, Rebalance>) {
        let now = Instant::now();
        for (service, wish) in ports {
            let episode = self.episodes.entry(service).or_insert_with(|| Episode::new(wish, now));
            episode.go_on(wish, now);
        }
    }

    /// Looks at all sockets; gives when to look again without an order.
    fn look(&mut self, tcp: bool) -> Option<Instant> {
        let before = std::mem::take(&mut self.since);
        let mut look = Look::new(&self.maps, before, self.own, self.episodes.keys().copied().collect());
        let looked = look.all(&self.cgroup, if tcp { &[Protocol::Udp, Protocol::Tcp] } else { &[Protocol::Udp] });
        match looked.and_then(|()| look.rebalance(&mut self.episodes, &self.done)) {
            Ok(()) => {}
            Err(error) => warn!(%error, "sockets may be left with a backend that is gone"),
        }
        if look.ended > 0 {
            lock(&self.done).ended += look.ended;
            info!(count = look.ended, "sockets whose backend is gone are ended");
        }
        let due = look.due;
        self.since = look.since;
        self.forget_episodes();
        let next = (!self.episodes.is_empty()).then(|| Instant::now() + rebalance::PACE);
        due.into_iter().chain(next).min()
    }

    fn forget_episodes(&mut self) {
        let (now, done) = (Instant::now(), &self.done);
        self.episodes.retain(|service, episode| {
            let (is_over, closed) = (episode.is_over(now), episode.total());
            if is_over && closed > 0 {
                info!(closed, "connections are spread anew");
                tell(&mut lock(done), *service, Rebalancing::Ended { closed });
            }
            !is_over
        });
    }
}

fn tell(done: &mut Done, service: u64, what: Rebalancing) {
    if done.untold.len() < MOST_UNTOLD {
        done.untold.push((service, what));
    }
}

/// The next order, or the end of a grace.
fn wait(orders: &Receiver<Order>, due: Option<Instant>) -> Result<Order, RecvTimeoutError> {
    match due {
        Some(due) => orders.recv_timeout(due.saturating_duration_since(Instant::now())),
        None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// A look at all sockets of the node.
struct Look<'a> {
    maps: &'a LiveMaps,
    own: u64,
    /// Of the look before.
    before: Since,
    since: Since,
    /// The next end of a grace.
    due: Option<Instant>,
    ended: u64,
    /// The network namespaces that were looked into.
    namespaces: Vec<File>,
    /// Of Service ports that are spread anew, the connections.
    groups: BTreeMap<u64, BTreeMap<SetId, Group>>,
    /// Which sockets they are, and in which of the network namespaces.
    sockets: BTreeMap<Connection, (usize, Connected)>,
}

impl<'a> Look<'a> {
    fn new(maps: &'a LiveMaps, before: Since, own: u64, rebalanced: BTreeSet<u64>) -> Look<'a> {
        Look {
            maps,
            own,
            before,
            since: Since::new(),
            due: None,
            ended: 0,
            namespaces: Vec::new(),
            groups: rebalanced.into_iter().map(|service| (service, BTreeMap::new())).collect(),
            sockets: BTreeMap::new(),
        }
    }

    fn all(&mut self, cgroup: &Path, protocols: &[Protocol]) -> io::Result<()> {
        for netns in namespaces(cgroup)? {
            setns(&netns, CloneFlags::CLONE_NEWNET)?;
            let is_node = netns.metadata()?.ino() == self.own;
            self.namespaces.push(netns);
            for protocol in protocols {
                for family in [Family::Ipv4, Family::Ipv6] {
                    self.here(family, *protocol, is_node)?;
                }
            }
        }
        Ok(())
    }

    /// In the network namespace that the thread is in.
    fn here(&mut self, family: Family, protocol: Protocol, is_node: bool) -> io::Result<()> {
        let socket = open()?;
        for found in list(&socket, family, protocol)? {
            let Some((frontend, service)) = self.maps.came_through(&found) else { continue };
            if protocol == Protocol::Tcp && found.is_established {
                self.group(found, frontend, service, is_node);
            }
            let Some(after_s) = ends_after_s(self.maps, frontend, protocol, found.peer) else { continue };
            let (key, now) = ((found.cookie, found.peer), Instant::now());
            let since = self.before.get(&key).copied().unwrap_or(now);
            let end = since + Duration::from_secs(after_s.into());
            if end <= now {
                self.ended += u64::from(destroy(&socket, &found, protocol)?);
            } else {
                self.since.insert(key, since);
                self.due = Some(self.due.map_or(end, |due| due.min(end)));
            }
        }
        Ok(())
    }

    /// Puts a connection to those with which it shares its backends, if its Service port is spread anew.
    fn group(&mut self, found: Connected, frontend: SocketAddr, service: u64, is_node: bool) {
        let Some(groups) = self.groups.get_mut(&service) else { return };
        let Some((_, set, count)) = rebalanced(self.maps, frontend, is_node) else { return };
        let group = groups.entry(set).or_insert_with(|| {
            let backends = backends(self.maps, set, count);
            Group { backends, connections: BTreeSet::new() }
        });
        let connection = Connection { cookie: found.cookie, backend: found.peer };
        group.connections.insert(connection);
        self.sockets.insert(connection, (self.namespaces.len() - 1, found));
    }

    /// Closes what the episodes say.
    fn rebalance(&self, episodes: &mut BTreeMap<u64, Episode>, done: &Mutex<Done>) -> io::Result<()> {
        for (service, episode) in episodes {
            let Some(groups) = self.groups.get(service) else { continue };
            let chosen = episode.look(groups, Instant::now());
            if chosen.is_empty() {
                continue;
            }
            let closed = self.close(&chosen);
            // Also what may have been closed before the kernel refused: the rate holds in any case.
            let is_first = episode.total() == 0;
            episode.closed(chosen.len(), Instant::now());
            let closed = closed?;
            let mut done = lock(done);
            *done.rebalanced.entry(*service).or_default() += closed;
            if is_first && closed > 0 {
                info!("connections are closed to be spread anew");
                tell(&mut done, *service, Rebalancing::Begun(episode.wish()));
            }
        }
        Ok(())
    }

    /// How many of them were still there.
    fn close(&self, chosen: &[Connection]) -> io::Result<u64> {
        let mut closed = 0;
        for (netns, socket) in chosen.iter().filter_map(|connection| self.sockets.get(connection)) {
            setns(&self.namespaces[*netns], CloneFlags::CLONE_NEWNET)?;
            closed += u64::from(destroy(&open()?, socket, Protocol::Tcp)?);
        }
        Ok(closed)
    }
}

/// The network namespaces of all processes in a control group and below it, each once.
pub(super) fn namespaces(cgroup: &Path) -> io::Result<Vec<File>> {
    let (mut groups, mut seen, mut found) = (vec![cgroup.to_owned()], BTreeSet::new(), Vec::new());
    while let Some(group) = groups.pop() {
        // A group or a process may end while it is looked at.
        for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                groups.push(entry.path());
            }
        }
        // Of a threaded group the processes are not told, but the threads are.
        let members = fs::read_to_string(group.join("cgroup.procs"));
        let members = members.or_else(|_| fs::read_to_string(group.join("cgroup.threads"))).unwrap_or_default();
        for member in members.lines() {
            let Ok(netns) = File::open(format!("/proc/{member}/ns/net")) else { continue };
            if seen.insert(netns.metadata()?.ino()) {
                found.push(netns);
            }
        }
    }
    Ok(found)
}

fn open() -> nix::Result<OwnedFd> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
    Ok(socket)
}

fn list(socket: &OwnedFd, family: Family, protocol: Protocol) -> io::Result<Vec<Connected>> {
    send(socket.as_raw_fd(), &diag::list(family, protocol), MsgFlags::empty())?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; ANSWER_BYTES]);
    loop {
        let count = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        for answer in diag::answers(&buffer[..count]) {
            match answer {
                Answer::Socket(one) => found.push(one),
                Answer::Done | Answer::Acknowledged(0) => return Ok(found),
                Answer::Acknowledged(code) => return Err(io::Error::from_raw_os_error(code)),
            }
        }
    }
}

/// Whether the kernel ends sockets of a protocol when it is asked to. One that is nobody's is named to it.
///
/// # Errors
/// It does not answer.
pub(super) fn can_end(protocol: Protocol) -> io::Result<bool> {
    let socket = open()?;
    send(socket.as_raw_fd(), &diag::destroy(&Connected::nobody(), protocol), MsgFlags::empty())?;
    let mut buffer = vec![0; ANSWER_BYTES];
    let count = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    // Looked for and not found.
    Ok(diag::answers(&buffer[..count]).first() == Some(&Answer::Acknowledged(nix::libc::ENOENT)))
}

/// Whether it was still there.
fn destroy(socket: &OwnedFd, found: &Connected, protocol: Protocol) -> io::Result<bool> {
    send(socket.as_raw_fd(), &diag::destroy(found, protocol), MsgFlags::empty())?;
    let mut buffer = vec![0; ANSWER_BYTES];
    let count = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    match diag::answers(&buffer[..count]).first() {
        Some(Answer::Acknowledged(0)) => Ok(true),
        Some(Answer::Acknowledged(nix::libc::ENOENT)) => Ok(false),
        Some(Answer::Acknowledged(code)) => Err(io::Error::from_raw_os_error(*code)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl LiveMaps {
    /// The frontend that a socket came through, and the number of its Service port; `None`: it came through none.
    fn came_through(&self, found: &Connected) -> Option<(SocketAddr, u64)> {
        let key = [&found.cookie.to_ne_bytes()[..], &endpoint(found.peer), &[0; 4]].concat();
        let peer = self.peers.lookup(&key, MapFlags::ANY).ok()??;
        // `struct peer`: an endpoint, a padding, and the number.
        let service = u64::from_ne_bytes(*peer.last_chunk()?);
        Some((endpoint_of(&peer)?, service))
    }
}

impl Maps for LiveMaps {
    fn lookup(&self, key: &Key) -> Option<Value> {
        let at = Table::ALL.iter().position(|table| *table == key.table())?;
        let value = self.tables.get(at)?.lookup(&key.bytes(), MapFlags::ANY).ok()??;
        Value::read(key.table(), &value)
    }
}
