//! The watch against an API that the test plays, answer by answer.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);
const SERVICES: &str = "/api/v1/services";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

struct Asked {
    path: String,
    query: HashMap<String, String>,
    answer: oneshot::Sender<Response>,
}

impl Asked {
    fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    fn list(self, revision: u64, next: Option<&str>, items: Value) {
        let metadata = json!({"resourceVersion": revision.to_string(), "continue": next});
        self.json(
            StatusCode::OK,
            json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": items}),
        );
    }

    fn json(self, status: StatusCode, body: Value) {
        let _ = self.answer.send((status, body.to_string()).into_response());
    }

    fn fails(self, code: u16) {
        let status = StatusCode::from_u16(code).unwrap();
        self.json(
            status,
            json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "No"}),
        );
    }

    /// A watch that stays open as long as what comes back is kept.
    fn open(self) -> Lines {
        let (sender, receiver) = mpsc::unbounded_channel::<Result<String, std::io::Error>>();
        let stream = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|line| (line, receiver))
        });
        let _ = self.answer.send(Body::from_stream(stream).into_response());
        Lines(sender)
    }
}

struct Lines(mpsc::UnboundedSender<Result<String, std::io::Error>>);

impl Lines {
    fn say(&self, what: &str, object: Value) {
        self.0.send(Ok(format!("{}\n", json!({"type": what, "object": object})))).unwrap();
    }

    fn breaks(self) {
        self.0.send(Ok("{\"type\":\"ADD".to_owned())).unwrap();
        self.0.send(Err(std::io::Error::other("cut"))).unwrap();
    }
}

/// Both sides: the stream under test, and the API behind it.
struct World {
    asked: mpsc::UnboundedReceiver<Asked>,
    observed: Box<dyn Stream<Item = Observed> + Send + Unpin>,
    /// Watches of the kinds that this test does not look at stay open.
    open: Vec<Lines>,
    looked_at: &'static str,
}

impl World {
    fn new(looked_at: &'static str) -> World {
        let (sender, asked) = mpsc::unbounded_channel();
        let router = Router::new().fallback(move |request: Request| {
            let (answer, answered) = oneshot::channel();
            let query = request.uri().query().unwrap_or_default();
            let query = query.split('&').filter_map(|pair| pair.split_once('='));
            let query = query.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let _ = sender.send(Asked { path: request.uri().path().to_owned(), query, answer });
            async { answered.await.unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response()) }
        });
        let client = Client::new(router, "default");
        let observed = Box::new(watch(client, "https://n1:6443/", &NodeScope::Own("n1".into())));
        World { asked, observed, open: Vec::new(), looked_at }
    }

    /// The next request for the kind that the test looks at. The others get empty lists.
    async fn asked(&mut self) -> Asked {
        loop {
            let asked = timeout(DEADLINE, self.asked.recv()).await.expect("a request in time").unwrap();
            if asked.path == self.looked_at {
                return asked;
            }
            if asked.is_watch() {
                self.open.push(asked.open());
            } else {
                asked.list(1, None, json!([]));
            }
        }
    }

    async fn lists(&mut self, revision: u64, items: Value) {
        let asked = self.asked().await;
        assert!(!asked.is_watch(), "a list was expected: {:?}", asked.query);
        asked.list(revision, None, items);
    }

    async fn watches(&mut self, from: u64) -> Lines {
        let asked = self.asked().await;
        assert!(asked.is_watch(), "a watch was expected: {:?}", asked.query);
        assert_eq!(asked.query["resourceVersion"], from.to_string());
        asked.open()
    }

    /// What comes next of the kind that the test looks at, in short.
    async fn says(&mut self) -> String {
        let kind = if self.looked_at == SERVICES { Kind::Service } else { Kind::ServiceCidr };
        loop {
            let observed = timeout(DEADLINE, self.observed.next()).await.expect("an observation in time").unwrap();
            match observed {
                Observed::Event { event, kind: of, revision, .. } if of == kind => {
                    return match event {
                        Event::Reset(_) => "reset".to_owned(),
                        Event::Synced(_) => format!("synced {revision}"),
                        Event::ServiceApplied(service) => format!("+{} {revision}", service.name.name),
                        Event::ServiceDeleted(name) => format!("-{} {revision}", name.name),
                        other => format!("{other:?}"),
                    };
                }
                Observed::Bookmark { kind: of, revision } if of == kind => return format!("bookmark {revision}"),
                Observed::Malformed(malformed) => return format!("{}: {}", malformed.object, malformed.problems[0]),
                _ => {}
            }
        }
    }

    async fn expect(&mut self, all: &[&str]) {
        for expected in all {
            assert_eq!(self.says().await, *expected);
        }
    }

    async fn says_nothing(&mut self) {
        let said = timeout(Duration::from_millis(300), self.says()).await;
        assert!(said.is_err(), "nothing was to be said, but: {said:?}");
    }
}

fn service(name: &str, revision: u64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "resourceVersion": revision.to_string()},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
    })
}

#[tokio::test]
async fn a_list_comes_in_pages_and_the_watch_begins_where_it_ended() {
    let mut world = World::new(SERVICES);
    let first = world.asked().await;
    assert_eq!(first.query["limit"], "500");
    first.list(9, Some("more"), json!([service("a", 3)]));
    let second = world.asked().await;
    assert_eq!(second.query["continue"], "more");
    second.list(9, None, json!([service("b", 4)]));
    let lines = world.watches(9).await;
    world.expect(&["reset", "+a 0", "+b 0", "synced 9"]).await;
    lines.say("ADDED", service("c", 10));
    lines.say("MODIFIED", service("a", 11));
    lines.say("DELETED", service("b", 12));
    lines.say("BOOKMARK", json!({"kind": "Service", "apiVersion": "v1", "metadata": {"resourceVersion": "20"}}));
    world.expect(&["+c 10", "+a 11", "-b 12", "bookmark 20"]).await;
}

#[tokio::test]
async fn a_watch_that_ends_or_breaks_goes_on_where_it_was_and_says_nothing() {
    let mut world = World::new(SERVICES);
    world.lists(5, json!([service("a", 3)])).await;
    let lines = world.watches(5).await;
    lines.say("MODIFIED", service("a", 6));
    world.expect(&["reset", "+a 0", "synced 5", "+a 6"]).await;
    lines.breaks();
    let lines = world.watches(6).await;
    lines.say("MODIFIED", service("a", 7));
    world.expect(&["+a 7"]).await;
    drop(lines);
    for _ in 0..3 {
        world.asked().await.fails(503);
    }
    let lines = world.watches(7).await;
    world.says_nothing().await;
    lines.say("MODIFIED", service("a", 8));
    world.expect(&["+a 8"]).await;
}

#[tokio::test]
async fn a_point_that_the_server_forgot_leads_to_a_new_list() {
    let mut world = World::new(SERVICES);
    world.lists(5, json!([service("a", 3)])).await;
    let lines = world.watches(5).await;
    world.expect(&["reset", "+a 0", "synced 5"]).await;
    lines.say(
        "ERROR",
        json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old", "reason": "Expired"}),
    );
    world.lists(50, json!([service("b", 44)])).await;
    world.expect(&["reset", "+b 0", "synced 50"]).await;
    world.watches(50).await.say("MODIFIED", service("b", 51));
    world.expect(&["+b 51"]).await;
    world.asked().await.fails(410);
    world.lists(60, json!([])).await;
    world.expect(&["reset", "synced 60"]).await;
}

#[tokio::test]
async fn a_server_that_lost_its_past_is_listed_anew() {
    let mut world = World::new(SERVICES);
    world.lists(500, json!([])).await;
    let lines = world.watches(500).await;
    world.expect(&["reset", "synced 500"]).await;
    lines.say("ADDED", service("young", 4));
    world.lists(4, json!([service("young", 4)])).await;
    world.expect(&["reset", "+young 0", "synced 4"]).await;
}

#[tokio::test]
async fn a_list_that_breaks_off_is_begun_again() {
    let mut world = World::new(SERVICES);
    world.asked().await.list(9, Some("more"), json!([service("a", 3)]));
    world.asked().await.fails(500);
    world.asked().await.list(10, None, json!([service("b", 4)]));
    world.expect(&["reset", "+a 0", "reset", "+b 0", "synced 10"]).await;
}

#[tokio::test]
async fn objects_that_cannot_be_read_cost_only_themselves() {
    let mut world = World::new(SERVICES);
    let mut bad = service("bad", 3);
    bad["spec"]["ports"] = json!("eighty");
    world.lists(5, json!([service("a", 3), bad, service("b", 3)])).await;
    let lines = world.watches(5).await;
    world.expect(&["reset", "+a 0"]).await;
    let said = world.says().await;
    assert!(said.starts_with("Service default/bad: object: cannot be read: "), "{said}");
    world.expect(&["-bad 0", "+b 0", "synced 5"]).await;
    let mut worse = service("a", 6);
    worse["metadata"]["labels"] = json!(7);
    lines.say("MODIFIED", worse);
    let said = world.says().await;
    assert!(said.starts_with("Service default/a: object: cannot be read: "), "{said}");
    world.expect(&["-a 6"]).await;
    lines.say("MODIFIED", service("a", 7));
    world.expect(&["+a 7"]).await;
}

#[tokio::test]
async fn what_is_no_longer_ours_is_gone() {
    let mut world = World::new(SERVICES);
    world.lists(5, json!([service("a", 3)])).await;
    let lines = world.watches(5).await;
    let mut headless = service("a", 6);
    headless["spec"]["clusterIP"] = json!("None");
    lines.say("MODIFIED", headless);
    world.expect(&["reset", "+a 0", "synced 5", "-a 6"]).await;
}

#[tokio::test]
async fn an_api_without_service_cidrs_is_served_all_the_same() {
    for code in [404, 403] {
        let mut world = World::new(CIDRS);
        world.asked().await.fails(code);
        world.expect(&["reset", "synced 0"]).await;
    }
}

#[tokio::test]
async fn the_own_node_alone_is_asked_for_and_everything_ends_with_the_stream() {
    let mut world = World::new("/api/v1/nodes");
    assert_eq!(world.asked().await.query["fieldSelector"], "metadata.name%3Dn1");
    let World { mut asked, observed, open, .. } = world;
    drop((observed, open));
    let end = async { while asked.recv().await.is_some() {} };
    timeout(DEADLINE, end).await.expect("the tasks and their client are gone");
}
