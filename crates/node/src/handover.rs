//! From what another process left in the kernel to this daemon's own rules: what former modes of ours and kube-proxy left,
//! at the start (may we begin?), once our rules are in place (take the others out), and for `--cleanup`.
//!
//! ```text
//! start ─▶ rivals, leftovers ─▶ refuse, or take over
//!           programmed ─▶ former modes' rules go ─▶ flows that they began live on in conntrack
//! ```
//!
//! A flow that a former mode rewrote needs the kernel's nat hooks and conntrack, nothing else: the first chain of type nat
//! brings the hooks of all, and a rule that uses conntrack keeps it. Each mode here has both, so whatever the former one
//! was, its rules can go as soon as those of this one are there. One that has not (see `serves_with_netfilter`) must
//! leave [`Nftables::keep_flows`] behind.
//!
//! Flows of the mode IPVS need their virtual server, too, and the address that they go to: both stay, for them alone, until
//! they have ended.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signpost_core::object::Family;
use signpost_datapath::ebpf::{Kernel, KernelConfig, KernelError};
use signpost_datapath::iptables::{Iptables, IptablesConfig};
use signpost_datapath::ipvs::{Former, Ipvs, IpvsConfig};
use signpost_datapath::nftables::{Nftables, NftablesConfig, addresses};
use signpost_datapath::probe::ProbeError;
use tracing::{info, warn};

use crate::mode::{self, Mode, ModeError};
use crate::node_cache;
use crate::progress::Progress;
use crate::rivals::{self, Places, Rival};

/// The pauses between tries to take out what another mode left.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How often it is looked whether our own rules are there.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is looked whether connections of a former mode have ended.
const DRAIN_LOOK: Duration = Duration::from_secs(2);
/// The device on which kube-proxy's mode ipvs has all Services' addresses.
const IPVS_DEVICE: &str = "kube-ipvs0";

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// Another proxy runs.
    #[error("{rival}: two Service proxies undo each other's rules. End it: {}. To start beside it all the same: --take-over", rival.end())]
    Rival {
        /// Which.
        rival: Rival,
    },
    /// One ran.
    #[error(
        "kube-proxy's rules are still on this node ({left}), and packets obey them. Remove them: `signpost node --cleanup`. To take \
         their place without a gap, so that no connection is cut: --take-over"
    )]
    Left {
        /// What.
        left: String,
    },
    /// What is in the kernel could not be read.
    #[error("cannot find out whether kube-proxy's rules are on this node: {0}")]
    Look(#[source] AnyError),
    /// What is in the kernel could not be removed.
    #[error("cannot remove the {family} rules: {source}")]
    Remove {
        /// Of this family.
        family: Family,
        /// Why.
        #[source]
        source: AnyError,
    },
    /// Programs and maps could not be removed.
    #[error("cannot remove the programs of the mode ebpf: {0}")]
    Programs(#[source] KernelError),
    /// A device could not be removed.
    #[error("cannot remove the device {IPVS_DEVICE}: {0}")]
    Device(String),
}

/// Whether this daemon may begin.
///
/// # Errors
/// Another Service proxy runs or has left rules, and it was not said to take over.
pub fn check(families: &[Family], take_over: bool) -> Result<(), HandoverError> {
    match rivals::running(&Places::default()) {
        Some(rival) if !take_over => return Err(HandoverError::Rival { rival }),
        Some(rival) => {
            warn!(%rival, end = rival.end(), "another Service proxy runs: it will undo what this one does");
        }
        None => {}
    }
    let left = left(families)?.join(", ");
    if left.is_empty() {
        return Ok(());
    }
    if !take_over {
        return Err(HandoverError::Left { left });
    }
    warn!(left, "kube-proxy's rules are on this node: they are taken over");
    Ok(())
}

/// What kube-proxy left, in words.
fn left(families: &[Family]) -> Result<Vec<String>, HandoverError> {
    let look = |error: AnyError| HandoverError::Look(error);
    let mut left = Vec::new();
    let mut has_servers = false;
    for family in families {
        has_servers |= ipvs(*family).has_foreign().map_err(|error| look(error.into()))?;
        if nftables(*family).has_foreign().map_err(|error| look(error.into()))? {
            left.push(format!("the {family} table kube-proxy of nftables"));
        }
        if iptables(*family).has_foreign().map_err(|error| look(error.into()))? {
            left.push(format!("the {family} chains KUBE-SERVICES and others of iptables"));
        }
    }
    if has_servers {
        left.push(format!("the device {IPVS_DEVICE}"));
    }
    Ok(left)
}

fn has_ipvs_device() -> bool {
    nix::net::if_::if_nametoindex(IPVS_DEVICE).is_ok()
}

fn iptables(family: Family) -> Iptables {
    Iptables::new(family, IptablesConfig { take_over: true, ..IptablesConfig::default() })
}

fn ipvs(family: Family) -> Ipvs {
    Ipvs::new(family, IpvsConfig { take_over: true, ..IpvsConfig::default() })
}

fn nftables(family: Family) -> Nftables {
    Nftables::new(family, NftablesConfig { take_over: true, ..NftablesConfig::default() })
}

/// Whether a mode translates by rules of netfilter, whose hooks keep the flows of former modes alive.
fn serves_with_netfilter(mode: Mode) -> bool {
    match mode {
        Mode::Ebpf | Mode::Nftables | Mode::Iptables | Mode::Ipvs => true,
    }
}

/// Once the kernel holds the plan in this mode, takes out what others left: the rules of both would be obeyed. With
/// `take_over` also what kube-proxy left. `ebpf`: where programs of that mode would be.
pub async fn succeed(mode: Mode, families: Vec<Family>, take_over: bool, progress: Arc<Progress>, ebpf: KernelConfig) {
    let mut looks = tokio::time::interval(LOOK);
    while progress.programmed().is_none() {
        looks.tick().await;
    }
    let mut busy = Vec::new();
    for family in families {
        let remove = move || remove_others(mode, family, take_over);
        let (removed, servers) = until_done(FIRST_RETRY, remove).await;
        if removed {
            info!(%family, %mode, "the rules of the former mode are removed");
        }
        if servers == Former::Busy {
            busy.push(family);
        }
    }
    let programs = move || Ok(Kernel::new(ebpf.clone()).remove()?);
    if mode != Mode::Ebpf && until_done(FIRST_RETRY, programs).await {
        info!(%mode, "the programs of the former mode ebpf are removed");
    }
    drain_servers(busy, take_over).await;
    if take_over && mode != Mode::Ipvs && has_ipvs_device() {
        until_done(FIRST_RETRY, || remove_ipvs_device().map_err(Into::into)).await;
        info!("the device {IPVS_DEVICE} is removed");
    }
}

/// Removes the virtual servers of the former mode IPVS once their connections have ended, or have had their time.
async fn drain_servers(families: Vec<Family>, take_over: bool) {
    let deadline = Instant::now() + IpvsConfig::default().drain;
    for family in families {
        info!(%family, "virtual servers of the former mode ipvs stay until their connections have ended");
        loop {
            tokio::time::sleep(DRAIN_LOOK).await;
            let keeps_busy = Instant::now() < deadline;
            let remove = move || Ok(ipvs(family).remove_former(take_over, keeps_busy)?);
            if until_done(FIRST_RETRY, remove).await != Former::Busy {
                break;
            }
        }
        info!(%family, "the virtual servers of the former mode ipvs are removed");
    }
}

/// Whether there was anything; and what became of virtual servers.
fn remove_others(mode: Mode, family: Family, take_over: bool) -> Result<(bool, Former), AnyError> {
    let mut removed = false;
    let mut servers = Former::Nothing;
    if !serves_with_netfilter(mode) {
        nftables(family).keep_flows()?;
    }
    // The rules beneath the sockets are those of nftables.
    if mode != Mode::Nftables && mode != Mode::Ebpf {
        removed |= nftables(family).remove_former(take_over)?;
    }
    if mode != Mode::Ipvs {
        // Before the chains of the mode iptables, some of which it shares.
        servers = ipvs(family).remove_former(take_over, true)?;
        removed |= servers != Former::Nothing;
    }
    // The mode IPVS has made them its own, by the same names.
    if mode != Mode::Iptables && mode != Mode::Ipvs {
        removed |= iptables(family).remove_former(take_over)?;
    }
    if serves_with_netfilter(mode) {
        removed |= nftables(family).release_flows()?;
    }
    Ok((removed, servers))
}

/// Calls until it works, with longer and longer pauses. As long as it does not, the rules of two modes are obeyed: each
/// failure is told.
async fn until_done<T, F>(first_pause: Duration, call: F) -> T
where
    T: Send + 'static,
    F: Fn() -> Result<T, AnyError> + Clone + Send + 'static,
{
    let mut pause = first_pause;
    loop {
        match tokio::task::spawn_blocking(call.clone()).await {
            Ok(Ok(done)) => return done,
            Ok(Err(error)) => warn!(%error, "cannot take out the rules of a former mode; trying again"),
            Err(error) => warn!(%error, "taking out the rules of a former mode broke off; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_RETRY);
    }
}

/// Removes what any mode of ours, or kube-proxy, left in the kernel, and nothing else.
///
/// # Errors
/// The kernel refused.
pub fn cleanup(families: &[Family], ebpf: &KernelConfig) -> Result<(), CleanupError> {
    if Kernel::new(ebpf.clone()).remove().map_err(HandoverError::Programs)? {
        info!("the programs and maps of the mode ebpf are removed");
    }
    let modes: Vec<Mode> =
        [Mode::Nftables, Mode::Iptables].into_iter().filter(|mode| can_be_looked_at(*mode)).collect();
    if modes.is_empty() {
        mode::check(Mode::Nftables)?;
    }
    for family in families {
        let family = *family;
        // Before the chains of the mode iptables, which look into its sets.
        ipvs(family).cleanup().map_err(|source| HandoverError::Remove { family, source: source.into() })?;
        for mode in &modes {
            let removed: Result<(), AnyError> = match mode {
                Mode::Ebpf => Ok(()), // its rules are those of nftables
                Mode::Nftables => {
                    let mut nftables = nftables(family);
                    let addresses = || addresses::set(&BTreeSet::new(), false);
                    let removed = nftables.cleanup().and_then(|()| nftables.release_flows()).and_then(|_| addresses());
                    removed.map_err(Into::into)
                }
                Mode::Iptables => iptables(family).cleanup().map_err(Into::into),
                Mode::Ipvs => Ok(()),
            };
            removed.map_err(|source| HandoverError::Remove { family, source })?;
            info!(%family, %mode, "the rules are removed");
        }
    }
    node_cache::remove_addresses().map_err(CleanupError::NodeCache)?;
    if has_ipvs_device() {
        remove_ipvs_device()?;
        info!("the device {IPVS_DEVICE} is removed");
    }
    Ok(())
}

/// Why `--cleanup` failed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// No tool at all.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// The kernel refused.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The addresses of the node's cache for names are still there.
    #[error("cannot take the addresses of the cache for names from this node: {0}")]
    NodeCache(#[source] std::io::Error),
}

/// A mode whose tool is missing is not looked at: whether a daemon left rules of it is not known then.
fn can_be_looked_at(mode: Mode) -> bool {
    match mode::check(mode) {
        Err(ModeError::Machine(error @ (ProbeError::NoNft { .. } | ProbeError::NoIptables { .. }))) => {
            warn!(%mode, %error, "rules of this mode are not looked for");
            false
        }
        // Whatever else is wrong shows, if it matters, when the rules are to go.
        _ => true,
    }
}

fn remove_ipvs_device() -> Result<(), HandoverError> {
    let output = Command::new(OsStr::new("ip")).args(["link", "delete", "dev", IPVS_DEVICE]).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(HandoverError::Device(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(error) => Err(HandoverError::Device(format!("ip cannot be run: {error}; install the package iproute2"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn what_fails_is_tried_again_until_it_works() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let third = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err("not yet".into()),
            n => Ok(n),
        };
        assert_eq!(until_done(Duration::from_millis(1), third).await, 2);
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }
}
