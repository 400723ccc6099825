//! Flows that the kernel goes on translating after the rules changed their mind.
//!
//! Rules see the first packet of a flow alone; conntrack repeats for the others what was decided then. A TCP client
//! notices when its backend is gone, a UDP client that keeps its port does not: while it sends, its flow never ends, and
//! all it sends is lost (kubernetes#139628). So after each change of the rules the flows are compared with what the plan
//! wants, and those that can't be right any more are deleted. Their next packet meets the rules anew.
//!
//! ```text
//! NodePlan, Store ──▶ Wanted ──▶ History ─┐
//!                                         ├──▶ is_stale ──▶ delete
//!          kernel ──▶ message ──▶ Flow ───┘
//! ```
//!
//! Only UDP, as kube-proxy does it: TCP and SCTP end such flows by themselves.

mod flow;
mod message;
mod netlink;
mod stale;
mod worker;

use std::net::SocketAddr;

use signpost_core::object::Family;
use tracing::debug;

pub use flow::{Flow, Tuple};
pub use netlink::ConntrackError;
pub use stale::{History, Wanted, places};
pub use worker::{Totals, Worker};

use netlink::Socket;

/// What one [`Conntrack::reconcile`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Flows that were looked at.
    pub seen: usize,
    /// Flows that were deleted.
    pub deleted: usize,
}

/// The UDP flows of one family, in the network namespace of the thread that calls [`Conntrack::reconcile`] first.
#[derive(Debug)]
pub struct Conntrack {
    family: Family,
    history: History,
    socket: Option<Socket>,
}

impl Conntrack {
    /// Nothing is asked of the kernel before the first [`Conntrack::reconcile`].
    pub fn new(family: Family) -> Conntrack {
        Conntrack { family, history: History::default(), socket: None }
    }

    /// Tells where a former process served: what is not wanted any more of it is known to have been a Service's.
    pub fn remember(&mut self, served: impl IntoIterator<Item = SocketAddr>) {
        self.history.remember(served);
    }

    /// What flows are to be like; the rules have been brought to it already.
    pub fn want(&mut self, wanted: Wanted) {
        self.history.want(wanted);
    }

    /// Whether [`Conntrack::reconcile`] has anything to do. After a change that is so twice.
    pub fn needs_sweep(&self) -> bool {
        self.history.needs_sweep()
    }

    /// Deletes what is stale. Costs one listing of the family's UDP flows; nothing where nothing can be stale.
    ///
    /// # Errors
    /// The kernel refused. What it had deleted stays deleted; the next call does the rest.
    pub fn reconcile(&mut self) -> Result<Reconciled, ConntrackError> {
        if !self.history.needs_sweep() {
            return Ok(Reconciled::default());
        }
        let done = self.sweep();
        if done.is_err() {
            // An answer that was not read yet would be taken for that to the next question.
            self.socket = None;
        }
        let done = done?;
        self.history.swept();
        debug!(family = %self.family, seen = done.seen, deleted = done.deleted, "flows are compared with the plan");
        Ok(done)
    }

    /// The family's UDP flows as they are now, in no order.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn flows(&self) -> Result<Vec<Flow>, ConntrackError> {
        let mut flows = Vec::new();
        Socket::open()?.list_udp(self.family, |flow| flows.push(flow))?;
        Ok(flows)
    }

    /// Calls `each` for every TCP flow of the family as it is now, in no order.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn each_tcp(&self, each: impl FnMut(Flow)) -> Result<(), ConntrackError> {
        Socket::open()?.list_tcp(self.family, each)
    }

    fn sweep(&mut self) -> Result<Reconciled, ConntrackError> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(Socket::open()?),
        };
        let mut stale = Vec::new();
        let mut seen = 0;
        socket.list_udp(self.family, |flow| {
            seen += 1;
            if self.history.is_stale(&flow) {
                stale.push(flow);
            }
        })?;
        let deleted = socket.delete(&stale)?;
        Ok(Reconciled { seen, deleted })
    }
}
