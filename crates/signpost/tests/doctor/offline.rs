//! On snapshots that were saved: nothing of a cluster is needed.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{path, run, said, signpost, status};

/// A cluster of two nodes that were read, one Service, its pod and a client.
fn snapshot() -> Value {
    let node = |name: &str, n: u8| {
        json!({"metadata": {"name": name}, "spec": {"podCIDRs": [format!("10.244.{n}.0/24")]},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("172.18.0.1{n}")}],
                "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let pod = |name: &str, n: u8, labels: Value| {
        json!({"metadata": {"namespace": "default", "name": name, "labels": labels}, "spec": {"nodeName": format!("n{n}")},
            "status": {"phase": "Running", "podIP": format!("10.244.{n}.2"), "podIPs": [{"ip": format!("10.244.{n}.2")}],
                "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    json!({
        "apiVersion": "signpost.io/v1", "kind": "Snapshot", "takenAt": "2026-11-30T12:00:00Z", "origin": "lab test", "lab": true,
        "objects": {
            "nodes": [node("n1", 1), node("n2", 2)],
            "pods": [pod("web-1", 1, json!({"app": "web"})), pod("client", 2, json!({}))],
            "services": [{"metadata": {"namespace": "default", "name": "web"},
                "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
                    "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}],
            "slices": [{"addressType": "IPv4",
                "metadata": {"namespace": "default", "name": "web-a", "labels": {"kubernetes.io/service-name": "web"}},
                "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": ["10.244.1.2"], "conditions": {"ready": true}, "nodeName": "n1"}]}],
            "serviceCidrs": [{"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}],
        },
        "pods": {
            "default/web-1": {"listeners": [{"protocol": "TCP", "address": "0.0.0.0", "port": 8080}]},
            "default/client": {"listeners": []},
        },
        "nodes": {},
    })
}

/// Nodes that were read: no daemon answers, and the kernel holds what the objects ask for.
fn with_nodes(mut snapshot: Value) -> Value {
    let state = json!({"daemon": {"answers": false, "problem": "not asked"}, "kernel": {"ipv4": {"differences": []}}});
    snapshot["nodes"] = json!({"n1": state, "n2": state});
    snapshot
}

struct File(tempfile::TempDir);

impl File {
    fn of(text: &str) -> File {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cluster.json"), text).unwrap();
        File(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("cluster.json")
    }
}

fn file(snapshot: &Value) -> File {
    File::of(&snapshot.to_string())
}

fn doctor(snapshot: &Value, arguments: &[&str]) -> std::process::Output {
    let file = file(snapshot);
    let own = file.path();
    run(&[&["doctor", "--from-file", path(&own)], arguments].concat())
}

#[test]
fn the_exit_status_tells_the_verdict() {
    let known = with_nodes(snapshot());
    // The daemons are down: degraded, and by another threshold not worth a failure.
    assert_eq!(status(&doctor(&known, &["web"])), 4, "{}", said(&doctor(&known, &["web"])));
    assert_eq!(status(&doctor(&known, &["web", "--failure-threshold", "broken"])), 0);
    // Without the step that finds that, all is well.
    assert_eq!(status(&doctor(&known, &["web", "--skip", "rules"])), 0);
    assert_eq!(status(&doctor(&known, &["web", "--only", "endpoints,selector"])), 0);
    // Nodes that were not read.
    let unread = doctor(&snapshot(), &["web"]);
    assert_eq!(status(&unread), 3, "{}", said(&unread));
    assert!(said(&unread).contains('?'), "{}", said(&unread));
    let mut broken = known;
    broken["objects"]["services"][0]["spec"]["selector"] = json!({"app": "wbe"});
    broken["objects"]["slices"] = json!([]);
    let broken = doctor(&broken, &["web"]);
    assert_eq!(status(&broken), 1);
    assert!(said(&broken).starts_with("× default/web: SP301"), "{}", said(&broken));
    assert!(said(&broken).contains("fix:") && said(&broken).contains("next:"));
}

#[test]
fn a_command_line_that_is_wrong_has_a_status_of_its_own() {
    for line in [
        &["web", "--to", "0"][..],
        &["web", "--only", "nothing"],
        &["web", "-o", "xml"],
        &["--to", "80"],
        &["web", "--timeout", "0"],
        &["web", "--failure-threshold", "never"],
        &["web", "--from", ""],
        &["web", "--what-if", "service/web=[1"],
        &["web", "--redact"],
        &["web", "--probe"],
    ] {
        let output = doctor(&with_nodes(snapshot()), line);
        assert_eq!(status(&output), 2, "{line:?}: {}", said(&output));
    }
    assert_eq!(status(&run(&["explain", "SP999"])), 2);
    assert!(said(&run(&["explain", "sp301"])).starts_with("# SP301: "));
    assert!(said(&run(&["explain"])).lines().count() > 70);
}

#[test]
fn an_unknown_service_is_answered_with_the_nearest_names() {
    let output = doctor(&with_nodes(snapshot()), &["wbe"]);
    assert_eq!(status(&output), 1);
    assert!(said(&output).contains("SP101") && said(&output).contains("near to it: default/web"), "{}", said(&output));
    let elsewhere = doctor(&with_nodes(snapshot()), &["web", "-n", "shop"]);
    assert!(said(&elsewhere).contains("default/web is one"), "{}", said(&elsewhere));
}

#[test]
fn json_and_yaml_have_a_version_and_say_the_same() {
    let known = with_nodes(snapshot());
    let json: Value = serde_json::from_slice(&doctor(&known, &["-A", "-o", "json"]).stdout).unwrap();
    assert_eq!((&json["apiVersion"], &json["kind"]), (&json!("signpost.io/v1"), &json!("Diagnosis")));
    assert!(json["services"][0]["steps"].as_array().unwrap().len() == 8, "{json}");
    let yaml = doctor(&known, &["-A", "-o", "yaml"]).stdout;
    let yaml: Value = serde_saphyr::from_str(std::str::from_utf8(&yaml).unwrap()).unwrap();
    assert_eq!(yaml, json);
    let table = said(&doctor(&known, &["-A", "-o", "table"]));
    assert_eq!(table.lines().filter(|line| line.contains("default/web")).count(), 1, "{table}");
    assert!(said(&doctor(&known, &["web", "-o", "wide"])).contains("√ selector"));
}

#[test]
fn a_trace_has_its_forms() {
    let known = with_nodes(snapshot());
    let file = file(&known);
    let own = file.path();
    let trace = |form: &str| run(&["trace", "client", "web:80", "--from-file", path(&own), "-o", form]);
    let json: Value = serde_json::from_slice(&trace("json").stdout).unwrap();
    assert_eq!((&json["apiVersion"], &json["kind"]), (&json!("signpost.io/v1"), &json!("Trace")));
    assert_eq!(json["reached"], json!(true));
    let yaml: Value = serde_saphyr::from_str(&said(&trace("yaml"))).unwrap();
    assert_eq!(yaml, json);
    let dot = said(&trace("dot"));
    assert!(dot.starts_with("digraph") && dot.trim_end().ends_with('}'), "{dot}");
    let svg = said(&trace("svg"));
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(said(&trace("tree")).contains("Vanishes"));
    // Somebody who is not there, and a Service that is not.
    assert_eq!(status(&run(&["trace", "nobody", "web:80", "--from-file", path(&own)])), 2);
    assert_eq!(status(&run(&["trace", "client", "wbe:80", "--from-file", path(&own)])), 2);
    assert_eq!(status(&run(&["trace", "client", "web:81", "--from-file", path(&own)])), 1);
    assert_eq!(status(&run(&["trace", "client", "web:80", "--from-file", "/nowhere/x"])), 3);
}

#[test]
fn colours_are_for_a_terminal_whose_user_wants_them() {
    let file = file(&with_nodes(snapshot()));
    let own = file.path();
    let line = format!("{} doctor web --from-file {}", env!("CARGO_BIN_EXE_signpost"), own.display());
    let on_terminal = |no_color: Option<&str>| {
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        said(&command.output().unwrap())
    };
    assert!(on_terminal(None).contains("\u{1b}["), "{:?}", on_terminal(None));
    assert!(!on_terminal(Some("1")).contains("\u{1b}["));
    let piped = said(&run(&["doctor", "web", "--from-file", path(&own)]));
    assert!(!piped.contains("\u{1b}["));
    // A sign stands beside each colour.
    assert!(piped.starts_with('‼'), "{piped}");
}

#[test]
fn what_is_no_snapshot_is_refused_in_words() {
    let mut newer = snapshot();
    newer["apiVersion"] = json!("signpost.io/v9");
    for (text, words) in [
        (newer.to_string(), "newer"),
        ("{".to_owned(), "no snapshot"),
        ("{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}".to_owned(), "a Pod of v1"),
    ] {
        let file = File::of(&text);
        let own = file.path();
        for command in [&["doctor", "web"][..], &["trace", "client", "web:80"]] {
            let output = run(&[command, &["--from-file", path(&own)]].concat());
            assert_eq!(status(&output), 3, "{}", said(&output));
            assert!(said(&output).contains(words), "{}", said(&output));
        }
    }
    let missing = run(&["doctor", "web", "--from-file", "/nowhere/cluster.json"]);
    assert_eq!(status(&missing), 3);
}

#[test]
fn without_a_cluster_it_says_what_there_could_be() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"http://127.0.0.1:1\"}}]\n\
         users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n",
    )
    .unwrap();
    let output = run(&["doctor", "web", "--kubeconfig", path(&kubeconfig), "--timeout", "5"]);
    assert_eq!(status(&output), 3, "{}", said(&output));
    assert!(said(&output).contains("127.0.0.1:1"), "{}", said(&output));
    let no_lab = run(&["doctor", "web", "--lab", "no-such-lab"]);
    assert_eq!(status(&no_lab), 3);
    assert!(said(&no_lab).contains("no lab named no-such-lab runs"), "{}", said(&no_lab));
}

#[test]
fn half_of_the_nodes_down_is_told_node_by_node() {
    let mut half = with_nodes(snapshot());
    half["nodes"]["n1"] = json!({"unreached": "no route to it"});
    let output = doctor(&half, &["web"]);
    assert_eq!(status(&output), 3, "{}", said(&output));
    assert!(said(&output).contains("node n1") && said(&output).contains("no route to it"), "{}", said(&output));
    // A node that the API calls lost, with the Service's only pod.
    half["objects"]["nodes"][0]["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    assert!(said(&doctor(&half, &["web"])).contains("SP218"));
}

#[test]
fn another_proxy_in_charge_is_named_with_what_cannot_be_seen() {
    let mut other = with_nodes(snapshot());
    other["nodes"]["n2"]["proxies"] = json!([{"of": "cilium", "found": "interface cilium_host", "acts": true}]);
    let output = doctor(&other, &["web"]);
    assert!(said(&output).contains("SP407") && said(&output).contains("Cilium"), "{}", said(&output));
    other["nodes"]["n2"] =
        json!({"daemon": {"answers": true, "mode": "iptables", "live": true}, "kernel": {"ipv4": {}}});
    let output = doctor(&other, &["web"]);
    assert!(said(&output).contains("another proxy answers on node n2, in mode iptables"), "{}", said(&output));
}

#[test]
fn a_plugin_of_kubectl_is_called_so_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-signpost");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_signpost"), &plugin).unwrap();
    let file = file(&with_nodes(snapshot()));
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let kubectl = |arguments: &[&str]| {
        let mut command = std::process::Command::new("kubectl");
        command.args(arguments).env("PATH", &search).env_remove("KUBECONFIG").env("HOME", "/nowhere");
        command.output().unwrap_or_else(|error| panic!("kubectl: {error}; tools/setup.sh brings it"))
    };
    let own = file.path();
    let output = kubectl(&["signpost", "doctor", "web", "--from-file", path(&own)]);
    assert_eq!(status(&output), 4, "{}", said(&output));
    assert!(said(&output).contains("default/web: SP401"), "{}", said(&output));
    let help = said(&kubectl(&["signpost", "doctor", "--help"]));
    assert!(help.contains("Usage: kubectl signpost doctor"), "{help}");
    assert!(said(&signpost(&["doctor", "--help"]).output().unwrap()).contains("Usage: signpost doctor"));
}
