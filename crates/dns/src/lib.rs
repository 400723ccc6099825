//! The cluster's DNS server.
//!
//! ```text
//! API ──▶ source ──Change──▶ zone (pure) ◀─ name, type ─┐
//!                                          answer ─▶ chain ─▶ message ─▶ client
//! Corefile ─▶ corefile (pure) ─▶ plugins ───────────▲ │
//!                                    upstream ◀─ forward, cache
//! ```

pub mod cache;
pub mod config;
pub mod convert;
pub mod corefile;
pub mod engine;
pub mod forward;
pub mod hosts;
pub mod http;
pub mod labels;
pub mod limit;
pub mod message;
pub mod metrics;
pub mod node_cache;
pub mod object;
pub mod random;
pub mod rewrite;
pub mod run;
pub mod serve;
pub mod source;
pub mod zone;

pub use run::{Options, RunError, run};
