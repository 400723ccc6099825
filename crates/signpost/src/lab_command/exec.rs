//! `signpost lab exec TARGET -- CMD`. In a pod the supervisor runs the program on this process' terminal or files; on a
//! node, outside, or in a light pod this process itself becomes the program, in the place's network.

use std::fs::File;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use signpost_lab::control::{self, Answer, Conversation, Question};
use signpost_lab::sys::terminal_size;
use signpost_lab::terminal::{Raw, pass_through};
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
            in_terminal(&self.name, &question(Some(terminal_size(stdin())?)))?
        } else {
            let (input, output, error) = (stdin(), stdout(), stderr());
            control::ask(&self.name, &question(None), &[input.as_fd(), output.as_fd(), error.as_fd()])?
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

fn in_terminal(name: &str, question: &Question) -> anyhow::Result<Answer> {
    let mut conversation = Conversation::begin(name, question, &[])?;
    let ours = match conversation.answer()? {
        (Answer::Terminal, Some(ours)) => ours,
        (answer, _) => return Ok(answer),
    };
    let raw = Raw::begin()?;
    let passed = pass_through(ours);
    drop(raw);
    passed?;
    Ok(conversation.answer()?.0)
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
