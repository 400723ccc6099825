//! How long to wait before the next try.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// Doubles from try to try, with up to half as much again at random, so that the nodes of a cluster do not all come at once.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    /// After a success: the next failure is the first again.
    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }

    pub(super) fn next(&mut self) -> Duration {
        let base = self.next;
        self.next = (base * 2).min(LONGEST);
        base + base.mul_f64(random_unit() / 2.0)
    }
}

/// In 0..1; the standard library's hasher is seeded at random.
fn random_unit() -> f64 {
    f64::from(RandomState::new().hash_one(0) as u32) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..10).map(|_| backoff.next()).collect();
        for (wait, least) in waits.iter().zip([200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]) {
            let least = Duration::from_millis(least);
            assert!(*wait >= least && *wait <= least.mul_f64(1.5), "{wait:?} is not about {least:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST.mul_f64(1.5));
    }
}
