//! Starts every process of a lab from one thread that lives as long as the lab: children ask the kernel to kill them
//! when their parent dies (PR_SET_PDEATHSIG), and the kernel takes the *thread* that forked for the parent. The same
//! thread can put its next child into a new process namespace without anybody else noticing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::mpsc;

use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::setsid;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::cgroup::Cgroup;
use crate::mounts::Mounts;
use crate::netns::Netns;
use crate::sys;

/// A process to start, besides its command line.
#[derive(Default)]
pub struct Surroundings {
    /// Its network namespace.
    pub netns: Option<Netns>,
    /// Its control group.
    pub cgroup: Option<Cgroup>,
    /// Its mounts, if not this process' own.
    pub mounts: Option<Mounts>,
    /// Whether it is the first process of a new process namespace, with mounts, host name, message queues and view of
    /// control groups of its own.
    pub sandboxed: bool,
    /// Whether it begins a session of its own, out of reach of a terminal's signals.
    pub session: bool,
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread. Clones are the same one; it ends with the last of them, and with it all that it started.
#[derive(Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    /// Starts the thread, for use with the runtime that is current.
    ///
    /// # Errors
    /// No thread could be made.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start() -> io::Result<Spawner> {
        let runtime = Handle::current();
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            let _runtime = runtime.enter();
            while let Ok(job) = queue.recv() {
                job();
            }
        })?;
        Ok(Spawner { jobs })
    }

    /// Starts a process. It is killed when the returned handle is dropped, and when this process dies.
    ///
    /// # Errors
    /// The program is not there, or the kernel refuses its surroundings.
    pub async fn spawn(&self, mut command: Command, around: Surroundings) -> io::Result<Child> {
        let (answer, result) = oneshot::channel();
        let job = move || {
            command.kill_on_drop(true);
            // Nobody left to answer: the future was dropped, and the child goes with it.
            let _ = answer.send(spawn_here(command, around));
        };
        self.jobs.send(Box::new(job)).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }

    /// Runs `ip -batch` in a namespace.
    ///
    /// # Errors
    /// `ip` is missing, or it refused a line: the error tells what it wrote.
    pub async fn ip(&self, netns: &Netns, batch: Vec<String>) -> io::Result<()> {
        use tokio::io::AsyncWriteExt;
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let around = Surroundings { netns: Some(netns.clone()), ..Surroundings::default() };
        let mut child = self.spawn(command, around).await?;
        let mut input = child.stdin.take().expect("stdin was asked for");
        let mut text = batch.join("\n");
        text.push('\n');
        input.write_all(text.as_bytes()).await?;
        drop(input);
        let output = child.wait_with_output().await?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("ip: {} (batch: {})", said.trim(), batch.join("; "))))
    }
}

fn gone() -> io::Error {
    io::Error::other("the lab is ending")
}

fn spawn_here(mut command: Command, around: Surroundings) -> io::Result<Child> {
    let procs = around.cgroup.as_ref().map(Cgroup::open_procs).transpose()?;
    let sandboxed = around.sandboxed;
    let parent = std::process::id() as i32;
    let mounts: Option<OwnedFd> = around.mounts.as_ref().map(|m| m.as_fd().try_clone_to_owned()).transpose()?;
    let netns: Option<OwnedFd> = around.netns.as_ref().map(|n| n.as_fd().try_clone_to_owned()).transpose()?;
    sys::before_exec(command.as_std_mut(), move || {
        set_pdeathsig(Signal::SIGKILL)?;
        if !sandboxed && nix::unistd::getppid().as_raw() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if around.session {
            setsid()?;
        }
        if let Some(procs) = &procs {
            nix::unistd::write(procs, b"0")?;
        }
        if let Some(mounts) = &mounts {
            setns(mounts, CloneFlags::CLONE_NEWNS)?;
        }
        if let Some(netns) = &netns {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
        }
        if sandboxed {
            unshare(
                CloneFlags::CLONE_NEWNS
                    | CloneFlags::CLONE_NEWUTS
                    | CloneFlags::CLONE_NEWIPC
                    | CloneFlags::CLONE_NEWCGROUP,
            )?;
        }
        Ok(())
    });
    if !sandboxed {
        return command.spawn();
    }
    let own: OwnedFd = open("/proc/self/ns/pid", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    unshare(CloneFlags::CLONE_NEWPID)?;
    let child = command.spawn();
    setns(&own, CloneFlags::CLONE_NEWPID)?;
    child
}

/// Starts a process that this process' end and its terminal's signals must not take along: a lab's supervisor.
///
/// # Errors
/// The program could not be started.
pub fn detach(command: &mut std::process::Command) -> io::Result<std::process::Child> {
    sys::before_exec(command, || {
        setsid()?;
        Ok(())
    });
    command.spawn()
}
