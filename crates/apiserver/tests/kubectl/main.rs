//! The real kubectl against the API, over TLS: what a person types must work and read as with a real cluster.
//!
//! `SIGNPOST_KUBECTL` names another kubectl than the one in the PATH.

mod cluster;
mod errors;
mod objects;
mod reading;
mod writing;
