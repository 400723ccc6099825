//! Why a Service does not work (doctor), and where a packet goes (trace).
//!
//! ```text
//! API, nodes, pods ─▶ collect ─▶ Snapshot ─┬─▶ trace: hops ─▶ text, JSON, pictures
//!                                  │       └─▶ doctor: findings ─▶ report
//!                                  └─▶ file ─▶ the same, elsewhere
//! ```
//!
//! Only [`collect`] touches anything; what is concluded from a snapshot is pure.

pub mod address;
pub mod collect;
pub mod doctor;
mod field;
pub mod firewall;
pub mod kernel;
pub mod listed;
pub mod nearest;
pub mod network;
pub mod planned;
pub mod predict;
pub mod program;
pub mod redact;
pub mod snapshot;
pub mod trace;
pub mod what_if;
