use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use serde_json::{Value, json};

use super::plan::{MANAGED_BY, MANAGER, plan};

fn service(spec: &Value) -> Service {
    let object = json!({"metadata": {"name": "web", "namespace": "default", "uid": "s1", "labels": {"team": "a"}}, "spec": spec});
    serde_json::from_value(object).expect("a Service")
}

fn web() -> Service {
    service(&json!({
        "clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    }))
}

fn pod(name: &str, address: &str, change: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).expect("a Pod"))
}

fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Value {
    let planned = plan(service, pods, None, None).expect("there are none yet");
    serde_json::to_value(planned.subsets).expect("JSON")
}

fn short(subsets: &Value) -> Vec<(Vec<i64>, Vec<String>, Vec<String>)> {
    let list = |subset: &Value, key: &str| -> Vec<String> {
        let addresses = subset[key].as_array().cloned().unwrap_or_default();
        addresses.iter().map(|address| address["ip"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let subsets = subsets.as_array().cloned().unwrap_or_default();
    subsets
        .iter()
        .map(|subset| {
            let ports = subset["ports"].as_array().cloned().unwrap_or_default();
            let ports = ports.iter().filter_map(|port| port["port"].as_i64()).collect();
            (ports, list(subset, "addresses"), list(subset, "notReadyAddresses"))
        })
        .collect()
}

#[test]
fn ready_and_unready_pods_stand_side_by_side_and_ending_ones_nowhere() {
    let pods = [
        pod("b", "10.244.1.3", |_| {}),
        pod("a", "10.244.1.2", |_| {}),
        pod("unready", "10.244.1.4", |pod| pod["status"]["conditions"][0]["status"] = "False".into()),
        pod("ending", "10.244.1.5", |pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()),
        pod("done", "10.244.1.6", |pod| pod["status"]["phase"] = "Succeeded".into()),
        pod("young", "", |_| {}),
    ];
    let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let expected = (vec![8080], text(&["10.244.1.2", "10.244.1.3"]), text(&["10.244.1.4"]));
    assert_eq!(short(&subsets(&web(), &pods)), [expected]);

    let mut all = web();
    all.spec.as_mut().expect("a spec").publish_not_ready_addresses = Some(true);
    let expected = (vec![8080], text(&["10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"]), vec![]);
    assert_eq!(short(&subsets(&all, &pods)), [expected]);
}

#[test]
fn pods_with_other_ports_make_a_subset_of_their_own_and_those_without_none() {
    let pods = [
        pod("old", "10.244.1.2", |_| {}),
        pod("new", "10.244.1.3", |pod| pod["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090.into()),
        pod("nameless", "10.244.1.4", |pod| pod["spec"]["containers"][0]["ports"] = json!([])),
    ];
    let expected =
        [(vec![8080], vec!["10.244.1.2".to_owned()], vec![]), (vec![9090], vec!["10.244.1.3".to_owned()], vec![])];
    assert_eq!(short(&subsets(&web(), &pods)), expected);
}

#[test]
fn an_address_names_its_pod_and_node() {
    let found = subsets(&web(), &[pod("a", "10.244.1.2", |_| {})]);
    let expected = json!([{
        "addresses": [{
            "ip": "10.244.1.2", "nodeName": "n1",
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "a"},
        }],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }]);
    assert_eq!(found, expected);
}

#[test]
fn only_the_first_family_is_shown() {
    let dual = service(
        &json!({"clusterIP": "fd00::1", "ipFamilies": ["IPv6", "IPv4"], "selector": {"app": "web"}, "ports": [{"port": 80}]}),
    );
    let both = pod("a", "10.244.1.2", |pod| {
        pod["status"]["podIPs"] = json!([{"ip": "10.244.1.2"}, {"ip": "fd00:10:244:1::2"}]);
    });
    assert_eq!(short(&subsets(&dual, &[both])), [(vec![80], vec!["fd00:10:244:1::2".to_owned()], vec![])]);
}

#[test]
fn more_than_a_thousand_addresses_are_cut_and_said_to_be() {
    let pods: Vec<Arc<Pod>> = (0..1001)
        .map(|number| {
            pod(&format!("p{number}"), &format!("10.244.{}.{}", number / 250, number % 250), |pod| {
                if number < 5 {
                    pod["status"]["conditions"][0]["status"] = "False".into();
                }
            })
        })
        .collect();
    let planned = plan(&web(), &pods, None, None).expect("there are none yet");
    let annotations = planned.metadata.annotations.clone().unwrap_or_default();
    assert_eq!(annotations.get("endpoints.kubernetes.io/over-capacity").map(String::as_str), Some("truncated"));
    let (_, ready, unready) = &short(&serde_json::to_value(&planned.subsets).expect("JSON"))[0];
    assert_eq!((ready.len(), unready.len()), (996, 4), "ready ones are kept first");
}

#[test]
fn what_is_as_it_should_be_is_not_written() {
    let pods = [pod("a", "10.244.1.2", |_| {})];
    let planned = plan(&web(), &pods, None, None).expect("there are none yet");
    let labels = planned.metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.get(MANAGED_BY).map(String::as_str), Some(MANAGER));
    assert_eq!(labels.get("team").map(String::as_str), Some("a"));
    assert_eq!(plan(&web(), &pods, Some(&planned), None), None);
    let changed = Endpoints { subsets: None, ..planned };
    assert!(plan(&web(), &pods, Some(&changed), None).is_some());
}
