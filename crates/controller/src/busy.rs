//! How much work waits in all queues together.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// Counts the keys that wait or are worked on in all queues together: one number, so that work that passes from one
/// controller to the next is never overlooked (the next key is counted before the last one is given back).
pub struct Busy {
    keys: AtomicUsize,
    changed: watch::Sender<()>,
}

impl Default for Busy {
    fn default() -> Self {
        Busy { keys: AtomicUsize::new(0), changed: watch::Sender::new(()) }
    }
}

impl Busy {
    /// A key's state changed from (not) busy to (not) busy.
    pub fn count(&self, before: bool, after: bool) {
        if after && !before {
            self.keys.fetch_add(1, Ordering::SeqCst);
        } else if before && !after && self.keys.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.tell();
        }
    }

    /// Whether no queue has work.
    pub fn is_idle(&self) -> bool {
        self.keys.load(Ordering::SeqCst) == 0
    }

    /// Wakes at each step of progress.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Wakes those who wait for progress.
    pub fn tell(&self) {
        self.changed.send_replace(());
    }
}
