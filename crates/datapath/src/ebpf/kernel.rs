//! The kernel's side of the socket hooks: loads the programs, keeps their maps and links in a bpf file system, reads and
//! writes the maps.
//!
//! ```text
//! PINS/maps-LAYOUT-SIZES/frontends, slots, ...   the maps; a daemon of the same layout and sizes goes on with them
//! PINS/links/connect4, ...                       what holds the programs at the cgroup, whether or not a daemon runs
//! ```
//!
//! A new daemon loads its own programs onto the maps that are there and puts them into the links, each in one step: no
//! connection meets a node without them. Maps of another layout are filled before the links go over to them.

mod config;
mod error;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use signpost_core::object::{Family, Protocol, ServicePortName};
use tracing::{debug, info, warn};

use super::change::{Change, Write};
use super::layout::{LAYOUT, Table, Value};
use super::program::Packets;
use super::repair::Observed;
use super::scaled::scaled_up;
use super::{count, migrate, packets, stale, sys};
use crate::counts::{PortCounts, Rebalancing};
pub(super) use config::least;
pub use config::{Counting, KernelConfig};
pub use error::KernelError;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sockets.bpf.o"));
/// So many entries go into one call.
const BATCH: usize = 4096;
/// So many are read by one call; more than any bucket of a hash map holds.
pub(super) const READ_BATCH: u32 = 1 << 15;
const MAPS: &str = "maps-";
const LINKS: &str = "links";
const LEFT_OUT: &str = "left_out";

/// The programs and maps of one node, for both families.
#[derive(Debug)]
pub struct Kernel {
    config: KernelConfig,
    loaded: Option<Object>,
    stale: Option<stale::Worker>,
    at_interfaces: Option<packets::AtInterfaces>,
    reads_only: bool,
    /// Some frontend asks, or asked, that its TCP connections be ended.
    ends_tcp: bool,
    /// The families that share the maps, and those whose tables were filled.
    expected: BTreeSet<Family>,
    filled: BTreeSet<Family>,
}

impl Kernel {
    /// Nothing is done before the first look.
    pub fn new(config: KernelConfig) -> Kernel {
        let (expected, filled) = (BTreeSet::new(), BTreeSet::new());
        Kernel {
            config,
            loaded: None,
            stale: None,
            at_interfaces: None,
            reads_only: false,
            ends_tcp: false,
            expected,
            filled,
        }
    }

    /// This family's tables are filled, too, before the programs take the place of some that use other maps.
    pub(super) fn expect(&mut self, family: Family) {
        self.expected.insert(family);
    }

    /// One that loads nothing and changes nothing: it looks at what is pinned.
    pub fn reader(config: KernelConfig) -> Kernel {
        Kernel { reads_only: true, ..Kernel::new(config) }
    }

    /// What the maps hold of a family, and whether the programs hang where they should. Loads the programs the first
    /// time: the calling thread must be in the node's network namespace.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn observe(&mut self, family: Family) -> Result<Observed, KernelError> {
        if self.reads_only {
            return self.look(family);
        }
        let object = self.load()?;
        let mut observed = Observed::default();
        for table in Table::ALL {
            read(&map(object, table), family, table, &mut observed)?;
        }
        observed.attached = self.is_attached()?;
        self.ends_tcp |= observed.entries.values().any(asks_for_ends);
        Ok(observed)
    }

    /// What is pinned; nothing, if no daemon pinned maps of this layout.
    fn look(&self, family: Family) -> Result<Observed, KernelError> {
        let mut observed = Observed::default();
        let layout = format!("{MAPS}{LAYOUT}-");
        let entries = fs::read_dir(&self.config.pins).into_iter().flatten().flatten();
        let maps = entries.map(|entry| entry.path());
        let is_maps = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&layout));
        for maps in maps.filter(is_maps) {
            for table in Table::ALL {
                let failed = |source| KernelError::Map { op: "open", table: table.name(), source };
                let map = MapHandle::from_pinned_path(maps.join(table.name())).map_err(failed)?;
                read(&map, family, table, &mut observed)?;
            }
        }
        observed.attached = fs::read_dir(self.config.pins.join(LINKS)).is_ok_and(|mut links| links.next().is_some());
        Ok(observed)
    }

    /// Carries a change out, step by step in its order.
    ///
    /// # Errors
    /// The kernel refused; what was done until then stays.
    pub fn apply(&mut self, change: &Change) -> Result<(), KernelError> {
        let object = self.load()?;
        for (table, key) in &change.foreign {
            remove(object, *table, key)?;
        }
        let scaled_up = scaled_up(object, change);
        let mut batch = Batch::new(object);
        for write in change.writes() {
            match write {
                Write::Set(key, value) => batch.add(key.table(), &key.bytes(), &value.bytes())?,
                Write::Remove(key) => {
                    batch.flush()?;
                    remove(object, key.table(), &key.bytes())?;
                }
            }
        }
        batch.flush()?;
        if let Some(packets) = &self.at_interfaces {
            packets.changed().map_err(|source| KernelError::Map { op: "write", table: "epoch", source })?;
        }
        self.filled.insert(change.family);
        let attach = change.attach && self.may_attach();
        if attach {
            self.attach()?;
        }
        self.ends_tcp |= change.set.values().any(asks_for_ends);
        let tcp = self.ends_tcp && change.touches(Protocol::Tcp) || !scaled_up.is_empty();
        let looks = change.touches(Protocol::Udp) || attach || tcp;
        if let Some(stale) = self.stale.as_ref().filter(|_| looks) {
            stale.look(stale::Order { tcp: self.ends_tcp, scaled_up });
        }
        Ok(())
    }

    /// How many sockets were ended because their backend went away.
    pub fn ended_sockets(&self) -> u64 {
        self.stale.as_ref().map_or(0, |worker| worker.done().ended)
    }

    /// Whether anything happened to connections that are spread anew, and was not taken.
    pub fn has_rebalancing(&self) -> bool {
        self.stale.as_ref().is_some_and(|worker| !worker.done().untold.is_empty())
    }

    /// What happened since then to connections that are spread anew, of Service ports that `name` knows by their number.
    pub fn take_rebalancing(
        &self,
        name: impl Fn(u64) -> Option<ServicePortName>,
    ) -> Vec<(ServicePortName, Rebalancing)> {
        let Some(worker) = &self.stale else { return Vec::new() };
        let mut taken = Vec::new();
        worker.done().untold.retain(|(service, what)| match name(*service) {
            Some(name) => {
                taken.push((name, *what));
                false
            }
            None => true,
        });
        taken
    }

    /// What the programs counted, by the numbers that stand for Service ports. Nothing, before they were loaded.
    ///
    /// # Errors
    /// The kernel does not give it.
    pub fn counts(&self) -> Result<BTreeMap<u64, PortCounts>, KernelError> {
        let map = self.loaded.iter().flat_map(|object| object.maps()).find(|map| map.name() == count::COUNTERS);
        let mut all = map.map_or_else(|| Ok(BTreeMap::new()), |map| count::read(&map))?;
        if let Some(worker) = &self.stale {
            for (service, closed) in &worker.done().rebalanced {
                all.entry(*service).or_default().rebalanced = *closed;
            }
        }
        Ok(all)
    }

    /// From now on the sockets of these network namespaces are left alone, and no others are. Whether it could be said: it
    /// cannot before the programs were loaded.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn leave_out(&self, networks: &BTreeSet<u64>) -> Result<bool, KernelError> {
        let Some(map) = self.loaded.iter().flat_map(|object| object.maps()).find(|map| map.name() == LEFT_OUT) else {
            return Ok(false);
        };
        let failed = |source| KernelError::Map { op: "write", table: LEFT_OUT, source };
        for key in map.keys().collect::<Vec<_>>() {
            let network = key.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            if !network.is_some_and(|network| networks.contains(&network)) {
                map.delete(&key).map_err(failed)?;
            }
        }
        for network in networks {
            map.update(&network.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        }
        Ok(true)
    }

    /// Who serves packets.
    pub fn packets(&self) -> Packets {
        self.config.packets
    }

    /// The most frontends and slots.
    pub fn sizes(&self) -> (u32, u32) {
        (self.config.frontends, self.config.slots)
    }

    /// Takes the programs away from the control group and removes the maps; tells whether there was anything.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove(&mut self) -> Result<bool, KernelError> {
        self.loaded = None;
        self.stale = None;
        self.at_interfaces = None;
        packets::detach(&self.config.pins);
        let pins = &self.config.pins;
        for path in fs::read_dir(pins.join(LINKS)).into_iter().flatten().flatten().map(|entry| entry.path()) {
            // Without its file a link goes too, but at a time of the kernel's choice.
            if let Err(error) = Link::open(&path).and_then(|link| link.detach()) {
                warn!(link = %path.display(), %error, "a link cannot be detached; its file is removed");
            }
        }
        match fs::remove_dir_all(pins) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(KernelError::Pin { op: "remove", path: pins.clone(), source }),
        }
    }

    fn load(&mut self) -> Result<&Object, KernelError> {
        if self.loaded.is_none() {
            tell_libbpf();
            have_directory(&self.config.pins)?;
            let maps = self.maps();
            have_directory(&maps)?;
            let object = load(&self.config, Some(&maps))?;
            if self.config.packets != Packets::Nftables {
                self.at_interfaces = Some(packets::AtInterfaces::load(&self.config, &maps)?);
            }
            self.stale = self.watch_stale(&object);
            self.loaded = Some(object);
        }
        Ok(self.loaded.as_ref().expect("it was loaded just now"))
    }

    /// Without it, Services work; only connected UDP sockets may go on talking to nobody.
    fn watch_stale(&self, object: &Object) -> Option<stale::Worker> {
        let started = || {
            let handle = |name: &str| {
                let map = object.maps().find(|map| map.name() == name);
                MapHandle::try_from(&map.expect("the object was compiled with it")).map_err(io::Error::other)
            };
            let tables = Table::ALL.iter().map(|table| handle(table.name())).collect::<Result<_, _>>()?;
            let maps = stale::LiveMaps { tables, peers: handle("peers")? };
            let cgroup = self.cgroup().map_err(io::Error::other)?.path;
            stale::Worker::start(maps, cgroup)
        };
        started().map_err(|error| warn!(%error, "sockets whose backend is gone are not ended")).ok()
    }

    fn maps(&self) -> PathBuf {
        let KernelConfig { frontends, slots, remembered, .. } = self.config;
        self.config.pins.join(format!("{MAPS}{LAYOUT}-{frontends}-{slots}-{remembered}"))
    }

    fn link(&self, program: &str) -> PathBuf {
        self.config.pins.join(LINKS).join(program)
    }

    fn cgroup(&self) -> Result<Cgroup, KernelError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| KernelError::Cgroup { path, source }
        };
        let path = match &self.config.cgroup {
            Some(path) => path.clone(),
            None => cgroup2_mount().map_err(failed(Path::new("/sys/fs/cgroup")))?,
        };
        let directory = fs::File::open(&path).map_err(failed(&path))?;
        let number = directory.metadata().map_err(failed(&path))?.ino();
        Ok(Cgroup { path, directory, number })
    }

    fn is_attached(&self) -> Result<bool, KernelError> {
        let Some(object) = &self.loaded else { return Ok(false) };
        let cgroup = self.cgroup()?;
        for program in object.progs() {
            let name = program.name().to_string_lossy().into_owned();
            let held = libbpf_rs::Program::id_from_fd(std::os::fd::AsFd::as_fd(&program)).ok();
            if held.is_none() || self.held(&name, cgroup.number) != held {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The program that hangs in a link at the control group of this number.
    fn held(&self, program: &str, cgroup: u64) -> Option<u32> {
        // libbpf would complain about a file that is not there.
        let path = Some(self.link(program)).filter(|path| path.exists())?;
        let link = Link::open(path).ok()?;
        let info = link.info().ok()?;
        match info.info {
            LinkTypeInfo::Cgroup(at) if at.cgroup_id == cgroup => Some(info.prog_id),
            _ => None,
        }
    }

    /// Programs that use other maps serve all families: those are left in place until these maps can.
    fn may_attach(&self) -> bool {
        let replaces = migrate::has_others(&self.config.pins, &self.maps(), MAPS);
        !replaces || self.expected.is_subset(&self.filled)
    }

    fn attach(&mut self) -> Result<(), KernelError> {
        let Some(object) = &self.loaded else { return Ok(()) };
        have_directory(&self.config.pins.join(LINKS))?;
        migrate::bring_over(&self.config.pins, &self.maps(), MAPS, object);
        let cgroup = self.cgroup()?;
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let path = self.link(&name);
            let failed = |source| KernelError::Attach { program: name.clone(), cgroup: cgroup.path.clone(), source };
            if self.held(&name, cgroup.number).is_some() {
                Link::open(&path).and_then(|mut link| link.update_prog(&program)).map_err(failed)?;
                continue;
            }
            // A link to a control group that is no more, or another: the new one hangs before the old one goes.
            let mut link = program.attach_cgroup(cgroup.directory.as_raw_fd()).map_err(failed)?;
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(KernelError::Pin { op: "remove", path, source });
                }
                _ => link.pin(&path).map_err(failed)?,
            }
        }
        info!(cgroup = %cgroup.path.display(), "the socket programs are attached");
        migrate::bring_over(&self.config.pins, &self.maps(), MAPS, object);
        match &mut self.at_interfaces {
            Some(packets) => packets.attach(&self.config.pins)?,
            None => packets::detach(&self.config.pins),
        }
        self.forget_others();
        Ok(())
    }

    /// Removes maps of another layout or other sizes, which no link's program uses any more.
    fn forget_others(&self) {
        let mine = self.maps();
        let Ok(entries) = fs::read_dir(&self.config.pins) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_maps = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(MAPS));
            if is_maps && path != mine {
                match fs::remove_dir_all(&path) {
                    Ok(()) => debug!(path = %path.display(), "maps of another layout are removed"),
                    Err(error) => warn!(path = %path.display(), %error, "maps of another layout cannot be removed"),
                }
            }
        }
    }
}

/// Whether it is a frontend whose TCP connections are to be ended when their endpoint is gone.
fn asks_for_ends(value: &Value) -> bool {
    matches!(value, Value::Frontend(frontend) if frontend.reset_after_s.is_some())
}

/// A control group's directory, open, and the number by which links know it.
struct Cgroup {
    path: PathBuf,
    directory: fs::File,
    number: u64,
}

/// Where cgroup2 is mounted: its root holds every process of the machine (of the container, if this is one).
///
/// # Errors
/// It is mounted nowhere.
pub fn cgroup2_mount() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (source.split(' ').next()? == "cgroup2").then(|| mount.split(' ').nth(4).unwrap_or_default())
    });
    let missing = "no cgroup2 is mounted: run `mount -t cgroup2 none /sys/fs/cgroup` or boot with cgroup v2";
    mount.map(PathBuf::from).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing))
}

/// Whether the kernel takes the programs. They and their maps are gone when this returns.
///
/// # Errors
/// It does not.
pub fn try_load() -> Result<(), KernelError> {
    tell_libbpf();
    load(&least(), None).map(drop)
}

/// The programs' names.
pub(super) fn programs() -> Vec<String> {
    tell_libbpf();
    let open = ObjectBuilder::default().open_memory(OBJECT).expect("it was compiled with this program");
    open.progs().map(|program| program.name().to_string_lossy().into_owned()).collect()
}

/// Whether the kernel takes one of the programs, with its maps; both are gone when this returns.
///
/// # Errors
/// It does not.
pub(super) fn try_load_alone(program: &str) -> Result<(), KernelError> {
    tell_libbpf();
    load_some(&least(), None, |name| name == program).map(drop)
}

fn load(config: &KernelConfig, maps: Option<&Path>) -> Result<Object, KernelError> {
    load_some(config, maps, |_| true)
}

fn load_some(config: &KernelConfig, maps: Option<&Path>, which: impl Fn(&str) -> bool) -> Result<Object, KernelError> {
    let netns = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("0.0.0.0", 0)));
    let netns = netns.and_then(|socket| sys::netns_cookie(&socket)).map_err(KernelError::Namespace)?;
    let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(KernelError::Load)?;
    for mut program in open.progs_mut() {
        let wanted = which(&program.name().to_string_lossy());
        program.set_autoload(wanted);
    }
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(size) = config.size(&name) {
            map.set_max_entries(size).map_err(KernelError::Load)?;
        }
        if name.ends_with(".rodata") {
            // `settings`, the only constant that is filled in.
            map.set_initial_value(&settings(netns, config.counting)).map_err(KernelError::Load)?;
        } else if let Some(maps) = maps {
            map.set_pin_path(maps.join(&name)).map_err(KernelError::Load)?;
        }
    }
    open.load().map_err(KernelError::Load)
}

/// `struct settings`.
fn settings(node_netns: u64, counting: Counting) -> Vec<u8> {
    let counting: u32 = match counting {
        Counting::Nothing => 0,
        Counting::Connections => 1,
        Counting::Packets => 2,
    };
    [&node_netns.to_ne_bytes()[..], &counting.to_ne_bytes(), &[0; 4]].concat()
}

fn read(map: &impl MapCore, family: Family, table: Table, observed: &mut Observed) -> Result<(), KernelError> {
    let count = READ_BATCH.min(map.max_entries());
    let entries = map.lookup_batch(count, MapFlags::ANY, MapFlags::ANY);
    let entries = entries.map_err(|source| KernelError::Map { op: "read", table: table.name(), source })?;
    entries.for_each(|(key, value)| observed.read(family, table, &key, &value));
    Ok(())
}

pub(super) fn map(object: &Object, table: Table) -> libbpf_rs::Map<'_> {
    let found = object.maps().find(|map| map.name() == table.name());
    found.expect("the object was compiled with every table")
}

fn remove(object: &Object, table: Table, key: &[u8]) -> Result<(), KernelError> {
    match map(object, table).delete(key) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| KernelError::Map { op: "remove from", table: table.name(), source }),
    }
}

/// Entries of one table that go to the kernel together.
struct Batch<'a> {
    object: &'a Object,
    table: Option<Table>,
    keys: Vec<u8>,
    values: Vec<u8>,
    count: usize,
}

impl Batch<'_> {
    fn new(object: &Object) -> Batch<'_> {
        Batch { object, table: None, keys: Vec::new(), values: Vec::new(), count: 0 }
    }

    fn add(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), KernelError> {
        if self.table != Some(table) || self.count == BATCH {
            self.flush()?;
        }
        self.table = Some(table);
        self.keys.extend(key);
        self.values.extend(value);
        self.count += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), KernelError> {
        let Some(table) = self.table.take().filter(|_| self.count > 0) else { return Ok(()) };
        let map = map(self.object, table);
        let written = match u32::try_from(self.count) {
            Ok(1) => map.update(&self.keys, &self.values, MapFlags::ANY),
            Ok(count) => map.update_batch(&self.keys, &self.values, count, MapFlags::ANY, MapFlags::ANY),
            Err(_) => Ok(()), // a batch is far smaller
        };
        self.keys.clear();
        self.values.clear();
        self.count = 0;
        written.map_err(|source| match source.kind() {
            ErrorKind::TooBig => KernelError::Full { table: table.name(), most: map.max_entries() },
            _ => KernelError::Map { op: "write", table: table.name(), source },
        })
    }
}

/// A directory in a bpf file system. If it is in none, one is mounted where its parent is.
fn have_directory(path: &Path) -> Result<(), KernelError> {
    let parent = path.parent().unwrap_or(path);
    let failed = |source| KernelError::Mount { path: parent.to_owned(), source };
    if !path.is_dir() && statfs(parent).map_or(true, |found| found.filesystem_type() != BPF_FS_MAGIC) {
        fs::create_dir_all(parent).map_err(failed)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("bpf"), parent, Some("bpf"), flags, Some("mode=0700")).map_err(|error| failed(error.into()))?;
        info!(at = %parent.display(), "a bpf file system is mounted");
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(KernelError::Pin { op: "make the directory", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// What libbpf has to say goes to the log.
pub(super) fn tell_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |level, said| match level {
            PrintLevel::Warn => warn!(said = said.trim_end(), "libbpf"),
            PrintLevel::Info | PrintLevel::Debug => debug!(said = said.trim_end(), "libbpf"),
        })));
    });
}
