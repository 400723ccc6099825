//! Pods as the API tells of them, with the revision up to which everything was told: a list, then a watch, again from
//! the list when the watch is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};

/// What is told.
pub enum News {
    /// A pod as it is now.
    Applied(Arc<Pod>),
    /// A pod's UID: it is gone.
    Gone(String),
    /// All up to here was told.
    Seen(u64),
}

/// Tells of all pods for ever.
pub async fn follow(client: Client, mut tell: impl FnMut(News)) {
    let api: Api<Pod> = Api::all(client);
    let mut known = BTreeMap::new();
    loop {
        if let Err(error) = once(&api, &mut known, &mut tell).await {
            tracing::debug!(%error, "the watch of pods begins anew");
            tokio::time::sleep(Duration::from_millis(50)).await; // an API that refuses shall not be flooded
        }
    }
}

async fn once(api: &Api<Pod>, known: &mut BTreeMap<String, ()>, tell: &mut impl FnMut(News)) -> kube::Result<()> {
    let list = api.list(&ListParams::default()).await?;
    let mut listed = BTreeMap::new();
    for pod in list.items {
        if let Some(uid) = pod.metadata.uid.clone() {
            listed.insert(uid, ());
            tell(News::Applied(Arc::new(pod)));
        }
    }
    for uid in known.keys().filter(|uid| !listed.contains_key(*uid)) {
        tell(News::Gone(uid.clone()));
    }
    *known = listed;
    let mut revision = list.metadata.resource_version.unwrap_or_default();
    seen(&revision, tell);
    loop {
        let params = WatchParams::default();
        let mut stream = api.watch(&params, &revision).await?.boxed();
        while let Some(event) = stream.try_next().await? {
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    revision = pod.metadata.resource_version.clone().unwrap_or(revision);
                    if let Some(uid) = pod.metadata.uid.clone() {
                        known.insert(uid, ());
                        tell(News::Applied(Arc::new(pod)));
                    }
                }
                WatchEvent::Deleted(pod) => {
                    revision = pod.metadata.resource_version.clone().unwrap_or(revision);
                    if let Some(uid) = pod.metadata.uid {
                        known.remove(&uid);
                        tell(News::Gone(uid));
                    }
                }
                WatchEvent::Bookmark(bookmark) => revision = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
            seen(&revision, tell);
        }
    }
}

fn seen(revision: &str, tell: &mut impl FnMut(News)) {
    if let Ok(revision) = revision.parse() {
        tell(News::Seen(revision));
    }
}
