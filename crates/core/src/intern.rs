//! Pure. One copy of each name. A hundred thousand endpoints name a few hundred nodes and zones; without this each would
//! carry a copy of its own.

use std::collections::HashSet;
use std::sync::Arc;

use crate::object::{EndpointSlice, ObjectName, Service};

/// The names in use.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    names: HashSet<Arc<str>>,
}

impl Interner {
    /// Replaces the names of a Service that others have too.
    pub(crate) fn service(&mut self, service: &mut Service) {
        self.object(&mut service.name);
        for port in &mut service.ports {
            self.share(&mut port.name);
        }
    }

    /// Replaces the names of a slice that others have too.
    pub(crate) fn slice(&mut self, slice: &mut EndpointSlice) {
        self.share(&mut slice.name.namespace);
        self.object(&mut slice.service);
        for port in &mut slice.ports {
            self.share(&mut port.name);
        }
        for endpoint in &mut slice.endpoints {
            endpoint.node.iter_mut().for_each(|node| self.share(node));
            endpoint.zone_hints.iter_mut().for_each(|zone| self.share(zone));
            endpoint.node_hints.iter_mut().for_each(|node| self.share(node));
        }
    }

    /// Drops the names that nobody else holds.
    pub(crate) fn forget_unused(&mut self) {
        self.names.retain(|name| Arc::strong_count(name) > 1);
    }

    fn object(&mut self, name: &mut ObjectName) {
        self.share(&mut name.namespace);
        self.share(&mut name.name);
    }

    fn share(&mut self, name: &mut Arc<str>) {
        match self.names.get(name) {
            Some(known) => name.clone_from(known),
            None => {
                self.names.insert(name.clone());
            }
        }
    }
}
