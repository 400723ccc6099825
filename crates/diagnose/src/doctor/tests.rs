//! Each judge of objects on a snapshot of its own; what needs a kernel is shown in `scenarios/doctor`.

mod flows;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use signpost_core::object::Protocol;

use super::text::{Style, text};
use super::*;
use crate::firewall::read_nftables;
use crate::listed::Listed;
use crate::network::{Interface, Listener, Route};
use crate::planned::plan_anew;
use crate::program::Program;
use crate::snapshot::{DaemonState, KernelState, NodeState, PodState, Unknown};

fn node(n: u8) -> Value {
    json!({
        "metadata": {"name": format!("n{n}")},
        "spec": {"podCIDRs": [format!("10.244.{n}.0/24")]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": format!("172.18.0.1{n}")}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn pod(name: &str, n: u8, host: u8, labels: Value, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({
        "metadata": {"namespace": "default", "name": name, "labels": labels},
        "spec": {"nodeName": format!("n{n}"), "containers": [{"name": "main", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {
            "phase": "Running", "podIP": "x", "podIPs": [{"ip": format!("10.244.{n}.{host}")}],
            "conditions": [{"type": "Ready", "status": status}],
            "containerStatuses": [{"name": "main", "ready": ready, "state": {"running": {}}}],
        },
    })
}

fn web(spec: &Value) -> Value {
    let mut service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
            "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

fn slice(endpoints: &[(&str, u8, bool)]) -> Value {
    let endpoint = |(ip, n, ready): &(&str, u8, bool)| json!({"addresses": [ip], "conditions": {"ready": ready}, "nodeName": format!("n{n}")});
    json!({
        "addressType": "IPv4",
        "metadata": {"namespace": "default", "name": "web-a", "labels": {
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        }},
        "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// Two nodes that hold what the objects ask for; web-1 on n1 serves, client on n2 asks.
fn healthy() -> Snapshot {
    let objects = Listed {
        nodes: vec![node(1), node(2)],
        pods: vec![pod("web-1", 1, 3, json!({"app": "web"}), true), pod("client", 2, 2, json!({}), true)],
        services: vec![web(&json!({}))],
        slices: vec![slice(&[("10.244.1.3", 1, true)])],
        ..Listed::default()
    };
    let mut nodes = BTreeMap::new();
    for n in [1u8, 2] {
        let other = 3 - n;
        let interface = |name: &str, address: String| Interface {
            name: name.to_owned(),
            up: true,
            mtu_bytes: 1500,
            addresses: vec![address.parse().unwrap()],
            ..Interface::default()
        };
        let route = |to: &str, via: Option<String>, device: &str| Route {
            to: to.parse().unwrap(),
            via: via.map(|via| via.parse().unwrap()),
            device: Some(device.to_owned()),
            kind: "unicast".to_owned(),
        };
        let state = NodeState {
            daemon: DaemonState {
                answers: true,
                live: Some(true),
                mode: Some("nftables".to_owned()),
                ..DaemonState::default()
            },
            interfaces: vec![
                interface("eth0", format!("172.18.0.1{n}/24")),
                interface("cni0", format!("10.244.{n}.1/24")),
            ],
            routes: vec![
                route("172.18.0.0/24", None, "eth0"),
                route(&format!("10.244.{n}.0/24"), None, "cni0"),
                route(&format!("10.244.{other}.0/24"), Some(format!("172.18.0.1{other}")), "eth0"),
            ],
            sysctls: [("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into(),
            ..NodeState::default()
        };
        nodes.insert(format!("n{n}"), state);
    }
    let listener = Listener { protocol: Protocol::Tcp, address: [0; 4].into(), port: 8080 };
    let listening = PodState { unreached: None, listeners: [listener].into() };
    let pods = [("default/web-1".to_owned(), listening), ("default/client".to_owned(), PodState::default())].into();
    let mut snapshot = Snapshot {
        objects,
        nodes,
        pods,
        outside: vec!["192.0.2.10".parse().unwrap()],
        lab: true,
        ..Snapshot::default()
    };
    settle(&mut snapshot);
    snapshot
}

/// Every node holds what the objects ask for.
fn settle(snapshot: &mut Snapshot) {
    plan_anew(&snapshot.objects, &mut snapshot.nodes);
    for state in snapshot.nodes.values_mut() {
        state.plans = state.wanted.clone();
        let program = |plan| Program::Nftables(signpost_datapath::nftables::Program::of(plan));
        state.programs = state.plans.iter().map(|(family, plan)| (*family, program(plan))).collect();
        state.kernel = state.plans.keys().map(|family| (*family, KernelState::default())).collect();
    }
}

fn ask(snapshot: &Snapshot, question: &Question) -> Diagnosis {
    let question = Question { service: Some(ObjectName::new("default", "web")), ..question.clone() };
    diagnose(snapshot, &question).unwrap().services.remove(0)
}

fn changed(change: impl FnOnce(&mut Listed)) -> Diagnosis {
    let mut snapshot = healthy();
    change(&mut snapshot.objects);
    settle(&mut snapshot);
    ask(&snapshot, &Question::default())
}

fn codes(diagnosis: &Diagnosis) -> Vec<Code> {
    diagnosis.findings.iter().map(|finding| finding.code).collect()
}

#[test]
fn a_service_that_works_has_no_finding() {
    let found = ask(&healthy(), &Question::default());
    assert_eq!((found.verdict, codes(&found)), (Verdict::Healthy, Vec::new()), "{found:?}");
    assert_eq!(found.ways, (2, 2));
}

#[test]
fn causes_in_the_objects_are_told_apart() {
    let label = |value: &str| json!({"app": value});
    let cases: Vec<(Code, Diagnosis)> = vec![
        (
            Code::SelectorMatchesNothing,
            changed(|objects| {
                objects.services[0] = web(&json!({"selector": {"app": "wbe"}}));
                objects.slices.clear();
            }),
        ),
        (
            Code::PodsElsewhere,
            changed(|objects| {
                objects.pods[0]["metadata"]["namespace"] = json!("shop");
                objects.slices.clear();
            }),
        ),
        (
            Code::NoneReady,
            changed(|objects| {
                objects.pods[0] = pod("web-1", 1, 3, label("web"), false);
                objects.slices[0] = slice(&[("10.244.1.3", 1, false)]);
            }),
        ),
        (
            Code::PodsPending,
            changed(|objects| {
                objects.pods[0] = pod("web-1", 1, 3, label("web"), false);
                objects.pods[0]["status"] = json!({"phase": "Pending"});
                objects.slices.clear();
            }),
        ),
        (
            Code::PodsCrash,
            changed(|objects| {
                objects.pods[0] = pod("web-1", 1, 3, label("web"), false);
                objects.pods[0]["status"]["containerStatuses"][0]["state"] =
                    json!({"waiting": {"reason": "CrashLoopBackOff"}});
                objects.slices[0] = slice(&[("10.244.1.3", 1, false)]);
            }),
        ),
        (
            Code::ReadinessGate,
            changed(|objects| {
                objects.pods[0] = pod("web-1", 1, 3, label("web"), false);
                objects.pods[0]["spec"]["readinessGates"] = json!([{"conditionType": "a/b"}]);
                objects.pods[0]["status"]["containerStatuses"][0]["ready"] = json!(true);
                objects.slices[0] = slice(&[("10.244.1.3", 1, false)]);
            }),
        ),
        (
            Code::NoSelectorNoSlices,
            changed(|objects| {
                objects.services[0] = web(&json!({"selector": {}}));
                objects.slices.clear();
            }),
        ),
        (
            Code::SliceOfAnother,
            changed(|objects| {
                objects.services[0] = web(&json!({"selector": {}}));
                objects.slices[0]["metadata"]["labels"]["kubernetes.io/service-name"] = json!("wbe");
            }),
        ),
        (
            Code::PortNames,
            changed(|objects| {
                objects.services[0] =
                    web(&json!({"selector": {}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}));
            }),
        ),
        (
            Code::SliceNotReady,
            changed(|objects| {
                objects.services[0] = web(&json!({"selector": {}}));
                objects.slices[0] = slice(&[("10.244.1.3", 1, false)]);
            }),
        ),
        (
            Code::NamedPort,
            changed(|objects| {
                objects.services[0] = web(&json!({"ports": [{"port": 80, "targetPort": "web"}]}));
                objects.slices[0]["ports"] = json!([]);
            }),
        ),
        (Code::SlicesBehind, changed(|objects| objects.slices.clear())),
        (Code::EndpointOfNobody, changed(|objects| objects.slices[0] = slice(&[("10.244.1.77", 1, true)]))),
        (
            Code::ForeignProxy,
            changed(|objects| {
                objects.services[0]["metadata"]["labels"] =
                    json!({"service.kubernetes.io/service-proxy-name": "other"});
            }),
        ),
        (Code::NoClusterIp, changed(|objects| objects.services[0] = web(&json!({"clusterIP": "", "clusterIPs": []})))),
        (
            Code::HeadlessNoneReady,
            changed(|objects| {
                objects.services[0] = web(&json!({"clusterIP": "None", "clusterIPs": ["None"]}));
                objects.slices[0] = slice(&[("10.244.1.3", 1, false)]);
            }),
        ),
        (
            Code::ExternalNameAddress,
            changed(|objects| {
                objects.services[0] = web(
                    &json!({"type": "ExternalName", "externalName": "192.0.2.1", "clusterIP": null, "clusterIPs": null}),
                );
            }),
        ),
    ];
    for (code, found) in cases {
        assert_eq!(found.verdict, Verdict::Broken, "{code}: {found:?}");
        assert_eq!(found.findings[0].code, code, "{found:#?}");
    }
}

#[test]
fn what_works_otherwise_than_asked_for_is_degraded() {
    let cases: Vec<(Code, Diagnosis)> = vec![
        (Code::LoadBalancerPending, changed(|objects| objects.services[0] = web(&json!({"type": "LoadBalancer"})))),
        (Code::NodeLost, changed(|objects| objects.nodes[0]["status"]["conditions"][0]["status"] = json!("Unknown"))),
        (
            Code::OutsideServiceCidr,
            changed(|objects| {
                objects.service_cidrs =
                    vec![json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.97.0.0/16"]}})];
            }),
        ),
        (
            Code::FrontendTaken,
            changed(|objects| {
                objects.services[0] = web(&json!({"externalIPs": ["10.96.0.99"]}));
                let mut other = web(&json!({"clusterIP": "10.96.0.99", "clusterIPs": ["10.96.0.99"]}));
                other["metadata"]["name"] = json!("shop");
                objects.services.push(other);
                let mut slice = slice(&[("10.244.1.3", 1, true)]);
                slice["metadata"] =
                    json!({"namespace": "default", "name": "shop-a", "labels": {"kubernetes.io/service-name": "shop"}});
                objects.slices.push(slice);
            }),
        ),
        (Code::InternalLocal, changed(|objects| objects.services[0] = web(&json!({"internalTrafficPolicy": "Local"})))),
        (
            Code::UnreadyServed,
            changed(|objects| {
                objects.services[0] = web(&json!({"publishNotReadyAddresses": true}));
                objects.pods[0] = pod("web-1", 1, 3, json!({"app": "web"}), false);
            }),
        ),
    ];
    for (code, found) in cases {
        assert_eq!(found.verdict, Verdict::Degraded, "{code}: {found:?}");
        assert!(codes(&found).contains(&code), "{code}: {found:#?}");
    }
}

#[test]
fn several_causes_are_told_and_the_blocking_one_comes_first() {
    let found = changed(|objects| {
        objects.services[0] = web(&json!({"type": "LoadBalancer", "selector": {"app": "wbe"}}));
        objects.slices.clear();
    });
    assert_eq!(codes(&found), [Code::SelectorMatchesNothing, Code::LoadBalancerPending]);
}

fn on_node(change: impl FnOnce(&mut NodeState)) -> Diagnosis {
    let mut snapshot = healthy();
    change(snapshot.nodes.get_mut("n2").unwrap());
    ask(&snapshot, &Question { from: Some("client".parse().unwrap()), ..Question::default() })
}

#[test]
fn what_stands_in_the_way_is_found_on_the_node_where_it_is() {
    let firewall = json!({"nftables": [
        {"chain": {"family": "inet", "table": "fw", "name": "f", "hook": "forward", "prio": 0, "policy": "drop"}},
    ]});
    let cases: Vec<(Code, Diagnosis)> = vec![
        (
            Code::NotForwarding,
            on_node(|node| {
                node.sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
            }),
        ),
        (Code::NoRoute, on_node(|node| node.routes.retain(|route| route.to.to_string() != "10.244.1.0/24"))),
        (Code::LinkDown, on_node(|node| node.interfaces[0].up = false)),
        (Code::Firewall, on_node(|node| node.firewall = read_nftables(&firewall))),
        (Code::ConntrackFull, on_node(|node| (node.conntrack.count, node.conntrack.max) = (Some(10), Some(10)))),
    ];
    for (code, found) in cases {
        assert_eq!(found.verdict, Verdict::Broken, "{code}: {found:?}");
        assert_eq!((found.findings[0].code, found.findings[0].node.as_deref()), (code, Some("n2")), "{found:#?}");
    }
}

#[test]
fn a_daemon_that_serves_an_older_state_is_told_by_its_plan() {
    let mut snapshot = healthy();
    snapshot.objects.slices[0] = slice(&[("10.244.1.3", 1, true), ("10.244.2.9", 2, true)]);
    snapshot.objects.pods.push(pod("web-2", 2, 9, json!({"app": "web"}), true));
    plan_anew(&snapshot.objects, &mut snapshot.nodes);
    let found = ask(&snapshot, &Question::default());
    assert_eq!(found.verdict, Verdict::Degraded);
    assert!(codes(&found).iter().all(|code| *code == Code::PlanBehind), "{found:#?}");
}

#[test]
fn what_was_not_read_makes_no_healthy_service() {
    let mut snapshot = healthy();
    snapshot.nodes.get_mut("n2").unwrap().unreached = Some("another machine".to_owned());
    let found = ask(&snapshot, &Question::default());
    assert_eq!(found.verdict, Verdict::Undetermined);
    assert!(found.unknown.iter().any(|unknown| unknown.why == "another machine"), "{found:?}");
    // But what is broken is broken.
    snapshot.objects.services[0]["spec"]["selector"] = json!({"app": "wbe"});
    snapshot.objects.slices.clear();
    plan_anew(&snapshot.objects, &mut snapshot.nodes);
    snapshot.nodes.values_mut().for_each(|node| node.plans.clear());
    snapshot.nodes.values_mut().for_each(|node| node.programs.clear());
    assert_eq!(ask(&snapshot, &Question::default()).verdict, Verdict::Broken);
}

#[test]
fn a_missing_right_is_told_and_objects_that_were_not_read_are_no_diagnosis() {
    let mut snapshot = healthy();
    snapshot.unknown.push(Unknown { what: "services".to_owned(), why: "the right to list services".to_owned() });
    let error = diagnose(&snapshot, &Question::default()).unwrap_err();
    assert!(error.to_string().contains("the right to list services"));
}

#[test]
fn unknown_services_and_senders_are_answered_with_what_there_is() {
    let question = Question { service: Some(ObjectName::new("default", "wbe")), ..Question::default() };
    let report = diagnose(&healthy(), &question).unwrap();
    assert_eq!(report.services[0].findings[0].code, Code::NoSuchService);
    assert!(text(&report, Style::default()).contains("near to it: default/web"));
    let question = Question { from: Some("nobody".parse().unwrap()), ..Question::default() };
    assert_eq!(diagnose(&healthy(), &question).unwrap_err(), DoctorError::NoSender("nobody".to_owned()));
}

#[test]
fn the_first_line_is_the_verdict() {
    let mut snapshot = healthy();
    snapshot.objects.services[0] = web(&json!({"selector": {"app": "wbe"}}));
    snapshot.objects.slices.clear();
    settle(&mut snapshot);
    let question = Question { service: Some(ObjectName::new("default", "web")), ..Question::default() };
    let shown = text(&diagnose(&snapshot, &question).unwrap(), Style::default());
    let first = shown.lines().next().unwrap();
    assert!(first.starts_with("× default/web: SP301 the selector finds no pod: "), "{first}");
    assert!(first.contains("web-1, which has app=web"), "{first}");
    assert!(shown.contains("fix:") && shown.contains("next:") && shown.contains("signpost explain SP301"), "{shown}");
}

#[test]
fn steps_can_be_chosen() {
    let mut snapshot = healthy();
    snapshot.objects.services[0] = web(&json!({"type": "LoadBalancer"}));
    settle(&mut snapshot);
    let only = Question { only: [Step::Name].into(), ..Question::default() };
    assert_eq!(ask(&snapshot, &only).verdict, Verdict::Healthy);
    let skip = Question { skip: [Step::Outside].into(), ..Question::default() };
    assert_eq!(ask(&snapshot, &skip).verdict, Verdict::Healthy);
    assert_eq!(ask(&snapshot, &Question::default()).verdict, Verdict::Degraded);
}

#[test]
fn further_causes_on_nodes_are_told_apart() {
    let trace =
        |of: &str, acts: bool| crate::snapshot::ProxyTrace { of: of.to_owned(), found: format!("rules of {of}"), acts };
    let difference = |kind, port: Option<&str>| crate::snapshot::Difference {
        kind,
        place: "map service-ips".to_owned(),
        what: "10.96.0.10:80/tcp".to_owned(),
        frontend: None,
        service_port: port.map(str::to_owned),
    };
    let differs = |node: &mut NodeState, kind, port| {
        node.kernel.get_mut(&signpost_core::object::Family::Ipv4).unwrap().differences = vec![difference(kind, port)];
    };
    use crate::snapshot::DifferenceKind::{Extra, Missing};
    let cases: Vec<(Code, Verdict, Diagnosis)> = vec![
        (
            Code::ConntrackNearlyFull,
            Verdict::Degraded,
            on_node(|node| (node.conntrack.count, node.conntrack.max) = (Some(95), Some(100))),
        ),
        (
            Code::InsertFailed,
            Verdict::Degraded,
            on_node(|node| {
                node.conntrack.counters = [("insert_failed".to_owned(), 500), ("insert".to_owned(), 1000)].into();
            }),
        ),
        (Code::DaemonBehind, Verdict::Degraded, on_node(|node| node.daemon.live = Some(false))),
        (Code::DaemonDown, Verdict::Degraded, on_node(|node| node.daemon.answers = false)),
        (Code::AnotherProxy, Verdict::Degraded, on_node(|node| node.proxies = vec![trace("cilium", true)])),
        (
            Code::Leftovers,
            Verdict::Degraded,
            on_node(|node| node.proxies = vec![trace("ipvs", true), trace("nftables", true)]),
        ),
        (
            Code::BothIptables,
            Verdict::Degraded,
            on_node(|node| {
                node.proxies = vec![trace("iptables", false), trace("iptables-legacy", false)];
            }),
        ),
        (Code::KernelDiffers, Verdict::Broken, on_node(|node| differs(node, Missing, Some("default/web")))),
        (Code::KernelDiffers, Verdict::Degraded, on_node(|node| differs(node, Extra, Some("default/web")))),
        (Code::MtuDiffers, Verdict::Degraded, on_node(|node| node.interfaces[0].mtu_bytes = 1400)),
        (
            Code::NeighbourFailed,
            Verdict::Degraded,
            on_node(|node| {
                node.neighbours = vec![crate::network::Neighbour {
                    address: "172.18.0.11".parse().unwrap(),
                    device: "eth0".to_owned(),
                    hardware: None,
                    state: "FAILED".to_owned(),
                }];
            }),
        ),
        (Code::NodePortEphemeral, Verdict::Degraded, {
            let mut snapshot = healthy();
            snapshot.objects.services[0] =
                web(&json!({"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080}]}));
            settle(&mut snapshot);
            let node = snapshot.nodes.get_mut("n1").unwrap();
            node.sysctls.insert("net.ipv4.ip_local_port_range".to_owned(), "30000\t60999".to_owned());
            ask(&snapshot, &Question::default())
        }),
    ];
    for (code, verdict, found) in cases {
        assert_eq!(found.verdict, verdict, "{code}: {found:#?}");
        assert!(codes(&found).contains(&code), "{code}: {found:#?}");
    }
    // What is another Service's, or reserved, is no finding.
    assert_eq!(on_node(|node| differs(node, Missing, Some("default/webs"))).verdict, Verdict::Healthy);
    assert_eq!(on_node(|node| node.proxies = vec![trace("nftables", true)]).verdict, Verdict::Healthy);
}

#[test]
fn rules_that_say_otherwise_than_the_plan_are_told() {
    let found = on_node(|node| {
        let empty = signpost_datapath::nftables::Program::empty(signpost_core::object::Family::Ipv4);
        node.programs.insert(signpost_core::object::Family::Ipv4, Program::Nftables(empty));
    });
    assert!(codes(&found).contains(&Code::ProgramWrong), "{found:#?}");
}

#[test]
fn families_and_slices_of_one_family_are_told_apart() {
    let mut snapshot = healthy();
    snapshot.objects.services[0] =
        web(&json!({"clusterIP": "fd00:10:96::1", "clusterIPs": ["fd00:10:96::1"], "ipFamilies": ["IPv6"]}));
    settle(&mut snapshot);
    let found = ask(&snapshot, &Question { from: Some("client".parse().unwrap()), ..Question::default() });
    assert_eq!(found.findings[0].code, Code::FamiliesDiffer, "{found:#?}");
}

#[test]
fn a_redacted_snapshot_has_the_same_verdicts() {
    let broken = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = healthy();
        change(&mut snapshot);
        settle(&mut snapshot);
        snapshot
    };
    let snapshots = [
        healthy(),
        broken(&|snapshot| {
            snapshot.objects.services[0] = web(&json!({"selector": {"app": "wbe"}}));
            snapshot.objects.slices.clear();
        }),
        broken(&|snapshot| snapshot.objects.slices[0] = slice(&[("10.244.1.77", 1, true), ("10.244.1.3", 1, true)])),
    ];
    for snapshot in snapshots {
        let mut redacted = crate::redact::redact(&snapshot, &[9; 32]).unwrap();
        let text = serde_json::to_string(&redacted).unwrap();
        assert!(!text.contains("10.244.1.3") && !text.contains("172.18.0.11"), "an address is left");
        plan_anew(&redacted.objects, &mut redacted.nodes);
        let (before, after) = (ask(&snapshot, &Question::default()), ask(&redacted, &Question::default()));
        assert_eq!((before.verdict, codes(&before)), (after.verdict, codes(&after)));
    }
}

#[test]
fn what_if_answers_on_a_snapshot() {
    let mut snapshot = healthy();
    snapshot.objects.services[0] = web(&json!({"selector": {"app": "wbe"}}));
    snapshot.objects.slices.clear();
    settle(&mut snapshot);
    assert_eq!(ask(&snapshot, &Question::default()).verdict, Verdict::Broken);
    let change: crate::what_if::Change = r#"service/web={"spec":{"selector":{"app":"web"}}}"#.parse().unwrap();
    change.apply(&mut snapshot).unwrap();
    let found = ask(&snapshot, &Question::default());
    assert_eq!(found.verdict, Verdict::Healthy, "{found:#?}");
}

#[test]
fn an_answer_that_goes_past_the_rewriting_node_is_told() {
    let mut snapshot = healthy();
    snapshot.routes = [("10.96.0.10".parse().unwrap(), "n2".to_owned())].into();
    for state in snapshot.nodes.values_mut() {
        for plan in state.plans.values_mut() {
            // As a daemon that was told no ranges of pods: nobody is one, and nothing is masqueraded.
            plan.cluster_cidrs.clear();
            plan.frontends.values_mut().for_each(|frontend| frontend.from_elsewhere.masquerade = false);
        }
        let program = |plan| Program::Nftables(signpost_datapath::nftables::Program::of(plan));
        state.programs = state.plans.iter().map(|(family, plan)| (*family, program(plan))).collect();
        state.wanted = state.plans.clone();
    }
    let found = ask(&snapshot, &Question { from: Some(Source::Outside), ..Question::default() });
    assert_eq!((found.verdict, codes(&found)), (Verdict::Broken, vec![Code::MasqueradeMissing]), "{found:#?}");
}
