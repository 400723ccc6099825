//! Pure. `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`, every field of it, so that a file written for
//! kube-proxy is read; three fields at the top (`masqueradeAll`, `syncPeriod`, `minSyncPeriod`) that hold in any mode; and
//! `loadBalancerSourceRangesOnNodePorts` and `loadBalancerAddressesAnswerPing`, which kube-proxy lacks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ipvs::{ExcludedRanges, SchedulerName};
use super::values::{ApiVersion, BindAddress, FileKind, GoDuration, ModeName, NodePortRanges, PodCidrs};
use crate::timeouts::Timeouts;

/// The file. Absent and `null` are the same everywhere.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeProxyConfiguration {
    api_version: Option<ApiVersion>,
    kind: Option<FileKind>,
    pub(super) hostname_override: Option<String>,
    pub(super) client_connection: Option<ClientConnection>,
    pub(super) mode: Option<ModeName>,
    pub(super) iptables: Option<Mode>,
    ipvs: Option<Mode>,
    nftables: Option<Mode>,
    pub(super) masquerade_all: Option<bool>,
    pub(super) sync_period: Option<GoDuration>,
    pub(super) min_sync_period: Option<GoDuration>,
    #[serde(rename = "clusterCIDR")]
    pub(super) cluster_cidr: Option<PodCidrs>,
    pub(super) detect_local_mode: Option<String>,
    pub(super) detect_local: Option<DetectLocal>,
    pub(super) load_balancer_source_ranges_on_node_ports: Option<bool>,
    pub(super) load_balancer_addresses_answer_ping: Option<bool>,
    pub(super) node_port_addresses: Option<NodePortRanges>,
    pub(super) healthz_bind_address: Option<BindAddress>,
    pub(super) metrics_bind_address: Option<BindAddress>,
    bind_address: Option<IgnoredAny>,
    bind_address_hard_fail: Option<bool>,
    pub(super) conntrack: Option<Conntrack>,
    feature_gates: Option<BTreeMap<String, bool>>,
    enable_profiling: Option<bool>,
    oom_score_adj: Option<IgnoredAny>,
    logging: Option<IgnoredAny>,
    config_sync_period: Option<IgnoredAny>,
    show_hidden_metrics_for_version: Option<IgnoredAny>,
    port_range: Option<String>,
    winkernel: Option<IgnoredAny>,
    windows_run_as_service: Option<IgnoredAny>,
}

/// How to reach the API.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ClientConnection {
    pub(super) kubeconfig: Option<PathBuf>,
    accept_content_types: Option<IgnoredAny>,
    content_type: Option<IgnoredAny>,
    qps: Option<IgnoredAny>,
    burst: Option<IgnoredAny>,
}

/// How pods are told by the interfaces that they are behind.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct DetectLocal {
    pub(super) bridge_interface: Option<String>,
    pub(super) interface_name_prefix: Option<String>,
}

/// `iptables`, `ipvs` and `nftables`, which share most fields.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Mode {
    pub(super) masquerade_all: Option<bool>,
    pub(super) sync_period: Option<GoDuration>,
    pub(super) min_sync_period: Option<GoDuration>,
    masquerade_bit: Option<u8>,
    pub(super) localhost_node_ports: Option<bool>,
    pub(super) scheduler: Option<SchedulerName>,
    #[serde(rename = "excludeCIDRs")]
    pub(super) exclude_cidrs: Option<ExcludedRanges>,
    #[serde(rename = "strictARP")]
    pub(super) strict_arp: Option<bool>,
    pub(super) tcp_timeout: Option<GoDuration>,
    pub(super) tcp_fin_timeout: Option<GoDuration>,
    pub(super) udp_timeout: Option<GoDuration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Conntrack {
    max_per_core: Option<i64>,
    min: Option<i64>,
    tcp_established_timeout: Option<GoDuration>,
    tcp_close_wait_timeout: Option<GoDuration>,
    pub(super) tcp_be_liberal: Option<bool>,
    udp_timeout: Option<GoDuration>,
    udp_stream_timeout: Option<GoDuration>,
}

impl KubeProxyConfiguration {
    /// The fields that every mode has, for this one; those at the top win.
    pub(super) fn common(&self, mode: ModeName) -> Mode {
        let section = match mode {
            ModeName::Iptables => &self.iptables,
            ModeName::Ipvs => &self.ipvs,
            ModeName::Auto | ModeName::Nftables | ModeName::Ebpf => &self.nftables,
        };
        let mut common = section.clone().unwrap_or_default();
        common.masquerade_all = self.masquerade_all.or(common.masquerade_all);
        // Zero stands for the default in kube-proxy's files.
        common.sync_period = self.sync_period.or(common.sync_period);
        common.min_sync_period = self.min_sync_period.or(common.min_sync_period);
        common
    }

    /// What it says of the mode IPVS.
    pub(super) fn ipvs(&self) -> Mode {
        self.ipvs.clone().unwrap_or_default()
    }

    /// The `conntrack` timeouts: unset means kube-proxy's default, zero that the kernel's stays.
    pub(super) fn timeouts(&self) -> Timeouts {
        let default = Timeouts::default();
        let Some(conntrack) = &self.conntrack else { return default };
        let or = |given: Option<GoDuration>, default: Option<Duration>| {
            given.map_or(default, |given| Some(given.0).filter(|given| !given.is_zero()))
        };
        Timeouts {
            tcp_established: or(conntrack.tcp_established_timeout, default.tcp_established),
            tcp_close_wait: or(conntrack.tcp_close_wait_timeout, default.tcp_close_wait),
            udp: or(conntrack.udp_timeout, default.udp),
            udp_stream: or(conntrack.udp_stream_timeout, default.udp_stream),
        }
    }

    /// The fields that are set to something and change nothing here.
    pub(super) fn ignored(&self) -> Vec<&'static str> {
        let conntrack = self.conntrack.as_ref().is_some_and(Conntrack::says_something);
        let modes = [&self.iptables, &self.ipvs, &self.nftables];
        let bit = modes.into_iter().flatten().any(|mode| mode.masquerade_bit.is_some_and(|bit| bit != 14));
        [
            ("conntrack.maxPerCore, min", conntrack),
            ("masqueradeBit", bit),
            ("featureGates", self.feature_gates.as_ref().is_some_and(|gates| !gates.is_empty())),
            ("portRange", self.port_range.as_ref().is_some_and(|range| !range.is_empty())),
            ("enableProfiling", self.enable_profiling == Some(true)),
            ("bindAddressHardFail", self.bind_address_hard_fail == Some(true)),
        ]
        .into_iter()
        .filter_map(|(field, set)| set.then_some(field))
        .collect()
    }
}

impl Conntrack {
    fn says_something(&self) -> bool {
        self.max_per_core.is_some_and(|value| value != 0) || self.min.is_some_and(|value| value != 0)
    }
}
