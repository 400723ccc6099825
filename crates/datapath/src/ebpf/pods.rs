//! Which network namespaces pods have, by the numbers that the kernel programs know: found by their control groups, whose
//! names have the pod's uid in them, as every kubelet names them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns};
use tracing::debug;

use super::{stale, sys};

/// The networks of the pods with these uids below a control group. A pod without a process, so far, has none.
pub fn networks(cgroup: &Path, uids: &BTreeSet<String>) -> BTreeSet<u64> {
    if uids.is_empty() {
        return BTreeSet::new();
    }
    // The drivers of systemd have underscores in place of dashes.
    let names: Vec<[String; 2]> = uids.iter().map(|uid| [uid.clone(), uid.replace('-', "_")]).collect();
    let is_pods = |name: &str| names.iter().flatten().any(|uid| name.contains(uid.as_str()));
    let mut found = BTreeSet::new();
    let mut groups = vec![cgroup.to_owned()];
    while let Some(group) = groups.pop() {
        // A group may end while it is looked at.
        for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if !entry.file_name().to_str().is_some_and(is_pods) {
                groups.push(entry.path());
                continue;
            }
            match networks_in(&entry.path()) {
                Ok(networks) => found.extend(networks),
                Err(error) => debug!(group = %entry.path().display(), %error, "the network of a pod is not known"),
            }
        }
    }
    found
}

fn networks_in(group: &Path) -> io::Result<BTreeSet<u64>> {
    let namespaces = stale::namespaces(group)?;
    // On a thread of its own, whose network it changes.
    let look = || {
        let cookie = |netns| {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| sys::netns_cookie(&socket))
        };
        namespaces.into_iter().map(cookie).collect()
    };
    thread::scope(|scope| scope.spawn(look).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
