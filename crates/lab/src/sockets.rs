//! Sockets that belong to a node: made in its control group, where the programs of the mode eBPF are, and in any network
//! namespace. A socket keeps the control group of the process that made it, so another process must make it.
//!
//! ```text
//! SocketMaker ─ kind of socket, network namespace ─▶ helper process in NODE/probes: setns, socket
//!             ◀────────────── the socket ───────────
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{self, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, sendmsg, socket, socketpair,
};
use tokio::process::{Child, Command};

use crate::cgroup::Cgroup;
use crate::netns::Netns;
use crate::spawner::{Spawner, Surroundings};
use crate::sys;

/// The hidden command of the signpost binary that is the helper.
pub const COMMAND: &str = "socket-maker";

/// What a socket is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The address family.
    pub family: AddressFamily,
    /// Stream or datagrams.
    pub sort: SockType,
    /// The protocol, if not the family's own for the sort.
    pub protocol: Option<SockProtocol>,
    /// Whether calls do not wait.
    pub nonblocking: bool,
}

/// A place in which sockets are made.
#[derive(Debug, Clone)]
pub struct Sockets {
    netns: Netns,
    /// `None`: this process makes them itself; no program of a node's is asked then.
    maker: Option<Arc<SocketMaker>>,
}

impl Sockets {
    /// In a network namespace alone.
    pub fn of_netns(netns: Netns) -> Sockets {
        Sockets { netns, maker: None }
    }

    /// In a network namespace and a node's control group.
    pub fn of_node(netns: Netns, maker: Arc<SocketMaker>) -> Sockets {
        Sockets { netns, maker: Some(maker) }
    }

    /// Makes one.
    ///
    /// # Errors
    /// The kernel refused, or the helper is gone.
    pub fn make(&self, kind: Kind) -> io::Result<OwnedFd> {
        match &self.maker {
            Some(maker) => maker.make(kind, self.netns.as_fd()),
            None => self.netns.run(|| Ok(kind.make()?)),
        }
    }
}

impl Kind {
    fn make(self) -> nix::Result<OwnedFd> {
        let waits = if self.nonblocking { SockFlag::SOCK_NONBLOCK } else { SockFlag::empty() };
        socket(self.family, self.sort, SockFlag::SOCK_CLOEXEC | waits, self.protocol)
    }

    fn bytes(self) -> [u8; 4] {
        let family = u8::from(self.family == AddressFamily::Inet6);
        let sort = u8::from(self.sort == SockType::Datagram);
        let protocol = match self.protocol {
            None => 0,
            Some(SockProtocol::Icmp) => 1,
            Some(_) => 2,
        };
        [family, sort, protocol, u8::from(self.nonblocking)]
    }

    fn read([family, sort, protocol, nonblocking]: [u8; 4]) -> Kind {
        Kind {
            family: if family == 0 { AddressFamily::Inet } else { AddressFamily::Inet6 },
            sort: if sort == 0 { SockType::Stream } else { SockType::Datagram },
            protocol: match protocol {
                0 => None,
                1 => Some(SockProtocol::Icmp),
                _ => Some(SockProtocol::IcmpV6),
            },
            nonblocking: nonblocking != 0,
        }
    }
}

/// The helper of one node. It ends with this.
#[derive(Debug)]
pub struct SocketMaker {
    socket: Mutex<OwnedFd>,
    _helper: Child,
}

impl SocketMaker {
    /// Starts it in a control group. `program` is the signpost binary.
    ///
    /// # Errors
    /// The process could not be made.
    pub async fn start(spawner: &Spawner, program: &Path, cgroup: &Cgroup) -> io::Result<SocketMaker> {
        cgroup.create()?;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let mut command = Command::new(program);
        command.arg(COMMAND).env_clear().stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let around = Surroundings { cgroup: Some(cgroup.clone()), session: true, ..Surroundings::default() };
        let helper = spawner.spawn(command, around).await?;
        Ok(SocketMaker { socket: Mutex::new(ours), _helper: helper })
    }

    fn make(&self, kind: Kind, netns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // Half an exchange is left only by a panic between two system calls.
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(socket.as_fd(), &kind.bytes(), Some(netns))?;
        let mut errno = [0; 4];
        let (count, made) = sys::receive(&*socket, &mut errno, MsgFlags::empty())?;
        match made.into_iter().next() {
            Some(made) => Ok(made),
            None if count == errno.len() => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            None => Err(io::Error::other("the process that makes a node's sockets has ended")),
        }
    }
}

fn send(to: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let numbers: Vec<i32> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// The helper: answers on its standard input until the lab's process is gone.
pub fn main() -> ExitCode {
    let stdin = io::stdin();
    let mut residents = Residents::default();
    while let Ok(true) = answer(stdin.as_fd(), &mut residents) {}
    ExitCode::SUCCESS
}

/// A process in each of the last network namespaces, as every real pod has one: a node's daemon finds a namespace by the
/// processes in it, and a light pod has none.
#[derive(Default)]
struct Residents(VecDeque<(u64, process::Child)>);

/// So many namespaces have one; those of pods that are gone are among the oldest.
const RESIDENTS: usize = 24;

impl Residents {
    /// In the namespace that this process is in.
    fn settle(&mut self, netns: &OwnedFd) -> io::Result<()> {
        let number = File::from(netns.try_clone()?).metadata()?.ino();
        if self.0.iter().any(|(known, _)| *known == number) {
            return Ok(());
        }
        let mut command = process::Command::new("sleep");
        command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        sys::before_exec(&mut command, || Ok(set_pdeathsig(Signal::SIGKILL)?));
        self.0.push_back((number, command.spawn()?));
        if self.0.len() > RESIDENTS
            && let Some((_, mut oldest)) = self.0.pop_front()
        {
            oldest.kill()?;
            oldest.wait()?;
        }
        Ok(())
    }
}

/// Whether there was something to answer.
fn answer(socket: BorrowedFd<'_>, residents: &mut Residents) -> io::Result<bool> {
    let mut kind = [0; 4];
    let (count, netns) = sys::receive(socket, &mut kind, MsgFlags::empty())?;
    let Some(netns) = netns.into_iter().next().filter(|_| count == kind.len()) else { return Ok(false) };
    let made = setns(&netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    let made = made.and_then(|()| residents.settle(&netns)).and_then(|()| Ok(Kind::read(kind).make()?));
    let errno = made.as_ref().err().and_then(io::Error::raw_os_error).unwrap_or(nix::libc::EIO);
    send(socket, &errno.to_ne_bytes(), made.as_ref().ok().map(AsFd::as_fd))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back_from_their_bytes() {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            for sort in [SockType::Stream, SockType::Datagram] {
                for protocol in [None, Some(SockProtocol::Icmp), Some(SockProtocol::IcmpV6)] {
                    let kind = Kind { family, sort, protocol, nonblocking: true };
                    assert_eq!(Kind::read(kind.bytes()), kind);
                }
            }
        }
    }

    #[test]
    fn a_socket_is_made_in_the_namespace_that_was_named() {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let helper = std::thread::spawn(move || answer(theirs.as_fd(), &mut Residents::default()).unwrap());
        let netns = Netns::new(false).unwrap();
        let kind = Kind { family: AddressFamily::Inet, sort: SockType::Stream, protocol: None, nonblocking: false };
        let listener = netns.run(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        send(ours.as_fd(), &kind.bytes(), Some(netns.as_fd())).unwrap();
        assert!(helper.join().unwrap());
        let (_, made) = sys::receive(&ours, &mut [0; 4], MsgFlags::empty()).unwrap();
        let address = nix::sys::socket::SockaddrStorage::from(listener.local_addr().unwrap());
        nix::sys::socket::connect(made[0].as_raw_fd(), &address).unwrap();
    }
}
