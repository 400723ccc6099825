//! Ends sockets that are connected to a backend which is none any more: a connected UDP socket would go on sending to nobody,
//! and no later call of its process would let it choose anew. TCP connections are ended only where the Service asks for it,
//! at once or after a grace.
//!
//! ```text
//! a change of frontends ─▶ every network namespace with a process of the node ─▶ its connected sockets
//!    ─▶ those that came through a frontend (the map of peers) ─▶ no backend of it now? ─▶ ended
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use signpost_core::object::{Family, Protocol};
use tracing::{info, warn};

use super::diag::{self, Answer, Connected};
use super::layout::{Key, Table, Value, endpoint, endpoint_of};
use super::walk::{Maps, ends_after_s};

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
    ended: Arc<AtomicU64>,
}

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    /// TCP as well: some frontend asks that its connections be ended.
    pub tcp: bool,
}

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
        let ended = Arc::new(AtomicU64::new(0));
        let counted = ended.clone();
        thread::Builder::new().name("stale-sockets".to_owned()).spawn(move || {
            work(&maps, &cgroup, &received, &counted);
        })?;
        Ok(Worker { orders, ended })
    }

    /// Something about frontends changed. Does not wait.
    pub(super) fn look(&self, order: Order) {
        if self.orders.send(order).is_err() {
            warn!("the thread that ends stale sockets has ended");
        }
    }

    /// How many sockets were ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

fn work(maps: &LiveMaps, cgroup: &Path, orders: &Receiver<Order>, ended: &AtomicU64) {
    let mut since = Since::new();
    let (mut tcp, mut due) = (false, None);
    loop {
        match wait(orders, due) {
            Ok(order) => tcp |= order.tcp,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        orders.try_iter().for_each(|order| tcp |= order.tcp); // what came meanwhile is looked at together
        let mut look = Look { maps, before: std::mem::take(&mut since), since: Since::new(), due: None, ended: 0 };
        let looked = look.all(cgroup, if tcp { &[Protocol::Udp, Protocol::Tcp] } else { &[Protocol::Udp] });
        if let Err(error) = looked {
            warn!(%error, "sockets may be left with a backend that is gone");
        }
        if look.ended > 0 {
            ended.fetch_add(look.ended, Ordering::Relaxed);
            info!(count = look.ended, "sockets whose backend is gone are ended");
        }
        (since, due) = (look.since, look.due);
        thread::sleep(PAUSE); // the most that a storm of changes may take of the machine
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
    /// Of the look before.
    before: Since,
    since: Since,
    /// The next end of a grace.
    due: Option<Instant>,
    ended: u64,
}

impl Look<'_> {
    fn all(&mut self, cgroup: &Path, protocols: &[Protocol]) -> io::Result<()> {
        for netns in namespaces(cgroup)? {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            for protocol in protocols {
                for family in [Family::Ipv4, Family::Ipv6] {
                    self.here(family, *protocol)?;
                }
            }
        }
        Ok(())
    }

    /// In the network namespace that the thread is in.
    fn here(&mut self, family: Family, protocol: Protocol) -> io::Result<()> {
        let socket = open()?;
        for found in list(&socket, family, protocol)? {
            let Some(after_s) = self.maps.ends_after_s(&found, protocol) else { continue };
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
    /// See [`ends_after_s`]; a socket that came through no frontend stays.
    fn ends_after_s(&self, found: &Connected, protocol: Protocol) -> Option<u32> {
        let key = [&found.cookie.to_ne_bytes()[..], &endpoint(found.peer), &[0; 4]].concat();
        let peer = self.peers.lookup(&key, MapFlags::ANY).ok()??;
        ends_after_s(self, endpoint_of(&peer)?, protocol, found.peer)
    }
}

impl Maps for LiveMaps {
    fn lookup(&self, key: &Key) -> Option<Value> {
        let at = Table::ALL.iter().position(|table| *table == key.table())?;
        let value = self.tables.get(at)?.lookup(&key.bytes(), MapFlags::ANY).ok()??;
        Value::read(key.table(), &value)
    }
}
