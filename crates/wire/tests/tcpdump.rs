//! What is sent by ARP, NDP and BFD, read by a program that others wrote: tcpdump, which checks lengths and sums, too.

use std::fmt::Write as _;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use signpost_wire::bfd::{LENGTH, MULTI_HOP, Packet, Profile, SINGLE_HOP, Session};
use signpost_wire::mac::Mac;
use signpost_wire::{arp, ndp};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// What tcpdump says of frames, a text per frame.
fn read(frames: &[(u16, Vec<u8>)]) -> Vec<String> {
    // The classic format: version 2.4, Ethernet.
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, 1] {
        file.extend(word.to_ne_bytes());
    }
    for (number, (protocol, payload)) in frames.iter().enumerate() {
        let length = payload.len() as u32 + 14;
        for word in [number as u32, 0, length, length] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(OTHER.0.iter().chain(&MAC.0).chain(&protocol.to_be_bytes()).chain(payload));
    }
    let mut tcpdump = Command::new("tcpdump")
        .args(["-n", "-vv", "-tt", "-r", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tcpdump is there: tools/setup.sh brings it");
    tcpdump.stdin.take().expect("it is piped").write_all(&file).expect("tcpdump reads");
    let output = tcpdump.wait_with_output().expect("tcpdump ends");
    let mut said: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // Further lines of a packet are indented.
        match said.last_mut().filter(|_| line.starts_with(char::is_whitespace)) {
            Some(last) => write!(last, " {}", line.trim()).expect("a String takes all"),
            None => said.push(line.to_owned()),
        }
    }
    assert_eq!(said.len(), frames.len(), "{said:#?}");
    said
}

fn assert_said(frame: (u16, Vec<u8>), parts: &[&str]) {
    let said = read(&[frame]).remove(0);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    for bad in ["bad", "wrong", "truncated", "[|", "incorrect"] {
        assert!(!said.contains(bad), "{said:?}");
    }
}

#[test]
fn arp_says_what_it_is_to_say() {
    let address = Ipv4Addr::new(172, 18, 15, 200);
    let question = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: OTHER,
        sender_ip: Ipv4Addr::new(172, 18, 0, 1),
        target_mac: Mac([0; 6]),
        target_ip: address,
    };
    let asked = "Request who-has 172.18.15.200 tell 172.18.0.1, length 28";
    assert_said((ARP, question.encode().to_vec()), &[asked, "Ethernet (len 6), IPv4 (len 4)"]);
    let answered = "Reply 172.18.15.200 is-at 02:00:00:00:00:07, length 28";
    assert_said((ARP, question.answer(MAC).encode().to_vec()), &[answered]);
    let [request, reply] = arp::Packet::gratuitous(address, MAC);
    assert_said((ARP, request.encode().to_vec()), &["who-has 172.18.15.200", "tell 172.18.15.200"]);
    assert_said((ARP, reply.encode().to_vec()), &[answered]);
    let probe = arp::Packet { sender_ip: Ipv4Addr::UNSPECIFIED, ..question };
    assert_said((ARP, probe.encode().to_vec()), &["who-has 172.18.15.200 tell 0.0.0.0"]);
}

#[test]
fn ndp_says_what_it_is_to_say_with_a_sum_that_is_right() {
    let target: Ipv6Addr = "fd00:172:18::15:200".parse().expect("an address");
    let group = ndp::solicited_node(target);
    let question = ndp::Solicitation {
        source: "fe80::1".parse().expect("an address"),
        destination: group,
        target,
        source_mac: Some(OTHER),
    };
    let to_group = "fe80::1 > ff02::1:ff15:200: [icmp6 sum ok] ICMP6, neighbor solicitation, length 32, who has fd00:172:18::15:200";
    let source = "source link-address option (1), length 8 (1): 02:00:00:00:00:09";
    assert_said((IPV6, question.encode()), &["hlim 255", to_group, source]);
    let probe = ndp::Solicitation { source: Ipv6Addr::UNSPECIFIED, source_mac: None, ..question };
    assert_said(
        (IPV6, probe.encode()),
        &[":: > ff02::1:ff15:200: [icmp6 sum ok]", "length 24, who has fd00:172:18::15:200"],
    );
    let here = ["hlim 255", "[icmp6 sum ok] ICMP6, neighbor advertisement, length 32, tgt is fd00:172:18::15:200"];
    let mac = "destination link-address option (2), length 8 (1): 02:00:00:00:00:07";
    let answer = question.answer(MAC).encode();
    assert_said((IPV6, answer), &[here[0], here[1], mac, "> fe80::1:", "Flags [solicited, override]"]);
    let unsolicited = ndp::Advertisement::unsolicited(target, MAC).encode();
    assert_said((IPV6, unsolicited), &[here[0], here[1], mac, "> ff02::1:", "Flags [override]"]);
}

/// A BFD packet in a datagram of IPv4; without a sum of UDP, which may be left out.
fn datagram(packet: &Packet, port: u16) -> (u16, Vec<u8>) {
    let length = (28 + LENGTH) as u16;
    let mut bytes = vec![0x45, 0];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 255, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(55_555_u16.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.extend((8 + LENGTH as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(packet.encode());
    (IPV4, bytes)
}

#[test]
fn bfd_says_what_it_is_to_say_at_every_step_of_a_session() {
    let span = Duration::from_millis(150);
    let profile = Profile { transmit: span, receive: span * 2, multiplier: 5, passive: false };
    let (mut one, mut other) =
        (Session::new(profile, 0x11, Duration::ZERO), Session::new(profile, 0x22, Duration::ZERO));
    let mut now = Duration::ZERO;
    let mut next = |from: &mut Session, to: &mut Session| {
        now += Duration::from_secs(2);
        let packet = from.tick(now, 0).expect("it is time");
        to.receive(&packet, now);
        packet
    };
    let always = "BFDv1, length: 24";
    let (down, init) = (next(&mut one, &mut other), next(&mut other, &mut one));
    let slow = [
        "Detection Timer Multiplier: 5 (5000 ms Detection time)",
        "My Discriminator: 0x00000011",
        "Your Discriminator: 0x00000000",
    ];
    assert_said(
        datagram(&down, SINGLE_HOP),
        &[always, "Control, State Down, Flags: [none], Diagnostic: No Diagnostic (0x00)", slow[0], slow[1], slow[2]],
    );
    let timers =
        ["Desired min Tx Interval: 1000 ms", "Required min Rx Interval: 300 ms", "Required min Echo Interval: 0 ms"];
    assert_said(
        datagram(&init, MULTI_HOP),
        &["State Init, Flags: [none]", "Your Discriminator: 0x00000011", timers[0], timers[1], timers[2]],
    );
    let up = next(&mut one, &mut other);
    assert_said(datagram(&up, SINGLE_HOP), &["State Up, Flags: [Poll]", "Desired min Tx Interval: 150 ms"]);
    let last = one.admin_down();
    assert_said(
        datagram(&last, SINGLE_HOP),
        &["State AdminDown, Flags: [none], Diagnostic: Administratively Down (0x07)"],
    );
}
