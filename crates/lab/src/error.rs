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
    /// Its process does not answer.
    #[error("lab {name} does not answer{}: `signpost lab down --name {name}` ends it", pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Hangs {
        /// The name.
        name: String,
        /// Its process, if it said so.
        pid: Option<u32>,
    },
    /// It ended while it was asked.
    #[error("lab {name} ended before it answered")]
    Ended {
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
    #[error("the API server does not start: {}{}", whole(&**.0), chain_hint(&**.0))]
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
    #[error("the daemon of node {node} {problem}; its log, {}, ends with:{last}", log.display())]
    Daemon {
        /// The node.
        node: String,
        /// What happened.
        problem: String,
        /// Where to read more.
        log: PathBuf,
        /// The log's last lines, each after a line break: the log goes with the lab.
        last: String,
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

/// An error and its causes in one line; a cause that was told already is not told again.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text = if told.starts_with(&text) { told } else { format!("{text}: {told}") };
        }
        cause = error.source();
    }
    text
}

/// The hint that belongs to a system's error among the causes.
fn chain_hint(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<io::Error>() {
            return hint(system);
        }
        cause = error.source();
    }
    if whole(error).contains("os error 28") { hint(&io::Error::from_raw_os_error(libc::ENOSPC)) } else { "" }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the objects")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the objects: {0}")]
    struct Inner(#[source] io::Error);

    #[test]
    fn a_full_disk_is_told_once_and_with_what_to_do() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let text = LabError::Api(Box::new(Outer(Inner(full)))).to_string();
        assert_eq!(text.matches("cannot open").count(), 1, "{text}");
        assert!(text.contains("No space left") && text.ends_with("choose another place with --dir"), "{text}");
    }
}
