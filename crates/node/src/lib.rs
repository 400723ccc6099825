//! The node daemon: keeps one node's kernel equal to its plan.
//!
//! ```text
//! config ─▶ daemon ─┬─ cluster::watch, addresses ─▶ sync ─▶ datapath
//!                   ├─ service_health: healthCheckNodePort of Services
//!                   ├─ announce: load-balancer addresses, once the kernel serves them
//!                   ├─ node_cache: whether names are answered on this node
//!                   └─ server: /healthz /livez, /metrics /proxyMode /programmed /plan /program /rules
//! ```

pub mod addresses;
pub mod announce;
pub mod config;
pub mod daemon;
pub mod findings;
pub mod handover;
pub mod instance;
pub mod kernel_settings;
pub mod left_out;
pub mod look;
pub mod metrics;
pub mod mode;
pub mod node_cache;
mod notices;
pub mod process;
pub mod progress;
mod prometheus;
pub mod rivals;
pub mod routes;
pub mod rules;
pub mod server;
pub mod service_health;
pub mod sync;
mod sys;
pub mod timeouts;

pub use config::{ConfigError, Flags, NodeOptions};
pub use daemon::{NodeError, cleanup, run};
