//! The store by itself: revisions, watches, durability and a failing disk.

use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use serde_json::{Value, json};

use super::*;
use crate::registry;

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": name}, "data": {"text": text}})
}

fn ranges() -> Allocations {
    Allocations::new(&["10.96.0.0/12".parse().unwrap()], 30000..=32767)
}

fn open(dir: Option<&Path>) -> Result<Store, LogError> {
    Store::open(dir, ranges())
}

async fn put(store: &Store, name: &str, text: &str) -> Result<u64, ApiError> {
    let kind = registry::known("ConfigMap");
    store.write(|transaction| Ok(transaction.put(kind, config_map(name, text)).revision)).await
}

#[tokio::test]
async fn a_write_is_read_and_watched_with_its_revision() {
    let store = open(None).unwrap();
    let kind = registry::known("ConfigMap");
    let mut watch = store.watch(kind, 0);
    assert_eq!(put(&store, "a", "1").await, Ok(1));
    assert_eq!(put(&store, "a", "2").await, Ok(2));
    let seen: Vec<u64> = watch.next().await.unwrap().iter().map(|change| change.revision).collect();
    assert_eq!(seen, [1, 2]);
    let read = store.read();
    let object = read.get(kind, "default", "a").unwrap();
    assert_eq!((object.revision, object::text_of(&object.value)), (2, "2"));
    assert_eq!((read.revision(), read.kind_revision(registry::known("Pod").slot)), (2, 0));
}

mod object {
    pub fn text_of(value: &serde_json::Value) -> &str {
        crate::object::text(value, &["data", "text"]).unwrap()
    }
}

#[tokio::test]
async fn a_watcher_that_lags_too_far_is_told_that_changes_are_gone() {
    let store = open(None).unwrap();
    let kind = registry::known("ConfigMap");
    let (mut old, mut current) = (store.watch(kind, 0), store.watch(kind, 20_000));
    for number in 0..20_000 {
        put(&store, "a", &number.to_string()).await.unwrap();
    }
    assert_eq!(old.next().await.unwrap_err().asked, 0);
    put(&store, "a", "last").await.unwrap();
    assert_eq!(current.next().await.unwrap().len(), 1);
    assert!(store.watch(kind, 30_000).next().await.is_err(), "a revision that never was");
}

#[tokio::test]
async fn a_reopened_store_has_what_was_written_and_goes_on_counting() {
    let dir = tempfile::tempdir().unwrap();
    let kind = registry::known("ConfigMap");
    let store = open(Some(dir.path())).unwrap();
    put(&store, "a", "1").await.unwrap();
    put(&store, "b", "2").await.unwrap();
    let delete = |transaction: &mut Transaction<'_>| Ok(transaction.delete(kind, config_map("a", "1")).revision);
    assert_eq!(store.write(delete).await, Ok(3));
    assert!(matches!(open(Some(dir.path())), Err(LogError::InUse { .. })));
    drop(store);
    let store = open(Some(dir.path())).unwrap();
    assert!(store.read().get(kind, "default", "a").is_none());
    assert_eq!(store.read().get(kind, "default", "b").unwrap().revision, 2);
    assert_eq!(store.read().kind_revision(kind.slot), 3);
    assert!(store.watch(kind, 2).next().await.is_err(), "the deletion is not in the new history");
    assert_eq!(put(&store, "c", "3").await, Ok(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writes_are_all_durable_and_in_one_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(Some(dir.path())).unwrap());
    let writers: Vec<_> = (0..200)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { put(&store, &format!("c{number}"), "x").await.unwrap() })
        })
        .collect();
    let mut revisions = Vec::new();
    for writer in writers {
        revisions.push(writer.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=200).collect::<Vec<u64>>());
    drop(store);
    let store = open(Some(dir.path())).unwrap();
    assert_eq!(store.read().list(registry::known("ConfigMap"), None).count(), 200);
}

/// A file on a disk that can become full.
#[derive(Debug)]
struct FullDisk {
    file: redb::backends::FileBackend,
    full: Arc<AtomicBool>,
}

impl FullDisk {
    fn check(&self) -> Result<(), std::io::Error> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(std::io::Error::from(std::io::ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }
}

impl StorageBackend for FullDisk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.check()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.check()?;
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.check()?;
        self.file.write(offset, data)
    }
    fn close(&self) -> Result<(), std::io::Error> {
        self.file.close()
    }
}

#[tokio::test]
async fn a_full_disk_is_an_error_that_changes_nothing_and_space_lets_it_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let disk = full.clone();
    let reopen = move |path: &Path| {
        let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let file = redb::backends::FileBackend::new(file)?;
        log::builder().create_with_backend(FullDisk { file, full: disk.clone() })
    };
    let mut log = Log::open_with(dir.path().join("objects.redb"), Box::new(reopen)).unwrap();
    let store = Store::start(log.load().unwrap(), Some(log), ranges());
    put(&store, "a", "before").await.unwrap();
    full.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let error = put(&store, "a", "lost").await.unwrap_err();
        assert!(matches!(&error, ApiError::NotStored { .. }), "{error}");
        assert_eq!(error.code(), 507);
    }
    let kind = registry::known("ConfigMap");
    assert_eq!(object::text_of(&store.read().get(kind, "default", "a").unwrap().value), "before");
    full.store(false, Ordering::SeqCst);
    assert_eq!(put(&store, "b", "after").await, Ok(2));
    drop(store);
    let store = open(Some(dir.path())).unwrap();
    assert_eq!(store.read().list(kind, None).count(), 2);
}
