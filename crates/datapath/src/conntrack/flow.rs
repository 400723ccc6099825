//! Pure. A flow as conntrack has it.

use std::net::SocketAddr;

/// Source and destination of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Where packets of this direction come from.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
}

/// A flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// As its first packet came in, before any rewriting.
    pub original: Tuple,
    /// As its answers come in: their source is where the first packet went to after all rewriting.
    pub reply: Tuple,
    /// The kernel's name for this flow, so that one which took its place is not mistaken for it.
    pub id: u32,
    /// The conntrack zone; rules of Services see zone 0 alone.
    pub zone: u16,
    /// Whether it is a TCP connection that is established.
    pub established: bool,
}

impl Flow {
    /// Whether its destination was rewritten.
    pub fn is_translated(&self) -> bool {
        self.reply.source != self.original.destination
    }

    /// Whether its source was rewritten: answers go to an address of the node.
    pub fn is_masqueraded(&self) -> bool {
        self.reply.destination.ip() != self.original.source.ip()
    }
}
