//! What is not well on this node, told before it hurts: the doctor looks again and again, its findings are a metric and, when they
//! come and go, lines of the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

pub use crate::look::{Found, Look};
use crate::metrics::Metrics;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(15);

/// Looks for ever.
pub async fn follow(look: Look, node: Arc<str>, metrics: Arc<Metrics>) {
    let mut known: BTreeMap<&'static str, u64> = BTreeMap::new();
    loop {
        let name = node.clone();
        match tokio::task::spawn_blocking(move || look(&name)).await {
            Ok(found) => known = told(known, &found, &metrics),
            Err(error) => warn!(%error, "the doctor could not look at this node"),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Tells what is new and what is gone; what is known now.
fn told(known: BTreeMap<&'static str, u64>, found: &[Found], metrics: &Metrics) -> BTreeMap<&'static str, u64> {
    let mut now: BTreeMap<&'static str, u64> = BTreeMap::new();
    for one in found {
        *now.entry(one.code).or_default() += 1;
        if !known.contains_key(one.code) {
            warn!(code = one.code, cause = one.cause, "the doctor finds something on this node");
        }
    }
    for code in known.keys().filter(|code| !now.contains_key(*code)) {
        info!(code, "what the doctor found on this node is gone");
    }
    metrics.findings(now.clone());
    now
}
