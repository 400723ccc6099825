//! `signpost lab` as a person uses it: up, use, down; and what must hold when it goes wrong.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signpost_lab::cgroup::Cgroup;
use signpost_lab::state;

use crate::person::{Name, text, well};

const SIGNPOST: &str = env!("CARGO_BIN_EXE_signpost");

/// What a lab must not change: the machine's addresses, routes, rules, forwarding, mounts.
fn machine() -> Vec<String> {
    let run = |program: &str, arguments: &[&str]| {
        String::from_utf8(Command::new(program).args(arguments).output().unwrap().stdout).unwrap()
    };
    let links = run("ip", &["-j", "link"]);
    let names: Vec<serde_json::Value> = serde_json::from_str(&links).unwrap();
    let sysctl = |path: &str| std::fs::read_to_string(Path::new("/proc/sys").join(path)).unwrap();
    vec![
        names.iter().map(|link| format!("{} {}\n", link["ifname"], link["flags"])).collect(),
        run("ip", &["-j", "addr"]).split("\"valid_life_time\"").next().unwrap().to_owned(),
        run("ip", &["-j", "route", "show", "table", "all"]),
        run("ip", &["-j", "-6", "route", "show", "table", "all"]),
        run("ip", &["-j", "rule"]),
        run("nft", &["list", "ruleset"]),
        sysctl("net/ipv4/ip_forward"),
        sysctl("net/ipv6/conf/all/forwarding"),
        sysctl("net/ipv4/conf/all/rp_filter"),
        std::fs::read_to_string("/proc/self/mountinfo").unwrap(),
        run("ip", &["netns", "list"]),
    ]
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_lab_comes_up_serves_and_goes_without_a_trace() {
    let before = machine();
    let name = Name::new("trace");
    let said = well(name.lab(&["up", "--nodes", "2", "--families", "dual"]));
    assert!(said.contains("is up after") && said.contains("export KUBECONFIG="), "{said}");
    assert_eq!(machine(), before, "while the lab runs");

    let kubeconfig = well(name.lab(&["kubeconfig"])).trim().to_owned();
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&kubeconfig).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let status = well(name.lab(&["status"]));
    assert!(status.contains("node n2     172.18.0.12 fd00:172:18::12  daemon "), "{status}");

    let inside = well(name.lab(&["exec", "node/n2", "--", "ip", "-br", "addr", "show", "dev", "cni0"]));
    assert!(inside.contains("10.244.2.1/24"), "{inside}");
    let pinged = name.lab(&["exec", "outside", "--", "ping", "-c", "1", "-W", "2", "172.18.0.11"]);
    assert!(pinged.status.success(), "{}", text(&pinged));
    assert_eq!(name.lab(&["exec", "router", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    let refused = name.lab(&["exec", "pod/none", "--", "true"]);
    assert!(!refused.status.success() && text(&refused).contains("there is no pod/default/none"));

    well(name.lab(&["down"]));
    name.leaves_nothing();
    assert_eq!(machine(), before, "after the lab");
    let again = name.lab(&["down"]);
    assert!(again.status.code() == Some(1) && text(&again).contains("no lab named"), "{}", text(&again));
    assert!(!name.lab(&["kubeconfig"]).status.success());
}

#[test]
fn a_program_on_a_node_changes_nothing_of_the_machine() {
    let name = Name::new("view");
    well(name.lab(&["up", "--nodes", "1", "--families", "ipv4"]));
    let shell = |script: &str| name.lab(&["exec", "node/n1", "--", "sh", "-c", script]);
    let machine = nix::unistd::gethostname().unwrap();
    let probe = format!("/etc/{}", name.0);
    let refused = shell(&format!("touch {probe}"));
    assert!(text(&refused).contains("Read-only file system") && !Path::new(&probe).exists(), "{}", text(&refused));
    assert_eq!(well(shell("hostname")).trim(), "n1");
    assert_eq!(nix::unistd::gethostname().unwrap(), machine);
    // Scratch files, locks, network sysctls and rules are the node's own.
    let own = format!("touch /tmp/{0} /run/{0} && sysctl -qw net.ipv4.ip_default_ttl=61 && nft add table ip t", name.0);
    well(shell(&own));
    assert!(!Path::new("/tmp").join(&name.0).exists() && !Path::new("/run").join(&name.0).exists());
    assert_ne!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap().trim(), "61");
    assert!(well(shell("cat /proc/sys/net/ipv4/ip_default_ttl; nft list tables")).contains("61\ntable ip"));
}

#[test]
fn a_dead_daemon_is_named_in_the_status_and_started_by_restart() {
    let name = Name::new("restart");
    well(name.lab(&["up", "--nodes", "1", "--families", "ipv4"]));
    let daemon = || {
        let status = text(&name.lab(&["status"]));
        status.split("daemon ").nth(1).and_then(|rest| rest.lines().next()?.trim().parse::<i32>().ok())
    };
    let killed = daemon().unwrap();
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    let hint = format!("`signpost lab restart node/n1 --name {}` starts it", name.0);
    until("the status tells", || text(&name.lab(&["status"])).contains(&hint));
    let said = well(name.lab(&["restart", "node/n1"]));
    assert!(daemon().is_some_and(|pid| pid != killed && said.contains(&pid.to_string())), "{said}");
    assert!(text(&name.lab(&["restart", "node/n7"])).contains("there is no node/n7"));
}

#[test]
fn a_lab_that_hangs_can_be_taken_down() {
    let name = Name::new("hangs");
    well(name.lab(&["up", "--nodes", "1", "--families", "ipv4"]));
    let pid = state::record(&name.0).unwrap().pid;
    kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).unwrap();
    let status = name.lab(&["status"]);
    assert!(!status.status.success() && text(&status).contains("does not answer"), "{}", text(&status));
    well(name.lab(&["down"]));
    name.leaves_nothing();
}

#[test]
fn a_program_in_a_pod_waits_for_the_pod() {
    let name = Name::new("waits");
    well(name.lab(&["up", "--nodes", "1", "--families", "ipv4"]));
    let kubeconfig = state::record(&name.0).unwrap().kubeconfig;
    let run = |pod: &str, image: &str| {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(&kubeconfig).args(["run", pod, "--image", image]);
        well(kubectl.output().unwrap());
    };
    run("client", "signpost/echo");
    assert_eq!(well(name.lab(&["exec", "pod/client", "--", "hostname"])).trim(), "client");
    run("none", "no/such");
    let refused = name.lab(&["exec", "pod/none", "--", "true"]);
    assert!(
        text(&refused).contains("ErrImagePull") || text(&refused).contains("ImagePullBackOff"),
        "{}",
        text(&refused)
    );
    let refused = name.lab(&["exec", "pod/client", "-c", "other", "--", "true"]);
    assert!(text(&refused).contains("no container named other; it has client"), "{}", text(&refused));
}

#[test]
fn labs_of_two_names_run_side_by_side_and_one_name_once() {
    let (one, two) = (Name::new("one"), Name::new("two"));
    well(one.lab(&["up", "--nodes", "1"]));
    well(two.lab(&["up", "--nodes", "1"]));
    let again = one.lab(&["up"]);
    assert!(!again.status.success());
    assert!(text(&again).contains("runs already") && text(&again).contains("signpost lab down"), "{}", text(&again));
    well(one.lab(&["down"]));
    one.leaves_nothing();
    assert!(well(two.lab(&["status"])).contains(": up"));
}

#[test]
fn after_a_crash_nothing_runs_and_the_next_up_goes_on_with_the_objects() {
    let name = Name::new("crash");
    well(name.lab(&["up", "--nodes", "1", "--families", "ipv4"]));
    let record = state::record(&name.0).unwrap();
    let make = ["create", "configmap", "kept", "--from-literal=a=b"];
    let kubectl = |arguments: &[&str]| {
        let kubeconfig = state::record(&name.0).unwrap().kubeconfig;
        Command::new("kubectl").arg("--kubeconfig").arg(kubeconfig).args(arguments).output().unwrap()
    };
    well(kubectl(&make));
    let daemon = Cgroup::labs().unwrap().child(&name.0).child("n1").child("daemon");
    assert!(!std::fs::read_to_string(daemon.path().join("cgroup.procs")).unwrap().is_empty());
    kill(Pid::from_raw(record.pid as i32), Signal::SIGKILL).unwrap();
    until("the daemon dies with the lab", || {
        std::fs::read_to_string(daemon.path().join("cgroup.procs")).unwrap().is_empty()
    });
    until("the lab is dead", || !state::lives(&name.0));
    assert!(text(&name.lab(&["status"])).contains("dead"));
    well(name.lab(&["up", "--nodes", "1", "--families", "ipv4"]));
    well(kubectl(&["get", "configmap", "kept"]));
    let pid = state::record(&name.0).unwrap().pid;
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    until("the lab is dead", || !state::lives(&name.0));
    assert!(well(name.lab(&["down"])).contains("what it left is removed"));
    name.leaves_nothing();
}

#[test]
fn an_interrupt_at_any_moment_of_up_leaves_nothing() {
    let name = Name::new("interrupt");
    for delay_ms in [0, 5, 20, 60, 120, 200, 280] {
        let mut up = Command::new(SIGNPOST)
            .args(["lab", "up", "--name", &name.0])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms)); // the moment is what the test is about
        kill(Pid::from_raw(up.id() as i32), Signal::SIGINT).unwrap();
        up.wait().unwrap();
        if state::lives(&name.0) {
            well(name.lab(&["down"])); // it was up before the signal came
        }
        until("the supervisor is gone", || !state::lives(&name.0));
        name.leaves_nothing();
    }
}

#[test]
fn bad_input_gets_one_line_that_says_what_to_do() {
    let name = Name::new("bad");
    let cases: [(&[&str], &str); 9] = [
        (&["up", "--mode", "userspace"], "take auto, ebpf, nftables, iptables or ipvs"),
        (&["up", "--image", "a=/bin/true", "--image", "a=/bin/false"], "stands twice"),
        (&["up", "--nodes", "0"], "1 to 244 nodes"),
        (&["up", "--families", "ipx"], "take ipv4, ipv6 or dual"),
        (&["up", "--image", "nginx"], "NAME=PATH"),
        (&["up", "--image", "nginx=/no/such/program"], "cannot find /no/such/program"),
        (&["up", "--image", "nginx=/etc/passwd"], "no program that can be executed"),
        (&["exec", "elsewhere", "--", "true"], "node/NAME"),
        (&["exec", "node/n1", "--", "true"], "signpost lab up --name"),
    ];
    for (arguments, expected) in cases {
        let output = name.lab(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text(&output).contains(expected), "{arguments:?}: {}", text(&output));
        name.leaves_nothing();
    }
    let hostile = Command::new(SIGNPOST).args(["lab", "up", "--name", "../../etc"]).output().unwrap();
    assert!(!hostile.status.success() && text(&hostile).contains("is not usable"), "{}", text(&hostile));
    // Where a user without rights can read the program.
    let open =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let copy = open.path().join("signpost");
    std::fs::copy(SIGNPOST, &copy).unwrap();
    for action in ["up", "status", "down"] {
        let user = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&copy)
            .args(["lab", action, "--name", &name.0])
            .output()
            .unwrap();
        assert!(!user.status.success() && text(&user).contains("run it with sudo"), "{}", text(&user));
    }
    let without_tools = Command::new(SIGNPOST).args(["lab", "up", "--name", &name.0]).env("PATH", "/nowhere").output();
    let without_tools = without_tools.unwrap();
    assert!(text(&without_tools).contains("apt-get install iproute2"), "{}", text(&without_tools));
    name.leaves_nothing();
}

#[test]
fn a_full_or_foreign_directory_is_refused_and_left_alone() {
    let name = Name::new("dir");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    std::fs::write(dir.path().join("mine"), "x").unwrap();
    let output = name.lab(&["up", "--dir", &path]);
    assert!(!output.status.success() && text(&output).contains("take an empty directory"), "{}", text(&output));
    assert!(dir.path().join("mine").exists());
    name.leaves_nothing();

    // A file system without room, in a mount namespace of the test's own.
    let script = format!(
        "mount -t tmpfs -o size=4k none {path} && {SIGNPOST} lab up --name {} --dir {path} --nodes 1; echo status $?",
        name.0
    );
    let full = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    assert!(text(&full).contains("status 1") && text(&full).contains("No space left"), "{}", text(&full));
    assert_eq!(text(&full).matches("signpost:").count(), 1, "{}", text(&full));
    name.leaves_nothing();
}

#[test]
fn a_pod_sees_nothing_of_any_lab_and_passes_input_and_status_through() {
    let (name, other) = (Name::new("see"), Name::new("other"));
    // Below a directory of the machine that pods see.
    let dir = tempfile::tempdir_in("/opt").unwrap();
    let path = dir.path().join("lab");
    well(name.lab(&["up", "--nodes", "1", "--dir", &path.display().to_string()]));
    let kubeconfig = well(name.lab(&["kubeconfig"])).trim().to_owned();
    let text_of_it = std::fs::read_to_string(&kubeconfig).unwrap();
    let token = text_of_it.split("token: ").nth(1).unwrap().lines().next().unwrap().trim_matches('"');
    let kubectl = |arguments: &[&str]| {
        well(Command::new("kubectl").args(["--kubeconfig", &kubeconfig]).args(arguments).output().unwrap())
    };
    kubectl(&["run", "web", "--image=signpost/echo"]);
    kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=20s"]);
    well(other.lab(&["up", "--nodes", "1", "--dir", &dir.path().join("other").display().to_string()]));
    let in_pod = |script: &str| name.lab(&["exec", "pod/web", "--", "sh", "-c", script]);
    assert_eq!(text(&in_pod("ls /run/signpost")), "bin\nhostname\nhosts\nresolv.conf\n");
    assert_eq!(text(&in_pod(&format!("ls -A {}", path.display()))), "");
    let secret = format!("grep -rsF -e {token} {} /run /root /home", dir.path().display());
    assert_eq!(text(&in_pod(&secret)), "");
    let unauthorized = text(&in_pod("curl -sk -m 5 https://$KUBERNETES_SERVICE_HOST/api/v1/secrets"));
    assert!(unauthorized.contains("401"), "{unauthorized}");
    assert_eq!(in_pod("exit 9").status.code(), Some(9));
    let mut cat = Command::new(SIGNPOST)
        .args(["lab", "exec", "--name", &name.0, "pod/web", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut cat.stdin.take().unwrap(), b"through").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through");
    well(name.lab(&["down"]));
    well(other.lab(&["down"]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays in the directory");
}

#[test]
fn the_echo_server_says_where_it_listens_and_ends_well_when_told_to() {
    use std::io::BufRead;
    let mut echo = Command::new(SIGNPOST).args(["echo", "tcp/127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(echo.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listening on tcp/127.0.0.1:0\n");
    kill(Pid::from_raw(echo.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(echo.wait().unwrap().code(), Some(0));
}
