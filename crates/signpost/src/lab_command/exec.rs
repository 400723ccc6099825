//! `signpost lab exec TARGET -- CMD`. In a pod the supervisor runs the program on this process' terminal or files; on a
//! node, outside, or in a light pod this process itself becomes the program, in the place's network.

use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use signpost_lab::control::{Answer, Conversation, Question};
use signpost_lab::sys::terminal_size;
use signpost_lab::terminal::{Raw, pass_through};
use signpost_lab::{DEFAULT_NAME, Netns, Place, state};

use super::own_mounts;

/// Run a program in a place of a lab.
#[derive(Args)]
pub struct ExecCommand {
    /// node/NAME, pod/NAME, pod/NAMESPACE/NAME, outside or router.
    target: Place,
    /// The lab's name.
    #[arg(long, env = "SIGNPOST_LAB", default_value = DEFAULT_NAME)]
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
            let descriptors = [input.as_fd(), output.as_fd(), error.as_fd()];
            answer(&mut Conversation::begin(&self.name, &question(None), &descriptors)?)?.0
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
        let bird = state::record(&self.name).map(|record| record.dir.join("bird.ctl"));
        let bird = bird.filter(|_| self.target == Place::Router);
        own_mounts::enter(&self.target, bird.as_deref())
            .with_context(|| format!("cannot make the view of {}", self.target))?;
        let (program, arguments) = self.command.split_first().context("no program was given")?;
        // This program is there even where it is on no PATH.
        let error = match &**program {
            "signpost" if !is_on_path(program) => Command::new("/proc/self/exe").arg0(program).args(arguments).exec(),
            _ => Command::new(program).args(arguments).exec(),
        };
        bail!("cannot run {program}: {error}")
    }
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The next answer; what the lab waits for before it is told to the person.
fn answer(conversation: &mut Conversation) -> anyhow::Result<(Answer, Option<OwnedFd>)> {
    loop {
        match conversation.answer()? {
            (Answer::Waiting(what), _) => eprintln!("signpost: {what}"),
            answer => return Ok(answer),
        }
    }
}

fn in_terminal(name: &str, question: &Question) -> anyhow::Result<Answer> {
    let mut conversation = Conversation::begin(name, question, &[])?;
    let ours = match answer(&mut conversation)? {
        (Answer::Terminal, Some(ours)) => ours,
        (answer, _) => return Ok(answer),
    };
    let raw = Raw::begin()?;
    let passed = pass_through(ours);
    drop(raw);
    passed?;
    Ok(conversation.answer()?.0)
}
