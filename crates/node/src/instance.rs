//! One daemon per node: a second one would undo what the first does.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

/// In the abstract name space of unix sockets, which a network namespace has its own of. The kernel frees it with the process.
const NAME: &[u8] = b"signpost-node";

/// A program that a killed daemon was about to start has the socket until it runs: so long it is waited for.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// Held as long as the daemon runs.
#[derive(Debug)]
pub struct Instance {
    _socket: UnixListener,
}

/// Why the daemon may not run.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// There is one.
    #[error("another signpost node runs on this node (in this network namespace): stop it first")]
    Taken,
    /// The system refused.
    #[error("cannot take the node's lock: {0}")]
    System(#[source] io::Error),
}

impl Instance {
    /// Takes the place of the one daemon of this network namespace.
    ///
    /// # Errors
    /// It is taken.
    pub fn take() -> Result<Instance, InstanceError> {
        let address = SocketAddr::from_abstract_name(NAME).map_err(InstanceError::System)?;
        let deadline = Instant::now() + LEFT_BEHIND;
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(socket) => return Ok(Instance { _socket: socket }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(InstanceError::System(error)),
                Err(_) if Instant::now() > deadline => return Err(InstanceError::Taken),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn there_is_one_and_what_a_killed_one_leaves_for_a_moment_is_waited_for() {
        let alone = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("the tests run as root");
            let first = Instance::take().unwrap();
            assert!(matches!(Instance::take(), Err(InstanceError::Taken)));
            let goes = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop(first);
            });
            Instance::take().unwrap();
            goes.join().unwrap();
        });
        alone.join().unwrap();
    }
}
