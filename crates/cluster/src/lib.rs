//! Where objects come from and status goes to: the Kubernetes API.
//!
//! ```text
//! API ──list, watch──▶ watch ──▶ convert (pure) ──▶ Observed ──▶ node: Store
//!  ▲                                  │
//!  └───────── events ◀── Malformed ───┘
//! ```

pub mod client;
pub mod convert;
pub mod events;
pub mod malformed;
pub mod watch;

pub use malformed::{Malformed, ObjectReference, Problem};
pub use watch::{Listed, NodeScope, Observed, Reach, Told, Watches, watch};
