//! The durable copy of the objects: one redb file, one synced transaction per batch of writes.
//!
//! Table `objects`: key `KIND\0NAMESPACE\0NAME`, value the object's JSON. Table `revisions`: the store's revision under
//! an empty key, and that of each kind's last change under the kind's name; kinds by name, so that the registry's order
//! is no part of the format.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::objects::{Change, Object, Objects};
use crate::registry::{self, KINDS, SLOTS};

const OBJECTS: TableDefinition<&str, &[u8]> = TableDefinition::new("objects");
const REVISIONS: TableDefinition<&str, u64> = TableDefinition::new("revisions");
const FILE: &str = "objects.redb";

/// Why the log can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directory can't be made.
    #[error("cannot make the directory {}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Another server uses the file.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// The file can't be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// What redb said.
        #[source]
        source: Box<redb::Error>,
    },
    /// Reading or writing failed: a full disk, above all.
    #[error("cannot {op} {}", path.display())]
    Io {
        /// `read` or `write`.
        op: &'static str,
        /// Which.
        path: PathBuf,
        /// What redb said.
        #[source]
        source: Box<redb::Error>,
    },
    /// What is stored under a key is no object.
    #[error("{} holds something else than an object under {key:?}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// The key.
        key: String,
    },
}

/// Opens the file; tests put a failing disk under it.
type Opener = Box<dyn Fn(&Path) -> Result<Database, redb::DatabaseError> + Send>;

/// An open log.
pub(super) struct Log {
    path: PathBuf,
    /// `None` after a failure: redb takes no more writes then until it is opened again.
    database: Option<Database>,
    open: Opener,
}

impl Log {
    pub(super) fn open(dir: &Path) -> Result<Log, LogError> {
        // Secrets are among the objects: nobody else may look.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| LogError::Directory { path: dir.to_owned(), source })?;
        let open = |path: &Path| {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .map_err(redb::StorageError::from)?;
            builder().create_with_backend(redb::backends::FileBackend::new(file)?)
        };
        Log::open_with(dir.join(FILE), Box::new(open))
    }

    pub(super) fn open_with(path: PathBuf, open: Opener) -> Result<Log, LogError> {
        let mut log = Log { path, database: None, open };
        log.database()?;
        Ok(log)
    }

    fn database(&mut self) -> Result<&Database, LogError> {
        if self.database.is_none() {
            let database = (self.open)(&self.path).map_err(|source| match source {
                redb::DatabaseError::DatabaseAlreadyOpen => LogError::InUse { path: self.path.clone() },
                source => LogError::Open { path: self.path.clone(), source: Box::new(source.into()) },
            })?;
            self.database = Some(database);
        }
        Ok(self.database.as_ref().expect("opened above"))
    }

    /// Everything that was appended, in its last state.
    pub(super) fn load(&mut self) -> Result<Objects, LogError> {
        let path = self.path.clone();
        let database = self.database()?;
        let read = |source: redb::Error| LogError::Io { op: "read", path: path.clone(), source: Box::new(source) };
        // Makes the tables of a new file, so that reading finds them.
        append(database, &mut std::iter::empty()).map_err(read)?;
        let (stored, revisions) = contents(database).map_err(read)?;
        let mut kinds = vec![BTreeMap::new(); SLOTS];
        for (key, bytes) in stored {
            let malformed = || LogError::Malformed { path: path.clone(), key: key.clone() };
            let mut parts = key.splitn(3, '\0');
            let (Some(kind), Some(namespace), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(malformed());
            };
            let kind = registry::by_kind(kind).ok_or_else(malformed)?;
            let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
            let revision = crate::object::meta(&value, "resourceVersion").parse().map_err(|_| malformed())?;
            kinds[kind.slot].insert((namespace.to_owned(), name.to_owned()), Arc::new(Object { value, revision }));
        }
        let of = |key: &str| revisions.get(key).copied().unwrap_or(0);
        let kind_revisions = KINDS[..SLOTS].iter().map(|kind| of(kind.kind)).collect();
        Ok(Objects::restored(kinds, kind_revisions, of("")))
    }

    /// Makes changes durable, all or none.
    pub(super) fn append<'a>(&mut self, changes: impl Iterator<Item = &'a Change>) -> Result<(), LogError> {
        let path = self.path.clone();
        let appended = append(self.database()?, &mut { changes });
        appended.map_err(|source| {
            self.database = None;
            LogError::Io { op: "write", path, source: Box::new(source) }
        })
    }
}

/// redb with a cache that fits a lab: objects are read from memory, not from here.
pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(8 << 20);
    builder
}

fn append(database: &Database, changes: &mut dyn Iterator<Item = &Change>) -> Result<(), redb::Error> {
    // Dropped without a commit, the transaction is taken back.
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        let mut revisions = transaction.open_table(REVISIONS)?;
        for change in changes {
            let kind = KINDS[change.slot].kind;
            let key = format!("{kind}\0{}\0{}", change.name.0, change.name.1);
            if change.deleted {
                objects.remove(key.as_str())?;
            } else {
                objects.insert(key.as_str(), change.object.value.to_string().as_bytes())?;
            }
            revisions.insert(kind, change.revision)?;
            revisions.insert("", change.revision)?;
        }
    }
    transaction.commit()?;
    Ok(())
}

type Contents = (Vec<(String, Vec<u8>)>, BTreeMap<String, u64>);

fn contents(database: &Database) -> Result<Contents, redb::Error> {
    let transaction = database.begin_read()?;
    let mut objects = Vec::new();
    for entry in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = entry?;
        objects.push((key.value().to_owned(), value.value().to_owned()));
    }
    let mut revisions = BTreeMap::new();
    for entry in transaction.open_table(REVISIONS)?.iter()? {
        let (key, value) = entry?;
        revisions.insert(key.value().to_owned(), value.value());
    }
    Ok((objects, revisions))
}
