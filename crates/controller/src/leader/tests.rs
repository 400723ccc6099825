use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signpost_apiserver::{ApiConfig, ApiServer};
use tokio::sync::oneshot;

use super::*;

fn candidate(identity: &str) -> Candidate {
    Candidate { namespace: "kube-system".into(), lease: "leader".into(), identity: identity.into() }
}

fn held(by: &str, now: &str) -> Lease {
    lease(&candidate(by), None, now.parse().unwrap())
}

const NOON: &str = "2026-01-01T12:00:00Z";
const LATER: &str = "2026-01-01T12:00:30Z";

#[test]
fn a_lease_is_taken_only_when_it_is_free_or_unchanged_for_as_long_as_it_lasts() {
    let other = held("b", NOON);
    let nearly = DURATION - Duration::from_millis(1);
    assert_eq!(judge(None, "a", Duration::ZERO), Judgement::Create);
    assert_eq!(judge(Some(&other), "a", nearly), Judgement::Wait);
    assert_eq!(judge(Some(&other), "a", DURATION), Judgement::Write);
    assert_eq!(judge(Some(&other), "b", Duration::ZERO), Judgement::Write, "its own is renewed");
    let free = held("", NOON);
    assert_eq!(judge(Some(&free), "a", Duration::ZERO), Judgement::Write, "given back");
    assert_eq!(judge(Some(&Lease::default()), "a", Duration::ZERO), Judgement::Write, "an empty one");
}

#[test]
fn a_renewal_keeps_when_it_was_acquired_and_a_take_over_counts() {
    let first = held("a", NOON);
    let renewed = lease(&candidate("a"), Some(&first), LATER.parse().unwrap()).spec.unwrap();
    assert_eq!((renewed.acquire_time, renewed.lease_transitions), (first.spec.clone().unwrap().acquire_time, Some(0)));
    assert_ne!(renewed.renew_time, first.spec.clone().unwrap().renew_time);
    let taken = lease(&candidate("b"), Some(&first), LATER.parse().unwrap()).spec.unwrap();
    assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("b"), Some(1)));
    assert_eq!(taken.acquire_time, taken.renew_time);
}

/// How many lead, and the most that did at once.
#[derive(Default)]
struct Leading {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Leads for as long as it lives.
struct Lead(Arc<Leading>);

impl Lead {
    fn begin(leading: &Arc<Leading>) -> Lead {
        let now = leading.now.fetch_add(1, Ordering::SeqCst) + 1;
        leading.most.fetch_max(now, Ordering::SeqCst);
        Lead(leading.clone())
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn one_of_two_leads_and_the_other_follows_when_it_ends() {
    let server = ApiServer::open(ApiConfig::default()).await.expect("an API in memory");
    let leading = Arc::new(Leading::default());
    let mut replicas = Vec::new();
    for identity in ["a", "b"] {
        let (end, ended) = oneshot::channel::<()>();
        let (client, leading) = (server.client(), leading.clone());
        let begun = Arc::new(AtomicUsize::new(0));
        let begins = begun.clone();
        let task = tokio::spawn(async move {
            let work = async {
                let _lead = Lead::begin(&leading);
                begins.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            };
            let shutdown = async { ended.await.expect("the test tells it") };
            lead(&client, &candidate(identity), shutdown, work).await
        });
        let begun = move || begun.load(Ordering::SeqCst) == 1;
        if replicas.is_empty() {
            until("the first one leads", &begun).await;
        }
        replicas.push((task, end, begun));
    }
    let (second, end_second, second_begun) = replicas.pop().unwrap();
    let (first, end_first, _) = replicas.pop().unwrap();
    end_first.send(()).expect("it leads");
    until("the second one leads", second_begun).await;
    first.await.unwrap().expect("it ended as it was told");
    end_second.send(()).expect("it leads");
    second.await.unwrap().expect("it ended as it was told");
    assert_eq!((leading.now.load(Ordering::SeqCst), leading.most.load(Ordering::SeqCst)), (0, 1));
    server.close();
}

#[tokio::test]
async fn a_leader_whose_lease_another_took_stops() {
    let server = ApiServer::open(ApiConfig::default()).await.expect("an API in memory");
    let client = server.client();
    let api: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let steal = async {
        loop {
            if let Some(mut lease) = api.get_opt("leader").await.expect("the API answers") {
                lease.spec.as_mut().expect("it has a holder").holder_identity = Some("thief".into());
                match api.replace("leader", &PostParams::default(), &lease).await {
                    Ok(_) => return,
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(error) => panic!("{error}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let candidate = candidate("a");
    let lead = lead(&client, &candidate, std::future::pending(), std::future::pending());
    let both = futures::future::join(lead, steal);
    let (result, ()) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it notices");
    assert!(matches!(result, Err(LeadError::Lost { .. })));
    server.close();
}

#[tokio::test]
async fn work_that_ends_by_itself_is_an_error_and_frees_the_lease() {
    let server = ApiServer::open(ApiConfig::default()).await.expect("an API in memory");
    let client = server.client();
    let result = lead(&client, &candidate("a"), std::future::pending(), std::future::ready(())).await;
    assert!(matches!(result, Err(LeadError::Ended)));
    let api: Api<Lease> = Api::namespaced(client, "kube-system");
    assert_eq!(holder(api.get_opt("leader").await.unwrap().as_ref()), None);
    server.close();
}
