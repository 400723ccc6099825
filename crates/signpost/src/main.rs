//! The binary: the node daemon, the lab, and the programs that the lab runs in its pods.

mod controller_command;
mod diagnose_command;
mod dns_command;
mod kube_proxy_flags;
mod lab_command;
mod lab_test_command;
mod node_command;
mod node_probe;
mod rules_command;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "signpost",
    version,
    about = "Kubernetes Services, whole: kernel rules, controllers, and a lab to see them in"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keeps this node's kernel equal to what the Services of the cluster ask for.
    Node(Box<node_command::NodeCommand>),
    Controller(controller_command::ControllerCommand),
    Rules(rules_command::RulesCommand),
    Doctor(diagnose_command::DoctorCommand),
    Explain(diagnose_command::ExplainCommand),
    Trace(diagnose_command::TraceCommand),
    /// Answers the names of the cluster.
    Dns(dns_command::DnsCommand),
    /// A whole cluster on this machine, out of network namespaces.
    Lab(lab_command::LabCommand),
    /// The server behind the image signpost/echo.
    #[command(hide = true)]
    Echo(lab_command::EchoCommand),
    /// The first process of a lab's pod.
    #[command(hide = true)]
    PodInit(lab_command::PodInitCommand),
    /// Makes sockets in a node's control group, for a lab.
    #[command(hide = true)]
    SocketMaker,
}

/// The name of a plugin of kubectl: `kubectl signpost doctor` runs `kubectl-signpost doctor`.
const PLUGIN: &str = "kubectl-signpost";

/// The command line; as a plugin of kubectl, help and errors name it so.
fn command_line() -> Cli {
    let called = std::env::args_os().next().unwrap_or_default();
    let is_plugin = std::path::Path::new(&called).file_name().is_some_and(|name| name == PLUGIN);
    let command = if is_plugin { Cli::command().bin_name("kubectl signpost") } else { Cli::command() };
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

fn main() -> ExitCode {
    let result = match command_line().command {
        Command::Node(command) => command.run(),
        Command::Controller(command) => command.run(),
        Command::Rules(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Trace(command) => command.run(),
        Command::Dns(command) => command.run(),
        Command::Lab(command) => command.run(),
        Command::Echo(command) => command.run(),
        Command::PodInit(command) => return command.run(),
        Command::SocketMaker => return signpost_lab::sockets::main(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("signpost: {error:#}");
        ExitCode::FAILURE
    })
}
