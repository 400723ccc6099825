//! Lists that clients are in the middle of: given out page by page, all pages of one revision.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Object;

const KEPT: usize = 64;
const LIFE: Duration = Duration::from_secs(300);

/// A list as it was at its first page.
#[derive(Clone)]
pub struct Snapshot {
    id: u64,
    /// Path and selectors: a token is good for the list it came with only.
    pub of: String,
    taken: Instant,
    /// The revision that it is of.
    pub revision: u64,
    /// All objects, those of former pages too.
    pub objects: Arc<Vec<Arc<Object>>>,
}

/// The newest of them, each for five minutes.
#[derive(Default)]
pub struct Snapshots {
    kept: Mutex<(u64, VecDeque<Snapshot>)>,
}

impl Snapshots {
    /// Keeps a list; gives its number.
    pub fn keep(&self, of: String, objects: &Arc<Vec<Arc<Object>>>, revision: u64) -> u64 {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, snapshots) = &mut *kept;
        *last += 1;
        if snapshots.len() >= KEPT {
            snapshots.pop_front();
        }
        snapshots.push_back(Snapshot { id: *last, of, taken: Instant::now(), revision, objects: objects.clone() });
        *last
    }

    /// A list that is kept still.
    pub fn find(&self, id: u64) -> Option<Snapshot> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.1.retain(|snapshot| snapshot.taken.elapsed() < LIFE);
        kept.1.iter().find(|snapshot| snapshot.id == id).cloned()
    }
}
