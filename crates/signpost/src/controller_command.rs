//! `signpost controller`: gives LoadBalancer Services of a cluster their addresses.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use signpost_controller::ControllerOptions;
use signpost_controller::leader::{Candidate, lead};
use tokio::signal::unix::{SignalKind, signal};

use crate::node_command::{start_log, whole};

/// What is left of the runtime gets so long to end.
const LAST: Duration = Duration::from_millis(100);
const LEASE: &str = "signpost-controller";

/// Gives Services of type LoadBalancer their addresses, out of the cluster's IPAddressPools. Of several replicas one leads.
#[derive(Args)]
pub struct ControllerCommand {
    /// How to reach the API [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API, in place of the kubeconfig's
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Only Services of this loadBalancerClass [default: those without one]
    #[arg(long, value_name = "CLASS")]
    load_balancer_class: Option<String>,
    /// Let a Lease say which of several replicas works
    #[arg(long, num_args = 0..=1, default_value = "true", default_missing_value = "true", require_equals = true)]
    leader_elect: bool,
    /// The namespace of that Lease
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    leader_elect_resource_namespace: String,
    /// How much is logged: 4 tells each change (RUST_LOG is finer)
    #[arg(short, long = "v", value_name = "LEVEL", default_value_t = 0)]
    v: u8,
    /// Log as JSON, a line each
    #[arg(long)]
    log_json: bool,
}

impl ControllerCommand {
    /// Runs until SIGTERM or SIGINT, or until another replica leads.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        start_log(self.v, self.log_json);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
        let result = runtime.block_on(self.work());
        runtime.shutdown_timeout(LAST);
        result.map(|()| ExitCode::SUCCESS)
    }

    async fn work(self) -> anyhow::Result<()> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let asked_to_end = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let connection = signpost_cluster::client::connect(self.kubeconfig.as_deref(), self.master.as_deref())
            .await
            .map_err(whole)?;
        tracing::info!(server = connection.server, "giving load-balancer addresses");
        let options = ControllerOptions {
            endpoint_slices: false,
            workloads: false,
            scheduler: false,
            garbage_collection: false,
            load_balancers: true,
            load_balancer_class: self.load_balancer_class,
            ..ControllerOptions::default()
        };
        let client = connection.client.clone();
        let work = async move { signpost_controller::run(client, options, std::future::pending()).stopped().await };
        if !self.leader_elect {
            return tokio::select! {
                () = asked_to_end => Ok(()),
                () = work => anyhow::bail!("the controllers ended by themselves"),
            };
        }
        let namespace = self.leader_elect_resource_namespace;
        let candidate = Candidate { namespace, lease: LEASE.to_owned(), identity: identity()? };
        lead(&connection.client, &candidate, asked_to_end, work).await.map_err(whole)
    }
}

/// This replica's name: its host's, which in a cluster is the pod's, and a number of its own.
fn identity() -> anyhow::Result<String> {
    let host = nix::unistd::gethostname().context("this host has no name")?;
    let mut random = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random).context("no random numbers")?;
    Ok(format!("{}_{:016x}", host.to_string_lossy(), u64::from_ne_bytes(random)))
}
