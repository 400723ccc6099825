//! Pure. Virtual servers and their destinations, as IPVS has them (linux/ip_vs.h).

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signpost_core::object::Protocol;
pub use signpost_core::scheduler::{Scheduler, UnknownScheduler};

/// An address, protocol and port at which packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: NonZeroU16,
}

impl Place {
    /// Address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port.get())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket(), self.protocol)
    }
}

/// What finds a virtual server. Marks are looked up before places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ServerKey {
    /// Packets to a place.
    At(Place),
    /// Packets with this mark, whole.
    Marked(u32),
}

/// How a server keeps a client at its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stickiness {
    /// Not at all.
    None,
    /// The kernel remembers the client for so many seconds after its last connection.
    Persistent(u32),
    /// The client's address alone decides, by a Maglev table. Marked servers have it: a persistent one of these does not
    /// translate ports.
    BySource,
}

/// A virtual server. All destinations have the weight 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// How it chooses.
    pub settings: Settings,
    /// Of this protocol are its packets.
    pub protocol: Protocol,
    /// Among these; never empty.
    pub destinations: BTreeSet<SocketAddr>,
}

/// What a server is besides its destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Settings {
    /// How it chooses.
    pub scheduler: Scheduler,
    /// Whether a client stays.
    pub stickiness: Stickiness,
}

/// `IP_VS_SVC_F_PERSISTENT`.
pub const PERSISTENT: u32 = 0x1;
/// `IP_VS_SVC_F_SCHED_MH_FALLBACK`, the same bit as `IP_VS_SVC_F_SCHED_SH_FALLBACK`: past a destination of weight 0.
pub const FALLBACK: u32 = 0x8;
/// `IP_VS_SVC_F_SCHED_MH_PORT`, the same bit as `IP_VS_SVC_F_SCHED_SH_PORT`: the source port counts too.
pub const WITH_PORT: u32 = 0x10;
/// The flags that are decided here; the kernel has others of its own.
pub const FLAGS: u32 = PERSISTENT | FALLBACK | WITH_PORT;

/// The timeout of servers that need none, so that they are known again if this program dies before their address is there.
pub const OWN_TIMEOUT_S: u32 = 86_399;

impl Settings {
    /// The scheduler's name, flags and timeout in seconds, as the kernel takes them.
    pub fn parts(&self) -> (Scheduler, u32, u32) {
        match (self.stickiness, self.scheduler) {
            // By address alone all that comes through one router would meet one destination.
            (Stickiness::None, Scheduler::Mh) => (Scheduler::Mh, FALLBACK | WITH_PORT, OWN_TIMEOUT_S),
            (Stickiness::None, Scheduler::Sh) => (Scheduler::Sh, FALLBACK, OWN_TIMEOUT_S),
            (Stickiness::None, scheduler) => (scheduler, 0, OWN_TIMEOUT_S),
            (Stickiness::Persistent(timeout_s), scheduler) => (scheduler, PERSISTENT, timeout_s),
            (Stickiness::BySource, _) => (Scheduler::Mh, FALLBACK, OWN_TIMEOUT_S),
        }
    }
}

/// The longest that the kernel takes, and what Kubernetes allows: a day.
const MOST_TIMEOUT_S: u64 = 86_400;

/// Seconds of an affinity's timeout.
pub fn timeout_s(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_secs().clamp(1, MOST_TIMEOUT_S)).expect("a day fits")
}
