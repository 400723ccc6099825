//! Announces load-balancer addresses to routers by BGP: every node that may announce an address does, and the routers share the
//! traffic out among them.
//!
//! ```text
//! BGPPeer ──────────▶ peer: one session each (wire::bgp) ──▶ router
//! BGPAdvertisement,                 ▲
//! Services, pools ──▶ routes ───────┘ only what differs is told
//! ```
//!
//! A change of what is announced changes no session; a change of a peer changes that peer's session alone.

pub mod known;
pub mod peer;
pub mod routes;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream::{SelectAll, StreamExt};
use kube::Client;
use signpost_core::announce::served::AllServed;
use signpost_wire::bgp::{Prefix, Route};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use known::{Known, Word};
use peer::{PeerOptions, PeerState};

/// How long sessions get to say good-bye.
const FAREWELL: Duration = Duration::from_millis(300);

type Words = SelectAll<Pin<Box<dyn Stream<Item = Word> + Send>>>;

/// A session's task and what it is told.
struct Running {
    options: PeerOptions,
    routes: watch::Sender<BTreeMap<Prefix, Route>>,
    task: JoinHandle<()>,
}

/// Announces until the sender of `leave` asks for the end or is gone.
pub async fn run(
    client: Client,
    server: String,
    node: Arc<str>,
    mut served: watch::Receiver<AllServed>,
    mut leave: mpsc::Receiver<oneshot::Sender<()>>,
) {
    tokio::select! {
        () = super::kinds_are_served(&client) => {}
        Some(done) = leave.recv() => return super::answer(done),
    }
    let mut words: Words = SelectAll::new();
    words.push(Box::pin(known::watch_configuration(client.clone(), &server)));
    let mut known = Known::default();
    while !known.has_work() {
        tokio::select! {
            word = words.next() => match word {
                Some(word) => known.hear(word),
                None => return,
            },
            Some(done) = leave.recv() => return super::answer(done),
        }
    }
    info!(%node, "this node takes part in announcing load-balancer addresses by BGP");
    words.push(Box::pin(known::watch_cluster(client.clone(), &server)));
    let mut words = words.ready_chunks(256);
    let (states, mut changes) = mpsc::channel::<(Arc<str>, PeerState)>(64);
    let mut peers: BTreeMap<Arc<str>, Running> = BTreeMap::new();
    let mut stood: BTreeMap<Arc<str>, PeerState> = BTreeMap::new();
    let telling = told::Teller::start(client.clone(), node.clone());
    loop {
        tokio::select! {
            chunk = words.next() => match chunk {
                Some(chunk) => chunk.into_iter().for_each(|word| known.hear(word)),
                None => return,
            },
            changed = served.changed() => if changed.is_err() { return },
            Some((name, state)) = changes.recv() => {
                stood.insert(name, state);
            }
            Some(done) = leave.recv() => {
                end_all(peers).await;
                return super::answer(done);
            }
        }
        if !known.is_whole() {
            continue;
        }
        let wanted = known.peers(&node, &client).await;
        keep_peers(&mut peers, &wanted, &states);
        stood.retain(|name, _| peers.contains_key(name));
        let all = routes::routes(&known, &node, &served.borrow(), &wanted.keys().cloned().collect());
        for (name, running) in &peers {
            let routes = all.by_peer.get(name).cloned().unwrap_or_default();
            running.routes.send_if_modified(|current| {
                let changed = *current != routes;
                *current = routes;
                changed
            });
        }
        telling.tell(&all, &stood, &known);
    }
}

/// Starts, ends and replaces sessions, so that those that are wanted run.
fn keep_peers(
    peers: &mut BTreeMap<Arc<str>, Running>,
    wanted: &BTreeMap<Arc<str>, PeerOptions>,
    states: &mpsc::Sender<(Arc<str>, PeerState)>,
) {
    let gone: BTreeSet<Arc<str>> = peers
        .iter()
        .filter(|(name, running)| wanted.get(*name) != Some(&running.options))
        .map(|(name, _)| name.clone())
        .collect();
    for name in gone {
        // Its task sees that nobody has routes for it any more, and says good-bye.
        peers.remove(&name);
    }
    for (name, options) in wanted {
        if peers.contains_key(name) {
            continue;
        }
        let (routes, wanted) = watch::channel(BTreeMap::new());
        let task = tokio::spawn(peer::run(name.clone(), options.clone(), wanted, states.clone()));
        peers.insert(name.clone(), Running { options: options.clone(), routes, task });
    }
}

async fn end_all(peers: BTreeMap<Arc<str>, Running>) {
    let tasks: Vec<JoinHandle<()>> = peers.into_values().map(|running| running.task).collect();
    if tokio::time::timeout(FAREWELL, futures::future::join_all(tasks)).await.is_err() {
        warn!("not every BGP session could be ended in time");
    }
}
