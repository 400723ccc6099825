//! Pure. When to go on: how much rest between changes, how long to wait after a refusal.

use std::time::{Duration, Instant};

/// After long work, no longer rest than this.
const LONGEST_REST: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// After a rest, a change goes to the kernel at once. Under a storm, those that come during the work and the rest after it
/// go together: rest as long as the work, so that a storm costs half a processor at most, or what is configured.
#[derive(Debug)]
pub(super) struct Pace {
    min_period: Duration,
    not_before: Option<Instant>,
}

impl Pace {
    pub(super) fn new(min_period: Duration) -> Pace {
        Pace { min_period, not_before: None }
    }

    pub(super) fn worked(&mut self, began: Instant, ended: Instant) {
        let rested = ended + (ended - began).min(LONGEST_REST);
        self.not_before = Some(rested.max(began + self.min_period));
    }

    /// When a change may go that waits since `queued`.
    pub(super) fn not_before(&self, queued: Instant) -> Instant {
        self.not_before.map_or(queued, |at| at.max(queued))
    }
}

/// How often something failed in a row, and when to try again.
#[derive(Debug, Default)]
pub(super) struct Retry {
    failures: u32,
    at: Option<Instant>,
}

impl Retry {
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Gives the time to wait: doubled from failure to failure.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let doublings = self.failures.min(16);
        let wait = (FIRST_RETRY * 2_u32.pow(doublings)).min(LONGEST_RETRY);
        self.failures += 1;
        self.at = Some(now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_change_after_a_rest_goes_at_once_and_in_a_storm_work_and_rest_alternate() {
        let mut pace = Pace::new(Duration::ZERO);
        let start = Instant::now();
        assert_eq!(pace.not_before(start), start);
        pace.worked(start, start + 15 * MS);
        assert_eq!(pace.not_before(start + 16 * MS), start + 30 * MS);
        assert_eq!(pace.not_before(start + 500 * MS), start + 500 * MS);
        pace.worked(start, start + 5000 * MS);
        assert_eq!(pace.not_before(start), start + 6000 * MS);
    }

    #[test]
    fn a_configured_period_counts_from_begin_to_begin() {
        let mut pace = Pace::new(1000 * MS);
        let start = Instant::now();
        pace.worked(start, start + 15 * MS);
        assert_eq!(pace.not_before(start + 20 * MS), start + 1000 * MS);
    }

    #[test]
    fn retries_come_later_and_later_but_at_least_every_half_minute() {
        let mut retry = Retry::default();
        let now = Instant::now();
        let waits: Vec<u128> = (0..12).map(|_| retry.failed(now).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000]);
        assert_eq!((retry.failures(), retry.at()), (12, Some(now + LONGEST_RETRY)));
    }
}
