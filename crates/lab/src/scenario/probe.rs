//! The kernel's answer: sockets made in the sender's place, plain blocking calls with deadlines.
//!
//! ```text
//! Shot ─ fire ─▶ socket ─ connect, send, receive ─▶ Outcome
//!                   └──────── keep ──────▶ Kept ─ fire_again ─▶ Outcome
//! ```

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockProtocol, SockType, SockaddrStorage, bind, connect, getsockopt, setsockopt, sockopt,
};

use super::echo;
use super::expect::{Answer, Outcome};
use super::format::Fails;
use crate::sockets::{Kind, Sockets};

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A request to the echo server over a TCP connection.
    Tcp,
    /// A datagram to the echo server.
    Udp,
    /// An HTTP request for a path.
    Http(String),
    /// An ICMP echo request.
    Ping,
    /// A question to a name server, in a datagram.
    Lookup(Vec<u8>),
}

/// One try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shot {
    /// What is sent.
    pub message: Message,
    /// Where to.
    pub destination: SocketAddr,
    /// From which port; `None`: any.
    pub source_port: Option<u16>,
    /// Payload bytes.
    pub size: usize,
    /// How long to wait, connecting and answering together.
    pub timeout: Duration,
}

/// A connection or socket that stays open between steps.
#[derive(Debug)]
pub enum Kept {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connected UDP socket.
    Udp(UdpSocket),
}

/// Tries one after the other until `enough` of what came, at most `most` times.
pub fn in_turn(
    sockets: &Sockets,
    shot: &Shot,
    most: usize,
    every: Option<Duration>,
    enough: impl Fn(&[Outcome]) -> bool + Sync,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while outcomes.len() < most && !enough(&outcomes) {
        if let Some(every) = every.filter(|_| !outcomes.is_empty()) {
            std::thread::sleep(every);
        }
        outcomes.push(fire(sockets, shot).0);
    }
    outcomes
}

/// So many tries at the same time: silence takes as long as the timeout, and three need not take three times as long.
pub fn side_by_side(sockets: &Sockets, shot: &Shot, tries: usize) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..tries).map(|_| scope.spawn(|| fire(sockets, shot).0)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| broken("the probe's thread died"))).collect()
    })
}

/// One try whose connection or socket stays open.
pub fn keep(sockets: &Sockets, shot: &Shot) -> (Outcome, Option<Kept>) {
    fire(sockets, shot)
}

/// One try.
fn fire(sockets: &Sockets, shot: &Shot) -> (Outcome, Option<Kept>) {
    let fired = match &shot.message {
        Message::Tcp | Message::Http(_) => fire_tcp(sockets, shot),
        Message::Udp | Message::Lookup(_) => fire_udp(sockets, shot),
        Message::Ping => ping(sockets, shot).map(|answer| (answer, None)),
    };
    match fired {
        Ok((answer, kept)) => (Outcome::Answered(answer), kept),
        Err(error) => (failure(&error), None),
    }
}

/// Sends on what was kept open. The payload and the timeout are the shot's, its destination does not count.
pub fn fire_again(kept: &mut Kept, shot: &Shot) -> Outcome {
    let answer = match kept {
        Kept::Tcp(stream) => ask_tcp(stream, shot, Instant::now() + shot.timeout),
        Kept::Udp(socket) => ask_udp(socket, shot).or_else(|error| match error {
            // Its backend went away and the kernel ended the connection, not the socket: a client connects it again, as
            // often as that is refused.
            Errored::Connect(error) if is_ended(&error) => {
                socket.connect(shot.destination).map_err(Errored::Connect)?;
                ask_udp(socket, shot)
            }
            other => Err(other),
        }),
    };
    match answer {
        Ok(answer) => Outcome::Answered(answer),
        Err(Errored::Connect(error)) => failure(&Errored::Later(error)),
        Err(error) => failure(&error),
    }
}

fn is_ended(error: &io::Error) -> bool {
    let codes = [nix::libc::ECONNABORTED, nix::libc::EDESTADDRREQ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// An error and when it came: a reset of the opening packet is a refusal, a later one is a reset. Before anything was
/// sent it says nothing of the network.
#[derive(Debug)]
enum Errored {
    Local(io::Error),
    Connect(io::Error),
    Later(io::Error),
}

impl From<io::Error> for Errored {
    fn from(error: io::Error) -> Errored {
        Errored::Later(error)
    }
}

fn fire_tcp(sockets: &Sockets, shot: &Shot) -> Result<(Answer, Option<Kept>), Errored> {
    let deadline = Instant::now() + shot.timeout;
    let mut stream = connect_tcp(sockets, shot)?;
    let answer = ask_tcp(&mut stream, shot, deadline)?;
    Ok((answer, Some(Kept::Tcp(stream))))
}

fn connect_tcp(sockets: &Sockets, shot: &Shot) -> Result<TcpStream, Errored> {
    let socket = match shot.source_port {
        Some(port) => once_free(shot.timeout, || bound_tcp(sockets, shot.destination, port)),
        None => made(sockets, shot.destination, SockType::Stream, true),
    };
    let socket = socket.map_err(Errored::Local)?;
    match connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(shot.destination)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => wait_connected(&socket, shot.timeout).map_err(Errored::Connect)?,
        Err(error) => return Err(Errored::Connect(error.into())),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).map_err(Errored::Local)?;
    Ok(stream)
}

/// Binds a port that the shot before used. Its socket is closed, but a process that is being started at this moment holds
/// all descriptors until its program runs.
fn once_free<T>(timeout: Duration, bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

fn made(sockets: &Sockets, destination: SocketAddr, sort: SockType, nonblocking: bool) -> io::Result<OwnedFd> {
    sockets.make(Kind { family: any_address(destination).0, sort, protocol: None, nonblocking })
}

fn bound_tcp(sockets: &Sockets, destination: SocketAddr, port: u16) -> io::Result<OwnedFd> {
    let (_, any) = any_address(destination);
    let socket = made(sockets, destination, SockType::Stream, true)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    // The port is wanted again: leave by a reset, not by waiting.
    setsockopt(&socket, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(SocketAddr::new(any, port)))?;
    Ok(socket)
}

fn wait_connected(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut wait = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    let ready = again(|| {
        let timeout = PollTimeout::try_from(left(deadline)?).unwrap_or(PollTimeout::MAX);
        Ok(poll(&mut wait, timeout)?)
    });
    if ready? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match getsockopt(socket, sockopt::SocketError)? {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn any_address(destination: SocketAddr) -> (AddressFamily, IpAddr) {
    match destination {
        SocketAddr::V4(_) => (AddressFamily::Inet, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::Inet6, Ipv6Addr::UNSPECIFIED.into()),
    }
}

fn ask_tcp(stream: &mut TcpStream, shot: &Shot, deadline: Instant) -> Result<Answer, Errored> {
    let path = match &shot.message {
        Message::Http(path) => path.as_str(),
        _ => echo::PATH,
    };
    let request = echo::http_request(path, shot.destination, shot.size);
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&request)?;
    let mut received = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(answer) = echo::http_answer(&received, shot.size) {
            return Ok(answer);
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match again(|| stream.read(&mut buffer))? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => received.extend_from_slice(&buffer[..count]),
        }
    }
}

/// A signal ends a call that waits with a limit, and the runner gets one for each program that ends: the call is made again.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn fire_udp(sockets: &Sockets, shot: &Shot) -> Result<(Answer, Option<Kept>), Errored> {
    let (_, any) = any_address(shot.destination);
    let at = SocketAddr::new(any, shot.source_port.unwrap_or(0));
    let socket = made(sockets, shot.destination, SockType::Datagram, false).map_err(Errored::Local)?;
    let bound =
        once_free(shot.timeout, || Ok(bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(at))?));
    bound.map_err(Errored::Local)?;
    let socket = UdpSocket::from(socket);
    socket.connect(shot.destination).map_err(Errored::Connect)?;
    let answer = ask_udp(&socket, shot)?;
    Ok((answer, Some(Kept::Udp(socket))))
}

/// The datagram that comes back for one.
///
/// # Errors
/// What came instead.
pub fn exchange(sockets: &Sockets, shot: &Shot) -> Result<Vec<u8>, Box<Outcome>> {
    let exchanged = || {
        let socket = made(sockets, shot.destination, SockType::Datagram, false).map_err(Errored::Local)?;
        let socket = UdpSocket::from(socket);
        socket.connect(shot.destination).map_err(Errored::Connect)?;
        told_datagram(&socket, shot)
    };
    exchanged().map_err(|error| Box::new(failure(&error)))
}

/// A TCP connection.
///
/// # Errors
/// What came instead.
pub fn connected(sockets: &Sockets, shot: &Shot) -> Result<TcpStream, Box<Outcome>> {
    connect_tcp(sockets, shot).map_err(|error| Box::new(failure(&error)))
}

/// What an error after the connection stood means.
pub fn later(error: io::Error) -> Box<Outcome> {
    Box::new(failure(&Errored::Later(error)))
}

fn ask_udp(socket: &UdpSocket, shot: &Shot) -> Result<Answer, Errored> {
    let received = told_datagram(socket, shot)?;
    Ok(match &shot.message {
        Message::Lookup(_) => Answer::default(),
        _ => echo::datagram_answer(&received, shot.size),
    })
}

fn told_datagram(socket: &UdpSocket, shot: &Shot) -> Result<Vec<u8>, Errored> {
    socket.set_read_timeout(Some(shot.timeout)).map_err(Errored::Local)?;
    let request = match &shot.message {
        Message::Lookup(packet) => packet.clone(),
        _ => echo::datagram(shot.size),
    };
    // A refusal is told at the next call on the socket, whichever that is. Rules of the sender's own host may end the
    // call with EPERM whether they refuse or drop: then the next call tells which.
    match socket.send(&request) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(Errored::Connect(error)),
        _ => {}
    }
    let mut buffer = vec![0; 64 * 1024];
    let count = again(|| socket.recv(&mut buffer)).map_err(Errored::Connect)?;
    buffer.truncate(count);
    Ok(buffer)
}

/// An ICMP echo request by a datagram socket: the kernel adds identifier and checksum.
fn ping(sockets: &Sockets, shot: &Shot) -> Result<Answer, Errored> {
    let socket = bound_ping(sockets, shot.destination).map_err(Errored::Local)?;
    socket.connect(SocketAddr::new(shot.destination.ip(), 0)).map_err(Errored::Connect)?;
    socket.set_read_timeout(Some(shot.timeout)).map_err(Errored::Local)?;
    let kind = if shot.destination.is_ipv4() { 8 } else { 128 };
    let mut request = vec![kind, 0, 0, 0, 0, 0, 0, 1];
    request.resize(8 + shot.size, 0);
    socket.send(&request).map_err(Errored::Connect)?;
    let mut buffer = vec![0; 8 + shot.size];
    again(|| socket.recv(&mut buffer)).map_err(Errored::Connect)?;
    Ok(Answer::default())
}

fn bound_ping(sockets: &Sockets, destination: SocketAddr) -> io::Result<UdpSocket> {
    let (family, any) = any_address(destination);
    let protocol = if destination.is_ipv4() { SockProtocol::Icmp } else { SockProtocol::IcmpV6 };
    let kind = Kind { family, sort: SockType::Datagram, protocol: Some(protocol), nonblocking: false };
    let socket = sockets.make(kind)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(SocketAddr::new(any, 0)))?;
    Ok(UdpSocket::from(socket))
}

fn broken(detail: &str) -> Outcome {
    Outcome::Broken { detail: detail.to_owned() }
}

/// What the network did, by the error it left; an error that none of its ways to fail leaves is the probe's own.
fn failure(error: &Errored) -> Outcome {
    let (cause, opening) = match error {
        Errored::Local(cause) => return broken(&cause.to_string()),
        Errored::Connect(cause) => (cause, true),
        Errored::Later(cause) => (cause, false),
    };
    let how = match cause.kind() {
        io::ErrorKind::ConnectionRefused => Fails::Refused,
        io::ErrorKind::ConnectionReset if opening => Fails::Refused,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => Fails::Reset,
        // The node ended the socket: its backend is gone.
        io::ErrorKind::ConnectionAborted => Fails::Reset,
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Fails::Timeout,
        // The sender's own rules dropped it on its way out.
        io::ErrorKind::PermissionDenied => Fails::Timeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Fails::Unreachable,
        _ => return broken(&cause.to_string()),
    };
    let detail = match cause.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused => String::new(),
        _ => cause.to_string(),
    };
    Outcome::Failed { how, detail }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::netns::Netns;

    fn here(netns: &Netns) -> Sockets {
        Sockets::of_netns(netns.clone())
    }

    fn shot(message: Message, destination: SocketAddr) -> Shot {
        Shot { message, destination, source_port: None, size: 0, timeout: Duration::from_millis(200) }
    }

    fn how(outcome: &Outcome) -> Option<Fails> {
        match outcome {
            Outcome::Answered(_) | Outcome::Broken { .. } => None,
            Outcome::Failed { how, .. } => Some(*how),
        }
    }

    fn local(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    #[test]
    fn a_port_without_listener_is_a_refusal_over_tcp_and_udp() {
        let netns = Netns::new(false).unwrap();
        for message in [Message::Tcp, Message::Udp] {
            let outcomes = side_by_side(&here(&netns), &shot(message, local(9)), 3);
            assert_eq!(outcomes.iter().map(how).collect::<Vec<_>>(), [Some(Fails::Refused); 3]);
        }
        let bound = Shot { source_port: Some(4000), ..shot(Message::Tcp, local(9)) };
        assert_eq!(how(&keep(&here(&netns), &bound).0), Some(Fails::Refused));
    }

    #[test]
    fn silence_is_a_timeout_and_a_missing_route_is_unreachable() {
        let netns = Netns::new(false).unwrap();
        let listener = netns.run(|| TcpListener::bind(local(0))).unwrap();
        let silent = shot(Message::Tcp, listener.local_addr().unwrap());
        assert_eq!(how(&keep(&here(&netns), &silent).0), Some(Fails::Timeout));
        let nowhere = shot(Message::Tcp, "192.0.2.1:80".parse().unwrap());
        assert_eq!(how(&keep(&here(&netns), &nowhere).0), Some(Fails::Unreachable));
    }

    #[test]
    fn a_connection_that_ends_without_answer_is_a_reset() {
        let netns = Netns::new(false).unwrap();
        let listener = netns.run(|| TcpListener::bind(local(0))).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || drop(listener.accept()));
        assert_eq!(how(&keep(&here(&netns), &shot(Message::Tcp, address)).0), Some(Fails::Reset));
        server.join().unwrap();
    }

    #[test]
    fn a_ping_is_answered_by_the_address_that_is_there() {
        let netns = Netns::new(false).unwrap();
        let (outcome, _) = keep(&here(&netns), &shot(Message::Ping, local(0)));
        assert_eq!(how(&outcome), None, "{outcome}");
        let (outcome, _) = keep(&here(&netns), &shot(Message::Ping, "[::1]:0".parse().unwrap()));
        assert_eq!(how(&outcome), None, "{outcome}");
    }

    #[test]
    fn tries_end_when_enough_came() {
        let netns = Netns::new(false).unwrap();
        let outcomes = in_turn(&here(&netns), &shot(Message::Udp, local(9)), 10, None, |seen| seen.len() == 4);
        assert_eq!(outcomes.len(), 4);
    }

    #[test]
    fn a_source_port_that_becomes_free_in_time_is_taken() {
        let netns = Netns::new(false).unwrap();
        let taken = netns.run(|| UdpSocket::bind(local(4000)).unwrap());
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50)); // as long as a process takes to start, and longer
            drop(taken);
        });
        let outcome = keep(&here(&netns), &Shot { source_port: Some(4000), ..shot(Message::Udp, local(9)) }).0;
        assert_eq!(how(&outcome), Some(Fails::Refused), "{outcome}");
        holder.join().unwrap();
    }

    #[test]
    fn what_fails_on_the_probes_own_side_is_no_outcome_of_the_network() {
        let netns = Netns::new(false).unwrap();
        let taken = netns.run(|| (TcpListener::bind(local(4000)).unwrap(), UdpSocket::bind(local(4000)).unwrap()));
        for message in [Message::Tcp, Message::Udp] {
            let outcome = keep(&here(&netns), &Shot { source_port: Some(4000), ..shot(message, local(9)) }).0;
            assert!(matches!(outcome, Outcome::Broken { .. }), "{outcome}");
        }
        drop(taken);
        for errno in [Errno::EMFILE, Errno::EADDRNOTAVAIL, Errno::EINVAL, Errno::ENOBUFS] {
            for error in [Errored::Connect(errno.into()), Errored::Later(errno.into())] {
                assert!(matches!(failure(&error), Outcome::Broken { .. }), "{errno}");
            }
        }
        for errno in [Errno::ECONNRESET, Errno::EPIPE] {
            assert_eq!(how(&failure(&Errored::Later(errno.into()))), Some(Fails::Reset));
        }
    }
}
