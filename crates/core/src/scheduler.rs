//! Pure. How a backend is chosen, where a Service says so and the mode lets it: the schedulers of the kernel's IPVS.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a destination is chosen for a new connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// One after the other.
    #[default]
    Rr,
    /// The same by weights.
    Wrr,
    /// Who has the fewest connections.
    Lc,
    /// The same by weights.
    Wlc,
    /// By the address that is sent to, among those with few connections.
    Lblc,
    /// The same with a set of destinations for each address.
    Lblcr,
    /// By the client's address.
    Sh,
    /// By the address that is sent to.
    Dh,
    /// By a Maglev table: few clients move when a destination comes or goes.
    Mh,
    /// Who is expected to answer first.
    Sed,
    /// One that is idle, else as `sed`.
    Nq,
}

impl Scheduler {
    /// All of them.
    pub const ALL: [Scheduler; 11] = [
        Scheduler::Rr,
        Scheduler::Wrr,
        Scheduler::Lc,
        Scheduler::Wlc,
        Scheduler::Lblc,
        Scheduler::Lblcr,
        Scheduler::Sh,
        Scheduler::Dh,
        Scheduler::Mh,
        Scheduler::Sed,
        Scheduler::Nq,
    ];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Rr => "rr",
            Scheduler::Wrr => "wrr",
            Scheduler::Lc => "lc",
            Scheduler::Wlc => "wlc",
            Scheduler::Lblc => "lblc",
            Scheduler::Lblcr => "lblcr",
            Scheduler::Sh => "sh",
            Scheduler::Dh => "dh",
            Scheduler::Mh => "mh",
            Scheduler::Sed => "sed",
            Scheduler::Nq => "nq",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no IPVS scheduler: there are rr, wrr, lc, wlc, lblc, lblcr, sh, dh, mh, sed and nq")]
pub struct UnknownScheduler(pub String);

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(text: &str) -> Result<Scheduler, UnknownScheduler> {
        let known = Scheduler::ALL.into_iter().find(|scheduler| scheduler.name() == text);
        known.ok_or_else(|| UnknownScheduler(text.to_owned()))
    }
}
