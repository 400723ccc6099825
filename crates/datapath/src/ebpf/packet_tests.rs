//! The programs at the interfaces in the kernel, packet by packet (BPF_PROG_TEST_RUN): nothing is attached anywhere.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput};
use proptest::prelude::*;
use signpost_core::maglev;
use signpost_core::object::{Family, Protocol};
use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};
use signpost_core::plan::{Backend, Frontend, FrontendKey, FrontendKind, NodePlan, Route, Target};

use super::frame::{self, ACK, FIN, SYN, Said};
use super::kernel::KernelConfig;
use super::packets::load;
use super::program::{Packets, Program};
use super::walk::walk_packet;
use crate::strategies::{packet, plan, services};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const MAGLEV: Packets = Packets::Tc { maglev: true };
const PASS: u32 = u32::MAX;
const SHOT: u32 = 2;

/// The programs, with the maps of one plan.
struct Node {
    object: Object,
}

/// What became of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Passed(Vec<u8>),
    Dropped,
}

impl Fate {
    fn passed(self) -> Vec<u8> {
        match self {
            Fate::Passed(frame) => frame,
            Fate::Dropped => panic!("it was dropped"),
        }
    }
}

impl Node {
    fn new(program: &Program) -> Node {
        let config = KernelConfig {
            frontends: 1 << 10,
            slots: 1 << 12,
            remembered: 1 << 10,
            tracked: 1 << 12,
            ..KernelConfig::default()
        };
        let node = Node { object: load(&config, None).expect("the kernel takes the programs") };
        for (key, value) in program.entries() {
            node.set(key.table().name(), &key.bytes(), &value.bytes());
        }
        node
    }

    fn set(&self, map: &str, key: &[u8], value: &[u8]) {
        let map = self.object.maps().find(|known| known.name() == map).unwrap();
        map.update(key, value, MapFlags::ANY).unwrap();
    }

    fn run(&self, program: &str, frame: &[u8]) -> Fate {
        let mut out = vec![0; 2048];
        let program = self.object.progs_mut().find(|known| known.name() == program).unwrap();
        let input = ProgramInput { data_in: Some(frame), data_out: Some(&mut out), ..ProgramInput::default() };
        let output = program.test_run(input).unwrap();
        match output.return_value {
            PASS => Fate::Passed(output.data.unwrap().to_vec()),
            SHOT => Fate::Dropped,
            other => panic!("{other} is no verdict of ours"),
        }
    }

    fn ingress(&self, frame: &[u8]) -> Fate {
        self.run("ingress", frame)
    }

    fn egress(&self, frame: &[u8]) -> Fate {
        self.run("egress", frame)
    }

    /// Through the node: in by one interface, out by another.
    fn through(&self, said: Said, flags: u8) -> Said {
        let inside = self.ingress(&frame::frame(said, flags)).passed();
        frame::read(&self.egress(&inside).passed())
    }
}

fn ip(family: Family, v4: &str, v6: &str) -> IpAddr {
    if family == Family::Ipv4 { v4.parse().unwrap() } else { v6.parse().unwrap() }
}

fn client(family: Family) -> SocketAddr {
    SocketAddr::new(ip(family, "192.0.2.10", "2001:db8::10"), 40_000)
}

fn node(family: Family) -> IpAddr {
    ip(family, "172.18.0.11", "fd00:172:18::11")
}

fn pod(family: Family, host: u8) -> IpAddr {
    ip(family, &format!("10.244.1.{host}"), &format!("fd00:10:244:1::{host}"))
}

fn frontend(family: Family) -> SocketAddr {
    SocketAddr::new(node(family), 30_080)
}

/// A node port of both protocols with so many pods.
fn node_port(family: Family, pods: u8, masquerade: bool) -> NodePlan {
    let mut plan = services(family, 0, 0);
    plan.node_addresses = [node(family)].into();
    plan.node_port_addresses = [node(family)].into();
    let network = ip(family, "10.244.0.0", "fd00:10:244::");
    plan.cluster_cidrs = vec![IpNet::new(network, if family == Family::Ipv4 { 16 } else { 48 }).unwrap()];
    let backends: Vec<Backend> =
        (2..2 + pods).map(|host| Backend { address: SocketAddr::new(pod(family, host), 8080), local: true }).collect();
    let route = Route { target: Target::Backends(backends.into()), masquerade };
    let service = services(family, 1, 1).frontends.into_values().next().unwrap();
    for protocol in PROTOCOLS {
        let frontend = Frontend {
            kind: FrontendKind::NodePort,
            from_pod: route.clone(),
            from_node: route.clone(),
            from_elsewhere: route.clone(),
            affinity: None,
            ..service.clone()
        };
        plan.frontends.insert(FrontendKey::NodePort { protocol, port: 30_080.try_into().unwrap() }, frontend);
    }
    plan
}

fn answer(said: Said) -> Said {
    Said { source: said.destination, destination: said.source, ..said }
}

fn for_each(check: impl Fn(Family, Protocol, bool)) {
    for family in FAMILIES {
        for protocol in PROTOCOLS {
            for masquerade in [false, true] {
                check(family, protocol, masquerade);
            }
        }
    }
}

#[test]
fn packets_go_to_a_backend_and_its_answers_come_from_the_frontend() {
    for_each(|family, protocol, masquerade| {
        let kernel = Node::new(&Program::of(&node_port(family, 1, masquerade), MAGLEV));
        let asked = Said { protocol, source: client(family), destination: frontend(family) };
        let sent = kernel.through(asked, SYN);
        assert_eq!(sent.destination, SocketAddr::new(pod(family, 2), 8080));
        assert_eq!(sent.source.ip(), if masquerade { node(family) } else { client(family).ip() });
        assert!(!masquerade || sent.source.port() >= 49_152, "{sent:?}");
        assert_eq!(kernel.through(answer(sent), SYN | ACK), answer(asked));
        for flags in [ACK, FIN | ACK, ACK] {
            assert_eq!(kernel.through(asked, flags), sent, "the flow keeps its ports");
            assert_eq!(kernel.through(answer(sent), flags), answer(asked));
        }
    });
}

#[test]
fn what_is_no_frontend_or_flow_is_left_as_it_is() {
    for_each(|family, protocol, masquerade| {
        let kernel = Node::new(&Program::of(&node_port(family, 2, masquerade), MAGLEV));
        let to = |port| Said { protocol, source: client(family), destination: SocketAddr::new(node(family), port) };
        for said in [to(30_081), answer(to(30_080)), answer(to(8080))] {
            assert_eq!(kernel.through(said, ACK), said);
        }
    });
}

#[test]
fn flows_from_outside_find_their_backend_in_the_table() {
    for family in FAMILIES {
        let program = Program::of(&node_port(family, 7, true), MAGLEV);
        let service = program.frontends.values().next().unwrap().service;
        let backends: Vec<SocketAddr> = (2..9).map(|host| SocketAddr::new(pod(family, host), 8080)).collect();
        let table = maglev::table(&backends);
        let kernel = Node::new(&program);
        for port in 40_000..40_100 {
            let source = SocketAddr::new(client(family).ip(), port);
            let said = Said { protocol: Protocol::Tcp, source, destination: frontend(family) };
            let place = maglev::flow_hash(service, Protocol::Tcp, source) % table.len() as u64;
            assert_eq!(kernel.through(said, SYN).destination, backends[usize::from(table[place as usize])]);
        }
    }
}

#[test]
fn errors_about_a_flow_come_back_to_who_sent_the_packet() {
    for_each(|family, protocol, masquerade| {
        let kernel = Node::new(&Program::of(&node_port(family, 1, masquerade), MAGLEV));
        let router = ip(family, "198.51.100.1", "2001:db8:1::1");
        let asked = Said { protocol, source: client(family), destination: frontend(family) };
        let sent = kernel.through(asked, SYN);
        kernel.through(answer(sent), SYN | ACK);
        let through = |frame: Vec<u8>| {
            let inside = kernel.ingress(&frame).passed();
            frame::read_error(&kernel.egress(&inside).passed())
        };
        // About what the client sent: it learns of its own packet, from the frontend.
        let expected = ([asked.destination.ip(), asked.source.ip()], asked);
        assert_eq!(through(frame::error(router, sent)), expected);
        assert_eq!(through(frame::error(sent.destination.ip(), sent)), expected);
        // About what the backend sent: so does it.
        let about = answer(asked);
        let (outer, inner) = through(frame::error(router, about));
        let from = if masquerade { sent.source.ip() } else { router };
        assert_eq!((outer, inner), ([from, sent.destination.ip()], answer(sent)));
    });
}

#[test]
fn later_fragments_go_with_their_first() {
    for_each(|family, _, masquerade| {
        let kernel = Node::new(&Program::of(&node_port(family, 3, masquerade), MAGLEV));
        let asked = Said { protocol: Protocol::Udp, source: client(family), destination: frontend(family) };
        let through = |frame: &[u8]| {
            let inside = kernel.ingress(frame).passed();
            frame::read_fragment(&kernel.egress(&inside).passed())
        };
        let [first, later] = frame::fragments(asked, 7);
        let way = through(&first);
        assert!(way[1] != asked.destination.ip() && (way[0] == asked.source.ip()) != masquerade, "{way:?}");
        assert_eq!(through(&later), way);
        // One that came before its first, or whose first never comes, belongs to nothing.
        let [_, lost] = frame::fragments(asked, 8);
        assert_eq!(through(&lost), [asked.source.ip(), asked.destination.ip()]);
    });
}

#[test]
fn a_datagram_leaves_a_backend_that_is_none_any_more_and_a_connection_stays() {
    for family in FAMILIES {
        let before = Program::of(&node_port(family, 1, true), MAGLEV);
        let kernel = Node::new(&before);
        let asked = |protocol| Said { protocol, source: client(family), destination: frontend(family) };
        let sent = PROTOCOLS.map(|protocol| kernel.through(asked(protocol), SYN));
        let mut plan = node_port(family, 1, true);
        let other = SocketAddr::new(pod(family, 99), 8080);
        for frontend in plan.frontends.values_mut() {
            let backends = Target::Backends([Backend { address: other, local: true }].into());
            for route in [&mut frontend.from_pod, &mut frontend.from_node, &mut frontend.from_elsewhere] {
                route.target = backends.clone();
            }
        }
        for (key, value) in Program::of(&plan, MAGLEV).entries() {
            kernel.set(key.table().name(), &key.bytes(), &value.bytes());
        }
        kernel.set("epoch", &0_u32.to_ne_bytes(), &1_u32.to_ne_bytes());
        assert_eq!(kernel.through(asked(Protocol::Tcp), ACK), sent[0]);
        assert_eq!(kernel.through(asked(Protocol::Udp), 0).destination, other);
        // What opens a connection that has ended is a new one.
        kernel.through(asked(Protocol::Tcp), FIN | ACK);
        assert_eq!(kernel.through(asked(Protocol::Tcp), SYN).destination, other);
    }
}

#[test]
fn a_client_by_two_frontends_is_led_to_two_backends() {
    for family in FAMILIES {
        let mut plan = node_port(family, 2, false);
        let frontend = plan.frontends.values().next().unwrap().clone();
        let port = 30_081.try_into().unwrap();
        plan.frontends.insert(FrontendKey::NodePort { protocol: Protocol::Tcp, port }, frontend);
        let kernel = Node::new(&Program::of(&plan, MAGLEV));
        for client_port in 40_000..40_020 {
            let source = SocketAddr::new(client(family).ip(), client_port);
            let to = |port| Said { protocol: Protocol::Tcp, source, destination: SocketAddr::new(node(family), port) };
            let (one, other) = (kernel.through(to(30_080), SYN), kernel.through(to(30_081), SYN));
            assert_ne!(one.destination, other.destination);
            assert_eq!(kernel.through(answer(one), ACK), answer(to(30_080)));
            assert_eq!(kernel.through(answer(other), ACK), answer(to(30_081)));
        }
    }
}

/// The program's verdict on a first packet, and whether it became another source on its way out.
fn verdict(kernel: &Node, packet: &Packet) -> Verdict {
    let said = Said { protocol: packet.protocol, source: packet.source, destination: packet.destination };
    let frame = frame::frame(said, SYN);
    match kernel.ingress(&frame) {
        Fate::Dropped => Verdict::Drop,
        Fate::Passed(after) if after == frame => Verdict::NotOurs,
        Fate::Passed(after) => {
            let to = frame::read(&after).destination;
            let left = frame::read(&kernel.egress(&after).passed());
            Verdict::Rewrite([Rewrite { to, masquerade: left.source != packet.source }].into())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_does_what_the_walk_says(
        (plan, packets) in plan().prop_flat_map(|plan| (Just(plan.clone()), prop::collection::vec(packet(plan.family), 40))),
    ) {
        let program = Program::of(&plan, MAGLEV);
        prop_assume!(program.node.value.masquerade.is_some());
        let kernel = Node::new(&program);
        for (n, packet) in (0..).zip(packets) {
            // Each packet is the first of a flow of its own.
            let source = SocketAddr::new(packet.source.ip(), 20_000 + n);
            let packet = Packet { source, entry: Entry::Interface, ..packet };
            if packet.protocol == Protocol::Sctp || packet.destination.port() == 0 {
                continue;
            }
            let met = verdict(&kernel, &packet);
            match (walk_packet(&program, &packet, None), &met) {
                // Where it remembers a client it may be led by that.
                (Verdict::Rewrite(may), Verdict::Rewrite(is)) => prop_assert!(is.is_subset(&may), "{:?}: {:?}, not {:?}", packet, is, may),
                // Its backend is where it goes anyway.
                (Verdict::Rewrite(may), Verdict::NotOurs) if may.iter().any(|way| way.to == packet.destination) => {}
                (walked, met) => prop_assert_eq!(met, &walked, "{:?}", packet),
            }
        }
    }
}
