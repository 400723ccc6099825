//! Keeps one cache like the API: a list, then the watch from there, and a list again when the API can't go on (410).
//!
//! ```text
//! list ──▶ replace ─┐
//! watch ──▶ apply ──┴─▶ cache ──▶ route (queues) ──▶ seen = revision
//! ```
//!
//! Written on list and watch themselves and not on `kube::runtime::watcher`, because that keeps the revisions of lists
//! and bookmarks to itself, and [`crate::progress`] needs them.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};

use crate::cache::revision_of;
use crate::context::{Context, Watched};

/// Objects per page of a list.
const PAGE: u32 = 500;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why a watch ended.
enum End {
    /// The API closed it, as it does from time to time: watch on from the last revision.
    Closed,
    /// It can't go on from there: list again. `None`: 410.
    Lost(Option<kube::Error>),
}

/// Feeds the cache of `K` for ever.
pub async fn feed<K: Watched>(context: Arc<Context>) {
    let api: Api<K> = Api::all(context.client.clone());
    let mut pause = FIRST_PAUSE;
    loop {
        let ended = follow(&context, &api, &mut pause).await;
        let is_first = pause == FIRST_PAUSE;
        match ended {
            None => tracing::debug!(kind = %K::kind(&()), "the watch was too old, listing again"),
            Some(error) if is_not_served(&error) => {
                // A kind that this API does not have has no objects.
                told::<K>(&context, 0);
                pause = LONGEST_PAUSE;
            }
            // Once in a row of failures: what lasts would fill the log.
            Some(error) if is_first => tracing::warn!(kind = %K::kind(&()), %error, "lost the API, listing again"),
            Some(error) => tracing::debug!(kind = %K::kind(&()), %error, "still without the API, listing again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A list, and watches from there until one can't go on. `None`: 410. A watch that works makes the pause short again.
async fn follow<K: Watched>(context: &Context, api: &Api<K>, pause: &mut Duration) -> Option<kube::Error> {
    let mut revision = match list(context, api).await {
        Ok(revision) => revision,
        Err(error) => return Some(error),
    };
    loop {
        let before = revision;
        let end = watch(context, api, &mut revision).await;
        if revision > before {
            *pause = FIRST_PAUSE;
        }
        match end {
            End::Closed => tokio::time::sleep(FIRST_PAUSE).await,
            End::Lost(error) => return error,
        }
    }
}

fn is_not_served(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Everything up to `revision` is in the cache and named to the queues.
fn told<K: Watched>(context: &Context, revision: u64) {
    K::cache(&context.world).set_seen(revision);
    context.busy.tell();
}

async fn list<K: Watched>(context: &Context, api: &Api<K>) -> Result<u64, kube::Error> {
    let mut params = ListParams::default().limit(PAGE);
    let mut objects = Vec::new();
    let revision = loop {
        let mut page = api.list(&params).await?;
        objects.append(&mut page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(PAGE).continue_token(&token),
            None => break page.metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or_default(),
        }
    };
    for change in K::cache(&context.world).replace(objects, revision) {
        K::route(context, &change);
    }
    told::<K>(context, revision);
    Ok(revision)
}

/// Follows the watch; `revision` is the last one told.
async fn watch<K: Watched>(context: &Context, api: &Api<K>, revision: &mut u64) -> End {
    let params = WatchParams::default();
    let stream = match api.watch(&params, &revision.to_string()).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) if status.code == 410 => return End::Lost(None),
        Err(error) => return End::Lost(Some(error)),
    };
    pin_mut!(stream);
    let cache = K::cache(&context.world);
    while let Some(event) = stream.next().await {
        let (told_revision, change) = match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (revision_of(&object), cache.apply(object)),
            Ok(WatchEvent::Deleted(object)) => (revision_of(&object), cache.remove(&object)),
            Ok(WatchEvent::Bookmark(mark)) => (mark.metadata.resource_version.parse().unwrap_or_default(), None),
            Ok(WatchEvent::Error(status)) if status.code == 410 => return End::Lost(None),
            Ok(WatchEvent::Error(status)) => return End::Lost(Some(kube::Error::Api(status))),
            Err(error) => return End::Lost(Some(error)),
        };
        if let Some(change) = change {
            K::route(context, &change);
        }
        *revision = told_revision.max(*revision);
        told::<K>(context, *revision);
    }
    End::Closed
}

#[cfg(test)]
mod tests;
