//! Pure. What the supervisor and a pod's first process say to each other, one JSON value per message of a SEQPACKET
//! socket. A `Start` carries three file descriptors: the program's input, output and error output; with a terminal it
//! carries none, and `Started` carries the terminal's other side.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The longest message; a socket takes about 200 KiB.
pub const MESSAGE_BYTES: usize = 160 * 1024;
/// Where the programs that a pod needs from outside its view of the machine stand in it.
pub const PROGRAMS: &str = "/run/signpost/bin";

/// Where a pod's volumes in memory stand in it.
pub const VOLUMES: &str = "/run/signpost/volumes";

/// What a pod sees of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// An empty directory on which the pod's root is put together.
    pub root: PathBuf,
    /// The host name.
    pub hostname: String,
    /// The text of `/etc/hosts`.
    pub hosts: String,
    /// The text of `/etc/resolv.conf`.
    pub resolv_conf: String,
    /// Directories and files that must not be seen, as absolute paths without symbolic links. Missing ones are fine.
    pub masks: Vec<PathBuf>,
    /// Programs and the names under which they stand in [`PROGRAMS`]; `signpost` must be among them.
    pub programs: Vec<(PathBuf, String)>,
    /// Volumes; a later one may stand inside an earlier one.
    pub mounts: Vec<Mount>,
}

/// A volume at a place of the pod's view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What is shown.
    pub source: MountSource,
    /// Which part of it, as a relative path of plain names; a volume in memory gets the directory if it is missing.
    pub part: Option<PathBuf>,
    /// Where, as an absolute path. What is missing on the way is made, in the pod's view only.
    pub target: PathBuf,
    /// Whether it cannot be written to there.
    pub read_only: bool,
}

/// What a volume holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A directory of the machine.
    Directory(PathBuf),
    /// A file system in memory, shared by all mounts of its name.
    Memory {
        /// The volume's name, plain.
        name: String,
        /// Its size.
        bytes: u64,
    },
}

/// A program to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// A number of the supervisor's choice, not used before in this pod.
    pub id: u64,
    /// Program and arguments; the program is looked for in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub directory: Option<String>,
    /// A terminal of this size (columns, rows) is made in the pod for it to control; no file descriptors come along.
    pub terminal: Option<(u16, u16)>,
    /// User, if not root.
    pub user: Option<u32>,
    /// Group, if not root's.
    pub group: Option<u32>,
}

/// From the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message.
    Prepare(View),
    /// Start a program.
    Start(Start),
    /// Send a signal to a program; `everything`: to all processes of its group.
    Signal {
        /// Which program.
        id: u64,
        /// The signal's number.
        signal: i32,
        /// Whether its children get it as well.
        everything: bool,
    },
}

/// From the pod's first process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The pod's view is made, programs can be started.
    Ready,
    /// The pod's view could not be made; the process ends.
    Broken {
        /// What failed.
        problem: String,
    },
    /// A program runs.
    Started {
        /// Which.
        id: u64,
    },
    /// A program could not be started.
    NotStarted {
        /// Which.
        id: u64,
        /// The system's error number.
        errno: i32,
    },
    /// A program has ended.
    Exited {
        /// Which.
        id: u64,
        /// How.
        exit: Exit,
    },
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By itself, with a status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

impl Exit {
    /// As shells and Kubernetes count it: 128 + signal when a signal ended it.
    pub fn code(self) -> i32 {
        match self {
            Exit::Status(status) => status,
            Exit::Signal(signal) => 128 + signal,
        }
    }
}
