//! Rows as kubectl prints them.

use serde_json::{Value, json};

use super::*;
use crate::registry::{self, KINDS};

const NOW: &str = "2026-01-01T00:10:00Z";

fn row(kind: &'static str, value: Value) -> Vec<String> {
    let now: Timestamp = NOW.parse().unwrap();
    let table = table(registry::known(kind), [&value].into_iter(), json!({}), true, RowObject::None, now);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), table["columnDefinitions"].as_array().unwrap().len());
    cells.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)).collect()
}

#[test]
fn every_kind_has_as_many_cells_as_columns() {
    for kind in KINDS {
        assert_eq!(cells(kind, &json!({}), Timestamp::UNIX_EPOCH).len(), columns(kind).len(), "{}", kind.kind);
    }
}

#[test]
fn ages_have_at_most_two_units() {
    for (seconds, text) in [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (8 * 3600, "8h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (9 * 86_400, "9d"),
        (800 * 86_400, "2y70d"),
    ] {
        assert_eq!(words::duration(seconds), text);
    }
}

#[test]
fn services_show_type_addresses_and_ports() {
    let service = json!({
        "metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.7", "selector": {"a": "b", "c": "d"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},
    });
    assert_eq!(
        row("Service", service),
        ["web", "NodePort", "10.96.0.7", "<none>", "80:30080/TCP,53/UDP", "10m", "a=b,c=d"]
    );
    let pending = json!({"metadata": {"name": "lb"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.8"}});
    assert_eq!(row("Service", pending)[3..5], ["<pending>", "<none>"]);
    let name = json!({"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "example.com"}});
    assert_eq!(row("Service", name)[1..4], ["ExternalName", "<none>", "example.com"]);
}

#[test]
fn slices_show_at_most_three_endpoints() {
    let endpoints: Vec<Value> = (1..=5).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"port": 80}, {}]});
    assert_eq!(row("EndpointSlice", slice)[1..4], ["IPv4", "80,*", "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more..."]);
    assert_eq!(row("EndpointSlice", json!({}))[2..4], ["<unset>", "<unset>"]);
}

fn pod_status(pod: Value) -> (String, String, String) {
    let row = row("Pod", pod);
    (row[1].clone(), row[2].clone(), row[3].clone())
}

#[test]
fn a_pods_status_is_that_of_its_containers() {
    let running = json!({"ready": true, "restartCount": 0, "state": {"running": {}}});
    let waiting = json!({"ready": false, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"finishedAt": "2026-01-01T00:09:30Z"}}});
    let killed = json!({"ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137, "signal": 9}}});
    let of = |statuses: &[&Value], deleted: bool| {
        let containers = vec![json!({"name": "c"}); statuses.len()];
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers},
            "status": {"phase": "Running", "containerStatuses": statuses}});
        if deleted {
            pod["metadata"]["deletionTimestamp"] = NOW.into();
        }
        pod_status(pod)
    };
    let words = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(of(&[&running], false), words("1/1", "Running", "0"));
    assert_eq!(of(&[&running, &waiting], false), words("1/2", "CrashLoopBackOff", "3 (30s ago)"));
    assert_eq!(of(&[&killed], false), words("0/1", "Signal:9", "0"));
    assert_eq!(of(&[&running], true), words("1/1", "Terminating", "0"));
    let pending = json!({"spec": {"containers": [{}], "initContainers": [{}, {}]}, "status": {"phase": "Pending",
        "initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}, {"state": {"running": {}}}]}});
    assert_eq!(pod_status(pending), words("0/1", "Init:1/2", "0"));
}

#[test]
fn events_tell_how_often_and_since_when() {
    let event = json!({"metadata": {"name": "e"}, "type": "Warning", "reason": "R", "message": "m\n", "count": 3,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:09:55Z",
        "involvedObject": {"kind": "Service", "name": "web"}, "source": {"component": "c", "host": "h"}});
    assert_eq!(
        row("Event", event),
        ["5s (x3 over 10m)", "Warning", "R", "service/web", "", "c, h", "m", "10m", "3", "e"]
    );
}

#[test]
fn rows_bring_the_metadata_that_kubectl_needs() {
    let value = json!({"metadata": {"name": "n", "namespace": "default"}, "data": {"secret": "x"}});
    let kind = registry::known("ConfigMap");
    let table = table(kind, [&value].into_iter(), json!({}), false, RowObject::Metadata, Timestamp::UNIX_EPOCH);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["rows"][0]["object"]["metadata"]["namespace"], "default");
    assert!(!table.to_string().contains("secret"));
    assert_eq!(table["columnDefinitions"], json!([]));
}

#[test]
fn custom_resources_show_the_columns_of_their_definition() {
    let pool = json!({"metadata": {"name": "default"}, "spec": {"addresses": ["172.18.15.200-172.18.15.210"], "autoAssign": true}});
    assert_eq!(row("IPAddressPool", pool), ["default", "true", "null", "[\"172.18.15.200-172.18.15.210\"]"]);
    let status = json!({"metadata": {"name": "l2-x"}, "status": {"node": "n1", "serviceName": "web", "serviceNamespace": "default"}});
    assert_eq!(row("ServiceL2Status", status), ["l2-x", "n1", "web", "default"]);
}
