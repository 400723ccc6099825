//! One of several replicas leads: a Lease says which, as client-go's leader election has it.
//!
//! ```text
//! Lease ──▶ judge (pure) ──▶ create, take over, renew, wait
//! ```
//!
//! Clocks of machines differ: that a leader is gone is not read from the times in the Lease, but from its not having changed
//! for as long as it says itself, by this process' own clock.

use std::future::Future;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};

/// Whoever did not renew for so long leads no more.
const DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for so long gives up: before another takes over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks.
const RETRY: Duration = Duration::from_secs(2);
/// A write that takes longer is no renewal.
const CALL: Duration = Duration::from_secs(5);

/// Who leads what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub lease: String,
    /// This replica: a name that no other has.
    pub identity: String,
}

/// Why leading ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The Lease could not be renewed in time, or another replica has it.
    #[error("the Lease {namespace}/{lease} is lost: another replica may lead now")]
    Lost {
        /// Its namespace.
        namespace: String,
        /// Its name.
        lease: String,
    },
    /// The work ended by itself.
    #[error("the work of the leader ended by itself")]
    Ended,
}

/// Waits to lead, then does `work` until `shutdown` is done; then the Lease is given back.
///
/// # Errors
/// See [`LeadError`]; the work was dropped, as another replica may be at it.
pub async fn lead(
    client: &Client,
    candidate: &Candidate,
    shutdown: impl Future<Output = ()>,
    work: impl Future<Output = ()>,
) -> Result<(), LeadError> {
    tokio::pin!(shutdown);
    let api: Api<Lease> = Api::namespaced(client.clone(), &candidate.namespace);
    let mut election = Election::new(candidate);
    tokio::select! {
        () = election.win(&api) => {}
        () = &mut shutdown => return Ok(()),
    }
    tracing::info!(identity = candidate.identity, lease = candidate.lease, "this replica leads");
    let asked = tokio::select! {
        () = shutdown => Ok(()),
        () = work => Err(LeadError::Ended),
        () = election.keep(&api) => {
            return Err(LeadError::Lost { namespace: candidate.namespace.clone(), lease: candidate.lease.clone() });
        }
    };
    election.give_back(&api).await;
    asked
}

/// What a replica knows of the Lease.
struct Election<'a> {
    candidate: &'a Candidate,
    seen: Option<Lease>,
    /// When that was first seen.
    since: Instant,
}

impl Election<'_> {
    fn new(candidate: &Candidate) -> Election<'_> {
        Election { candidate, seen: None, since: Instant::now() }
    }

    /// Ends when this replica leads.
    async fn win(&mut self, api: &Api<Lease>) {
        while !self.round(api).await {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Ends when this replica leads no more, or no longer knows that it does.
    async fn keep(&mut self, api: &Api<Lease>) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < RENEW_DEADLINE {
            tokio::time::sleep(RETRY).await;
            if self.round(api).await {
                renewed = Instant::now();
            } else if self.is_led_by_another() {
                return;
            }
        }
    }

    /// Looks at the Lease and writes it if it is to be written. `true`: this replica leads as of now.
    async fn round(&mut self, api: &Api<Lease>) -> bool {
        let round = async {
            let found = api.get_opt(&self.candidate.lease).await?;
            self.see(found);
            let now = Timestamp::now();
            let written = match judge(self.seen.as_ref(), &self.candidate.identity, self.since.elapsed()) {
                Judgement::Wait => return Ok(false),
                Judgement::Create => api.create(&PostParams::default(), &lease(self.candidate, None, now)).await?,
                Judgement::Write => {
                    let wanted = lease(self.candidate, self.seen.as_ref(), now);
                    api.replace(&self.candidate.lease, &PostParams::default(), &wanted).await?
                }
            };
            self.see(Some(written));
            Ok(true)
        };
        match tokio::time::timeout(CALL, round).await {
            Ok(Ok(leads)) => leads,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => false,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the Lease of the leader cannot be read or written");
                false
            }
            Err(_) => {
                tracing::warn!("the API took too long about the Lease of the leader");
                false
            }
        }
    }

    fn see(&mut self, lease: Option<Lease>) {
        let version = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        if version(&lease) != version(&self.seen) {
            self.since = Instant::now();
        }
        self.seen = lease;
    }

    fn is_led_by_another(&self) -> bool {
        holder(self.seen.as_ref()).is_some_and(|holder| holder != self.candidate.identity)
    }

    /// The next one need not wait.
    async fn give_back(&self, api: &Api<Lease>) {
        let Some(mut lease) = self.seen.clone() else { return };
        if let Some(spec) = &mut lease.spec {
            (spec.holder_identity, spec.lease_duration_seconds) = (Some(String::new()), Some(1));
        }
        let params = PostParams::default();
        let replaced = api.replace(&self.candidate.lease, &params, &lease);
        if !matches!(tokio::time::timeout(CALL, replaced).await, Ok(Ok(_))) {
            tracing::info!("the Lease of the leader could not be given back: the next one waits for it to run out");
        }
    }
}

/// What to do about a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// There is none: make it.
    Create,
    /// It is this replica's, nobody's, or has run out: write it.
    Write,
    /// Another leads.
    Wait,
}

/// `unchanged`: for how long the Lease has been as it is.
fn judge(lease: Option<&Lease>, me: &str, unchanged: Duration) -> Judgement {
    let Some(lease) = lease else { return Judgement::Create };
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let lasts = seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DURATION, Duration::from_secs);
    match holder(Some(lease)) {
        Some(holder) if holder != me && unchanged < lasts => Judgement::Wait,
        _ => Judgement::Write,
    }
}

fn holder(lease: Option<&Lease>) -> Option<&str> {
    let holder = lease?.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}

/// The Lease with this replica as its holder. The version that was seen makes a write of two replicas one's alone.
fn lease(candidate: &Candidate, seen: Option<&Lease>, now: Timestamp) -> Lease {
    let stays = holder(seen) == Some(&candidate.identity);
    let before = seen.and_then(|seen| seen.spec.as_ref());
    let acquired = before.filter(|_| stays).and_then(|spec| spec.acquire_time.clone());
    let changes = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
    let metadata = seen.map_or_else(
        || ObjectMeta {
            name: Some(candidate.lease.clone()),
            namespace: Some(candidate.namespace.clone()),
            ..ObjectMeta::default()
        },
        |seen| seen.metadata.clone(),
    );
    let spec = LeaseSpec {
        holder_identity: Some(candidate.identity.clone()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: Some(acquired.unwrap_or(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(changes.saturating_add(i32::from(before.is_some() && !stays))),
        ..LeaseSpec::default()
    };
    Lease { metadata, spec: Some(spec) }
}

#[cfg(test)]
mod tests;
