//! Tells an object's owner what is wrong with it: a Kubernetes Event on the object.
//!
//! Every node sees the same Service, so an Event's name is made of the object and the message: the cluster gets one, not
//! one per node.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::malformed::{self, Malformed};

/// The `reason` of Events about malformed objects.
pub const MALFORMED: &str = "Malformed";
/// So many may wait; more are left out: they are in the log and the metric.
const QUEUE: usize = 64;
/// The API keeps Events for an hour; a problem that stays is told again.
const AGAIN: Duration = Duration::from_secs(45 * 60);
/// Between two Events, so that a thousand bad objects do not press the API.
const PACE: Duration = Duration::from_millis(200);
/// How long the API may take to write one.
const ANSWER: Duration = Duration::from_secs(5);
/// How often it is asked that does not answer.
const TRIES: usize = 3;

/// Something that an object's owner should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// On which object.
    pub object: malformed::ObjectReference,
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub message: String,
}

impl From<Malformed> for Notice {
    fn from(malformed: Malformed) -> Notice {
        let problems: Vec<String> = malformed.problems.iter().map(ToString::to_string).collect();
        Notice { object: malformed.object, reason: MALFORMED, message: problems.join("; ") }
    }
}

/// Writes Events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reporter {
    queue: mpsc::Sender<Notice>,
}

impl Reporter {
    /// A reporter for the program `component` on `node`. Must be called inside a tokio runtime; the task behind it ends with the last
    /// copy of the reporter.
    pub fn start(client: Client, component: &'static str, node: &str) -> Reporter {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(post(client, component, node.to_owned(), waiting));
        Reporter { queue }
    }

    /// Never waits: with a full queue the Event is left out. Whether it was taken.
    pub fn report(&self, notice: impl Into<Notice>) -> bool {
        let taken = self.queue.try_send(notice.into()).is_ok();
        if !taken {
            debug!("an event was left out");
        }
        taken
    }
}

async fn post(client: Client, component: &'static str, node: String, mut waiting: mpsc::Receiver<Notice>) {
    let mut told: HashMap<String, Instant> = HashMap::new();
    while let Some(mut notice) = waiting.recv().await {
        told.retain(|_, at| at.elapsed() < AGAIN);
        let event = event(&notice, component, &node, Timestamp::now());
        let name = event.metadata.name.clone().unwrap_or_default();
        if told.contains_key(&name) {
            continue;
        }
        notice.object.uid = uid(&client, &notice.object).await;
        let event = Event { metadata: event.metadata, ..self::event(&notice, component, &node, Timestamp::now()) };
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        match create(&api, &event).await {
            Ok(()) => {
                told.insert(name, Instant::now());
            }
            Err(error) => warn!(object = %notice.object, error, "cannot write an event"),
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Writes an Event; that another node wrote it is as well. An API that does not answer is asked again: a connection may have
/// been cut while nothing went over it.
async fn create(api: &Api<Event>, event: &Event) -> Result<(), String> {
    let mut why = String::new();
    for _ in 0..TRIES {
        match tokio::time::timeout(ANSWER, api.create(&PostParams::default(), event)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => return Ok(()),
            Ok(Err(kube::Error::Api(status))) => return Err(status.to_string()),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = format!("no answer in {} s", ANSWER.as_secs()),
        }
        tokio::time::sleep(PACE).await;
    }
    Err(why)
}

/// The uid of a Service that was named without one: `kubectl describe` shows no Event that lacks it. Asked by a list, for
/// which a node daemon has the right.
async fn uid(client: &Client, object: &malformed::ObjectReference) -> Arc<str> {
    if !object.uid.is_empty() || object.kind != "Service" {
        return object.uid.clone();
    }
    let api: Api<Service> = Api::namespaced(client.clone(), &object.namespace);
    let named = ListParams::default().fields(&format!("metadata.name={}", object.name));
    match api.list(&named).await {
        // A Service that is gone has none any more.
        Ok(found) => found.items.into_iter().find_map(|found| found.metadata.uid).unwrap_or_default().into(),
        Err(error) => {
            debug!(%object, %error, "an event is written without the object's uid");
            "".into()
        }
    }
}

fn event(notice: &Notice, component: &str, node: &str, now: Timestamp) -> Event {
    let Notice { object, reason, message } = notice;
    let mut hasher = DefaultHasher::new();
    (&object.uid, reason, message).hash(&mut hasher);
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
        reason: Some((*reason).to_owned()),
        message: Some(message.clone()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(component.to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::*;
    use crate::malformed::{FieldProblem, Problem};

    fn malformed(name: &str, value: i64) -> Malformed {
        let text = |text: &str| text.into();
        let object = malformed::ObjectReference {
            api_version: "v1",
            kind: "Service",
            namespace: text("shop"),
            name: text(name),
            uid: text("u-1"),
        };
        let problem =
            FieldProblem { field: "spec.ports[0].port".to_owned(), problem: Problem::PortOutOfRange { value } };
        Malformed { object, problems: vec![problem] }
    }

    #[tokio::test]
    async fn a_problem_is_told_once_and_under_a_name_that_every_node_gives_it() {
        let posted = Arc::new(Mutex::new(Vec::<Event>::new()));
        let seen = posted.clone();
        let router = Router::new().fallback(move |body: String| {
            let seen = seen.clone();
            async move {
                let event: Event = serde_json::from_str(&body).unwrap();
                let mut seen = seen.lock().unwrap();
                seen.push(event.clone());
                // The second is one that another node told before.
                if seen.len() == 2 {
                    let status = r#"{"kind":"Status","status":"Failure","code":409,"reason":"AlreadyExists"}"#;
                    return (StatusCode::CONFLICT, status.to_owned()).into_response();
                }
                (StatusCode::CREATED, serde_json::to_string(&event).unwrap()).into_response()
            }
        });
        let client = Client::new(router, "default");
        for node in ["n1", "n2"] {
            let reporter = Reporter::start(client.clone(), "signpost-node", node);
            for _ in 0..3 {
                reporter.report(malformed("web", 70_000));
            }
            if node == "n2" {
                reporter.report(malformed("web", 0));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while posted.lock().unwrap().len() < 3 {
            assert!(Instant::now() < deadline, "three events were to come: {:?}", posted.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let posted = posted.lock().unwrap();
        let with = |message: &str| -> Vec<&str> {
            let told = posted.iter().filter(|event| event.message.as_deref() == Some(message));
            told.map(|event| event.metadata.name.as_deref().unwrap()).collect()
        };
        let same = with("spec.ports[0].port: 70000 is not in 1-65535; ignored");
        let other = with("spec.ports[0].port: 0 is not in 1-65535; ignored");
        assert_eq!((same.len(), other.len()), (2, 1));
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], other[0]);
        assert_eq!(posted[0].involved_object.name.as_deref(), Some("web"));
        assert_eq!(posted[0].metadata.namespace.as_deref(), Some("shop"));
    }
}
