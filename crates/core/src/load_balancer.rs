//! Pure. Which load-balancer address a Service gets: the pools, and the choice.
//!
//! ```text
//! pools, who has which address, what a Service asks for ──▶ choose ──▶ addresses of one pool, or why there are none
//! ```
//!
//! The choice is a function of its arguments: who has an address keeps it as long as it fits; else the first pool and its
//! lowest free address. Nothing is remembered here, so that nothing can be lost or leak.

mod choose;
mod pool;

pub use choose::{Chosen, Lacks, Others, Refusal, Request, Sharing, Unfit, Wish, choose};
pub use pool::{AddressRange, Allocation, Pool, RangeError};
