//! The feed against an API that the test plays, answer by answer.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::ControllerOptions;

struct Asked {
    query: String,
    answer: oneshot::Sender<Response>,
}

impl Asked {
    fn watches_from(&self) -> Option<&str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        self.query
            .contains("watch=true")
            .then(|| pairs.find(|(key, _)| *key == "resourceVersion").map_or("", |(_, value)| value))
    }

    fn say(self, status: u16, body: &Value) {
        let status = StatusCode::from_u16(status).expect("a status");
        self.answer.send((status, body.to_string()).into_response()).expect("the feed waits");
    }

    fn list(self, revision: u64, next: Option<&str>, nodes: &[(&str, u64)]) {
        assert!(self.watches_from().is_none(), "a list is wanted: {}", self.query);
        let items: Vec<Value> = nodes.iter().map(|(name, revision)| node(name, *revision)).collect();
        let metadata = json!({"resourceVersion": revision.to_string(), "continue": next});
        self.say(200, &json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items}));
    }

    fn fail(self, code: u16) {
        self.say(code, &json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "No"}));
    }

    /// Events, and then the end of the watch.
    fn events(self, events: &[(&str, Value)]) {
        let lines: String =
            events.iter().map(|(kind, object)| format!("{}\n", json!({"type": kind, "object": object}))).collect();
        self.answer.send(Body::from(lines).into_response()).expect("the feed waits");
    }
}

fn node(name: &str, revision: u64) -> Value {
    json!({"kind": "Node", "apiVersion": "v1",
        "metadata": {"name": name, "uid": name, "resourceVersion": revision.to_string()}})
}

struct Play {
    asked: mpsc::UnboundedReceiver<Asked>,
    context: Arc<Context>,
    feed: JoinHandle<()>,
}

impl Drop for Play {
    fn drop(&mut self) {
        self.feed.abort();
    }
}

impl Play {
    fn start() -> Play {
        let (sender, asked) = mpsc::unbounded_channel();
        let router = Router::new().fallback(move |request: Request| {
            let (answer, answered) = oneshot::channel();
            let query = request.uri().query().unwrap_or_default().to_owned();
            sender.send(Asked { query, answer }).expect("the test listens");
            async { answered.await.unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response()) }
        });
        let (context, _notes) = Context::new(kube::Client::new(router, "default"), ControllerOptions::default());
        let context = Arc::new(context);
        let feed = tokio::spawn(feed::<Node>(context.clone()));
        Play { asked, context, feed }
    }

    async fn asked(&mut self) -> Asked {
        tokio::time::timeout(Duration::from_secs(60), self.asked.recv()).await.expect("in time").expect("a request")
    }

    fn nodes(&self) -> Vec<String> {
        self.context.world.nodes.all().iter().map(|node| node.metadata.name.clone().unwrap_or_default()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_comes_in_pages_and_the_watch_goes_on_from_it() {
    let mut play = Play::start();
    play.asked().await.list(5, Some("more"), &[("a", 1)]);
    let second = play.asked().await;
    assert!(second.query.contains("continue=more"), "{}", second.query);
    second.list(5, None, &[("b", 2)]);
    let watch = play.asked().await;
    assert_eq!(watch.watches_from(), Some("5"));
    assert_eq!((play.nodes(), play.context.world.nodes.seen()), (vec!["a".to_owned(), "b".to_owned()], Some(5)));
    watch.events(&[
        ("ADDED", node("c", 6)),
        ("DELETED", node("a", 7)),
        ("BOOKMARK", json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}})),
    ]);
    let again = play.asked().await;
    assert_eq!(again.watches_from(), Some("9"), "a watch that ends is no reason for a list");
    assert_eq!((play.nodes(), play.context.world.nodes.seen()), (vec!["b".to_owned(), "c".to_owned()], Some(9)));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_too_old_leads_to_a_new_list_that_tells_what_was_missed() {
    for late in [false, true] {
        let mut play = Play::start();
        play.asked().await.list(5, None, &[("a", 1), ("b", 2)]);
        let watch = play.asked().await;
        if late {
            let gone =
                json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old", "reason": "Expired"});
            watch.events(&[("ADDED", node("c", 6)), ("ERROR", gone)]);
        } else {
            watch.fail(410);
        }
        play.asked().await.list(50, None, &[("b", 40), ("d", 41)]);
        assert_eq!(play.asked().await.watches_from(), Some("50"));
        assert_eq!(play.nodes(), ["b", "d"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_that_fails_is_asked_again_and_what_is_known_stays() {
    let mut play = Play::start();
    play.asked().await.fail(500);
    play.asked().await.list(5, None, &[("a", 1)]);
    play.asked().await.fail(503);
    play.asked().await.fail(500);
    assert_eq!(play.nodes(), ["a"]);
    play.asked().await.list(8, None, &[("a", 1), ("b", 7)]);
    let watch = play.asked().await;
    assert_eq!(play.nodes(), ["a", "b"]);
    watch.events(&[("ADDED", json!({"kind": "Node", "metadata": 7}))]);
    play.asked().await.list(9, None, &[("b", 7)]);
    assert_eq!(play.asked().await.watches_from(), Some("9"));
    assert_eq!(play.nodes(), ["b"], "an event that can't be read is made good by a list");
}

#[tokio::test(start_paused = true)]
async fn watches_that_never_work_are_tried_less_and_less_often() {
    let mut play = Play::start();
    let start = tokio::time::Instant::now();
    for revision in 0..12 {
        play.asked().await.list(revision, None, &[]);
        play.asked().await.fail(403);
    }
    assert!(start.elapsed() > Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_api_does_not_have_counts_as_empty() {
    let mut play = Play::start();
    play.asked().await.fail(404);
    play.asked().await;
    assert_eq!(play.context.world.nodes.seen(), Some(0));
}
