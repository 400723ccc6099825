//! A whole cluster on one machine: nodes, pods, a router and an outside client are network namespaces, a small kubelet
//! runs the pods' programs, one `signpost node` daemon per node programs its kernel state.
//!
//! ```text
//!  LabSpec ─▶ Lab::start ─┬─ API server (127.0.0.1 and the router's address)
//!                         ├─ controllers
//!                         ├─ kubelet: pods bound to a node ─▶ sandboxes (or light pods) ─▶ status
//!                         └─ a node daemon per node
//! ```

mod access;
pub mod cgroup;
pub mod cluster_dns;
pub mod control;
pub mod daemon;
pub mod echo;
mod ensure;
pub mod error;
pub mod images;
pub mod inspection;
pub mod kubelet;
pub mod lab;
mod load_balancers;
pub mod measure;
pub mod mounts;
pub mod netns;
pub mod network;
mod nodes;
pub mod patience;
mod router;
pub mod sandbox;
pub mod scenario;
pub mod sockets;
pub mod spawner;
pub mod spec;
pub mod state;
pub mod sys;
pub mod terminal;
pub mod topology;

pub use daemon::Daemon;
pub use error::LabError;
pub use lab::Lab;
pub use netns::Netns;
pub use spec::{Families, LabSpec, NodeSpec, Place, SpecError};
pub use topology::Topology;

/// The name of a lab that was given none.
pub const DEFAULT_NAME: &str = "lab";
