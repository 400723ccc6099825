//! Pure. What a Service means on one node, computed from objects alone.
//!
//! ```text
//! Event ──▶ Store ──▶ ServiceMap ──▶ Planner ──▶ NodePlan (one node, one family)
//!                                        │            │
//!                                        └ PlanChange └ walk(plan, packet) -> Verdict
//! ```
//!
//! No clock, socket, file, environment, log or lock anywhere in this crate: time and randomness are arguments.

pub mod allocator;
pub mod announce;
mod facts;
#[cfg(test)]
mod fixture;
mod intern;
pub mod labels;
pub mod load_balancer;
pub mod maglev;
pub mod node_cache;
pub mod object;
pub mod packet;
pub mod plan;
pub mod planner;
pub mod scheduler;
pub mod service_map;
pub mod slices;
pub mod store;
pub mod walk;
