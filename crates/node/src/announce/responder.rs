//! Answers ARP requests and neighbour solicitations for addresses that are on no interface, and tells the segment of new ones.
//!
//! ```text
//! wire ──▶ packet sockets ──▶ wire::arp, wire::ndp (decode) ──▶ ours? ──▶ answer
//! ```
//!
//! The sockets see every interface; which address is answered for where stands in a table that the announcer sets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};

use signpost_wire::mac::Mac;
use signpost_wire::{arp, ndp};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tracing::{debug, trace, warn};

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
    _tasks: JoinSet<()>,
}

impl Responder {
    /// Answers for nothing yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The kernel gives no sockets: they need CAP_NET_RAW.
    pub fn start() -> io::Result<Responder> {
        let arp = Arc::new(sys::watch_readable(sys::packet_socket(ARP)?)?);
        let solicitations = sys::packet_socket(IPV6)?;
        sys::keep_solicitations(&solicitations)?;
        let ndp = Arc::new(sys::watch_readable(solicitations)?);
        let groups = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok();
        let answers = Arc::new(RwLock::new(Answers::new()));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(arp.clone(), answers.clone(), answer_arp));
        tasks.spawn(serve(ndp.clone(), answers.clone(), answer_ndp));
        Ok(Responder { arp, ndp, answers, groups, joined: BTreeSet::new(), _tasks: tasks })
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
        if let Err(error) = sent {
            warn!(interface, %address, %error, "cannot tell the segment where an address is");
        }
    }
}

type Answer = fn(&Frame, &[u8], &Answers) -> Option<(u16, [u8; 6], Vec<u8>)>;

async fn serve(socket: Arc<AsyncFd<OwnedFd>>, answers: Arc<RwLock<Answers>>, answer: Answer) {
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
            let found = {
                let answers = answers.read().unwrap_or_else(PoisonError::into_inner);
                answer(&frame, &buffer[..frame.length], &answers)
            };
            if let Some((protocol, to, bytes)) = found
                && let Err(error) = sys::send_frame(socket.get_ref(), frame.interface, to, protocol, &bytes)
            {
                debug!(%error, "an answer could not be sent");
            }
        }
        ready.clear_ready();
    }
}

fn answer_arp(frame: &Frame, bytes: &[u8], answers: &Answers) -> Option<(u16, [u8; 6], Vec<u8>)> {
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
    Some((ARP, question.sender_mac.0, question.answer(*mac).encode().to_vec()))
}

fn answer_ndp(frame: &Frame, bytes: &[u8], answers: &Answers) -> Option<(u16, [u8; 6], Vec<u8>)> {
    let question = ndp::Solicitation::decode(bytes).ok().filter(|_| frame.is_for_us)?;
    let mac = answers.get(&(frame.interface, question.target.into()))?;
    let answer = question.answer(*mac);
    let to = if answer.destination.is_multicast() {
        ndp::group_mac(answer.destination)
    } else {
        question.source_mac.filter(|mac| mac.is_unicast()).unwrap_or(Mac(frame.sender))
    };
    trace!(address = %question.target, asker = %question.source, "a neighbour solicitation is answered");
    Some((IPV6, to.0, answer.encode()))
}
