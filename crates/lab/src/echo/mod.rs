//! `signpost/echo`: a server that tells who answered, whom it saw as its peer and at which address it was reached.
//! As a program it is a container's; the lab's light pods run it inside the supervisor, on sockets made in the pod's
//! network namespace.
//!
//! TCP: a connection whose first line is an HTTP request is served as HTTP; on any other, each line is answered with
//! one line. UDP: each datagram is answered with one. Every answer is one line of JSON, an [`Answer`].

mod record;
mod serve;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use tokio::task::{AbortHandle, JoinSet};

use self::record::Record;

/// Where the echo server listens, as its arguments say it: `tcp/8080`, `udp/127.0.0.1:53`, `tcp/[::1]:80`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listen {
    /// TCP (and HTTP) or UDP.
    pub transport: Transport,
    /// One address; `None`: all of both families.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// What the echo server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        match self.address {
            None => write!(f, "{transport}/{}", self.port),
            Some(address) => write!(f, "{transport}/{}", SocketAddr::new(address, self.port)),
        }
    }
}

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Listen, BadListen> {
        let bad = || BadListen { given: text.to_owned() };
        let (transport, place) = text.split_once('/').ok_or_else(bad)?;
        let transport = match transport {
            "tcp" | "http" => Transport::Tcp,
            "udp" => Transport::Udp,
            _ => return Err(bad()),
        };
        if let Ok(port) = place.parse() {
            return Ok(Listen { transport, address: None, port });
        }
        let place: SocketAddr = place.parse().map_err(|_| bad())?;
        Ok(Listen { transport, address: Some(place.ip()), port: place.port() })
    }
}

/// An argument was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot listen on {given:?}: write tcp/PORT, udp/PORT, or tcp/ADDRESS:PORT")]
pub struct BadListen {
    /// What was given.
    pub given: String,
}

/// Where the server listens if nothing is said.
pub const DEFAULT_LISTEN: [Listen; 2] = [
    Listen { transport: Transport::Tcp, address: None, port: 8080 },
    Listen { transport: Transport::Udp, address: None, port: 8080 },
];

/// Reads the arguments of `signpost echo`: `WHERE`, `--listen WHERE` or `--listen=WHERE`, any number of times.
///
/// # Errors
/// Anything else.
pub fn arguments(args: &[String]) -> Result<Vec<Listen>, BadListen> {
    let mut listens = Vec::new();
    let mut args = args.iter();
    while let Some(argument) = args.next() {
        let place = match argument.strip_prefix("--listen") {
            Some("") => args.next().cloned().unwrap_or_default(),
            Some(rest) if rest.starts_with('=') => rest[1..].to_owned(),
            _ => argument.clone(),
        };
        listens.push(place.parse()?);
    }
    if listens.is_empty() {
        listens.extend(DEFAULT_LISTEN);
    }
    Ok(listens)
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The pod's name.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    /// Its node.
    pub node: String,
}

impl Identity {
    /// Environment variables from which the program reads its identity.
    pub const VARIABLES: [&'static str; 3] = ["POD_NAME", "POD_NAMESPACE", "NODE_NAME"];

    /// The identity that the environment gives; the host name for a pod's name that is not there.
    pub fn from_environment() -> Identity {
        let read = |name: &str| std::env::var(name).unwrap_or_default();
        let [pod, namespace, node] = Identity::VARIABLES.map(read);
        let host = || nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Identity { pod: if pod.is_empty() { host() } else { pod }, namespace, node }
    }
}

/// One answer, one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The answering pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    /// Its node.
    pub node: String,
    /// `http`, `tcp` or `udp`.
    pub protocol: String,
    /// Whom the server saw as its peer.
    pub peer: SocketAddr,
    /// The address at which the server was reached.
    pub reached: SocketAddr,
    /// HTTP: method and target of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// HTTP: the request's headers, names in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<std::collections::BTreeMap<String, String>>,
    /// What was received, if it is short (256 bytes) text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<String>,
    /// How many bytes were received, without the end of the line.
    pub bytes: usize,
}

/// Sockets that are bound and do not serve yet. Made inside a network namespace, served anywhere.
pub struct Sockets {
    tcp: Vec<std::net::TcpListener>,
    udp: Vec<std::net::UdpSocket>,
}

impl Sockets {
    /// Binds all of `listens` in the calling thread's network namespace.
    ///
    /// # Errors
    /// A port is taken, or the address is not there.
    pub fn bind(listens: &[Listen]) -> io::Result<Sockets> {
        let mut sockets = Sockets { tcp: Vec::new(), udp: Vec::new() };
        for listen in listens {
            let any: IpAddr = if has_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let place = SocketAddr::new(listen.address.unwrap_or(any), listen.port);
            let say = |error: io::Error| io::Error::new(error.kind(), format!("{listen}: {error}"));
            match listen.transport {
                Transport::Tcp => {
                    let socket = std::net::TcpListener::bind(place).map_err(say)?;
                    socket.set_nonblocking(true)?;
                    sockets.tcp.push(socket);
                }
                Transport::Udp => {
                    let socket = std::net::UdpSocket::bind(place).map_err(say)?;
                    socket.set_nonblocking(true)?;
                    if place.is_ipv6() {
                        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
                    } else {
                        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
                    }
                    sockets.udp.push(socket);
                }
            }
        }
        Ok(sockets)
    }
}

fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// A running server. Dropped: its sockets and connections are closed.
pub struct EchoServer {
    tasks: JoinSet<()>,
    listeners: Vec<AbortHandle>,
    service: Arc<Service>,
    connections: serve::Connections,
}

/// What all sockets of a server have in common.
struct Service {
    identity: Identity,
    healthy: AtomicBool,
    /// Tells of requests; `None`: a light pod's server, which has no log.
    record: Option<Record>,
}

impl Service {
    fn tell(&self, answer: &Answer) {
        if let Some(record) = &self.record {
            record.request(answer);
        }
    }
}

impl EchoServer {
    /// A server that does not listen yet and tells nobody of its requests.
    pub fn new(identity: Identity) -> EchoServer {
        EchoServer::with(identity, None)
    }

    /// A server that writes a line of each request to standard output, as far as they do not come too fast.
    pub fn recording(identity: Identity) -> EchoServer {
        EchoServer::with(identity, Some(Record::default()))
    }

    fn with(identity: Identity, record: Option<Record>) -> EchoServer {
        EchoServer {
            tasks: JoinSet::new(),
            listeners: Vec::new(),
            service: Arc::new(Service { identity, healthy: AtomicBool::new(true), record }),
            connections: serve::Connections::default(),
        }
    }

    /// Serves on these sockets as well.
    ///
    /// # Errors
    /// The runtime could not take a socket.
    pub fn listen(&mut self, sockets: Sockets) -> io::Result<()> {
        for socket in sockets.tcp {
            let socket = tokio::net::TcpListener::from_std(socket)?;
            let connections = self.connections.clone();
            self.listeners.push(self.tasks.spawn(serve::tcp(socket, self.service.clone(), connections)));
        }
        for socket in sockets.udp {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            self.listeners.push(self.tasks.spawn(serve::udp(socket, self.service.clone())));
        }
        Ok(())
    }

    /// Closes the listening sockets. Connections that exist go on.
    pub fn deafen(&mut self) {
        for listener in self.listeners.drain(..) {
            listener.abort();
        }
    }

    /// What `/healthz` answers from now on: 200 or 503.
    pub fn set_healthy(&self, healthy: bool) {
        self.service.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Serves for ever.
    pub async fn run(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
