//! Pure. The values of the configuration, each from its text. The same for a flag and for a field of the file.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use signpost_core::planner::NodePortAddresses;
use signpost_datapath::ipvs::server::UnknownScheduler;

/// Why a text is not a value; the same words for flag and file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a duration.
    #[error("{0:?} is not a duration such as 30s, 1m30s or 500ms")]
    Duration(String),
    /// Not an address to listen at.
    #[error("{0:?} is not an address such as 0.0.0.0:10256 or [::]:10256")]
    Bind(String),
    /// Not a range.
    #[error("{0:?} is not an address range such as 10.244.0.0/16")]
    Range(String),
    /// Not where node ports can answer.
    #[error("{0:?} is not an address range such as 172.18.0.0/16, nor the word primary alone")]
    NodePorts(String),
    /// Not a mode.
    #[error("{0:?} is not a proxy mode: there are auto, nftables, ebpf, ipvs and iptables")]
    Mode(String),
    /// Not a scheduler of IPVS.
    #[error(transparent)]
    Scheduler(UnknownScheduler),
    /// Another version of the file.
    #[error("{0:?} is not kubeproxy.config.k8s.io/v1alpha1")]
    ApiVersion(String),
    /// Another kind of file.
    #[error("{0:?} is not KubeProxyConfiguration")]
    Kind(String),
}

/// A proxy mode, as it is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ModeName {
    /// The best that this node can.
    #[default]
    Auto,
    /// Rules of nftables.
    Nftables,
    /// BPF programs.
    Ebpf,
    /// The kernel's virtual servers.
    Ipvs,
    /// Rules of iptables.
    Iptables,
}

impl FromStr for ModeName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<ModeName, ValueError> {
        match text {
            "" | "auto" => Ok(ModeName::Auto),
            "nftables" => Ok(ModeName::Nftables),
            "ebpf" => Ok(ModeName::Ebpf),
            "ipvs" => Ok(ModeName::Ipvs),
            "iptables" => Ok(ModeName::Iptables),
            other => Err(ValueError::Mode(other.to_owned())),
        }
    }
}

/// A duration as Go writes it: `1h30m`, `1.5s`, `500ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct GoDuration(pub Duration);

impl FromStr for GoDuration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<GoDuration, ValueError> {
        let wrong = || ValueError::Duration(text.to_owned());
        if text == "0" {
            return Ok(GoDuration(Duration::ZERO));
        }
        let mut rest = text;
        let mut sum_s = 0.0_f64;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let number_ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let number: f64 = rest[..number_ends].parse().map_err(|_| wrong())?;
            rest = &rest[number_ends..];
            let unit_ends = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            sum_s += number
                * match &rest[..unit_ends] {
                    "h" => 3600.0,
                    "m" => 60.0,
                    "s" => 1.0,
                    "ms" => 1e-3,
                    "us" | "µs" => 1e-6,
                    "ns" => 1e-9,
                    _ => return Err(wrong()),
                };
            rest = &rest[unit_ends..];
        }
        Duration::try_from_secs_f64(sum_s).map(GoDuration).map_err(|_| wrong())
    }
}

/// `IP`, `IP:PORT`, `:PORT`, or nothing. What is missing is the default, or, as a flag without any, off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BindAddress {
    /// The address, if any.
    pub address: Option<IpAddr>,
    /// The port, if any.
    pub port: Option<u16>,
}

impl FromStr for BindAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<BindAddress, ValueError> {
        if text.is_empty() {
            return Ok(BindAddress { address: None, port: None });
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse() {
            return Ok(BindAddress { address: Some(address), port: None });
        }
        let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
        let full: SocketAddr = full.parse().map_err(|_| ValueError::Bind(text.to_owned()))?;
        Ok(BindAddress { address: Some(full.ip()), port: Some(full.port()) })
    }
}

/// Ranges of pod addresses, with commas between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PodCidrs(pub Vec<IpNet>);

impl FromStr for PodCidrs {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<PodCidrs, ValueError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let ranges = parts.map(|part| part.parse::<IpNet>().map_err(|_| ValueError::Range(part.to_owned())));
        Ok(PodCidrs(ranges.collect::<Result<_, _>>()?))
    }
}

/// `nodePortAddresses`: ranges, or `primary` alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct NodePortRanges(pub NodePortAddresses);

impl TryFrom<Vec<String>> for NodePortRanges {
    type Error = ValueError;

    fn try_from(texts: Vec<String>) -> Result<NodePortRanges, ValueError> {
        if texts.is_empty() || texts == ["primary"] {
            return Ok(NodePortRanges(NodePortAddresses::Primary));
        }
        if texts == ["all"] {
            return Ok(NodePortRanges(NodePortAddresses::All));
        }
        let ranges = texts.into_iter().map(|text| text.parse().map_err(|_| ValueError::NodePorts(text)));
        Ok(NodePortRanges(NodePortAddresses::Cidrs(ranges.collect::<Result<_, _>>()?)))
    }
}

impl FromStr for NodePortRanges {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<NodePortRanges, ValueError> {
        let parts = text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty());
        NodePortRanges::try_from(parts.collect::<Vec<String>>())
    }
}

/// `apiVersion` of the file.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct ApiVersion;

/// `kind` of the file.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct FileKind;

impl FromStr for ApiVersion {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<ApiVersion, ValueError> {
        if text == "kubeproxy.config.k8s.io/v1alpha1" {
            Ok(ApiVersion)
        } else {
            Err(ValueError::ApiVersion(text.to_owned()))
        }
    }
}

impl FromStr for FileKind {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<FileKind, ValueError> {
        if text == "KubeProxyConfiguration" { Ok(FileKind) } else { Err(ValueError::Kind(text.to_owned())) }
    }
}

/// Serde reads each from its text, with the same errors.
macro_rules! from_text {
    ($($value:ty),*) => {$(
        impl TryFrom<String> for $value {
            type Error = ValueError;

            fn try_from(text: String) -> Result<$value, ValueError> {
                text.parse()
            }
        }
    )*};
}

from_text!(ModeName, GoDuration, BindAddress, PodCidrs, ApiVersion, FileKind);
