use signpost_core::packet::{Entry, Packet, Rewrite, Verdict};

use super::*;

fn node(n: u8) -> NodeView {
    let primary = format!("172.18.0.{}", 10 + n).parse().unwrap();
    let gateway = format!("10.244.{n}.1").parse().unwrap();
    NodeView {
        name: format!("n{n}"),
        primary,
        addresses: [primary, gateway, "127.0.0.1".parse().unwrap()].into(),
        pod_cidrs: vec![format!("10.244.{n}.0/24").parse().unwrap()],
    }
}

fn pod(name: &str, node: u8, host: u8) -> PodView {
    PodView {
        name: PodName::parse(name),
        node: format!("n{node}"),
        address: format!("10.244.{node}.{host}").parse().unwrap(),
        host_network: false,
        listens: Some([(Protocol::Tcp, 8080)].into()),
        bind: None,
    }
}

fn view() -> ClusterView {
    let host = PodView { host_network: true, address: "172.18.0.12".parse().unwrap(), ..pod("host", 2, 9) };
    ClusterView {
        nodes: vec![node(1), node(2)],
        pods: vec![pod("client", 1, 2), pod("web-1", 1, 3), pod("web-2", 2, 2), host],
        outside: Some("192.0.2.10".parse().unwrap()),
        others: BTreeSet::new(),
        routes: [("198.51.100.9".parse().unwrap(), "n2".to_owned())].into(),
    }
}

fn packet(source: &str, destination: &str) -> Packet {
    Packet {
        protocol: Protocol::Tcp,
        source: SocketAddr::new(source.parse().unwrap(), 40_000),
        destination: destination.parse().unwrap(),
        entry: Entry::Interface,
    }
}

fn rewrite(to: &[&str], masquerade: bool) -> Verdict {
    Verdict::Rewrite(to.iter().map(|to| Rewrite { to: to.parse().unwrap(), masquerade }).collect())
}

/// Fates as texts; the one rule set is that of `at`, every other node lets packets through.
fn fates(sender: &str, packet: Packet, at: &str, verdict: &Verdict) -> Vec<String> {
    let walk = |node: &str, place: At, seen: &Packet| {
        if node == at && place == At::Packet && seen.destination == packet.destination {
            verdict.clone()
        } else {
            Verdict::NotOurs
        }
    };
    predict(&view(), &walk, &sender.parse().unwrap(), packet).keys().map(ToString::to_string).collect()
}

#[test]
fn a_rewritten_packet_reaches_pods_on_both_nodes_with_its_source() {
    let to = rewrite(&["10.244.1.3:8080", "10.244.2.2:8080"], false);
    let got = fates("client", packet("10.244.1.2", "10.96.0.10:80"), "n1", &to);
    assert_eq!(got, ["web-1 at 10.244.1.3:8080 sees 10.244.1.2", "web-2 at 10.244.2.2:8080 sees 10.244.1.2"]);
}

#[test]
fn masquerade_shows_the_node() {
    let to = rewrite(&["10.244.2.2:8080"], true);
    let got = fates("outside", packet("192.0.2.10", "172.18.0.11:30080"), "n1", &to);
    assert_eq!(got, ["web-2 at 10.244.2.2:8080 sees node n1"]);
}

#[test]
fn what_stays_on_the_node_is_not_masqueraded() {
    let to = rewrite(&["172.18.0.12:8080"], true);
    let got = fates("outside", packet("192.0.2.10", "172.18.0.12:30080"), "n2", &to);
    assert_eq!(got, ["host at 172.18.0.12:8080 sees 192.0.2.10"]);
    let got = fates("outside", packet("192.0.2.10", "172.18.0.11:30080"), "n1", &to);
    assert_eq!(got, ["host at 172.18.0.12:8080 sees node n1"]);
}

#[test]
fn an_answer_that_bypasses_the_rewriting_node_is_lost() {
    let to = rewrite(&["10.244.2.2:8080"], false);
    let got = fates("outside", packet("192.0.2.10", "172.18.0.11:30080"), "n1", &to);
    assert_eq!(got, ["no way there and back"]);
    // The pod's own node may leave the source as it is.
    let got = fates("outside", packet("192.0.2.10", "172.18.0.12:30080"), "n2", &to);
    assert_eq!(got, ["web-2 at 10.244.2.2:8080 sees 192.0.2.10"]);
}

#[test]
fn rejects_and_drops_end_the_path() {
    let vip = || packet("10.244.1.2", "10.96.0.10:80");
    assert_eq!(fates("client", vip(), "n1", &Verdict::Reject), ["refused"]);
    assert_eq!(fates("client", vip(), "n1", &Verdict::Drop), ["dropped"]);
    assert_eq!(fates("client", vip(), "n1", &Verdict::NotOurs), ["no way there and back"]);
}

#[test]
fn a_port_without_listener_is_refused_and_an_address_without_pod_is_lost() {
    let direct = |to| fates("client", packet("10.244.1.2", to), "-", &Verdict::NotOurs);
    assert_eq!(direct("10.244.2.2:8080"), ["web-2 at 10.244.2.2:8080 sees 10.244.1.2"]);
    assert_eq!(direct("10.244.2.2:9"), ["refused"]);
    assert_eq!(direct("10.244.2.77:8080"), ["no way there and back"]);
    assert_eq!(direct("10.244.1.2:8080"), ["client at 10.244.1.2:8080 sees 10.244.1.2"]);
}

#[test]
fn a_process_on_a_node_counts_as_the_node() {
    let to = rewrite(&["10.244.2.2:8080"], false);
    let got = fates("node/n1", packet("172.18.0.11", "10.96.0.10:80"), "n1", &to);
    assert_eq!(got, ["web-2 at 10.244.2.2:8080 sees node n1"]);
    let to = rewrite(&["172.18.0.12:8080"], false);
    let got = fates("host", packet("172.18.0.12", "10.96.0.10:80"), "n2", &to);
    assert_eq!(got, ["host at 172.18.0.12:8080 sees node n2"]);
}

#[test]
fn the_node_of_the_sender_sees_the_packet_as_local_or_forwarded() {
    let entries = std::cell::RefCell::new(Vec::new());
    let walk = |node: &str, place: At, packet: &Packet| {
        if place == At::Socket {
            return Verdict::NotOurs;
        }
        entries.borrow_mut().push((node.to_owned(), packet.entry));
        Verdict::NotOurs
    };
    predict(&view(), &walk, &"node/n1".parse().unwrap(), packet("172.18.0.11", "10.244.2.2:8080"));
    assert_eq!(*entries.borrow(), [("n1".to_owned(), Entry::Local), ("n2".to_owned(), Entry::Interface)]);
}

#[test]
fn rules_that_go_round_in_circles_end() {
    let walk = |node: &str, _: At, _: &Packet| {
        rewrite(if node == "n1" { &["172.18.0.12:1"] } else { &["172.18.0.11:1"] }, false)
    };
    let got = predict(&view(), &walk, &"outside".parse().unwrap(), packet("192.0.2.10", "172.18.0.11:30080"));
    assert!(!got.is_empty());
}

#[test]
fn an_address_that_the_router_knows_meets_the_rules_of_that_node() {
    let to = rewrite(&["10.244.1.3:8080"], true);
    let got = fates("outside", packet("192.0.2.10", "198.51.100.9:80"), "n2", &to);
    assert_eq!(got, ["web-1 at 10.244.1.3:8080 sees node n2"]);
    let got = fates("outside", packet("192.0.2.10", "198.51.100.8:80"), "n2", &to);
    assert_eq!(got, ["no way there and back"]);
}

#[test]
fn what_a_socket_rewrites_goes_to_the_pod_itself_and_the_rules_let_it_through() {
    let at = "10.96.0.10:80".parse().unwrap();
    let walk = |node: &str, place: At, packet: &Packet| match place {
        At::Socket if node == "n1" && packet.destination == at => {
            rewrite(&["10.244.1.3:8080", "10.244.2.2:8080"], false)
        }
        _ => Verdict::NotOurs,
    };
    let fates = predict(&view(), &walk, &"web-1".parse().unwrap(), packet("10.244.1.3", "10.96.0.10:80"));
    let fates: Vec<String> = fates.keys().map(ToString::to_string).collect();
    assert_eq!(fates, ["web-1 at 10.244.1.3:8080 sees 10.244.1.3", "web-2 at 10.244.2.2:8080 sees 10.244.1.3"]);
    let outside = predict(&view(), &walk, &"outside".parse().unwrap(), packet("192.0.2.10", "10.96.0.10:80"));
    assert_eq!(outside.keys().collect::<Vec<_>>(), [&Fate::Lost]);
}
