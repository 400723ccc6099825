//! What this kernel and machine can do for a mode, found out before anything is changed. Each error says what to do.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::ebpf::KernelConfig;
use crate::ebpf::features::{Feature, features};

/// The oldest kernel that is supported.
pub const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// The oldest nft that is supported: what Debian 12 has.
pub const OLDEST_NFT: (u32, u32, u32) = (1, 0, 6);

/// Why a mode cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel is too old.
    #[error("this kernel is {found}; signpost needs Linux {}.{} or newer: boot a newer one", OLDEST_KERNEL.0, OLDEST_KERNEL.1)]
    OldKernel {
        /// Its release.
        found: String,
    },
    /// `nft` is not there.
    #[error("{} is not installed: install the package nftables (apt-get install nftables), or choose another mode", .program.display())]
    NoNft {
        /// What was to be run.
        program: OsString,
    },
    /// `nft` is too old, or says nothing that looks like a version.
    #[error(
        "{} says that it is {found:?}; signpost needs nft {}.{}.{} or newer: update the package nftables, or choose another \
         mode", .program.display(), OLDEST_NFT.0, OLDEST_NFT.1, OLDEST_NFT.2
    )]
    OldNft {
        /// What was run.
        program: OsString,
        /// What it said.
        found: String,
    },
    /// This process may not change rules.
    #[error(
        "this process may not change the kernel's packet rules: run it as root, or with CAP_NET_ADMIN in its network namespace"
    )]
    NotPermitted,
    /// The kernel has no nf_tables, or not all of it.
    #[error(
        "this kernel's nf_tables lacks what the mode needs ({said}): load the modules nf_tables, nft_nat, nft_numgen and nft_reject, or choose another mode"
    )]
    NoNftables {
        /// What nft said.
        said: String,
    },
    /// `iptables` is not there.
    #[error(
        "{program} is not installed: install the package iptables (apt-get install iptables), or choose another mode"
    )]
    NoIptables {
        /// What was to be run.
        program: &'static str,
    },
    /// `iptables` cannot do what the mode needs.
    #[error(
        "{program} lacks what the mode needs ({said}): update the package iptables or load the kernel's modules x_tables, nf_nat and xt_statistic, or choose another mode"
    )]
    OldIptables {
        /// What was run.
        program: &'static str,
        /// What it said.
        said: String,
    },
    /// The kernel has no IPVS.
    #[error(
        "this kernel has no IPVS: load the modules ip_vs, ip_vs_rr and xt_ipvs (modprobe ip_vs), or choose another mode; nftables \
         does the same, and Kubernetes itself is giving IPVS up"
    )]
    NoIpvs,
    /// `ipset` is not there.
    #[error("ipset is not installed: install the package ipset (apt-get install ipset), or choose another mode")]
    NoIpset,
    /// What the mode IPVS needs besides is not there.
    #[error("{what}: {said}: load the kernel's modules {modules}, or choose another mode")]
    LacksForIpvs {
        /// What cannot be done.
        what: &'static str,
        /// Who said what.
        said: String,
        /// What would bring it.
        modules: &'static str,
    },
    /// The kernel does not take the programs.
    #[error(
        "this kernel does not take the socket programs ({said}): run signpost as root (CAP_BPF, CAP_NET_ADMIN) on Linux 6.1 or newer with CONFIG_CGROUP_BPF, or choose another mode"
    )]
    NoEbpf {
        /// What it said.
        said: String,
    },
    /// Something could not be run or read.
    #[error("cannot find out {what}: {source}")]
    Io {
        /// What was to be found out.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Whether the mode nftables works here. Changes nothing: what it tries with the kernel is checked, not carried out.
///
/// # Errors
/// The first thing that is missing.
pub fn nftables(nft: &OsStr) -> Result<(), ProbeError> {
    kernel()?;
    let said = run(nft, &["--version"], "nft's version")?;
    let found = said.stdout.trim().to_owned();
    if version(&found).is_none_or(|version| version < OLDEST_NFT) {
        return Err(ProbeError::OldNft { program: nft.to_owned(), found });
    }
    // A table of another name, with one of each thing that ours has; `--check` leaves it at that.
    const TRY: &str = "table ip signpost-probe { map m { typeof ip daddr . udp dport . numgen random mod 2 : ip daddr . \
        udp dport; }; chain c { type nat hook output priority -100; dnat ip to ip daddr . udp dport . numgen random mod 2 map @m; \
        reject with icmp type port-unreachable; }; chain p { type nat hook postrouting priority 100; masquerade fully-random; }; }";
    let said = run(nft, &["--check", TRY], "what the kernel's nf_tables can do")?;
    if said.is_success {
        Ok(())
    } else if said.stderr.contains("Operation not permitted") {
        Err(ProbeError::NotPermitted)
    } else {
        let first = said.stderr.lines().next().unwrap_or("no reason given");
        Err(ProbeError::NoNftables { said: first.to_owned() })
    }
}

/// Whether the mode eBPF works here: the programs are loaded, and go again with this call; the rules beneath as in
/// [`nftables`].
///
/// # Errors
/// The first thing that is missing.
pub fn ebpf(nft: &OsStr) -> Result<(), ProbeError> {
    kernel()?;
    crate::ebpf::kernel::cgroup2_mount()
        .map_err(|source| ProbeError::Io { what: "where cgroup2 is mounted", source })?;
    crate::ebpf::kernel::try_load().map_err(|error| ProbeError::NoEbpf { said: error.to_string() })?;
    nftables(nft)
}

/// Each thing that the mode eBPF uses, tried by itself. Changes nothing.
pub fn ebpf_features(config: &KernelConfig, nft: &OsStr) -> Vec<Feature> {
    let told = |error: ProbeError| error.to_string();
    let release = |()| std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let rules = |()| "a ruleset with all of them is taken".to_owned();
    features(config, kernel().map(release).map_err(told), nftables(nft).map(rules).map_err(told))
}

/// Whether the mode iptables works here. Changes nothing: what it tries with the kernel is tested, not carried out.
///
/// # Errors
/// The first thing that is missing.
pub fn iptables() -> Result<(), ProbeError> {
    kernel()?;
    // A chain of another name, with one of each thing that ours have.
    const TRY: &str = "*nat\n:SIGNPOST-PROBE - [0:0]\n\
        -A SIGNPOST-PROBE -m comment --comment x -m statistic --mode random --probability 0.5 -j RETURN\n\
        -A SIGNPOST-PROBE -m recent --set --name SIGNPOST-PROBE --rsource\n\
        -A SIGNPOST-PROBE -m addrtype --src-type LOCAL -j MARK --set-xmark 0x4000/0x4000\n\
        -A SIGNPOST-PROBE -j MASQUERADE --random-fully\nCOMMIT\n";
    match test_rules(TRY)? {
        None => Ok(()),
        Some(said) => Err(ProbeError::OldIptables { program: RESTORE, said }),
    }
}

const RESTORE: &str = "iptables-restore";

/// Whether rules would be taken; if not, what is said of them.
fn test_rules(rules: &str) -> Result<Option<String>, ProbeError> {
    let io = |source| ProbeError::Io { what: "what iptables can do", source };
    let mut command = Command::new(RESTORE);
    command.args(["-w", "5", "--noflush", "--test"]).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ProbeError::NoIptables { program: RESTORE },
        _ => io(source),
    })?;
    let written = child.stdin.take().expect("it was piped").write_all(rules.as_bytes());
    let output = child.wait_with_output().map_err(io)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        written.map_err(io)?;
        Ok(None)
    } else if said.contains("Permission denied") || said.contains("Operation not permitted") {
        Err(ProbeError::NotPermitted)
    } else {
        Ok(Some(said.lines().next().unwrap_or("no reason given").to_owned()))
    }
}

/// Whether the mode IPVS works here. Changes nothing but that the kernel's modules are loaded.
///
/// # Errors
/// The first thing that is missing.
pub fn ipvs() -> Result<(), ProbeError> {
    kernel()?;
    iptables()?;
    match crate::ipvs::is_there() {
        Ok(true) => {}
        Ok(false) => return Err(ProbeError::NoIpvs),
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => return Err(ProbeError::NotPermitted),
        Err(source) => return Err(ProbeError::Io { what: "whether the kernel has IPVS", source }),
    }
    let ipset = Command::new("ipset").args(["list", "-n"]).env("LC_ALL", "C").output();
    let ipset = ipset.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ProbeError::NoIpset,
        _ => ProbeError::Io { what: "what ipset can do", source },
    })?;
    if !ipset.status.success() {
        let said = String::from_utf8_lossy(&ipset.stderr).lines().next().unwrap_or("no reason given").to_owned();
        return Err(ProbeError::LacksForIpvs { what: "ipset cannot list sets", said, modules: "ip_set" });
    }
    // Rules may be tested without sets that do not exist yet; the match that knows IPVS's packets is what may lack.
    const TRY: &str = "*mangle\n:SIGNPOST-PROBE - [0:0]\n-A SIGNPOST-PROBE -m ipvs --ipvs -j RETURN\nCOMMIT\n";
    match test_rules(TRY)? {
        None => Ok(()),
        Some(said) => {
            let what = "iptables cannot tell IPVS's packets";
            Err(ProbeError::LacksForIpvs { what, said, modules: "xt_ipvs, xt_set and iptable_mangle" })
        }
    }
}

/// Whether the kernel is new enough.
///
/// # Errors
/// It is older, or does not say.
pub fn kernel() -> Result<(), ProbeError> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_err(|source| ProbeError::Io { what: "the kernel's version", source })?;
    let found = release.trim().to_owned();
    if is_new_enough(&found) { Ok(()) } else { Err(ProbeError::OldKernel { found }) }
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST_KERNEL)
}

/// The three numbers of `nftables v1.0.6 (Lester Gooch #5)`.
fn version(said: &str) -> Option<(u32, u32, u32)> {
    let text = said.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or_default()))
}

struct Said {
    is_success: bool,
    stdout: String,
    stderr: String,
}

fn run(nft: &OsStr, arguments: &[&str], what: &'static str) -> Result<Said, ProbeError> {
    let output =
        Command::new(nft).args(arguments).env("LC_ALL", "C").output().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProbeError::NoNft { program: nft.to_owned() },
            _ => ProbeError::Io { what, source },
        })?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Said { is_success: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nft_writes_them() {
        assert_eq!(version("nftables v1.0.6 (Lester Gooch #5)"), Some((1, 0, 6)));
        assert_eq!(version("nftables v1.1"), Some((1, 1, 0)));
        assert_eq!(version("iptables"), None);
        assert!(is_new_enough("6.1.0-40-amd64") && is_new_enough("10.0") && is_new_enough("6.18.44-fc"));
        assert!(!is_new_enough("5.15.0") && !is_new_enough("6.0.9") && !is_new_enough("") && !is_new_enough("six.one"));
    }

    #[test]
    fn a_missing_nft_says_what_to_install() {
        let error = nftables(OsStr::new("/nowhere/nft")).unwrap_err();
        assert!(matches!(error, ProbeError::NoNft { .. }), "{error}");
        assert!(error.to_string().contains("apt-get install nftables"), "{error}");
    }

    #[test]
    fn an_nft_that_is_too_old_or_refuses_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let pretend = |name: &str, script: &str| {
            nftables(crate::pretend::program(folder.path(), name, script).as_os_str()).unwrap_err()
        };
        let new = "[ $1 = --version ] && echo nftables v9.0.0 && exit;";
        assert!(matches!(pretend("old", "echo nftables v1.0.2"), ProbeError::OldNft { .. }));
        let error = pretend("denied", &format!("{new} echo 'Error: Operation not permitted' >&2; exit 1"));
        assert!(matches!(error, ProbeError::NotPermitted), "{error}");
        let error = pretend("lacking", &format!("{new} echo 'Error: No such file or directory' >&2; exit 1"));
        assert!(matches!(error, ProbeError::NoNftables { .. }), "{error}");
    }

    #[test]
    fn this_machine_can_do_it() {
        // Only checked, but still: in a network namespace of its own, not in the machine's.
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            nftables(OsStr::new("nft")).unwrap();
            iptables().unwrap();
            ebpf(OsStr::new("nft")).unwrap();
        })
        .join()
        .unwrap();
    }
}
