//! The zone against an API that the test plays.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hickory_proto::rr::{Name, RecordType};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::random::Random;

const DEADLINE: Duration = Duration::from_secs(20);

/// An API with lists of objects by path, and watches that end when it goes away.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    away: bool,
    revision: u64,
    objects: BTreeMap<(String, String), Value>,
    watches: Vec<(String, mpsc::UnboundedSender<Result<String, std::io::Error>>)>,
}

impl FakeApi {
    pub(crate) fn new() -> FakeApi {
        FakeApi(Arc::new(Mutex::new(Played { revision: 1, ..Played::default() })))
    }

    /// A zone that follows it.
    pub(crate) fn zone(&self, metrics: &Arc<Metrics>) -> Arc<SharedZone> {
        let api = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let api = api.clone();
            async move { api.answer(&request) }
        });
        let zones = ["cluster.local.", "in-addr.arpa."].map(|zone| Name::from_ascii(zone).unwrap());
        let client = kube::Client::new(router, "default");
        SharedZone::of(client, "https://api/", Settings::new(zones.to_vec()), metrics.clone())
    }

    /// Every request fails and every watch breaks.
    pub(crate) fn goes_away(&self) {
        let mut played = self.0.lock().unwrap();
        played.away = true;
        played.watches.clear();
    }

    pub(crate) fn comes_back(&self) {
        self.0.lock().unwrap().away = false;
    }

    /// Stores an object, and tells the watches unless it is away. `what`: ADDED, MODIFIED or DELETED.
    fn say(&self, what: &str, path: &str, mut object: Value) {
        let mut played = self.0.lock().unwrap();
        played.revision += 1;
        object["metadata"]["resourceVersion"] = played.revision.to_string().into();
        let key = (path.to_owned(), object["metadata"]["name"].as_str().unwrap().to_owned());
        if what == "DELETED" {
            played.objects.remove(&key)
        } else {
            played.objects.insert(key, object.clone())
        };
        let line = format!("{}\n", json!({"type": what, "object": object}));
        played.watches.retain(|(watched, lines)| *watched != path || lines.send(Ok(line.clone())).is_ok());
    }

    fn answer(&self, request: &Request) -> Response {
        let mut played = self.0.lock().unwrap();
        if played.away {
            let status =
                json!({"kind": "Status", "status": "Failure", "code": 500, "message": "away", "reason": "Away"});
            return (StatusCode::INTERNAL_SERVER_ERROR, status.to_string()).into_response();
        }
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        if query.contains("watch=true") {
            // A watch from the past, such as one has after the API was away, is refused: a new list is to be made.
            let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap();
            if from.parse::<u64>().unwrap() < played.revision {
                let status =
                    json!({"kind": "Status", "status": "Failure", "code": 410, "message": "gone", "reason": "Expired"});
                return (StatusCode::GONE, status.to_string()).into_response();
            }
            let (sender, receiver) = mpsc::unbounded_channel();
            played.watches.push((path, sender));
            let stream = futures::stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|line| (line, receiver))
            });
            return Body::from_stream(stream).into_response();
        }
        let items: Vec<&Value> =
            played.objects.iter().filter(|((of, _), _)| *of == path).map(|(_, object)| object).collect();
        let metadata = json!({"resourceVersion": played.revision.to_string()});
        json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string().into_response()
    }
}

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

fn headless(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"clusterIP": "None"}})
}

fn slice(name: &str, service: &str, address: &str) -> Value {
    let labels = json!({"kubernetes.io/service-name": service});
    json!({"metadata": {"name": name, "namespace": "default", "labels": labels}, "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}]})
}

/// Waits until the name has this answer.
async fn becomes(zone: &SharedZone, asked: &str, expected: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let name = Name::from_ascii(asked).unwrap();
        let answer = zone.read().answer(&name, RecordType::A, &mut Random::new(1), 9).unwrap();
        let addresses: Vec<String> = answer.answers.iter().map(|record| record.data.to_string()).collect();
        let told = format!("{:?} {}", answer.outcome, addresses.join(" "));
        if told.trim() == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{asked}: {expected} was to come, there is {told}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The API may answer before the caller of [`SharedZone::of`] has its zone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_zone_is_followed_however_fast_the_api_answers() {
    let api = FakeApi::new();
    for _ in 0..300 {
        let zone = api.zone(&Arc::new(Metrics::new()));
        assert!(zone.synced_within(DEADLINE).await, "waits for {:?}", zone.read().waits_for());
    }
}

#[tokio::test]
async fn a_zone_follows_the_api_and_keeps_what_it_knew_while_that_is_away() {
    let api = FakeApi::new();
    api.say("ADDED", SERVICES, headless("db"));
    api.say("ADDED", SLICES, slice("db-a", "db", "10.0.0.1"));
    let zone = api.zone(&Arc::new(Metrics::new()));
    let db = "db.default.svc.cluster.local.";
    assert!(zone.synced_within(DEADLINE).await);
    becomes(&zone, db, "Found 10.0.0.1").await;
    api.say("MODIFIED", SLICES, slice("db-a", "db", "10.0.0.2"));
    becomes(&zone, db, "Found 10.0.0.2").await;
    assert_eq!(zone.trouble(), None);
    api.goes_away();
    // What happens meanwhile is seen afterwards: an object more, one less, one that changed.
    api.say("ADDED", SERVICES, headless("new"));
    api.say("ADDED", SLICES, slice("new-a", "new", "10.0.0.9"));
    api.say("MODIFIED", SLICES, slice("db-a", "db", "10.0.0.3"));
    let deadline = Instant::now() + DEADLINE;
    while zone.trouble().is_none() {
        assert!(Instant::now() < deadline, "nobody sees that the API is away");
        becomes(&zone, db, "Found 10.0.0.2").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    becomes(&zone, db, "Found 10.0.0.2").await;
    becomes(&zone, "new.default.svc.cluster.local.", "NoName").await;
    api.comes_back();
    becomes(&zone, db, "Found 10.0.0.3").await;
    becomes(&zone, "new.default.svc.cluster.local.", "Found 10.0.0.9").await;
    api.say("DELETED", SERVICES, headless("db"));
    becomes(&zone, db, "NoName").await;
}
