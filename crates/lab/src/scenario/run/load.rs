//! Traffic in the background and programs on a place: the steps `load`, `end` and `exec`.

use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::json;
use signpost_core::object::Family;
use tokio::process::Command;

use super::names::name_server;
use super::{Run, is_match};
use crate::cgroup::Cgroup;
use crate::netns::Netns;
use crate::patience::patient;
use crate::scenario::address::{Destination, Scheme, Source};
use crate::scenario::expect::Outcome;
use crate::scenario::format::{ExecExpect, LoadStep};
use crate::scenario::probe::{self, Message, Shot};
use crate::scenario::stage::told;
use crate::scenario::{lookup, names};
use crate::sockets::Sockets;
use crate::sys;

/// Traffic that runs until it is ended.
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Count>>,
}

/// What came of it.
#[derive(Debug, Default)]
struct Count {
    sent: u64,
    lost: u64,
    first_loss: Option<String>,
    /// What the load itself failed at.
    broken: Option<String>,
}

impl Load {
    fn start(sockets: Sockets, shot: Shot, rate_per_s: u32) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let gap = Duration::from_secs(1) / rate_per_s;
            let mut count = Count::default();
            let mut next = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                for outcome in probe::in_turn(&sockets, &shot, 1, None, |_| false) {
                    count.add(&outcome);
                }
                next += gap;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            count
        });
        Load { stop, thread: Some(thread) }
    }

    fn end(mut self) -> Option<Count> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread sends in a lab that the next scenario gets: it has at most one probe and one gap left.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Count {
    fn add(&mut self, outcome: &Outcome) {
        self.sent += 1;
        match outcome {
            Outcome::Answered(_) => {}
            Outcome::Failed { .. } => {
                self.lost += 1;
                self.first_loss.get_or_insert_with(|| outcome.to_string());
            }
            Outcome::Broken { .. } => {
                self.broken.get_or_insert_with(|| outcome.to_string());
            }
        }
    }
}

/// How long a program of an `exec` step may run.
const EXEC_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two runs of a program that does not yet say what is expected.
const EXEC_AGAIN: Duration = Duration::from_millis(250);

/// Runs a program in a namespace; one that takes too long is killed with all that it started.
async fn output_of(
    netns: &Netns,
    cgroup: Option<&Cgroup>,
    run: &[String],
    timeout: Duration,
) -> Result<Output, String> {
    let (program, arguments) = run.split_first().ok_or("names no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    if let Some(cgroup) = cgroup {
        let procs = cgroup.create().and_then(|()| cgroup.open_procs()).map_err(told)?;
        sys::before_exec(command.as_std_mut(), move || Ok(nix::unistd::write(&procs, b"0").map(drop)?));
    }
    let runtime = tokio::runtime::Handle::current();
    let spawned = netns.run(|| {
        let _entered = runtime.enter();
        command.spawn()
    });
    let child = spawned.map_err(|error| format!("cannot run {program}: {error}"))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    match tokio::time::timeout(timeout, child.wait_with_output()).await {
        Ok(output) => output.map_err(|error| format!("cannot run {program}: {error}")),
        Err(_) => {
            // What has left the group or has ended meanwhile cannot be killed.
            let _ = group.map(|group| killpg(group, Signal::SIGKILL));
            Err(format!("{program} was killed: it had not ended after {timeout:?}"))
        }
    }
}

impl Run<'_> {
    pub(super) async fn load(&mut self, step: &LoadStep) -> Result<(), String> {
        self.stage.settle().await?;
        let listed = self.stage.listed().await?;
        let family = self.family.families().first().copied().unwrap_or(Family::Ipv4);
        let (message, to) = match (&step.to.scheme, &step.to.destination) {
            (Scheme::Dns(question), Destination::Name(name)) => {
                let kind = names::record_type(&question.kind, family)?;
                let packet = lookup::question(name, kind).map_err(told)?.to_vec().map_err(told)?;
                (Message::Lookup(packet), name_server())
            }
            (scheme, _) => (super::attempt::message(scheme)?, step.to.clone()),
        };
        let shot = Shot {
            message,
            destination: listed.resolve(&to, family, &self.saved).map_err(told)?,
            source_port: None,
            size: 0,
            timeout: patient(Duration::from_secs(1)),
        };
        let load = Load::start(self.stage.sockets(&step.from)?, shot, step.rate_per_s);
        match self.loads.insert(step.name.clone(), load) {
            None => Ok(()),
            Some(_) => Err(format!("a load {} runs already", step.name)),
        }
    }

    pub(super) async fn end_load(&mut self, name: &str, allowed: u64) -> Result<(), String> {
        let load = self.loads.remove(name).ok_or_else(|| format!("no load {name} runs"))?;
        let count = tokio::task::spawn_blocking(|| load.end()).await.map_err(told)?;
        let count = count.ok_or("the load's thread died")?;
        if count.sent == 0 {
            return Err("the load sent nothing".to_owned());
        }
        if let Some(broken) = count.broken {
            return Err(broken);
        }
        if count.lost > allowed {
            let first = count.first_loss.unwrap_or_default();
            return Err(format!(
                "expected   at most {allowed} lost\ncame       {} of {} lost, the first: {first}",
                count.lost, count.sent
            ));
        }
        Ok(())
    }

    /// In the network namespace of a place (`None`: the router); the machine's files are everywhere the same. `signpost` is
    /// the lab's own, and `birdc` asks the lab's BIRD. With `within` it is run again until it says what is expected.
    pub(super) async fn exec(
        &mut self,
        on: Option<&Source>,
        run: &[String],
        wait: bool,
        expect: &ExecExpect,
    ) -> Result<(), String> {
        if wait {
            self.stage.settle().await?;
        }
        let filled = |text: &String| self.filled(&json!(text)).as_str().unwrap_or(text).to_owned();
        let run: Vec<String> = run.iter().map(filled).collect();
        let deadline = Instant::now() + patient(expect.within.unwrap_or_default());
        loop {
            let outcome = self.exec_once(on, &run, expect).await;
            if outcome.is_ok() || Instant::now() >= deadline {
                return outcome;
            }
            tokio::time::sleep(EXEC_AGAIN).await;
        }
    }

    async fn exec_once(&self, on: Option<&Source>, run: &[String], expect: &ExecExpect) -> Result<(), String> {
        let netns = on.map_or_else(|| self.stage.router(), |on| self.stage.netns(on))?;
        let cgroup = on.and_then(|on| self.stage.cgroup(on));
        let mut run = run.to_vec();
        match run.first().map(String::as_str) {
            Some("signpost") => run[0] = self.stage.program().display().to_string(),
            Some("birdc") => drop(run.splice(0..1, self.stage.birdc()?)),
            _ => {}
        }
        let output = output_of(&netns, cgroup.as_ref(), &run, patient(EXEC_TIMEOUT)).await?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let status = output.status.code().unwrap_or(-1);
        let fits = expect.stdout.as_ref().is_none_or(|pattern| is_match(pattern, &stdout));
        if status == expect.status && fits {
            return Ok(());
        }
        let pattern = expect.stdout.as_deref().unwrap_or("any");
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "expected   status {}, output {pattern}\ncame       status {status}\n{stdout}{stderr}",
            expect.status
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_with_its_children() {
        let netns = Netns::new(false).unwrap();
        let (pipe, held) = std::io::pipe().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&held));
        let started = Instant::now();
        let script = format!("exec 3>{path}; sleep 600 & wait");
        let problem = output_of(&netns, None, &program(&script), Duration::from_millis(300)).await.unwrap_err();
        assert_eq!(problem, "sh was killed: it had not ended after 300ms");
        // The end of the pipe: nobody holds its other side any more.
        drop(held);
        let ended = tokio::task::spawn_blocking(move || std::io::read_to_string(pipe));
        let rest = tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the child lives on");
        assert_eq!(rest.unwrap().unwrap(), "");
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[tokio::test]
    async fn a_program_that_ends_gives_its_status_and_output() {
        let netns = Netns::new(false).unwrap();
        let output = output_of(&netns, None, &program("echo out; exit 3"), EXEC_TIMEOUT).await.unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"out\n"[..]));
    }

    #[test]
    fn a_load_that_is_dropped_has_ended() {
        let netns = Netns::new(false).unwrap();
        let shot = Shot {
            message: probe::Message::Udp,
            destination: "127.0.0.1:9".parse().unwrap(),
            source_port: None,
            size: 0,
            timeout: Duration::from_millis(100),
        };
        let load = Load::start(Sockets::of_netns(netns), shot, 100);
        let stop = Arc::downgrade(&load.stop);
        drop(load);
        assert!(stop.upgrade().is_none(), "the thread still looks at the flag");
    }
}
