//! `signpost lab`, and the hidden commands that a lab's processes are runs of.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use signpost_lab::echo;
use signpost_lab::sandbox::init;

use crate::lab_test_command::LabTestCommand;

/// `signpost lab ...`.
#[derive(Args)]
pub struct LabCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Test(LabTestCommand),
}

impl LabCommand {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Test(command) => command.run(),
        }
    }
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
