//! Control groups (version 2): `MOUNT/signpost/LAB/NODE/...`. They exist so that everything of a pod, a node or a lab
//! can be found and killed at once; no controller is switched on.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the last process of a group may take to be gone.
const BURIED: Duration = Duration::from_secs(20);

/// A control group's directory. It is removed by `remove` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// The one in which all labs' are: not made yet.
    ///
    /// # Errors
    /// This machine has no cgroup2 file system mounted.
    pub fn labs() -> io::Result<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mount_of(&mounts).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "no cgroup2 file system is mounted: run `mount -t cgroup2 none /sys/fs/cgroup` or boot with cgroup v2",
            )
        })?;
        Ok(Cgroup { path: mount.join("signpost") })
    }

    /// A group below this one; not made yet.
    pub fn child(&self, name: &str) -> Cgroup {
        Cgroup { path: self.path.join(name) }
    }

    /// Makes it, and those above it.
    ///
    /// # Errors
    /// The file system is read-only or full.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.path)
            .map_err(|error| io::Error::new(error.kind(), format!("cgroup {}: {error}", self.path.display())))
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file into which a process writes `0` to join.
    ///
    /// # Errors
    /// The group is not there.
    pub fn open_procs(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Kills what runs in it and below it.
    ///
    /// # Errors
    /// The kernel refused. A group that is not there is no error.
    pub fn kill(&self) -> io::Result<()> {
        match fs::write(self.path.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes it and those below it; what ran in them must be dead or dying: waits for it, as
    /// long as a busy kernel may take to bury it.
    ///
    /// # Errors
    /// Something still runs there.
    pub fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + BURIED;
        loop {
            match self.remove_now() {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2)); // the kernel tells nobody when the last one is reaped
                }
                other => return other,
            }
        }
    }

    fn remove_now(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                Cgroup { path: entry.path() }.remove_now()?;
            }
        }
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// The mount point of cgroup2 in the text of `/proc/self/mountinfo` (fields of proc_pid_mountinfo(5)).
fn mount_of(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (source.split(' ').next()? == "cgroup2").then(|| PathBuf::from(mount.split(' ').nth(4).unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_cgroup2_mount_on_hybrid_and_unified_machines() {
        let hybrid = "36 32 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      37 32 0:29 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_of("30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
    }

    #[test]
    fn kill_ends_all_that_runs_in_a_group_and_remove_leaves_nothing() {
        let group = Cgroup::labs().unwrap().child(&format!("test-{}", std::process::id()));
        let inner = group.child("inner");
        inner.create().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(inner.path().join("cgroup.procs"), child.id().to_string()).unwrap();
        group.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        group.remove().unwrap();
        assert!(!group.path().exists());
        assert!(group.remove().is_ok(), "a second time is no error");
    }
}
