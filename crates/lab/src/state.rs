//! Where a lab keeps what must be found by others: `/run/signpost/labs/NAME` (mode 0700), and the directory given with
//! `--dir` if there is one. A lock on `NAME.lock` beside it says that the lab lives.
//!
//! | file | what |
//! |---|---|
//! | `labs/NAME.lock` | locked by the lab's process, holds its number |
//! | `labs/NAME/lab.json` | [`Record`] |
//! | `labs/NAME/control.sock` | see `control` |
//! | `labs/NAME/kubeconfig`, `node-kubeconfig` | for kubectl and the daemons, mode 0600; here also with `--dir`: no pod of any lab ever sees `/run` |
//! | `DIR/nodes/`, `DIR/pods/` | the daemons' configuration and logs, the containers' logs |
//! | `DIR/api/` | the API's objects, if they are kept |

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::error::LabError;
use crate::spec::Families;
use crate::sys;

/// Where all labs are.
pub const LABS: &str = "/run/signpost/labs";
/// What a lab puts into its directory; nothing else in it is ever touched.
const OWN: [&str; 7] = ["lab.log", "nodes", "pods", "bird.conf", "bird.ctl", "bird.log", "bird.pid"];
/// What it puts into its directory below [`LABS`] besides.
const SECRET: [&str; 4] = ["kubeconfig", "node-kubeconfig", "lab.json", "control.sock"];
/// How long a killed process may take to end.
const KILLED: Duration = Duration::from_secs(10);
/// The API's objects, below a lab's directory.
const OBJECTS: &str = "api";

/// What a running lab says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Where its state is.
    pub dir: PathBuf,
    /// For kubectl.
    pub kubeconfig: PathBuf,
    /// Where the API listens for kubectl.
    pub api: String,
    /// The families.
    pub families: Families,
    /// The mode that was asked for.
    pub mode: String,
    /// The nodes.
    pub nodes: Vec<NodeRecord>,
    /// The outside client's addresses.
    pub outside: Vec<IpAddr>,
}

/// A node in a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// A lab's name and directories, held by this process. Dropped: everything that the lab left is removed.
pub struct LabDir {
    name: String,
    /// `/run/signpost/labs/NAME`.
    base: PathBuf,
    /// Where the state is.
    dir: PathBuf,
    cgroup: Cgroup,
    lock: Option<Flock<File>>,
}

impl LabDir {
    /// Takes the name, clears what a lab of it left that did not end cleanly (but for objects that are to be kept, when
    /// `keep_objects`), and makes the directories.
    ///
    /// # Errors
    /// The name is taken, or the directories cannot be made or used.
    pub fn take(name: &str, dir: Option<&Path>, keep_objects: bool) -> Result<LabDir, LabError> {
        let base = Path::new(LABS).join(name);
        private_directory(Path::new(LABS))?;
        let lock = lock(name)?;
        let cgroup = Cgroup::labs().map_err(|source| LabError::Cgroup { source })?.child(name);
        if let Some(old) = record(name) {
            tracing::info!(name, pid = old.pid, "a lab of this name ended without going down; removing what it left");
            clear_cgroup(&cgroup)?;
            sweep(&old.dir, keep_objects)?;
        }
        clear_cgroup(&cgroup)?;
        sweep_base(&base, keep_objects && dir.is_none())?;
        // From here on, what is made goes again when something fails.
        let mut taken = LabDir { name: name.to_owned(), dir: base.clone(), base, cgroup, lock: Some(lock) };
        private_directory(&taken.base)?;
        if let Some(dir) = dir {
            taken.dir = own_directory(dir)?;
            remove_files(&taken.dir, keep_objects)?;
        }
        taken.cgroup.create().map_err(|source| LabError::Cgroup { source })?;
        Ok(taken)
    }

    /// Where the state is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The kubeconfig for kubectl.
    pub fn kubeconfig(&self) -> PathBuf {
        self.base.join("kubeconfig")
    }

    /// The kubeconfig for the node daemons.
    pub fn node_kubeconfig(&self) -> PathBuf {
        self.base.join("node-kubeconfig")
    }

    /// Where the API's objects are.
    pub fn objects(&self) -> PathBuf {
        self.dir.join(OBJECTS)
    }

    /// The lab's control group.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// The socket over which the lab is asked things.
    pub fn socket(&self) -> PathBuf {
        socket(&self.name)
    }

    /// Says who and where the lab is.
    ///
    /// # Errors
    /// The file system is full.
    pub fn publish(&self, record: &Record) -> Result<(), LabError> {
        let path = self.base.join("lab.json");
        let text = serde_json::to_string_pretty(record).expect("a record is plain data");
        write_private(&path, &text)
    }

    /// Kills what still runs of the lab and removes all that it left.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn remove(mut self) -> Result<(), LabError> {
        self.clear()
    }

    fn clear(&mut self) -> Result<(), LabError> {
        let Some(lock) = self.lock.take() else { return Ok(()) };
        // Each is removed whatever becomes of the others.
        let parts = [clear_cgroup(&self.cgroup), sweep(&self.dir, false), sweep_base(&self.base, false)];
        let cleared = parts.into_iter().collect::<Result<(), LabError>>();
        let path = lock_path(&self.name);
        // Removed while it is held: whoever waits for it sees that it is another file by then.
        let unlocked = ignore_missing(fs::remove_file(&path)).map_err(LabError::state("remove", path));
        drop(lock);
        cleared.and(unlocked)
    }
}

impl Drop for LabDir {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            tracing::warn!(lab = self.name, %error, "the lab left something behind");
        }
    }
}

/// Removes what a lab that has no process any more left behind; whether there was anything.
///
/// # Errors
/// It lives, or something could not be removed.
pub fn clear_dead(name: &str) -> Result<bool, LabError> {
    let cgroup = Cgroup::labs().map_err(|source| LabError::Cgroup { source })?.child(name);
    if !Path::new(LABS).join(name).exists() && !lock_path(name).exists() && !cgroup.path().exists() {
        return Ok(false);
    }
    LabDir::take(name, None, false)?.remove()?;
    Ok(true)
}

/// What a lab says about itself; `None`: there is none of this name, or it did not get so far.
pub fn record(name: &str) -> Option<Record> {
    let text = fs::read_to_string(Path::new(LABS).join(name).join("lab.json")).ok()?;
    serde_json::from_str(&text).ok()
}

/// All labs that said something, living or not.
pub fn records() -> Vec<Record> {
    let Ok(entries) = fs::read_dir(LABS) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut records: Vec<Record> = names.filter_map(|name| record(&name)).collect();
    records.sort_by(|a, b| a.name.cmp(&b.name));
    records
}

/// Whether a process runs the lab.
pub fn lives(name: &str) -> bool {
    let Ok(file) = File::open(lock_path(name)) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EWOULDBLOCK)))
}

/// The socket over which a lab is asked things.
pub fn socket(name: &str) -> PathBuf {
    Path::new(LABS).join(name).join("control.sock")
}

/// The process that has a lab's name, as it said itself.
pub fn holder(name: &str) -> Option<u32> {
    fs::read_to_string(lock_path(name)).ok()?.trim().parse().ok()
}

/// Ends the process of a lab that answers nothing, and removes what it left.
///
/// # Errors
/// The process is not known for certain, does not end, or something could not be removed.
pub fn kill_holder(name: &str) -> Result<(), LabError> {
    let path = lock_path(name);
    let failed = |source| LabError::State { op: "end the process that holds", path: path.clone(), source };
    let pid = holder(name).ok_or_else(|| failed(io::Error::other("it does not say its number")))?;
    let process = sys::hold_process(pid).map_err(failed)?;
    // Looked at while the process is held: its number means the same one until the signal is sent.
    let inode = fs::metadata(&path).map_err(failed)?.ino();
    let locks = fs::read_to_string("/proc/locks").map_err(failed)?;
    if !locks.lines().any(|line| locks_file(line, pid, inode)) {
        return Err(failed(io::Error::other(format!("process {pid} is not the one that holds it"))));
    }
    sys::kill_process(&process).map_err(failed)?;
    let deadline = Instant::now() + KILLED;
    while lives(name) {
        if Instant::now() > deadline {
            return Err(failed(io::Error::other(format!("process {pid} does not end"))));
        }
        std::thread::sleep(Duration::from_millis(5)); // its lock tells nobody when it is released
    }
    clear_dead(name).map(|_| ())
}

/// Whether a line of /proc/locks says that a process holds the lock of a file.
fn locks_file(line: &str, pid: u32, inode: u64) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, "WRITE", holder, file, ..] = words[..] else { return false };
    holder == pid.to_string() && file.rsplit(':').next() == Some(&inode.to_string())
}

fn lock_path(name: &str) -> PathBuf {
    Path::new(LABS).join(format!("{name}.lock")) // a name has no dot: no lab's directory is called so
}

fn lock(name: &str) -> Result<Flock<File>, LabError> {
    let path = lock_path(name);
    let failed = |op| LabError::state(op, path.clone());
    loop {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed("open"))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(LabError::NameTaken { name: name.to_owned(), pid });
            }
            Err((_, error)) => return Err(failed("lock")(error.into())),
        };
        let ours = lock.metadata().map_err(failed("read"))?.ino();
        if fs::metadata(&path).is_ok_and(|meta| meta.ino() == ours) {
            let say = |file: &mut File| {
                file.set_len(0)?;
                file.rewind()?;
                write!(file, "{}", std::process::id())
            };
            say(&mut lock).map_err(failed("write"))?;
            return Ok(lock);
        }
        // The holder before removed the file between our opening and our locking it.
    }
}

fn private_directory(path: &Path) -> Result<(), LabError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(LabError::state("create the directory", path))
}

/// A directory of the user's choice: new, empty, or one that holds only what a lab left.
fn own_directory(path: &Path) -> Result<PathBuf, LabError> {
    private_directory(path)?;
    let meta = fs::symlink_metadata(path).map_err(LabError::state("use", path))?;
    if !meta.is_dir() || meta.uid() != 0 {
        let source =
            io::Error::other("it is no directory of root's own: another could change what the lab keeps there");
        return Err(LabError::State { op: "use", path: path.to_owned(), source });
    }
    let path = path.canonicalize().map_err(LabError::state("use", path))?;
    let entries = fs::read_dir(&path).map_err(LabError::state("read", &path))?;
    for entry in entries {
        let entry = entry.map_err(LabError::state("read", &path))?;
        let name = entry.file_name();
        if !OWN.iter().chain([&OBJECTS]).any(|own| name == **own) {
            let source =
                io::Error::other(format!("it holds {name:?}, which no lab put there; take an empty directory"));
            return Err(LabError::State { op: "use", path, source });
        }
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&path, mode).map_err(LabError::state("protect", &path))?;
    Ok(path)
}

/// Removes a lab's files from a directory, and the directory if nothing else is in it.
fn sweep(dir: &Path, keep_objects: bool) -> Result<(), LabError> {
    remove_files(dir, keep_objects)?;
    // Not empty: objects that are kept, or what others put there.
    let _ = fs::remove_dir(dir);
    Ok(())
}

/// The same for a lab's directory below [`LABS`].
fn sweep_base(base: &Path, keep_objects: bool) -> Result<(), LabError> {
    for name in SECRET {
        remove(&base.join(name))?;
    }
    sweep(base, keep_objects)
}

fn remove_files(dir: &Path, keep_objects: bool) -> Result<(), LabError> {
    for name in OWN {
        remove(&dir.join(name))?;
    }
    if !keep_objects {
        remove(&dir.join(OBJECTS))?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), LabError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    ignore_missing(removed).map_err(LabError::state("remove", path))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn clear_cgroup(cgroup: &Cgroup) -> Result<(), LabError> {
    let cleared = cgroup.kill().and_then(|()| cgroup.remove());
    cleared.map_err(|source| LabError::Cgroup { source })
}

/// Writes a file that only root reads.
pub fn write_private(path: &Path, text: &str) -> Result<(), LabError> {
    signpost_apiserver::write_private(path, text.as_bytes()).map_err(LabError::state("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_another_or_a_link_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link, foreign) = (dir.path().join("own"), dir.path().join("link"), dir.path().join("foreign"));
        assert!(own_directory(&own).is_ok());
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert!(own_directory(&link).is_err());
        fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(65534), None).unwrap();
        assert!(own_directory(&foreign).is_err());
    }

    fn name(what: &str) -> String {
        format!("t-{what}-{}", std::process::id())
    }

    #[test]
    fn a_name_is_taken_once_and_nothing_stays_of_it() {
        let name = name("once");
        let first = LabDir::take(&name, None, false).unwrap();
        assert!(lives(&name));
        assert_eq!(first.path().metadata().unwrap().mode() & 0o777, 0o700);
        match LabDir::take(&name, None, false) {
            Err(LabError::NameTaken { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{:?}", other.err()),
        }
        let (base, cgroup) = (first.path().to_owned(), first.cgroup().path().to_owned());
        first.remove().unwrap();
        assert!(!base.exists() && !cgroup.exists() && !lock_path(&name).exists() && !lives(&name));
    }

    #[test]
    fn a_process_is_ended_only_if_it_holds_the_labs_lock() {
        let name = name("holder");
        private_directory(Path::new(LABS)).unwrap();
        let file = File::create(lock_path(&name)).unwrap();
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(lock_path(&name), other.id().to_string()).unwrap();
        let error = kill_holder(&name).unwrap_err().to_string();
        let runs = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();
        let inode = lock.metadata().unwrap().ino();
        let locks = fs::read_to_string("/proc/locks").unwrap();
        assert!(locks.lines().any(|line| locks_file(line, std::process::id(), inode)), "{locks}");
        fs::remove_file(lock_path(&name)).unwrap();
        assert!(runs && error.contains("is not the one that holds it"), "{error}");
    }

    #[test]
    fn a_directory_with_other_things_in_it_is_refused_and_untouched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        let error = LabDir::take(&name("full"), Some(dir.path()), false).err().unwrap();
        assert!(error.to_string().contains("thesis.txt"), "{error}");
        assert!(dir.path().join("thesis.txt").exists());
    }

    #[test]
    fn what_a_dead_lab_left_is_cleared_and_its_objects_kept_if_wanted() {
        let (name, dir) = (name("dead"), tempfile::tempdir().unwrap());
        let mut lab = LabDir::take(&name, Some(dir.path()), true).unwrap();
        fs::create_dir(lab.objects()).unwrap();
        fs::create_dir(lab.path().join("pods")).unwrap();
        fs::write(lab.kubeconfig(), "token").unwrap();
        lab.lock = None; // as after SIGKILL: nothing is removed
        drop(lab);
        let again = LabDir::take(&name, Some(dir.path()), true).unwrap();
        assert!(again.objects().exists() && !again.path().join("pods").exists() && !again.kubeconfig().exists());
        let mut lab = again;
        lab.lock = None;
        drop(lab);
        assert!(clear_dead(&name).unwrap());
        assert!(!clear_dead(&name).unwrap());
        assert!(!Path::new(LABS).join(&name).exists());
        fs::remove_dir_all(dir.path().join(OBJECTS)).unwrap(); // the last one did not say where it was
    }
}
