//! Pure. The time of the change that led to a write of slices: what a node daemon measures its own speed from.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use signpost_core::object::ObjectName;

use crate::pods;

/// Times that were seen at the last write, by Service.
#[derive(Debug, Default)]
pub struct Triggers {
    services: BTreeMap<ObjectName, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    service: Option<Timestamp>,
    pods: BTreeMap<String, Timestamp>,
}

impl Triggers {
    /// The earliest change since the last call for this Service: its creation, or a pod's readiness. `None`: none is
    /// known (a label of the Service changed, a pod went).
    pub fn trigger(&mut self, name: &ObjectName, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let seen = self.services.entry(name.clone()).or_default();
        let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut times: Vec<Timestamp> = Vec::new();
        if created != seen.service {
            times.extend(created);
            seen.service = created;
        }
        let before = std::mem::take(&mut seen.pods);
        for pod in pods {
            let changed = pods::ready_condition(pod).and_then(|condition| condition.last_transition_time.as_ref());
            let (Some(uid), Some(changed)) = (pod.metadata.uid.clone(), changed.map(|time| time.0)) else { continue };
            if before.get(&uid).is_none_or(|before| *before < changed) {
                times.push(changed);
            }
            seen.pods.insert(uid, changed);
        }
        times.into_iter().min()
    }

    /// The Service is gone.
    pub fn forget(&mut self, name: &ObjectName) {
        self.services.remove(name);
    }
}
