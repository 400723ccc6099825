//! What each watched kind becomes in the Store.

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use signpost_core::store::{Event, Kind};

use super::Observed;
use super::session::{self, Told};
use crate::convert::{self, Converted};
use crate::malformed::{FieldProblem, Malformed, Problem, Quoted};

/// When the change of a pod or Service was made that a slice follows.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What one object said.
pub(super) struct Seen {
    /// For the Store.
    pub event: Event,
    /// What was wrong.
    pub malformed: Option<Malformed>,
    /// More to tell, before the event.
    pub also: Option<Observed>,
}

/// A kind that is watched.
pub(super) trait Watched: session::Kind {
    /// Its name in the core.
    const KIND: Kind;
    /// Such as `v1`.
    const API_VERSION: &'static str;
    /// As people write it.
    const NAME: &'static str;
    /// An API without this kind, or that keeps it from us, is served all the same.
    const OPTIONAL: bool = false;

    /// An object that is there. If there is nothing in it to serve, then what was there under its name is gone.
    fn applied(&self) -> Seen;
    /// The object of this name is gone.
    fn deleted(metadata: &ObjectMeta) -> Event;
}

/// What a node's consumer gets to hear of what the API says.
pub(super) fn observed<K: Watched>(told: Told<K>) -> Vec<Observed> {
    let event = |event, revision, triggered_ms| Observed::Event { event, kind: K::KIND, revision, triggered_ms };
    match told {
        Told::Reset => vec![event(Event::Reset(K::KIND), 0, None)],
        Told::Synced { revision } => vec![event(Event::Synced(K::KIND), revision, None)],
        Told::Bookmark { revision } => vec![Observed::Bookmark { kind: K::KIND, revision }],
        Told::Deleted { metadata, revision } => vec![event(K::deleted(&metadata), revision, None)],
        Told::Applied { object, revision } => {
            let seen = object.applied();
            let malformed = seen.malformed.map(Observed::Malformed);
            let event = event(seen.event, revision, triggered_ms(object.meta()));
            malformed.into_iter().chain(seen.also).chain([event]).collect()
        }
        Told::Unreadable { metadata, reason, revision } => {
            let object = convert::reference(K::API_VERSION, K::NAME, &metadata);
            let problem = Problem::Unreadable { reason: Quoted::new(&reason) };
            let problems = vec![FieldProblem { field: "object".to_owned(), problem }];
            vec![Observed::Malformed(Malformed { object, problems }), event(K::deleted(&metadata), revision, None)]
        }
    }
}

fn triggered_ms(metadata: &ObjectMeta) -> Option<i64> {
    let written = metadata.annotations.as_ref()?.get(TRIGGER_TIME)?;
    written.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

fn seen<T>(converted: Converted<T>, applied: impl FnOnce(T) -> Event, deleted: impl FnOnce() -> Event) -> Seen {
    let event = converted.object.map_or_else(deleted, applied);
    Seen { event, malformed: converted.malformed, also: None }
}

impl Watched for Service {
    const KIND: Kind = Kind::Service;
    const API_VERSION: &'static str = "v1";
    const NAME: &'static str = "Service";

    fn applied(&self) -> Seen {
        let converted = convert::service(self);
        seen(converted, Event::ServiceApplied, || Self::deleted(&self.metadata))
    }

    fn deleted(metadata: &ObjectMeta) -> Event {
        Event::ServiceDeleted(convert::object_name(metadata))
    }
}

impl Watched for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
    const API_VERSION: &'static str = "discovery.k8s.io/v1";
    const NAME: &'static str = "EndpointSlice";

    fn applied(&self) -> Seen {
        let converted = convert::slice(self);
        seen(converted, Event::SliceApplied, || Self::deleted(&self.metadata))
    }

    fn deleted(metadata: &ObjectMeta) -> Event {
        Event::SliceDeleted(convert::object_name(metadata))
    }
}

impl Watched for Node {
    const KIND: Kind = Kind::Node;
    const API_VERSION: &'static str = "v1";
    const NAME: &'static str = "Node";

    fn applied(&self) -> Seen {
        let Converted { object, malformed } = convert::node(self);
        let also =
            object.as_ref().map(|state| Observed::Eligible { node: state.node.name.clone(), eligible: state.eligible });
        let event = match object {
            Some(state) => Event::NodeApplied(state.node),
            None => Self::deleted(&self.metadata),
        };
        Seen { event, malformed, also }
    }

    fn deleted(metadata: &ObjectMeta) -> Event {
        Event::NodeDeleted(convert::object_name(metadata).name)
    }
}

impl Watched for ServiceCIDR {
    const KIND: Kind = Kind::ServiceCidr;
    const API_VERSION: &'static str = "networking.k8s.io/v1";
    const NAME: &'static str = "ServiceCIDR";
    const OPTIONAL: bool = true;

    fn applied(&self) -> Seen {
        let converted = convert::service_cidr(self);
        seen(
            converted,
            |found| Event::ServiceCidrsApplied { name: found.name, cidrs: found.cidrs },
            || Self::deleted(&self.metadata),
        )
    }

    fn deleted(metadata: &ObjectMeta) -> Event {
        Event::ServiceCidrsDeleted(convert::object_name(metadata).name)
    }
}
