//! The echo server's sockets: accepts, reads, answers.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, sendmsg,
};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Answer, Identity, Service};

/// The longest line of a plain connection, or body, that is read.
const LONGEST_BYTES: u64 = 1024 * 1024;
/// The longest head of a request, its first line aside: what a request makes the server keep.
const HEAD_BYTES: u64 = 64 * 1024;
/// A client that has begun a request has so long for its head, and as long again for its body.
const REQUEST: Duration = Duration::from_secs(10);
/// What is longer is counted, not sent back.
const ECHO_BYTES: usize = 256;

/// Connections of one server: they outlive its listeners, not it.
pub(super) type Connections = Arc<Mutex<JoinSet<()>>>;

pub(super) async fn tcp(listener: TcpListener, service: Arc<Service>, connections: Connections) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = connection(stream, service.clone());
                let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
                while connections.try_join_next().is_some() {}
                connections.spawn(async move {
                    // A broken connection is the peer's affair.
                    let _ = connection.await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(10)).await; // out of descriptors: give others time
            }
        }
    }
}

async fn connection(stream: TcpStream, service: Arc<Service>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (peer, reached) = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    let mut stream = BufReader::new(stream);
    loop {
        let Some(line) = read_line(&mut stream).await? else { return Ok(()) };
        let text = String::from_utf8_lossy(&line);
        if let Some(request) = text.strip_suffix(" HTTP/1.1").or_else(|| text.strip_suffix(" HTTP/1.0")) {
            let mut answer = answer(&service.identity, "http", peer, reached, &[]);
            answer.request = Some(request.to_owned());
            let keep = text.ends_with("1.1");
            service.tell(&answer);
            if !http(&mut stream, answer, keep, service.healthy.load(Ordering::Relaxed)).await? {
                return Ok(());
            }
        } else {
            let answer = answer(&service.identity, "tcp", peer, reached, &line);
            service.tell(&answer);
            let text = line_of(&answer);
            stream.get_mut().write_all(text.as_bytes()).await?;
        }
    }
}

/// Answers one HTTP request whose first line is read; gives whether the connection goes on.
async fn http(
    stream: &mut BufReader<TcpStream>,
    mut answer: Answer,
    mut keep: bool,
    healthy: bool,
) -> io::Result<bool> {
    let Some(headers) = timeout(REQUEST, head(stream)).await?? else { return Ok(false) };
    let length: u64 = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = Vec::new();
    timeout(REQUEST, (&mut *stream).take(length.min(LONGEST_BYTES)).read_to_end(&mut body)).await??;
    keep &= length <= LONGEST_BYTES && !headers.get("connection").is_some_and(|c| c.eq_ignore_ascii_case("close"));
    let request = answer.request.clone().unwrap_or_default();
    let (method, target) = request.split_once(' ').unwrap_or((&request, "/"));
    let path = target.split('?').next().unwrap_or(target);
    let (status, reason) = match path.strip_prefix("/status/").and_then(|code| code.parse::<u16>().ok()) {
        Some(code @ 200..=599) => (code, "As asked"),
        _ if path == "/healthz" && !healthy => (503, "Service Unavailable"),
        _ => (200, "OK"),
    };
    answer.headers = Some(headers);
    answer.bytes = body.len();
    answer.echo = short_text(&body);
    let text = if path == "/healthz" {
        if healthy { "ok\n".to_owned() } else { "not ok\n".to_owned() }
    } else {
        line_of(&answer)
    };
    let connection = if keep { "keep-alive" } else { "close" };
    let kind = if path == "/healthz" { "text/plain" } else { "application/json" };
    let mut message = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nX-Pod: {}\r\nConnection: {connection}\r\n\r\n",
        text.len(),
        answer.pod
    );
    if method != "HEAD" {
        message.push_str(&text);
    }
    stream.get_mut().write_all(message.as_bytes()).await?;
    Ok(keep)
}

/// The headers of a request, up to the empty line; `None` when they end before it, or are too long.
async fn head(stream: &mut BufReader<TcpStream>) -> io::Result<Option<BTreeMap<String, String>>> {
    let mut headers = BTreeMap::new();
    let mut stream = stream.take(HEAD_BYTES);
    while let Some(line) = read_line(&mut stream).await? {
        if line.is_empty() {
            return Ok(Some(headers));
        }
        let text = String::from_utf8_lossy(&line);
        if let Some((name, value)) = text.split_once(':').filter(|_| headers.len() < 100) {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    Ok(None)
}

/// A line without its end; `None` at the end of the input. What the end cuts off is a line as well.
async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    stream.take(LONGEST_BYTES).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    Ok(Some(line))
}

pub(super) async fn udp(socket: UdpSocket, service: Arc<Service>) {
    let mut buffer = vec![0; 65536];
    loop {
        let received = socket.async_io(Interest::READABLE, || receive(&socket, &mut buffer)).await;
        let (length, peer, reached) = match received {
            Ok(received) => received,
            Err(error) => {
                // An ICMP error for an earlier answer: the datagrams of others go on.
                tracing::trace!(%error, "receive failed");
                continue;
            }
        };
        let port = socket.local_addr().map_or(0, |address| address.port());
        let mut data = &buffer[..length];
        if let Some(rest) = data.strip_suffix(b"\n") {
            data = rest;
        }
        let reached_address = SocketAddr::new(reached.to_canonical(), port);
        let answer = answer(&service.identity, "udp", canonical(peer), reached_address, data);
        service.tell(&answer);
        let text = line_of(&answer);
        let sent = socket.async_io(Interest::WRITABLE, || send(&socket, text.as_bytes(), peer, reached)).await;
        if let Err(error) = sent {
            tracing::trace!(%error, "answer not sent");
        }
    }
}

/// One datagram, its sender, and the address that it was sent to.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, IpAddr)> {
    let mut space = cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
    let peer = message.address.as_ref().and_then(socket_address).ok_or(io::ErrorKind::InvalidData)?;
    let mut reached = socket.local_addr()?.ip();
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::Ipv6PacketInfo(info) => reached = Ipv6Addr::from(info.ipi6_addr.s6_addr).into(),
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                reached = Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into();
            }
            _ => {}
        }
    }
    Ok((message.bytes, peer, reached))
}

/// Answers from the address that was asked: a server with several addresses must.
fn send(socket: &UdpSocket, data: &[u8], peer: SocketAddr, from: IpAddr) -> io::Result<usize> {
    let parts = [IoSlice::new(data)];
    let number = socket.as_raw_fd();
    let flags = MsgFlags::MSG_DONTWAIT;
    Ok(match (from, peer) {
        (IpAddr::V6(from), SocketAddr::V6(peer)) => {
            let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: from.octets() }, ipi6_ifindex: 0 };
            let control = [ControlMessage::Ipv6PacketInfo(&info)];
            sendmsg(number, &parts, &control, flags, Some(&SockaddrIn6::from(peer)))?
        }
        (IpAddr::V4(from), SocketAddr::V4(peer)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let control = [ControlMessage::Ipv4PacketInfo(&info)];
            sendmsg(number, &parts, &control, flags, Some(&SockaddrIn::from(peer)))?
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    })
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(ipv4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(ipv4.ip().into(), ipv4.port()));
    }
    // Not through std's type: the scope of a link-local peer must come back with the answer.
    address.as_sockaddr_in6().map(|ipv6| {
        SocketAddr::V6(std::net::SocketAddrV6::new(ipv6.ip(), ipv6.port(), ipv6.flowinfo(), ipv6.scope_id()))
    })
}

fn answer(identity: &Identity, protocol: &str, peer: SocketAddr, reached: SocketAddr, data: &[u8]) -> Answer {
    Answer {
        pod: identity.pod.clone(),
        namespace: identity.namespace.clone(),
        node: identity.node.clone(),
        protocol: protocol.to_owned(),
        peer,
        reached,
        request: None,
        headers: None,
        echo: short_text(data),
        bytes: data.len(),
    }
}

fn short_text(data: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(data).ok()?;
    (!text.is_empty() && text.len() <= ECHO_BYTES).then(|| text.to_owned())
}

fn line_of(answer: &Answer) -> String {
    let mut text = serde_json::to_string(answer).expect("strings and numbers can be written as JSON");
    text.push('\n');
    text
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
