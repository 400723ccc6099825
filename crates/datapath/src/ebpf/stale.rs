//! Ends sockets that are connected to a backend which is none any more: a connected UDP socket would go on sending to nobody,
//! and no later call of its process would let it choose anew.
//!
//! ```text
//! a change of UDP frontends ─▶ every network namespace with a process of the node ─▶ its connected sockets
//!    ─▶ those that came through a frontend (the map of peers) ─▶ no backend of it now? ─▶ ended
//! ```
//!
//! Only the maps are asked, the same that the programs read: so it needs no memory of what was, and what became stale while
//! no daemon ran is found as well. A socket that was connected to the pod itself is in no map and stays.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use signpost_core::object::{Family, Protocol};
use tracing::{debug, info, warn};

use super::diag::{self, Answer, Connected};
use super::layout::{Key, Table, Value, endpoint, endpoint_of};
use super::walk::{Maps, leads_to};

/// The pause between two looks at all sockets.
const PAUSE: Duration = Duration::from_millis(200);
/// Longer than the kernel ever takes for its next answer.
const PATIENCE_S: i64 = 5;
/// Room for one answer.
const ANSWER_BYTES: usize = 1 << 16;

/// The thread that looks. It ends when this is dropped, after a look that runs.
#[derive(Debug)]
pub struct Worker {
    orders: Sender<()>,
    ended: Arc<AtomicU64>,
}

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

    /// Something about UDP frontends changed. Does not wait.
    pub(super) fn look(&self) {
        if self.orders.send(()).is_err() {
            warn!("the thread that ends stale sockets has ended");
        }
    }

    /// How many sockets were ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

fn work(maps: &LiveMaps, cgroup: &Path, orders: &Receiver<()>, ended: &AtomicU64) {
    while orders.recv().is_ok() {
        while orders.try_recv().is_ok() {} // what came meanwhile is looked at together
        match look(maps, cgroup) {
            Ok(0) => debug!("no socket has lost its backend"),
            Ok(count) => {
                ended.fetch_add(count, Ordering::Relaxed);
                info!(count, "sockets whose backend is gone are ended");
            }
            Err(error) => warn!(%error, "sockets may be left with a backend that is gone"),
        }
        thread::sleep(PAUSE); // the most that a storm of changes may take of the machine
    }
}

fn look(maps: &LiveMaps, cgroup: &Path) -> io::Result<u64> {
    let mut ended = 0;
    for netns in namespaces(cgroup)? {
        setns(netns, CloneFlags::CLONE_NEWNET)?;
        for family in [Family::Ipv4, Family::Ipv6] {
            ended += look_in_here(maps, family)?;
        }
    }
    Ok(ended)
}

/// The network namespaces of all processes in a control group and below it, each once.
fn namespaces(cgroup: &Path) -> io::Result<Vec<File>> {
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

/// In the network namespace that the thread is in.
fn look_in_here(maps: &LiveMaps, family: Family) -> io::Result<u64> {
    let socket = open()?;
    let mut ended = 0;
    for found in list(&socket, family)? {
        if maps.is_stale(&found) && destroy(&socket, &found)? {
            ended += 1;
        }
    }
    Ok(ended)
}

fn open() -> nix::Result<OwnedFd> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
    Ok(socket)
}

fn list(socket: &OwnedFd, family: Family) -> io::Result<Vec<Connected>> {
    send(socket.as_raw_fd(), &diag::list(family, Protocol::Udp), MsgFlags::empty())?;
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

/// Whether it was still there.
fn destroy(socket: &OwnedFd, found: &Connected) -> io::Result<bool> {
    send(socket.as_raw_fd(), &diag::destroy(found, Protocol::Udp), MsgFlags::empty())?;
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
    /// Whether a socket came through a frontend that does not lead to its peer any more.
    fn is_stale(&self, found: &Connected) -> bool {
        let key = [&found.cookie.to_ne_bytes()[..], &endpoint(found.peer), &[0; 4]].concat();
        let Ok(Some(peer)) = self.peers.lookup(&key, MapFlags::ANY) else { return false };
        let Some(frontend) = endpoint_of(&peer) else { return false };
        !leads_to(self, frontend, Protocol::Udp, found.peer)
    }
}

impl Maps for LiveMaps {
    fn lookup(&self, key: &Key) -> Option<Value> {
        let at = Table::ALL.iter().position(|table| *table == key.table())?;
        let value = self.tables.get(at)?.lookup(&key.bytes(), MapFlags::ANY).ok()??;
        Value::read(key.table(), &value)
    }
}
