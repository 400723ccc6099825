//! Announces load-balancer addresses: on the nodes' own network, where exactly one node answers for each, and by BGP ([`bgp`]);
//! only nodes whose kernel serves an address take part.
//!
//! ```text
//! API ──▶ known ─────────────┐                  ┌─▶ responder: ARP, NDP, gratuitous bursts
//! sync ──▶ served ───────────┼─▶ decide (core) ─┼─▶ records: one Lease per address
//! heartbeats ──▶ liveness ───┤                  └─▶ told: ServiceL2Status, Events, log
//! netlink ──▶ interfaces ────┘     (speaker)
//! ```
//!
//! As long as there is no L2Advertisement, pools and advertisements are watched, and nothing else is done. What is decided, and
//! why two nodes never answer for long, stands in `signpost_core::announce`.

pub mod bgp;
mod configuration;
pub mod heartbeat;
pub mod interfaces;
pub mod known;
pub mod numbers;
pub mod records;
pub mod responder;
mod rivals;
mod speaker;
pub mod told;
mod vips;
mod wanted;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{SelectAll, StreamExt};
use kube::Client;
use signpost_core::announce::served::AllServed;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use known::Known;
use numbers::Numbers;
use speaker::{Parts, Speaker, Words};
use told::AllAnnounced;

/// Between two tries of what failed.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// How often it is looked whether an API without MetalLB's kinds has got them.
const ABSENT: Duration = Duration::from_secs(60);
/// How long others get to take over from a node that ends.
const LEAVE: Duration = Duration::from_millis(700);

/// Announces, once it is started.
pub struct Announcer {
    client: Client,
    server: String,
    node: Arc<str>,
    answer_ping: bool,
}

impl Announcer {
    /// For a node. `server` is the API's address, for the log; `answer_ping`: whether load-balancer addresses do.
    pub fn new(client: Client, server: &str, node: Arc<str>, answer_ping: bool) -> Announcer {
        Announcer { client, server: server.to_owned(), node, answer_ping }
    }

    /// Starts. Must be called inside a tokio runtime.
    pub fn start(self, served: watch::Receiver<AllServed>, numbers: Numbers) -> Announcing {
        let (by_bgp, leave_bgp) = mpsc::channel(1);
        let Announcer { client, server, node, answer_ping } = &self;
        numbers.set_node(node);
        let bgp = bgp::run(client.clone(), server.clone(), node.clone(), served.clone(), leave_bgp, numbers.clone());
        let bgp = tokio::spawn(bgp);
        let vips = vips::run(client.clone(), server.clone(), *answer_ping, served.clone(), numbers.clone());
        let vips = tokio::spawn(vips);
        let (by_l2, leave) = mpsc::channel(1);
        let (l2_lives, l2_ends) = oneshot::channel::<()>();
        let l2 = async move {
            tokio::select! {
                () = run(self, served, leave, numbers) => {}
                // Nothing is ever sent: the other end was dropped.
                _ = l2_ends => {}
            }
        };
        urgently(l2);
        Announcing { leaving: [by_l2, by_bgp], tasks: [bgp, vips], _l2_lives: l2_lives }
    }
}

/// Runs what must not wait for other work of a busy node: late heartbeats look like a death, late ARP answers like a broken way.
fn urgently(work: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::Builder::new().name("announce".to_owned()).spawn(move || {
        if let Err(error) = crate::sys::raise_priority() {
            info!(%error, "heartbeats go without priority: a busy node may be taken for dead");
        }
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(work),
            Err(error) => warn!(%error, "load-balancer addresses cannot be announced"),
        }
    });
    if let Err(error) = thread {
        warn!(%error, "load-balancer addresses cannot be announced");
    }
}

/// A running announcer. Dropped: it ends at once, and the others take it for dead.
pub struct Announcing {
    leaving: [mpsc::Sender<oneshot::Sender<()>>; 2],
    tasks: [JoinHandle<()>; 2],
    _l2_lives: oneshot::Sender<()>,
}

impl Announcing {
    /// Hands over what others can have, and ends.
    pub async fn leave(self) {
        let left = self.leaving.iter().map(|leaving| async {
            let (done, waits) = oneshot::channel();
            leaving.send(done).await.is_err() || tokio::time::timeout(LEAVE, waits).await.is_ok()
        });
        if futures::future::join_all(left).await.contains(&false) {
            warn!("not all announced addresses could be handed over in time");
        }
    }
}

impl Drop for Announcing {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn run(
    announcer: Announcer,
    served: watch::Receiver<AllServed>,
    mut leave: mpsc::Receiver<oneshot::Sender<()>>,
    numbers: Numbers,
) {
    let Announcer { client, server, node, .. } = announcer;
    tokio::select! {
        () = kinds_are_served(&client) => {}
        Some(done) = leave.recv() => return answer(done),
    }
    let mut words: Words = SelectAll::new();
    words.push(Box::pin(known::watch_configuration(client.clone(), &server)));
    let mut known = Known::default();
    while known.usable_advertisements.is_empty() {
        tokio::select! {
            word = words.next() => match word {
                Some(word) => known.hear(word),
                None => return,
            },
            // Nothing is announced: there is nothing to hand over.
            Some(done) = leave.recv() => return answer(done),
        }
    }
    words.push(Box::pin(known::watch_cluster(client.clone(), &server)));
    let parts = tokio::select! {
        parts = Parts::get(&client, &numbers) => parts,
        Some(done) = leave.recv() => return answer(done),
    };
    let (announced, telling) = watch::channel(AllAnnounced::new());
    let (reports, follow) = watch::channel(speaker::report(String::new(), String::new()));
    let mut telling = tokio::spawn(told::tell(client.clone(), node.clone(), telling, numbers.clone()));
    let mut states = JoinSet::new();
    states.spawn(configuration::follow(client.clone(), node.clone(), "l2", follow));
    let speaker = Speaker::new(client, node, known, served, parts, announced, reports, numbers);
    speaker.run(words, leave).await;
    // The last word is that nothing is announced; the API may be away.
    if tokio::time::timeout(LEAVE, &mut telling).await.is_err() {
        telling.abort();
    }
}

/// Waits until the API has MetalLB's kinds. Most clusters have not, and are not to be bothered.
async fn kinds_are_served(client: &Client) {
    loop {
        let pause = match client.list_api_group_resources("metallb.io/v1beta1").await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => ABSENT,
            Err(_) => RETRY,
        };
        tokio::time::sleep(pause).await;
    }
}

fn answer(done: oneshot::Sender<()>) {
    // Whoever asked may have stopped waiting.
    let _ = done.send(());
}

async fn until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
}
