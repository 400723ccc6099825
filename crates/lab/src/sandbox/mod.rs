//! A pod's sandbox as the supervisor holds it: a process (see `init`) in namespaces of its own, and a socket to it.
//!
//! ```text
//!  kubelet, exec ─▶ Sandbox::start ─▶ socket ─▶ init (process 1 of the pod) ─▶ program
//!                      Program::exit ◀──────────────── reaps ◀──────────────────┘
//! ```

pub mod init;
mod kernel;
mod mounts;
pub mod protocol;
mod view;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};

use crate::cgroup::Cgroup;
use crate::netns::Netns;
use crate::spawner::{Spawner, Surroundings};
pub use protocol::{Exit, Mount, MountSource, PROGRAMS, Start, VOLUMES, View};
use protocol::{MESSAGE_BYTES, Reply, Request};

/// A running sandbox. Dropped: everything in it is killed.
pub struct Sandbox {
    shared: Arc<Shared>,
    next: AtomicU64,
    _init: Child,
    /// The thread whose end would be the sandbox' end.
    _spawner: Spawner,
}

struct Shared {
    socket: AsyncFd<OwnedFd>,
    programs: Mutex<BTreeMap<u64, Waiting>>,
}

struct Waiting {
    started: Option<oneshot::Sender<io::Result<Option<OwnedFd>>>>,
    exit: watch::Sender<Option<Exit>>,
}

/// A program that was started in a sandbox.
pub struct Program {
    shared: Arc<Shared>,
    id: u64,
    exit: watch::Receiver<Option<Exit>>,
}

impl Sandbox {
    /// Makes a sandbox in a network namespace and a control group that are there already. `program` is the signpost
    /// binary.
    ///
    /// # Errors
    /// The kernel or a mount refused; the text says what.
    pub async fn start(
        spawner: &Spawner,
        program: &Path,
        netns: &Netns,
        cgroup: &Cgroup,
        view: View,
    ) -> io::Result<Sandbox> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        let mut command = Command::new(program);
        command.arg(init::COMMAND).env_clear().stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let around = Surroundings {
            netns: Some(netns.clone()),
            cgroup: Some(cgroup.clone()),
            sandboxed: true,
            session: true,
            ..Surroundings::default()
        };
        let init = spawner.spawn(command, around).await?;
        let shared = Arc::new(Shared { socket: crate::sys::watch(ours)?, programs: Mutex::default() });
        shared.send(&Request::Prepare(view), &[]).await?;
        let mut buffer = vec![0; MESSAGE_BYTES];
        match shared.receive(&mut buffer).await? {
            Some((Reply::Ready, _)) => {}
            Some((Reply::Broken { problem }, _)) => return Err(io::Error::other(problem)),
            Some((other, _)) => return Err(io::Error::other(format!("the pod's first process answered {other:?}"))),
            None => return Err(io::Error::other("the pod's first process ended")),
        }
        tokio::spawn(read_replies(shared.clone(), buffer));
        Ok(Sandbox { shared, next: AtomicU64::new(1), _init: init, _spawner: spawner.clone() })
    }

    /// Starts a program with its input, output and error output. `start.id` is set here.
    ///
    /// # Errors
    /// There is no such program in the pod, or the sandbox has ended.
    pub async fn start_program(&self, start: Start, streams: [OwnedFd; 3]) -> io::Result<Program> {
        Ok(self.begin(Start { terminal: None, ..start }, &streams).await?.0)
    }

    /// Starts a program in a terminal of the pod, of this size (columns, rows); gives our side of the terminal,
    /// which does not block.
    ///
    /// # Errors
    /// As for [`Sandbox::start_program`].
    pub async fn start_in_terminal(&self, start: Start, size: (u16, u16)) -> io::Result<(Program, OwnedFd)> {
        let (program, terminal) = self.begin(Start { terminal: Some(size), ..start }, &[]).await?;
        Ok((program, terminal.ok_or(io::ErrorKind::InvalidData)?))
    }

    async fn begin(&self, mut start: Start, streams: &[OwnedFd]) -> io::Result<(Program, Option<OwnedFd>)> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        start.id = id;
        let (started, result) = oneshot::channel();
        let (exit, exited) = watch::channel(None);
        self.shared.programs().insert(id, Waiting { started: Some(started), exit });
        let program = Program { shared: self.shared.clone(), id, exit: exited };
        if let Err(error) = self.shared.send(&Request::Start(start), streams).await {
            self.shared.programs().remove(&id);
            return Err(error);
        }
        let terminal = result.await.map_err(|_| ended())??;
        Ok((program, terminal))
    }
}

impl Program {
    /// Waits for its end. A sandbox that is killed ends its programs with SIGKILL.
    pub async fn exit(&self) -> Exit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.map(|exit| *exit);
        ended.ok().flatten().unwrap_or(Exit::Signal(Signal::SIGKILL as i32))
    }

    /// Sends a signal, to its children as well if `everything`. One that has ended gets nothing.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn signal(&self, signal: Signal, everything: bool) -> io::Result<()> {
        self.shared.send(&Request::Signal { id: self.id, signal: signal as i32, everything }, &[]).await
    }
}

impl Shared {
    fn programs(&self) -> MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, request: &Request, descriptors: &[OwnedFd]) -> io::Result<()> {
        let text = serde_json::to_vec(request)?;
        if text.len() > MESSAGE_BYTES {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let numbers: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&numbers)];
        let control: &[ControlMessage] = if numbers.is_empty() { &[] } else { &control };
        loop {
            let mut ready = self.socket.writable().await?;
            let sent = ready.try_io(|socket| {
                let number = socket.get_ref().as_raw_fd();
                Ok(sendmsg::<()>(number, &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, None)?)
            });
            match sent {
                Ok(result) => return result.map(drop).map_err(|_| ended()),
                Err(_would_block) => continue,
            }
        }
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(Reply, Option<OwnedFd>)>> {
        let (length, descriptors) = loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| crate::sys::receive(socket.get_ref(), buffer, MsgFlags::empty())) {
                Ok(result) => break result?,
                Err(_would_block) => continue,
            }
        };
        match buffer.get(..length) {
            Some([]) | None => Ok(None),
            Some(text) => Ok(Some((serde_json::from_slice(text)?, descriptors.into_iter().next()))),
        }
    }
}

/// Gives each reply to whoever waits for it. The end of the socket is the end of all programs: their senders go.
async fn read_replies(shared: Arc<Shared>, mut buffer: Vec<u8>) {
    while let Ok(Some((reply, terminal))) = shared.receive(&mut buffer).await {
        let mut programs = shared.programs();
        match reply {
            Reply::Started { id } => {
                if let Some(started) = programs.get_mut(&id).and_then(|waiting| waiting.started.take()) {
                    let _ = started.send(Ok(terminal)); // the starter may have given up
                }
            }
            Reply::NotStarted { id, errno } => {
                if let Some(started) = programs.remove(&id).and_then(|waiting| waiting.started) {
                    let _ = started.send(Err(io::Error::from_raw_os_error(errno))); // the starter may have given up
                }
            }
            Reply::Exited { id, exit } => {
                if let Some(waiting) = programs.remove(&id) {
                    waiting.exit.send_replace(Some(exit));
                }
            }
            Reply::Ready | Reply::Broken { .. } => {}
        }
    }
    shared.programs().clear();
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the pod has ended")
}
