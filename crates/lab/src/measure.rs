//! Measures a way in a lab: one connection or datagram is made from where the question says, after three that nobody looks at
//! and whose time is compared; tcpdump listens at the sender, at
//! each node and in each pod that may answer, and each node's kernel tells by `nft monitor trace` which rules the packet met.
//!
//! ```text
//! places ─▶ a tcpdump in each, and per node a table that marks the flow ─▶ send ─▶ sightings, rules ─▶ compared with the
//!           computed way until they agree, or for ten seconds
//! ```
//!
//! Rules of Services are not touched; the table of the mark is this module's own and goes when the measurement ends.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockType, SockaddrStorage, bind, connect, getsockname, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use signpost_core::object::Protocol;
use signpost_diagnose::address::{PodName, Source};
use signpost_diagnose::snapshot::Snapshot;
use signpost_diagnose::trace::Trace;
use signpost_diagnose::trace::kernel_trace::{self, TABLE};
use signpost_diagnose::trace::measured::{Attempt, Cost, Measured, measured, sightings, unseen};

use crate::netns::Netns;
use crate::sockets::{Kind, Sockets};
use crate::spec::Place;

/// How long the connection or the answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a tool may take to listen.
const LISTEN: Duration = Duration::from_secs(20);
/// How long it is waited for what was captured, if what came does not agree with what was computed.
const CAUGHT_UP: Duration = Duration::from_secs(10);
/// Between two looks at what came.
const LOOK: Duration = Duration::from_millis(50);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// It is no packet that can be known again.
    #[error("--measure follows TCP and UDP, not {0}")]
    Protocol(Protocol),
    /// The destination is none.
    #[error("the destination {0} is no address")]
    Destination(String),
    /// There is no such place.
    #[error("{0} has no network of its own")]
    Place(String),
    /// A tool does not run.
    #[error("{tool} does not listen at {place}: {why}")]
    Tool {
        /// Which.
        tool: &'static str,
        /// Where.
        place: String,
        /// What it said.
        why: String,
    },
    /// The kernel refuses a socket.
    #[error("no socket: {0}")]
    Socket(#[from] io::Error),
}

/// The places that a measurement listens at, by their names for people: the sender, every node, and whoever may answer.
pub fn places(snapshot: &Snapshot, from: &Source, computed: &Trace) -> BTreeMap<String, Place> {
    let mut places: BTreeMap<String, Place> =
        snapshot.nodes.keys().map(|node| (format!("node {node}"), Place::Node(node.clone()))).collect();
    places.insert(name_of(from), place_of(from));
    for backend in computed.backends.iter().filter(|backend| backend.answers) {
        let pod = Source::Pod(PodName::parse(&backend.name));
        places.insert(name_of(&pod), place_of(&pod));
    }
    places
}

/// A sender's place.
pub fn place_of(from: &Source) -> Place {
    match from {
        Source::Pod(PodName { namespace, name }) => Place::Pod(namespace.clone(), name.clone()),
        Source::Node(node) => Place::Node(node.clone()),
        Source::Outside => Place::Outside,
    }
}

fn name_of(from: &Source) -> String {
    match from {
        Source::Pod(pod) => format!("pod {pod}"),
        Source::Node(node) => format!("node {node}"),
        Source::Outside => "outside".to_owned(),
    }
}

/// Measures, and compares with what was computed. `spaces`: the namespaces of [`places`]; `sockets`: where the sender's are made.
///
/// # Errors
/// [`MeasureError`]
pub fn measure(
    spaces: &BTreeMap<String, Netns>,
    sockets: &Sockets,
    from: &Source,
    computed: &Trace,
) -> Result<Measured, MeasureError> {
    let to: SocketAddr = computed.to.parse().map_err(|_| MeasureError::Destination(computed.to.clone()))?;
    let sender = name_of(from);
    if !spaces.contains_key(&sender) {
        return Err(MeasureError::Place(from.to_string()));
    }
    let plain = unwatched(sockets, to, computed.protocol)?;
    let packet = Outgoing::prepare(sockets, to, computed.protocol)?;
    let mut captures = Vec::new();
    for (place, netns) in spaces {
        captures.push((place.clone(), tcpdump(place, netns, computed.protocol)?));
    }
    let mut traces = Vec::new();
    for (place, netns) in spaces {
        if let Some(node) = place.strip_prefix("node ") {
            traces.push((node.to_owned(), Marked::begin(place, netns, &packet)?));
        }
    }
    let (port, payload) = (packet.port, packet.payload.clone());
    let Sent { client, outcome, took } = packet.send(to);
    let source = computed.packet.source.ip();
    let client = SocketAddr::new(client.filter(|ip| !ip.is_unspecified()).unwrap_or(source), port);
    let cost = took.zip(plain).map(|(watched, plain)| Cost { watched_us: us(watched), unwatched_us: us(plain) });
    let attempt = Attempt { from: &sender, client, payload: &payload, outcome };
    let look = || {
        let all = captures.iter().flat_map(|(place, tool)| sightings(place, &tool.text())).collect();
        let rules = traces.iter().flat_map(|(node, marked)| kernel_trace::rules(node, &marked.monitor.text()));
        Measured { cost, ..measured(all, rules.collect(), &attempt, computed) }
    };
    let deadline = Instant::now() + CAUGHT_UP;
    loop {
        let found = look();
        let is_whole = found.disagreements.is_empty() && unseen(&found, computed).is_empty();
        if is_whole || Instant::now() > deadline {
            return Ok(found);
        }
        std::thread::sleep(LOOK); // neither tool tells that it has caught up
    }
}

/// So many are sent before anybody listens.
const PLAIN: usize = 3;

/// How long it takes while nobody looks: the middle of a few tries; `None`: one of them has no answer.
fn unwatched(sockets: &Sockets, to: SocketAddr, protocol: Protocol) -> Result<Option<Duration>, MeasureError> {
    let mut all = Vec::new();
    for _ in 0..PLAIN {
        match Outgoing::prepare(sockets, to, protocol)?.send(to).took {
            Some(took) => all.push(took),
            None => return Ok(None),
        }
    }
    all.sort();
    Ok(all.get(PLAIN / 2).copied())
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// How it went.
struct Sent {
    /// The client's own address, if it is known.
    client: Option<IpAddr>,
    /// In words.
    outcome: String,
    /// How long, if an answer came.
    took: Option<Duration>,
}

/// A socket whose port is known before anything is sent.
struct Outgoing {
    descriptor: std::os::fd::OwnedFd,
    protocol: Protocol,
    port: u16,
    /// What the datagram is known by.
    payload: Vec<u8>,
}

impl Outgoing {
    fn prepare(sockets: &Sockets, to: SocketAddr, protocol: Protocol) -> Result<Outgoing, MeasureError> {
        let (family, any): (_, IpAddr) = match to {
            SocketAddr::V4(_) => (AddressFamily::Inet, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (AddressFamily::Inet6, Ipv6Addr::UNSPECIFIED.into()),
        };
        let sort = match protocol {
            Protocol::Tcp => SockType::Stream,
            Protocol::Udp => SockType::Datagram,
            Protocol::Sctp => return Err(MeasureError::Protocol(protocol)),
        };
        let descriptor = sockets.make(Kind { family, sort, protocol: None, nonblocking: false })?;
        let failed = |error: nix::Error| MeasureError::Socket(error.into());
        bind(descriptor.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(any, 0))).map_err(failed)?;
        setsockopt(&descriptor, sockopt::SendTimeout, &TimeVal::new(ANSWER.as_secs().cast_signed(), 0))
            .map_err(failed)?;
        let bound: SockaddrStorage = getsockname(descriptor.as_raw_fd()).map_err(failed)?;
        let port = bound.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::port);
        let port = port.or_else(|| bound.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::port)).unwrap_or(0);
        let mut payload = b"signpost-measures-".to_vec();
        if protocol == Protocol::Udp {
            let mut number = [0; 8];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut number)?;
            payload.extend(number);
        }
        Ok(Outgoing { descriptor, protocol, port, payload })
    }

    /// Sends, and waits for the connection or the answer.
    fn send(self, to: SocketAddr) -> Sent {
        let started = Instant::now();
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        let failed = |client, error: io::Error| Sent {
            client,
            outcome: format!("{error} after {:.2} ms", ms(started.elapsed())),
            took: None,
        };
        if let Err(error) = connect(self.descriptor.as_raw_fd(), &SockaddrStorage::from(to)) {
            return failed(None, error.into());
        }
        if self.protocol == Protocol::Tcp {
            let (took, stream) = (started.elapsed(), TcpStream::from(self.descriptor));
            // Closed at once: the first packet and its answer are what was asked for.
            let client = stream.local_addr().ok().map(|own| own.ip());
            return Sent { client, outcome: format!("connected after {:.2} ms", ms(took)), took: Some(took) };
        }
        let socket = UdpSocket::from(self.descriptor);
        let client = socket.local_addr().ok().map(|own| own.ip());
        let answer = socket
            .set_read_timeout(Some(ANSWER))
            .and_then(|()| socket.send(&self.payload))
            .and_then(|_| socket.recv(&mut [0; 64 * 1024]));
        let took = started.elapsed();
        match answer {
            Ok(count) => {
                let outcome = format!("{count} bytes came back after {:.2} ms", ms(took));
                Sent { client, outcome, took: Some(took) }
            }
            Err(error) => failed(client, error),
        }
    }
}

/// A tool whose output is read while it runs; it ends when this is dropped.
struct Tool {
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Tool {
    fn start(name: &'static str, place: &str, netns: &Netns, mut command: Command) -> Result<Tool, MeasureError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |why: String| MeasureError::Tool { tool: name, place: place.to_owned(), why };
        let mut child = netns
            .run(|| command.spawn())
            .map_err(|error| failed(format!("{error}; is the package of that name installed?")))?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let (from, into) = (child.stdout.take(), output.clone());
        let tool = Tool { child, output };
        let Some(mut from) = from else { return Err(failed("it has no output".to_owned())) };
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Ok(tool)
    }

    /// Whole lines only: half a line is no sighting.
    fn text(&self) -> String {
        let bytes = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tcpdump(place: &str, netns: &Netns, protocol: Protocol) -> Result<Tool, MeasureError> {
    let mut command = Command::new("tcpdump");
    command.args(["-i", "any", "-nn", "-tt", "-S", "-l", "-U", "-x", "--immediate-mode", "-Z", "root"]);
    // A datagram is not read as what its port stands for.
    command.args(if protocol == Protocol::Udp { &["-q", "udp"][..] } else { &["tcp"] });
    let mut tool = Tool::start("tcpdump", place, netns, command)?;
    let failed = |why: String| MeasureError::Tool { tool: "tcpdump", place: place.to_owned(), why };
    let errors = tool.child.stderr.take().ok_or_else(|| failed("it has no error output".to_owned()))?;
    let mut said = String::new();
    for line in BufReader::new(errors).lines() {
        let line = line?;
        if line.contains("listening on") {
            return Ok(tool);
        }
        said.push_str(&line);
    }
    Err(failed(said))
}

/// A node whose kernel tells which rules the packet meets.
struct Marked {
    monitor: Tool,
    netns: Netns,
}

impl Marked {
    fn begin(place: &str, netns: &Netns, packet: &Outgoing) -> Result<Marked, MeasureError> {
        let monitor = {
            let mut command = Command::new("nft");
            command.args(["monitor", "trace"]);
            Tool::start("nft", place, netns, command)?
        };
        let marked = Marked { monitor, netns: netns.clone() };
        let failed = |why: String| MeasureError::Tool { tool: "nft", place: place.to_owned(), why };
        let protocol = packet.protocol;
        // Of a connection the packet that opens it; the sender's port is nobody else's at this moment.
        let first = if protocol == Protocol::Tcp { "tcp flags & (syn | ack) == syn" } else { "" };
        let is_it = format!("meta l4proto {protocol} th sport {} {first} meta nftrace set 1", packet.port);
        let mut rules = format!("add table inet {TABLE}\ndelete table inet {TABLE}\nadd table inet {TABLE}\n");
        for hook in ["prerouting", "output"] {
            rules += &format!("add chain inet {TABLE} {hook} {{ type filter hook {hook} priority -350; }}\n");
            rules += &format!("add rule inet {TABLE} {hook} {is_it}\n");
        }
        marked.nft(&rules).map_err(failed)?;
        let deadline = Instant::now() + LISTEN;
        while !listens(marked.monitor.child.id()) {
            if Instant::now() > deadline {
                return Err(failed("it does not ask the kernel for traces".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5)); // it tells nobody when it is ready
        }
        Ok(marked)
    }

    fn nft(&self, rules: &str) -> Result<(), String> {
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.netns.run(|| command.spawn()).map_err(|error| error.to_string())?;
        let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(rules.as_bytes()));
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        if output.status.success() && written.is_ok() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        // The namespace may be gone with its node.
        let _ = self.nft(&format!("delete table inet {TABLE}\n"));
    }
}

/// Whether a process has a netlink socket that takes part in the group of traces (`NFNLGRP_NFTRACE`, include/uapi/linux/netfilter/nfnetlink.h).
fn listens(process: u32) -> bool {
    const NETFILTER: &str = "12";
    const TRACES: u32 = 1 << 8;
    let table = std::fs::read_to_string(format!("/proc/{process}/net/netlink")).unwrap_or_default();
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (protocol, _owner, groups) = (words.next(), words.next(), words.next());
        protocol == Some(NETFILTER)
            && groups.and_then(|groups| u32::from_str_radix(groups, 16).ok()).is_some_and(|groups| groups & TRACES != 0)
    })
}
