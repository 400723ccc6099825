//! Pure. What the node daemon and the node's cache for names agree on: where the cache answers, how it says that it does, and which
//! frontends lead to it while it does.
//!
//! ```text
//! signpost dns --node-cache ─ a byte each second, while it is ready ─▶ signpost node ─▶ kube-dns, port 53 ─▶ the cache
//!                           ╳ closed, or silent for three ──────────▶               ─▶ the Service's endpoints again
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::object::{Family, ObjectName};

/// The port of names.
pub const PORT: u16 = 53;
/// The daemon's socket, in the abstract name space of unix sockets: each network namespace has its own.
pub const SOCKET: &[u8] = b"signpost-node-cache";
/// How often the cache says that it is ready.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// So long without a word, the cache counts as dead.
pub const SILENCE: Duration = Duration::from_secs(3);

/// Where the cache answers on every node: IPv4's link-local address that others use for this, too, and one like it out of the
/// range that IPv6 leaves to each site. No router has a way to them.
pub fn address(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::new(169, 254, 20, 10).into(),
        Family::Ipv6 => Ipv6Addr::new(0xfd00, 0x169, 0x254, 0x20, 0, 0, 0, 0x10).into(),
    }
}

/// The same with the port.
pub fn socket_address(family: Family) -> SocketAddr {
    SocketAddr::new(address(family), PORT)
}

/// The Service that the cache answers for.
pub fn is_name_service(service: &ObjectName) -> bool {
    &*service.namespace == "kube-system" && &*service.name == "kube-dns"
}
