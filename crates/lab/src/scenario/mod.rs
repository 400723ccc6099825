//! Scenarios: a small cluster, what is done to it, and what each packet must then meet.
//!
//! ```text
//! file ─ format ─▶ Scenario ─ run ─▶ steps ─┬─ predict: walk(plan), walk(program) ─┐
//!                                           └─ probe: what the kernel did ─────────┴─ expect ─▶ report
//! ```
//!
//! Each probe is answered three ways, and all three must agree with each other and with the expectation.

pub mod check;
#[cfg(test)]
mod e2e_cases;
pub mod echo;
pub mod expect;
pub mod format;
#[cfg(test)]
mod ipvs_cases;
pub mod light;
pub mod lookup;
mod memory;
pub mod names;
pub mod objects;
pub mod pool;
pub mod probe;
pub mod report;
pub mod run;
pub mod stage;

pub use signpost_diagnose::{address, listed, predict};
