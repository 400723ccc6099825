//! EndpointSlices out of Endpoints that somebody made by hand for a Service without a selector (KEP-752): node daemons read
//! slices alone.
//!
//! ```text
//! Endpoints, Service ──▶ plan (a slice for each family and set of ports) ──▶ writes
//! ```
//!
//! Slices of Endpoints that are gone go by their owner reference ([`crate::garbage`]).

use signpost_core::object::ObjectName;

use crate::context::{Context, WriteError};
use crate::controller;
use crate::queue::{Outcome, Queue};
use crate::world::labelled;

pub mod plan;

#[cfg(test)]
mod tests;

/// The controller.
pub struct Controller;

impl controller::Controller for Controller {
    type Key = ObjectName;
    const NAME: &'static str = "endpoint slice mirroring";
    const WORKERS: usize = 1;

    fn queue(context: &Context) -> &Queue<ObjectName> {
        &context.queues.mirrored
    }

    async fn reconcile(&self, context: &Context, key: &ObjectName) -> Result<Outcome, WriteError> {
        let index = labelled(&key.namespace, crate::endpoint_slices::plan::SERVICE_NAME, &key.name);
        let mut slices = context.world.slices.select(&index);
        slices.retain(|slice| plan::is_mirror(slice));
        let endpoints = context.world.endpoints.get(key);
        let service = context.world.services.get(key);
        let actions = plan::plan(endpoints.as_deref(), service.as_deref(), &slices);
        match crate::endpoint_slices::write(context, &actions).await {
            Err(error) if error.is_namespace_ending() => Ok(Outcome::Done),
            other => other.map(|()| Outcome::Done),
        }
    }
}
