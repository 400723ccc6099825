//! Answers ARP requests and neighbour solicitations for addresses that are on no interface, and tells the segment of new ones.
//!
//! ```text
//! wire ──▶ packet sockets ──▶ wire::arp, wire::ndp (decode) ──▶ ours? ──▶ answer
//! ```
//!
//! The sockets see every interface; which address is answered for where stands in a table that the announcer sets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};

use signpost_wire::mac::Mac;
use signpost_wire::{arp, ndp};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, trace, warn};

use super::numbers::Numbers;
use crate::sys::{self, Frame};

const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// An address on an interface.
pub type Place = (u32, IpAddr);

/// Which addresses are answered for, where, and with which Ethernet address.
pub type Answers = BTreeMap<Place, Mac>;

/// The sockets and the table.
pub struct Responder {
    arp: Arc<AsyncFd<OwnedFd>>,
    ndp: Arc<AsyncFd<OwnedFd>>,
    answers: Arc<RwLock<Answers>>,
    /// Joins the groups that solicitations are sent to, so that interfaces let them through.
    groups: Option<UdpSocket>,
    joined: BTreeSet<(u32, Ipv6Addr)>,
    numbers: Numbers,
    watched: Watched,
    _tasks: JoinSet<()>,
}

impl Responder {
    /// Answers for nothing yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The kernel gives no sockets: they need CAP_NET_RAW.
    pub fn start(numbers: Numbers, told: mpsc::Sender<Sighting>) -> io::Result<Responder> {
        let arp = Arc::new(sys::watch_readable(sys::packet_socket(ARP)?)?);
        let solicitations = sys::packet_socket(IPV6)?;
        sys::keep_neighbour_discovery(&solicitations)?;
        let ndp = Arc::new(sys::watch_readable(solicitations)?);
        let groups = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok();
        let answers = Arc::new(RwLock::new(Answers::new()));
        let watched = Watched::default();
        let looks = |of| Looks { watched: watched.clone(), told: told.clone(), of };
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(arp.clone(), answers.clone(), answer_arp, numbers.clone(), looks(claimed_by_arp)));
        tasks.spawn(serve(ndp.clone(), answers.clone(), answer_ndp, numbers.clone(), looks(claimed_by_ndp)));
        Ok(Responder { arp, ndp, answers, groups, joined: BTreeSet::new(), numbers, watched, _tasks: tasks })
    }

    /// Answers for these from now on, and for nothing else.
    pub fn set(&mut self, answers: Answers) {
        let groups: BTreeSet<(u32, Ipv6Addr)> = answers
            .keys()
            .filter_map(|(interface, address)| match address {
                IpAddr::V6(address) => Some((*interface, ndp::solicited_node(*address))),
                IpAddr::V4(_) => None,
            })
            .collect();
        if let Some(socket) = &self.groups {
            for (interface, group) in groups.difference(&self.joined) {
                if let Err(error) = socket.join_multicast_v6(group, *interface) {
                    warn!(interface, %group, %error, "cannot join the group of an address: it may not be found");
                }
            }
            for (interface, group) in self.joined.difference(&groups) {
                // The interface may be gone.
                if let Err(error) = socket.leave_multicast_v6(group, *interface) {
                    debug!(interface, %group, %error, "cannot leave a group");
                }
            }
        }
        self.joined = groups;
        *self.answers.write().unwrap_or_else(PoisonError::into_inner) = answers;
    }

    /// Of these addresses it is told who else claims them.
    pub fn watch(&self, addresses: BTreeSet<IpAddr>) {
        *self.watched.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Asks whether somebody has an address (RFC 5227, section 2.1.1; RFC 4862, section 5.4.2).
    pub fn probe(&self, (interface, address): Place, mac: Mac) {
        let asked = match address {
            IpAddr::V4(target_ip) => {
                let question = arp::Packet {
                    operation: arp::Operation::Request,
                    sender_mac: mac,
                    sender_ip: Ipv4Addr::UNSPECIFIED,
                    target_mac: Mac([0; 6]),
                    target_ip,
                };
                sys::send_frame(self.arp.get_ref(), interface, Mac::BROADCAST.0, ARP, &question.encode())
            }
            IpAddr::V6(target) => {
                let destination = ndp::solicited_node(target);
                let question =
                    ndp::Solicitation { source: Ipv6Addr::UNSPECIFIED, destination, target, source_mac: None };
                let to = ndp::group_mac(destination);
                sys::send_frame(self.ndp.get_ref(), interface, to.0, IPV6, &question.encode())
            }
        };
        if let Err(error) = asked {
            debug!(interface, %address, %error, "cannot ask whether an address is free");
        }
    }

    /// Tells everybody on an interface where an address is now.
    pub fn tell(&self, (interface, address): Place, mac: Mac) {
        let sent = match address {
            IpAddr::V4(address) => arp::Packet::gratuitous(address, mac).into_iter().try_for_each(|packet| {
                sys::send_frame(self.arp.get_ref(), interface, Mac::BROADCAST.0, ARP, &packet.encode())
            }),
            IpAddr::V6(address) => {
                let packet = ndp::Advertisement::unsolicited(address, mac).encode();
                let everybody = ndp::group_mac(ndp::ALL_NODES);
                sys::send_frame(self.ndp.get_ref(), interface, everybody.0, IPV6, &packet)
            }
        };
        match sent {
            Ok(()) => self.numbers.gratuitous(address),
            Err(error) => warn!(interface, %address, %error, "cannot tell the segment where an address is"),
        }
    }
}

/// A frame that answers a question for an address.
struct Reply {
    address: IpAddr,
    protocol: u16,
    to: Mac,
    bytes: Vec<u8>,
}

type Answer = fn(&Frame, &[u8], &Answers) -> Option<Reply>;

/// Somebody else claims an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// The address.
    pub address: IpAddr,
    /// Who says that he has it.
    pub mac: Mac,
}

type Watched = Arc<RwLock<BTreeSet<IpAddr>>>;

/// What is looked for in the packets of others.
struct Looks {
    watched: Watched,
    told: mpsc::Sender<Sighting>,
    of: fn(&[u8]) -> Option<Sighting>,
}

impl Looks {
    fn at(&self, bytes: &[u8]) {
        let Some(sighting) = (self.of)(bytes) else { return };
        let is_watched = self.watched.read().unwrap_or_else(PoisonError::into_inner).contains(&sighting.address);
        if is_watched {
            // Full: the same was told often enough.
            let _ = self.told.try_send(sighting);
        }
    }
}

fn claimed_by_arp(bytes: &[u8]) -> Option<Sighting> {
    let packet = arp::Packet::decode(bytes).ok()?;
    Some(Sighting { address: packet.sender_ip.into(), mac: packet.sender_mac })
}

fn claimed_by_ndp(bytes: &[u8]) -> Option<Sighting> {
    let advertisement = ndp::Advertisement::decode(bytes).ok()?;
    Some(Sighting { address: advertisement.target.into(), mac: advertisement.mac })
}

async fn serve(
    socket: Arc<AsyncFd<OwnedFd>>,
    answers: Arc<RwLock<Answers>>,
    answer: Answer,
    numbers: Numbers,
    looks: Looks,
) {
    let mut buffer = vec![0; 2048];
    loop {
        let mut ready = match socket.readable().await {
            Ok(ready) => ready,
            Err(error) => {
                warn!(%error, "questions for addresses are not heard any more");
                return;
            }
        };
        loop {
            let frame = match sys::receive_frame(socket.get_ref(), &mut buffer) {
                Ok(frame) => frame,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    // Such as ENETDOWN, when an interface goes.
                    debug!(%error, "a question could not be read");
                    break;
                }
            };
            // Frames of this host come by, too: those are not for it.
            if frame.is_for_us {
                looks.at(&buffer[..frame.length]);
            }
            let found = {
                let answers = answers.read().unwrap_or_else(PoisonError::into_inner);
                answer(&frame, &buffer[..frame.length], &answers)
            };
            let Some(Reply { address, protocol, to, bytes }) = found else { continue };
            match sys::send_frame(socket.get_ref(), frame.interface, to.0, protocol, &bytes) {
                Ok(()) => numbers.answered(address),
                Err(error) => debug!(%error, "an answer could not be sent"),
            }
        }
        ready.clear_ready();
    }
}

fn answer_arp(frame: &Frame, bytes: &[u8], answers: &Answers) -> Option<Reply> {
    let question = arp::Packet::decode(bytes).ok().filter(|_| frame.is_for_us)?;
    if question.operation != arp::Operation::Request || question.sender_ip == question.target_ip {
        return None;
    }
    let mac = answers.get(&(frame.interface, question.target_ip.into()))?;
    // Whoever claims to be at a group would make us tell everybody.
    if !question.sender_mac.is_unicast() {
        return None;
    }
    trace!(address = %question.target_ip, asker = %question.sender_ip, "ARP is answered");
    let bytes = question.answer(*mac).encode().to_vec();
    Some(Reply { address: question.target_ip.into(), protocol: ARP, to: question.sender_mac, bytes })
}

fn answer_ndp(frame: &Frame, bytes: &[u8], answers: &Answers) -> Option<Reply> {
    let question = ndp::Solicitation::decode(bytes).ok().filter(|_| frame.is_for_us)?;
    let mac = answers.get(&(frame.interface, question.target.into()))?;
    let answer = question.answer(*mac);
    let to = if answer.destination.is_multicast() {
        ndp::group_mac(answer.destination)
    } else {
        question.source_mac.filter(|mac| mac.is_unicast()).unwrap_or(Mac(frame.sender))
    };
    trace!(address = %question.target, asker = %question.source, "a neighbour solicitation is answered");
    Some(Reply { address: question.target.into(), protocol: IPV6, to, bytes: answer.encode() })
}
