//! Who else serves Services on this node. Two Service proxies undo each other's rules, so the daemon does not start beside
//! another, nor on what another left, unless it is told to take over.
//!
//! | looked at | tells | works |
//! |---|---|---|
//! | `/proc/*/comm` | a process kube-proxy in this network namespace | where the daemon sees the node's processes (`hostPID`, or no container) |
//! | 127.0.0.1:10249 `/proxyMode` | a kube-proxy that runs, also one inside of another program (k3s) | across process namespaces: the port is the network namespace's |
//! | 127.0.0.1:10256 `/healthz` | the same, if its metrics are elsewhere; Cilium's replacement answers there too | likewise |
//! | pins in the bpf file system | Cilium's socket load balancing, attached to the node's control group | where the bpf file system is seen |
//! | rules by kube-proxy's names | what one left, or has | always |
//!
//! KUBE-PROXY-CANARY tells nothing about who lives: kube-proxy makes it anew only if somebody removes it.

use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than this no listener of this machine takes.
const PATIENCE: Duration = Duration::from_millis(500);
const METRICS_PORT: u16 = 10_249;
const HEALTH_PORT: u16 = 10_256;
/// Where Cilium keeps the links of its programs at the control group, under the bpf file system (Cilium 1.14 and newer).
const CILIUM_LINKS: &str = "cilium/socketlb/links/cgroup";
const NAME: &str = "kube-proxy";
/// The most of an answer that is looked at.
const ANSWER_MOST_BYTES: u64 = 4096;

/// Another Service proxy that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rival {
    /// A process of that name in this network namespace.
    Process {
        /// Its number.
        pid: u32,
    },
    /// It answers as kube-proxy does.
    Listener {
        /// Where.
        address: SocketAddr,
        /// What it says of itself.
        said: String,
    },
    /// Cilium's replacement for kube-proxy.
    Cilium {
        /// What shows it.
        pin: PathBuf,
    },
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rival::Process { pid } => write!(f, "kube-proxy runs on this node as process {pid}"),
            Rival::Listener { address, said } => write!(f, "a Service proxy answers at {address} ({said})"),
            Rival::Cilium { pin } => {
                write!(f, "Cilium serves Services in place of kube-proxy here ({} is in force)", pin.display())
            }
        }
    }
}

impl Rival {
    /// The command that ends it.
    pub fn end(&self) -> &'static str {
        match self {
            Rival::Process { .. } | Rival::Listener { .. } => {
                "`kubectl -n kube-system delete daemonset kube-proxy` (without a DaemonSet `systemctl stop kube-proxy`; k3s and rke2: \
                 `--disable-kube-proxy`), then `signpost node --cleanup` on the node"
            }
            Rival::Cilium { .. } => {
                "`cilium upgrade --reuse-values --set kubeProxyReplacement=false --set socketLB.enabled=false`, or uninstall it and \
                 run `cilium-dbg post-uninstall-cleanup --all-state` on the node"
            }
        }
    }
}

/// Where to look.
#[derive(Debug, Clone)]
pub struct Places {
    /// The file system of processes.
    pub proc: PathBuf,
    /// The bpf file system.
    pub bpf: PathBuf,
}

impl Default for Places {
    fn default() -> Places {
        Places { proc: "/proc".into(), bpf: "/sys/fs/bpf".into() }
    }
}

/// Another Service proxy of this network namespace, the surest sign of it first. The caller holds the node's instance: who
/// answers is no signpost.
pub fn running(places: &Places) -> Option<Rival> {
    process(&places.proc).or_else(listener).or_else(|| cilium(&places.bpf))
}

fn process(proc: &Path) -> Option<Rival> {
    let own = namespace(&proc.join("thread-self"))?;
    let processes = std::fs::read_dir(proc).ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |pid: &u32| {
        let folder = proc.join(pid.to_string());
        // A process that ends meanwhile is none.
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim_end() == NAME)
            && namespace(&folder) == Some(own)
    };
    pids.filter(is_it).min().map(|pid| Rival::Process { pid })
}

/// The network namespace of a process.
fn namespace(process: &Path) -> Option<(u64, u64)> {
    let namespace = std::fs::metadata(process.join("ns/net")).ok()?;
    Some((namespace.st_dev(), namespace.st_ino()))
}

fn listener() -> Option<Rival> {
    let at = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let rival = |address, said: String| Some(Rival::Listener { address, said });
    match get(at(METRICS_PORT), "/proxyMode") {
        Some(mode) if ["iptables", "ipvs", "nftables"].contains(&mode.trim()) => {
            return rival(at(METRICS_PORT), format!("mode {}", mode.trim()));
        }
        _ => {}
    }
    let health = get(at(HEALTH_PORT), "/healthz")?;
    let health: serde_json::Value = serde_json::from_str(&health).ok()?;
    (health.get("lastUpdated").is_some() && health.get("currentTime").is_some())
        .then(|| rival(at(HEALTH_PORT), "/healthz as kube-proxy writes it".to_owned()))?
}

fn cilium(bpf: &Path) -> Option<Rival> {
    let links = std::fs::read_dir(bpf.join(CILIUM_LINKS)).ok()?;
    links.flatten().map(|entry| entry.path()).min().map(|pin| Rival::Cilium { pin })
}

/// The body of an answer, whatever its status: kube-proxy that is not well is one too.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.take(ANSWER_MOST_BYTES).read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// In a network namespace of its own.
    fn apart<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("the tests run as root");
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2 is installed");
            assert!(up.success());
            test()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Killed when it is dropped.
    struct Child(std::process::Child);

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill(); // it may have ended
            let _ = self.0.wait();
        }
    }

    fn nowhere() -> Places {
        Places { bpf: "/nowhere".into(), ..Places::default() }
    }

    #[test]
    fn a_process_of_that_name_counts_in_its_own_network_namespace_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        apart(move || {
            assert_eq!(running(&nowhere()), None);
            let child = Child(Command::new(path).arg("60").spawn().unwrap());
            let pid = child.0.id();
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while running(&nowhere()).is_none() {
                assert!(std::time::Instant::now() < deadline, "process {pid} is not found");
                std::thread::yield_now();
            }
            assert_eq!(running(&nowhere()), Some(Rival::Process { pid }));
            assert_eq!(apart(|| running(&nowhere())), None, "another node's is not ours");
        });
    }

    fn answers(port: u16, body: &'static str) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut head = [0; 512];
                let read = stream.read(&mut head).unwrap_or(0);
                let answer = format!("HTTP/1.0 200 OK\r\n\r\n{body}");
                assert!(read > 0 && stream.write_all(answer.as_bytes()).is_ok());
            }
        });
    }

    #[test]
    fn whoever_answers_as_kube_proxy_does_is_found_without_a_process() {
        let found = apart(|| {
            answers(METRICS_PORT, "iptables");
            running(&nowhere())
        });
        let address = "127.0.0.1:10249".parse().unwrap();
        assert_eq!(found, Some(Rival::Listener { address, said: "mode iptables".to_owned() }));
        let found = apart(|| {
            answers(HEALTH_PORT, r#"{"lastUpdated": "2026-01-01", "currentTime": "2026-01-01"}"#);
            running(&nowhere())
        });
        assert!(matches!(found, Some(Rival::Listener { address, .. }) if address.port() == HEALTH_PORT), "{found:?}");
        let other = apart(|| {
            answers(METRICS_PORT, "hello");
            answers(HEALTH_PORT, "hello");
            running(&nowhere())
        });
        assert_eq!(other, None, "another program's listener is none");
    }

    #[test]
    fn cilium_is_known_by_its_pins() {
        let folder = tempfile::tempdir().unwrap();
        let links = folder.path().join(CILIUM_LINKS);
        std::fs::create_dir_all(&links).unwrap();
        assert_eq!(cilium(folder.path()), None);
        std::fs::write(links.join("cil_sock4_connect"), "").unwrap();
        let found = cilium(folder.path()).unwrap();
        assert!(found.to_string().contains("cil_sock4_connect") && found.end().contains("kubeProxyReplacement=false"));
    }
}
