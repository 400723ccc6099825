//! Which mode the daemon runs in, and whether this machine can.

use std::fmt;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::config::ModeName;

/// The oldest kernel that the rules are made for.
const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// A mode that is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Rules of nftables.
    Nftables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
        })
    }
}

/// Why the mode cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// Not built.
    #[error("proxy mode {asked} is not built yet; this program has nftables (and auto, which takes the best there is)")]
    NotBuilt {
        /// What was asked for.
        asked: &'static str,
    },
    /// The kernel is too old.
    #[error("Linux {release} is too old: nftables mode needs 6.1 or newer")]
    OldKernel {
        /// As the kernel says it.
        release: String,
    },
    /// The tool is missing.
    #[error("nft cannot be run ({source}): install the package nftables")]
    NoNft {
        /// Why.
        #[source]
        source: std::io::Error,
    },
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
        ModeName::Iptables => Err(ModeError::NotBuilt { asked: "iptables" }),
    }
}

/// Whether this machine can.
///
/// # Errors
/// The kernel is too old, or a tool is missing.
pub fn check(mode: Mode) -> Result<(), ModeError> {
    match mode {
        Mode::Nftables => {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            if is_too_old(&release) {
                return Err(ModeError::OldKernel { release: release.trim().to_owned() });
            }
            let run = Command::new("nft").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            run.map(|_| ()).map_err(|source| ModeError::NoNft { source })
        }
    }
}

/// A release that cannot be read is not held against the kernel.
fn is_too_old(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST_KERNEL,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_what_is_built_and_what_is_not_is_refused_by_name() {
        assert_eq!(choose(ModeName::Auto).unwrap().0, Mode::Nftables);
        for asked in [ModeName::Ebpf, ModeName::Ipvs, ModeName::Iptables] {
            assert!(choose(asked).unwrap_err().to_string().contains("is not built yet; this program has nftables"));
        }
    }

    #[test]
    fn kernels_before_6_1_are_too_old() {
        for (release, old) in [
            ("5.15.0-91-generic\n", true),
            ("6.0.1", true),
            ("6.1.0-18-amd64", false),
            ("6.18.44", false),
            ("?", false),
        ] {
            assert_eq!(is_too_old(release), old, "{release}");
        }
    }
}
