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
pub mod error;
mod handlers;
mod names;
mod object;
pub mod pod_streams;
mod random;
pub mod registry;
mod request;
mod respond;
mod selector;
mod server;
pub mod store;
mod views;

pub use self::server::{ApiConfig, ApiServer, ApiServerError};
