//! What becomes of sockets in the mode eBPF over time: they are counted, ended when they should be, and neither the death of a
//! daemon, nor its successor, nor another node beside it is noticed by them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use signpost_core::object::{Family, ObjectName, Protocol, Rebalance, ServicePortName};
use signpost_core::plan::{Backend, NodePlan, Target};
use signpost_datapath::Datapath;
use signpost_datapath::counts::{BackendCounts, PortCounts, Rebalancing};
use signpost_datapath::ebpf::program::{Packets, Program};
use signpost_datapath::ebpf::repair::repair;
use signpost_datapath::ebpf::{Counting, Kernel, KernelConfig, Node};

use crate::ebpf::{World, with_pins};
use crate::net::{Addresses, addresses, hello};
use crate::{FAMILIES, plans, program_with};

/// How long something that happens at once may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn vip(family: Family, number: u8) -> SocketAddr {
    SocketAddr::new(plans::cluster_ip(family, number), 80)
}

fn only(at: SocketAddr) -> Target {
    Target::Backends([Backend { address: at, local: true }].into())
}

/// A Service of each protocol at each of these targets, numbered from 1.
fn services(family: Family, targets: &[Target]) -> NodePlan {
    let mut plan = plans::empty(family);
    for (number, target) in (1..).zip(targets) {
        plans::add_cluster_ip(&mut plan, number, Protocol::Tcp, target.clone());
        plans::add_cluster_ip(&mut plan, number, Protocol::Udp, target.clone());
    }
    plan
}

fn counts(world: &World, node: &Node, plan: &NodePlan) -> BTreeMap<ServicePortName, PortCounts> {
    world.mode(node, plan.family).counts(plan).unwrap()
}

#[test]
fn connections_and_their_failures_are_counted_by_backend_and_service() {
    with_pins(|pins| {
        let mut world = World::new(pins);
        world.config.counting = Counting::Packets;
        let plan = |family| {
            let Addresses { a, b, .. } = addresses(family);
            services(family, &[only(SocketAddr::new(b, 8080)), Target::Reject, only(SocketAddr::new(a, 9))])
        };
        let node = world.program(plan);
        for family in FAMILIES {
            world.cgroup.run(|| {
                world.net.a.run(|| {
                    for _ in 0..7 {
                        let mut stream = TcpStream::connect(vip(family, 1)).unwrap();
                        hello(&stream).unwrap();
                        stream.write_all(&[1; 50]).unwrap();
                        stream.read_exact(&mut [0; 50]).unwrap();
                    }
                    let socket =
                        UdpSocket::bind(if vip(family, 1).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
                    for _ in 0..5 {
                        socket.send_to(b"?", vip(family, 1)).unwrap();
                    }
                    for number in [2, 3] {
                        (0..number).for_each(|_| drop(TcpStream::connect(vip(family, number)).unwrap_err()));
                    }
                });
            });
            let plan = plan(family);
            let Addresses { a, b, .. } = addresses(family);
            let names = [1, 2, 3].map(|number| ServicePortName {
                service: ObjectName::new("default", &format!("cluster-ip-{number}")),
                port: "http".into(),
            });
            let deadline = Instant::now() + PATIENCE;
            // The other side's end of a connection is on its way.
            let counted = loop {
                let counted = counts(&world, &node, &plan);
                let served = counted[&names[0]].backends[&SocketAddr::new(b, 8080)];
                if served.sent_bytes >= 7 * 50 && served.received_bytes >= 7 * 50 || Instant::now() > deadline {
                    break counted;
                }
                thread::sleep(Duration::from_millis(10));
            };
            let served = counted[&names[0]].backends[&SocketAddr::new(b, 8080)];
            // Seven connections, and one socket that sent five datagrams.
            assert_eq!((served.connections, served.unanswered, counted[&names[0]].refused), (8, 0, 0));
            // Opening and end count one byte each, and the hello is some forty.
            assert!((7 * 50..7 * 53).contains(&served.sent_bytes), "{served:?}");
            assert!((7 * 60..7 * 200).contains(&served.received_bytes), "{served:?}");
            // Of each an opening, an acknowledgement and what was sent, at least.
            assert!((7 * 3..7 * 20).contains(&served.sent_packets), "{served:?}");
            assert!((7 * 2..7 * 20).contains(&served.received_packets), "{served:?}");
            assert_eq!(counted[&names[1]], PortCounts { refused: 2, ..PortCounts::default() });
            let unanswered = BackendCounts { connections: 3, unanswered: 3, ..BackendCounts::default() };
            assert_eq!(counted[&names[2]].backends, [(SocketAddr::new(a, 9), unanswered)].into());
        }
    });
}

#[test]
fn packets_are_counted_only_if_that_is_asked_for_and_nothing_if_not_even_connections_are() {
    for (counting, connections) in [(Counting::Connections, 1), (Counting::Nothing, 0)] {
        with_pins(|pins| {
            let mut world = World::new(pins);
            world.config.counting = counting;
            let (family, at) = (Family::Ipv4, SocketAddr::new(addresses(Family::Ipv4).b, 8080));
            let plan = services(family, &[only(at)]);
            let node = Node::new(world.config.clone());
            program_with(&world.net.node, &plan, &mut world.mode(&node, family));
            world.cgroup.run(|| {
                world.net.a.run(|| {
                    let stream = TcpStream::connect(vip(family, 1)).unwrap();
                    hello(&stream).unwrap();
                    end_with_reset(&stream);
                });
            });
            let counted = counts(&world, &node, &plan);
            let served = counted.values().flat_map(|port| port.backends.get(&at)).next().copied().unwrap_or_default();
            assert_eq!((served.connections, served.sent_packets, served.received_packets), (connections, 0, 0));
            assert_eq!(served.sent_bytes > 0, connections > 0, "{served:?}");
        });
    }
}

/// It ends at once, when it is dropped.
fn end_with_reset(stream: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger).unwrap();
}

/// Whether a connection still carries what is sent, or was ended.
fn is_alive(mut stream: &TcpStream) -> bool {
    let mut bytes = [0; 2];
    match stream.write_all(b"hi").and_then(|()| stream.read_exact(&mut bytes)) {
        Ok(()) => true,
        Err(error) => {
            let ended = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(ended.contains(&error.kind()), "{error:?}");
            false
        }
    }
}

#[test]
fn a_tcp_connection_is_ended_when_its_endpoint_is_gone_if_its_service_asks_for_that() {
    const GRACE: Duration = Duration::from_secs(2);
    with_pins(|pins| {
        let world = World::new(pins);
        let plan = |family, at: SocketAddr| {
            let mut plan = services(family, &[only(at), only(at), only(at), only(at)]);
            for frontend in plan.frontends.values_mut() {
                frontend.reset_after = match &*frontend.service_port.service.name {
                    "cluster-ip-2" => Some(Duration::ZERO),
                    "cluster-ip-3" => Some(GRACE),
                    "cluster-ip-4" => Some(Duration::from_secs(86_400)),
                    _ => None,
                };
            }
            plan
        };
        let backend = |family| SocketAddr::new(addresses(family).b, 8080);
        let node = world.program(|family| plan(family, backend(family)));
        for family in FAMILIES {
            world.cgroup.run(|| {
                world.net.a.run(|| {
                    let connect = |to| {
                        let stream = TcpStream::connect(to).unwrap();
                        hello(&stream).unwrap();
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        stream
                    };
                    let [left, reset, graced, later] = [1, 2, 3, 4].map(|number| connect(vip(family, number)));
                    let direct = connect(backend(family));
                    let elsewhere = SocketAddr::new(addresses(family).a, 8080);
                    let changed = Instant::now();
                    let after = plan(family, elsewhere);
                    program_with(&world.net.node, &after, &mut world.mode(&node, family));
                    for (stream, least) in [(&reset, Duration::ZERO), (&graced, GRACE)] {
                        while is_alive(stream) {
                            assert!(changed.elapsed() < PATIENCE, "{family}: it goes on");
                            thread::sleep(Duration::from_millis(20));
                        }
                        assert!(changed.elapsed() >= least, "{family}: its grace was cut short");
                    }
                    assert!([&left, &later, &direct].into_iter().all(is_alive), "{family}");
                });
            });
        }
        assert_eq!(node.kernel().ended_sockets(), 4);
    });
}

#[test]
fn two_nodes_side_by_side_lead_the_same_address_each_its_own_way() {
    with_pins(|pins| {
        let other_pins = pins.with_file_name("other");
        let worlds = [World::new(pins), World::new(&other_pins)];
        let target = |which: usize, family| {
            let Addresses { a, b, .. } = addresses(family);
            SocketAddr::new([a, b][which], 8080)
        };
        let nodes: Vec<Node> = (0..2)
            .map(|which| worlds[which].program(|family| services(family, &[only(target(which, family))])))
            .collect();
        let is_right = |which: usize, family| {
            let world: &World = &worlds[which];
            let met = || TcpStream::connect(vip(family, 1)).and_then(|stream| hello(&stream)).unwrap();
            let met = world.cgroup.run(|| world.net.a.run(met));
            met.starts_with(&format!("{} ", target(which, family)))
        };
        for family in FAMILIES {
            assert!((0..2).all(|which| is_right(which, family)));
        }
        assert!(nodes[1].kernel().remove().unwrap());
        // Without rules, too: what is left is the first one's sockets.
        worlds[0].net.node.command("nft", "flush ruleset");
        assert!(FAMILIES.into_iter().all(|family| is_right(0, family)));
    });
}

#[test]
fn daemons_that_die_and_come_back_during_10_000_connections_lose_none() {
    const CONNECTIONS: usize = 10_000;
    with_pins(|pins| {
        let world = World::new(pins);
        let family = Family::Ipv4;
        let at = SocketAddr::new(addresses(family).b, 8081);
        let listener = world.net.b.run(|| TcpListener::bind(at).unwrap());
        let program = Program::of(&services(family, &[only(at)]), Packets::Nftables);
        // Every second one has maps of another size, as after an upgrade to another layout.
        let lives = |round: u32| {
            let config = KernelConfig { frontends: 1 << (10 + round % 2), ..world.config.clone() };
            let mut kernel = Kernel::new(config);
            world.net.node.run(|| {
                let have = kernel.observe(family).unwrap();
                let change = repair(&program, &have);
                assert!(change.attach);
                kernel.apply(&change).unwrap();
            });
        };
        lives(0);
        let (made, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| listener.incoming().take(CONNECTIONS).flatten().for_each(drop));
            let clients = scope.spawn(|| {
                world.cgroup.run(|| {
                    world.net.a.run(|| {
                        while made.load(Ordering::Relaxed) < CONNECTIONS {
                            TcpStream::connect(vip(family, 1)).unwrap();
                            made.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                });
                done.store(true, Ordering::Relaxed);
            });
            let mut round = 0;
            while !clients.is_finished() {
                round += 1;
                lives(round);
            }
            assert!(done.load(Ordering::Relaxed), "a connection failed after {made:?} and {round} daemons");
            assert!(round > 2, "only {round} daemons came and went meanwhile");
        });
    });
}

#[test]
fn after_a_scale_up_connections_that_live_long_are_spread_anew_and_others_left() {
    const CLIENTS: usize = 12;
    with_pins(|pins| {
        let world = World::new(pins);
        let asks = Some(Rebalance { within_percent: 0, rate_percent: 100 });
        let plan = |family, rebalance, both: bool| {
            let Addresses { a, b, .. } = addresses(family);
            let backends = |all: &[IpAddr]| Target::Backends(plans::backends(all));
            let target = if both { backends(&[a, b]) } else { backends(&[b]) };
            let mut plan = services(family, &[target.clone(), target]);
            for frontend in
                plan.frontends.values_mut().filter(|frontend| &*frontend.service_port.service.name == "cluster-ip-1")
            {
                frontend.rebalance = rebalance;
            }
            plan
        };
        let node = world.program(|family| plan(family, asks, false));
        for family in FAMILIES {
            world.cgroup.run(|| {
                world.net.a.run(|| {
                    let connect = |to| {
                        let stream = TcpStream::connect(to).unwrap();
                        let by = hello(&stream).unwrap();
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        (stream, by.split(' ').next().unwrap().parse::<SocketAddr>().unwrap().ip())
                    };
                    let mut pool: Vec<_> = (0..CLIENTS).map(|_| connect(vip(family, 1))).collect();
                    let unasked: Vec<_> = (0..4).map(|_| connect(vip(family, 2)).0).collect();
                    let direct: Vec<_> =
                        (0..4).map(|_| connect(SocketAddr::new(addresses(family).b, 8080)).0).collect();
                    program_with(&world.net.node, &plan(family, asks, true), &mut world.mode(&node, family));
                    let deadline = Instant::now() + Duration::from_secs(120);
                    let spread =
                        |pool: &[(TcpStream, IpAddr)]| pool.iter().filter(|(_, by)| *by == addresses(family).a).count();
                    // Even, twice in a row: what is closed is seen only when it is used.
                    while spread(&pool) != CLIENTS / 2 || pool.iter().any(|(stream, _)| !is_alive(stream)) {
                        assert!(Instant::now() < deadline, "{family}: {} of {CLIENTS}", spread(&pool));
                        for client in &mut pool {
                            if !is_alive(&client.0) {
                                *client = connect(vip(family, 1));
                            }
                        }
                        thread::sleep(Duration::from_millis(100));
                    }
                    assert!(unasked.iter().chain(&direct).all(is_alive), "{family}");
                });
            });
            let plan = plan(family, asks, true);
            let closed: u64 = counts(&world, &node, &plan).values().map(|port| port.rebalanced).sum();
            assert!(closed >= CLIENTS as u64 / 2, "{closed}");
            let told = world.mode(&node, family).take_rebalancing(&plan);
            assert!(
                matches!(&told[..], [(name, Rebalancing::Begun(wish)), ..]
                if &*name.service.name == "cluster-ip-1" && Some(*wish) == asks),
                "{told:?}"
            );
        }
        assert_eq!(node.kernel().ended_sockets(), 0);
    });
}

#[test]
fn maps_of_an_older_layout_are_taken_over_without_a_gap() {
    with_pins(|pins| {
        let world = World::new(pins);
        let plan = |family| {
            let Addresses { a, b, .. } = addresses(family);
            services(family, &[Target::Backends(plans::backends(&[a, b]))])
        };
        drop(world.program(plan));
        // What an older daemon left: its maps of another layout, which its programs use; and of one that remembered otherwise.
        let maps = || -> Vec<String> {
            let names = std::fs::read_dir(pins).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with("maps-")).collect()
        };
        let current = maps().pop().unwrap();
        let (_, sizes) = current.strip_prefix("maps-").unwrap().split_once('-').unwrap();
        std::fs::rename(pins.join(&current), pins.join(format!("maps-2-{sizes}"))).unwrap();
        let oldest = pins.join("maps-1-64-64-64");
        std::fs::create_dir(&oldest).unwrap();
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
            ..Default::default()
        };
        let mut other = MapHandle::create(MapType::LruHash, Some("peers"), 8, 8, 64, &options).unwrap();
        other.update(&[7; 8], &[7; 8], MapFlags::ANY).unwrap();
        other.pin(oldest.join("peers")).unwrap();
        world.net.node.command("nft", "flush ruleset");
        let done = AtomicBool::new(false);
        let family = Family::Ipv4;
        world.cgroup.run(|| {
            world.net.a.run(|| {
                let stream = TcpStream::connect(vip(family, 1)).unwrap();
                hello(&stream).unwrap();
                let bind = || {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.set_read_timeout(Some(PATIENCE)).unwrap();
                    socket
                };
                let (connected, unconnected) = (bind(), bind());
                connected.connect(vip(family, 1)).unwrap();
                let ask = |socket: &UdpSocket| {
                    socket.send_to(b"?", vip(family, 1)).unwrap();
                    let mut bytes = [0; 256];
                    let (count, from) = socket.recv_from(&mut bytes).unwrap();
                    let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    (text.split(' ').next().unwrap().to_owned(), from)
                };
                let first = ask(&unconnected);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            TcpStream::connect(vip(family, 1)).and_then(|stream| hello(&stream)).unwrap();
                        }
                    });
                    // The newer daemon.
                    let node = Node::new(world.config.clone());
                    let changes = world.net.node.run(|| {
                        let mut mode = world.mode(&node, family);
                        let change = mode.observe().map(|have| mode.repair(&mode.program(&plan(family)), &have));
                        change.and_then(|change| mode.apply(&change).map(|()| change))
                    });
                    done.store(true, Ordering::Relaxed);
                    let changes = changes.unwrap();
                    assert!(changes.sockets.attach && !changes.sockets.set.is_empty(), "it fills maps of its own");
                });
                world.net.node.command("nft", "flush ruleset");
                // Nobody notices.
                assert!(is_alive(&stream));
                assert_eq!(stream.peer_addr().unwrap(), vip(family, 1));
                assert_eq!(connected.peer_addr().unwrap(), vip(family, 1));
                for _ in 0..30 {
                    assert_eq!(ask(&unconnected), first, "it stays with its backend, and sees who it asked");
                }
                TcpStream::connect(vip(family, 1)).and_then(|stream| hello(&stream)).unwrap();
            });
        });
        assert_eq!(maps(), [current], "the older ones are gone");
    });
}
