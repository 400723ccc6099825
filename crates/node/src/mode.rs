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

/// The mode that is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// This one.
    pub mode: Mode,
    /// Whether it was asked for by its name.
    pub is_asked_for: bool,
    /// What speaks against each better one.
    pub instead_of: Vec<String>,
}

impl Chosen {
    /// Why it is taken.
    pub fn reason(&self) -> String {
        match (self.is_asked_for, self.instead_of.as_slice()) {
            (true, _) => "asked for".to_owned(),
            (false, []) => "auto: the best mode".to_owned(),
            (false, problems) => format!("auto: {}", problems.join("; ")),
        }
    }
}

/// The mode for what was asked: `auto` is the best that is built and of which `check` says that this machine can.
///
/// # Errors
/// This machine cannot; for `auto`, what speaks against the best mode.
pub fn choose(asked: ModeName, check: impl Fn(Mode) -> Result<(), ModeError>) -> Result<Chosen, ModeError> {
    let asked_for = |mode| check(mode).map(|()| Chosen { mode, is_asked_for: true, instead_of: Vec::new() });
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

fn best(check: impl Fn(Mode) -> Result<(), ModeError>) -> Result<Chosen, ModeError> {
    let mut problems: Vec<(Mode, ModeError)> = Vec::new();
    for mode in BEST_FIRST {
        match check(mode) {
            Ok(()) => {
                let told = problems.iter().map(|(mode, problem)| format!("{mode} cannot be used here: {problem}"));
                return Ok(Chosen { mode, is_asked_for: false, instead_of: told.collect() });
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

    /// What a machine lacks for a mode, as the probe says it.
    fn lacks(mode: Mode) -> ModeError {
        ModeError::Machine(match mode {
            Mode::Ebpf => ProbeError::NoEbpf { said: "no such program type".to_owned() },
            Mode::Nftables => ProbeError::NoNftables { said: "no such table".to_owned() },
            Mode::Iptables => ProbeError::NoIptables { program: "iptables-restore" },
            Mode::Ipvs => ProbeError::NoIpvs,
        })
    }

    #[test]
    fn auto_takes_the_best_that_works_and_says_what_was_wrong_with_each_better_one() {
        use Mode::{Ebpf, Iptables, Nftables};
        // What is missing -> what is taken, in place of what.
        for (missing, taken, instead_of) in [
            (&[][..], Ebpf, &[][..]),
            (&[Ebpf], Nftables, &[Ebpf]),
            (&[Nftables], Ebpf, &[]),
            (&[Ebpf, Nftables], Iptables, &[Ebpf, Nftables]),
            (&[Iptables], Ebpf, &[]),
            (&[Ebpf, Iptables], Nftables, &[Ebpf]),
            (&[Nftables, Iptables], Ebpf, &[]),
        ] {
            let check = |mode| if missing.contains(&mode) { Err(lacks(mode)) } else { Ok(()) };
            let chosen = choose(ModeName::Auto, check).unwrap();
            assert_eq!((chosen.mode, chosen.is_asked_for), (taken, false), "{missing:?}");
            let told: Vec<_> =
                instead_of.iter().map(|mode| format!("{mode} cannot be used here: {}", lacks(*mode))).collect();
            assert_eq!(chosen.instead_of, told);
            let reason = if told.is_empty() { "the best mode".to_owned() } else { told.join("; ") };
            assert_eq!(chosen.reason(), format!("auto: {reason}"));
        }
        let error = choose(ModeName::Auto, |mode| Err(lacks(mode))).unwrap_err();
        assert_eq!(error.to_string(), lacks(Nftables).to_string());
    }

    #[test]
    fn a_mode_that_was_asked_for_is_taken_or_refused_never_replaced() {
        let iptables_only = |mode| if mode == Mode::Iptables { Ok(()) } else { Err(lacks(mode)) };
        let chosen = choose(ModeName::Iptables, iptables_only).unwrap();
        assert_eq!((chosen.mode, chosen.reason()), (Mode::Iptables, "asked for".to_owned()));
        choose(ModeName::Nftables, iptables_only).unwrap_err();
        choose(ModeName::Ipvs, iptables_only).unwrap_err();
        choose(ModeName::Ebpf, iptables_only).unwrap_err();
        for (asked, mode) in [(ModeName::Ebpf, Mode::Ebpf), (ModeName::Ipvs, Mode::Ipvs)] {
            assert_eq!(choose(asked, |_| Ok(())).unwrap().mode, mode);
        }
    }
}
