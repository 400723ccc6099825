//! Network namespaces, held by file descriptors of this process: when it dies, the kernel removes them. Nothing is
//! put into `/run/netns`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::sys;
use crate::topology::sysctls;

/// A network namespace. Clones are the same one; it lives as long as any of them, a process or a socket in it.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
}

impl Netns {
    /// A new one with `lo` up and the lab's sysctls; `forwards`: packets are passed on between its interfaces.
    ///
    /// # Errors
    /// Not root, or the kernel has no more room.
    pub fn new(forwards: bool) -> io::Result<Netns> {
        on_thread(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let namespace = Netns { fd: Arc::new(File::open("/proc/thread-self/ns/net")?.into()) };
            prepare(forwards)?;
            Ok(namespace)
        })
    }

    /// The one at a path such as `/proc/PID/ns/net` or another process' `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Netns> {
        Ok(Netns { fd: Arc::new(File::open(path)?.into()) })
    }

    /// Runs `f` on a thread of its own inside the namespace and gives its result. Sockets made there stay there,
    /// wherever they are used afterwards.
    ///
    /// # Panics
    /// If `f` does, or if the kernel refuses to let this (root) process in, which it does not.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter().expect("root may enter a namespace that it holds");
                f()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Moves the calling thread, and only it, into the namespace.
    ///
    /// # Errors
    /// No right to.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)?)
    }

    /// A path by which other processes of this user reach the namespace while this process lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn prepare(forwards: bool) -> io::Result<()> {
    let (must, may) = sysctls(forwards);
    for (path, value) in must {
        write_sysctl(path, value)?;
    }
    for (path, value) in may {
        match write_sysctl(path, value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let handle = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    sys::interface_up(&handle, "lo")
}

fn write_sysctl(path: &str, value: &str) -> io::Result<()> {
    // `/proc/sys/net` shows the namespace of the thread that opens it.
    std::fs::write(Path::new("/proc/sys").join(path), value)
        .map_err(|error| io::Error::new(error.kind(), format!("sysctl {path}={value}: {error}")))
}

/// Runs `f` on a thread of its own, which ends with it: what `f` does to its thread stays without effect elsewhere.
fn on_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(f).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_socket_made_inside_serves_only_inside() {
        let namespace = Netns::new(false).unwrap();
        let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(TcpStream::connect(address).is_err());
        assert!(namespace.run(|| TcpStream::connect(address)).is_ok());
    }

    #[test]
    fn forwarding_inside_leaves_the_machine_alone() {
        let before = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let namespace = Netns::new(true).unwrap();
        let inside = namespace.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward")).unwrap();
        assert_eq!(inside.trim(), "1");
        assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap(), before);
    }
}
