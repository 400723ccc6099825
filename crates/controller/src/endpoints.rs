//! The Endpoints object of each Service with a selector, under the Service's name: the form that came before slices.
//! Node daemons don't read it; `kubectl get endpoints` and old programs do.

use std::sync::{Mutex, PoisonError};

use signpost_core::object::ObjectName;

use crate::context::{Context, WriteError};
use crate::controller;
use crate::endpoint_slices::desired;
use crate::endpoint_slices::triggers::Triggers;
use crate::lookup;
use crate::queue::{Outcome, Queue};

pub mod plan;

#[cfg(test)]
mod tests;

/// The controller's own memory.
#[derive(Default)]
pub struct Controller {
    triggers: Mutex<Triggers>,
}

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "endpoints";
    const WORKERS: usize = 2;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.endpoints
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        self.look_at(context, key).await
    }
}

impl Controller {
    /// Makes the Endpoints of one Service what they should be; deletes them when it is gone. The queue names a Service
    /// that is not there only when it was there before, or when this controller made the Endpoints.
    ///
    /// # Errors
    /// The write that failed.
    async fn look_at(&self, context: &Context, name: &ObjectName) -> Result<Outcome, WriteError> {
        let existing = context.world.endpoints.get(name);
        let Some(service) = context.world.services.get(name) else {
            self.triggers.lock().unwrap_or_else(PoisonError::into_inner).forget(name);
            if let Some(existing) = existing {
                context.delete(existing.as_ref()).await?;
            }
            return Ok(Outcome::Done);
        };
        if !desired::is_ours(&service) || service.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let pods = lookup::pods_of_service(&context.world, &service);
        let trigger = self.triggers.lock().unwrap_or_else(PoisonError::into_inner).trigger(name, &service, &pods);
        let result = match (plan::plan(&service, &pods, existing.as_deref(), trigger), existing.is_some()) {
            (None, _) => Ok(()),
            (Some(wanted), true) => context.replace(&wanted).await.map(|_| ()),
            (Some(wanted), false) => context.create(&wanted).await.map(|_| ()),
        };
        match result {
            Err(error) if error.is_namespace_ending() => Ok(Outcome::Done),
            other => other.map(|()| Outcome::Done),
        }
    }
}
