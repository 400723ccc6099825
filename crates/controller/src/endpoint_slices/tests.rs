use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use serde_json::{Value, json};

use super::plan::{Actions, MANAGED_BY, MANAGER, SERVICE_NAME, TRIGGER_TIME, plan};
use super::triggers::Triggers;
use crate::nodes::NodeFacts;

fn service(spec: Value) -> Service {
    let mut spec = spec;
    spec["selector"] = json!({"app": "web"});
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "s1", "labels": {"team": "a"}},
        "spec": spec,
    });
    serde_json::from_value(object).expect("a Service")
}

fn web() -> Service {
    service(json!({"clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "targetPort": 8080}]}))
}

fn pod(name: &str, addresses: &[&str], change: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "main", "ports": [{"name": "http", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]},
        ]},
        "status": {
            "phase": "Running",
            "podIPs": addresses.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}],
        },
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).expect("a Pod"))
}

fn ready(name: &str, address: &str) -> Arc<Pod> {
    pod(name, &[address], |_| {})
}

fn node(name: &str) -> Option<NodeFacts> {
    match name {
        "n1" => Some(NodeFacts { zone: Some("a".to_owned()) }),
        "n2" => Some(NodeFacts::default()),
        _ => None,
    }
}

fn planned(service: &Service, pods: &[Arc<Pod>], existing: &[EndpointSlice]) -> Actions {
    let existing: Vec<Arc<EndpointSlice>> = existing.iter().cloned().map(Arc::new).collect();
    plan(service, pods, (&node, None), &existing, None)
}

/// What the API would hold after a plan.
fn written(existing: &[EndpointSlice], actions: &Actions) -> Vec<EndpointSlice> {
    let mut slices: BTreeMap<String, EndpointSlice> =
        existing.iter().map(|slice| (slice.metadata.name.clone().expect("named"), slice.clone())).collect();
    for (number, slice) in actions.create.iter().enumerate() {
        let mut slice = slice.clone();
        let name = format!("{}{}{number}", slice.metadata.generate_name.clone().expect("a prefix"), existing.len());
        slice.metadata.name = Some(name.clone());
        slices.insert(name, slice);
    }
    for slice in &actions.replace {
        slices.insert(slice.metadata.name.clone().expect("named"), slice.clone());
    }
    for slice in &actions.delete {
        slices.remove(slice.metadata.name.as_ref().expect("named"));
    }
    slices.into_values().collect()
}

fn endpoints(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

fn conditions(endpoint: &Endpoint) -> [bool; 3] {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    [conditions.ready, conditions.serving, conditions.terminating].map(|condition| condition.expect("always set"))
}

#[test]
fn a_slice_says_all_that_is_known_of_a_pod() {
    let actions = planned(&web(), &[ready("web-1", "10.244.1.2")], &[]);
    let [slice] = &actions.create[..] else { panic!("one slice: {actions:?}") };
    let expected = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "generateName": "web-",
            "labels": {"team": "a", SERVICE_NAME: "web", MANAGED_BY: MANAGER},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": "web", "uid": "s1",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{
            "addresses": ["10.244.1.2"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n1",
            "zone": "a",
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-1", "uid": "uid-web-1"},
        }],
    });
    assert_eq!(serde_json::to_value(slice).expect("JSON"), expected);
}

#[test]
fn readiness_and_termination_show_as_conditions() {
    let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = "False".into();
    let ending = |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for (name, change, expected, published) in [
        ("ready", &(|_: &mut Value| {}) as &dyn Fn(&mut Value), [true, true, false], [true, true, false]),
        ("unready", &unready, [false, false, false], [true, false, false]),
        ("ending", &ending, [false, true, true], [true, true, true]),
        (
            "ending and unready",
            &|pod| {
                unready(pod);
                ending(pod);
            },
            [false, false, true],
            [true, false, true],
        ),
    ] {
        let pods = [pod("web-1", &["10.244.1.2"], change)];
        let of = |service: &Service| conditions(&endpoints(&planned(service, &pods, &[]).create[0])[0]);
        assert_eq!(of(&web()), expected, "{name}");
        let mut service = web();
        service.spec.as_mut().expect("a spec").publish_not_ready_addresses = Some(true);
        assert_eq!(of(&service), published, "{name}, published");
    }
}

#[test]
fn finished_pods_and_pods_without_an_address_are_left_out() {
    let pods = [
        pod("done", &["10.244.1.2"], |pod| pod["status"]["phase"] = "Succeeded".into()),
        pod("failed", &["10.244.1.3"], |pod| pod["status"]["phase"] = "Failed".into()),
        pod("young", &[], |_| {}),
        pod("odd", &["not-an-address"], |_| {}),
        pod("lost", &["10.244.1.4"], |pod| pod["spec"]["nodeName"] = "gone".into()),
    ];
    let actions = planned(&web(), &pods, &[]);
    assert_eq!(actions.create.len(), 1, "a slice that says: nobody");
    assert!(endpoints(&actions.create[0]).is_empty());
}

#[test]
fn a_service_without_pods_has_one_empty_slice_per_family_and_keeps_it() {
    let service = service(json!({"ipFamilies": ["IPv4", "IPv6"], "clusterIP": "10.96.0.9", "ports": [{"port": 80}]}));
    let first = written(&[], &planned(&service, &[], &[]));
    assert_eq!(first.iter().map(|slice| slice.address_type.as_str()).collect::<Vec<_>>(), ["IPv4", "IPv6"]);
    assert_eq!(planned(&service, &[], &first), Actions::default());
}

#[test]
fn each_family_of_the_service_has_slices_of_its_own() {
    let service = service(json!({"ipFamilies": ["IPv6", "IPv4"], "clusterIP": "fd00::1", "ports": [{"port": 80}]}));
    let pods = [pod("web-1", &["10.244.1.2", "fd00:10:244:1::2"], |_| {}), ready("web-2", "10.244.2.2")];
    let actions = planned(&service, &pods, &[]);
    let addresses = |kind: &str| -> Vec<String> {
        let slices = actions.create.iter().filter(|slice| slice.address_type == kind);
        slices.flat_map(|slice| endpoints(slice).iter().map(|endpoint| endpoint.addresses[0].clone())).collect()
    };
    assert_eq!(addresses("IPv4"), ["10.244.1.2", "10.244.2.2"]);
    assert_eq!(addresses("IPv6"), ["fd00:10:244:1::2"]);
}

#[test]
fn a_family_that_the_service_gave_up_loses_its_slices() {
    let both = service(json!({"ipFamilies": ["IPv4", "IPv6"], "clusterIP": "10.96.0.9", "ports": [{"port": 80}]}));
    let slices = written(&[], &planned(&both, &[], &[]));
    let actions = planned(&web(), &[], &slices);
    assert_eq!(actions.delete.iter().map(|slice| slice.address_type.as_str()).collect::<Vec<_>>(), ["IPv6"]);
}

#[test]
fn named_target_ports_are_looked_up_in_each_pod() {
    let service = service(json!({"clusterIP": "10.96.0.9", "ports": [
        {"name": "web", "port": 80, "targetPort": "http", "appProtocol": "http"},
        {"name": "names", "port": 53, "protocol": "UDP", "targetPort": "dns"},
    ]}));
    let old = pod("old", &["10.244.1.2"], |_| {});
    let new =
        pod("new", &["10.244.1.3"], |pod| pod["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090.into());
    let nameless = pod("nameless", &["10.244.1.4"], |pod| pod["spec"]["containers"][0]["ports"] = json!([]));
    let sidecar = pod("sidecar", &["10.244.1.5"], |pod| {
        pod["spec"]["initContainers"] =
            json!([{"name": "side", "restartPolicy": "Always", "ports": pod["spec"]["containers"][0]["ports"]}]);
        pod["spec"]["containers"][0]["ports"] = json!([]);
    });
    let actions = planned(&service, &[old, new, nameless, sidecar], &[]);
    let mut seen: Vec<(Vec<i32>, Vec<&str>)> = actions
        .create
        .iter()
        .map(|slice| {
            let ports = slice.ports.iter().flatten().map(|port| port.port.expect("a number")).collect();
            (ports, endpoints(slice).iter().map(|endpoint| endpoint.addresses[0].as_str()).collect())
        })
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            (vec![], vec!["10.244.1.4"]),
            (vec![53, 8080], vec!["10.244.1.2", "10.244.1.5"]),
            (vec![53, 9090], vec!["10.244.1.3"]),
        ]
    );
}

#[test]
fn a_headless_service_is_marked_and_its_pods_have_host_names() {
    let service = service(json!({"clusterIP": "None", "ipFamilies": ["IPv4"]}));
    let pods = [
        pod("web-0", &["10.244.1.2"], |pod| {
            pod["spec"]["hostname"] = "web-0".into();
            pod["spec"]["subdomain"] = "web".into();
        }),
        pod("other", &["10.244.1.3"], |pod| {
            pod["spec"]["hostname"] = "other".into();
            pod["spec"]["subdomain"] = "elsewhere".into();
        }),
    ];
    let actions = planned(&service, &pods, &[]);
    let slice = &actions.create[0];
    assert_eq!(
        slice.metadata.labels.as_ref().and_then(|labels| labels.get(super::plan::HEADLESS)),
        Some(&String::new())
    );
    let names: Vec<Option<&str>> = endpoints(slice).iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
    assert_eq!(names, [Some("web-0"), None]);
    assert_eq!(slice.ports, Some(vec![]));
}

#[test]
fn traffic_distribution_hints_at_the_pods_own_zone_and_node() {
    let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = "False".into();
    let pods = [
        ready("here", "10.244.1.2"),
        pod("zoneless", &["10.244.1.3"], |pod| pod["spec"]["nodeName"] = "n2".into()),
        pod("unready", &["10.244.1.4"], unready),
    ];
    for (distribution, expected) in [
        (Value::Null, [Value::Null, Value::Null, Value::Null]),
        ("Unheard".into(), [Value::Null, Value::Null, Value::Null]),
        ("PreferClose".into(), [json!({"forZones": [{"name": "a"}]}), Value::Null, Value::Null]),
        ("PreferSameZone".into(), [json!({"forZones": [{"name": "a"}]}), Value::Null, Value::Null]),
        (
            "PreferSameNode".into(),
            [
                json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]}),
                json!({"forNodes": [{"name": "n2"}]}),
                Value::Null,
            ],
        ),
    ] {
        let service =
            service(json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80}], "trafficDistribution": distribution}));
        let actions = planned(&service, &pods, &[]);
        let hints =
            endpoints(&actions.create[0]).iter().map(|endpoint| serde_json::to_value(&endpoint.hints).expect("JSON"));
        assert_eq!(hints.collect::<Vec<_>>(), expected, "{distribution}");
    }
}

#[test]
fn a_hundred_and_one_pods_take_two_slices_and_one_that_goes_rewrites_one() {
    let pods: Vec<Arc<Pod>> =
        (0..101).map(|number| ready(&format!("web-{number}"), &format!("10.244.1.{number}"))).collect();
    let slices = written(&[], &planned(&web(), &pods, &[]));
    assert_eq!(slices.iter().map(|slice| endpoints(slice).len()).collect::<Vec<_>>(), [100, 1]);
    assert_eq!(planned(&web(), &pods, &slices), Actions::default());
    let actions = planned(&web(), &pods[1..], &slices);
    assert_eq!((actions.create.len(), actions.replace.len(), actions.delete.len()), (0, 1, 0));
}

#[test]
fn changed_ports_rewrite_the_slice_that_is_there() {
    let pods = [ready("web-1", "10.244.1.2")];
    let slices = written(&[], &planned(&web(), &pods, &[]));
    let mut service = web();
    service.spec.as_mut().and_then(|spec| spec.ports.as_mut()).expect("ports")[0].target_port =
        Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(9090));
    let actions = planned(&service, &pods, &slices);
    assert_eq!((actions.create.len(), actions.replace.len(), actions.delete.len()), (0, 1, 0));
    assert_eq!(actions.replace[0].metadata.name, slices[0].metadata.name);
}

#[test]
fn slices_follow_the_labels_of_their_service() {
    let slices = written(&[], &planned(&web(), &[ready("web-1", "10.244.1.2")], &[]));
    let mut service = web();
    service.metadata.labels = Some([("team".to_owned(), "b".to_owned())].into());
    let actions = planned(&service, &[ready("web-1", "10.244.1.2")], &slices);
    assert_eq!(actions.replace[0].metadata.labels.as_ref().map(|labels| labels["team"].as_str()), Some("b"));
}

#[test]
fn slices_of_a_former_service_of_the_same_name_are_replaced() {
    let slices = written(&[], &planned(&web(), &[ready("web-1", "10.244.1.2")], &[]));
    let mut service = web();
    service.metadata.uid = Some("s2".to_owned());
    let actions = planned(&service, &[ready("web-1", "10.244.1.2")], &slices);
    assert_eq!((actions.create.len(), actions.replace.len(), actions.delete.len()), (1, 0, 1));
}

#[test]
fn what_a_stranger_wrote_into_a_slice_is_set_right() {
    let pods = [ready("web-1", "10.244.1.2")];
    let mut slices = written(&[], &planned(&web(), &pods, &[]));
    let foreign = Endpoint { addresses: vec!["192.0.2.1".to_owned()], ..Endpoint::default() };
    slices[0].endpoints.get_or_insert_default().push(foreign);
    let actions = planned(&web(), &pods, &slices);
    assert_eq!(endpoints(&actions.replace[0]).len(), 1);
}

#[test]
fn the_trigger_time_is_the_earliest_change_since_the_last_look() {
    let name = signpost_core::object::ObjectName::new("default", "web");
    let mut triggers = Triggers::default();
    let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).expect("a time");
    let changed = |pod_name: &str, second: i64| {
        pod(pod_name, &["10.244.1.2"], |pod| {
            pod["status"]["conditions"][0]["lastTransitionTime"] = at(second).to_string().into();
        })
    };
    assert_eq!(triggers.trigger(&name, &web(), &[changed("a", 5), changed("b", 3)]), Some(at(3)));
    assert_eq!(triggers.trigger(&name, &web(), &[changed("a", 5), changed("b", 3)]), None);
    assert_eq!(triggers.trigger(&name, &web(), &[changed("a", 9), changed("b", 7)]), Some(at(7)));

    let actions = plan(&web(), &[changed("a", 9)], (&node, None), &[], Some(at(7)));
    let annotations = actions.create[0].metadata.annotations.clone().unwrap_or_default();
    assert_eq!(annotations.get(TRIGGER_TIME), Some(&"2026-01-01T00:00:07Z".to_owned()));
}
