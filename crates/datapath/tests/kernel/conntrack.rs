//! Flows of real sockets through real rules: the stale ones go, and no other.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU16;
use std::thread;
use std::time::{Duration, Instant};

use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{FrontendKey, NodePlan, Target};
use signpost_core::store::Store;
use signpost_datapath::conntrack::{Conntrack, Flow, Reconciled, Wanted, Worker};

use crate::net::{Net, Servers, addresses, hello};
use crate::{FAMILIES, plans, program};

/// A UDP client that keeps its port.
struct Client(UdpSocket);

impl Client {
    fn new(net: &Net, family: Family) -> Client {
        let at = addresses(family).outside;
        let socket = net.outside.run(|| UdpSocket::bind((at, 0)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        Client(socket)
    }

    /// Who answers; `None`: refused.
    fn ask(&self, to: SocketAddr) -> Option<SocketAddr> {
        let mut bytes = [0; 128];
        self.0.connect(to).unwrap();
        let answer = self.0.send(b"?").and_then(|_| self.0.recv(&mut bytes));
        match answer {
            Ok(count) => {
                let answer = String::from_utf8_lossy(&bytes[..count]).into_owned();
                Some(answer.split_once(' ').unwrap().0.parse().unwrap())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
            Err(error) => panic!("{to}: {error}"),
        }
    }
}

fn backend(address: IpAddr) -> Target {
    Target::Backends(plans::backends(&[address]))
}

fn node_port_key(port: u16) -> FrontendKey {
    FrontendKey::NodePort { protocol: Protocol::Udp, port: NonZeroU16::new(port).unwrap() }
}

/// The Service at that cluster address answers at another place, too.
fn also_at(plan: &mut NodePlan, number: u8, key: FrontendKey) {
    let (address, protocol, port) =
        (plans::cluster_ip(plan.family, number), Protocol::Udp, NonZeroU16::new(80).unwrap());
    let frontend = plan.frontends[&FrontendKey::Address { address, protocol, port }].clone();
    plan.frontends.insert(key, frontend);
}

fn flows(net: &Net, family: Family) -> BTreeSet<(SocketAddr, SocketAddr, u32)> {
    let flows: Vec<Flow> = net.node.run(|| Conntrack::new(family).flows().unwrap());
    flows.into_iter().map(|flow| (flow.original.source, flow.original.destination, flow.id)).collect()
}

fn wanted(plan: &NodePlan) -> Wanted {
    Wanted::of(plan, &Store::new())
}

#[test]
fn stale_flows_go_and_no_other() {
    let net = Net::new();
    let servers = Servers::new();
    for family in FAMILIES {
        let at = addresses(family);
        let (a, b) = (SocketAddr::new(at.a, 8080), SocketAddr::new(at.b, 8080));
        servers.serve(&net.a, a);
        servers.serve(&net.b, b);
        let vip = |number| SocketAddr::new(plans::cluster_ip(family, number), 80);
        let node_port = SocketAddr::new(at.node, 30_001);

        let mut before = plans::empty(family);
        for number in [1, 2, 3, 4] {
            plans::add_cluster_ip(&mut before, number, Protocol::Udp, backend(at.b));
        }
        plans::add_cluster_ip(&mut before, 1, Protocol::Tcp, backend(at.b));
        program(&net.node, &before);
        let mut conntrack = Conntrack::new(family);
        conntrack.want(wanted(&before));

        let clients: Vec<Client> = (0..6).map(|_| Client::new(&net, family)).collect();
        let [exchanged, kept, emptied, deleted, early, direct] = clients.as_slice() else { unreachable!() };
        for (client, number) in [(exchanged, 1), (kept, 2), (emptied, 3), (deleted, 4)] {
            assert_eq!(client.ask(vip(number)), Some(b));
        }
        assert_eq!(direct.ask(b), Some(b));
        assert_eq!(early.ask(node_port), None, "nobody is there yet");
        let tcp = net.outside.run(|| TcpStream::connect(vip(1)).unwrap());
        hello(&tcp).unwrap();
        assert_eq!(net.node.run(|| conntrack.reconcile().unwrap().deleted), 0);
        let flows_before = flows(&net, family);

        let mut after = plans::empty(family);
        plans::add_cluster_ip(&mut after, 1, Protocol::Udp, backend(at.a));
        plans::add_cluster_ip(&mut after, 1, Protocol::Tcp, backend(at.a));
        plans::add_cluster_ip(&mut after, 2, Protocol::Udp, backend(at.b));
        plans::add_cluster_ip(&mut after, 3, Protocol::Udp, Target::Reject);
        also_at(&mut after, 1, node_port_key(30_001));
        program(&net.node, &after);
        assert_eq!(exchanged.ask(vip(1)), Some(b), "conntrack goes on with what was decided");
        conntrack.want(wanted(&after));
        let Reconciled { deleted: count, .. } = net.node.run(|| conntrack.reconcile().unwrap());
        assert_eq!(count, 4, "exchanged, emptied, deleted, early");

        let flows_after = flows(&net, family);
        let source = |client: &Client| client.0.local_addr().unwrap();
        let gone: BTreeSet<SocketAddr> = flows_before.difference(&flows_after).map(|(from, ..)| *from).collect();
        assert_eq!(gone, [exchanged, emptied, deleted, early].map(source).into());
        assert_eq!(exchanged.ask(vip(1)), Some(a));
        assert_eq!(kept.ask(vip(2)), Some(b));
        assert_eq!(emptied.ask(vip(3)), None);
        assert_eq!(early.ask(node_port), Some(a));
        (&tcp).write_all(b"still here\n").unwrap();
        assert_eq!(hello(&tcp).unwrap(), "still here", "connections of TCP are never touched");
        assert_eq!(net.node.run(|| conntrack.reconcile().unwrap().deleted), 0);
        assert!(!conntrack.needs_sweep());
    }
}

#[test]
fn a_worker_sweeps_by_itself_after_each_change() {
    let net = Net::new();
    let servers = Servers::new();
    let family = Family::Ipv4;
    let at = addresses(family);
    servers.serve(&net.b, SocketAddr::new(at.b, 8080));
    let mut before = plans::empty(family);
    plans::add_cluster_ip(&mut before, 1, Protocol::Udp, backend(at.b));
    program(&net.node, &before);
    let worker = net.node.run(|| Worker::start(family).unwrap());
    worker.want(wanted(&before));
    let client = Client::new(&net, family);
    let vip = SocketAddr::new(plans::cluster_ip(family, 1), 80);
    assert!(client.ask(vip).is_some());

    let after = plans::empty(family);
    program(&net.node, &after);
    worker.want(wanted(&after));
    eventually("the flow is deleted", || flows(&net, family).is_empty());
    eventually("it is counted", || worker.totals().deleted.load(std::sync::atomic::Ordering::Relaxed) == 1);
}

/// As many as asked for, unless the machine allows fewer: that limit is not the test's to change.
fn many() -> u16 {
    let most = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    (most.trim().parse::<u32>().unwrap() / 4).min(50_000).try_into().unwrap()
}

#[test]
fn a_hundred_thousand_flows_are_gone_through() {
    let net = Net::new();
    let (family, ports) = (Family::Ipv4, 1..=many());
    let at = addresses(family);
    let mut plan = plans::empty(family);
    plans::add_cluster_ip(&mut plan, 1, Protocol::Udp, backend(at.b));
    program(&net.node, &plan);
    net.node.run(|| {
        for _ in 0..2 {
            let socket = UdpSocket::bind((at.node, 0)).unwrap();
            // Nobody listens there, but a flow it is.
            ports.clone().for_each(|port| drop(socket.send_to(b"?", (at.outside, port))));
        }
    });
    let mut conntrack = Conntrack::new(family);
    conntrack.want(wanted(&plan));
    let began = Instant::now();
    let Reconciled { seen, deleted } = net.node.run(|| conntrack.reconcile().unwrap());
    let listed = began.elapsed();
    let most = ports.len() * 2;
    assert!(seen >= most * 9 / 10, "{seen} of {most}");
    assert_eq!(deleted, 0);

    // Where the flows go to are frontends now, so all of them are older than the rules.
    for port in ports {
        let port = NonZeroU16::new(port).unwrap();
        also_at(&mut plan, 1, FrontendKey::Address { address: at.outside, protocol: Protocol::Udp, port });
    }
    conntrack.want(wanted(&plan));
    let began = Instant::now();
    let Reconciled { deleted, .. } = net.node.run(|| conntrack.reconcile().unwrap());
    let swept = began.elapsed();
    println!("{seen} flows listed in {listed:?}; {deleted} listed and deleted in {swept:?}");
    assert!(deleted >= most * 9 / 10, "{deleted} of {most}");
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "not within 5 s: {what}");
        thread::yield_now();
    }
}
