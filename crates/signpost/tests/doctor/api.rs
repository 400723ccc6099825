//! An API that gives what `deploy/doctor-readonly.yaml` has the rights for, and refuses everything else.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{path, run, said, status};

/// Verb, group and resource.
type Right = (String, String, String);

/// What the manifest's ClusterRole allows.
fn rights() -> BTreeSet<Right> {
    let manifest = include_str!("../../../../deploy/doctor-readonly.yaml");
    let documents = manifest.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let role = documents.into_iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    let list = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                rights.extend(list(rule, "verbs").into_iter().map(|verb| (verb, group.clone(), resource.clone())));
            }
        }
    }
    rights
}

/// What the API does.
struct Manners {
    /// What it gives; it refuses the rest.
    rights: BTreeSet<Right>,
    /// The end of the paths that it never answers.
    silent_at: Option<&'static str>,
}

/// Serves until the test ends; its address.
fn serve(manners: Manners) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let manners = Arc::new(manners);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let manners = manners.clone();
            std::thread::spawn(move || answer(stream, &manners));
        }
    });
    address
}

fn answer(mut stream: TcpStream, manners: &Manners) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while reader.read_line(&mut head).is_ok_and(|count| count > 2) {}
        let Some((method, rest)) = head.split_once(' ') else { return };
        let target = rest.split(' ').next().unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default();
        if manners.silent_at.is_some_and(|end| path.ends_with(end)) {
            continue;
        }
        let (status, body) = content(method, path, &manners.rights);
        let body = body.to_string();
        let written = write!(
            stream,
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if written.is_err() {
            return;
        }
    }
}

fn content(method: &str, path: &str, rights: &BTreeSet<Right>) -> (u16, Value) {
    if path == "/version" {
        return (
            200,
            json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
        );
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, resource) = match parts.as_slice() {
        ["api", version, resource] => (String::new(), (*version).to_owned(), *resource),
        ["apis", group, version, resource] => ((*group).to_owned(), format!("{group}/{version}"), *resource),
        _ => {
            return (
                404,
                json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": path, "code": 404}),
            );
        }
    };
    let right = ("list".to_owned(), group, resource.to_owned());
    if method != "GET" || !rights.contains(&right) {
        return (
            403,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
            "message": format!("{resource} is forbidden"), "code": 403}),
        );
    }
    let items = match resource {
        "nodes" => {
            json!([{"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.11"}]}}])
        }
        "services" => json!([{"metadata": {"namespace": "default", "name": "web"}, "spec": {"clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"], "selector": {"app": "web"}, "ports": [{"port": 80}]}}]),
        _ => json!([]),
    };
    (200, json!({"kind": "List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items}))
}

fn ask(rights: BTreeSet<Right>, arguments: &[&str]) -> std::process::Output {
    ask_of(Manners { rights, silent_at: None }, arguments)
}

fn ask_of(manners: Manners, arguments: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let server = serve(manners);
    std::fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"http://{server}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        ),
    )
    .unwrap();
    run(&[&["doctor", "web", "--kubeconfig", path(&kubeconfig)], arguments].concat())
}

#[test]
fn the_rights_of_the_manifest_are_enough() {
    let output = ask(rights(), &[]);
    assert!(!said(&output).contains("is missing"), "{}", said(&output));
    // The API alone tells that nobody is found.
    assert_eq!(status(&output), 1, "{}", said(&output));
    assert!(said(&output).contains("SP301"), "{}", said(&output));
    let only_list = rights().into_iter().all(|(verb, ..)| verb == "list");
    assert!(only_list, "the doctor changes nothing and watches nothing");
}

#[test]
fn each_right_that_is_missing_is_told_by_its_name_and_nothing_is_called_healthy() {
    for missing in rights() {
        let mut left = rights();
        left.remove(&missing);
        let output = ask(left, &[]);
        let (_, group, resource) = &missing;
        let group = if group.is_empty() { "core" } else { group };
        let words = format!("the right to list {resource} of group {group} is missing");
        assert!(said(&output).contains(&words), "{missing:?}: {}", said(&output));
        // What nobody read is no evidence that there is none.
        let wanted = if matches!(&**resource, "nodes" | "pods" | "services") { 3 } else { 1 };
        assert_eq!(status(&output), wanted, "{missing:?}: {}", said(&output));
    }
    // Without the Services there is nothing to say at all.
    let nothing = ask(BTreeSet::new(), &[]);
    assert_eq!(status(&nothing), 3, "{}", said(&nothing));
}

#[test]
fn an_api_that_does_not_answer_is_waited_for_no_longer_than_was_said() {
    // At the first question, at that for the Services, and at one that leaves something to be said.
    for (silent_at, timeout, wanted, words) in [
        ("/version", "2", 3, "does not answer in 2 s"),
        ("/services", "2", 3, "the API took too long; give it more time by --timeout"),
        // The rest has to come before.
        ("/leases", "8", 1, "leases"),
    ] {
        let started = Instant::now();
        let manners = Manners { rights: rights(), silent_at: Some(silent_at) };
        let output = ask_of(manners, &["--timeout", timeout]);
        let took = started.elapsed();
        assert_eq!(status(&output), wanted, "{silent_at}: {}", said(&output));
        assert!(said(&output).contains(words), "{silent_at}: {}", said(&output));
        // The machine may be busy; without the limit it would be a minute, or for ever.
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(30), "{silent_at}: {took:?}");
    }
}
