//! Single steps on the way to a pod's view, with errors that name the path they are about.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// How many symbolic links a path may lead over.
const LINKS: usize = 40;

/// Follows the symbolic links of `path` as the pod will: inside `root`. What is not there is taken as it is written.
pub(super) fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut rest = normal(path);
    let mut shown = PathBuf::from("/");
    for _ in 0..=LINKS {
        let Some((link, target, after)) = first_link(root, &rest) else { return Ok(inside(root, &rest)) };
        shown.clone_from(&link);
        rest = normal(&link.parent().unwrap_or(Path::new("/")).join(target).join(after));
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{}: too many symbolic links", shown.display())))
}

/// The first name of `path` that is a link: its path, where it points, and what comes after it.
fn first_link(root: &Path, path: &Path) -> Option<(PathBuf, PathBuf, PathBuf)> {
    let mut so_far = PathBuf::new();
    path.components().find_map(|component| {
        so_far.push(component);
        let target = fs::read_link(inside(root, &so_far)).ok()?; // no link, or nothing there
        Some((so_far.clone(), target, path.strip_prefix(&so_far).ok()?.to_owned()))
    })
}

pub(super) fn normal(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => {
                clean.pop();
            }
            Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    clean
}

pub(super) fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

pub(super) fn directory(path: &Path) -> io::Result<()> {
    at(path, DirBuilder::new().recursive(true).mode(0o755).create(path))
}

pub(super) fn file(path: &Path) -> io::Result<()> {
    at(path, File::create(path)).map(drop)
}

/// Names the path that an error is about: the system's text alone tells nobody what to mend.
pub(super) fn at<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

pub(super) fn memory(target: &Path, options: &str, flags: MsFlags) -> io::Result<()> {
    let shown = target.display().to_string();
    step(&shown, "mount tmpfs on", mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options)))
}

pub(super) fn bind(source: &Path, target: &Path, flags: MsFlags) -> io::Result<()> {
    let shown = source.display().to_string();
    step(&shown, "bind", mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>))?;
    let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    step(&shown, "restrict", mount(None::<&str>, target, None::<&str>, flags, None::<&str>))
}

/// Lays nothing over a file or directory of the new root, if it is there. Links on the way to it lead where they lead the
/// pod: the machine's root is another's as long as this process has not left it.
///
/// # Errors
/// Whether it is there cannot be told, or it cannot be covered: the pod must not see it then.
pub(super) fn hide(root: &Path, path: &Path) -> io::Result<()> {
    let target = resolve(root, path)?;
    match fs::symlink_metadata(&target) {
        Ok(meta) if meta.is_dir() => memory(&target, "size=4k,mode=555", MsFlags::MS_RDONLY),
        Ok(_) => bind(Path::new("/dev/null"), &target, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => at(&target, Err(error)),
    }
}

pub(super) fn step(what: &str, doing: &str, result: nix::Result<()>) -> io::Result<()> {
    result.map_err(|error| io::Error::new(io::Error::from(error).kind(), format!("{doing} {what}: {}", error.desc())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_inside_the_new_root_only() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        symlink("../run/systemd/resolve/stub-resolv.conf", root.path().join("etc/resolv.conf")).unwrap();
        let shown = resolve(root.path(), Path::new("/etc/resolv.conf")).unwrap();
        assert_eq!(shown, root.path().join("run/systemd/resolve/stub-resolv.conf"));
        symlink("../../../../etc/passwd", root.path().join("etc/hosts")).unwrap();
        assert_eq!(resolve(root.path(), Path::new("/etc/hosts")).unwrap(), root.path().join("etc/passwd"));
        symlink("/run", root.path().join("etc/link")).unwrap();
        let below = resolve(root.path(), Path::new("/etc/../etc/link/../link/secrets/a")).unwrap();
        assert_eq!(below, root.path().join("run/secrets/a"));
        symlink("loop", root.path().join("etc/loop")).unwrap();
        assert!(
            hide(root.path(), Path::new("/etc/loop/a")).is_err(),
            "what cannot be looked at must not count as hidden"
        );
        assert!(hide(root.path(), Path::new("/etc/none")).is_ok());
        fs::write(root.path().join("etc/file"), "").unwrap();
        assert!(hide(root.path(), Path::new("/etc/file/below")).is_err());
        assert!(resolve(root.path(), Path::new("/etc/loop/a")).is_err());
    }
}
