//! Reads the kernel's table through a netlink socket.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use signpost_core::object::Family;

use super::apply::NftablesError;
use super::layout::TABLE;
use super::netlink::{Attributes, Get, Message, NetlinkError, messages, request};
use super::observed::{ElementsReader, Observed, Table};

/// How often a listing begins anew because somebody changed rules meanwhile, ours or others.
const TRIES: usize = 10;

/// The kernel answers at once; longer than this, and something is wrong.
const PATIENCE_S: i64 = 10;

/// The most that the kernel puts into one answer.
const BUFFER_BYTES: usize = 1 << 15;

/// What the kernel holds of a family, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel refused, or its rules do not stop changing.
pub fn observe(family: Family) -> Result<Observed, NftablesError> {
    let mut socket = Socket::open(family)?;
    for _ in 0..TRIES {
        let before = socket.generation()?;
        let observed = match socket.table() {
            Err(NftablesError::Answer { source: NetlinkError::Interrupted, .. }) => continue,
            observed => observed?,
        };
        if socket.generation()? == before {
            return Ok(observed);
        }
    }
    Err(NftablesError::Answer { family, source: NetlinkError::Interrupted })
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    family: Family,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Socket {
    pub(super) fn open(family: Family) -> Result<Socket, NftablesError> {
        let open = || {
            let protocol = SockProtocol::NetlinkNetFilter;
            let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            setsockopt(&fd, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
            connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
            Ok(fd)
        };
        let fd = open().map_err(|errno| failed(family, errno))?;
        Ok(Socket { fd, family, sequence: 0, buffer: vec![0; BUFFER_BYTES].into() })
    }

    /// The number of the rules' generation.
    pub(super) fn generation(&mut self) -> Result<u32, NftablesError> {
        let mut generation = 0;
        self.get(Get::Generation, &[], |item| generation = item.number(1).unwrap_or_default())?;
        Ok(generation)
    }

    /// The table with its chains, without rules and sets.
    pub(super) fn outline(&mut self) -> Result<Option<Table>, NftablesError> {
        match self.get(Get::Table, &[(1, TABLE)], |_| ()) {
            Err(NftablesError::Netlink { source: Errno::ENOENT, .. }) => return Ok(None),
            answer => answer?,
        }
        let mut table = Table::default();
        self.get(Get::Chains, &[], |chain| table.read_chain(chain))?;
        Ok(Some(table))
    }

    /// Whether the family has a table of that name.
    pub(super) fn has_table(&mut self, name: &str) -> Result<bool, NftablesError> {
        match self.get(Get::Table, &[(1, name)], |_| ()) {
            Err(NftablesError::Netlink { source: Errno::ENOENT, .. }) => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    fn table(&mut self) -> Result<Observed, NftablesError> {
        let of_table = [(1, TABLE)];
        let Some(mut table) = self.outline()? else { return Ok(Observed::default()) };
        let mut sets = Vec::new();
        self.get(Get::Rules, &of_table, |rule| table.read_rule(rule))?;
        self.get(Get::Sets, &of_table, |set| sets.extend(table.read_set(set)))?;
        // What packets put in is theirs, and may be much.
        for set in sets.into_iter().filter(|set| !set.is_dynamic()) {
            let mut elements = ElementsReader::new(set, self.family);
            self.get(Get::Elements, &[(1, TABLE), (2, set.name())], |message| elements.read(message))?;
            table.sets.insert(set, elements.finish());
        }
        Ok(Observed { table: Some(table) })
    }

    /// Asks, and hands over each item of the answer.
    fn get(
        &mut self,
        get: Get,
        texts: &[(u16, &str)],
        mut item: impl FnMut(Attributes<'_>),
    ) -> Result<(), NftablesError> {
        let family = self.family;
        self.sequence += 1;
        let request = request(get, family, self.sequence, texts);
        send(self.fd.as_raw_fd(), &request, MsgFlags::empty()).map_err(|errno| failed(family, errno))?;
        loop {
            let count = recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_TRUNC);
            let count = count.map_err(|errno| failed(family, errno))?;
            let cut_off = NftablesError::Answer { family, source: NetlinkError::CutOff };
            for message in messages(self.buffer.get(..count).ok_or(cut_off)?, self.sequence) {
                match message.map_err(|source| NftablesError::Answer { family, source })? {
                    Message::Item(attributes) => item(attributes),
                    Message::Done | Message::Error(0) => return Ok(()),
                    Message::Error(errno) => return Err(failed(family, Errno::from_raw(errno))),
                }
                if !get.is_dump() {
                    return Ok(());
                }
            }
        }
    }
}

fn failed(family: Family, errno: Errno) -> NftablesError {
    match errno {
        Errno::EPERM => NftablesError::NotPermitted { op: "list its packet rules" },
        source => NftablesError::Netlink { family, source },
    }
}
