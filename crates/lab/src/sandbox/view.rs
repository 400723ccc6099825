//! Puts together what a pod sees of the machine, in the mount namespace that its first process got for itself:
//!
//! - the machine's directories, read-only, each without the mounts below it; foreign file systems (another device
//!   right below `/`) are left out, as are `/root`, `/home`, `/run`, `/dev`, `/proc`, `/sys` and what `View::masks` names;
//! - `/tmp`, `/run`, `/root`, `/var/tmp` and `/dev/shm` of its own, in memory, of limited size;
//! - `/proc` of its own process namespace and `/sys` of its own network, what reaches the machine in them read-only or
//!   empty; harmless devices and terminals of its own in `/dev`;
//! - its own `/etc/hosts`, `/etc/resolv.conf` and `/etc/hostname`;
//! - its volumes (see `mounts`).

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root, sethostname};

use super::kernel::{at, bind, directory, file, hide, inside, memory, resolve, step};
use super::mounts;
use super::protocol::{PROGRAMS, View};

/// Top-level names that a pod has of its own or not at all.
const OWN: [&str; 9] = ["proc", "sys", "dev", "tmp", "run", "root", "home", "lost+found", "boot"];
/// Top-level directories that are shown even if they are file systems of their own.
const SYSTEM: [&str; 10] = ["usr", "etc", "var", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const PROC_READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];
const PROC_EMPTY: [&str; 9] =
    ["kcore", "keys", "latency_stats", "timer_list", "sched_debug", "kallsyms", "acpi", "scsi", "asound"];
const SYS_EMPTY: [&str; 3] = ["firmware", "fs", "kernel"];

/// Makes `view` the root of this process and its children. Must run in a mount and process namespace of its own, as
/// its first process.
///
/// # Errors
/// A mount was refused; the text says which.
pub fn enter(view: &View) -> io::Result<()> {
    step(
        "/",
        "make private",
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>),
    )?;
    let root = &view.root;
    memory(root, "size=1m,mode=755", MsFlags::empty())?;
    machine(root)?;
    for (name, options) in [("tmp", "size=64m,mode=1777"), ("run", "size=16m,mode=755"), ("root", "size=16m,mode=700")]
    {
        directory(&root.join(name))?;
        memory(&root.join(name), options, MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    }
    directory(&root.join("home"))?;
    devices(&root.join("dev"))?;
    process_files(&root.join("proc"))?;
    system_files(&root.join("sys"))?;
    mounts::private(view, root)?;
    let places = mounts::places(view)?;
    names(root, view)?;
    programs(root, view)?;
    mounts::fill(view, &places)?;
    sethostname(&view.hostname)?;
    swap_root(root)
}

fn machine(root: &Path) -> io::Result<()> {
    let device = fs::metadata("/")?.dev();
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        let (path, target) = (entry.path(), root.join(entry.file_name()));
        let name = entry.file_name();
        if name.to_str().is_none_or(|name| OWN.contains(&name)) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&path)?, &target)?;
        } else if kind.is_dir() {
            let foreign = fs::metadata(&path).map_or(true, |meta| meta.dev() != device);
            if foreign && !name.to_str().is_some_and(|name| SYSTEM.contains(&name)) {
                continue;
            }
            directory(&target)?;
            bind(&path, &target, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
        }
    }
    Ok(())
}

fn devices(dev: &Path) -> io::Result<()> {
    directory(dev)?;
    memory(dev, "size=64k,mode=755", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC)?;
    for name in DEVICES {
        let target = dev.join(name);
        file(&target)?;
        bind(&Path::new("/dev").join(name), &target, MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC)?;
    }
    directory(&dev.join("shm"))?;
    memory(&dev.join("shm"), "size=64m,mode=1777", MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    directory(&dev.join("pts"))?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let pts = dev.join("pts");
    step("/dev/pts", "mount", mount(Some("devpts"), &pts, Some("devpts"), flags, Some(options)))?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(name))?;
    }
    Ok(())
}

fn process_files(proc: &Path) -> io::Result<()> {
    directory(proc)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    step("/proc", "mount", mount(Some("proc"), proc, Some("proc"), flags, None::<&str>))?;
    for name in PROC_READ_ONLY {
        let path = proc.join(name);
        if path.exists() {
            bind(&path, &path, flags | MsFlags::MS_RDONLY)?;
        }
    }
    for name in PROC_EMPTY {
        hide(proc, Path::new(name))?;
    }
    Ok(())
}

fn system_files(sys: &Path) -> io::Result<()> {
    directory(sys)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    step("/sys", "mount", mount(Some("sysfs"), sys, Some("sysfs"), flags, None::<&str>))?;
    for name in SYS_EMPTY {
        hide(sys, Path::new(name))?;
    }
    Ok(())
}

/// `/etc/hosts` and the like: where the machine's one is a symbolic link into `/run` (systemd-resolved), the text goes
/// to where it points, else it is laid over the machine's file.
fn names(root: &Path, view: &View) -> io::Result<()> {
    let own = root.join("run/signpost");
    directory(&own)?;
    let hostname = format!("{}\n", view.hostname);
    for (name, text) in [("hosts", &view.hosts), ("resolv.conf", &view.resolv_conf), ("hostname", &hostname)] {
        let source = own.join(name);
        at(&source, fs::write(&source, text))?;
        let shown = resolve(root, &Path::new("/etc").join(name))?;
        if shown.exists() {
            bind(&source, &shown, MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
        } else if shown.starts_with(root.join("run")) {
            directory(shown.parent().unwrap_or(root))?;
            at(&shown, fs::copy(&source, &shown))?;
        }
        // Else the machine has no such file and its /etc is read-only: the pod has none either.
    }
    Ok(())
}

fn programs(root: &Path, view: &View) -> io::Result<()> {
    let folder = inside(root, Path::new(PROGRAMS));
    for (path, name) in &view.programs {
        let target = folder.join(name); // may stand in a folder of its container
        directory(target.parent().unwrap_or(&folder))?;
        file(&target)?;
        bind(path, &target, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    }
    Ok(())
}

fn swap_root(root: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    step("/", "make read-only", mount(None::<&str>, root, None::<&str>, flags, None::<&str>))?;
    chdir(root)?;
    step("/", "pivot_root", pivot_root(".", "."))?;
    step("/", "leave the machine's root", umount2(".", MntFlags::MNT_DETACH))?;
    Ok(chdir("/")?)
}
