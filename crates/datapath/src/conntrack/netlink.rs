//! The conversation with the kernel: lists flows, deletes flows.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use signpost_core::object::Family;

use super::flow::Flow;
use super::message::{self, Answer};

/// Why conntrack could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// The kernel does not let this process, or has no conntrack.
    #[error("cannot {op} conntrack's flows: {source}")]
    Kernel {
        /// What was to be done.
        op: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The table kept changing its size while it was listed.
    #[error("conntrack's table changed its size during each of {tries} listings")]
    Interrupted {
        /// So often it was tried.
        tries: u32,
    },
}

/// Longer than the kernel ever takes for its next answer.
const PATIENCE_S: i64 = 5;
/// Room for one answer: the kernel fills up to this much for one read of a list.
const ANSWER_BYTES: usize = 1 << 16;
/// So many deletions are sent before their answers are read: what waits fits into the socket's buffer.
const BATCH: usize = 256;
/// The kernel's answers to one batch, and those of a long list, wait in here.
const BUFFER_BYTES: usize = 1 << 20;
const LIST_TRIES: u32 = 3;

/// A netlink socket in one network namespace.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// In the calling thread's network namespace.
    pub fn open() -> Result<Socket, ConntrackError> {
        Socket::make().map_err(|error| failed("open a way to", error))
    }

    fn make() -> nix::Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let descriptor = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&descriptor, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
        setsockopt(&descriptor, RcvBuf, &BUFFER_BYTES)?;
        Ok(Socket { descriptor, sequence: 0, buffer: vec![0; ANSWER_BYTES] })
    }

    /// Calls `each` for every UDP flow of a family. A flow that is seen twice does no harm; if some may have been
    /// missed, the list is read again.
    pub fn list_udp(&mut self, family: Family, each: impl FnMut(Flow)) -> Result<(), ConntrackError> {
        self.list_of(message::UDP, family, each)
    }

    /// The same for TCP.
    pub fn list_tcp(&mut self, family: Family, each: impl FnMut(Flow)) -> Result<(), ConntrackError> {
        self.list_of(message::TCP, family, each)
    }

    fn list_of(&mut self, protocol: u8, family: Family, mut each: impl FnMut(Flow)) -> Result<(), ConntrackError> {
        for _ in 0..LIST_TRIES {
            if self.list(protocol, family, &mut each).map_err(|error| failed("list", error))? {
                return Ok(());
            }
        }
        Err(ConntrackError::Interrupted { tries: LIST_TRIES })
    }

    /// Whether the list is whole.
    fn list(&mut self, protocol: u8, family: Family, each: &mut impl FnMut(Flow)) -> nix::Result<bool> {
        let sequence = self.next();
        self.send(&message::list(protocol, family, sequence))?;
        loop {
            for (_, answer) in self.receive(protocol)?.filter(|(to, _)| *to == sequence) {
                match answer {
                    Answer::Flow(Some(flow)) => each(flow),
                    Answer::Done { interrupted } => return Ok(!interrupted),
                    Answer::Acknowledged(error) if error != 0 => return Err(Errno::from_raw(error)),
                    _ => {}
                }
            }
        }
    }

    /// Deletes flows, those that are still there; tells how many were.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<usize, ConntrackError> {
        let mut deleted = 0;
        for batch in flows.chunks(BATCH) {
            deleted += self.delete_batch(batch).map_err(|error| failed("delete", error))?;
        }
        Ok(deleted)
    }

    fn delete_batch(&mut self, flows: &[Flow]) -> nix::Result<usize> {
        let first = self.sequence.wrapping_add(1);
        let requests: Vec<u8> = flows.iter().flat_map(|flow| message::delete(flow, self.next())).collect();
        self.send(&requests)?;
        let (mut waiting, mut deleted) = (flows.len(), 0);
        while waiting > 0 {
            for (to, answer) in self.receive(message::UDP)? {
                let is_ours = usize::try_from(to.wrapping_sub(first)).is_ok_and(|number| number < flows.len());
                let Answer::Acknowledged(error) = answer else { continue };
                if !is_ours {
                    continue;
                }
                waiting = waiting.saturating_sub(1);
                match error {
                    0 => deleted += 1,
                    // It ended by itself, or annumber took its place.
                    number if Errno::from_raw(number) == Errno::ENOENT => {}
                    number => return Err(Errno::from_raw(number)),
                }
            }
        }
        Ok(deleted)
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&self, bytes: &[u8]) -> nix::Result<()> {
        sendto(self.descriptor.as_raw_fd(), bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty()).map(|_| ())
    }

    fn receive(&mut self, protocol: u8) -> nix::Result<impl Iterator<Item = (u32, Answer)>> {
        loop {
            match recv(self.descriptor.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(count) => return Ok(message::answers(&self.buffer[..count], protocol)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                Err(error) => return Err(error),
            }
        }
    }
}

fn failed(op: &'static str, error: Errno) -> ConntrackError {
    let source = match error {
        Errno::EPERM => io::Error::new(ErrorKind::PermissionDenied, "it needs CAP_NET_ADMIN: run as root"),
        error => error.into(),
    };
    ConntrackError::Kernel { op, source }
}
