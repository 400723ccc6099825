//! Pure. What is asked of the mode IPVS, by kube-proxy's flags and by the file's field `ipvs`.

use std::str::FromStr;

use ipnet::IpNet;
use serde::Deserialize;
use signpost_datapath::ipvs::{IpvsConfig, Scheduler};

use super::file::Mode;
use super::values::{GoDuration, PodCidrs, ValueError};

/// The flags that begin with `--ipvs-`, as given.
#[derive(Debug, Clone, Default)]
pub struct IpvsFlags {
    /// `--ipvs-scheduler`
    pub scheduler: Option<SchedulerName>,
    /// `--ipvs-strict-arp`
    pub strict_arp: Option<bool>,
    /// `--ipvs-exclude-cidrs`
    pub exclude_cidrs: Option<PodCidrs>,
    /// `--ipvs-tcp-timeout`
    pub tcp_timeout: Option<GoDuration>,
    /// `--ipvs-tcpfin-timeout`
    pub tcp_fin_timeout: Option<GoDuration>,
    /// `--ipvs-udp-timeout`
    pub udp_timeout: Option<GoDuration>,
}

/// `scheduler`; empty: the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SchedulerName(Option<Scheduler>);

impl FromStr for SchedulerName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<SchedulerName, ValueError> {
        if text.is_empty() {
            return Ok(SchedulerName(None));
        }
        text.parse().map(|scheduler| SchedulerName(Some(scheduler))).map_err(ValueError::Scheduler)
    }
}

impl TryFrom<String> for SchedulerName {
    type Error = ValueError;

    fn try_from(text: String) -> Result<SchedulerName, ValueError> {
        text.parse()
    }
}

/// `excludeCIDRs`: a list, each a range.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub(super) struct ExcludedRanges(Vec<IpNet>);

impl TryFrom<Vec<String>> for ExcludedRanges {
    type Error = ValueError;

    fn try_from(texts: Vec<String>) -> Result<ExcludedRanges, ValueError> {
        let ranges = texts.into_iter().map(|text| text.parse().map_err(|_| ValueError::Range(text)));
        Ok(ExcludedRanges(ranges.collect::<Result<_, _>>()?))
    }
}

/// Flags and file together; a flag wins.
pub(super) fn config(flags: IpvsFlags, file: Mode) -> IpvsConfig {
    let time = |flag: Option<GoDuration>, file: Option<GoDuration>| flag.or(file).unwrap_or_default().0;
    let scheduler = flags.scheduler.or(file.scheduler).unwrap_or_default();
    let exclude = flags.exclude_cidrs.map(|ranges| ranges.0);
    IpvsConfig {
        scheduler: scheduler.0.unwrap_or_default(),
        strict_arp: flags.strict_arp.or(file.strict_arp).unwrap_or(false),
        exclude: exclude.unwrap_or_else(|| file.exclude_cidrs.unwrap_or_default().0),
        timeouts: [
            time(flags.tcp_timeout, file.tcp_timeout),
            time(flags.tcp_fin_timeout, file.tcp_fin_timeout),
            time(flags.udp_timeout, file.udp_timeout),
        ],
        ..IpvsConfig::default()
    }
}
