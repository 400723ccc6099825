//! Holds the objects. Memory is what is read; a write is acknowledged when it is durable.
//!
//! ```text
//! write(decide) ──▶ head (all decided writes) ──▶ committer: log, one sync for all that wait
//!                                                   │ fails: head goes back, the writers get the error
//!                                                   ▼
//!                        get, list ◀── published (durable writes) ──▶ history ──▶ watch
//! ```
//!
//! Writers decide one after another under the head's lock, so each sees all before it, the not yet durable ones too.
//! Readers and watchers see what is published: never a write that a crash could take back.
//!
//! Without a directory there is no log: head and published move together.

pub mod allocations;
mod log;
mod objects;
mod watch;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, mpsc};

use tokio::sync::oneshot;

use self::allocations::Allocations;

use self::log::Log;
pub use self::log::LogError;
pub use self::objects::{Change, Object, Objects, Transaction};
use self::watch::History;
pub use self::watch::{Gone, Watch};
use crate::error::ApiError;
use crate::registry::{KindInfo, SLOTS};

/// Writes that were decided and wait to be durable.
struct Pending {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), ApiError>>,
}

struct Head {
    objects: Objects,
    allocations: Allocations,
    /// To the committer; `None` without a log.
    queue: Option<mpsc::Sender<Pending>>,
}

struct Published {
    objects: Objects,
    histories: Vec<History>,
}

struct Shared {
    head: Mutex<Head>,
    published: RwLock<Published>,
    /// Told the revision of each kind's last published change.
    changed: Vec<tokio::sync::watch::Sender<u64>>,
}

/// The objects, their history and their log.
pub struct Store {
    shared: Arc<Shared>,
    committer: Option<std::thread::JoinHandle<()>>,
}

impl Store {
    /// Opens the log in a directory and loads what it holds; `None`: memory only, empty. `allocations` brings the ranges.
    ///
    /// # Errors
    /// When the directory can't be used or its log can't be read.
    pub fn open(dir: Option<&Path>, allocations: Allocations) -> Result<Store, LogError> {
        let (objects, log) = match dir {
            Some(dir) => {
                let mut log = Log::open(dir)?;
                (log.load()?, Some(log))
            }
            None => (Objects::default(), None),
        };
        Ok(Store::start(objects, log, allocations))
    }

    fn start(objects: Objects, log: Option<Log>, mut allocations: Allocations) -> Store {
        allocations.rebuild(&objects);
        let (queue, pending) = mpsc::channel();
        let histories = (0..SLOTS).map(|slot| History::new(objects.kind_revision(slot))).collect();
        let changed = (0..SLOTS).map(|slot| tokio::sync::watch::Sender::new(objects.kind_revision(slot))).collect();
        let shared = Arc::new(Shared {
            head: Mutex::new(Head { objects: objects.clone(), allocations, queue: log.as_ref().map(|_| queue) }),
            published: RwLock::new(Published { objects, histories }),
            changed,
        });
        let committer = log.map(|log| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.commit_all(log, &pending))
        });
        Store { shared, committer }
    }

    /// The durable objects.
    pub fn read(&self) -> Reading<'_> {
        Reading(self.shared.published())
    }

    /// Decides a write on the newest state and waits until it is durable. An error of `decide`, or no writes of it,
    /// change nothing.
    ///
    /// # Errors
    /// What `decide` says; [`ApiError::NotStored`] when the log can't take it, and then nothing was changed.
    pub async fn write<T>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (value, done) = {
            let mut head = self.shared.head();
            let head = &mut *head;
            let mut transaction = Transaction::new(&head.objects, &mut head.allocations);
            let value = decide(&mut transaction)?;
            let changes = transaction.into_changes();
            if changes.is_empty() {
                return Ok(value);
            }
            for change in &changes {
                head.allocations.apply(change);
                head.objects.apply(change);
            }
            match &head.queue {
                None => {
                    self.shared.publish(changes);
                    return Ok(value);
                }
                Some(queue) => {
                    let (done, result) = oneshot::channel();
                    if queue.send(Pending { changes, done }).is_err() {
                        return Err(closed());
                    }
                    (value, result)
                }
            }
        };
        done.await.map_err(|_| closed())??;
        Ok(value)
    }

    /// Decides a write and forgets it: what `dryRun=All` asks for.
    ///
    /// # Errors
    /// What `decide` says.
    pub fn rehearse<T>(&self, decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut head = self.shared.head();
        let head = &mut *head;
        decide(&mut Transaction::new(&head.objects, &mut head.allocations))
    }

    /// Changes of a kind after a revision.
    pub fn watch(&self, kind: &KindInfo, after: u64) -> Watch {
        Watch::new(self.shared.clone(), kind.slot, after)
    }

    /// Told whenever a change of the kind was published.
    pub fn changed(&self, kind: &KindInfo) -> tokio::sync::watch::Receiver<u64> {
        self.shared.changed[kind.slot].subscribe()
    }
}

impl Drop for Store {
    /// Waits until what was decided is durable or failed.
    fn drop(&mut self) {
        self.shared.head().queue = None;
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!("the store's committer panicked");
        }
    }
}

/// The durable objects, as long as this is held. Never across an await.
pub struct Reading<'a>(RwLockReadGuard<'a, Published>);

impl std::ops::Deref for Reading<'_> {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.0.objects
    }
}

fn closed() -> ApiError {
    ApiError::NotStored { message: "the store is closed".to_owned() }
}

impl Shared {
    // A panic in `decide` leaves the head as it was: the transaction had not been applied. So a poisoned lock is fine.
    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, changes: Vec<Change>) {
        let mut slots = [None; SLOTS];
        let mut published = self.published.write().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            published.objects.apply(&change);
            slots[change.slot] = Some(change.revision);
            published.histories[change.slot].push(change);
        }
        drop(published);
        for (slot, revision) in slots.into_iter().enumerate() {
            if let Some(revision) = revision {
                self.changed[slot].send_replace(revision);
            }
        }
    }

    /// The committer: takes all that waits, makes it durable with one sync, publishes it, and answers the writers.
    fn commit_all(&self, mut log: Log, pending: &mpsc::Receiver<Pending>) {
        while let Ok(first) = pending.recv() {
            let mut batch = vec![first];
            batch.extend(pending.try_iter().take(1024));
            match log.append(batch.iter().flat_map(|pending| &pending.changes)) {
                Ok(()) => {
                    for Pending { changes, done } in batch {
                        self.publish(changes);
                        // A writer that left has no use for the answer.
                        let _ = done.send(Ok(()));
                    }
                }
                Err(error) => self.take_back(batch, pending, &error),
            }
        }
    }

    /// Everything decided since was decided on what now never happened: it fails as well.
    fn take_back(&self, mut batch: Vec<Pending>, pending: &mpsc::Receiver<Pending>, error: &LogError) {
        tracing::error!(error = %crate::error::chain(error), writes = batch.len(), "the log did not take a write");
        let mut head = self.head();
        batch.extend(pending.try_iter());
        head.objects = self.published().objects.clone();
        let Head { objects, allocations, .. } = &mut *head;
        allocations.rebuild(objects);
        drop(head);
        for pending in batch {
            let message = crate::error::chain(error);
            let _ = pending.done.send(Err(ApiError::NotStored { message }));
        }
    }
}

#[cfg(test)]
mod tests;
