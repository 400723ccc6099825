//! What the daemon is told: kube-proxy's configuration file and flags, so that who has one for kube-proxy can keep it.
//!
//! ```text
//! --config FILE ─▶ KubeProxyConfiguration ─┐
//! flags ─────────▶ Flags ──────────────────┴─▶ NodeOptions
//! ```
//!
//! A flag wins over the file. What the file may hold, but this program does not do (yet), is named in
//! [`NodeOptions::ignored`], never silently dropped.

mod file;
mod ipvs;
mod path;
mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use signpost_core::planner::NodePortAddresses;
use signpost_datapath::ebpf::{Counting, KernelConfig, Packets};
use signpost_datapath::ipvs::IpvsConfig;

use crate::look::Look;
use crate::timeouts::Timeouts;
pub use file::KubeProxyConfiguration;
pub use ipvs::{IpvsFlags, SchedulerName};
pub use values::{BindAddress, GoDuration, ModeName, NodePortRanges, PodCidrs};

/// `syncPeriod`, if unset, as kube-proxy has it.
const SYNC_PERIOD: Duration = Duration::from_secs(30);
const HEALTHZ_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("--config {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file's content is wrong.
    #[error("{path}:{line}:{column}: {field}{separator}{reason}", path = path.display(), separator = if field.is_empty() { "" } else { ": " })]
    Content {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// Path of the field, such as `nftables.minSyncPeriod`; empty at the top.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No way to tell pods from others.
    #[error("detectLocalMode {mode:?} is none of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix")]
    DetectLocalMode {
        /// As written.
        mode: String,
    },
    /// A way to tell pods from others that needs a name.
    #[error("detectLocalMode {mode} needs detectLocal.{field} (or --{flag})")]
    NoInterface {
        /// The way.
        mode: &'static str,
        /// The field of the file.
        field: &'static str,
        /// The flag.
        flag: &'static str,
    },
    /// ClusterCIDR without ranges.
    #[error("detectLocalMode ClusterCIDR needs clusterCIDR (or --cluster-cidr)")]
    NoClusterCidr,
    /// No name.
    #[error("the node has no name: give --hostname-override NAME, the name of its Node object")]
    NoName,
    /// Not a name.
    #[error("{name:?} is not a node name: give --hostname-override NAME, the name of its Node object")]
    BadName {
        /// As given.
        name: String,
    },
}

/// The flags that say something about the daemon, as given. The names are kube-proxy's.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--hostname-override`
    pub hostname_override: Option<String>,
    /// `--kubeconfig`
    pub kubeconfig: Option<PathBuf>,
    /// `--master`
    pub master: Option<String>,
    /// `--proxy-mode`
    pub proxy_mode: Option<ModeName>,
    /// `--cluster-cidr`
    pub cluster_cidr: Option<PodCidrs>,
    /// `--masquerade-all`
    pub masquerade_all: Option<bool>,
    /// `--nodeport-addresses`
    pub nodeport_addresses: Option<NodePortRanges>,
    /// `--healthz-bind-address`
    pub healthz_bind_address: Option<BindAddress>,
    /// `--metrics-bind-address`
    pub metrics_bind_address: Option<BindAddress>,
    /// `--min-sync-period`
    pub min_sync_period: Option<GoDuration>,
    /// `--sync-period`
    pub sync_period: Option<GoDuration>,
    /// `--take-over`
    pub take_over: bool,
    /// `--detect-local-mode`
    pub detect_local_mode: Option<String>,
    /// `--ipvs-scheduler` and others
    pub ipvs: IpvsFlags,
    /// `--pod-bridge-interface`
    pub pod_bridge_interface: Option<String>,
    /// `--pod-interface-name-prefix`
    pub pod_interface_name_prefix: Option<String>,
    /// `--iptables-localhost-nodeports`
    pub iptables_localhost_nodeports: Option<bool>,
    /// `--conntrack-tcp-be-liberal`
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// `--load-balancer-source-ranges-on-node-ports`
    pub source_ranges_on_node_ports: Option<bool>,
    /// `--cgroup-root`
    pub cgroup_root: Option<PathBuf>,
    /// `--bpf-directory`
    pub bpf_directory: Option<PathBuf>,
    /// `--ebpf-frontends`
    pub ebpf_frontends: Option<u32>,
    /// `--ebpf-backends`
    pub ebpf_backends: Option<u32>,
    /// `--ebpf-remembered`
    pub ebpf_remembered: Option<u32>,
    /// `--ebpf-count-packets`
    pub ebpf_count_packets: bool,
    /// `--ebpf-packets`
    pub ebpf_packets: Option<Packets>,
    /// `--ebpf-tracked`
    pub ebpf_tracked: Option<u32>,
    /// Flags of kube-proxy that were given and change nothing here.
    pub without_effect: Vec<&'static str>,
}

/// Whose addresses count as pods'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRanges {
    /// Those in these ranges; empty: nobody's.
    Cluster(Vec<IpNet>),
    /// Those in the ranges that the Node object names: the node's own pods.
    Node,
    /// Those that are reached through these interfaces: the node's own pods.
    Interfaces(PodInterfaces),
}

/// The interfaces of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodInterfaces {
    /// The bridge that all of them are on.
    Bridge(String),
    /// Each pod has one whose name begins so.
    Prefix(String),
}

impl PodInterfaces {
    /// Whether an interface is one of them.
    pub fn has(&self, interface: &str) -> bool {
        match self {
            PodInterfaces::Bridge(name) => interface == name,
            PodInterfaces::Prefix(prefix) => interface.starts_with(prefix.as_str()),
        }
    }
}

/// What the daemon runs with.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Name of the Node object.
    pub node: Arc<str>,
    /// Where the API is; `None`: what the pod's service account says.
    pub kubeconfig: Option<PathBuf>,
    /// Replaces the address of the API.
    pub master: Option<String>,
    /// The mode that was asked for.
    pub mode: ModeName,
    /// Who counts as a pod.
    pub pods: PodRanges,
    /// Masquerade whatever goes to a cluster address.
    pub masquerade_all: bool,
    /// Where node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// Whether they may answer at 127.0.0.1 in the mode iptables.
    pub localhost_node_ports: bool,
    /// Whether `loadBalancerSourceRanges` guard a Service's node ports, too.
    pub source_ranges_on_node_ports: bool,
    /// Whether load-balancer addresses of our pools answer ping.
    pub answer_ping: bool,
    /// Whether conntrack is told to accept TCP packets out of their window.
    pub tcp_be_liberal: bool,
    /// Where `/healthz` listens; `None`: nowhere.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` listens; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Least time between two changes of the kernel; zero: as fast as the kernel takes them, with as much rest as work.
    pub min_sync_period: Duration,
    /// How often the kernel is compared with what it should hold.
    pub sync_period: Duration,
    /// How the mode IPVS is run.
    pub ipvs: IpvsConfig,
    /// How long conntrack remembers flows.
    pub conntrack: Timeouts,
    /// Whether rules that another proxy left are replaced.
    pub take_over: bool,
    /// Where the programs of the mode eBPF hang, and how large its maps are.
    pub ebpf: KernelConfig,
    /// What flags and file ask for that this program does not do.
    pub ignored: Vec<&'static str>,
    /// Who looks for what is not well on the node; `None`: nobody.
    pub look: Option<Look>,
}

/// Reads a configuration file.
///
/// # Errors
/// It cannot be read, or something in it is wrong: then the error says where.
pub fn read(path: &Path) -> Result<KubeProxyConfiguration, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<KubeProxyConfiguration, ConfigError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let location = error.location();
        let line = location.map_or(1, |location| location.line());
        let column = location.map_or(1, |location| location.column());
        // The library ends its text with the place, which stands in front here.
        let reason = error.without_snippet().to_string();
        let reason = reason.split(" at line ").next().unwrap_or(&reason).to_owned();
        ConfigError::Content { path: path.to_path_buf(), line, column, field: path::field_at(text, line), reason }
    })
}

impl NodeOptions {
    /// Puts file and flags together. `hostname`: the machine's, for want of a name.
    ///
    /// # Errors
    /// Something that must be known is missing, or asks for what is not built.
    pub fn new(
        flags: Flags,
        file: KubeProxyConfiguration,
        hostname: Option<String>,
    ) -> Result<NodeOptions, ConfigError> {
        let ignored = [flags.without_effect, file.ignored()].concat();
        let mode = flags.proxy_mode.or(file.mode).unwrap_or_default();
        let common = file.common(mode);
        let ipvs = ipvs::config(flags.ipvs, file.ipvs());
        let conntrack = file.timeouts();
        let node =
            node_name(flags.hostname_override.or(file.hostname_override.filter(|name| !name.is_empty())).or(hostname))?;
        let ranges = flags.cluster_cidr.or(file.cluster_cidr).unwrap_or_default().0;
        let detect = file.detect_local.unwrap_or_default();
        let localhost = file.iptables.as_ref().and_then(|mode| mode.localhost_node_ports);
        let liberal = file.conntrack.as_ref().and_then(|conntrack| conntrack.tcp_be_liberal);
        let pods = match flags.detect_local_mode.or(file.detect_local_mode).as_deref() {
            None | Some("") => PodRanges::Cluster(ranges),
            Some("ClusterCIDR") if ranges.is_empty() => return Err(ConfigError::NoClusterCidr),
            Some("ClusterCIDR") => PodRanges::Cluster(ranges),
            Some("NodeCIDR") => PodRanges::Node,
            Some("BridgeInterface") => {
                let name = flags.pod_bridge_interface.or(detect.bridge_interface).filter(|name| !name.is_empty());
                let (mode, field, flag) = ("BridgeInterface", "bridgeInterface", "pod-bridge-interface");
                let name = name.ok_or(ConfigError::NoInterface { mode, field, flag })?;
                PodRanges::Interfaces(PodInterfaces::Bridge(name))
            }
            Some("InterfaceNamePrefix") => {
                let prefix = flags.pod_interface_name_prefix.or(detect.interface_name_prefix);
                let prefix = prefix.filter(|prefix| !prefix.is_empty());
                let (mode, field, flag) = ("InterfaceNamePrefix", "interfaceNamePrefix", "pod-interface-name-prefix");
                let prefix = prefix.ok_or(ConfigError::NoInterface { mode, field, flag })?;
                PodRanges::Interfaces(PodInterfaces::Prefix(prefix))
            }
            Some(other) => return Err(ConfigError::DetectLocalMode { mode: other.to_owned() }),
        };
        let ebpf = KernelConfig::default();
        let ebpf = KernelConfig {
            pins: flags.bpf_directory.unwrap_or(ebpf.pins),
            cgroup: flags.cgroup_root,
            frontends: flags.ebpf_frontends.unwrap_or(ebpf.frontends),
            slots: flags.ebpf_backends.unwrap_or(ebpf.slots),
            remembered: flags.ebpf_remembered.unwrap_or(ebpf.remembered),
            counting: if flags.ebpf_count_packets { Counting::Packets } else { ebpf.counting },
            packets: flags.ebpf_packets.unwrap_or(ebpf.packets),
            tracked: flags.ebpf_tracked.unwrap_or(ebpf.tracked),
        };
        let kubeconfig = file.client_connection.and_then(|client| client.kubeconfig);
        let node_ports = flags.nodeport_addresses.or(file.node_port_addresses).unwrap_or_default();
        Ok(NodeOptions {
            node,
            kubeconfig: flags.kubeconfig.or(kubeconfig).filter(|path| !path.as_os_str().is_empty()),
            master: flags.master.filter(|master| !master.is_empty()),
            mode,
            pods,
            masquerade_all: flags.masquerade_all.or(common.masquerade_all).unwrap_or(false),
            node_port_addresses: node_ports.0,
            localhost_node_ports: flags.iptables_localhost_nodeports.or(localhost).unwrap_or(true),
            source_ranges_on_node_ports: flags
                .source_ranges_on_node_ports
                .or(file.load_balancer_source_ranges_on_node_ports)
                .unwrap_or(false),
            answer_ping: file.load_balancer_addresses_answer_ping.unwrap_or(true),
            tcp_be_liberal: flags.conntrack_tcp_be_liberal.or(liberal).unwrap_or(false),
            healthz: bind(flags.healthz_bind_address, file.healthz_bind_address, "0.0.0.0", HEALTHZ_PORT),
            metrics: bind(flags.metrics_bind_address, file.metrics_bind_address, "127.0.0.1", METRICS_PORT),
            min_sync_period: flags.min_sync_period.or(common.min_sync_period).unwrap_or_default().0,
            sync_period: flags
                .sync_period
                .or(common.sync_period)
                .map(|period| period.0)
                .filter(|period| !period.is_zero())
                .unwrap_or(SYNC_PERIOD),
            ipvs,
            conntrack,
            take_over: flags.take_over,
            ebpf,
            ignored,
            look: None,
        })
    }
}

/// An empty flag turns a listener off; an empty field of the file means the default, as with kube-proxy.
fn bind(flag: Option<BindAddress>, file: Option<BindAddress>, default: &str, port: u16) -> Option<SocketAddr> {
    let chosen = match flag {
        Some(BindAddress { address: None, .. }) => return None,
        Some(given) => given,
        None => file.unwrap_or(BindAddress { address: None, port: None }),
    };
    let address = chosen.address.unwrap_or_else(|| default.parse().expect("the default is an address"));
    Some(SocketAddr::new(address, chosen.port.unwrap_or(port)))
}

fn node_name(name: Option<String>) -> Result<Arc<str>, ConfigError> {
    let name = name.unwrap_or_default().trim().to_lowercase();
    if name.is_empty() {
        return Err(ConfigError::NoName);
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.len() > 253 || !name.chars().all(allowed) { Err(ConfigError::BadName { name }) } else { Ok(name.into()) }
}

#[cfg(test)]
mod tests;
