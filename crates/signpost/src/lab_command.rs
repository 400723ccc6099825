//! `signpost lab`: starts, shows, uses and ends labs; and the hidden commands that a lab's processes are runs of.
//!
//! ```text
//!  up ─▶ up --foreground (in the background: the supervisor) ─▶ Lab::start, control::serve
//!  down, status, exec ─▶ control socket ─▶ supervisor
//! ```

mod exec;
mod own_mounts;
mod status;
mod up;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use signpost_lab::control::{self, Answer, Question};
use signpost_lab::sandbox::init;
use signpost_lab::spec::SpecError;
use signpost_lab::{DEFAULT_NAME, LabError, Place, echo, state};
use tokio::signal::unix::{SignalKind, signal};

use crate::lab_test_command::LabTestCommand;

/// `signpost lab ...`.
#[derive(Args)]
pub struct LabCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a lab; it stays up until `down`.
    Up(up::UpCommand),
    /// End a lab; nothing of it stays.
    Down(NameOption),
    /// Show how a lab is, or all labs.
    Status(StatusCommand),
    /// Print the path of a lab's kubeconfig: export KUBECONFIG=$(signpost lab kubeconfig)
    Kubeconfig(NameOption),
    /// Run a program in a place of a lab.
    Exec(exec::ExecCommand),
    /// Start a node's daemon; one that runs is stopped before.
    Restart(RestartCommand),
    Test(LabTestCommand),
}

#[derive(Args)]
struct NameOption {
    /// The lab's name.
    #[arg(long, env = "SIGNPOST_LAB", default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
struct StatusCommand {
    /// One lab's name. Default: all.
    #[arg(long, env = "SIGNPOST_LAB")]
    name: Option<String>,
}

#[derive(Args)]
struct RestartCommand {
    /// node/NAME
    target: Place,
    #[command(flatten)]
    lab: NameOption,
}

impl LabCommand {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if !nix::unistd::geteuid().is_root() {
            return Err(anyhow::Error::msg(LabError::NotRoot.to_string()));
        }
        // A lab's error tells its cause itself; it is not to be told again.
        self.act().map_err(|error| match error.downcast::<LabError>() {
            Ok(error) => anyhow::Error::msg(error.to_string()),
            Err(error) => error,
        })
    }

    fn act(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Up(command) => command.run(),
            Action::Down(NameOption { name }) => down(&name),
            Action::Status(StatusCommand { name }) => status::status(name),
            Action::Kubeconfig(NameOption { name }) => {
                let record = state::record(&name).filter(|_| state::lives(&name));
                let record = record.ok_or(LabError::NoSuchLab { name })?;
                println!("{}", record.kubeconfig.display());
                Ok(ExitCode::SUCCESS)
            }
            Action::Exec(command) => command.run(),
            Action::Restart(RestartCommand { target, lab }) => restart(&target, &lab.name),
            Action::Test(command) => command.run(),
        }
    }
}

fn down(name: &str) -> anyhow::Result<ExitCode> {
    check_name(name)?;
    match control::ask(name, &Question::Down) {
        Ok(Answer::Down { problem: None }) => println!("lab {name} is down"),
        Ok(Answer::Down { problem: Some(problem) }) => anyhow::bail!("lab {name} is down, but: {problem}"),
        Ok(other) => anyhow::bail!("the lab answered {other:?}"),
        Err(LabError::NoSuchLab { .. }) if state::lives(name) => {
            // It is starting or ending and does not listen: a signal ends it either way.
            end_by_signal(name)?;
            println!("lab {name} is down");
        }
        Err(LabError::NoSuchLab { .. }) => {
            if !state::clear_dead(name)? {
                let others: Vec<String> = state::records().into_iter().map(|record| record.name).collect();
                let others = if others.is_empty() { "none does".to_owned() } else { others.join(", ") };
                anyhow::bail!("no lab named {name} runs (labs that run: {others})");
            }
            println!("lab {name} did not run any more; what it left is removed");
        }
        Err(LabError::Hangs { .. }) => {
            eprintln!("lab {name} does not answer: its process is killed now");
            state::kill_holder(name)?;
            println!("lab {name} is down");
        }
        Err(error) => {
            // It broke off: perhaps it ended at this moment.
            if state::lives(name) {
                return Err(error.into());
            }
            state::clear_dead(name)?;
            println!("lab {name} is down");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn end_by_signal(name: &str) -> anyhow::Result<()> {
    let pid = state::holder(name).and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.with_context(|| format!("lab {name} does not answer and its process is not known"))?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)
        .with_context(|| format!("cannot end process {pid} of lab {name}"))?;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(15);
    while state::lives(name) {
        if std::time::Instant::now() > deadline {
            eprintln!("lab {name} (process {pid}) does not end: it is killed now");
            return Ok(state::kill_holder(name)?);
        }
        std::thread::sleep(std::time::Duration::from_millis(10)); // its lock tells nobody when it is released
    }
    state::clear_dead(name)?;
    Ok(())
}

fn restart(target: &Place, name: &str) -> anyhow::Result<ExitCode> {
    check_name(name)?;
    let Place::Node(node) = target else { anyhow::bail!("{target} has no daemon: only node/NAME has one") };
    match control::ask(name, &Question::Restart { node: node.clone() })? {
        Answer::Restarted(pid) => println!("the daemon of node {node} runs as process {pid}"),
        Answer::Refused(problem) => anyhow::bail!("{problem}"),
        other => anyhow::bail!("the lab answered {other:?}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses what could not be a lab's name before it becomes part of a path.
fn check_name(name: &str) -> Result<(), SpecError> {
    signpost_lab::LabSpec::new(name, 1, PathBuf::new()).check()
}

/// Writes what the lab has to say to standard error. `RUST_LOG` chooses how much. `person`: one may read it there, now.
fn log(person: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,signpost=info"));
    let colours = person && in_colour(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}

/// Whether what is written there may hold colours: a terminal, whose user did not ask for none (no-color.org).
fn in_colour(to: &impl std::io::IsTerminal) -> bool {
    to.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `signpost echo`.
#[derive(Args)]
pub struct EchoCommand {
    /// Where to listen: tcp/PORT (HTTP as well), udp/PORT, or tcp/ADDRESS:PORT; any number, each also as
    /// `--listen WHERE`. Without any: tcp/8080 and udp/8080.
    #[arg(value_name = "WHERE", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl EchoCommand {
    /// Serves until SIGTERM or SIGINT, which is a good end.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let listens = echo::arguments(&self.arguments)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut server = echo::EchoServer::recording(echo::Identity::from_environment());
            let sockets = echo::Sockets::bind(&listens).context("cannot listen")?;
            server.listen(sockets).context("cannot listen")?;
            let places: Vec<String> = listens.iter().map(ToString::to_string).collect();
            // A log that nobody takes is no reason not to serve.
            let _ = writeln!(std::io::stdout(), "listening on {}", places.join(", "));
            tokio::select! {
                () = server.run() => {}
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// `signpost pod-init`.
#[derive(Args)]
pub struct PodInitCommand {
    #[arg(long)]
    inside: bool,
}

impl PodInitCommand {
    /// Runs as a pod's first process until the supervisor is gone.
    pub fn run(self) -> ExitCode {
        init::main(self.inside)
    }
}
