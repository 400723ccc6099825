//! Why a lab could not be made or used. Each text says what to do.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::spec::{Place, SpecError};

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The description is refused.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Namespaces need root.
    #[error("a lab is made of kernel namespaces and needs root: run it with sudo")]
    NotRoot,
    /// A program that the lab runs is missing.
    #[error("the program `{tool}` is missing: install the package {package}, for example `apt-get install {package}`")]
    MissingTool {
        /// The program.
        tool: &'static str,
        /// Debian's name of the package.
        package: &'static str,
    },
    /// No control groups.
    #[error("control groups cannot be used: {source}")]
    Cgroup {
        /// Why.
        source: io::Error,
    },
    /// Another process runs a lab of this name.
    #[error("a lab named {name} runs already{}: stop it with `signpost lab down --name {name}`, or take another --name", pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    NameTaken {
        /// The name.
        name: String,
        /// Its process, if it said so.
        pid: Option<u32>,
    },
    /// No such lab.
    #[error("no lab named {name} runs: start one with `signpost lab up{}`", if name == crate::DEFAULT_NAME { String::new() } else { format!(" --name {name}") })]
    NoSuchLab {
        /// The name.
        name: String,
    },
    /// A file or directory of the lab's state.
    #[error("cannot {op} {path}: {source}{}", hint(source))]
    State {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Namespaces, links, addresses.
    #[error("cannot set up the network of {what}: {source}")]
    Network {
        /// Of whom.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The API server.
    #[error("the API server does not start: {0}")]
    Api(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A listening socket.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A request to the API was refused.
    #[error("the API refused to {op}: {source}")]
    Request {
        /// What was asked.
        op: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// A node daemon.
    #[error("the daemon of node {node} {problem}; its log is {}", log.display())]
    Daemon {
        /// The node.
        node: String,
        /// What happened.
        problem: String,
        /// Where to read more.
        log: PathBuf,
    },
    /// A place that is not there (any more).
    #[error("there is no {place} in the lab")]
    NoSuchPlace {
        /// The place.
        place: Place,
    },
    /// Something did not come about in time.
    #[error("after {waited:?} still waiting: {missing}")]
    Deadline {
        /// How long was waited.
        waited: Duration,
        /// For what.
        missing: String,
    },
    /// Processes could not be started.
    #[error("cannot start {what}: {source}")]
    Start {
        /// Which.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => ": free some space there, or choose another place with --dir",
        Some(libc::EROFS) => ": choose another place with --dir",
        _ => "",
    }
}

impl LabError {
    /// An error of the state directory.
    pub(crate) fn state(op: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LabError {
        let path = path.into();
        move |source| LabError::State { op, path, source }
    }

    /// A refused request.
    pub(crate) fn request(op: impl Into<String>) -> impl FnOnce(kube::Error) -> LabError {
        let op = op.into();
        move |source| LabError::Request { op, source: Box::new(source) }
    }
}
