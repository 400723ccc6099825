//! The programs at the interfaces: loads them onto the maps of the socket hooks, hangs them at every interface, and at those
//! that come later, and takes them away.
//!
//! ```text
//! PINS/maps-LAYOUT-SIZES/tracked, ...      flows; a daemon of the same layout and sizes goes on with them
//! PINS/interfaces/NUMBER-ingress, ...      what holds the programs at an interface, whether or not a daemon runs
//! ```
//!
//! Linux before 6.6 has no such links: there they are filters of a qdisc `clsact`, known by their priority.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{
    Link, MapCore, MapFlags, Object, ObjectBuilder, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder,
};
use nix::errno::Errno;
use tracing::{debug, info, warn};

use super::kernel::{KernelConfig, KernelError, least, tell_libbpf};
use super::links::{Changes, Interface, interfaces};
use super::ports;
use super::sys::{self, Way};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/packets.bpf.o"));
const INTERFACES: &str = "interfaces";
const EPOCH: &str = "epoch";
/// How long the thread waits for a change; then it looks all the same, since somebody may have taken a program away.
const LOOK: Duration = Duration::from_secs(5);
/// By which filters of ours are known.
const PRIORITY: u32 = 41_953;
const HANDLE: u32 = 1;
/// The end of the name under which the program of a filter is kept, to know later that there is one.
const FILTER: &str = "-filter";

/// Why programs could not be hung at an interface.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The kernel does not name them.
    #[error("cannot list the interfaces: {0}")]
    List(#[source] io::Error),
    /// One of them.
    #[error("no program can be attached to the interface {interface}: {source}")]
    Attach {
        /// Its name.
        interface: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The programs, loaded; and the thread that hangs them at interfaces that come, until this is dropped. They stay there.
#[derive(Debug)]
pub(super) struct AtInterfaces {
    object: Object,
    over: Arc<AtomicBool>,
    follows: bool,
}

/// Opens the object with its maps' sizes; without pins it is only to be tried.
pub(super) fn load(config: &KernelConfig, maps: Option<&Path>) -> Result<Object, KernelError> {
    tell_libbpf();
    let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(KernelError::LoadPackets)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(size) = config.size(&name) {
            map.set_max_entries(size).map_err(KernelError::LoadPackets)?;
        }
        if let Some(maps) = maps.filter(|_| !name.starts_with('.') && !name.contains(".rodata")) {
            map.set_pin_path(maps.join(&name)).map_err(KernelError::LoadPackets)?;
        }
    }
    open.load().map_err(KernelError::LoadPackets)
}

/// Whether the kernel takes the programs. They and their maps are gone when this returns.
///
/// # Errors
/// It does not.
pub fn try_load() -> Result<(), KernelError> {
    load(&least(), None).map(drop)
}

impl AtInterfaces {
    /// Loads them onto the maps in a directory, which the socket hooks made.
    pub(super) fn load(config: &KernelConfig, maps: &Path) -> Result<AtInterfaces, KernelError> {
        Ok(AtInterfaces { object: load(config, Some(maps))?, over: Arc::default(), follows: false })
    }

    /// Something in the tables differs: flows of UDP ask again whether their backend is one.
    pub(super) fn changed(&self) -> Result<(), libbpf_rs::Error> {
        let map = self.object.maps().find(|map| map.name() == EPOCH).expect("the object was compiled with it");
        let first = 0_u32.to_ne_bytes();
        let now = map.lookup(&first, MapFlags::ANY)?;
        let now = now.and_then(|bytes| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))).unwrap_or_default();
        map.update(&first, &now.wrapping_add(1).to_ne_bytes(), MapFlags::ANY)
    }

    /// Hangs them at every interface of the calling thread's network namespace, and from now on at those that come.
    pub(super) fn attach(&mut self, pins: &Path) -> Result<(), InterfaceError> {
        let directory = pins.join(INTERFACES);
        let made = fs::create_dir(&directory);
        if let Err(source) = made.or_else(|error| if directory.is_dir() { Ok(()) } else { Err(error) }) {
            return Err(InterfaceError::Attach { interface: "any".to_owned(), source });
        }
        let mut places = Places { programs: self.handles()?, directory, known: BTreeSet::new() };
        // Before the first look: what comes after that is told.
        let changes = Changes::new().map_err(InterfaceError::List)?;
        ports::reserve(pins);
        places.look()?;
        if !self.follows {
            let over = self.over.clone();
            let follow = move || follow(&mut places, &changes, &over);
            thread::Builder::new().name("interfaces".to_owned()).spawn(follow).map_err(InterfaceError::List)?;
            self.follows = true;
        }
        Ok(())
    }

    fn handles(&self) -> Result<Programs, InterfaceError> {
        let handle = |name: &str| -> io::Result<Handle> {
            let program = self.object.progs().find(|program| program.name() == name);
            let program = program.expect("the object was compiled with it");
            Ok(Handle {
                id: libbpf_rs::Program::id_from_fd(program.as_fd()).map_err(io::Error::other)?,
                fd: program.as_fd().try_clone_to_owned()?,
            })
        };
        let all =
            || Ok(Programs([handle("ingress")?, handle("egress")?, handle("ingress_bare")?, handle("egress_bare")?]));
        all().map_err(InterfaceError::List)
    }
}

impl Drop for AtInterfaces {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A program that is loaded.
#[derive(Debug)]
struct Handle {
    id: u32,
    fd: OwnedFd,
}

/// Those for interfaces with an Ethernet header and without, of each for both ways.
#[derive(Debug)]
struct Programs([Handle; 4]);

impl Programs {
    fn of(&self, interface: &Interface, way: Way) -> &Handle {
        let [ingress, egress, ingress_bare, egress_bare] = &self.0;
        match (interface.has_header, way) {
            (true, Way::Ingress) => ingress,
            (true, Way::Egress) => egress,
            (false, Way::Ingress) => ingress_bare,
            (false, Way::Egress) => egress_bare,
        }
    }
}

/// Where the programs hang.
#[derive(Debug)]
struct Places {
    programs: Programs,
    directory: PathBuf,
    /// Interfaces that a failure was told of.
    known: BTreeSet<u32>,
}

fn follow(places: &mut Places, changes: &Changes, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        if let Err(error) = changes.wait(LOOK) {
            warn!(%error, "the kernel does not tell when interfaces come; they are looked for");
            thread::sleep(LOOK);
        }
        if over.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = places.look() {
            debug!(%error, "an interface has no programs");
        }
    }
}

impl Places {
    /// Hangs the programs where they do not hang, and forgets interfaces that are gone. Of several failures the first is told.
    fn look(&mut self) -> Result<(), InterfaceError> {
        let found = interfaces().map_err(InterfaceError::List)?;
        let mut result = Ok(());
        for interface in &found {
            for way in [Way::Ingress, Way::Egress] {
                match self.hang(interface, way) {
                    Ok(true) => info!(interface = interface.name, ?way, "packets are served at the interface"),
                    Ok(false) => {}
                    // It went meanwhile.
                    Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => {}
                    Err(source) => {
                        if self.known.insert(interface.index) {
                            warn!(interface = interface.name, ?way, %source, "packets are not served at the interface");
                        }
                        let error = InterfaceError::Attach { interface: interface.name.clone(), source };
                        result = result.and(Err(error));
                    }
                }
            }
        }
        self.known.retain(|known| found.iter().any(|interface| interface.index == *known));
        self.forget(&found);
        result
    }

    /// Whether it had to be.
    fn hang(&self, interface: &Interface, way: Way) -> io::Result<bool> {
        let program = self.programs.of(interface, way);
        let path = self.directory.join(pin_name(interface.index, way));
        if path.exists() {
            match held(&path, interface.index) {
                Some(held) if held == program.id => return Ok(false),
                Some(_) => return update(&path, &program.fd).map(|()| true),
                None => fs::remove_file(&path)?,
            }
        }
        match sys::attach_tcx(&program.fd, interface.index, way) {
            Ok(link) => pin(&link, &path).map(|()| true),
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => self.filter(program, interface, way),
            Err(error) => Err(error),
        }
    }

    /// Where there are no links. What hangs there already is replaced in one step. Whether it was another one.
    fn filter(&self, program: &Handle, interface: &Interface, way: Way) -> io::Result<bool> {
        let mut hook = hook(program.fd.as_fd(), interface.index, point(way))?;
        hook.create().map_err(into_io)?;
        let mark = self.directory.join(format!("{}{FILTER}", pin_name(interface.index, way)));
        if mark.exists() {
            let mut asked = hook;
            if asked.query().is_ok_and(|held| held == program.id) {
                return Ok(false);
            }
            fs::remove_file(&mark)?;
        }
        hook.replace(true).attach().map_err(into_io)?;
        pin(&program.fd, &mark).map(|()| true)
    }

    fn forget(&self, found: &[Interface]) {
        for path in fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let index = path.file_name().and_then(|name| name.to_str()?.split_once('-')?.0.parse::<u32>().ok());
            if !found.iter().any(|interface| Some(interface.index) == index)
                && let Err(error) = fs::remove_file(&path)
            {
                debug!(path = %path.display(), %error, "the link of an interface that is gone cannot be removed");
            }
        }
    }
}

fn pin_name(interface: u32, way: Way) -> String {
    match way {
        Way::Ingress => format!("{interface}-ingress"),
        Way::Egress => format!("{interface}-egress"),
    }
}

/// The program in a link at an interface.
fn held(path: &Path, interface: u32) -> Option<u32> {
    let info = Link::open(path).ok()?.info().ok()?;
    match info.info {
        LinkTypeInfo::Tcx(at) if at.ifindex == interface => Some(info.prog_id),
        _ => None,
    }
}

fn update(path: &Path, program: &OwnedFd) -> io::Result<()> {
    let link = Link::open(path).map_err(io::Error::other)?;
    sys::update_link(&link, program)
}

fn pin(link: &OwnedFd, path: &Path) -> io::Result<()> {
    sys::pin(link, &CString::new(path.as_os_str().as_bytes())?)
}

fn point(way: Way) -> TcAttachPoint {
    match way {
        Way::Ingress => TC_INGRESS,
        Way::Egress => TC_EGRESS,
    }
}

fn hook(program: BorrowedFd<'_>, interface: u32, point: TcAttachPoint) -> io::Result<TcHook> {
    let interface = i32::try_from(interface).map_err(io::Error::other)?;
    Ok(TcHookBuilder::new(program).ifindex(interface).handle(HANDLE).priority(PRIORITY).hook(point))
}

fn into_io(error: libbpf_rs::Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Which interface a file says to have a filter.
fn filter_of(path: &Path) -> Option<(u32, Way)> {
    let (index, way) = path.file_name()?.to_str()?.strip_suffix(FILTER)?.split_once('-')?;
    let way = if way == "ingress" { Way::Ingress } else { Way::Egress };
    Some((index.parse().ok()?, way))
}

/// Takes the programs away from every interface.
pub(super) fn detach(pins: &Path) {
    ports::release(pins);
    let directory = pins.join(INTERFACES);
    for path in fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if let Some((index, way)) = filter_of(&path) {
            let unhung = fs::File::open("/dev/null")
                .and_then(|any| hook(any.as_fd(), index, point(way))?.detach().map_err(into_io));
            if let Err(error) = unhung {
                debug!(index, ?way, %error, "a filter cannot be removed");
            }
            continue;
        }
        // Without its file a link goes too, but at a time of the kernel's choice.
        if let Err(error) = Link::open(&path).and_then(|link| link.detach()) {
            debug!(link = %path.display(), %error, "a link cannot be detached; its file is removed");
        }
    }
    if directory.is_dir()
        && let Err(error) = fs::remove_dir_all(&directory)
    {
        warn!(path = %directory.display(), %error, "links of interfaces cannot be removed");
    }
}
