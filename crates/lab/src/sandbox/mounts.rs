//! What is hidden of the machine in a pod's view of it, and the pod's volumes. The machine's directories are read-only in it: where a volume's place is
//! missing in one, an overlay whose upper side is in the pod's memory is laid over the directory, and the place made there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::kernel::{bind, directory, file, hide, inside, memory, resolve, step};
use super::protocol::{Mount, MountSource, VOLUMES, View};

/// Where the upper sides of overlays stand until they are hidden.
const COVERS: &str = "/run/signpost/covers";
/// A volume is no place for devices or for programs with rights of their own.
const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// Root's secrets: a pod's root is root where files are concerned.
const SECRETS: [&str; 9] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/var/spool/cron",
    "/var/backups",
    "/var/log",
];

/// What of the machine's directories below `folder`, a path inside the new root, is the pod's own or hidden. `folder`
/// itself stays: an overlay on a hidden directory shows an empty one.
pub(super) fn private(view: &View, folder: &Path) -> io::Result<()> {
    let temporary = view.root.join("var/tmp");
    if temporary.starts_with(folder) && temporary.is_dir() {
        memory(&temporary, "size=64m,mode=1777", MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    }
    for path in SECRETS.iter().map(Path::new).chain(view.masks.iter().map(PathBuf::as_path)) {
        // An overlay is laid on the directory that a link leads to: that is where its secrets have to be hidden again.
        let target = resolve(&view.root, path)?;
        if target.starts_with(folder) && target != folder {
            hide(&view.root, path)?;
        }
    }
    Ok(())
}

/// Makes the places of all volumes of `view` and gives them, with what is shown there. The pod's own files are not laid
/// over the machine's yet.
///
/// # Errors
/// A place cannot be made; the text says which.
pub(super) fn places(view: &View) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut covers = Vec::new();
    let mut memories = BTreeSet::new();
    let mut places = Vec::new();
    for volume in &view.mounts {
        let source = source(&view.root, volume, &mut memories)?;
        let target = resolve(&view.root, &volume.target)?;
        make(view, &target, source.is_dir(), &mut covers)?;
        places.push((source, target));
    }
    for folder in &covers {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | FLAGS;
        step(&shown(folder), "make read-only", mount(None::<&str>, folder, None::<&str>, flags, None::<&str>))?;
    }
    if !covers.is_empty() {
        memory(&inside(&view.root, Path::new(COVERS)), "size=4k,mode=555", MsFlags::MS_RDONLY)?;
    }
    Ok(places)
}

/// Shows the volumes at their places.
///
/// # Errors
/// A mount was refused, as that of a directory over a file.
pub(super) fn fill(view: &View, places: &[(PathBuf, PathBuf)]) -> io::Result<()> {
    for (volume, (source, target)) in view.mounts.iter().zip(places) {
        if !target.exists() {
            // Its place was in a volume that came before it: only there can it be made.
            make(view, target, source.is_dir(), &mut Vec::new())?;
        }
        bind(source, target, if volume.read_only { FLAGS | MsFlags::MS_RDONLY } else { FLAGS })?;
    }
    Ok(())
}

fn source(root: &Path, volume: &Mount, memories: &mut BTreeSet<String>) -> io::Result<PathBuf> {
    let whole = match &volume.source {
        MountSource::Directory(path) => path.clone(),
        MountSource::Memory { name, bytes } => {
            let folder = inside(root, Path::new(VOLUMES)).join(name);
            if memories.insert(name.clone()) {
                directory(&folder)?;
                memory(&folder, &format!("size={bytes},mode=777"), FLAGS)?;
            }
            folder
        }
    };
    let Some(part) = &volume.part else { return Ok(whole) };
    let part = whole.join(part);
    if matches!(volume.source, MountSource::Memory { .. }) {
        directory(&part)?;
    }
    Ok(part)
}

/// Makes a place, over the machine's directory if it must.
fn make(view: &View, target: &Path, is_directory: bool, covers: &mut Vec<PathBuf>) -> io::Result<()> {
    if target.exists() {
        return Ok(());
    }
    let place = || {
        if is_directory {
            return directory(target);
        }
        directory(target.parent().unwrap_or(target))?;
        file(target)
    };
    match place() {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            let folder = target.ancestors().find(|folder| folder.is_dir()).unwrap_or(&view.root);
            cover(view, folder, covers.len())?;
            covers.push(folder.to_owned());
            place()
        }
        other => other,
    }
}

fn cover(view: &View, folder: &Path, number: usize) -> io::Result<()> {
    let own = inside(&view.root, Path::new(COVERS)).join(number.to_string());
    let (upper, work) = (own.join("upper"), own.join("work"));
    directory(&upper)?;
    directory(&work)?;
    fs::set_permissions(&upper, fs::metadata(folder)?.permissions())?;
    let lower = folder.to_str().filter(|path| !path.contains([':', ',', '\\']));
    let lower = lower.ok_or_else(|| io::Error::from(Errno::EINVAL))?;
    let options = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
    step(&shown(folder), "lay an overlay on", mount(Some("overlay"), folder, Some("overlay"), FLAGS, Some(&*options)))?;
    private(view, folder) // the overlay shows what lies below the mounts that were there
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
