//! The node daemons: one `signpost node` process per node, in the node's network namespace, as on a real node.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::cgroup::Cgroup;
use crate::error::LabError;
use crate::mounts::Mounts;
use crate::netns::Netns;
use crate::patience::patient;
use crate::spawner::{Spawner, Surroundings};

/// The daemon's metrics listener, in the node's network namespace.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// How long a daemon may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// How much of a log's end an error shows.
const LAST_LINES: usize = 5;
/// In which part of it they are looked for.
const LAST_BYTES: usize = 4096;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// How a daemon is started.
#[derive(Debug, Clone)]
pub struct DaemonSpec {
    /// The node's name.
    pub node: String,
    /// The signpost binary.
    pub program: PathBuf,
    /// Its arguments, but for the mode.
    pub arguments: Vec<String>,
    /// Its first mode, as `--proxy-mode` takes it.
    pub mode: String,
    /// Where its output goes.
    pub log: PathBuf,
    /// The node's namespace.
    pub netns: Netns,
    /// Its control group, made when it is started.
    pub cgroup: Cgroup,
    /// The node's mounts.
    pub mounts: Mounts,
}

/// A node's daemon, running or not.
pub struct Daemon {
    spec: DaemonSpec,
    spawner: Spawner,
    child: Mutex<Option<Child>>,
    mode: Mutex<String>,
}

impl Daemon {
    /// One that is not started yet.
    pub fn new(spec: DaemonSpec, spawner: Spawner) -> Daemon {
        let mode = Mutex::new(spec.mode.clone());
        Daemon { spec, spawner, child: Mutex::new(None), mode }
    }

    /// From the next start on it has this mode.
    pub async fn set_mode(&self, mode: String) {
        *self.mode.lock().await = mode;
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.spec.node
    }

    /// Where its output goes.
    pub fn log(&self) -> &std::path::Path {
        &self.spec.log
    }

    /// Starts it, if it does not run.
    ///
    /// # Errors
    /// The process could not be made.
    pub async fn start(&self) -> Result<(), LabError> {
        let mut child = self.child.lock().await;
        if child.as_mut().is_some_and(is_running) {
            return Ok(());
        }
        let started = async {
            self.spec.cgroup.create()?;
            let log = OpenOptions::new().create(true).append(true).open(&self.spec.log)?;
            let mut command = Command::new(&self.spec.program);
            command.args(&self.spec.arguments).args(["--proxy-mode", &*self.mode.lock().await]);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let around = Surroundings {
                netns: Some(self.spec.netns.clone()),
                cgroup: Some(self.spec.cgroup.clone()),
                mounts: Some(self.spec.mounts.clone()),
                session: true,
                ..Surroundings::default()
            };
            self.spawner.spawn(command, around).await
        };
        let what = format!("the daemon of node {}", self.spec.node);
        *child = Some(started.await.map_err(|source| LabError::Start { what, source })?);
        Ok(())
    }

    /// Ends it with SIGKILL: it can tidy nothing up.
    ///
    /// # Errors
    /// The kernel refused.
    pub async fn kill(&self) -> Result<(), LabError> {
        self.end(Signal::SIGKILL).await
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// It did not end in time (and was killed then).
    pub async fn stop(&self) -> Result<(), LabError> {
        self.end(Signal::SIGTERM).await
    }

    /// Stops and starts it.
    ///
    /// # Errors
    /// As those.
    pub async fn restart(&self) -> Result<(), LabError> {
        self.stop().await?;
        self.start().await
    }

    /// Its process, while it is meant to run.
    pub async fn pid(&self) -> Option<u32> {
        self.child.lock().await.as_ref().and_then(Child::id)
    }

    /// By kind: the resourceVersion up to which all is programmed in the node's kernel. `None`: it is not meant to
    /// run. Empty: it does not answer yet.
    ///
    /// # Errors
    /// It ended by itself.
    pub async fn programmed(&self) -> Result<Option<BTreeMap<String, u64>>, LabError> {
        match self.child.lock().await.as_mut() {
            None => return Ok(None),
            Some(child) => {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(self.problem(format!("ended by itself ({status})")));
                }
            }
        }
        let Ok(Ok(text)) = tokio::time::timeout(patient(ANSWER), get(&self.spec.netns, "/programmed")).await else {
            return Ok(Some(BTreeMap::new())); // it is starting
        };
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|error| self.problem(format!("does not say what it has programmed: {error}")))
    }

    async fn end(&self, signal: Signal) -> Result<(), LabError> {
        let Some(mut child) = self.child.lock().await.take() else { return Ok(()) };
        let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) else { return Ok(()) };
        // ESRCH is impossible: we have not reaped it.
        kill(Pid::from_raw(pid), signal).map_err(|error| self.problem(format!("takes no signal: {error}")))?;
        if tokio::time::timeout(patient(GRACE), child.wait()).await.is_ok() {
            return Ok(());
        }
        drop(child); // kills it
        Err(self.problem(format!("did not end within {GRACE:?} and was killed")))
    }

    fn problem(&self, problem: String) -> LabError {
        let last = last_lines(&self.spec.log);
        LabError::Daemon { node: self.spec.node.clone(), problem, log: self.spec.log.clone(), last }
    }
}

/// A log's last lines, each after a line break and indented; without what a terminal would take for a command.
fn last_lines(log: &std::path::Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let end = String::from_utf8_lossy(&text[text.len().saturating_sub(LAST_BYTES)..]).into_owned();
    let mut lines: Vec<&str> = end.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES).collect();
    lines.reverse();
    if lines.is_empty() {
        return " nothing, it is empty".to_owned();
    }
    lines.iter().map(|line| format!("\n  {}", line.replace(|c: char| c.is_control() && c != '\t', ""))).collect()
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

async fn get(netns: &Netns, path: &str) -> io::Result<String> {
    let socket = netns.run(TcpSocket::new_v4)?;
    let mut stream = socket.connect(METRICS).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned()));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_end_of_the_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(last_lines(log.path()), " nothing, it is empty");
        let lines: Vec<String> = (1..=9).map(|n| format!("line {n}\x1b")).collect();
        std::fs::write(log.path(), lines.join("\n") + "\n\n").unwrap();
        assert_eq!(last_lines(log.path()), "\n  line 5\n  line 6\n  line 7\n  line 8\n  line 9");
    }
}
