//! Codecs and state machines of the protocols by which a node says that it has an address. They know no Service, no socket
//! and no clock: bytes and times come in, bytes and decisions go out.
//!
//! ```text
//! node: announce ─┬─ arp, ndp  (who has this address? I have it)
//!                 └─ bgp, bfd  (a route for your router)
//! ```
//!
//! Decoding takes any bytes and never panics; encoding of what was decoded gives the same meaning.

pub mod arp;
pub mod bfd;
pub mod bgp;
pub mod mac;
pub mod ndp;
