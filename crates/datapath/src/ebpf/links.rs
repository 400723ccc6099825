//! The network interfaces of the node, as the programs at them need to know them: asked for and listened to by netlink.
//! Follows linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_AND_DUMP: u16 = 0x301;
const HEADER_BYTES: usize = 16;
const INFO_BYTES: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const ATTRIBUTE_TYPE: u16 = 0x3fff;
/// RTMGRP_LINK
const GROUP_LINKS: u32 = 1;
const ARPHRD_ETHER: u16 = 1;
/// Point to point, IP in IP (4 and 6), in IPv4, GRE (4 and 6), and what has no header at all.
const WITHOUT_HEADER: [u16; 7] = [512, 768, 769, 776, 778, 823, 0xfffe];
const ANSWER_BYTES: usize = 1 << 16;
const PATIENCE_S: i64 = 5;

/// An interface that packets of others cross.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether packets have an Ethernet header there.
    pub has_header: bool,
}

/// Tells when an interface comes or goes.
#[derive(Debug)]
pub(super) struct Changes(OwnedFd);

impl Changes {
    /// In the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub(super) fn new() -> io::Result<Changes> {
        let socket = netlink()?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUP_LINKS))?;
        Ok(Changes(socket))
    }

    /// Waits for the next one, or for so long.
    ///
    /// # Errors
    /// The kernel refused.
    pub(super) fn wait(&self, longest: Duration) -> io::Result<()> {
        let longest = TimeVal::milliseconds(i64::try_from(longest.as_millis()).unwrap_or(i64::MAX).max(1));
        setsockopt(&self.0, ReceiveTimeout, &longest)?;
        let mut buffer = vec![0; ANSWER_BYTES];
        match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            // Messages that were lost say that there were some.
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(1..) | Err(Errno::ENOBUFS | Errno::EINTR) =
            recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)
        {}
        Ok(())
    }
}

fn netlink() -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    Ok(socket)
}

/// All of the calling thread's network namespace, but the loopback and ports of a bridge or a bond: what crosses those
/// crosses the bridge, too.
///
/// # Errors
/// The kernel refused.
pub(super) fn interfaces() -> io::Result<Vec<Interface>> {
    let socket = netlink()?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
    setsockopt(&socket, RcvBuf, &(1 << 20))?;
    send(socket.as_raw_fd(), &request(), MsgFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0; ANSWER_BYTES];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        for (kind, body) in messages(&buffer[..length]) {
            match kind {
                RTM_NEWLINK => found.extend(interface(body)),
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => {
                    let errno = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    return Err(io::Error::from_raw_os_error(-errno));
                }
                _ => {}
            }
        }
    }
}

fn request() -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + INFO_BYTES).expect("a few bytes");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(RTM_GETLINK.to_ne_bytes());
    bytes.extend(REQUEST_AND_DUMP.to_ne_bytes());
    bytes.resize(HEADER_BYTES + INFO_BYTES, 0);
    bytes
}

/// Type and body of each message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
        let message = bytes.get(..length)?;
        let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
        let body = message.get(HEADER_BYTES..)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Type and value of each attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & ATTRIBUTE_TYPE;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn interface(body: &[u8]) -> Option<Interface> {
    let kind = u16::from_ne_bytes(*body.get(2..)?.first_chunk()?);
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let mut name = String::new();
    for (kind, value) in attributes(body.get(INFO_BYTES..)?) {
        match kind {
            IFLA_IFNAME => name = text(value),
            IFLA_LINKINFO if attributes(value).any(|(kind, value)| kind == IFLA_INFO_SLAVE_KIND && is_port(value)) => {
                return None;
            }
            _ => {}
        }
    }
    let has_header = kind == ARPHRD_ETHER;
    (has_header || WITHOUT_HEADER.contains(&kind)).then_some(Interface { index, name, has_header })
}

fn is_port(slave_kind: &[u8]) -> bool {
    ["bridge", "bond", "team", "openvswitch"].contains(&&*text(slave_kind))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ports_of_a_bridge_and_the_loopback_are_left_out() {
        let inside = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            let ip = |arguments: &str| {
                assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
            };
            ip("link add br0 type bridge");
            ip("link add port type veth peer name free");
            ip("link set port master br0");
            let changes = Changes::new().unwrap();
            ip("link add late type veth peer name late-peer");
            changes.wait(Duration::from_secs(10)).unwrap();
            interfaces().unwrap()
        };
        let found = std::thread::spawn(inside).join().unwrap();
        let names: Vec<&str> = found.iter().filter(|link| link.has_header).map(|link| &*link.name).collect();
        for name in ["br0", "free", "late", "late-peer"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!names.contains(&"port") && !found.iter().any(|link| link.name == "lo"), "{found:?}");
    }

    #[test]
    fn messages_that_are_cut_short_harm_nobody() {
        for length in 0..request().len() {
            assert_eq!(messages(&request()[..length]).count(), 0);
        }
        assert_eq!(messages(&request()).count(), 1);
        assert_eq!(interface(&[0; 5]), None);
        assert_eq!(attributes(&[1, 0, 3, 0]).count(), 0);
    }
}
