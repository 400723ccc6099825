//! Why the kernel's side could not be read or written.

use std::io;
use std::path::PathBuf;

use crate::ebpf::packets::InterfaceError;

/// Why the kernel's side of the socket hooks could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No bpf file system.
    #[error("no bpf file system at {path}, and none can be mounted there: {source}; run `mount -t bpf bpf /sys/fs/bpf`", path = path.display())]
    Mount {
        /// Where it was to be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of the bpf file system.
    #[error("cannot {op} {path}: {source}", path = path.display())]
    Pin {
        /// What was to be done.
        op: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The programs.
    #[error(
        "the kernel does not load the socket programs: {0:#}; they need root (CAP_BPF, CAP_NET_ADMIN) and Linux 6.1 or newer"
    )]
    Load(#[source] libbpf_rs::Error),
    /// The programs at interfaces.
    #[error("the kernel does not load the programs for packets: {0:#}; `--ebpf-packets nftables` does without")]
    LoadPackets(#[source] libbpf_rs::Error),
    /// The interfaces.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The control group.
    #[error("there is no control group {path}: {source}; --cgroup-root names the node's, in a mounted cgroup2", path = path.display())]
    Cgroup {
        /// Its directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program at the control group.
    #[error("the program {program} cannot be attached to the control group {cgroup}: {source:#}", cgroup = cgroup.display())]
    Attach {
        /// Which.
        program: String,
        /// Where.
        cgroup: PathBuf,
        /// Why.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A map is full.
    #[error("the map {table} is full: it has room for {most} entries; --ebpf-frontends and --ebpf-backends give more")]
    Full {
        /// Which.
        table: &'static str,
        /// Its size.
        most: u32,
    },
    /// A map.
    #[error("cannot {op} the map {table}: {source:#}")]
    Map {
        /// What was to be done.
        op: &'static str,
        /// Which.
        table: &'static str,
        /// Why not.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The kernel does not name the network namespace.
    #[error("the kernel does not name this network namespace: {0}; signpost needs Linux 6.1 or newer")]
    Namespace(#[source] io::Error),
}
