//! A node's own mounts: those of the machine, private, and what its daemon mounts besides (a bpf file system). Held by a file
//! descriptor of this process, so that they outlive the daemon and not the lab.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// A mount namespace. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Mounts {
    fd: Arc<OwnedFd>,
}

impl Mounts {
    /// A copy of this process' mounts; what changes in one of the two does not change the other.
    ///
    /// # Errors
    /// Not root.
    pub fn new() -> io::Result<Mounts> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
            Ok(Mounts { fd: Arc::new(File::open("/proc/thread-self/ns/mnt")?.into()) })
        });
        made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl AsFd for Mounts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
