//! How far the controllers are, so that a test or a lab can wait for them by revision and not by time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::context::Context;

/// A view of how far the controllers are. Cheap to clone.
#[derive(Clone)]
pub struct Progress {
    context: Arc<Context>,
}

/// The controllers were not done in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the controllers were not done within {waited:?}: at work on {pending:?}, kinds behind (seen, wanted): {behind:?}"
)]
pub struct NotSettled {
    /// How long was waited.
    pub waited: Duration,
    /// What waits or is worked on, as [`Progress::pending`] says it.
    pub pending: Vec<String>,
    /// By kind: the revision that was seen (`None`: not even a first list) and the one that was asked for.
    pub behind: BTreeMap<String, (Option<u64>, u64)>,
}

impl Progress {
    pub(crate) fn new(context: Arc<Context>) -> Progress {
        Progress { context }
    }

    /// By kind (`Pod`, `Service`, ...): the revision up to which all changes were taken up.
    pub fn seen(&self) -> BTreeMap<&'static str, Option<u64>> {
        self.context.world.seen()
    }

    /// What waits or is worked on, for people: the controller and the object.
    pub fn pending(&self) -> Vec<String> {
        self.context.queues.pending()
    }

    /// Whether all changes up to these revisions (by kind; kinds that no controller watches don't matter) were taken up
    /// and all that followed from them is written. A key that keeps failing counts only for its first second.
    pub fn settled(&self, revisions: &BTreeMap<String, u64>) -> bool {
        self.behind(revisions).is_empty() && self.context.busy.is_idle()
    }

    /// Waits until [`Progress::settled`].
    ///
    /// # Errors
    /// [`NotSettled`] with what is missing, after `timeout`.
    pub async fn wait(&self, revisions: &BTreeMap<String, u64>, timeout: Duration) -> Result<(), NotSettled> {
        let mut changed = self.context.busy.subscribe();
        let settled = async {
            while !self.settled(revisions) {
                // The sender lives in our context: this can't fail while we are here.
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(timeout, settled).await.map_err(|_| NotSettled {
            waited: timeout,
            pending: self.pending(),
            behind: self.behind(revisions),
        })
    }

    fn behind(&self, revisions: &BTreeMap<String, u64>) -> BTreeMap<String, (Option<u64>, u64)> {
        let seen = self.context.world.seen();
        revisions
            .iter()
            .filter_map(|(kind, wanted)| {
                let seen = *seen.get(kind.as_str())?;
                (seen.is_none_or(|seen| seen < *wanted)).then(|| (kind.clone(), (seen, *wanted)))
            })
            .collect()
    }
}
