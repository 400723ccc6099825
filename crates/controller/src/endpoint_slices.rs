//! The EndpointSlices of Services with a selector.
//!
//! ```text
//! Service, pods, nodes ──▶ desired (endpoints by family and ports) ──▶ plan (packed into slices) ──▶ writes
//! ```
//!
//! Slices of Services without a selector and slices that somebody else keeps are never touched. Slices of a Service that
//! is gone go by their owner reference ([`crate::garbage`]). What the real controller does: KEP-752 and KEP-1672.

use std::sync::{Mutex, PoisonError};

use signpost_core::object::ObjectName;

use crate::context::{Context, WriteError};
use crate::controller;
use crate::events::Severity;
use crate::lookup;
use crate::queue::{Outcome, Queue};
use crate::world::labelled;
use triggers::Triggers;

pub mod desired;
pub mod plan;
pub mod topology;
pub mod triggers;

#[cfg(test)]
mod tests;

const COMPONENT: &str = "endpoint-slice-controller";

/// The controller's own memory.
#[derive(Default)]
pub struct Controller {
    triggers: Mutex<Triggers>,
}

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "endpoint slices";
    const WORKERS: usize = 4;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.slices
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        self.look_at(context, key).await
    }
}

impl Controller {
    /// Makes the slices of one Service what they should be.
    ///
    /// # Errors
    /// The first write that failed; the rest was tried all the same.
    async fn look_at(&self, context: &Context, name: &ObjectName) -> Result<Outcome, WriteError> {
        let service = context.world.services.get(name);
        let Some(service) = service.filter(|service| desired::is_ours(service)) else {
            self.triggers.lock().unwrap_or_else(PoisonError::into_inner).forget(name);
            return Ok(Outcome::Done);
        };
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let pods = lookup::pods_of_service(&context.world, &service);
        let index = labelled(&name.namespace, plan::SERVICE_NAME, &name.name);
        let mut slices = context.world.slices.select(&index);
        slices.retain(|slice| plan::is_managed(slice));
        let trigger = self.triggers.lock().unwrap_or_else(PoisonError::into_inner).trigger(name, &service, &pods);
        let node = |node: &str| lookup::node_facts(&context.world, node);
        let shares = topology::is_asked_for(&service).then(|| {
            let nodes = context.world.nodes.all();
            topology::shares(nodes.iter().map(AsRef::as_ref)).unwrap_or_default()
        });
        let actions = plan::plan(&service, &pods, (&node, shares.as_ref()), &slices, trigger);
        let result = write(context, &actions).await;
        if let Err(error) = &result
            && !error.is_conflict()
            && !error.is_namespace_ending()
        {
            let message = format!("Error updating Endpoint Slices for Service {name}: {}", error.reason());
            context.events.tell(
                COMPONENT,
                service.as_ref(),
                Severity::Warning,
                "FailedToUpdateEndpointSlices",
                message,
            );
        }
        match result {
            Err(error) if error.is_namespace_ending() => Ok(Outcome::Done),
            other => other.map(|()| Outcome::Done),
        }
    }
}

/// New and changed slices first: an endpoint that moves is named twice for a moment, never nowhere.
pub(crate) async fn write(context: &Context, actions: &plan::Actions) -> Result<(), WriteError> {
    let mut first = Ok(());
    let mut note = |result: Result<(), WriteError>| {
        if first.is_ok() {
            first = result;
        }
    };
    for slice in &actions.create {
        note(context.create(slice).await.map(|_| ()));
    }
    for slice in &actions.replace {
        note(context.replace(slice).await.map(|_| ()));
    }
    for slice in &actions.delete {
        note(context.delete(slice.as_ref()).await);
    }
    first
}
