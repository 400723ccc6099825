//! `signpost dns`: the flags, the log, and the signals of the cluster's DNS server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::node_command::{start_log, whole};

/// What is left of the runtime gets so long to end.
const LAST: Duration = Duration::from_millis(100);

/// Answers the names of the cluster: Services, headless ones, pods; and sends on what is asked beyond it.
#[derive(Args)]
pub struct DnsCommand {
    /// How to reach the API [default: the Corefile's kubeconfig, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A Corefile, as CoreDNS takes it [default: what kubeadm writes]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The domain that names of Services end with, where there is no Corefile
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", conflicts_with = "config")]
    cluster_domain: String,
    /// Where to answer, in place of every address at port 53; may be given more than once
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Be this node's cache: answer at 169.254.20.10 and fd00:169:254:20::10, and have `signpost node` lead the node's questions there
    /// while this runs. Needs the node's network
    #[arg(long)]
    node_cache: bool,
    /// How much is logged: 4 tells each change (RUST_LOG is finer)
    #[arg(short, long = "v", value_name = "LEVEL", default_value_t = 0)]
    v: u8,
    /// Log as JSON, a line each
    #[arg(long)]
    log_json: bool,
}

impl DnsCommand {
    /// Runs the server until SIGTERM or SIGINT.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        start_log(self.v, self.log_json);
        let options = signpost_dns::Options {
            config: self.config,
            cluster_domain: self.cluster_domain,
            kubeconfig: self.kubeconfig,
            listen: self.listen,
            node_cache: self.node_cache,
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
        let result = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let shutdown = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            signpost_dns::run(options, shutdown).await.map_err(whole)
        });
        runtime.shutdown_timeout(LAST);
        result.map(|()| ExitCode::SUCCESS)
    }
}
