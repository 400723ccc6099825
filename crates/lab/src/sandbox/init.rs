//! The first process of a pod (process 1 of its namespace): a run of the signpost binary. It makes the pod's view of
//! the machine, gives up its rights, runs itself anew from inside that view, and then starts programs, passes signals
//! on and reaps what ends, as the supervisor asks over the socket on its file descriptor 0. It has one thread.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_dumpable, set_no_new_privs};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use super::protocol::{Exit, MESSAGE_BYTES, PROGRAMS, Reply, Request, Start};
use super::view;
use crate::sys::{self, Capabilities};
use crate::terminal::open_terminal;

/// The hidden command that runs this.
pub const COMMAND: &str = "pod-init";
/// Its argument once it runs inside the pod's view.
pub const INSIDE: &str = "--inside";

/// Runs until the supervisor is gone.
pub fn main(inside: bool) -> ExitCode {
    let result = if inside { serve() } else { prepare().map(|never| match never {}) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The supervisor may be gone; then nobody needs to know.
            let _ = reply(&Reply::Broken { problem: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

fn prepare() -> io::Result<Infallible> {
    let mut buffer = vec![0; MESSAGE_BYTES];
    let (request, _) = receive(&mut buffer)?.ok_or(io::ErrorKind::BrokenPipe)?;
    let Request::Prepare(view) = request else {
        return Err(io::Error::other("the first message must say what the pod sees"));
    };
    view::enter(&view)?;
    sys::limit_capabilities(Capabilities::POD)?;
    set_no_new_privs()?;
    Err(Command::new(Path::new(PROGRAMS).join("signpost")).arg(COMMAND).arg(INSIDE).env_clear().exec())
}

fn serve() -> io::Result<()> {
    set_dumpable(false)?; // the pod's other processes must not take the socket over
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&children), None)?;
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut buffer = vec![0; MESSAGE_BYTES];
    let mut programs = Programs::default();
    reply(&Reply::Ready)?;
    loop {
        let stdin = io::stdin();
        let mut waiting =
            [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let ready = waiting.map(|fd| fd.any().unwrap_or(true));
        if ready[1] {
            while signals.read_signal()?.is_some() {}
            programs.reap()?;
        }
        if ready[0] {
            match receive(&mut buffer)? {
                None => return Ok(()), // the kernel ends the whole pod with its first process
                Some((request, descriptors)) => programs.handle(request, descriptors)?,
            }
        }
    }
}

/// The programs that were asked for and still run. Each leads a session and a process group of its own.
#[derive(Default)]
struct Programs {
    by_id: BTreeMap<u64, Pid>,
}

impl Programs {
    fn handle(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::Prepare(_) => Err(io::Error::other("the pod's view is made already")),
            Request::Start(start) => {
                let id = start.id;
                match run(start, descriptors) {
                    Ok((pid, terminal)) => {
                        self.by_id.insert(id, pid);
                        reply_with(&Reply::Started { id }, terminal.as_ref())
                    }
                    Err(error) => {
                        reply(&Reply::NotStarted { id, errno: error.raw_os_error().unwrap_or(Errno::EINVAL as i32) })
                    }
                }
            }
            Request::Signal { id, signal, everything } => {
                if let (Some(pid), Ok(signal)) = (self.by_id.get(&id), Signal::try_from(signal)) {
                    let target = if everything { Pid::from_raw(-pid.as_raw()) } else { *pid };
                    match kill(target, signal) {
                        Err(Errno::ESRCH) => {} // it ended just now
                        other => other?,
                    }
                }
                Ok(())
            }
        }
    }

    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, exit) = match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => (pid, Exit::Status(status)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
                Ok(_) => continue,
                Err(error) => return Err(error.into()),
            };
            let ended = self.by_id.iter().find(|(_, known)| **known == pid).map(|(id, _)| *id);
            if let Some(id) = ended {
                self.by_id.remove(&id);
                // What it left running goes with it, as with a container; ESRCH: it left nothing.
                let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGKILL);
                reply(&Reply::Exited { id, exit })?;
            }
        }
    }
}

/// Starts a program; gives its process and our side of its terminal, if it has one.
fn run(start: Start, descriptors: Vec<OwnedFd>) -> io::Result<(Pid, Option<OwnedFd>)> {
    let (streams, terminal) = match start.terminal {
        None => (descriptors, None),
        Some((columns, rows)) => {
            let (ours, theirs) = open_terminal()?;
            sys::set_terminal_size(&ours, columns, rows)?;
            (vec![theirs.try_clone()?, theirs.try_clone()?, theirs], Some(ours))
        }
    };
    let [stdin, stdout, stderr]: [OwnedFd; 3] = streams.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let (program, arguments) = start.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(start.env).stdin(stdin).stdout(stdout).stderr(stderr);
    if let Some(directory) = start.directory {
        command.current_dir(directory);
    }
    if let Some(group) = start.group {
        command.gid(group);
    }
    if let Some(user) = start.user {
        command.uid(user);
    }
    let controls = terminal.is_some();
    sys::before_exec(&mut command, move || {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        setsid()?;
        if controls {
            sys::take_terminal()?;
        }
        Ok(())
    });
    Ok((Pid::from_raw(command.spawn()?.id() as i32), terminal))
}

fn receive(buffer: &mut [u8]) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let (length, descriptors) = sys::receive(io::stdin(), buffer, MsgFlags::empty())?;
    if length == 0 {
        return Ok(None);
    }
    let text = buffer.get(..length).ok_or(io::ErrorKind::FileTooLarge)?;
    Ok(Some((serde_json::from_slice(text)?, descriptors)))
}

fn reply(reply: &Reply) -> io::Result<()> {
    reply_with(reply, None)
}

fn reply_with(reply: &Reply, descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let text = serde_json::to_vec(reply)?;
    let numbers: Vec<i32> = descriptor.iter().map(|fd| fd.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&numbers)];
    let control: &[ControlMessage] = if numbers.is_empty() { &[] } else { &control };
    sendmsg::<()>(io::stdin().as_raw_fd(), &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}
