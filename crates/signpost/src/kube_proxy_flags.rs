//! Flags of kube-proxy that change nothing here. They are taken, so that the arguments of a kube-proxy manifest work, and
//! named in the log, so that nobody relies on them. `--init-only` and `--write-config-to` ask for another program's work
//! and stay unknown.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// With a value.
const VALUES: [&str; 29] = [
    "bind-address",
    "boot-id-file",
    "config-sync-period",
    "conntrack-max-per-core",
    "conntrack-min",
    "conntrack-tcp-timeout-close-wait",
    "conntrack-tcp-timeout-established",
    "conntrack-udp-timeout",
    "conntrack-udp-timeout-stream",
    "feature-gates",
    "iptables-masquerade-bit",
    "iptables-min-sync-period",
    "iptables-sync-period",
    "ipvs-min-sync-period",
    "ipvs-sync-period",
    "kube-api-burst",
    "kube-api-content-type",
    "kube-api-qps",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "machine-id-file",
    "oom-score-adj",
    "proxy-port-range",
    "show-hidden-metrics-for-version",
    "vmodule",
];
/// Switches: alone, or with =true or =false.
const SWITCHES: [&str; 9] = [
    "add_dir_header",
    "alsologtostderr",
    "bind-address-hard-fail",
    "log-json-split-stream",
    "logtostderr",
    "one_output",
    "profiling",
    "skip_headers",
    "skip_log_headers",
];

/// The names of those that were given.
#[derive(Debug, Clone, Default)]
pub struct KubeProxyFlags(pub Vec<&'static str>);

impl Args for KubeProxyFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name).hide(true).action(ArgAction::Append);
        let values = VALUES.into_iter().map(|name| flag(name).num_args(1).allow_hyphen_values(true));
        let switch = |name| flag(name).num_args(0..=1).require_equals(true).default_missing_value("true");
        command.args(values).args(SWITCHES.into_iter().map(switch))
    }

    fn augment_args_for_update(command: Command) -> Command {
        KubeProxyFlags::augment_args(command)
    }
}

impl FromArgMatches for KubeProxyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<KubeProxyFlags, Error> {
        let all = VALUES.into_iter().chain(SWITCHES);
        Ok(KubeProxyFlags(all.filter(|name| matches.value_source(name) == Some(ValueSource::CommandLine)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = KubeProxyFlags::from_arg_matches(matches)?;
        Ok(())
    }
}
