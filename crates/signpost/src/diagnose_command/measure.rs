//! Measures a way in a lab: one TCP connection is made from where the question says, and tcpdump listens at the sender, at
//! each node and at each pod that may answer. Rules are not touched.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use signpost_core::object::Protocol;
use signpost_diagnose::address::{PodName, Source};
use signpost_diagnose::snapshot::Snapshot;
use signpost_diagnose::trace::Trace;
use signpost_diagnose::trace::measured::{Measured, measured, sightings};
use signpost_lab::control::{self, Answer, Question};
use signpost_lab::{Netns, Place};

/// How long the connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long tcpdump may take to listen.
const LISTEN: Duration = Duration::from_secs(10);
/// What was captured comes a moment later.
const DRAIN: Duration = Duration::from_millis(300);

/// A tcpdump at a place; ends when dropped.
struct Listener {
    place: String,
    child: Child,
    reading: Option<JoinHandle<String>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures, and compares with what was computed.
///
/// # Errors
/// The lab or tcpdump is missing.
pub(super) fn measure(lab: &str, snapshot: &Snapshot, from: &Source, computed: &Trace) -> anyhow::Result<Measured> {
    if computed.protocol != Protocol::Tcp {
        bail!("--measure knows a packet by its TCP sequence number: only TCP can be measured");
    }
    let to: SocketAddr = computed.to.parse().context("the destination is no address")?;
    let places = places(snapshot, from, computed);
    let spaces = namespaces(lab, &places)?;
    let sender = places.keys().next().map_or_else(String::new, |_| name_of(from));
    let home = spaces.get(&sender).with_context(|| format!("{from} has no network"))?;
    let mut listeners = Vec::new();
    for (place, netns) in &spaces {
        listeners.push(listen(place, netns)?);
    }
    let (client, outcome) = home.run(|| connect(to));
    std::thread::sleep(DRAIN); // tcpdump tells nobody that it has caught up
    let mut all = Vec::new();
    for listener in &mut listeners {
        let _ = listener.child.kill();
        if let Some(output) = listener.reading.take().and_then(|reading| reading.join().ok()) {
            all.extend(sightings(&listener.place, &output));
        }
    }
    let client = client.unwrap_or_else(|| SocketAddr::new(computed.packet.source.ip(), 0));
    Ok(measured(all, &sender, client, outcome, computed))
}

/// Sends the first packet; the client's own address, and how it ended.
fn connect(to: SocketAddr) -> (Option<SocketAddr>, String) {
    let started = Instant::now();
    let socket = match nix_socket(to) {
        Ok(socket) => socket,
        Err(error) => return (None, format!("no socket: {error}")),
    };
    let client = socket.1;
    let connected = socket.0(to);
    let took = started.elapsed().as_secs_f64() * 1e3;
    match connected {
        Ok(()) => (Some(client), format!("connected after {took:.2} ms")),
        Err(error) => (Some(client), format!("{error} after {took:.2} ms")),
    }
}

type Connect = Box<dyn FnOnce(SocketAddr) -> std::io::Result<()>>;

/// A socket whose port is known before it connects.
fn nix_socket(to: SocketAddr) -> std::io::Result<(Connect, SocketAddr)> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockname, setsockopt, socket, sockopt,
    };
    use nix::sys::time::TimeVal;
    use std::os::fd::AsRawFd;
    let (family, any): (AddressFamily, SocketAddr) = if to.is_ipv4() {
        (AddressFamily::Inet, ([0, 0, 0, 0], 0).into())
    } else {
        (AddressFamily::Inet6, (std::net::Ipv6Addr::UNSPECIFIED, 0).into())
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(any))?;
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::new(i64::try_from(CONNECT.as_secs()).unwrap_or(2), 0))?;
    let bound: SockaddrStorage = getsockname(fd.as_raw_fd())?;
    let port = bound.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::port);
    let port = port.or_else(|| bound.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::port)).unwrap_or(0);
    // The address is chosen when it connects; it is that of the route.
    let probe = std::net::UdpSocket::bind(any)?;
    probe.connect(to)?;
    let client = SocketAddr::new(probe.local_addr()?.ip(), port);
    let run = move |to: SocketAddr| {
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
        // Closed at once: the first packet and its answer are what was asked for.
        drop(TcpStream::from(fd));
        Ok(())
    };
    Ok((Box::new(run), client))
}

fn name_of(from: &Source) -> String {
    match from {
        Source::Pod(pod) => format!("pod {pod}"),
        Source::Node(node) => format!("node {node}"),
        Source::Outside => "outside".to_owned(),
    }
}

pub(super) fn place_of(from: &Source) -> Place {
    match from {
        Source::Pod(PodName { namespace, name }) => Place::Pod(namespace.clone(), name.clone()),
        Source::Node(node) => Place::Node(node.clone()),
        Source::Outside => Place::Outside,
    }
}

/// The sender, every node, and whoever may answer.
fn places(snapshot: &Snapshot, from: &Source, computed: &Trace) -> BTreeMap<String, Place> {
    let mut places: BTreeMap<String, Place> =
        snapshot.nodes.keys().map(|node| (format!("node {node}"), Place::Node(node.clone()))).collect();
    places.insert(name_of(from), place_of(from));
    for backend in computed.backends.iter().filter(|backend| backend.answers) {
        let pod = Source::Pod(PodName::parse(&backend.name));
        places.insert(name_of(&pod), place_of(&pod));
    }
    places
}

pub(super) fn namespaces(lab: &str, places: &BTreeMap<String, Place>) -> anyhow::Result<BTreeMap<String, Netns>> {
    let asked: Vec<Place> = places.values().cloned().collect();
    let Answer::Namespaces(paths) = control::ask(lab, &Question::Namespaces(asked))? else {
        bail!("the lab does not say where its namespaces are")
    };
    let opened = places.keys().zip(paths).filter_map(|(name, path)| Some((name.clone(), Netns::open(&path?).ok()?)));
    Ok(opened.collect())
}

fn listen(place: &str, netns: &Netns) -> anyhow::Result<Listener> {
    let mut command = Command::new("tcpdump");
    command.args(["-i", "any", "-nn", "-tt", "-S", "-l", "-U", "-Z", "root", "tcp"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = netns.run(|| command.spawn());
    let mut child = spawned.context("tcpdump cannot be run: install the package tcpdump")?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        // Half a line at its end is no sighting.
        if let Some(mut output) = output {
            let _ = output.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut listener = Listener { place: place.to_owned(), child, reading: Some(reading) };
    let started = Instant::now();
    let mut said = String::new();
    for line in BufReader::new(errors.context("tcpdump has no error output")?).lines() {
        let line = line?;
        if line.contains("listening on") {
            return Ok(listener);
        }
        said.push_str(&line);
        if started.elapsed() > LISTEN {
            break;
        }
    }
    let _ = listener.child.kill();
    bail!("tcpdump does not listen at {place}: {said}")
}
