//! Startup, readiness and liveness probes: asks a container again and again, from its node as the kubelet does.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::threshold::Threshold;
use crate::netns::Netns;
use crate::sandbox::{Exit, Sandbox, Start};

/// Whom to ask, and from where.
#[derive(Clone)]
pub struct Target {
    /// The pod's address.
    pub address: IpAddr,
    /// The node's namespace.
    pub node: Netns,
    /// For probes that run a program.
    pub sandbox: Arc<Sandbox>,
    /// The container's environment and the like.
    pub template: Start,
    /// The container.
    pub container: Container,
}

/// Asks for ever; tells each result, and what is believed if that is new with it.
pub async fn observe(probe: &Probe, target: &Target, mut tell: impl FnMut(&Result<(), String>, Option<bool>)) {
    let seconds = |value: Option<i32>, default: u64| {
        Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
    };
    let count = |value: Option<i32>, default: u32| value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default);
    let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
    let timeout = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
    let mut threshold = Threshold::new(count(probe.success_threshold, 1), count(probe.failure_threshold, 3));
    tokio::time::sleep(seconds(probe.initial_delay_seconds, 0)).await;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // A program that has just begun mostly listens some milliseconds later: a lab's user need not wait a period for it.
    let eager = tokio::time::Instant::now() + EAGER;
    let asks_network = probe.http_get.is_some() || probe.tcp_socket.is_some();
    let mut answered = !asks_network;
    loop {
        ticks.tick().await;
        let asked = tokio::time::timeout(timeout, ask(probe, target)).await;
        let mut result = asked.unwrap_or_else(|_| Err(late(probe, target, timeout)));
        while !answered && result.is_err() && tokio::time::Instant::now() < eager {
            tokio::time::sleep(EAGER_PERIOD).await;
            result = tokio::time::timeout(timeout, ask(probe, target)).await.unwrap_or(result);
        }
        answered |= result.is_ok();
        let belief = threshold.observe(result.is_ok());
        tell(&result, belief);
    }
}

/// Until so long after a container's start a probe over the network that is not answered is made again at once; only the last
/// of these counts.
const EAGER: Duration = Duration::from_secs(2);
const EAGER_PERIOD: Duration = Duration::from_millis(25);

/// What the kubelet says of an answer that did not come in time.
fn late(probe: &Probe, target: &Target, timeout: Duration) -> String {
    let to = |port_of: &IntOrString| port(port_of, &target.container).unwrap_or_default();
    if let Some(http) = &probe.http_get {
        let url = url(http, SocketAddr::new(target.address, to(&http.port)));
        return format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
    }
    if let Some(tcp) = &probe.tcp_socket {
        return format!("dial tcp {}: i/o timeout", SocketAddr::new(target.address, to(&tcp.port)));
    }
    let command = probe.exec.as_ref().and_then(|exec| exec.command.clone()).unwrap_or_default().join(" ");
    format!("command timed out: {command:?} timed out after {}s", timeout.as_secs())
}

fn url(http: &HTTPGetAction, address: SocketAddr) -> String {
    let path = http.path.as_deref().unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    format!("http://{address}{slash}{path}")
}

async fn ask(probe: &Probe, target: &Target) -> Result<(), String> {
    if let Some(http) = &probe.http_get {
        return get(http, target).await;
    }
    if let Some(tcp) = &probe.tcp_socket {
        let port = port(&tcp.port, &target.container)?;
        return connect(target, tcp.host.as_deref(), port).await.map(drop);
    }
    if let Some(exec) = &probe.exec {
        return run(exec.command.clone().unwrap_or_default(), target).await;
    }
    Err("the lab's kubelet asks by httpGet, tcpSocket or exec only".to_owned())
}

fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            ports.find(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port)
        }
    };
    let number = number.ok_or_else(|| format!("the container has no port named {port:?}"))?;
    u16::try_from(number).map_err(|_| format!("{number} is no port"))
}

async fn connect(target: &Target, host: Option<&str>, port: u16) -> Result<TcpStream, String> {
    let address = match host {
        None | Some("") => target.address,
        Some(host) => host.parse().map_err(|_| format!("the lab's kubelet looks up no names: host {host:?}"))?,
    };
    let address = SocketAddr::new(address, port);
    let socket = target.node.run(|| if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() });
    let stream = async { socket?.connect(address).await }.await;
    stream.map_err(|error| format!("dial tcp {address}: connect: {}", reason(&error)))
}

/// The system's words without its number.
fn reason(error: &io::Error) -> String {
    let known = error.raw_os_error().map(|number| nix::errno::Errno::from_raw(number).desc().to_ascii_lowercase());
    known.unwrap_or_else(|| error.to_string())
}

async fn get(http: &HTTPGetAction, target: &Target) -> Result<(), String> {
    if http.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")) {
        return Err("the lab's kubelet asks by HTTP only, not HTTPS".to_owned());
    }
    let port = port(&http.port, &target.container)?;
    let named = |problem: String| format!("Get {:?}: {problem}", url(http, SocketAddr::new(target.address, port)));
    let mut stream = connect(target, http.host.as_deref(), port).await.map_err(named)?;
    let status = status_of(&mut stream, http, port).await;
    match status {
        Ok(200..400) => Ok(()),
        Ok(status) => Err(format!("HTTP probe failed with statuscode: {status}")),
        Err(error) => Err(named(reason(&error))),
    }
}

async fn status_of(stream: &mut TcpStream, http: &HTTPGetAction, port: u16) -> io::Result<u16> {
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
    let path = clean(http.path.as_deref().unwrap_or("/"));
    let slash = if path.starts_with('/') { "" } else { "/" };
    let own = http.http_headers.as_deref().unwrap_or_default();
    let named = |name: &str| own.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    let mut request = format!("GET {slash}{path} HTTP/1.1\r\nConnection: close\r\n");
    if !named("host") {
        let address = SocketAddr::new(stream.peer_addr()?.ip(), port);
        request.push_str(&format!("Host: {address}\r\n"));
    }
    if !named("user-agent") {
        request.push_str("User-Agent: kube-probe/1.36\r\n");
    }
    for header in own {
        request.push_str(&format!("{}: {}\r\n", clean(&header.name), clean(&header.value)));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while head.len() < 12 {
        let mut buffer = [0; 512];
        match stream.read(&mut buffer).await? {
            0 => break,
            length => head.extend_from_slice(&buffer[..length]),
        }
    }
    let status = std::str::from_utf8(&head).ok().and_then(|head| head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "malformed HTTP response"))
}

async fn run(argv: Vec<String>, target: &Target) -> Result<(), String> {
    let null =
        || -> io::Result<OwnedFd> { Ok(std::fs::File::options().read(true).write(true).open("/dev/null")?.into()) };
    let start = Start { argv, ..target.template.clone() };
    let started = async { target.sandbox.start_program(start, [null()?, null()?, null()?]).await }.await;
    let program = started.map_err(|error| format!("cannot run the probe's command: {error}"))?;
    let mut guard = KillOnDrop(Some(program));
    let exit = match &guard.0 {
        Some(program) => program.exit().await,
        None => return Ok(()),
    };
    guard.0 = None;
    match exit {
        Exit::Status(0) => Ok(()),
        exit => Err(format!("command ended with exit code {}", exit.code())),
    }
}

/// A probe that takes too long is ended.
struct KillOnDrop(Option<crate::sandbox::Program>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(program) = self.0.take() {
            tokio::spawn(async move {
                // The pod may have ended meanwhile.
                let _ = program.signal(Signal::SIGKILL, true).await;
            });
        }
    }
}
