//! Why a Service does not work, and where a packet goes.

pub mod address;
pub mod listed;
pub mod predict;
pub mod program;
