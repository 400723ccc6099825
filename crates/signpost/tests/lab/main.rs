//! The lab with its real processes.

mod sandbox;
mod whole;
