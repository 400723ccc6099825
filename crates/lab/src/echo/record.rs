//! What the echo server writes of its requests to its log, a line for each. When they come too fast, the rest of a second
//! is counted only: a load test shall not measure its log.

use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::Answer;

/// So many lines in a second.
const LINES: u32 = 50;

/// Writes to standard output.
#[derive(Default)]
pub(super) struct Record {
    pace: Mutex<Pace>,
}

/// What was told in the second that runs.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

impl Pace {
    /// Whether a request is told; and how many were not before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since).as_secs() >= 1) {
            self.since = Some(now);
            self.told = 0;
        }
        if self.told >= LINES {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Record {
    pub fn request(&self, answer: &Answer) {
        let untold = self.pace.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        let Some(untold) = untold else { return };
        let mut out = std::io::stdout().lock();
        // A log that nobody takes keeps nobody from an answer.
        if untold > 0 {
            let _ = writeln!(out, "{untold} more requests");
        }
        let _ = writeln!(out, "{}", line(answer));
        let _ = out.flush();
    }
}

fn line(answer: &Answer) -> String {
    let request = answer.request.as_deref().map_or_else(
        || format!("{} bytes", answer.bytes),
        |request| format!("{:?}", request.chars().take(200).collect::<String>()),
    );
    format!("{} {request} from {} to {}", answer.protocol, answer.peer, answer.reached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_of_requests_is_counted_and_told_of_later() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let told = (0..1000).filter(|_| pace.admit(now).is_some()).count();
        assert_eq!(told, LINES as usize);
        assert_eq!(pace.admit(now + Duration::from_secs(1)), Some(950));
        assert_eq!(pace.admit(now + Duration::from_secs(1)), Some(0));
    }
}
