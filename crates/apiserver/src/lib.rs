//! The embedded Kubernetes API.

pub mod content;
pub mod pod_streams;
