//! What connection tracking tells, and who announces an address.

use super::*;
use crate::snapshot::{Held, PortUse};

#[test]
fn ports_that_run_out_are_told_with_the_service_before_they_do() {
    let use_of = |flows: usize| {
        let by = "172.18.0.12".parse().unwrap();
        PortUse { by, backend: "10.244.1.3:8080".parse().unwrap(), protocol: Protocol::Tcp, flows }
    };
    let many = on_node(|state| state.conntrack.masqueraded = vec![use_of(60_000)]);
    assert_eq!(codes(&many), [Code::SnatPorts]);
    assert!(many.findings[0].cause.contains("93 % of the ports of 172.18.0.12 towards 10.244.1.3:8080"), "{many:?}");
    assert!(codes(&on_node(|state| state.conntrack.masqueraded = vec![use_of(40_000)])).is_empty());
    // Of another Service: the node is to blame, not this one.
    let other = PortUse { backend: "10.244.1.9:53".parse().unwrap(), ..use_of(60_000) };
    let mut snapshot = healthy();
    for state in snapshot.nodes.values_mut() {
        state.conntrack.masqueraded = vec![other.clone()];
    }
    assert!(codes(&ask(&snapshot, &Question::default())).is_empty());
    let report = diagnose(&snapshot, &Question::default()).unwrap();
    assert_eq!(report.nodes.map(|nodes| codes(&nodes)), Some(vec![Code::SnatPorts, Code::SnatPorts]));
    let state = &snapshot.nodes["n1"];
    assert_eq!(of_itself("n1", state).iter().map(|finding| finding.code).collect::<Vec<_>>(), [Code::SnatPorts]);
}

#[test]
fn connections_that_stay_with_old_backends_are_told_and_an_even_share_is_not() {
    let with = |counts: [usize; 2]| {
        let mut snapshot = healthy();
        snapshot.objects.pods.push(pod("web-2", 1, 4, json!({"app": "web"}), true));
        snapshot.objects.slices = vec![slice(&[("10.244.1.3", 1, true), ("10.244.1.4", 1, true)])];
        settle(&mut snapshot);
        let listeners = snapshot.pods["default/web-1"].clone();
        snapshot.pods.insert("default/web-2".to_owned(), listeners);
        let held = [3, 4].into_iter().zip(counts);
        let held: Vec<Held> = held
            .map(|(host, flows)| Held { backend: format!("10.244.1.{host}:8080").parse().unwrap(), flows })
            .collect();
        // Seen on both nodes, as those are whose client is on the other.
        for state in snapshot.nodes.values_mut() {
            state.conntrack.established.clone_from(&held);
        }
        codes(&ask(&snapshot, &Question::default()))
    };
    assert_eq!(with([40, 0]), [Code::LongLivedSkew]);
    assert!(with([22, 18]).is_empty());
    assert!(with([10, 0]).is_empty());
}

#[test]
fn an_address_that_a_node_announces_is_led_there_and_one_that_nobody_does_is_broken_in_a_lab() {
    let with = |lab: bool, change: &dyn Fn(&mut Listed)| {
        let mut snapshot = healthy();
        snapshot.lab = lab;
        snapshot.outside = vec!["192.0.2.10".parse().unwrap()];
        snapshot.objects.services[0]["spec"]["type"] = json!("LoadBalancer");
        snapshot.objects.services[0]["status"] = json!({"loadBalancer": {"ingress": [{"ip": "172.18.15.200"}]}});
        change(&mut snapshot.objects);
        settle(&mut snapshot);
        let to = Some(To::Target("lb/web:80".parse().unwrap()));
        let diagnosis = ask(&snapshot, &Question { from: Some(Source::Outside), to, ..Question::default() });
        (diagnosis.verdict, codes(&diagnosis))
    };
    let status = json!({"status": {"node": "n2", "serviceName": "web", "serviceNamespace": "default"}});
    let lease = json!({"metadata": {"annotations": {"signpost.dev/address": "172.18.15.200"}}, "spec": {"holderIdentity": "n2"}});
    let healthy = (Verdict::Healthy, vec![]);
    assert_eq!(with(true, &|objects| objects.l2_statuses = vec![status.clone()]), healthy);
    assert_eq!(with(true, &|objects| objects.bgp_statuses = vec![status.clone()]), healthy);
    assert_eq!(with(true, &|objects| objects.leases = vec![lease.clone()]), healthy);
    assert_eq!(with(true, &|_| {}), (Verdict::Broken, vec![Code::ExternalIpUnrouted]));
    assert_eq!(with(false, &|_| {}), (Verdict::Degraded, vec![Code::ExternalIpUnrouted]));
}
