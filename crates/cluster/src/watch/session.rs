//! One kind's list and watch, again and again.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::AsyncBufReadExt;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::api::{ListParams, Request, WatchParams};
use kube::core::Status;
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::SILENCE;
use super::backoff::Backoff;
use super::trouble::{Troubles, told};

/// Objects in one page of a list: bounds what is in memory as text at once.
const PAGE: u32 = 500;
/// A page that takes longer is not coming.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The server ends a watch after so long; then the next one begins where it ended.
const WATCH_TIMEOUT_S: u32 = 280;
/// How long an API without an optional kind is left alone.
const OPTIONAL_AGAIN: Duration = Duration::from_secs(300);
/// A watch that ends sooner than this counts as a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that is refused so often is given up for a new list: the server may have lost its past.
const REFUSALS: u32 = 5;

/// The consumer is gone.
struct Gone;

/// How a list or a watch ended.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{}", told(.0))]
    Api(#[from] kube::Error),
    #[error("the list's text cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("the list has no resourceVersion")]
    NoRevision,
    #[error("no answer within {PAGE_TIMEOUT:?}")]
    NoAnswer,
    #[error("the server has forgotten this point: {0}")]
    Expired(String),
    #[error("the server's revision went back from {from} to {to}")]
    WentBack { from: u64, to: u64 },
    #[error("the server ended the watch at once")]
    EndedAtOnce,
    #[error("the server ended the watch with an error: {0}")]
    Status(String),
}

/// How a watch ended.
enum Ended {
    /// Goes on at the same point.
    Quietly,
    Badly(Trouble),
}

#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    items: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(bound = "K: serde::de::DeserializeOwned")]
struct TypedPage<K> {
    metadata: ListMeta,
    items: Option<Vec<K>>,
}

#[derive(Deserialize)]
struct WatchLine<K> {
    r#type: String,
    object: K,
}

/// An object whose JSON has the form of its kind, or what can be known of one that has not.
enum Read<K> {
    Object(K),
    Unreadable { metadata: Box<ObjectMeta>, reason: String },
}

/// What the API says of one kind, in order. `revision` is the resourceVersion up to which all is told; 0 while a list is under way.
#[derive(Debug)]
pub enum Told<K> {
    /// A list begins: whatever is not told between this and [`Told::Synced`] is gone.
    Reset,
    /// An object is there, or changed.
    Applied {
        /// As it is now.
        object: K,
        /// See above.
        revision: u64,
    },
    /// An object is there, but its JSON does not have the form of its kind.
    Unreadable {
        /// What names it.
        metadata: Box<ObjectMeta>,
        /// Why.
        reason: String,
        /// See above.
        revision: u64,
    },
    /// An object is gone.
    Deleted {
        /// What names it.
        metadata: Box<ObjectMeta>,
        /// See above.
        revision: u64,
    },
    /// The list is whole.
    Synced {
        /// See above. It may be lower than before: the server lost its past.
        revision: u64,
    },
    /// Nothing changed up to this revision.
    Bookmark {
        /// See above.
        revision: u64,
    },
}

/// What a session needs of a kind.
pub trait Kind: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static {}

impl<K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static> Kind for K {}

/// What one session watches, and how.
pub(super) struct Subject {
    /// As people write the kind.
    pub name: &'static str,
    /// A field selector.
    pub fields: Option<String>,
    /// Only those of this namespace.
    pub namespace: Option<&'static str>,
    /// An API without this kind, or that keeps it from us, is served all the same.
    pub optional: bool,
}

/// One kind.
pub(super) struct Session<K, O> {
    client: Client,
    sender: mpsc::Sender<O>,
    subject: Subject,
    backoff: Backoff,
    troubles: Arc<Troubles>,
    /// What the consumer gets to hear.
    translate: fn(Told<K>) -> Vec<O>,
}

impl<K: Kind, O: Send + 'static> Session<K, O> {
    pub(super) fn new(
        client: Client,
        sender: mpsc::Sender<O>,
        troubles: Arc<Troubles>,
        subject: Subject,
        translate: fn(Told<K>) -> Vec<O>,
    ) -> Session<K, O> {
        Session { client, sender, subject, backoff: Backoff::new(), troubles, translate }
    }

    /// Until the consumer is gone.
    pub(super) async fn run(mut self) {
        while let Ok(()) = self.list_and_watch().await {}
    }

    async fn list_and_watch(&mut self) -> Result<(), Gone> {
        let mut revision = loop {
            match self.list().await? {
                Ok(revision) => break revision,
                Err(trouble) if self.subject.optional && is_not_served(&trouble) => {
                    warn!(kind = self.subject.name, error = %trouble, "the API does not give this kind; going on without");
                    self.tell(Told::Reset).await?;
                    self.tell(Told::Synced { revision: 0 }).await?;
                    self.pause(OPTIONAL_AGAIN).await?;
                }
                Err(trouble) => self.wait_after(&trouble).await?,
            }
        };
        self.well();
        let mut refusals = 0;
        loop {
            let began = (Instant::now(), revision);
            let ended = self.follow(&mut revision).await?;
            if revision != began.1 {
                refusals = 0;
            }
            match ended {
                Ended::Quietly if began.0.elapsed() >= SHORT_WATCH || revision != began.1 => {}
                Ended::Quietly => self.wait_after(&Trouble::EndedAtOnce).await?,
                Ended::Badly(trouble @ (Trouble::Expired(_) | Trouble::WentBack { .. })) => {
                    info!(kind = self.subject.name, reason = %trouble, "listing anew");
                    return Ok(());
                }
                Ended::Badly(trouble) => {
                    refusals += u32::from(matches!(trouble, Trouble::Api(kube::Error::Api(_)) | Trouble::Status(_)));
                    self.wait_after(&trouble).await?;
                    if refusals >= REFUSALS {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Tells all objects there are. Gives the revision of the list.
    async fn list(&mut self) -> Result<Result<u64, Trouble>, Gone> {
        let mut token: Option<String> = None;
        loop {
            let page = match timeout(PAGE_TIMEOUT, self.page(token.clone())).await {
                Ok(Ok(page)) => page,
                Ok(Err(trouble)) => return Ok(Err(trouble)),
                Err(_) => return Ok(Err(Trouble::NoAnswer)),
            };
            let Some(revision) = page.0.resource_version.as_deref().and_then(|text| text.parse().ok()) else {
                return Ok(Err(Trouble::NoRevision));
            };
            if token.is_none() {
                self.tell(Told::Reset).await?;
            }
            for object in page.1 {
                self.tell_applied(object, 0).await?;
            }
            token = page.0.continue_.filter(|token| !token.is_empty());
            if token.is_none() {
                self.tell(Told::Synced { revision }).await?;
                return Ok(Ok(revision));
            }
        }
    }

    async fn page(&self, token: Option<String>) -> Result<(ListMeta, Vec<Read<K>>), Trouble> {
        let parameters = ListParams {
            limit: Some(PAGE),
            continue_token: token,
            field_selector: self.subject.fields.clone(),
            ..ListParams::default()
        };
        let request = Request::new(K::url_path(&(), self.subject.namespace))
            .list(&parameters)
            .map_err(kube::Error::BuildRequest)?;
        let text = self.client.request_text(request).await?;
        if let Ok(page) = serde_json::from_str::<TypedPage<K>>(&text) {
            return Ok((page.metadata, page.items.unwrap_or_default().into_iter().map(Read::Object).collect()));
        }
        // One object that is not of its kind's form must not cost us the others.
        let page: Page = serde_json::from_str(&text)?;
        Ok((page.metadata, page.items.unwrap_or_default().into_iter().map(read_value).collect()))
    }

    /// Tells what changes from `revision` on, and keeps it.
    async fn follow(&mut self, revision: &mut u64) -> Result<Ended, Gone> {
        let parameters = WatchParams {
            field_selector: self.subject.fields.clone(),
            timeout: Some(WATCH_TIMEOUT_S),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request =
            match Request::new(K::url_path(&(), self.subject.namespace)).watch(&parameters, &revision.to_string()) {
                Ok(request) => request,
                Err(source) => return Ok(Ended::Badly(kube::Error::BuildRequest(source).into())),
            };
        let opened = tokio::select! {
            opened = timeout(PAGE_TIMEOUT, self.client.request_stream(request)) => opened,
            () = self.sender.closed() => return Err(Gone),
        };
        let stream = match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Ok(Ended::Badly(expired_or(error))),
            Err(_) => return Ok(Ended::Badly(Trouble::NoAnswer)),
        };
        debug!(kind = self.subject.name, revision, "watching");
        let mut lines = pin!(stream.lines());
        // One that stays open is well, though there may be nothing to say for a minute.
        let mut stays = pin!(sleep(SHORT_WATCH));
        let mut is_well = false;
        loop {
            let line = tokio::select! {
                line = timeout(SILENCE, lines.next()) => line,
                () = &mut stays, if !is_well => {
                    is_well = true;
                    self.well();
                    continue;
                }
                () = self.sender.closed() => return Err(Gone),
            };
            match line {
                Ok(Some(Ok(line))) if line.is_empty() => {}
                Ok(Some(Ok(line))) => {
                    if let Err(trouble) = self.tell_line(&line, revision).await? {
                        return Ok(Ended::Badly(trouble));
                    }
                    self.well();
                }
                Ok(Some(Err(source))) => return Ok(Ended::Badly(kube::Error::ReadEvents(source).into())),
                Ok(None) | Err(_) => return Ok(Ended::Quietly),
            }
        }
    }

    async fn tell_line(&mut self, line: &str, revision: &mut u64) -> Result<Result<(), Trouble>, Gone> {
        let (what, object) = match read_line::<K>(line) {
            Ok(read) => read,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let metadata = match &object {
            Read::Object(object) => object.meta(),
            Read::Unreadable { metadata, .. } => metadata,
        };
        let Some(to) = metadata.resource_version.as_deref().and_then(|text| text.parse::<u64>().ok()) else {
            return Ok(Err(Trouble::NoRevision));
        };
        if to < *revision {
            return Ok(Err(Trouble::WentBack { from: *revision, to }));
        }
        match what {
            Change::Applied => self.tell_applied(object, to).await?,
            Change::Deleted => {
                let metadata = Box::new(metadata.clone());
                self.tell(Told::Deleted { metadata, revision: to }).await?;
            }
            Change::Bookmark => self.tell(Told::Bookmark { revision: to }).await?,
        }
        *revision = to;
        Ok(Ok(()))
    }

    async fn tell_applied(&mut self, object: Read<K>, revision: u64) -> Result<(), Gone> {
        self.tell(match object {
            Read::Object(object) => Told::Applied { object, revision },
            Read::Unreadable { metadata, reason } => Told::Unreadable { metadata, reason, revision },
        })
        .await
    }

    async fn tell(&self, told: Told<K>) -> Result<(), Gone> {
        for observed in (self.translate)(told) {
            self.sender.send(observed).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Says what is wrong, once, and waits.
    async fn wait_after(&mut self, trouble: &Trouble) -> Result<(), Gone> {
        let wait = self.backoff.next();
        self.troubles.begins(self.subject.name, trouble.to_string(), wait.as_millis() as u64);
        self.pause(wait).await
    }

    fn well(&mut self) {
        self.troubles.ends(self.subject.name);
        self.backoff.reset();
    }

    async fn pause(&self, wait: Duration) -> Result<(), Gone> {
        tokio::select! {
            () = sleep(wait) => Ok(()),
            () = self.sender.closed() => Err(Gone),
        }
    }
}

enum Change {
    Applied,
    Deleted,
    Bookmark,
}

fn read_line<K: Kind>(line: &str) -> Result<(Change, Read<K>), Trouble> {
    if let Ok(typed) = serde_json::from_str::<WatchLine<K>>(line) {
        match typed.r#type.as_str() {
            "ADDED" | "MODIFIED" => return Ok((Change::Applied, Read::Object(typed.object))),
            "DELETED" => return Ok((Change::Deleted, Read::Object(typed.object))),
            "BOOKMARK" => return Ok((Change::Bookmark, Read::Object(typed.object))),
            _ => {}
        }
    }
    let raw: WatchLine<Value> = serde_json::from_str(line)?;
    let change = match raw.r#type.as_str() {
        "ADDED" | "MODIFIED" => Change::Applied,
        "DELETED" => Change::Deleted,
        "BOOKMARK" => Change::Bookmark,
        _ => {
            let status: Status = serde_json::from_value(raw.object)?;
            return Err(expired_or(kube::Error::Api(status.boxed())));
        }
    };
    Ok((change, read_value(raw.object)))
}

fn read_value<K: Kind>(value: Value) -> Read<K> {
    let metadata = value.get("metadata").cloned().unwrap_or_default();
    match serde_json::from_value(value) {
        Ok(object) => Read::Object(object),
        Err(error) => Read::Unreadable { metadata: Box::new(read_metadata(&metadata)), reason: error.to_string() },
    }
}

/// What names the object, though the rest of its metadata may be what cannot be read.
fn read_metadata(metadata: &Value) -> ObjectMeta {
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).map(str::to_owned);
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

fn expired_or(error: kube::Error) -> Trouble {
    match error {
        kube::Error::Api(status) if status.code == 410 => Trouble::Expired(status.message),
        kube::Error::Api(status) if status.status.is_none() && status.code == 0 => Trouble::Status(status.message),
        other => Trouble::Api(other),
    }
}

fn is_not_served(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Api(kube::Error::Api(status)) if matches!(status.code, 403 | 404))
}
