//! The embedded Kubernetes API: what a lab's daemons, controllers and `kubectl` talk to.
//!
//! ```text
//! kubectl, daemons ─HTTPS+token─▶ serve ─┐
//! in process ─────────────client()──────▶ router ─▶ handlers ─▶ admission ─▶ store ─▶ log (fsync)
//!                                                     │                       │
//!                                                     └ tables, discovery     └▶ history ─▶ watches
//! ```
//!
//! Generic over `registry`; objects are JSON all the way.

pub mod admission;
mod bootstrap;
mod clock;
pub mod content;
mod discovery;
pub mod error;
mod handlers;
mod names;
mod object;
pub mod pod_streams;
mod random;
mod reaper;
pub mod registry;
mod request;
mod respond;
mod selector;
mod serve;
mod server;
mod service_cidrs;
mod snapshots;
mod state;
pub mod store;
mod tables;
mod tls;
mod token;
mod views;

pub use self::server::{ApiServer, ApiServerError};
pub use self::state::ApiConfig;
pub use self::tls::{TlsError, TlsIdentity, kubeconfig};
pub use self::token::{Token, write_private};
