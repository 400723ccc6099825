//! GET with `watch=true`: a stream of events, one JSON object a line.
//!
//! A client that allows bookmarks gets one whenever everything was given out and the last changes were none of its
//! choice, so that it always knows how far it is; and one a minute.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::Call;
use super::read::{Filter, chosen};
use crate::error::ApiError;
use crate::object;
use crate::registry::KindInfo;
use crate::request::Shape;
use crate::respond::{Look, shown};
use crate::state::ServerState;
use crate::store::{Change, Object, Watch};

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);

struct Stream {
    server: Arc<ServerState>,
    kind: &'static KindInfo,
    look: Look,
    /// A table said what its columns are.
    described: bool,
    filter: Filter,
    watch: Watch,
    waiting: VecDeque<Bytes>,
    bookmarks: bool,
    /// The revision that the client knows to be complete.
    told: u64,
    next_bookmark: Instant,
    end: Instant,
    over: bool,
}

pub(super) fn watch(server: &Arc<ServerState>, call: &Call) -> Result<Response, ApiError> {
    let filter = Filter::of(call)?;
    let initial = call.query.flag("sendInitialEvents");
    check_initial(call, initial)?;
    let asked: Option<u64> = match call.query.get("resourceVersion") {
        None | Some("0") => None,
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: a number is needed"))
        })?),
    };
    let (objects, after) = match asked {
        Some(revision) if !initial => (Vec::new(), revision),
        _ => chosen(server, call)?,
    };
    // An old client's `sendInitialEvents=false` without a revision wants no objects, only what comes.
    let objects = if call.query.get("sendInitialEvents").is_some() && !initial { Vec::new() } else { objects };
    let timeout = call.query.number::<u64>("timeoutSeconds")?.map_or(LONGEST, Duration::from_secs).min(LONGEST);
    let now = Instant::now();
    let mut stream = Stream {
        server: server.clone(),
        kind: call.place.kind,
        look: call.look(),
        described: false,
        filter,
        watch: server.store.watch(call.place.kind, after),
        waiting: VecDeque::new(),
        bookmarks: call.query.flag("allowWatchBookmarks"),
        told: after,
        next_bookmark: now + BOOKMARK_EVERY,
        end: now + timeout,
        over: false,
    };
    stream.begin(&objects, initial.then_some(after));
    let events = futures::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), stream))
    });
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn check_initial(call: &Call, initial: bool) -> Result<(), ApiError> {
    let matching = call.query.get("resourceVersionMatch");
    let forbidden = |field: &str, detail: &str| {
        let kind = call.place.kind;
        Err(ApiError::bad_request(format!(
            "ListOptions.meta.k8s.io \"\" is invalid: {field}: Forbidden: {detail} ({})",
            kind.kind
        )))
    };
    match (initial, matching) {
        (true, Some("NotOlderThan")) | (false, None) => Ok(()),
        (true, _) => {
            forbidden("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        }
        (false, Some(_)) if call.query.get("sendInitialEvents").is_some() => Ok(()),
        (false, Some(_)) => forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    }
}

impl Stream {
    fn begin(&mut self, objects: &[Arc<Object>], initial_end: Option<u64>) {
        for object in objects {
            let line = self.line("ADDED", &object.value);
            self.waiting.push_back(line);
        }
        if let Some(revision) = initial_end
            && self.bookmarks
        {
            let line = self.bookmark(revision, true);
            self.waiting.push_back(line);
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            let wake = self.end.min(if self.bookmarks { self.next_bookmark } else { self.end });
            tokio::select! {
                biased;
                () = self.server.closing.cancelled() => self.over = true,
                changes = self.watch.next() => match changes {
                    Ok(changes) => self.take(&changes),
                    Err(gone) => {
                        let error = ApiError::Expired { message: gone.to_string() };
                        self.waiting.push_back(event("ERROR", &error.status()));
                        self.over = true;
                    }
                },
                () = sleep_until(wake) => self.tick(),
            }
        }
    }

    fn take(&mut self, changes: &[Arc<Change>]) {
        for change in changes {
            if let Some(line) = self.changed(change) {
                self.waiting.push_back(line);
                self.told = change.revision;
            }
        }
        let unseen = changes.last().is_some_and(|last| last.revision > self.told);
        if self.bookmarks
            && unseen
            && let Some(revision) = self.watch.caught_up()
        {
            self.push_bookmark(revision);
        }
    }

    /// What one change is for this client: an object can also come into or leave its choice.
    fn changed(&mut self, change: &Change) -> Option<Bytes> {
        let was = change.before.as_ref().is_some_and(|before| self.filter.matches(&before.value));
        let is = !change.deleted && self.filter.matches(&change.object.value);
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(self.line("ADDED", &change.object.value)),
            (true, true) => Some(self.line("MODIFIED", &change.object.value)),
            (true, false) => Some(self.line("DELETED", &last_state(change))),
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.over = now >= self.end;
        if self.bookmarks
            && let Some(revision) = self.watch.caught_up()
        {
            self.push_bookmark(revision);
        }
        self.next_bookmark = now + BOOKMARK_EVERY;
    }

    fn push_bookmark(&mut self, revision: u64) {
        let line = self.bookmark(revision, false);
        self.waiting.push_back(line);
        self.told = revision;
    }

    fn bookmark(&self, revision: u64, initial_end: bool) -> Bytes {
        let mut object = json!({
            "kind": self.kind.kind, "apiVersion": self.kind.api_version(),
            "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut shown = shown(self.kind, &object, self.look, false);
        if self.look.shape == Shape::Table {
            // A bookmark is no row.
            shown["rows"] = json!([]);
        }
        event("BOOKMARK", &shown)
    }

    fn line(&mut self, kind_of_event: &str, value: &Value) -> Bytes {
        let described = !std::mem::replace(&mut self.described, true);
        event(kind_of_event, &shown(self.kind, value, self.look, described))
    }
}

/// What leaves a choice shows its last state in it, with the revision of the change that took it out.
fn last_state(change: &Change) -> Value {
    if change.deleted {
        return change.object.value.clone();
    }
    let mut value = change.before.as_ref().map_or_else(|| change.object.value.clone(), |before| before.value.clone());
    object::metadata(&mut value).insert("resourceVersion".to_owned(), change.revision.to_string().into());
    value
}

fn event(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}
