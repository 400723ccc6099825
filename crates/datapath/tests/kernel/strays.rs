//! Packets that conntrack takes for no part of their flow.
//!
//! A packet out of the window of its flow is not rewritten. Its receiver knows no such connection and refuses it, and
//! the refusal, from an address that the backend knows, ends the backend's connection.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recv, sendto, socket,
};
use signpost_core::object::{Family, Protocol};
use signpost_core::plan::{NodePlan, Target};
use signpost_datapath::Datapath;
use signpost_datapath::iptables::Variant;

use crate::iptables::iptables;
use crate::net::{Net, addresses};
use crate::{FAMILIES, nftables, plans, program_with};

/// What a backend sends and expects next: the last segment that came from its client says both.
fn sequences(raw: &OwnedFd, client: SocketAddr) -> (u32, u32) {
    let (mut buffer, mut found) = ([0; 2_048], None);
    while let Ok(count) = recv(raw.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        // IPv4 comes with its header.
        let header = if client.is_ipv4() { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
        let segment = &buffer[header..count];
        if segment[..2] == client.port().to_be_bytes() {
            let field = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
            let payload = segment.len() - usize::from(segment[12] >> 4) * 4;
            found = Some((field(8), field(4).wrapping_add(u32::try_from(payload).unwrap())));
        }
    }
    found.expect("the client sent something")
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

/// A segment of TCP with one byte.
fn segment(from: SocketAddr, to: SocketAddr, flags: u8, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut bytes = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(acknowledged.to_be_bytes());
    bytes.extend([5 << 4, flags, 1, 0, 0, 0, 0, 0, b'!']);
    let addresses = sum(&octets(from.ip())) + sum(&octets(to.ip()));
    let mut total = addresses + 6 + u32::try_from(bytes.len()).unwrap() + sum(&bytes);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    bytes[16..18].copy_from_slice(&(!u16::try_from(total).unwrap()).to_be_bytes());
    bytes
}

fn raw(family: Family) -> OwnedFd {
    let family = if family == Family::Ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp).expect("needs root")
}

/// One connection through a Service, and a stray packet of its backend so far away from its window.
fn survives(net: &Net, family: Family, away: i32) -> io::Result<()> {
    let at = addresses(family);
    let server = SocketAddr::new(at.b, 8080);
    let (listener, raw) = net.b.run(|| (TcpListener::bind(server).unwrap(), raw(family)));
    let client = net.a.run(|| TcpStream::connect((plans::cluster_ip(family, 1), 80)).unwrap());
    let (backend, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip(), at.a, "the client's own address");
    for stream in [&client, &backend] {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    talk(&client, &backend).unwrap();
    let (sequence, acknowledged) = sequences(&raw, peer);
    let stray = segment(server, peer, ACK, sequence.wrapping_add_signed(away), acknowledged);
    let to = SockaddrStorage::from(SocketAddr::new(peer.ip(), 0));
    sendto(raw.as_raw_fd(), &stray, &to, MsgFlags::empty()).unwrap();
    // The refusal, if one comes, is there within microseconds.
    (0..3).try_for_each(|_| talk(&client, &backend))
}

fn service(family: Family) -> NodePlan {
    let mut plan = plans::empty(family);
    plans::add_cluster_ip(&mut plan, 1, Protocol::Tcp, Target::Backends(plans::backends(&[addresses(family).b])));
    plan
}

fn strays_end_no_connection<D: Datapath + Send>(mode: impl Fn(Family) -> D) {
    let net = Net::new();
    for family in FAMILIES {
        program_with(&net.node, &service(family), &mut mode(family));
        for away in [-100_000, 10_000_000] {
            survives(&net, family, away).unwrap_or_else(|error| panic!("{family} {away}: {error}"));
        }
    }
}

fn talk(mut client: &TcpStream, mut backend: &TcpStream) -> io::Result<()> {
    let mut bytes = [0; 5];
    backend.write_all(b"hello").and_then(|()| client.read_exact(&mut bytes))?;
    client.write_all(b"there").and_then(|()| backend.read_exact(&mut bytes))
}

#[test]
fn a_packet_out_of_its_window_ends_no_connection_in_nftables() {
    strays_end_no_connection(nftables);
}

#[test]
fn a_packet_out_of_its_window_ends_no_connection_in_iptables() {
    strays_end_no_connection(|family| iptables(family, Variant::Nft));
}

#[test]
fn without_the_rule_it_does() {
    let net = Net::new();
    for (family, ip) in FAMILIES.into_iter().zip(["ip", "ip6"]) {
        program_with(&net.node, &service(family), &mut nftables(family));
        net.node.command("nft", &format!("flush chain {ip} kube-proxy filter-forward"));
        survives(&net, family, 10_000_000).expect_err("the packet is no stray, so that nothing is shown");
    }
}

#[test]
fn a_flow_of_which_this_node_sees_one_direction_alone_passes() {
    let net = Net::new();
    for family in FAMILIES {
        let at = addresses(family);
        program_with(&net.node, &service(family), &mut nftables(family));
        program_with(&net.node, &service(family), &mut iptables(family, Variant::Nft));
        let (from, to) = (SocketAddr::new(at.b, 8080), SocketAddr::new(at.outside, 4_000));
        let (sends, receives) = (net.b.run(|| raw(family)), net.outside.run(|| raw(family)));
        for flags in [SYN | ACK, ACK] {
            let at = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
            sendto(sends.as_raw_fd(), &segment(from, to, flags, 1, 1), &at, MsgFlags::empty()).unwrap();
            let mut arrived = [PollFd::new(receives.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut arrived, PollTimeout::from(5_000u16)), Ok(1), "{family} flags {flags:#x}");
            recv(receives.as_raw_fd(), &mut [0; 2_048], MsgFlags::empty()).unwrap();
        }
    }
}
