//! Which mode the daemon runs in, and whether this machine can.

use std::ffi::OsStr;
use std::fmt;

use serde::{Deserialize, Serialize};
use signpost_datapath::probe::{self, ProbeError};

use crate::config::ModeName;

/// A mode that is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Programs at the sockets, and rules of nftables for what they leave alone.
    Ebpf,
    /// Rules of nftables.
    Nftables,
    /// Rules of iptables.
    Iptables,
    /// The kernel's virtual servers.
    Ipvs,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Ebpf => "ebpf",
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        })
    }
}

/// Why the mode cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// This machine cannot.
    #[error(transparent)]
    Machine(#[from] ProbeError),
}

/// The mode for what was asked, with the reason for it: `auto` is the best that is built and of which `check` says that
/// this machine can.
///
/// # Errors
/// This machine cannot; for `auto`, what speaks against the best mode.
pub fn choose(asked: ModeName, check: impl Fn(Mode) -> Result<(), ModeError>) -> Result<(Mode, String), ModeError> {
    let asked_for = |mode| check(mode).map(|()| (mode, "asked for".to_owned()));
    match asked {
        ModeName::Auto => best(check),
        ModeName::Nftables => asked_for(Mode::Nftables),
        ModeName::Ebpf => asked_for(Mode::Ebpf),
        ModeName::Ipvs => asked_for(Mode::Ipvs),
        ModeName::Iptables => asked_for(Mode::Iptables),
    }
}

/// The order in which `auto` tries: what costs a connection least comes first.
const BEST_FIRST: [Mode; 3] = [Mode::Ebpf, Mode::Nftables, Mode::Iptables];

fn best(check: impl Fn(Mode) -> Result<(), ModeError>) -> Result<(Mode, String), ModeError> {
    let mut problems: Vec<(Mode, ModeError)> = Vec::new();
    for mode in BEST_FIRST {
        match check(mode) {
            Ok(()) if problems.is_empty() => return Ok((mode, "auto: the best mode".to_owned())),
            Ok(()) => {
                let told: Vec<String> =
                    problems.iter().map(|(mode, problem)| format!("{mode} cannot be used here: {problem}")).collect();
                return Ok((mode, format!("auto: {}", told.join("; "))));
            }
            Err(problem) => problems.push((mode, problem)),
        }
    }
    // What would bring nftables brings the rules beneath the sockets, too: it is the best advice.
    let nftables = problems.into_iter().find(|(mode, _)| *mode == Mode::Nftables);
    Err(nftables.expect("it was tried").1)
}

/// Whether this machine can.
///
/// # Errors
/// The kernel is too old, a tool is missing, or this process may not.
pub fn check(mode: Mode) -> Result<(), ModeError> {
    match mode {
        Mode::Ebpf => Ok(probe::ebpf(OsStr::new("nft"))?),
        Mode::Nftables => Ok(probe::nftables(OsStr::new("nft"))?),
        Mode::Iptables => Ok(probe::iptables()?),
        Mode::Ipvs => Ok(probe::ipvs()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(_: Mode) -> Result<(), ModeError> {
        Ok(())
    }

    fn none(_: Mode) -> Result<(), ModeError> {
        Err(ModeError::Machine(ProbeError::NotPermitted))
    }

    fn iptables_only(mode: Mode) -> Result<(), ModeError> {
        if mode == Mode::Iptables { Ok(()) } else { none(mode) }
    }

    fn no_ebpf(mode: Mode) -> Result<(), ModeError> {
        if mode == Mode::Ebpf { none(mode) } else { Ok(()) }
    }

    #[test]
    fn auto_takes_the_best_that_works_and_says_what_was_wrong_with_a_better_one() {
        assert_eq!(choose(ModeName::Auto, all).unwrap().0, Mode::Ebpf);
        let (mode, reason) = choose(ModeName::Auto, no_ebpf).unwrap();
        assert_eq!(mode, Mode::Nftables);
        assert!(reason.starts_with("auto: ebpf cannot be used here: "), "{reason}");
        let (mode, reason) = choose(ModeName::Auto, iptables_only).unwrap();
        assert_eq!(mode, Mode::Iptables);
        assert!(reason.contains("; nftables cannot be used here: "), "{reason}");
        choose(ModeName::Auto, none).unwrap_err();
    }

    #[test]
    fn a_mode_that_was_asked_for_is_taken_or_refused_never_replaced() {
        assert_eq!(choose(ModeName::Iptables, all).unwrap().0, Mode::Iptables);
        choose(ModeName::Nftables, iptables_only).unwrap_err();
        choose(ModeName::Ipvs, iptables_only).unwrap_err();
        for (asked, mode) in [(ModeName::Ebpf, Mode::Ebpf), (ModeName::Ipvs, Mode::Ipvs)] {
            assert_eq!(choose(asked, all).unwrap().0, mode);
        }
    }
}
