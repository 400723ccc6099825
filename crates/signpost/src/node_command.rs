//! `signpost node`: the flags, the log, and the signals of the node daemon. The flags have kube-proxy's names.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use signpost_datapath::ebpf::Packets;
use signpost_node::config::{
    self, BindAddress, GoDuration, IpvsFlags, KubeProxyConfiguration, ModeName, NodePortRanges, PodCidrs, SchedulerName,
};
use signpost_node::findings::Found;
use signpost_node::{Flags, NodeOptions};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::kube_proxy_flags::KubeProxyFlags;
use crate::node_probe;

/// Threads that serve the network; a change of the kernel has one of its own.
const THREADS: usize = 2;
/// What is left of the runtime gets so long to end.
const LAST: Duration = Duration::from_millis(100);

/// Keeps this node's kernel equal to what the Services of the cluster ask for.
#[derive(Args)]
pub struct NodeCommand {
    /// Name of this node's Node object [default: the host's name]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// How to reach the API [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API, in place of the kubeconfig's
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// auto, ebpf, nftables, iptables, ipvs
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<ModeName>,
    /// A KubeProxyConfiguration file; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Addresses of the cluster's pods, one range per family, with commas between
    #[arg(long, value_name = "CIDRS")]
    cluster_cidr: Option<PodCidrs>,
    /// Masquerade whatever goes to a cluster address
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    masquerade_all: Option<bool>,
    /// Where node ports answer: ranges with commas between, or primary [default: primary]
    #[arg(long, value_name = "CIDRS")]
    nodeport_addresses: Option<NodePortRanges>,
    /// Where /healthz listens; empty: nowhere [default: 0.0.0.0:10256]
    #[arg(long, value_name = "ADDRESS")]
    healthz_bind_address: Option<BindAddress>,
    /// Where /metrics listens; empty: nowhere [default: 127.0.0.1:10249]
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<BindAddress>,
    /// Least time between two changes of the kernel [default: as fast as it takes them]
    #[arg(long, value_name = "DURATION")]
    min_sync_period: Option<GoDuration>,
    /// How often the kernel is compared with what it should hold [default: 30s]
    #[arg(long, value_name = "DURATION")]
    sync_period: Option<GoDuration>,
    /// ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix: whose addresses count as pods' [default: those of
    /// --cluster-cidr]
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// How the mode ipvs chooses: rr, wrr, lc, wlc, lblc, lblcr, sh, dh, mh, sed, nq [default: rr]
    #[arg(long, value_name = "NAME")]
    ipvs_scheduler: Option<SchedulerName>,
    /// In the mode ipvs, answer ARP only for the addresses of the asked interface: for who announces load-balancer addresses
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    ipvs_strict_arp: Option<bool>,
    /// In the mode ipvs, leave virtual servers at these addresses alone
    #[arg(long, value_name = "CIDRS")]
    ipvs_exclude_cidrs: Option<PodCidrs>,
    /// In the mode ipvs, how long an idle TCP connection is remembered; 0s: as the kernel has it
    #[arg(long, value_name = "DURATION")]
    ipvs_tcp_timeout: Option<GoDuration>,
    /// The same for one that has seen a FIN
    #[arg(long, value_name = "DURATION")]
    ipvs_tcpfin_timeout: Option<GoDuration>,
    /// The same for UDP
    #[arg(long, value_name = "DURATION")]
    ipvs_udp_timeout: Option<GoDuration>,
    /// The bridge of the node's pods, for BridgeInterface
    #[arg(long, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// How the names of the interfaces to the node's pods begin, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX")]
    pod_interface_name_prefix: Option<String>,
    /// In the mode iptables, node ports answer at 127.0.0.1 too, if --nodeport-addresses has it [default: true]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "WHETHER")]
    iptables_localhost_nodeports: Option<bool>,
    /// Tell conntrack to accept TCP packets out of their window
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "WHETHER")]
    conntrack_tcp_be_liberal: Option<bool>,
    /// loadBalancerSourceRanges guard a Service's node ports, too
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "WHETHER")]
    load_balancer_source_ranges_on_node_ports: Option<bool>,
    /// Replace the rules that another Service proxy left
    #[arg(long)]
    take_over: bool,
    /// Mode ebpf: the control group of all of the node's processes [default: where cgroup2 is mounted]
    #[arg(long, value_name = "DIRECTORY")]
    cgroup_root: Option<PathBuf>,
    /// Mode ebpf: where its programs and maps are kept, in a bpf file system [default: /sys/fs/bpf/signpost]
    #[arg(long, value_name = "DIRECTORY")]
    bpf_directory: Option<PathBuf>,
    /// Mode ebpf: the most frontends, of all Services and both families [default: 131072]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    ebpf_frontends: Option<u32>,
    /// Mode ebpf: the most backends of all different sets together [default: 1048576]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    ebpf_backends: Option<u32>,
    /// Mode ebpf: how many sockets and clients with affinity are remembered [default: 65536]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1024..=1 << 24))]
    ebpf_remembered: Option<u32>,
    /// Mode ebpf: count packets of connections, beside their bytes
    #[arg(long)]
    ebpf_count_packets: bool,
    /// Mode ebpf: who serves packets that no socket rewrote: nftables, tc (programs at the interfaces, whose flows from outside find
    /// their backend by Maglev), tc-random (the same, drawn) [default: nftables]
    #[arg(long, env = "SIGNPOST_EBPF_PACKETS", value_name = "WHO")]
    ebpf_packets: Option<Packets>,
    /// Mode ebpf with tc: how many entries of flows are remembered, two or four of each [default: 262144]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1024..=1 << 26))]
    ebpf_tracked: Option<u32>,
    /// Remove the rules that a former daemon left, and end
    #[arg(long)]
    cleanup: bool,
    /// Print what this kernel has of what the mode ebpf uses, and which mode auto takes, and end
    #[arg(long)]
    probe: bool,
    /// How much is logged: 2 tells each change, 4 more (RUST_LOG is finer)
    #[arg(short, long = "v", value_name = "LEVEL", default_value_t = 0)]
    v: u8,
    /// Log as JSON, a line each
    #[arg(long)]
    log_json: bool,
    /// text or json (as --log-json)
    #[arg(long, value_parser = ["text", "json"], value_name = "FORMAT")]
    logging_format: Option<String>,
    /// Print the version, and end
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "WHETHER")]
    version: Option<String>,
    #[command(flatten)]
    without_effect: KubeProxyFlags,
}

impl NodeCommand {
    /// Runs the daemon until SIGTERM or SIGINT. The rules stay.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.version.as_ref().is_some_and(|wanted| wanted != "false") {
            println!("signpost {}", env!("CARGO_PKG_VERSION"));
            return Ok(ExitCode::SUCCESS);
        }
        start_log(self.v, self.log_json || self.logging_format.as_deref() == Some("json"));
        if self.cleanup {
            signpost_node::cleanup(&self.options()?.ebpf).map_err(whole)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.probe {
            return Ok(node_probe::print(&self.options()?.ebpf));
        }
        let options = NodeOptions { look: Some(look), ..self.options()? };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let result = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let shutdown = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            signpost_node::run(options, shutdown).await.map_err(whole)
        });
        runtime.shutdown_timeout(LAST);
        result.map(|()| ExitCode::SUCCESS)
    }

    fn options(self) -> anyhow::Result<NodeOptions> {
        let file = match &self.config {
            Some(path) => config::read(path).map_err(whole)?,
            None => KubeProxyConfiguration::default(),
        };
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let flags = Flags {
            hostname_override: self.hostname_override,
            kubeconfig: self.kubeconfig,
            master: self.master,
            proxy_mode: self.proxy_mode,
            cluster_cidr: self.cluster_cidr,
            masquerade_all: self.masquerade_all,
            nodeport_addresses: self.nodeport_addresses,
            healthz_bind_address: self.healthz_bind_address,
            metrics_bind_address: self.metrics_bind_address,
            min_sync_period: self.min_sync_period,
            sync_period: self.sync_period,
            take_over: self.take_over,
            detect_local_mode: self.detect_local_mode,
            ipvs: IpvsFlags {
                scheduler: self.ipvs_scheduler,
                strict_arp: self.ipvs_strict_arp,
                exclude_cidrs: self.ipvs_exclude_cidrs,
                tcp_timeout: self.ipvs_tcp_timeout,
                tcp_fin_timeout: self.ipvs_tcpfin_timeout,
                udp_timeout: self.ipvs_udp_timeout,
            },
            pod_bridge_interface: self.pod_bridge_interface,
            pod_interface_name_prefix: self.pod_interface_name_prefix,
            iptables_localhost_nodeports: self.iptables_localhost_nodeports,
            conntrack_tcp_be_liberal: self.conntrack_tcp_be_liberal,
            source_ranges_on_node_ports: self.load_balancer_source_ranges_on_node_ports,
            cgroup_root: self.cgroup_root,
            bpf_directory: self.bpf_directory,
            ebpf_frontends: self.ebpf_frontends,
            ebpf_backends: self.ebpf_backends,
            ebpf_remembered: self.ebpf_remembered,
            ebpf_count_packets: self.ebpf_count_packets,
            ebpf_packets: self.ebpf_packets,
            ebpf_tracked: self.ebpf_tracked,
            without_effect: self.without_effect.0,
        };
        NodeOptions::new(flags, file, hostname).map_err(whole)
    }
}

/// What the doctor finds on this node without asking anybody.
fn look(node: &str) -> Vec<Found> {
    let found = signpost_diagnose::doctor::of_itself(node, &signpost_diagnose::collect::glance());
    found.into_iter().map(|finding| Found { code: finding.code.id(), cause: finding.cause }).collect()
}

/// These errors tell their cause in their own text; it is not to be told again.
pub(crate) fn whole(error: impl std::error::Error) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

/// The log, on standard error.
pub(crate) fn start_log(verbosity: u8, json: bool) {
    let level = match verbosity {
        // The client logs each failed request; the daemon says the same once, with its cause.
        0 | 1 => "info,kube_client=off",
        2 | 3 => "info,kube_client=off,signpost_node=debug,signpost_cluster=debug,signpost_datapath=debug",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json { log.json().init() } else { log.with_ansi(false).init() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        node: NodeCommand,
    }

    fn options(line: &str) -> anyhow::Result<NodeOptions> {
        Line::try_parse_from(line.split(' '))?.node.options()
    }

    #[test]
    fn kube_proxys_usual_command_lines_are_taken() {
        let options = options(
            "node --hostname-override=n1 --kubeconfig=/k --proxy-mode=nftables --cluster-cidr=10.244.0.0/16 --masquerade-all=true \
             --nodeport-addresses=172.18.0.0/16 --healthz-bind-address=[::]:10256 --metrics-bind-address= --v=2 \
             --min-sync-period=1s --sync-period 1m",
        )
        .unwrap();
        assert_eq!((&*options.node, options.masquerade_all), ("n1", true));
        assert_eq!((options.healthz, options.metrics), (Some("[::]:10256".parse().unwrap()), None));
        assert_eq!((options.min_sync_period, options.sync_period), (Duration::from_secs(1), Duration::from_secs(60)));
        assert!(self::options("node --masquerade-all -v 4 --hostname-override n1").unwrap().masquerade_all);
        assert!(!self::options("node --masquerade-all=false --hostname-override n1").unwrap().masquerade_all);
    }

    #[test]
    fn flags_of_a_kube_proxy_manifest_without_effect_are_taken_and_named() {
        let options = options(
            "node --hostname-override=n1 --bind-address=0.0.0.0 --feature-gates=A=true,B=false --conntrack-max-per-core=0 \
             --oom-score-adj=-998 --detect-local-mode NodeCIDR --logging-format=json --kube-api-qps 5 --bind-address-hard-fail \
             --profiling=false --logtostderr=true --iptables-sync-period=30s --show-hidden-metrics-for-version=1.35",
        )
        .unwrap();
        assert_eq!(options.pods, config::PodRanges::Node);
        assert_eq!(
            options.ignored,
            [
                "bind-address",
                "conntrack-max-per-core",
                "feature-gates",
                "iptables-sync-period",
                "kube-api-qps",
                "oom-score-adj",
                "show-hidden-metrics-for-version",
                "bind-address-hard-fail",
                "logtostderr",
                "profiling",
            ]
        );
        assert!(self::options("node --init-only --hostname-override n1").is_err());
    }

    #[test]
    fn a_wrong_flag_says_what_is_right() {
        for (line, expected) in [
            ("node --proxy-mode foo", "there are auto, nftables, ebpf, ipvs and iptables"),
            ("node --cluster-cidr 10.244.0.0", "is not an address range such as 10.244.0.0/16"),
            ("node --sync-period 5", "is not a duration such as 30s"),
            ("node --config /nowhere/file", "--config /nowhere/file: No such file"),
        ] {
            let error = format!("{:#}", options(line).unwrap_err());
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
