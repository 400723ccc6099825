//! Pure. When a probe's results change what is believed of a container, and the restart back-off.

use std::time::Duration;

/// Counts results in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold {
    successes: u32,
    failures: u32,
    in_a_row: u32,
    last: bool,
    believed: Option<bool>,
}

impl Threshold {
    /// So many successes or failures in a row make a belief. Zero counts as one.
    pub fn new(successes: u32, failures: u32) -> Threshold {
        Threshold { successes: successes.max(1), failures: failures.max(1), in_a_row: 0, last: false, believed: None }
    }

    /// Takes a result; gives the belief if it is a new one.
    pub fn observe(&mut self, success: bool) -> Option<bool> {
        self.in_a_row = if self.last == success { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = success;
        let needed = if success { self.successes } else { self.failures };
        if self.in_a_row < needed || self.believed == Some(success) {
            return None;
        }
        self.believed = Some(success);
        Some(success)
    }
}

/// How long a container waits before its next start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackOff {
    starts: u32,
}

impl BackOff {
    const FIRST: Duration = Duration::from_secs(10);
    const LONGEST: Duration = Duration::from_secs(300);
    /// A run of this length counts as good: the back-off begins anew.
    const GOOD_RUN: Duration = Duration::from_secs(600);

    /// After a run of this length: nothing at first, then 10 s, doubled each time up to 5 minutes.
    pub fn after(&mut self, run: Duration) -> Duration {
        if run >= BackOff::GOOD_RUN {
            self.starts = 0;
        }
        self.starts = self.starts.saturating_add(1);
        match self.starts {
            1 => Duration::ZERO,
            n => BackOff::FIRST.saturating_mul(1 << (n - 2).min(10)).min(BackOff::LONGEST),
        }
    }
}

/// How long a worker waits before it tries again what was refused: a second, doubled each time up to half a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patience {
    tries: u32,
}

impl Patience {
    const LONGEST: Duration = Duration::from_secs(30);

    /// The next wait.
    pub fn next(&mut self) -> Duration {
        let wait = Duration::from_secs(1 << self.tries.min(10)).min(Patience::LONGEST);
        self.tries = self.tries.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_belief_needs_its_results_in_a_row() {
        let mut probe = Threshold::new(1, 3);
        assert_eq!(probe.observe(true), Some(true));
        assert_eq!([false, false, true, false, false, false, false].map(|ok| probe.observe(ok)), {
            [None, None, None, None, None, Some(false), None]
        });
        assert_eq!(Threshold::new(0, 0).observe(false), Some(false));
    }

    #[test]
    fn the_back_off_doubles_and_is_forgotten_after_a_good_run() {
        let mut back_off = BackOff::default();
        let seconds: Vec<u64> = (0..8).map(|_| back_off.after(Duration::from_secs(1)).as_secs()).collect();
        assert_eq!(seconds, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(back_off.after(Duration::from_secs(600)), Duration::ZERO);
    }

    #[test]
    fn what_is_refused_again_and_again_is_tried_ever_more_seldom() {
        let mut patience = Patience::default();
        let waits: Vec<u64> = (0..7).map(|_| patience.next().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    }
}
