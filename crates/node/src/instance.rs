//! One daemon per node: a second one would undo what the first does.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// In the abstract name space of unix sockets, which a network namespace has its own of. The kernel frees it with the process.
const NAME: &[u8] = b"signpost-node";

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
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Instance { _socket: socket }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(InstanceError::Taken),
            Err(error) => Err(InstanceError::System(error)),
        }
    }
}
