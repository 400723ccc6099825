//! The lab with its real processes.

#![allow(clippy::unwrap_used)] // clippy allows it in test functions, not in those that they share

mod command;
mod load_balancer;
mod names;
mod person;
mod sandbox;
mod whole;
