//! Announces load-balancer addresses to routers by BGP: every node that may announce an address does, and the routers share the
//! traffic out among them.
//!
//! ```text
//! BGPPeer ──────────▶ peer: one session each (wire::bgp) ──▶ router
//! BGPAdvertisement,                 ▲  ▲ ▲
//! Services, pools ──▶ routes ───────┘  │ └─ listener: connections that the router makes
//! BFDProfile ───────▶ bfd: is it there?┘
//! ```
//!
//! A change of what is announced changes no session; a change of a peer changes that peer's session alone.

pub mod bfd;
pub mod known;
pub mod listener;
pub mod peer;
pub mod routes;
mod told;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream::{SelectAll, StreamExt};
use kube::Client;
use signpost_core::announce::served::AllServed;
use signpost_wire::bgp::{GRACEFUL_SHUTDOWN, Prefix, Route};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use super::numbers::Numbers;
use bfd::{Bfd, BfdStates};
use known::{Known, Neighbour, Word};
use listener::Listener;
use peer::{Ends, PeerOptions, PeerState};

/// How long sessions get to say good-bye.
const FAREWELL: Duration = Duration::from_millis(300);
/// How long routers get to look for other ways before the routes go.
const DRAIN: Duration = Duration::from_millis(150);
/// How long a router gets to learn that BFD ends on purpose, before the session does.
const HUSH: Duration = Duration::from_millis(30);

type Words = SelectAll<Pin<Box<dyn Stream<Item = Word> + Send>>>;

/// A session's task and what it is told.
struct Running {
    options: PeerOptions,
    routes: watch::Sender<BTreeMap<Prefix, Route>>,
    incoming: mpsc::Sender<TcpStream>,
    task: JoinHandle<()>,
}

/// Announces until the sender of `leave` asks for the end or is gone.
pub async fn run(
    client: Client,
    server: String,
    node: Arc<str>,
    mut served: watch::Receiver<AllServed>,
    mut leave: mpsc::Receiver<oneshot::Sender<()>>,
    numbers: Numbers,
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
    let mut sessions =
        Sessions { peers: BTreeMap::new(), listener: Listener::start(), states, numbers: numbers.clone() };
    let bfd = Bfd::start();
    if let Err(error) = &bfd {
        warn!(%error, "BFD does not run: silent peers are found by the hold time alone");
    }
    let (_never, nothing) = watch::channel(BfdStates::new());
    let mut bfd_states = bfd.as_ref().map_or(nothing, Bfd::states);
    let mut stood: BTreeMap<Arc<str>, PeerState> = BTreeMap::new();
    let telling = told::Teller::start(client.clone(), node.clone(), numbers.clone());
    // Until the daemon has said what it serves, a session would tell that nothing is, and a router would drop what it kept.
    let mut published = false;
    loop {
        tokio::select! {
            chunk = words.next() => match chunk {
                Some(chunk) => chunk.into_iter().for_each(|word| known.hear(word)),
                None => return,
            },
            changed = served.changed() => {
                if changed.is_err() {
                    return;
                }
                published = true;
            }
            Some((name, mut state)) = changes.recv() => {
                if state.state != "Established" {
                    numbers.session_over(&name);
                    // To try again is no success: what went wrong last is still so.
                    let former = || stood.get(&name).and_then(|former| former.trouble.clone());
                    state.trouble = state.trouble.or_else(former);
                }
                stood.insert(name, state);
            }
            (stream, from) = sessions.listener.accept() => {
                sessions.came_in(stream, from);
                continue;
            }
            Ok(()) = bfd_states.changed() => {}
            Some(done) = leave.recv() => {
                sessions.leave(bfd.as_ref().ok()).await;
                return super::answer(done);
            }
        }
        if !known.is_whole() || !published {
            continue;
        }
        let wanted = known.peers(&node, &client).await;
        if let Ok(bfd) = &bfd {
            let watched = wanted.iter().filter_map(|(name, one)| Some((name.clone(), one.bfd.clone()?)));
            bfd.want(watched.collect());
        }
        sessions.keep(&wanted, &bfd_states);
        stood.retain(|name, _| sessions.peers.contains_key(name));
        let all = routes::routes(&known, &node, &served.borrow(), &wanted.keys().cloned().collect());
        for (name, running) in &sessions.peers {
            let routes = all.by_peer.get(name).cloned().unwrap_or_default();
            running.routes.send_if_modified(|current| {
                let changed = *current != routes;
                *current = routes;
                changed
            });
        }
        telling.tell(&all, &stood, &bfd_states.borrow_and_update(), &known);
    }
}

/// All sessions of BGP.
struct Sessions {
    peers: BTreeMap<Arc<str>, Running>,
    listener: Listener,
    states: mpsc::Sender<(Arc<str>, PeerState)>,
    numbers: Numbers,
}

impl Sessions {
    /// Starts, ends and replaces sessions, so that those that are wanted run.
    fn keep(&mut self, wanted: &BTreeMap<Arc<str>, Neighbour>, bfd: &watch::Receiver<BfdStates>) {
        // The task of one that is not wanted sees that nobody has routes for it any more, and says good-bye.
        self.peers.retain(|name, running| wanted.get(name).is_some_and(|one| one.bgp == running.options));
        self.numbers.keep_peers(|name| wanted.contains_key(name));
        self.listener.guard(wanted.values().map(|one| &one.bgp));
        for (name, Neighbour { bgp, .. }) in wanted {
            if self.peers.contains_key(name) {
                continue;
            }
            let (routes, follow) = watch::channel(BTreeMap::new());
            let (incoming, comes_in) = mpsc::channel(1);
            let ends = Ends {
                routes: follow,
                incoming: comes_in,
                bfd: bfd.clone(),
                states: self.states.clone(),
                numbers: self.numbers.clone(),
            };
            let task = tokio::spawn(peer::run(name.clone(), bgp.clone(), ends));
            self.peers.insert(name.clone(), Running { options: bgp.clone(), routes, incoming, task });
        }
    }

    /// A connection that somebody made: a peer's goes to its session.
    fn came_in(&self, stream: TcpStream, from: IpAddr) {
        let found = self.peers.values().find(|running| running.options.address.ip() == from);
        let taken = found.is_some_and(|running| running.incoming.try_send(stream).is_ok());
        debug!(%from, taken, "somebody connected to BGP's port");
    }

    /// Ends all: routers are asked to look for other ways, and are told that the end is on purpose.
    async fn leave(self, bfd: Option<&Bfd>) {
        if let Some(bfd) = bfd {
            bfd.leave().await;
        }
        let shuts_down = |running: &&Running| !running.options.graceful_restart;
        let mut pause = HUSH;
        for running in self.peers.values().filter(shuts_down) {
            running.routes.send_modify(|routes| {
                for route in routes.values_mut() {
                    route.communities.insert(GRACEFUL_SHUTDOWN);
                }
            });
            pause = DRAIN;
        }
        tokio::time::sleep(pause).await;
        let tasks: Vec<JoinHandle<()>> = self.peers.into_values().map(|running| running.task).collect();
        if tokio::time::timeout(FAREWELL, futures::future::join_all(tasks)).await.is_err() {
            warn!("not every BGP session could be ended in time");
        }
    }
}
