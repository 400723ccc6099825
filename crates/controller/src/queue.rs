//! Which objects a controller has yet to look at.
//!
//! A key stands in the queue once, however many changes named it, and only one worker holds it at a time; a change that
//! comes while it is worked on makes it come again afterwards. A key that failed comes again after a pause that doubles.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::busy::Busy;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A failed key whose pause is longer than this no longer counts as work under way: it waits for something to change.
const PATIENCE: Duration = Duration::from_millis(500);

/// What came of working on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing left to do.
    Done,
    /// Nothing left to do now; look again after this time.
    After(Duration),
    /// It failed: look again after a pause.
    Retry,
}

/// A queue of keys; shared between those who add and the workers.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    busy: Arc<Busy>,
    /// Whether anybody works on it; if not, it takes nothing.
    open: bool,
}

struct State<K> {
    entries: HashMap<K, Entry>,
    ready: VecDeque<K>,
    delayed: BTreeSet<(Instant, K)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    ready: bool,
    active: bool,
    /// Named again while active.
    again: bool,
    due: Option<Instant>,
    /// The pause until `due` counts as work under way.
    pressing: bool,
    failures: u32,
}

impl Entry {
    fn busy(&self) -> bool {
        self.ready || self.active || (self.due.is_some() && self.pressing)
    }

    fn idle(&self) -> bool {
        !self.ready && !self.active && self.due.is_none() && self.failures == 0
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty queue; `busy` counts the keys of all queues that share it. One that is not
    /// `open` takes no keys.
    pub fn new(busy: Arc<Busy>, open: bool) -> Queue<K> {
        let state = State { entries: HashMap::new(), ready: VecDeque::new(), delayed: BTreeSet::new() };
        Queue { state: Mutex::new(state), wake: Notify::new(), busy, open }
    }

    /// Asks for a look at this key, at once.
    pub fn add(&self, key: K) {
        if !self.open {
            return;
        }
        self.change(&key, |entry, state| {
            if entry.active {
                entry.again = true;
            } else if !entry.ready {
                entry.ready = true;
                state.ready.push_back(key.clone());
            }
        });
        self.wake.notify_one();
    }

    /// The next key to look at; the caller must give it back with [`Queue::finish`].
    pub async fn next(&self) -> K {
        loop {
            let pause = match self.take() {
                Ok(key) => return key,
                Err(pause) => pause,
            };
            let wake = self.wake.notified();
            match pause {
                Some(until) => tokio::select! { () = wake => {}, () = tokio::time::sleep_until(until) => {} },
                None => wake.await,
            }
        }
    }

    /// A worker is done with a key.
    pub fn finish(&self, key: &K, outcome: Outcome) {
        self.change(key, |entry, state| {
            entry.active = false;
            let pause = match outcome {
                Outcome::Retry => {
                    entry.failures += 1;
                    let pause = FIRST_PAUSE.saturating_mul(1 << (entry.failures - 1).min(20)).min(LONGEST_PAUSE);
                    entry.pressing = pause <= PATIENCE;
                    Some(pause)
                }
                Outcome::After(pause) => {
                    (entry.failures, entry.pressing) = (0, false);
                    Some(pause)
                }
                Outcome::Done => {
                    entry.failures = 0;
                    None
                }
            };
            // A failed key keeps its pause even when it was named meanwhile: its own half-done writes may have named it.
            if entry.again && outcome != Outcome::Retry {
                entry.ready = true;
                state.ready.push_back(key.clone());
            } else if let Some(pause) = pause {
                let due = Instant::now() + pause;
                entry.due = Some(due);
                state.delayed.insert((due, key.clone()));
            }
            entry.again = false;
        });
        self.wake.notify_one();
    }

    /// The keys that count as work under way.
    pub fn pending(&self) -> Vec<K> {
        let state = self.lock();
        let mut keys: Vec<K> =
            state.entries.iter().filter(|(_, entry)| entry.busy()).map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys
    }

    /// A ready key, or when the next one gets ready.
    fn take(&self) -> Result<K, Option<Instant>> {
        let now = Instant::now();
        let due: Vec<K> = {
            let state = self.lock();
            state.delayed.iter().take_while(|(due, _)| *due <= now).map(|(_, key)| key.clone()).collect()
        };
        for key in due {
            self.add(key);
        }
        let mut state = self.lock();
        let Some(key) = state.ready.pop_front() else {
            return Err(state.delayed.first().map(|(due, _)| *due));
        };
        let more = !state.ready.is_empty();
        let entry = state.entries.entry(key.clone()).or_default();
        let due = entry.due.take();
        (entry.ready, entry.active) = (false, true);
        if let Some(due) = due {
            state.delayed.remove(&(due, key.clone()));
        }
        drop(state);
        if more {
            self.wake.notify_one();
        }
        Ok(key)
    }

    fn change(&self, key: &K, change: impl FnOnce(&mut Entry, &mut State<K>)) {
        let mut state = self.lock();
        let mut entry = state.entries.get(key).copied().unwrap_or_default();
        let before = entry.busy();
        // Whatever happens to a key ends its pause; `change` sets a new one if there is to be one.
        if let Some(due) = entry.due.take() {
            state.delayed.remove(&(due, key.clone()));
        }
        change(&mut entry, &mut state);
        let after = entry.busy();
        if entry.idle() {
            state.entries.remove(key);
        } else {
            state.entries.insert(key.clone(), entry);
        }
        drop(state);
        self.busy.count(before, after);
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new(Arc::new(Busy::default()), true)
    }

    async fn ready(queue: &Queue<&'static str>) -> Option<&'static str> {
        tokio::time::timeout(Duration::from_millis(1), queue.next()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_named_twice_comes_once() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.next().await, queue.next().await, ready(&queue).await), ("a", "b", None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_named_while_worked_on_comes_again_and_never_to_two_workers() {
        let queue = queue();
        queue.add("a");
        queue.next().await;
        queue.add("a");
        assert_eq!(ready(&queue).await, None);
        queue.finish(&"a", Outcome::Done);
        assert_eq!(ready(&queue).await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_after_failures_double_and_success_forgets_them() {
        let queue = queue();
        queue.add("a");
        let mut waited = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            queue.next().await;
            waited.push(start.elapsed().as_millis());
            queue.finish(&"a", Outcome::Retry);
        }
        assert!(waited[0] == 0 && waited[3] >= 20 && waited[3] < 30, "{waited:?}");
        queue.next().await;
        queue.finish(&"a", Outcome::Done);
        assert!(queue.lock().entries.is_empty() && queue.lock().delayed.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_ends_a_pause() {
        let queue = queue();
        queue.add("a");
        queue.next().await;
        queue.finish(&"a", Outcome::After(Duration::from_secs(3600)));
        assert_eq!(ready(&queue).await, None);
        queue.add("a");
        assert_eq!(ready(&queue).await, Some("a"));
        queue.finish(&"a", Outcome::Done);
        assert!(queue.lock().delayed.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_later_time_is_not_busy_and_a_fresh_failure_is() {
        let busy = Arc::new(Busy::default());
        let queue = Queue::new(busy.clone(), true);
        queue.add("a");
        queue.next().await;
        assert!(!busy.is_idle());
        queue.finish(&"a", Outcome::Retry);
        assert!(!busy.is_idle());
        assert_eq!(queue.pending(), ["a"]);
        queue.next().await;
        queue.finish(&"a", Outcome::After(Duration::from_secs(5)));
        assert!(busy.is_idle());
    }
}
