//! `signpost doctor --probe`: real connections from real places of a lab, several for each, compared with the walk. One
//! probe is no evidence: the same fault may answer at once, late, or never.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::bail;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockType, SockaddrStorage, connect, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::Serialize;
use signpost_core::object::{ObjectName, Protocol};
use signpost_diagnose::address::{Destination, PodName, PortRef, Scheme, ServiceRef, Source, Target};
use signpost_diagnose::doctor::text::target as shown;
use signpost_diagnose::doctor::{Question, To};
use signpost_diagnose::snapshot::Snapshot;
use signpost_diagnose::trace::{self, trace};
use signpost_lab::sockets::{Kind, Sockets};

use super::measure::sockets;

/// So many of each.
const TRIES: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(1);

/// What came of the connections from one place to one destination.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Probed {
    from: String,
    to: String,
    at: SocketAddr,
    answered: usize,
    tries: usize,
    /// How the others ended.
    failures: BTreeMap<String, usize>,
    /// What the walk says.
    computed: String,
    pub(super) agrees: bool,
}

/// Probes one Service.
///
/// # Errors
/// It is no lab, or it does not say where its namespaces are.
pub(super) fn probe(snapshot: &Snapshot, service: &ObjectName, question: &Question) -> anyhow::Result<Vec<Probed>> {
    let Some(lab) = snapshot.origin.strip_prefix("lab ") else { bail!("--probe needs a lab") };
    let senders = senders(snapshot, question);
    let targets = targets(snapshot, service, question);
    let connections = senders.len() * targets.len() * TRIES;
    eprintln!("signpost: {connections} connections to {service} from {}; nothing else is made", list(&senders));
    let mut all = Vec::new();
    for from in &senders {
        let sockets = sockets(lab, snapshot, from)?;
        for to in &targets {
            let question = trace::Question { from: from.clone(), to: to.clone(), family: None, protocol: None };
            // What has no address is told by the diagnosis.
            let Ok(computed) = trace(snapshot, &question) else { continue };
            let Ok(at) = computed.to.parse::<SocketAddr>() else { continue };
            all.push(one(&sockets, from, to, at, computed.protocol, &computed.outcome, computed.reached));
        }
    }
    Ok(all)
}

fn list(senders: &[Source]) -> String {
    senders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn one(
    sockets: &Sockets,
    from: &Source,
    to: &Target,
    at: SocketAddr,
    protocol: Protocol,
    computed: &str,
    reached: bool,
) -> Probed {
    let results: Vec<io::Result<()>> = (0..TRIES).map(|_| attempt(sockets, at, protocol)).collect();
    let answered = results.iter().filter(|result| result.is_ok()).count();
    let mut failures = BTreeMap::new();
    for error in results.into_iter().filter_map(Result::err) {
        *failures.entry(error.to_string()).or_insert(0) += 1;
    }
    // A way of several may fail: only all or none can contradict.
    let agrees = if reached { answered == TRIES } else { answered < TRIES };
    Probed {
        from: from.to_string(),
        to: shown(to),
        at,
        answered,
        tries: TRIES,
        failures,
        computed: computed.to_owned(),
        agrees,
    }
}

fn attempt(sockets: &Sockets, at: SocketAddr, protocol: Protocol) -> io::Result<()> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let sort = if protocol == Protocol::Udp { SockType::Datagram } else { SockType::Stream };
    let descriptor = sockets.make(Kind { family, sort, protocol: None, nonblocking: false })?;
    let patience = TimeVal::seconds(TIMEOUT.as_secs().cast_signed());
    setsockopt(&descriptor, sockopt::SendTimeout, &patience)?;
    setsockopt(&descriptor, sockopt::ReceiveTimeout, &patience)?;
    match connect(descriptor.as_raw_fd(), &SockaddrStorage::from(at)) {
        // What a blocking call says whose time is over.
        Err(Errno::EINPROGRESS) => return Err(io::ErrorKind::TimedOut.into()),
        other => other?,
    }
    if protocol == Protocol::Udp {
        let socket = UdpSocket::from(descriptor);
        socket.send(b"signpost")?;
        return match socket.recv(&mut [0; 64 * 1024]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
            other => other.map(drop),
        };
    }
    Ok(())
}

fn senders(snapshot: &Snapshot, question: &Question) -> Vec<Source> {
    if let Some(from) = &question.from {
        return vec![from.clone()];
    }
    let text = |pod: &serde_json::Value, pointer: &str| {
        pod.pointer(pointer).and_then(serde_json::Value::as_str).map(str::to_owned)
    };
    let of_node = |node: &String| {
        let mut pods = snapshot.objects.pods.iter().filter(|pod| {
            text(pod, "/spec/nodeName").as_ref() == Some(node)
                && text(pod, "/metadata/namespace")
                    .zip(text(pod, "/metadata/name"))
                    .is_some_and(|(namespace, name)| snapshot.pods.contains_key(&format!("{namespace}/{name}")))
        });
        let found = pods.next().and_then(|pod| {
            let (namespace, name) = (text(pod, "/metadata/namespace")?, text(pod, "/metadata/name")?);
            Some(Source::Pod(PodName { namespace, name }))
        });
        found.unwrap_or_else(|| Source::Node(node.clone()))
    };
    snapshot.nodes.keys().map(of_node).collect()
}

fn targets(snapshot: &Snapshot, service: &ObjectName, question: &Question) -> Vec<Target> {
    let reference = || ServiceRef { namespace: service.namespace.to_string(), name: service.name.to_string() };
    let cluster = |port: PortRef, udp: bool| Target {
        scheme: if udp { Scheme::Udp } else { Scheme::Tcp },
        destination: Destination::Cluster(reference(), port),
    };
    match &question.to {
        Some(To::Target(target)) => vec![target.clone()],
        Some(To::Port(port, protocol)) => vec![cluster(port.clone(), *protocol == Some(Protocol::Udp))],
        None => {
            let object = snapshot.objects.services.iter().find(|object| {
                object.pointer("/metadata/name").and_then(serde_json::Value::as_str) == Some(&*service.name)
                    && object.pointer("/metadata/namespace").and_then(serde_json::Value::as_str)
                        == Some(&*service.namespace)
            });
            let ports = object.and_then(|object| object.pointer("/spec/ports")?.as_array()).into_iter().flatten();
            let port = |port: &serde_json::Value| {
                let number = port.get("port")?.as_u64().and_then(|number| u16::try_from(number).ok())?;
                let protocol = port.get("protocol").and_then(serde_json::Value::as_str).unwrap_or("TCP");
                (protocol != "SCTP").then(|| cluster(PortRef::Number(number), protocol == "UDP"))
            };
            ports.filter_map(port).collect()
        }
    }
}

/// A line for each.
pub(super) fn text(all: &[Probed]) -> String {
    let line = |one: &Probed| {
        let mark = if one.agrees { "√" } else { "×" };
        let failures: Vec<String> = one.failures.iter().map(|(how, count)| format!("{count} {how}")).collect();
        let failures = if failures.is_empty() { String::new() } else { format!(" ({})", failures.join(", ")) };
        let agrees = if one.agrees { "as computed" } else { "computed otherwise" };
        format!(
            "{mark} probe {} to {} at {}: {} of {} answered{failures}; {agrees}: {} [measured]\n",
            one.from, one.to, one.at, one.answered, one.tries, one.computed
        )
    };
    all.iter().map(line).collect()
}
