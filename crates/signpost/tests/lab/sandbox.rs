//! What a pod's programs can see and do.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use signpost_lab::cgroup::Cgroup;
use signpost_lab::netns::Netns;
use signpost_lab::sandbox::{Exit, Mount, MountSource, Sandbox, Start, View};
use signpost_lab::spawner::Spawner;

const SIGNPOST: &str = env!("CARGO_BIN_EXE_signpost");

struct Pod {
    sandbox: Option<Sandbox>,
    cgroup: Cgroup,
    _state: tempfile::TempDir,
}

impl Pod {
    async fn start(name: &str, masks: Vec<PathBuf>) -> Pod {
        Pod::with_volumes(name, masks, vec![]).await
    }

    async fn with_volumes(name: &str, masks: Vec<PathBuf>, mounts: Vec<Mount>) -> Pod {
        let state = tempfile::tempdir().unwrap();
        let cgroup = Cgroup::labs().unwrap().child(&format!("test-{name}-{}", std::process::id()));
        cgroup.create().unwrap();
        let view = View {
            root: state.path().to_owned(),
            hostname: "web-1".into(),
            hosts: "127.0.0.1 localhost\n10.244.1.2 web-1\n".into(),
            resolv_conf: "nameserver 10.96.0.10\n".into(),
            masks,
            programs: vec![(SIGNPOST.into(), "signpost".into()), ("/usr/bin/sleep".into(), "main/sleep".into())],
            mounts,
        };
        let spawner = Spawner::start().unwrap();
        let netns = Netns::new(false).unwrap();
        let sandbox = Sandbox::start(&spawner, Path::new(SIGNPOST), &netns, &cgroup, view).await.unwrap();
        Pod { sandbox: Some(sandbox), cgroup, _state: state }
    }

    async fn run(&self, script: &str) -> (Exit, String) {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let null: OwnedFd = File::open("/dev/null").unwrap().into();
        let start = shell(script);
        let error = write.try_clone().unwrap();
        let program = self.sandbox.as_ref().unwrap().start_program(start, [null, write, error]).await.unwrap();
        let output = tokio::task::spawn_blocking(move || {
            let mut text = Vec::new();
            File::from(read).read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let exit = tokio::time::timeout(Duration::from_secs(20), program.exit()).await.unwrap();
        (exit, output.await.unwrap())
    }

    async fn says(&self, script: &str) -> String {
        let (exit, output) = self.run(script).await;
        assert_eq!(exit, Exit::Status(0), "{script}: {output}");
        output.trim_end().to_owned()
    }

    async fn refuses(&self, script: &str) {
        let (exit, output) = self.run(script).await;
        assert_ne!(exit, Exit::Status(0), "{script} succeeded: {output}");
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.sandbox = None;
        self.cgroup.kill().unwrap();
        self.cgroup.remove().unwrap();
    }
}

fn shell(script: &str) -> Start {
    Start {
        id: 0,
        argv: vec!["sh".into(), "-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into())],
        directory: None,
        terminal: None,
        user: None,
        group: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_its_own_names_processes_and_network() {
    let pod = Pod::start("names", vec![]).await;
    assert_eq!(pod.says("hostname").await, "web-1");
    assert_eq!(pod.says("cat /etc/resolv.conf").await, "nameserver 10.96.0.10");
    assert!(pod.says("cat /etc/hosts").await.contains("10.244.1.2 web-1"));
    assert_eq!(pod.says("cat /proc/1/comm").await, "signpost");
    let processes = pod.says("ls -d /proc/[0-9]* | wc -l").await;
    assert!(processes.parse::<u32>().unwrap() <= 5, "sees {processes} processes");
    assert_eq!(pod.says("ls /sys/class/net").await, "lo");
    assert_eq!(pod.says("echo x > /tmp/file; cat /tmp/file").await, "x");
    assert!(!Path::new("/tmp/file").exists() || std::fs::read("/tmp/file").unwrap() != b"x\n");
    assert_eq!(pod.says("cat /proc/self/cgroup | grep ^0::").await, "0::/");
    assert_eq!(pod.says("/run/signpost/bin/main/sleep 0 && echo slept").await, "slept", "an image's program");
    assert!(pod.says("ping -c 1 -W 2 127.0.0.1").await.contains("1 received"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_cannot_change_the_machine_or_reach_its_secrets() {
    // The state of a lab that was put below a directory which pods see.
    let state = tempfile::tempdir_in("/var/tmp").unwrap();
    let visible = tempfile::tempdir_in("/opt").unwrap();
    std::fs::write(visible.path().join("token"), "secret").unwrap();
    let pod = Pod::start("secrets", vec![visible.path().to_owned(), state.path().to_owned()]).await;
    let token = visible.path().join("token");
    pod.refuses(&format!("cat {}", token.display())).await;
    assert_eq!(std::fs::read_to_string(&token).unwrap(), "secret");
    pod.refuses("grep -q . /etc/shadow").await;
    for folder in ["/", "/usr", "/etc", "/usr/bin", "/opt", "/var", "/sys", "/proc/sys/net/ipv4"] {
        pod.refuses(&format!("touch {folder}/written-by-a-pod")).await;
    }
    for path in ["/root", "/home", "/run/signpost/labs", "/var/tmp"] {
        assert_eq!(pod.says(&format!("ls -A {path} 2>/dev/null || true")).await, "", "{path}");
    }
    assert_eq!(pod.says("ls /run").await, "signpost");
    pod.refuses("echo 1 > /proc/sys/net/ipv4/ip_forward").await;
    pod.refuses("echo 1 > /proc/sys/kernel/panic").await;
    pod.refuses("echo h > /proc/sysrq-trigger").await;
    pod.refuses("mount -t tmpfs none /tmp").await;
    pod.refuses("mount -o remount,rw /usr").await;
    pod.refuses("umount /proc/sys").await;
    pod.refuses("mknod /tmp/disk b 254 0").await;
    pod.refuses("unshare -m true").await;
    pod.refuses("ip link add x type dummy").await;
    pod.refuses("cat /proc/kcore | head -c 1 | grep -q .").await;
    assert_eq!(
        pod.says("ls /dev").await.split_whitespace().collect::<Vec<_>>().join(" "),
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    pod.refuses("cat /proc/1/environ").await;
    let status = pod.says("cat /proc/self/status").await;
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("CapBnd:\t00000000000024e9"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_stand_where_the_machine_has_nothing_and_hide_nothing_else() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("key"), "value").unwrap();
    let at = |target: &str, part: Option<&str>, source: &MountSource, read_only| Mount {
        source: source.clone(),
        part: part.map(Into::into),
        target: target.into(),
        read_only,
    };
    let map = MountSource::Directory(files.path().to_owned());
    let memory = MountSource::Memory { name: "work".into(), bytes: 1 << 20 };
    let hidden = tempfile::tempdir_in("/opt").unwrap();
    std::fs::write(hidden.path().join("token"), "secret").unwrap();
    let mounts = vec![
        at("/config", None, &map, true),
        at("/etc/web/conf.d", None, &map, true),
        at("/etc/web.conf", Some("key"), &map, true),
        at("/opt/web", None, &memory, false),
        at("/var/run/secrets/web", None, &map, true),
        at("/var/log/web", Some("logs"), &memory, false),
        at("/tmp/a/b", None, &memory, false),
    ];
    let pod = Pod::with_volumes("volumes", vec![hidden.path().to_owned()], mounts).await;
    for path in ["/config/key", "/etc/web/conf.d/key", "/etc/web.conf", "/var/run/secrets/web/key"] {
        assert_eq!(pod.says(&format!("cat {path}")).await, "value", "{path}");
        pod.refuses(&format!("echo changed > {path}")).await;
    }
    assert_eq!(
        pod.says("echo x > /opt/web/file; cat /tmp/a/b/file; ls /tmp/a/b; ls /var/log").await,
        "x\nfile\nlogs\nweb"
    );
    pod.refuses("grep -q . /etc/shadow").await;
    pod.refuses(&format!("cat {}", hidden.path().join("token").display())).await;
    assert!(pod.says("cat /etc/hosts").await.contains("web-1"));
    assert!(pod.says("grep root: /etc/passwd").await.contains("root:"));
    for folder in ["/", "/etc", "/etc/web", "/opt", "/var/log", "/run/signpost/covers"] {
        pod.refuses(&format!("touch {folder}/written-by-a-pod")).await;
    }
    for path in ["/config", "/etc/web", "/opt/web", "/run/secrets", "/var/log/web"] {
        assert!(!Path::new(path).exists(), "{path} on the machine");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_end_with_status_or_signal_and_their_children_with_them() {
    let pod = Pod::start("ends", vec![]).await;
    assert_eq!(pod.run("exit 7").await.0, Exit::Status(7));
    assert_eq!(pod.run("kill -TERM $$").await.0, Exit::Signal(15));
    // A child left behind holds the pipe: the read ends because the child is killed with its parent.
    assert_eq!(pod.run("sleep 600 & echo started").await, (Exit::Status(0), "started\n".into()));
    let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
    let sandbox = pod.sandbox.as_ref().unwrap();
    let program = sandbox.start_program(shell("exec sleep 600"), [null(), null(), null()]).await.unwrap();
    program.signal(Signal::SIGTERM, false).await.unwrap();
    assert_eq!(program.exit().await, Exit::Signal(15));
    let mut missing = shell("");
    missing.argv = vec!["/no/such/program".into()];
    let error = sandbox.start_program(missing, [null(), null(), null()]).await.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_the_pods_own_and_has_its_size_from_the_start() {
    let pod = Pod::start("terminal", vec![]).await;
    let sandbox = pod.sandbox.as_ref().unwrap();
    let script = shell("tty; stty size; read line; echo got $line; exit 4");
    let (program, ours) = sandbox.start_in_terminal(script, (100, 30)).await.unwrap();
    let mut terminal = signpost_lab::terminal::Terminal::new(ours).unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut terminal, b"hello\n").await.unwrap();
    let mut text = Vec::new();
    let read = async {
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = tokio::io::AsyncReadExt::read(&mut terminal, &mut buffer).await {
            text.extend_from_slice(&buffer[..length]);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    // What was typed is shown whenever the terminal gets to it.
    let has = |part| text.contains(part);
    assert!(has("/dev/pts/0\r\n") && has("30 100\r\n") && has("got hello"), "{text}");
    assert_eq!(program.exit().await, Exit::Status(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_pod_outlives_its_sandbox() {
    let mut pod = Pod::start("gone", vec![]).await;
    let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
    let sandbox = pod.sandbox.take().unwrap();
    let program = sandbox.start_program(shell("exec sleep 600"), [null(), null(), null()]).await.unwrap();
    let procs = pod.cgroup.path().join("cgroup.procs");
    assert_eq!(std::fs::read_to_string(&procs).unwrap().lines().count(), 2);
    drop(sandbox);
    assert_eq!(program.exit().await, Exit::Signal(9));
    let empty = async {
        while !std::fs::read_to_string(&procs).unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), empty).await.unwrap();
}
