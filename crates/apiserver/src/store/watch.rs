//! What changed after a revision: a bounded history per kind, and watchers that walk along it at their own pace.
//!
//! A watcher holds only its position. One that lags further behind than the history reaches is told so (410) and lists
//! again; it never misses a change without being told, and it never holds up a writer.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Change, Shared};

/// Changes kept per kind.
const HISTORY: usize = 16_384;

/// The last changes of one kind, oldest first.
pub(super) struct History {
    changes: VecDeque<Arc<Change>>,
    /// The revision of the newest change that is not here any more.
    floor: u64,
}

impl History {
    pub(super) fn new(floor: u64) -> History {
        History { changes: VecDeque::new(), floor }
    }

    pub(super) fn push(&mut self, change: Change) {
        if self.changes.len() >= HISTORY
            && let Some(oldest) = self.changes.pop_front()
        {
            self.floor = oldest.revision;
        }
        self.changes.push_back(Arc::new(change));
    }

    fn after(&self, revision: u64, limit: usize) -> Option<Vec<Arc<Change>>> {
        if revision < self.floor {
            return None;
        }
        let start = self.changes.partition_point(|change| change.revision <= revision);
        Some(self.changes.range(start..).take(limit).cloned().collect())
    }
}

/// The history does not reach back to the revision asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {asked} ({oldest})")]
pub struct Gone {
    /// After this.
    pub asked: u64,
    /// The oldest that would do.
    pub oldest: u64,
}

/// A place in the history of one kind.
pub struct Watch {
    shared: Arc<Shared>,
    slot: usize,
    after: u64,
    changed: tokio::sync::watch::Receiver<u64>,
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, slot: usize, after: u64) -> Watch {
        let changed = shared.changed[slot].subscribe();
        Watch { shared, slot, after, changed }
    }

    /// The next changes, in order, at least one. Safe to drop while it waits.
    ///
    /// # Errors
    /// [`Gone`] when some of them are forgotten, or when the position lies in the future: it is none of this store's.
    pub async fn next(&mut self) -> Result<Vec<Arc<Change>>, Gone> {
        loop {
            self.changed.mark_unchanged();
            if let Some(changes) = self.available()? {
                return Ok(changes);
            }
            if self.changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Changes that are there already.
    ///
    /// # Errors
    /// As [`Watch::next`].
    fn available(&mut self) -> Result<Option<Vec<Arc<Change>>>, Gone> {
        let published = self.shared.published();
        let history = &published.histories[self.slot];
        let oldest = history.floor;
        if self.after > published.objects.revision() {
            return Err(Gone { asked: self.after, oldest });
        }
        let changes = history.after(self.after, 256).ok_or(Gone { asked: self.after, oldest })?;
        match changes.last() {
            None => Ok(None),
            Some(last) => {
                self.after = last.revision;
                Ok(Some(changes))
            }
        }
    }

    /// The revision up to which everything of the kind was given out, when nothing waits.
    pub fn caught_up(&self) -> Option<u64> {
        let published = self.shared.published();
        (published.objects.kind_revision(self.slot) <= self.after).then(|| published.objects.revision())
    }
}
