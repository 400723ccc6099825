//! What the kernel has of all that the mode uses, each thing tried by itself: what `signpost node --probe` prints.
//!
//! Programs are loaded one by one and are gone again when this returns; a socket that is nobody's is ended, to see whether
//! one could be. Nothing that is there is changed.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;

use libbpf_rs::MapType;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use signpost_core::object::Protocol;

use super::kernel::{KernelConfig, cgroup2_mount, programs, try_load_alone};
use super::{packets, stale, sys};

/// A thing that the mode uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// What it is.
    pub name: String,
    /// What it is for.
    pub purpose: &'static str,
    /// What speaks for its being there, or what is said of its being missing.
    pub found: Result<String, String>,
    /// What is done without it; `None`: the mode cannot be.
    pub otherwise: Option<&'static str>,
}

/// All of them, in the order in which the mode comes to need them. `kernel`, `nftables`: whether it is new enough, and whether the rules
/// beneath are taken. The calling thread must be in the node's network namespace.
pub fn features(
    config: &KernelConfig,
    kernel: Result<String, String>,
    nftables: Result<String, String>,
) -> Vec<Feature> {
    let mut all = ground(config, kernel);
    all.extend(programs().into_iter().map(program));
    all.extend(optional());
    all.push(Feature {
        name: "programs ingress, egress".to_owned(),
        purpose: "packets at interfaces, with --ebpf-packets tc",
        found: said(packets::try_load().map(|()| "load")),
        otherwise: Some("rules of nftables do it"),
    });
    all.push(Feature {
        name: "nf_tables with nat, numgen and reject".to_owned(),
        purpose: "packets that no socket of this node made",
        found: nftables,
        otherwise: None,
    });
    all
}

/// What the mode can be without, tried anew: cheap.
pub fn optional() -> Vec<Feature> {
    [Protocol::Udp, Protocol::Tcp].map(ended_sockets).into()
}

/// What is missing of what the mode can be without, and what is done in its place; a sentence each.
pub fn lacking(features: &[Feature]) -> Vec<String> {
    let missing =
        features.iter().filter_map(|feature| Some((feature, feature.otherwise?, feature.found.as_ref().err()?)));
    missing.map(|(feature, otherwise, said)| format!("not so that {} ({said}): {otherwise}", feature.name)).collect()
}

/// Whether the mode can be here.
pub fn suffice(features: &[Feature]) -> bool {
    features.iter().all(|feature| feature.found.is_ok() || feature.otherwise.is_some())
}

fn ground(config: &KernelConfig, kernel: Result<String, String>) -> Vec<Feature> {
    let needed = |name: &str, purpose, found| Feature { name: name.to_owned(), purpose, found, otherwise: None };
    let cgroup = match &config.cgroup {
        Some(path) => fs::metadata(path).map(|_| path.clone()),
        None => cgroup2_mount(),
    };
    let netns = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| sys::netns_cookie(&socket));
    let mut all = vec![
        needed("Linux 6.1", "all", kernel),
        needed("cgroup2", "where programs hang", said(cgroup.map(|path| path.display().to_string()))),
        needed("bpf file system", "links and maps outlive the daemon", bpf_file_system(&config.pins)),
        needed("network namespace cookie", "telling pods from the node", said(netns.map(|cookie| cookie.to_string()))),
    ];
    let maps = [(MapType::Hash, "hash", "tables"), (MapType::LruHash, "lru_hash", "what is remembered of sockets")];
    all.extend(
        maps.map(|(kind, name, purpose)| needed(&format!("map {name}"), purpose, supported(kind.is_supported()))),
    );
    all
}

fn bpf_file_system(pins: &Path) -> Result<String, String> {
    let parent = pins.parent().unwrap_or(pins);
    match statfs(parent) {
        Ok(found) if found.filesystem_type() == BPF_FS_MAGIC => Ok(parent.display().to_string()),
        _ if fs::read_to_string("/proc/filesystems")
            .is_ok_and(|all| all.lines().any(|line| line.ends_with("\tbpf"))) =>
        {
            Ok(format!("not mounted; the daemon mounts it at {}", parent.display()))
        }
        _ => Err("the kernel knows no such file system".to_owned()),
    }
}

fn program(name: String) -> Feature {
    let found = said(try_load_alone(&name).map(|()| "loads"));
    Feature { name: format!("program {name}"), purpose: purpose(&name), found, otherwise: None }
}

fn purpose(program: &str) -> &'static str {
    match program {
        "connect4" | "connect6" => "connections and connected UDP sockets",
        "sendmsg4" | "sendmsg6" => "datagrams of unconnected sockets",
        "recvmsg4" | "recvmsg6" => "answers come from the address that was asked",
        "getpeername4" | "getpeername6" => "the peer is the address that was asked for",
        "bind4" | "bind6" => "node ports are taken",
        _ => "counters",
    }
}

fn ended_sockets(protocol: Protocol) -> Feature {
    ended_by(protocol, stale::can_end(protocol))
}

fn ended_by(protocol: Protocol, can: io::Result<bool>) -> Feature {
    let (name, purpose, otherwise) = match protocol {
        Protocol::Udp => {
            ("UDP sockets can be ended", "no socket talks to a backend that is gone", "they go on talking to nobody")
        }
        _ => (
            "TCP connections can be ended",
            "what a Service asks for when an endpoint is gone, or after a scale-up",
            "they are left as they are",
        ),
    };
    let found = match can {
        Ok(true) => Ok("sock_diag does it".to_owned()),
        Ok(false) => {
            Err("the kernel was built without INET_DIAG_DESTROY, or a module of sock_diag is missing".to_owned())
        }
        Err(error) => Err(error.to_string()),
    };
    Feature { name: name.to_owned(), purpose, found, otherwise: Some(otherwise) }
}

fn supported(answer: libbpf_rs::Result<bool>) -> Result<String, String> {
    match answer {
        Ok(true) => Ok("can be made".to_owned()),
        Ok(false) => Err("the kernel has none of this type".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    }
}

fn said<T: Into<String>, E: std::fmt::Display>(found: Result<T, E>) -> Result<String, String> {
    found.map(Into::into).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_all_and_each_program_is_told() {
        let features = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("needs root");
            features(&KernelConfig::default(), Ok(String::new()), Ok(String::new()))
        });
        let features = features.join().unwrap();
        let missing: Vec<_> = features.iter().filter(|feature| feature.found.is_err()).collect();
        assert!(missing.is_empty() && suffice(&features), "{missing:?}");
        for program in programs() {
            assert!(features.iter().any(|feature| feature.name == format!("program {program}")), "{program}");
        }
    }

    #[test]
    fn each_thing_that_is_missing_names_what_is_done_in_its_place() {
        let not_built = "the kernel was built without INET_DIAG_DESTROY, or a module of sock_diag is missing";
        for (protocol, can, told) in [
            (Protocol::Udp, Ok(true), None),
            (Protocol::Tcp, Ok(true), None),
            (
                Protocol::Udp,
                Ok(false),
                Some(format!("not so that UDP sockets can be ended ({not_built}): they go on talking to nobody")),
            ),
            (
                Protocol::Tcp,
                Ok(false),
                Some(format!("not so that TCP connections can be ended ({not_built}): they are left as they are")),
            ),
            (
                Protocol::Tcp,
                Err(io::Error::other("no netlink")),
                Some("not so that TCP connections can be ended (no netlink): they are left as they are".to_owned()),
            ),
        ] {
            let feature = ended_by(protocol, can);
            assert!(suffice(std::slice::from_ref(&feature)), "the mode can be without");
            assert_eq!(lacking(&[feature]), told.into_iter().collect::<Vec<_>>());
        }
        // Without any other thing the mode cannot be, and another one is taken.
        let here =
            ground(&KernelConfig { cgroup: Some("/nowhere".into()), ..KernelConfig::default() }, Err("old".to_owned()));
        for missing in ["Linux 6.1", "cgroup2"] {
            assert!(here.iter().any(|feature| feature.name == missing && feature.found.is_err()), "{missing}");
        }
        assert!(!suffice(&here) && lacking(&here).is_empty());
    }

    #[test]
    fn what_can_be_done_without_is_no_hindrance() {
        let feature = |otherwise| Feature { name: String::new(), purpose: "", found: Err("no".to_owned()), otherwise };
        assert!(suffice(&[feature(Some("left"))]));
        assert!(!suffice(&[feature(Some("left")), feature(None)]));
    }
}
