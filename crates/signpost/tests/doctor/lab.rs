//! In a lab: packets that are sent only if they are asked for, and the same verdict by them, by the rules, and by the node itself.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{path, run, said, signpost, status};

const PATIENCE: Duration = Duration::from_secs(120);

/// A lab that ends with the test.
struct Lab {
    name: String,
    folder: tempfile::TempDir,
}

impl Lab {
    fn up(mode: &str) -> Lab {
        let lab = Lab { name: format!("doctor-{mode}-{}", std::process::id()), folder: tempfile::tempdir().unwrap() };
        let folder = lab.folder.path().join("state");
        let up = run(&["lab", "up", "--name", &lab.name, "--mode", mode, "--families", "ipv4", "--dir", path(&folder)]);
        assert!(up.status.success(), "{}", said(&up));
        lab.apply(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, \
             {name: dns, protocol: UDP, port: 53, targetPort: 5353}]}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {name: web-1, labels: {app: web}}\nspec: {nodeName: n1, containers: [{name: c, \
             image: signpost/echo, args: [--listen, tcp/8080, --listen, udp/5353]}]}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {name: client}\nspec: {nodeName: n2, containers: [{name: c, image: signpost/echo}]}\n",
        );
        lab.until("the Service is healthy", || status(&lab.doctor(&["web"])) == 0, || said(&lab.doctor(&["web"])));
        lab
    }

    fn apply(&self, manifest: &str) {
        let file = self.folder.path().join("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        let kubeconfig = run(&["lab", "kubeconfig", "--name", &self.name]);
        let kubeconfig = String::from_utf8_lossy(&kubeconfig.stdout).trim().to_owned();
        let mut command = std::process::Command::new("kubectl");
        command.args(["--kubeconfig", &kubeconfig, "apply", "-f", path(&file)]);
        let output = command.output().unwrap_or_else(|error| panic!("kubectl: {error}; tools/setup.sh brings it"));
        assert!(output.status.success(), "{}", said(&output));
    }

    fn doctor(&self, arguments: &[&str]) -> std::process::Output {
        run(&[&["doctor", "--lab", &self.name], arguments].concat())
    }

    fn on(&self, place: &str, program: &[&str]) -> String {
        let output = run(&[&["lab", "exec", "--name", &self.name, place, "--"], program].concat());
        assert!(output.status.success(), "{place} {program:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool, came: impl Fn() -> String) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "{what}: {}", came());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        run(&["lab", "down", "--name", &self.name]);
    }
}

/// Packets that passed a table of a node's own.
const COUNT: &str = "add table inet count; add chain inet count in { type filter hook prerouting priority -400; }; \
    add rule inet count in ip daddr 10.96.0.0/12 counter";

#[test]
fn a_probe_is_sent_only_when_it_is_asked_for_and_is_compared_with_the_walk() {
    let lab = Lab::up("nftables");
    lab.on("node/n2", &["nft", COUNT]);
    let packets = || {
        let text = lab.on("node/n2", &["nft", "list", "table", "inet", "count"]);
        let count = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        count.unwrap_or_else(|| panic!("{text}"))
    };
    let before = packets();
    assert_eq!(status(&lab.doctor(&["web", "--from", "client"])), 0);
    assert_eq!(packets(), before, "without --probe nothing is sent");

    let output = lab.doctor(&["web", "--from", "client", "--probe"]);
    assert_eq!(status(&output), 0, "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("10 connections to default/web from client; nothing else is made"), "{told}");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    for port in ["web:80", "udp://web:53"] {
        let line = lines.lines().find(|line| line.contains(&format!("probe client to {port} at "))).unwrap_or_default();
        assert!(line.starts_with('√') && line.contains("5 of 5 answered; as computed"), "{lines}");
    }
    assert!(packets() >= before + 6, "a connection's later packets, and five of each at the least");

    // A fault that no rule tells: the walk says that it answers, and the packets say otherwise.
    let swallow = "add table netdev eat; add chain netdev eat in { type filter hook ingress device \"eth0\" priority 0; policy drop; }";
    lab.on("node/n1", &["nft", swallow]);
    let output = lab.doctor(&["web", "--from", "client", "--to", "80", "--probe"]);
    assert_eq!(status(&output), 1, "{}", said(&output));
    let line = said(&output);
    assert!(line.contains("× probe client to web:80") && line.contains("0 of 5 answered"), "{line}");
    assert!(line.contains("computed otherwise"), "{line}");
    lab.on("node/n1", &["nft", "delete", "table", "netdev", "eat"]);

    measured_by_tcp_and_udp(&lab);
    watched(&lab);
    rules_are_shown_where_the_program_is_on_no_path(&lab);
    told_by_the_node(&lab);
}

fn measured_by_tcp_and_udp(lab: &Lab) {
    for (to, extra) in [("web:80", None), ("udp://web:53", None), ("web:53", Some("udp"))] {
        let protocol = extra.map_or(vec![], |protocol| vec!["--proto", protocol]);
        let line = [&["trace", "client", to, "--lab", &lab.name, "--measure", "-o", "json"][..], &protocol].concat();
        let output = run(&line);
        assert_eq!(status(&output), 0, "{to}: {}", said(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rules = found["measured"]["rules"].as_array().unwrap();
        assert!(rules.iter().any(|rule| rule["text"].as_str().unwrap().contains("dnat")), "{rules:?}");
        assert!(found["measured"]["reply"].as_array().unwrap().len() > 2, "{found}");
        for time in ["watchedUs", "unwatchedUs"] {
            assert!(found["measured"]["cost"][time].as_f64().is_some_and(|us| us > 0.0), "{found}");
        }
    }
    // Nothing of it is left.
    assert!(!lab.on("node/n2", &["nft", "list", "tables"]).contains("signpost-trace"));
}

fn watched(lab: &Lab) {
    let mut command = signpost(&["doctor", "web", "--from", "client", "--watch", "--lab", &lab.name]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.find(|line| line.contains("default/web")).unwrap();
    lab.on("node/n1", &["sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"]);
    let changed = lines.find(|line| line.contains("default/web"));
    lab.on("node/n1", &["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.contains("healthy"), "{first}");
    assert!(changed.as_ref().is_some_and(|line| line.contains("SP601")), "{changed:?}");
}

fn rules_are_shown_where_the_program_is_on_no_path(lab: &Lab) {
    let shown = lab.on("node/n1", &["signpost", "rules", "web"]);
    assert!(shown.contains("10.244.1."), "{shown}");
}

/// The daemon's own look: a switch that is off is told by its metric.
fn told_by_the_node(lab: &Lab) {
    let metrics = || lab.on("node/n1", &["curl", "-s", "http://127.0.0.1:10249/metrics"]);
    let says = |line: &str| metrics().lines().any(|told| told == line);
    assert!(metrics().contains("# TYPE signpost_doctor_findings gauge"), "{}", metrics());
    lab.on("node/n1", &["sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"]);
    lab.until("the node tells", || says("signpost_doctor_findings{code=\"SP601\"} 1"), metrics);
    lab.on("node/n1", &["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
    lab.until("the node tells that it is gone", || says("signpost_doctor_findings{code=\"SP601\"} 0"), metrics);
}

#[test]
fn in_the_mode_ebpf_probes_and_measurements_come_from_the_nodes_own_sockets() {
    let lab = Lab::up("ebpf");
    let output = run(&["trace", "client", "web:80", "--lab", &lab.name, "--measure", "-o", "json"]);
    assert_eq!(status(&output), 0, "{}", said(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Nobody sees the cluster address on any wire.
    let cluster = found["computed"]["to"].as_str().unwrap().split(':').next().unwrap().to_owned();
    assert!(!found["measured"]["request"].to_string().contains(&cluster), "{found}");
    assert_eq!(status(&lab.doctor(&["web", "--probe"])), 0, "{}", said(&lab.doctor(&["web", "--probe"])));
}
