//! Tells users what the controllers did: Kubernetes Events, written beside the work and never in its way.
//!
//! ```text
//! tell ──▶ channel ──▶ Aggregate (pure: new, count up, or too many) ──▶ API
//! ```

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;

use aggregate::{Aggregate, Decision};

pub mod aggregate;

/// Notes that may wait; more are dropped, as events are only told as well as can be.
const WAITING: usize = 1000;

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// To which object.
    pub object: ObjectReference,
    /// How serious.
    pub severity: Severity,
    /// In one word, for machines.
    pub reason: &'static str,
    /// In a sentence, for people.
    pub message: String,
    /// Who says so.
    pub component: &'static str,
}

/// Where controllers leave notes.
#[derive(Clone)]
pub struct Recorder {
    notes: mpsc::Sender<Note>,
}

impl Recorder {
    /// A recorder, and the notes that [`write()`] takes.
    pub fn new() -> (Recorder, mpsc::Receiver<Note>) {
        let (notes, receiver) = mpsc::channel(WAITING);
        (Recorder { notes }, receiver)
    }

    /// Tells of something that happened to an object.
    pub fn tell<K: Resource<DynamicType = ()>>(
        &self,
        component: &'static str,
        object: &K,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        let meta = object.meta();
        let object = ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            ..ObjectReference::default()
        };
        // A full channel means that the API can't follow: an event less is better than a controller that waits.
        if self.notes.try_send(Note { object, severity, reason, message, component }).is_err() {
            tracing::debug!(reason, "an event was dropped");
        }
    }
}

/// Writes notes as Events until all recorders are gone.
pub async fn write(client: Client, mut notes: mpsc::Receiver<Note>) {
    let mut aggregate = Aggregate::default();
    while let Some(note) = notes.recv().await {
        let now = Timestamp::now();
        let namespace = note.object.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let result = match aggregate.decide(&note, now) {
            Decision::Create { name, message } => create(&api, name, message, &note, now).await,
            Decision::Count { name, count } => {
                let patch = json!({"count": count, "lastTimestamp": Time(now)});
                let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
                match patched {
                    // Its time to live was over: tell it anew.
                    Err(kube::Error::Api(status)) if status.code == 404 => {
                        let name = aggregate.forget(&note, now);
                        create(&api, name, note.message.clone(), &note, now).await
                    }
                    other => other.map(|_| ()),
                }
            }
            Decision::Drop => Ok(()),
        };
        if let Err(error) = result {
            tracing::debug!(reason = note.reason, %error, "an event could not be written");
            if !matches!(error, kube::Error::Api(_)) {
                // The API may be away for a moment; the channel holds what comes meanwhile.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn create(api: &Api<Event>, name: String, message: String, note: &Note, now: Timestamp) -> kube::Result<()> {
    let event = Event {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        involved_object: note.object.clone(),
        reason: Some(note.reason.to_owned()),
        message: Some(message),
        type_: Some(format!("{:?}", note.severity)),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(note.component.to_owned()), host: None }),
        reporting_component: Some(note.component.to_owned()),
        reporting_instance: Some(String::new()),
        ..Event::default()
    };
    api.create(&PostParams::default(), &event).await.map(|_| ())
}
