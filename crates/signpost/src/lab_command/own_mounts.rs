//! What a program sees that runs on a node, outside, at the router or in a light pod: the machine's file system, but
//! nothing in it can be changed.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use signpost_lab::Place;
use signpost_lab::sys::read_only_mounts;

/// Memory of the place's own, over the machine's directory: where tools put locks and scratch files.
const MEMORY: [(&str, &str); 3] =
    [("/tmp", "size=64m,mode=1777"), ("/run", "size=16m,mode=755"), ("/dev/shm", "size=64m,mode=1777")];
/// Sysctls of the network are the network namespace's own: they can be changed.
const SYSCTLS: &str = "/proc/sys/net";
/// Where Debian's `birdc` looks for BIRD.
const BIRD: &str = "/run/bird/bird.ctl";
const O_PATH: i32 = nix::fcntl::OFlag::O_PATH.bits();

/// Gives this process mounts and a host name of its own: all read-only but [`MEMORY`] and [`SYSCTLS`]; `/sys` is that of
/// the network namespace that was entered before.
///
/// `bird`: where the router's BIRD listens; `birdc` then finds it where Debian's does.
pub(super) fn enter(place: &Place, bird: Option<&Path>) -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    let cgroups = File::open("/sys/fs/cgroup").ok();
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>).context("/sys")?;
    if let Some(cgroups) = cgroups {
        let old = format!("/proc/self/fd/{}", cgroups.as_raw_fd());
        bind(&old, "/sys/fs/cgroup")?;
    }
    read_only_mounts().context("the mounts cannot be made read-only")?;
    bind(SYSCTLS, SYSCTLS)?;
    let writable = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    mount(None::<&str>, SYSCTLS, None::<&str>, writable, None::<&str>).context(SYSCTLS)?;
    let bird = bird.and_then(|socket| File::options().read(true).custom_flags(O_PATH).open(socket).ok());
    for (path, options) in MEMORY {
        if Path::new(path).is_dir() {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options)).context(path)?;
        }
    }
    if let Some(bird) = bird {
        std::fs::create_dir_all("/run/bird")?;
        File::create(BIRD)?;
        bind(&format!("/proc/self/fd/{}", bird.as_raw_fd()), BIRD)?;
    }
    nix::unistd::sethostname(host_name(place))?;
    Ok(())
}

fn bind(from: &str, to: &str) -> anyhow::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&str>, flags, None::<&str>).with_context(|| to.to_owned())
}

fn host_name(place: &Place) -> &str {
    match place {
        Place::Node(name) | Place::Pod(_, name) => name,
        Place::Outside => "outside",
        Place::Router => "router",
    }
}
