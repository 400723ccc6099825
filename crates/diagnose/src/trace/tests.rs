use std::collections::BTreeMap;

use serde_json::json;

use super::text::{Style, text};
use super::*;
use crate::listed::Listed;
use crate::network::{Interface, Listener};
use crate::planned::plan_anew;
use crate::program::Program;
use crate::snapshot::{NodeState, PodState, Snapshot};

fn node(n: u8) -> serde_json::Value {
    json!({
        "metadata": {"name": format!("n{n}")},
        "spec": {"podCIDRs": [format!("10.244.{n}.0/24")]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("172.18.0.1{n}")}]},
    })
}

fn pod(name: &str, n: u8, host: u8) -> serde_json::Value {
    json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": format!("n{n}")},
        "status": {"phase": "Running", "podIP": "", "podIPs": [{"ip": format!("10.244.{n}.{host}")}]},
    })
}

/// Two nodes with rules, a client on n1, a backend on each node.
fn snapshot() -> Snapshot {
    let endpoint = |n: u8| {
        json!({
            "addresses": [format!("10.244.{n}.3")],
            "conditions": {"ready": true},
            "nodeName": format!("n{n}"),
            "targetRef": {"kind": "Pod", "name": format!("web-{n}")},
        })
    };
    let objects = Listed {
        nodes: vec![node(1), node(2)],
        pods: vec![pod("client", 1, 2), pod("web-1", 1, 3), pod("web-2", 2, 3)],
        services: vec![json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
                "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP"}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "172.18.0.200"}]}},
        })],
        slices: vec![json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "default", "name": "web-a", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
            "endpoints": [endpoint(1), endpoint(2)],
        })],
        ..Listed::default()
    };
    let mut nodes = BTreeMap::new();
    for n in [1, 2] {
        let bridge = Interface {
            name: "cni0".to_owned(),
            addresses: vec![format!("10.244.{n}.1/24").parse().unwrap()],
            ..Interface::default()
        };
        nodes.insert(format!("n{n}"), NodeState { interfaces: vec![bridge], ..NodeState::default() });
    }
    plan_anew(&objects, &mut nodes);
    for state in nodes.values_mut() {
        state.plans = state.wanted.clone();
        let program = |plan| Program::Nftables(signpost_datapath::nftables::Program::of(plan));
        state.programs = state.plans.iter().map(|(family, plan)| (*family, program(plan))).collect();
    }
    let listener = Listener { protocol: Protocol::Tcp, address: [0; 4].into(), port: 8080 };
    let listening = PodState { unreached: None, listeners: [listener].into() };
    let pods = ["web-1", "web-2"].map(|name| (format!("default/{name}"), listening.clone()));
    Snapshot { objects, nodes, pods: pods.into(), outside: vec!["192.0.2.10".parse().unwrap()], ..Snapshot::default() }
}

fn ask(from: &str, to: &str) -> Result<Trace, TraceError> {
    let question = Question { from: from.parse().unwrap(), to: to.parse().unwrap(), family: None, protocol: None };
    trace(&snapshot(), &question)
}

fn to_web_2(trace: &Trace) -> &WayTraced {
    trace.ways.iter().find(|way| way.fate.starts_with("web-2")).unwrap()
}

#[test]
fn a_cluster_address_vanishes_on_the_sender_s_node_and_comes_back_there() {
    let found = ask("client", "web:80").unwrap();
    assert!(found.reached);
    assert_eq!(found.backends.iter().map(|one| one.share).collect::<Vec<_>>(), [0.5, 0.5]);
    let way = to_web_2(&found);
    let dnat = way.forward.iter().find(|hop| hop.changed().1).unwrap();
    assert_eq!((dnat.node.as_deref(), dnat.place.as_str()), (Some("n1"), "hook prerouting"));
    assert_eq!(found.vanishes_at, Some(dnat.number));
    assert!(dnat.rules[0].starts_with("ip kube-proxy service-ips { 10.96.0.10"), "{:?}", dnat.rules);
    assert!(dnat.rules.last().unwrap().ends_with("-> 10.244.2.3:8080"), "{:?}", dnat.rules);
    // Beyond the node nobody sees it again, until conntrack puts it back.
    let seen = way.forward.iter().filter(|hop| hop.number > dnat.number);
    assert!(seen.clone().count() > 2 && seen.clone().all(|hop| hop.before.destination == dnat.after.destination));
    let undone = way.reply.iter().find(|hop| hop.changed().0).unwrap();
    assert_eq!((undone.node.as_deref(), undone.place.as_str()), (Some("n1"), "conntrack"));
    assert_eq!(way.reply.last().unwrap().after.source, found.to.parse().unwrap());
}

#[test]
fn from_outside_both_addresses_change_and_the_answer_goes_back_the_same_way() {
    let found = ask("outside", "nodeport/n1/web:80").unwrap();
    let way = to_web_2(&found);
    let masquerade = way.forward.iter().find(|hop| hop.changed().0).unwrap();
    assert_eq!(masquerade.place, "hook postrouting");
    assert_eq!(masquerade.after.source.ip(), "172.18.0.11".parse::<IpAddr>().unwrap());
    let last = way.reply.last().unwrap();
    assert_eq!((last.place.as_str(), last.after.source), ("outside", "172.18.0.11:30080".parse().unwrap()));
}

#[test]
fn the_text_says_the_verdict_first_and_marks_what_changes() {
    let found = ask("client", "web:80").unwrap();
    let shown = text(&found, Style::default());
    let first = shown.lines().next().unwrap();
    assert_eq!(first, "√ client to 10.96.0.10:80/tcp: an answer comes back");
    assert!(shown.contains("*10.244.") && shown.contains("node n1") && shown.contains("conntrack undoes"), "{shown}");
    assert!(!shown.contains('\u{1b}'));
    assert!(text(&found, Style { colour: true, wide: true }).contains('\u{1b}'));
}

#[test]
fn pictures_hold_every_hop_and_escape_what_names_may_hold() {
    let mut found = ask("client", "web:80").unwrap();
    found.from = "<script>\"".to_owned();
    let hops = found.ways[0].forward.len() + found.ways[0].reply.len();
    let svg = picture::svg(&found);
    assert_eq!(svg.matches("<g>").count(), hops);
    assert!(!svg.contains("<script>"));
    let dot = picture::dot(&found);
    assert_eq!(dot.matches("[label=").count(), hops);
    assert!(dot.contains("<script>\\\""));
}

#[test]
fn a_refusal_is_the_last_hop_and_names_the_rule() {
    let mut snapshot = snapshot();
    snapshot.objects.slices.clear();
    plan_anew(&snapshot.objects, &mut snapshot.nodes);
    for state in snapshot.nodes.values_mut() {
        state.plans = state.wanted.clone();
        state.programs.clear();
    }
    let question =
        Question { from: "client".parse().unwrap(), to: "web:80".parse().unwrap(), family: None, protocol: None };
    let found = trace(&snapshot, &question).unwrap();
    assert!(!found.reached && found.outcome == "refused");
    assert_eq!(found.ways[0].forward.last().unwrap().action, "is refused");
    assert!(found.ways[0].reply.is_empty());
}

#[test]
fn what_is_not_there_is_an_error_that_says_so() {
    assert_eq!(ask("nobody", "web:80").unwrap_err().to_string(), "there is no nobody, or it has no address");
    assert_eq!(ask("client", "shop:80").unwrap_err().to_string(), "there is no Service shop");
    assert_eq!(ask("client", "ping://web").unwrap_err(), TraceError::NoTransport);
}

#[test]
fn json_is_read_back_as_it_was() {
    let found = ask("client", "web:80").unwrap();
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Trace>(&text).unwrap(), found);
}
