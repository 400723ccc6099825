//! A node with two pods and somebody outside: network namespaces held by file descriptors, gone with the process.
//!
//! ```text
//!  a 10.244.1.2 ─┐
//!                ├─ 10.244.1.1 (node) 172.18.0.11 ─── 172.18.0.1 outside
//!  b 10.244.1.3 ─┘
//! ```
//!
//! Each pod has a cable of its own to the node and no neighbour: what pods send each other goes through the node's
//! rules both ways. On a bridge, answers would take the short way, past the rules.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use signpost_core::object::{Family, Protocol};

/// A network namespace.
#[derive(Clone)]
pub struct Netns(Arc<File>);

impl Netns {
    /// A fresh one, with `lo` up.
    pub fn new() -> Netns {
        let file = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .expect("these tests need root: they make network namespaces of their own");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let netns = Netns(Arc::new(file.join().unwrap()));
        netns.ip("link set lo up");
        netns
    }

    /// Runs a closure on a thread inside.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` with these words.
    pub fn ip(&self, words: &str) {
        self.command("ip", words);
    }

    /// Runs a program and returns what it prints.
    pub fn command(&self, program: &str, words: &str) -> String {
        let output = self.run(|| Command::new(program).args(words.split_whitespace()).output().unwrap());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn sysctl(&self, path: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap());
    }
}

/// The four places.
pub struct Net {
    pub node: Netns,
    pub a: Netns,
    pub b: Netns,
    pub outside: Netns,
}

/// The addresses of one family: node, gateway of the pods, pods a and b, outside.
#[derive(Clone, Copy)]
pub struct Addresses {
    pub node: IpAddr,
    pub gateway: IpAddr,
    pub a: IpAddr,
    pub b: IpAddr,
    pub outside: IpAddr,
}

pub fn addresses(family: Family) -> Addresses {
    let [node, gateway, a, b, outside] = match family {
        Family::Ipv4 => ["172.18.0.11", "10.244.1.1", "10.244.1.2", "10.244.1.3", "172.18.0.1"],
        Family::Ipv6 => {
            ["fd00:172:18::11", "fd00:10:244:1::1", "fd00:10:244:1::2", "fd00:10:244:1::3", "fd00:172:18::1"]
        }
    }
    .map(|text| text.parse().unwrap());
    Addresses { node, gateway, a, b, outside }
}

impl Net {
    pub fn new() -> Net {
        let net = Net { node: Netns::new(), a: Netns::new(), b: Netns::new(), outside: Netns::new() };
        for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            net.node.sysctl(path, "1");
        }
        // Many refusals in a second are wanted here. A redirect, which a hairpin provokes, would use up the allowance too.
        for path in [
            "ipv4/icmp_ratelimit",
            "ipv6/icmp/ratelimit",
            "ipv4/conf/all/send_redirects",
            "ipv4/conf/default/send_redirects",
        ] {
            net.node.sysctl(path, "0");
        }
        for (name, peer) in [("va", &net.a), ("vb", &net.b), ("eth0", &net.outside)] {
            net.node.ip(&format!("link add {name} type veth peer name eth0 netns {}", peer.path()));
            net.node.ip(&format!("link set {name} up"));
            peer.ip("link set eth0 up");
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            let Addresses { node, gateway, a, b, outside } = addresses(family);
            let (ip, pods, nodes, nodad) = if node.is_ipv4() { ("-4", 32, 24, "") } else { ("-6", 128, 64, "nodad") };
            net.node.ip(&format!("addr add {node}/{nodes} dev eth0 {nodad}"));
            net.node.ip(&format!("{ip} route add default via {outside}"));
            net.outside.ip(&format!("addr add {outside}/{nodes} dev eth0 {nodad}"));
            net.outside.ip(&format!("{ip} route add default via {node}"));
            for (pod, name, address) in [(&net.a, "va", a), (&net.b, "vb", b)] {
                net.node.ip(&format!("addr add {gateway}/{pods} dev {name} {nodad}"));
                net.node.ip(&format!("{ip} route add {address}/{pods} dev {name}"));
                pod.ip(&format!("addr add {address}/{pods} dev eth0 {nodad}"));
                pod.ip(&format!("{ip} route add {gateway}/{pods} dev eth0"));
                pod.ip(&format!("{ip} route add default via {gateway}"));
            }
        }
        net
    }
}

/// Servers that tell who they are and whom they see. They end when this goes.
pub struct Servers(Arc<AtomicBool>);

impl Servers {
    pub fn new() -> Servers {
        Servers(Arc::new(AtomicBool::new(false)))
    }

    /// Answers `ADDRESS PEER` at an address, TCP and UDP.
    pub fn serve(&self, netns: &Netns, at: SocketAddr) {
        let (tcp, udp) = netns.run(|| (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap()));
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        let end = self.0.clone();
        thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let mut ready =
                    [PollFd::new(tcp.as_fd(), PollFlags::POLLIN), PollFd::new(udp.as_fd(), PollFlags::POLLIN)];
                poll(&mut ready, PollTimeout::from(50u16)).unwrap();
                if let Ok((stream, peer)) = tcp.accept() {
                    thread::spawn(move || talk(stream, at, peer));
                }
                let mut bytes = [0; 64];
                if let Ok((_, peer)) = udp.recv_from(&mut bytes) {
                    // A client that left does not matter.
                    let _ = udp.send_to(format!("{at} {peer}").as_bytes(), peer);
                }
            }
        });
    }
}

/// Says hello, then echoes what comes until the client leaves.
fn talk(mut stream: TcpStream, at: SocketAddr, peer: SocketAddr) {
    stream.set_nonblocking(false).unwrap();
    let mut bytes = [0; 64];
    let mut said = stream.write_all(format!("{at} {peer}\n").as_bytes());
    while let (Ok(()), Ok(count @ 1..)) = (&said, stream.read(&mut bytes)) {
        said = stream.write_all(&bytes[..count]);
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What came of a try to reach something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Answer { by: SocketAddr, peer: IpAddr },
    Refused,
    Timeout,
}

/// How long an answer or a refusal may take on a busy machine; it comes within a millisecond on an idle one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long silence must last to count as such.
pub const SILENCE: Duration = Duration::from_millis(400);

/// Tries to reach an address from inside a namespace.
pub fn reach(netns: &Netns, protocol: Protocol, to: SocketAddr) -> Outcome {
    reach_within(netns, protocol, to, PATIENCE)
}

/// The same, with another patience.
pub fn reach_within(netns: &Netns, protocol: Protocol, to: SocketAddr, patience: Duration) -> Outcome {
    netns.run(|| {
        let answer = match protocol {
            Protocol::Tcp => TcpStream::connect_timeout(&to, patience).and_then(|stream| hello(&stream)),
            _ => ask(to, patience),
        };
        match answer {
            Ok(answer) => parse(&answer),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => Outcome::Refused,
                // The node's own rules refuse the node's own datagrams with this error, besides the ICMP message.
                io::ErrorKind::PermissionDenied => Outcome::Refused,
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Outcome::Timeout,
                _ => panic!("{to}: {error}"),
            },
        }
    })
}

fn ask(to: SocketAddr, patience: Duration) -> io::Result<String> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(patience))?;
    socket.send(b"?")?;
    let mut bytes = [0; 256];
    let count = socket.recv(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

/// The first line of a connection.
pub fn hello(mut stream: &TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') && stream.read(&mut byte)? == 1 {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn parse(answer: &str) -> Outcome {
    let (by, peer) = answer.split_once(' ').unwrap_or_else(|| panic!("a strange answer: {answer:?}"));
    let peer: SocketAddr = peer.parse().unwrap();
    Outcome::Answer { by: by.parse().unwrap(), peer: peer.ip() }
}
