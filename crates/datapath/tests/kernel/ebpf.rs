//! The mode eBPF in a real kernel: a control group and a bpf file system of the test's own, and sockets made in that group.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Packet, Verdict};
use signpost_core::plan::{FrontendKey, NodePlan, Target};
use signpost_core::walk::{walk, walk_socket};
use signpost_datapath::Datapath;
use signpost_datapath::ebpf::{Ebpf, KernelConfig, Node};
use signpost_datapath::nftables::NftablesConfig;

use crate::net::{Addresses, Net, Servers, addresses};
use crate::{Client, FAMILIES, meets, plans, program_with};

/// A control group below that of this process, whose threads can be in it one by one. It goes with this.
pub struct Cgroup(PathBuf);

impl Cgroup {
    pub fn new() -> Cgroup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("these tests need a cgroup2 mount");
        let mount = PathBuf::from(mount.split(' ').nth(4).unwrap());
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = mount.join(own).join(format!("signpost-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.type"), "threaded").unwrap();
        Cgroup(path)
    }

    /// Runs a closure on a thread in the group; threads that it starts are in it too.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            fs::write(self.0.join("cgroup.threads"), nix::unistd::gettid().to_string()).unwrap();
            f()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A thread that was joined may still be on its way out.
        let gone = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            fs::remove_dir(&self.0).is_ok()
        });
        if !gone {
            eprintln!("{} cannot be removed", self.0.display());
        }
    }
}

/// Runs a closure on a thread with mounts of its own, with a directory for pins in a fresh bpf file system.
pub fn with_pins<T: Send>(f: impl FnOnce(&Path) -> T + Send) -> T {
    let place = tempfile::tempdir().unwrap();
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNS).expect("needs root");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        // The mode itself mounts the file system there.
        f(&place.path().join("bpf/signpost"))
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// A node of `net` with two pods that serve, and the mode.
pub struct World {
    pub net: Net,
    pub cgroup: Cgroup,
    _servers: Servers,
    pub config: KernelConfig,
}

impl World {
    pub fn new(pins: &Path) -> World {
        let (net, servers, cgroup) = (Net::new(), Servers::new(), Cgroup::new());
        for family in FAMILIES {
            let Addresses { a, b, .. } = addresses(family);
            for (netns, address) in [(&net.a, a), (&net.b, b)] {
                servers.serve(netns, SocketAddr::new(address, 8080));
            }
        }
        let config = KernelConfig {
            pins: pins.to_owned(),
            cgroup: Some(cgroup.0.clone()),
            frontends: 1 << 10,
            slots: 1 << 12,
            remembered: 1 << 10,
            ..KernelConfig::default()
        };
        World { net, cgroup, _servers: servers, config }
    }

    /// A daemon that starts.
    pub fn mode(&self, node: &Node, family: Family) -> Ebpf {
        Ebpf::new(family, node.clone(), NftablesConfig::default())
    }

    /// What a daemon that starts does, for both families.
    pub fn program(&self, plan: impl Fn(Family) -> NodePlan) -> Node {
        let node = Node::new(self.config.clone());
        for family in FAMILIES {
            program_with(&self.net.node, &plan(family), &mut self.mode(&node, family));
        }
        node
    }
}

fn web(family: Family, target: Target) -> NodePlan {
    let mut plan = plans::empty(family);
    plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, target.clone());
    plans::add_cluster_ip(&mut plan, 1, Protocol::Udp, target);
    plan
}

fn both(family: Family) -> Target {
    let Addresses { a, b, .. } = addresses(family);
    Target::Backends(plans::backends(&[a, b]))
}

fn vip(family: Family) -> SocketAddr {
    SocketAddr::new(plans::cluster_ip(family, 1), 80)
}

#[test]
fn sockets_meet_what_the_walk_says() {
    with_pins(|pins| {
        let world = World::new(pins);
        let node = world.program(plans::everything);
        for family in FAMILIES {
            let plan = plans::everything(family);
            let mode = world.mode(&node, family);
            let program = mode.program(&plan);
            for key in plan.frontends.keys() {
                let (address, protocol, port) = match *key {
                    FrontendKey::Address { address, protocol, port } => (address, protocol, port),
                    FrontendKey::NodePort { protocol, port } => (addresses(family).node, protocol, port),
                };
                let to = SocketAddr::new(address, port.get());
                for client in [Client::PodA, Client::Node, Client::Outside] {
                    let (netns, source, entry) = client.at(&world.net, addresses(family));
                    let packet = Packet { protocol, source: SocketAddr::new(source, 40_000), destination: to, entry };
                    let at_socket = walk_socket(&plan, &packet, None);
                    assert_eq!(mode.walk_socket(&program, &packet, None), at_socket);
                    if protocol == Protocol::Sctp {
                        continue;
                    }
                    match (client, at_socket) {
                        (Client::Outside, _) | (_, Verdict::NotOurs) => {
                            let verdict = walk(&plan, &packet);
                            match client {
                                Client::Outside => meets(client, netns, source, protocol, to, &verdict),
                                _ => world.cgroup.run(|| meets(client, netns, source, protocol, to, &verdict)),
                            }
                        }
                        (_, verdict) => world.cgroup.run(|| meets(client, netns, source, protocol, to, &verdict)),
                    }
                }
            }
        }
    });
}

#[test]
fn a_service_is_reached_without_rules_for_packets_and_seen_as_the_peer() {
    with_pins(|pins| {
        let world = World::new(pins);
        world.program(|family| web(family, both(family)));
        // What the rules would do is taken away: only the sockets are left.
        world.net.node.command("nft", "flush ruleset");
        for family in FAMILIES {
            let to = vip(family);
            world.cgroup.run(|| {
                world.net.a.run(|| {
                    let stream = TcpStream::connect(to).unwrap();
                    assert_eq!(stream.peer_addr().unwrap(), to);
                    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
                    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                    assert_eq!(ask(&socket, to).1, to);
                    socket.connect(to).unwrap();
                    assert_eq!(socket.peer_addr().unwrap(), to);
                });
            });
            // A process in another control group is not served: its packets would go to an address that is nowhere.
            assert!(world.net.a.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_err()));
        }
    });
}

/// Sends a datagram and gives the answer: its text, and from where it seems to come.
fn ask(socket: &UdpSocket, to: SocketAddr) -> (String, SocketAddr) {
    socket.send_to(b"?", to).unwrap();
    let mut bytes = [0; 256];
    let (count, from) = socket.recv_from(&mut bytes).unwrap();
    (String::from_utf8_lossy(&bytes[..count]).into_owned(), from)
}

#[test]
fn an_unconnected_udp_socket_stays_with_its_backend_as_long_as_it_is_one() {
    with_pins(|pins| {
        let world = World::new(pins);
        let node = world.program(|family| web(family, both(family)));
        for family in FAMILIES {
            let to = vip(family);
            let bind = || UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            let socket = world.cgroup.run(|| world.net.node.run(bind));
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let by = |answer: (String, SocketAddr)| answer.0.split(' ').next().unwrap().parse::<SocketAddr>().unwrap();
            let first = by(ask(&socket, to));
            // Of two equal ones the same 30 times by chance: 1e-9.
            assert!((0..30).all(|_| by(ask(&socket, to)) == first));
            let Addresses { a, b, .. } = addresses(family);
            let other = if first.ip() == a { b } else { a };
            let plan = web(family, Target::Backends(plans::backends(&[other])));
            program_with(&world.net.node, &plan, &mut world.mode(&node, family));
            assert_eq!(by(ask(&socket, to)).ip(), other);
        }
    });
}

#[test]
fn ipv4_through_an_ipv6_socket_is_served_as_ipv4() {
    with_pins(|pins| {
        let world = World::new(pins);
        world.program(|family| web(family, both(family)));
        world.net.node.command("nft", "flush ruleset");
        let SocketAddr::V4(to) = vip(Family::Ipv4) else { panic!("it is IPv4") };
        let mapped = SocketAddr::new(to.ip().to_ipv6_mapped().into(), to.port());
        world.cgroup.run(|| {
            world.net.a.run(|| {
                assert_eq!(TcpStream::connect(mapped).unwrap().peer_addr().unwrap(), mapped);
                let socket = UdpSocket::bind("[::]:0").unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                assert_eq!(ask(&socket, mapped).1, mapped);
                socket.connect(mapped).unwrap();
                assert_eq!(socket.peer_addr().unwrap(), mapped);
            });
        });
    });
}

#[test]
fn affinity_holds_a_client_for_its_time_and_not_longer() {
    with_pins(|pins| {
        let world = World::new(pins);
        world.program(|family| {
            let mut plan = web(family, both(family));
            plan.frontends.values_mut().for_each(|frontend| frontend.affinity = Some(Duration::from_secs(1)));
            plan
        });
        let to = vip(Family::Ipv4);
        let met = || {
            let met = || TcpStream::connect(to).and_then(|stream| crate::net::hello(&stream)).unwrap();
            world.cgroup.run(|| world.net.node.run(met)).split(' ').next().unwrap().to_owned()
        };
        let first = met();
        assert!((0..30).all(|_| met() == first));
        // Each pause is longer than the affinity: the same one 30 times by chance would be 1e-9.
        assert!((0..30).any(|_| {
            thread::sleep(Duration::from_millis(1010));
            met() != first
        }));
    });
}

#[test]
fn a_process_of_the_node_cannot_take_a_node_port_and_one_of_a_pod_can() {
    with_pins(|pins| {
        let world = World::new(pins);
        world.program(plans::everything);
        let port = plans::everything(Family::Ipv4).frontends.keys().find_map(|key| match key {
            FrontendKey::NodePort { protocol: Protocol::Tcp, port } => Some(port.get()),
            _ => None,
        });
        let port = port.unwrap();
        for any in ["0.0.0.0", "[::]"] {
            let bind = || TcpListener::bind(format!("{any}:{port}"));
            let taken = world.cgroup.run(|| world.net.node.run(bind)).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "{any}");
            world.cgroup.run(|| world.net.a.run(bind)).unwrap();
        }
        world.cgroup.run(|| world.net.node.run(|| TcpListener::bind(("127.0.0.1", port)))).unwrap();
        world.cgroup.run(|| world.net.node.run(|| TcpListener::bind("0.0.0.0:0"))).unwrap();
    });
}

#[test]
fn a_restart_changes_nothing_and_new_programs_take_the_links_over() {
    with_pins(|pins| {
        let world = World::new(pins);
        let first = world.program(plans::everything);
        let repaired = |node: &Node| {
            FAMILIES.map(|family| {
                world.net.node.run(|| {
                    let mut mode = world.mode(node, family);
                    let have = mode.observe().unwrap();
                    mode.repair(&mode.program(&plans::everything(family)), &have)
                })
            })
        };
        assert!(repaired(&first).iter().all(|change| change.sockets.is_empty() && change.packets.is_empty()));
        drop(first);
        let second = Node::new(world.config.clone());
        for mut change in repaired(&second) {
            assert!(std::mem::take(&mut change.sockets.attach));
            assert!(change.sockets.is_empty() && change.packets.is_empty(), "{change:?}");
        }
        world.program(plans::everything);
        let links = fs::read_dir(pins.join("links")).unwrap().count();
        assert_eq!(links, 11);
        // Maps of other sizes are filled, then the old ones go.
        let config = KernelConfig { frontends: 1 << 11, ..world.config.clone() };
        let world = World { config, ..world };
        world.program(plans::everything);
        let maps: Vec<_> = fs::read_dir(pins).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(maps.len(), 2, "{maps:?}");
        let to = vip(Family::Ipv4);
        world.net.node.command("nft", "flush ruleset");
        world.cgroup.run(|| world.net.a.run(|| TcpStream::connect(to))).unwrap();
        let node = Node::new(world.config.clone());
        assert!(node.kernel().remove().unwrap());
        let gone = || TcpStream::connect_timeout(&to, Duration::from_millis(200)).is_err();
        assert!(world.cgroup.run(|| world.net.a.run(gone)));
        assert!(!node.kernel().remove().unwrap());
    });
}

#[test]
fn a_map_that_is_full_says_so() {
    with_pins(|pins| {
        let mut world = World::new(pins);
        world.config.slots = 1;
        let node = Node::new(world.config.clone());
        let mut mode = world.mode(&node, Family::Ipv4);
        let error = world.net.node.run(|| {
            let have = mode.observe().unwrap();
            let want = mode.program(&web(Family::Ipv4, both(Family::Ipv4)));
            mode.apply(&mode.repair(&want, &have)).unwrap_err()
        });
        let text = error.to_string();
        assert!(text.starts_with("the map slots is full: it has room for 1 entries"), "{text}");
    });
}
