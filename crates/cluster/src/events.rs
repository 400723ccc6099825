//! Tells an object's owner what is wrong with it: a Kubernetes Event on the object.
//!
//! Every node sees the same object, so an Event's name is made of the object and the problem: the cluster gets one, not
//! one per node.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::malformed::Malformed;

/// The `reason` of these Events.
pub const REASON: &str = "Malformed";
/// So many may wait; more are left out: they are in the log and the metric.
const QUEUE: usize = 64;
/// The API keeps Events for an hour; a problem that stays is told again.
const AGAIN: Duration = Duration::from_secs(45 * 60);
/// Between two Events, so that a thousand bad objects do not press the API.
const PACE: Duration = Duration::from_millis(200);

/// Reports what is malformed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reporter {
    queue: mpsc::Sender<Malformed>,
}

impl Reporter {
    /// A reporter for the program `component` on `node`. Must be called inside a tokio runtime; the task behind it ends with the last
    /// copy of the reporter.
    pub fn start(client: Client, component: &'static str, node: &str) -> Reporter {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(post(client, component, node.to_owned(), waiting));
        Reporter { queue }
    }

    /// Never waits: with a full queue the Event is left out.
    pub fn report(&self, malformed: Malformed) {
        if self.queue.try_send(malformed).is_err() {
            debug!("an event was left out");
        }
    }
}

async fn post(client: Client, component: &'static str, node: String, mut waiting: mpsc::Receiver<Malformed>) {
    let mut told: HashMap<String, Instant> = HashMap::new();
    while let Some(malformed) = waiting.recv().await {
        told.retain(|_, at| at.elapsed() < AGAIN);
        let event = event(&malformed, component, &node, Timestamp::now());
        let name = event.metadata.name.clone().unwrap_or_default();
        if told.contains_key(&name) {
            continue;
        }
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {
                told.insert(name, Instant::now());
            }
            // Another node told it.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                told.insert(name, Instant::now());
            }
            Err(error) => warn!(object = %malformed.object, %error, "cannot write an event"),
        }
        tokio::time::sleep(PACE).await;
    }
}

/// The Event that says what is wrong with an object.
fn event(malformed: &Malformed, component: &str, node: &str, now: Timestamp) -> Event {
    let object = &malformed.object;
    let problems: Vec<String> = malformed.problems.iter().map(ToString::to_string).collect();
    let message = problems.join("; ");
    let mut hasher = DefaultHasher::new();
    (&object.uid, &message).hash(&mut hasher);
    // An Event of an object without namespace lives in `default`.
    let namespace = if object.namespace.is_empty() { "default" } else { &*object.namespace };
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:016x}", object.name, hasher.finish())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(object.api_version.to_owned()),
            kind: Some(object.kind.to_owned()),
            namespace: Some(object.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
            name: Some(object.name.to_string()),
            uid: Some(object.uid.to_string()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(REASON.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(component.to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}
