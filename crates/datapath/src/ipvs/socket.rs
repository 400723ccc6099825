//! The conversations with the kernel: generic netlink with IPVS, routing netlink about the device.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::{RcvBuf, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use signpost_core::object::Family;

use super::apply::IpvsError;
use super::link;
use super::message::{self, Answer, ObservedServer, Request};
use super::server::ServerKey;

/// Longer than the kernel ever takes for its next answer; loading modules included.
const PATIENCE_S: i64 = 20;
/// Room for one answer: the kernel fills up to this much for one read of a list.
const ANSWER_BYTES: usize = 1 << 16;
/// So many requests are sent before their answers are read: what waits fits into the socket's buffer.
const BATCH: usize = 128;
/// The kernel's answers to one batch, and those of a long list, wait in here.
const BUFFER_BYTES: usize = 1 << 20;
const LIST_TRIES: u32 = 3;

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
struct Netlink {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    fn open(protocol: SockProtocol) -> nix::Result<Netlink> {
        let descriptor = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&descriptor, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
        setsockopt(&descriptor, RcvBuf, &BUFFER_BYTES)?;
        Ok(Netlink { descriptor, sequence: 0, buffer: vec![0; ANSWER_BYTES] })
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&self, bytes: &[u8]) -> nix::Result<()> {
        sendto(self.descriptor.as_raw_fd(), bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty()).map(|_| ())
    }

    fn receive(&mut self) -> nix::Result<&[u8]> {
        loop {
            match recv(self.descriptor.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(count) => return Ok(&self.buffer[..count]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends requests, each made for its sequence number; the errno of each.
    fn ask<T>(
        &mut self,
        requests: &[T],
        make: impl Fn(u32, &T) -> Vec<u8>,
        acknowledged: impl Fn(&[u8]) -> Vec<(u32, i32)>,
    ) -> nix::Result<Vec<i32>> {
        let mut errors = Vec::with_capacity(requests.len());
        for batch in requests.chunks(BATCH) {
            let first = self.sequence.wrapping_add(1);
            let mut bytes = Vec::new();
            for request in batch {
                let sequence = self.next();
                bytes.extend(make(sequence, request));
            }
            self.send(&bytes)?;
            let mut of_batch = vec![None; batch.len()];
            while of_batch.contains(&None) {
                for (to, errno) in acknowledged(self.receive()?) {
                    let number = usize::try_from(to.wrapping_sub(first)).unwrap_or(usize::MAX);
                    if let Some(place) = of_batch.get_mut(number) {
                        *place = Some(errno);
                    }
                }
            }
            errors.extend(of_batch.into_iter().flatten());
        }
        Ok(errors)
    }
}

/// IPVS, in one network namespace.
#[derive(Debug)]
pub(super) struct Ipvs {
    netlink: Netlink,
    /// The number of IPVS among the families of generic netlink.
    id: u16,
    family: Family,
}

impl Ipvs {
    /// Loads the kernel's module if it is one.
    pub fn open(family: Family) -> Result<Ipvs, IpvsError> {
        let make = || -> nix::Result<(Netlink, u16)> {
            let mut netlink = Netlink::open(SockProtocol::NetlinkGeneric)?;
            let sequence = netlink.next();
            netlink.send(&message::get_family(sequence))?;
            loop {
                let answers: Vec<_> = message::answers(netlink.receive()?, family).collect();
                for (_, answer) in answers.into_iter().filter(|(to, _)| *to == sequence) {
                    match answer {
                        Answer::FamilyId(id) => return Ok((netlink, id)),
                        Answer::Acknowledged(error) if error != 0 => return Err(Errno::from_raw(error)),
                        _ => {}
                    }
                }
            }
        };
        match make() {
            Ok((netlink, id)) => Ok(Ipvs { netlink, id, family }),
            Err(Errno::ENOENT) => Err(IpvsError::NoIpvs),
            Err(error) => Err(failed("open a way to IPVS", error)),
        }
    }

    /// The servers of the family, with their destinations.
    pub fn servers(&mut self) -> Result<BTreeMap<ServerKey, ObservedServer>, IpvsError> {
        let mut servers = BTreeMap::new();
        self.list(
            |id, sequence, _| message::list_servers(id, sequence),
            |answer| {
                if let Answer::Server(key, server) = answer {
                    servers.insert(key, server);
                }
            },
        )
        .map_err(|error| failed("list virtual servers", error))?;
        for (key, server) in &mut servers {
            if let Some(found) = self.destinations(*key)? {
                server.destinations = found.destinations;
            }
        }
        Ok(servers)
    }

    /// A server's destinations.
    pub fn destinations(&mut self, key: ServerKey) -> Result<Option<ObservedServer>, IpvsError> {
        let mut destinations = BTreeMap::new();
        let listed = self.list(
            |id, sequence, family| message::list_destinations(id, sequence, family, key),
            |answer| {
                if let Answer::Destination(at, found) = answer {
                    destinations.insert(at, found);
                }
            },
        );
        match listed {
            Ok(()) => Ok(Some(ObservedServer { scheduler: String::new(), flags: 0, timeout_s: 0, destinations })),
            Err(Errno::ESRCH) => Ok(None),
            Err(error) => Err(failed("list destinations", error)),
        }
    }

    fn list(&mut self, make: impl Fn(u16, u32, Family) -> Vec<u8>, mut each: impl FnMut(Answer)) -> nix::Result<()> {
        for _ in 0..LIST_TRIES {
            let sequence = self.netlink.next();
            self.netlink.send(&make(self.id, sequence, self.family))?;
            if self.list_once(sequence, &mut each)? {
                return Ok(());
            }
        }
        Err(Errno::EINTR)
    }

    /// Whether the list is whole.
    fn list_once(&mut self, sequence: u32, each: &mut impl FnMut(Answer)) -> nix::Result<bool> {
        loop {
            let answers: Vec<_> = message::answers(self.netlink.receive()?, self.family).collect();
            for (_, answer) in answers.into_iter().filter(|(to, _)| *to == sequence) {
                match answer {
                    Answer::Done { interrupted } => return Ok(!interrupted),
                    Answer::Acknowledged(0) => return Ok(true),
                    Answer::Acknowledged(error) => return Err(Errno::from_raw(error)),
                    answer => each(answer),
                }
            }
        }
    }

    /// Sends requests; the errno of each.
    pub fn send(&mut self, requests: &[Request]) -> Result<Vec<i32>, IpvsError> {
        let (id, family) = (self.id, self.family);
        let acknowledged = |bytes: &[u8]| -> Vec<(u32, i32)> {
            let errno = |(to, answer)| if let Answer::Acknowledged(errno) = answer { Some((to, errno)) } else { None };
            message::answers(bytes, family).filter_map(errno).collect()
        };
        let make = |sequence, request: &Request| message::request(id, sequence, family, request);
        self.netlink.ask(requests, make, acknowledged).map_err(|error| failed("change virtual servers", error))
    }
}

/// The device's addresses of a family; `None`: there is no device.
pub(super) fn addresses(family: Family) -> Result<Option<BTreeSet<IpAddr>>, IpvsError> {
    let device = match if_nametoindex(link::DEVICE) {
        Ok(device) => device,
        Err(Errno::ENODEV | Errno::ENXIO) => return Ok(None),
        Err(error) => return Err(failed("look for kube-ipvs0", error)),
    };
    let list = || -> nix::Result<BTreeSet<IpAddr>> {
        let mut netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
        for _ in 0..LIST_TRIES {
            let mut found = BTreeSet::new();
            let sequence = netlink.next();
            netlink.send(&link::list_addresses(sequence, family))?;
            'whole: loop {
                for (_, answer) in link::answers(netlink.receive()?).filter(|(to, _)| *to == sequence) {
                    match answer {
                        link::Answer::Address(of, address) if of == device => {
                            found.insert(address);
                        }
                        link::Answer::Done { interrupted: false } => return Ok(found),
                        link::Answer::Done { interrupted: true } => break 'whole,
                        link::Answer::Acknowledged(error) if error != 0 => return Err(Errno::from_raw(error)),
                        _ => {}
                    }
                }
            }
        }
        Err(Errno::EINTR)
    };
    let mut found = list().map_err(|error| failed("list the addresses of kube-ipvs0", error))?;
    found.retain(|address| !is_link_local(*address));
    Ok(Some(found))
}

/// The kernel gives one to each device that is up.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

enum Step {
    Add(IpAddr),
    Delete(IpAddr),
}

/// Gives the device addresses, and takes some.
pub(super) fn rebind(bound: &[IpAddr], unbound: &[IpAddr]) -> Result<(), IpvsError> {
    const OP: &str = "change the addresses of kube-ipvs0";
    let device = if_nametoindex(link::DEVICE).map_err(|error| failed(OP, error))?;
    let steps: Vec<Step> =
        bound.iter().copied().map(Step::Add).chain(unbound.iter().copied().map(Step::Delete)).collect();
    let make = |sequence, step: &Step| match step {
        Step::Add(address) => link::add_address(sequence, device, *address),
        Step::Delete(address) => link::delete_address(sequence, device, *address),
    };
    let errors = routing(&steps, make).map_err(|error| failed(OP, error))?;
    for (step, errno) in steps.iter().zip(errors) {
        match (step, Errno::from_raw(errno)) {
            _ if errno == 0 => {}
            (Step::Add(_), Errno::EEXIST) | (Step::Delete(_), Errno::EADDRNOTAVAIL) => {}
            (_, error) => return Err(failed(OP, error)),
        }
    }
    Ok(())
}

fn routing<T>(steps: &[T], make: impl Fn(u32, &T) -> Vec<u8>) -> nix::Result<Vec<i32>> {
    let acknowledged = |bytes: &[u8]| -> Vec<(u32, i32)> {
        let errno =
            |(to, answer)| if let link::Answer::Acknowledged(errno) = answer { Some((to, errno)) } else { None };
        link::answers(bytes).filter_map(errno).collect()
    };
    Netlink::open(SockProtocol::NetlinkRoute)?.ask(steps, make, acknowledged)
}

/// Makes the device, or removes it. One that is there, or gone, already is fine.
pub(super) fn device(is_wanted: bool) -> Result<(), IpvsError> {
    let make = |sequence, is_wanted: &bool| {
        if *is_wanted { link::new_device(sequence) } else { link::delete_device(sequence) }
    };
    let op = if is_wanted { "make the device kube-ipvs0, of the type dummy" } else { "remove the device kube-ipvs0" };
    let errors = routing(&[is_wanted], make).map_err(|error| failed(op, error))?;
    match Errno::from_raw(errors[0]) {
        _ if errors[0] == 0 => Ok(()),
        Errno::EEXIST if is_wanted => Ok(()),
        Errno::ENODEV if !is_wanted => Ok(()),
        error => Err(failed(op, error)),
    }
}

fn failed(op: &'static str, error: Errno) -> IpvsError {
    let source = match error {
        Errno::EPERM => io::Error::new(ErrorKind::PermissionDenied, "it needs CAP_NET_ADMIN: run as root"),
        error => error.into(),
    };
    IpvsError::Kernel { op, source }
}
