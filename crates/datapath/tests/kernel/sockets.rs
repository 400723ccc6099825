//! What becomes of sockets in the mode eBPF over time: they are counted, ended when they should be, and neither the death of a
//! daemon, nor its successor, nor another node beside it is noticed by them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signpost_core::object::{Family, ObjectName, Protocol, ServicePortName};
use signpost_core::plan::{Backend, NodePlan, Target};
use signpost_datapath::Datapath;
use signpost_datapath::counts::{BackendCounts, PortCounts};
use signpost_datapath::ebpf::program::Program;
use signpost_datapath::ebpf::repair::repair;
use signpost_datapath::ebpf::{Kernel, KernelConfig, Node};

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
        let world = World::new(pins);
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
            assert_eq!(counted[&names[1]], PortCounts { refused: 2, backends: BTreeMap::new() });
            let unanswered = BackendCounts { connections: 3, unanswered: 3, ..BackendCounts::default() };
            assert_eq!(counted[&names[2]].backends, [(SocketAddr::new(a, 9), unanswered)].into());
        }
    });
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
        let program = Program::of(&services(family, &[only(at)]));
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
