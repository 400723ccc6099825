//! A node on which another Service proxy runs, or ran.

use std::io::Write;
use std::process::{Child, Stdio};

use super::*;

/// Some of what kube-proxy leaves in iptables, with what it never made beside it.
const KUBE_PROXYS: &str = "*mangle
:KUBE-PROXY-CANARY - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
:SOMEONES - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A PREROUTING -d 192.0.2.7/32 -j SOMEONES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.77/32 -p tcp -m tcp --dport 53 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A SOMEONES -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.0.2.8:80
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-IPVS-FILTER
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -s 127.0.0.0/8 -m comment --comment \"kubelet's\" -j ACCEPT
COMMIT
";

/// A table as kube-proxy's mode nftables makes it, and one of somebody else.
const TABLES: &str = "table ip6 kube-proxy { chain service-endpoints-check { }; chain services { }; }; \
    table ip someone { chain kube { type nat hook prerouting priority -100; tcp dport 81 redirect to :82; }; }";

fn restore(variant: &str, text: &str) {
    let mut child = Command::new(format!("iptables-{variant}-restore"))
        .arg("--noflush")
        .stdin(Stdio::piped())
        .spawn()
        .expect("iptables is installed");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Chains and rules, without counters and comments about time.
fn saved(variant: &str) -> Vec<String> {
    let output = Command::new(format!("iptables-{variant}-save")).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.starts_with(['*', ':', '-']));
    lines.map(|line| line.split(" [").next().unwrap().to_owned()).collect()
}

fn leave(of_kube_proxy: bool) {
    let proxys = |line: &str| {
        let of_kubelet = line.contains("KUBE-FIREWALL") || line.contains("KUBE-KUBELET-CANARY");
        line.contains("KUBE-") && !of_kubelet
    };
    let lines = KUBE_PROXYS.lines().filter(|line| of_kube_proxy || !proxys(line));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    restore("nft", &text);
    restore("legacy", &text);
    let tables = if of_kube_proxy { TABLES } else { TABLES.split_once("; table ip ").unwrap().1 };
    let tables = if of_kube_proxy { tables.to_owned() } else { format!("table ip {tables}") };
    nft(&tables);
}

/// What somebody who has nothing to do with Services has in the kernel.
fn everything() -> Vec<String> {
    let table = nft("list table ip someone").lines().map(str::to_owned).collect::<Vec<_>>();
    [saved("nft"), saved("legacy"), table].concat()
}

/// Of a child process, killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn take_over() -> Flags {
    Flags { take_over: true, ..Flags::default() }
}

async fn refusal(cluster: &Cluster) -> String {
    let task = Daemon::start(cluster.kubeconfig()).task;
    tokio::time::timeout(DEADLINE, task).await.expect("it ends").unwrap().unwrap_err().to_string()
}

#[test]
fn what_kube_proxy_left_is_told_and_taken_over_only_on_demand() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        let address = cluster.create_service("web", 8080).await;
        leave(true);
        let before = (everything(), nft("list tables"));
        let refusal = refusal(&cluster).await;
        for part in ["signpost node --cleanup", "--take-over", "ipv4 chains KUBE-SERVICES", "ipv6 table kube-proxy"] {
            assert!(refusal.contains(part), "{refusal}");
        }
        assert_eq!((everything(), nft("list tables")), before, "nothing is touched");

        let daemon = Daemon::start_with(cluster.kubeconfig(), take_over());
        daemon.settle(&cluster).await;
        assert_eq!(reaches(address, 80).await, "one");
        until("kube-proxy's chains are gone", || async {
            [saved("nft"), saved("legacy")].concat().iter().all(|line| {
                !line.contains("KUBE-") || line.contains("KUBE-FIREWALL") || line.contains("KUBE-KUBELET-CANARY")
            })
        })
        .await;
        assert!(everything().iter().any(|line| line.contains("SOMEONES") && line.contains("DNAT")));
        daemon.stop().await;
        signpost_node::cleanup(&crate::nowhere()).unwrap();
    });
}

#[test]
fn cleanup_removes_what_proxies_left_and_nothing_of_others() {
    let alone = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = alone.clone();
    on_a_node(move || async move {
        leave(false);
        *kept.lock().unwrap() = everything();
    });
    on_a_node(move || async move {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        cluster.create_service("web", 8080).await;
        let daemon = Daemon::start(cluster.kubeconfig());
        daemon.settle(&cluster).await;
        daemon.stop().await;
        leave(true);
        // kube-proxy's is of type dummy, which not every kernel has.
        let made = Command::new("ip").args("link add kube-ipvs0 type bridge".split(' ')).status().unwrap();
        assert!(made.success());
        signpost_node::cleanup(&crate::nowhere()).unwrap();
        assert_eq!(everything(), *alone.lock().unwrap());
        assert!(!nft("list tables").contains("kube-proxy"));
        assert!(nix::net::if_::if_nametoindex("kube-ipvs0").is_err());
        signpost_node::cleanup(&crate::nowhere()).unwrap();
        assert_eq!(everything(), *alone.lock().unwrap(), "a second time finds nothing");
    });
}

#[test]
fn beside_a_running_kube_proxy_it_does_not_start_unless_told() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        let path = cluster.folder.path().join("kube-proxy");
        std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        let process = Running(Command::new(&path).arg("120").spawn().unwrap());
        let pid = process.0.id();
        until("the process has its name", || async {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "kube-proxy\n")
        })
        .await;
        let refusal = refusal(&cluster).await;
        assert!(
            refusal.contains(&format!("process {pid}")) && refusal.contains("delete daemonset kube-proxy"),
            "{refusal}"
        );
        let daemon = Daemon::start_with(cluster.kubeconfig(), take_over());
        daemon.settle(&cluster).await;
        daemon.stop().await;
    });
}

#[test]
fn a_former_modes_rules_go_and_its_connections_stay() {
    on_a_node(|| async {
        let cluster = Cluster::new().await;
        cluster.create_node().await;
        backend(8080, "one").await;
        let address = cluster.create_service("web", 8080).await;
        let in_mode = |mode: &str| {
            let flags = Flags { proxy_mode: Some(mode.parse().unwrap()), ..Flags::default() };
            Daemon::start_with(cluster.kubeconfig(), flags)
        };
        let mut kept = Vec::new();
        for mode in ["nftables", "iptables", "nftables"] {
            let daemon = in_mode(mode);
            daemon.settle(&cluster).await;
            assert_eq!(get(10249, "/proxyMode").await.1, mode);
            until("only this mode's rules are there", || async {
                let table = nft("list tables").contains("table ip kube-proxy");
                let chains = saved("nft").iter().any(|line| line.contains("KUBE-SERVICES"));
                (table, chains) == (mode == "nftables", mode == "iptables")
            })
            .await;
            kept.push(TcpStream::connect((address, 80)).await.unwrap());
            for stream in &mut kept {
                assert_eq!(ask(stream).await, "one");
            }
            daemon.stop().await;
        }
        signpost_node::cleanup(&crate::nowhere()).unwrap();
    });
}
