//! The number of the ruleset's generation: the kernel counts every transaction of nftables in the network namespace, whoever
//! makes it. Asking costs microseconds, so who keeps rules sees at once that someone else was there.
//!
//! Netlink as in the kernel's `net/netfilter/nf_tables_api.c` (nf_tables_getgen), numbers from `linux/netfilter/nf_tables.h`.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// NFNL_SUBSYS_NFTABLES in the upper byte, NFT_MSG_NEWGEN and NFT_MSG_GETGEN in the lower.
const NEWGEN: u16 = (10 << 8) | 15;
const GETGEN: u16 = (10 << 8) | 16;
const NLM_F_REQUEST: u16 = 1;
/// NFTA_GEN_ID: a number of four bytes in network order.
const GEN_ID: u16 = 1;
/// struct nlmsghdr and struct nfgenmsg.
const HEADER_BYTES: usize = 16;
const FAMILY_BYTES: usize = 4;
const PATIENCE_S: i64 = 1;

/// Asks for the number; the socket stays in the network namespace of the thread that asked first.
#[derive(Debug, Default)]
pub(super) struct Generation {
    socket: Option<OwnedFd>,
}

impl Generation {
    /// `None`: the kernel does not say.
    pub(super) fn read(&mut self) -> Option<u32> {
        let answer = self.ask();
        if answer.is_err() {
            // An answer that comes late would be taken for that to the next question.
            self.socket = None;
        }
        parse(&answer.ok()?)
    }

    fn ask(&mut self) -> nix::Result<Vec<u8>> {
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.socket.insert(open()?),
        };
        let descriptor = socket.as_raw_fd();
        sendto(descriptor, &request(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut answer = vec![0; 4096];
        let read = recv(descriptor, &mut answer, MsgFlags::empty())?;
        answer.truncate(read);
        Ok(answer)
    }
}

impl Clone for Generation {
    /// The copy opens a socket of its own.
    fn clone(&self) -> Generation {
        Generation::default()
    }
}

fn open() -> nix::Result<OwnedFd> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
    Ok(socket)
}

fn request() -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + FAMILY_BYTES);
    message.extend(u32::try_from(HEADER_BYTES + FAMILY_BYTES).expect("twenty bytes").to_ne_bytes());
    message.extend(GETGEN.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence and port: one question at a time, asked of the kernel. Then family, version and resource: any.
    message.extend([0; 8 + FAMILY_BYTES]);
    message
}

fn parse(message: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != NEWGEN {
        return None;
    }
    let mut rest = message.get(HEADER_BYTES + FAMILY_BYTES..)?;
    while let Some(head) = rest.get(..4) {
        let bytes = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let name = u16::from_ne_bytes([head[2], head[3]]);
        if name == GEN_ID {
            return Some(u32::from_be_bytes(rest.get(4..8)?.try_into().ok()?));
        }
        rest = rest.get(bytes.max(4).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn each_transaction_of_anyone_raises_it_by_one_and_asking_does_not() {
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            let mut generation = Generation::default();
            let before = generation.read().unwrap();
            assert_eq!(generation.read(), Some(before));
            let status = Command::new("nft").args(["add", "table", "ip", "someone"]).status().unwrap();
            assert!(status.success());
            assert_eq!(generation.read(), Some(before + 1));
            assert_eq!(generation.clone().read(), Some(before + 1));
            assert!(Command::new("nft").args(["list", "ruleset"]).status().unwrap().success());
            assert_eq!(generation.read(), Some(before + 1));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_is_no_answer_gives_no_number() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&request()), None);
        let mut answer = request();
        answer[4..6].copy_from_slice(&NEWGEN.to_ne_bytes());
        assert_eq!(parse(&answer), None);
        answer.extend([0, 0, 9, 0]);
        assert_eq!(parse(&answer), None);
        answer.extend([8, 0, 1, 0, 0, 0, 1]);
        assert_eq!(parse(&answer), None);
        answer.push(2);
        assert_eq!(parse(&answer), Some(258));
    }
}
