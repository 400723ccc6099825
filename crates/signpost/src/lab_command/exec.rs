//! `signpost lab exec TARGET -- CMD`. In a pod the supervisor runs the program on this process' terminal or files; on a
//! node, outside, or in a light pod this process itself becomes the program, in the place's network.

use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use signpost_lab::control::{self, Answer, Question};
use signpost_lab::terminal::{Raw, open_terminal, pass_through};
use signpost_lab::{DEFAULT_NAME, Netns, Place};

/// Run a program in a place of a lab.
#[derive(Args)]
pub struct ExecCommand {
    /// node/NAME, pod/NAME, pod/NAMESPACE/NAME, outside or router.
    target: Place,
    /// The lab's name.
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// The pod's container. Default: its first.
    #[arg(long, short)]
    container: Option<String>,
    /// Program and arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl ExecCommand {
    /// Runs it; gives the program's exit status, 128 + signal if one ended it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        super::check_name(&self.name)?;
        let with_terminal = matches!(self.target, Place::Pod(..)) && stdin().is_terminal() && stdout().is_terminal();
        let question = |terminal| Question::Exec {
            place: self.target.clone(),
            container: self.container.clone(),
            command: self.command.clone(),
            terminal,
        };
        let answer = if with_terminal {
            let (ours, theirs) = open_terminal()?;
            in_terminal(&self.name, &question(true), ours, theirs)?
        } else {
            let (input, output, error) = (stdin(), stdout(), stderr());
            control::ask(&self.name, &question(false), &[input.as_fd(), output.as_fd(), error.as_fd()])?
        };
        match answer {
            Answer::Exit(status) => Ok(ExitCode::from(u8::try_from(status & 0xff)?)),
            Answer::Enter { netns, cgroup } => self.enter(&netns, &cgroup),
            Answer::Refused(problem) => bail!("{problem}"),
            other => bail!("the lab answered {other:?}"),
        }
    }

    /// Becomes the program.
    fn enter(&self, netns: &Path, cgroup: &Path) -> anyhow::Result<ExitCode> {
        let gone = || format!("{} is gone", self.target);
        std::fs::write(cgroup.join("cgroup.procs"), "0").with_context(gone)?;
        Netns::open(netns).and_then(|netns| netns.enter()).with_context(gone)?;
        own_sys().context("cannot show the place's network in /sys")?;
        let (program, arguments) = self.command.split_first().context("no program was given")?;
        let error = Command::new(program).args(arguments).exec();
        bail!("cannot run {program}: {error}")
    }
}

fn in_terminal(name: &str, question: &Question, ours: OwnedFd, theirs: OwnedFd) -> anyhow::Result<Answer> {
    let asking = {
        let (name, question) = (name.to_owned(), question.clone());
        std::thread::spawn(move || {
            let side: BorrowedFd<'_> = theirs.as_fd();
            control::ask(&name, &question, &[side, side, side])
        })
    };
    let raw = Raw::begin()?;
    let passed = pass_through(ours);
    drop(raw);
    stdout().flush()?;
    let answer = asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    // A program that could not be started never had the terminal: its refusal says more than the closed terminal.
    if !matches!(answer, Answer::Refused(_)) {
        passed?;
    }
    Ok(answer)
}

/// `/sys` of the network namespace that was entered, in a mount namespace of this process alone.
fn own_sys() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    let cgroups = File::open("/sys/fs/cgroup").ok();
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)?;
    if let Some(cgroups) = cgroups {
        let old = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&cgroups));
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(old.as_str()), "/sys/fs/cgroup", None::<&str>, flags, None::<&str>)?;
    }
    Ok(())
}
