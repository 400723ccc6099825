//! `signpost lab`: starts, shows, uses and ends labs; and the hidden commands that a lab's processes are runs of.
//!
//! ```text
//!  up ─▶ up --foreground (in the background: the supervisor) ─▶ Lab::start, control::serve
//!  down, status, exec ─▶ control socket ─▶ supervisor
//! ```

mod exec;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use signpost_lab::control::{self, Answer, DaemonStatus, Question, Status};
use signpost_lab::sandbox::init;
use signpost_lab::spec::SpecError;
use signpost_lab::{DEFAULT_NAME, LabError, echo, state};

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
    Test(LabTestCommand),
}

#[derive(Args)]
struct NameOption {
    /// The lab's name.
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
struct StatusCommand {
    /// One lab's name. Default: all.
    #[arg(long)]
    name: Option<String>,
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
            Action::Status(StatusCommand { name }) => status(name),
            Action::Kubeconfig(NameOption { name }) => {
                let record = state::record(&name).filter(|_| state::lives(&name));
                let record = record.ok_or(LabError::NoSuchLab { name })?;
                println!("{}", record.kubeconfig.display());
                Ok(ExitCode::SUCCESS)
            }
            Action::Exec(command) => command.run(),
            Action::Test(command) => command.run(),
        }
    }
}

fn down(name: &str) -> anyhow::Result<ExitCode> {
    check_name(name)?;
    match control::ask(name, &Question::Down, &[]) {
        Ok(Answer::Down { problem: None }) => println!("lab {name} is down"),
        Ok(Answer::Down { problem: Some(problem) }) => anyhow::bail!("lab {name} is down, but: {problem}"),
        Ok(other) => anyhow::bail!("the lab answered {other:?}"),
        Err(LabError::NoSuchLab { .. }) if state::lives(name) => {
            // It is starting or ending and does not listen: a signal ends it either way.
            end_by_signal(name)?;
            println!("lab {name} is down");
        }
        Err(LabError::NoSuchLab { .. }) => {
            if state::clear_dead(name)? {
                println!("lab {name} did not run any more; what it left is removed");
            } else {
                println!("no lab named {name} runs");
            }
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
        anyhow::ensure!(std::time::Instant::now() < deadline, "lab {name} (process {pid}) does not end");
        std::thread::sleep(std::time::Duration::from_millis(10)); // its lock tells nobody when it is released
    }
    state::clear_dead(name)?;
    Ok(())
}

fn status(name: Option<String>) -> anyhow::Result<ExitCode> {
    let names: Vec<String> = match name {
        Some(name) => {
            check_name(&name)?;
            vec![name]
        }
        None => state::records().into_iter().map(|record| record.name).collect(),
    };
    if names.is_empty() {
        println!("no lab runs: start one with `signpost lab up`");
    }
    let mut all_well = true;
    for name in names {
        match control::ask(&name, &Question::Status, &[]) {
            Ok(Answer::Status(status)) => {
                all_well &= status.daemons.values().all(|daemon| !matches!(daemon, DaemonStatus::Failed(_)));
                print!("{}", shown(&status));
            }
            Ok(other) => anyhow::bail!("the lab answered {other:?}"),
            Err(LabError::NoSuchLab { .. }) => {
                all_well = false;
                if state::lives(&name) {
                    println!("{name}: starting or ending");
                } else if state::record(&name).is_some() {
                    println!("{name}: dead; `signpost lab down --name {name}` removes what it left");
                } else {
                    return Err(LabError::NoSuchLab { name }.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(status: &Status) -> String {
    use std::fmt::Write;
    let record = &status.record;
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        writeln!(text, "  {key:<11} {value}").expect("writing to a String cannot fail");
    };
    line("process", record.pid.to_string());
    line("API", record.api.clone());
    line("kubeconfig", record.kubeconfig.display().to_string());
    line("families", record.families.to_string());
    for node in &record.nodes {
        let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        let daemon = match status.daemons.get(&node.name) {
            Some(DaemonStatus::Running(pid)) => format!("daemon {pid}"),
            Some(DaemonStatus::Failed(problem)) => problem.clone(),
            Some(DaemonStatus::Stopped) | None => "daemon stopped".to_owned(),
        };
        line(&format!("node {}", node.name), format!("{}  {daemon}", addresses.join(" ")));
    }
    let outside: Vec<String> = record.outside.iter().map(ToString::to_string).collect();
    line("outside", outside.join(" "));
    let pods: Vec<String> = status.pods.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    line("pods", if pods.is_empty() { "none".to_owned() } else { pods.join(", ") });
    if let Some(unsettled) = &status.unsettled {
        line("unsettled", unsettled.clone());
    }
    format!("{}: up\n{text}", record.name)
}

/// Refuses what could not be a lab's name before it becomes part of a path.
fn check_name(name: &str) -> Result<(), SpecError> {
    signpost_lab::LabSpec::new(name, 1, PathBuf::new()).check()
}

/// Writes what the lab has to say to standard error. `RUST_LOG` chooses how much.
fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,signpost=info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// `signpost echo`.
#[derive(Args)]
pub struct EchoCommand {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl EchoCommand {
    /// Serves for ever.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let listens = echo::arguments(&self.arguments)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut server = echo::EchoServer::new(echo::Identity::from_environment());
            let sockets = echo::Sockets::bind(&listens).context("cannot listen")?;
            server.listen(sockets).context("cannot listen")?;
            server.run().await;
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
