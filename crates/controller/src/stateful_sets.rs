//! StatefulSets: pods with names of their own.

use signpost_core::object::ObjectName;

use crate::context::{Context, WriteError};
use crate::queue::{Outcome, Queue};
use crate::workers;

/// The controller.
pub struct Controller;

impl workers::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "stateful sets";
    const WORKERS: usize = 2;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.stateful_sets
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        reconcile(context, key).await
    }
}

/// Looks at one StatefulSet.
async fn reconcile(_context: &Context, _name: &ObjectName) -> Result<Outcome, WriteError> {
    Ok(Outcome::Done)
}
