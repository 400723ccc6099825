//! The time as objects carry it.

use jiff::Timestamp;

/// Now, in whole seconds: `2026-01-31T12:00:00Z`.
pub fn now() -> String {
    shown(Timestamp::now())
}

/// A time in whole seconds.
pub fn shown(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
