//! The embedded Kubernetes API.

pub mod pod_streams;
