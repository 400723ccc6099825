//! Which mode the daemon runs in, and whether this machine can.

use std::ffi::OsStr;
use std::fmt;

use serde::Serialize;
use signpost_datapath::probe::{self, ProbeError};

use crate::config::ModeName;

/// A mode that is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Rules of nftables.
    Nftables,
    /// Rules of iptables.
    Iptables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
        })
    }
}

/// Why the mode cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// Not built.
    #[error(
        "proxy mode {asked} is not built yet; this program has nftables, iptables and auto, which takes the best there is"
    )]
    NotBuilt {
        /// What was asked for.
        asked: &'static str,
    },
    /// This machine cannot.
    #[error(transparent)]
    Machine(#[from] ProbeError),
}

/// The mode for what was asked, with the reason for it.
///
/// # Errors
/// It is not built.
pub fn choose(asked: ModeName) -> Result<(Mode, &'static str), ModeError> {
    match asked {
        ModeName::Auto => Ok((Mode::Nftables, "auto: the best mode that is built")),
        ModeName::Nftables => Ok((Mode::Nftables, "asked for")),
        ModeName::Ebpf => Err(ModeError::NotBuilt { asked: "ebpf" }),
        ModeName::Ipvs => Err(ModeError::NotBuilt { asked: "ipvs" }),
        ModeName::Iptables => Ok((Mode::Iptables, "asked for")),
    }
}

/// Whether this machine can.
///
/// # Errors
/// The kernel is too old, a tool is missing, or this process may not.
pub fn check(mode: Mode) -> Result<(), ModeError> {
    match mode {
        Mode::Nftables => Ok(probe::nftables(OsStr::new("nft"))?),
        Mode::Iptables => Ok(probe::iptables()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_what_is_built_and_what_is_not_is_refused_by_name() {
        assert_eq!(choose(ModeName::Auto).unwrap().0, Mode::Nftables);
        assert_eq!(choose(ModeName::Iptables).unwrap().0, Mode::Iptables);
        for asked in [ModeName::Ebpf, ModeName::Ipvs] {
            assert!(choose(asked).unwrap_err().to_string().contains("is not built yet; this program has nftables"));
        }
    }
}
