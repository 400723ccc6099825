//! What a controller is to those who run it.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;

use crate::context::{Context, WriteError};
use crate::queue::{Outcome, Queue};

/// A controller: a queue, and what is done about a key of it.
pub trait Controller: Send + Sync + 'static {
    /// What its queue holds.
    type Key: Clone + Debug + Eq + Hash + Ord + Send + Sync;
    /// For logs.
    const NAME: &'static str;
    /// Keys that are worked on side by side.
    const WORKERS: usize;

    /// Its queue.
    fn queue(context: &Context) -> &Queue<Self::Key>;

    /// Makes what the key names what it should be. An error makes the key come again after a pause.
    fn reconcile(&self, context: &Context, key: &Self::Key)
    -> impl Future<Output = Result<Outcome, WriteError>> + Send;
}
