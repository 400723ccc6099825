//! Announces load-balancer addresses: on the nodes' own network, where exactly one node answers for each, and by BGP ([`bgp`]);
//! only nodes whose kernel serves an address take part.
//!
//! ```text
//! API ──▶ known ─────────────┐                  ┌─▶ responder: ARP, NDP, gratuitous bursts
//! sync ──▶ served ───────────┼─▶ decide (core) ─┼─▶ records: one Lease per address
//! heartbeats ──▶ liveness ───┤                  └─▶ told: ServiceL2Status, Events, log
//! netlink ──▶ interfaces ────┘
//! ```
//!
//! As long as there is no L2Advertisement, pools and advertisements are watched, and nothing else is done. What is decided, and
//! why two nodes never answer for long, stands in `signpost_core::announce`.

pub mod bgp;
pub mod heartbeat;
pub mod interfaces;
pub mod known;
pub mod records;
pub mod responder;
pub mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::Stream;
use futures::stream::{SelectAll, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use signpost_core::announce::advertise::{self, Announced};
use signpost_core::announce::liveness::{Heartbeat, INTERVAL, Liveness, digest, id};
use signpost_core::announce::ownership::{self, Situation, Step};
use signpost_core::announce::served::AllServed;
use signpost_core::object::{Family, ObjectName};
use signpost_metallb::NAMESPACE;
use signpost_wire::mac::Mac;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, info, warn};

use heartbeat::{Key, Unheard};
use interfaces::Interface;
use known::{Known, Word};
use records::Written;
use responder::{Answers, Place, Responder};
use told::AllAnnounced;

/// Between two tries of what failed.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// How often it is looked whether an API without MetalLB's kinds has got them.
const ABSENT: Duration = Duration::from_secs(60);
/// How long others get to take over from a node that ends.
const LEAVE: Duration = Duration::from_millis(700);
/// When the segment is told of a new address, after the first time: devices drop single frames.
const BURST_MS: [u64; 6] = [30, 150, 500, 1_000, 2_000, 4_000];
/// And how often later: tables of switches forget.
const REMIND: Duration = Duration::from_secs(30);
/// A round that takes longer is sleep: nobody was heard meanwhile.
const SLEEP: Duration = INTERVAL.saturating_mul(3);
/// How long the API may take to show that it is there.
const PROBE: Duration = Duration::from_millis(400);

/// Announces, once it is started.
pub struct Announcer {
    client: Client,
    server: String,
    node: Arc<str>,
}

impl Announcer {
    /// For a node. `server` is the API's address, for the log.
    pub fn new(client: Client, server: &str, node: Arc<str>) -> Announcer {
        Announcer { client, server: server.to_owned(), node }
    }

    /// Starts. Must be called inside a tokio runtime.
    pub fn start(self, served: watch::Receiver<AllServed>) -> Announcing {
        let (by_bgp, leave_bgp) = mpsc::channel(1);
        let Announcer { client, server, node } = &self;
        let bgp = bgp::run(client.clone(), server.clone(), node.clone(), served.clone(), leave_bgp);
        let bgp = tokio::spawn(bgp);
        let (by_l2, leave) = mpsc::channel(1);
        let (l2_lives, l2_ends) = oneshot::channel::<()>();
        let l2 = async move {
            tokio::select! {
                () = run(self, served, leave) => {}
                // Nothing is ever sent: the other end was dropped.
                _ = l2_ends => {}
            }
        };
        urgently(l2);
        Announcing { leaving: [by_l2, by_bgp], bgp, _l2_lives: l2_lives }
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
    bgp: JoinHandle<()>,
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
        self.bgp.abort();
    }
}

async fn run(announcer: Announcer, served: watch::Receiver<AllServed>, mut leave: mpsc::Receiver<oneshot::Sender<()>>) {
    let Announcer { client, server, node } = announcer;
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
        parts = Parts::get(&client) => parts,
        Some(done) = leave.recv() => return answer(done),
    };
    let (announced, telling) = watch::channel(AllAnnounced::new());
    let mut telling = tokio::spawn(told::tell(client.clone(), node.clone(), telling));
    let speaker = Speaker::new(client, node, known, served, parts, announced);
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

type Words = SelectAll<Pin<Box<dyn Stream<Item = Word> + Send>>>;

/// What the machine and the cluster must give.
struct Parts {
    responder: Responder,
    socket: UdpSocket,
    key: Key,
    changes: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

impl Parts {
    /// Tries until there is all of it.
    async fn get(client: &Client) -> Parts {
        let mut said = String::new();
        loop {
            match Parts::try_get(client).await {
                Ok(parts) => return parts,
                Err(error) if error != said => {
                    warn!(error, "load-balancer addresses cannot be announced; trying again");
                    said = error;
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_get(client: &Client) -> Result<Parts, String> {
        let told = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        Ok(Parts {
            responder: Responder::start().map_err(told("no packet sockets (CAP_NET_RAW)"))?,
            socket: heartbeat::listen().await.map_err(told("no socket for heartbeats"))?,
            changes: interfaces::changes().map_err(told("interfaces cannot be followed"))?,
            key: Key::get(client).await.map_err(|error| error.to_string())?,
        })
    }
}

/// Who may have an address here, and for which Services it is.
#[derive(Default)]
struct Wanted {
    candidates: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Where this node can answer for each.
    places: BTreeMap<IpAddr, Vec<(Place, Arc<str>, Mac)>>,
    /// The Services of each, with its pool.
    services: BTreeMap<IpAddr, Vec<(ObjectName, String, Arc<str>)>>,
}

struct Speaker {
    client: Client,
    node: Arc<str>,
    known: Known,
    served: watch::Receiver<AllServed>,
    parts: Parts,
    announced: watch::Sender<AllAnnounced>,
    interfaces: Vec<Interface>,
    born: Instant,
    life: u64,
    number: u64,
    liveness: Liveness,
    /// Whether the API answered when it last was in doubt.
    reaches_api: bool,
    leaving: bool,
    ownerless_since: BTreeMap<IpAddr, Instant>,
    /// Addresses whose record is being written.
    writing: BTreeSet<IpAddr>,
    work: JoinSet<Done>,
    probing: bool,
    probe_at: Instant,
    rekeying: bool,
    answers: Answers,
    /// When the segment is to be told of an address again, and the how manieth time that is.
    bursts: BTreeMap<Place, (Instant, usize)>,
}

/// What came of something that took time.
#[allow(clippy::large_enum_variant)] // a few are under way at a time
enum Done {
    Step(IpAddr, kube::Result<Written>),
    Probe(bool),
    Key(Option<Key>),
}

impl Speaker {
    fn new(
        client: Client,
        node: Arc<str>,
        known: Known,
        served: watch::Receiver<AllServed>,
        parts: Parts,
        announced: watch::Sender<AllAnnounced>,
    ) -> Speaker {
        let now = Instant::now();
        let life = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Speaker {
            liveness: Liveness::new(&node),
            client,
            node,
            known,
            served,
            parts,
            announced,
            interfaces: Vec::new(),
            born: now,
            life,
            number: 0,
            reaches_api: true,
            leaving: false,
            ownerless_since: BTreeMap::new(),
            writing: BTreeSet::new(),
            work: JoinSet::new(),
            probing: false,
            probe_at: now,
            rekeying: false,
            answers: Answers::new(),
            bursts: BTreeMap::new(),
        }
    }

    async fn run(mut self, mut words: Words, mut leave: mpsc::Receiver<oneshot::Sender<()>>) {
        info!(node = %self.node, "this node takes part in announcing load-balancer addresses");
        let mut words = words.by_ref().ready_chunks(256);
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut datagram = vec![0; 65_536];
        let mut awake = Instant::now();
        let mut done: Option<oneshot::Sender<()>> = None;
        self.read_interfaces();
        loop {
            let round = awake.elapsed();
            awake += round;
            if round > SLEEP {
                self.liveness.slept(round);
            }
            let burst = self.bursts.values().map(|(at, _)| *at).min();
            tokio::select! {
                chunk = words.next() => match chunk {
                    Some(chunk) => chunk.into_iter().for_each(|word| self.known.hear(word)),
                    None => return,
                },
                changed = self.served.changed() => if changed.is_err() { return },
                _ = ticks.tick() => self.say(),
                received = self.parts.socket.recv_from(&mut datagram) => match received {
                    Ok((length, from)) => {
                        self.listen(&datagram[..length], from.ip());
                        continue;
                    }
                    Err(error) => debug!(%error, "no heartbeat could be read"),
                },
                ready = self.parts.changes.readable() => match ready {
                    Ok(mut ready) => {
                        interfaces::drain(self.parts.changes.get_ref());
                        ready.clear_ready();
                        drop(ready);
                        self.read_interfaces();
                    }
                    Err(error) => debug!(%error, "interfaces are not followed"),
                },
                Some(finished) = self.work.join_next() => match finished {
                    Ok(finished) => self.finished(finished),
                    Err(error) => warn!(%error, "a task of the announcer broke off"),
                },
                Some(asked) = leave.recv() => {
                    self.leaving = true;
                    done = Some(asked);
                    self.say();
                }
                () = until(burst), if burst.is_some() => {
                    self.tell_segment();
                    continue;
                }
            }
            self.decide();
            if self.leaving && self.writing.is_empty() {
                // The first words of the successors are on their way; until they are heard, the kernel forwards.
                self.say();
                self.set_answers(Answers::new());
                self.announced.send_replace(AllAnnounced::new());
                done.take().into_iter().for_each(answer);
                return;
            }
        }
    }

    /// Time since this node's start, as liveness counts it.
    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    fn read_interfaces(&mut self) {
        match interfaces::read() {
            Ok(interfaces) => self.interfaces = interfaces,
            Err(error) => warn!(%error, "the interfaces cannot be read"),
        }
    }

    /// The other nodes that may announce anything, by name.
    fn others(&self) -> BTreeSet<Arc<str>> {
        let selects = |labels| self.known.usable_advertisements.iter().any(|one| one.selects(labels));
        let nodes = self.known.nodes();
        let others = nodes.iter().filter(|(name, node)| **name != self.node && node.ready && selects(&node.labels));
        others.map(|(name, _)| name.clone()).collect()
    }

    fn owned_by(&self, node: &str, holders: &BTreeMap<IpAddr, Arc<str>>) -> u64 {
        digest(holders.iter().filter(|(_, holder)| ***holder == *node).map(|(address, _)| address))
    }

    /// Tells the other nodes that this one lives, once it knows the records: before, it would seem to keep what it does not
    /// know that it has.
    fn say(&mut self) {
        if !self.known.is_whole() {
            return;
        }
        self.number += 1;
        let (now, holders) = (self.now(), self.known.holders());
        let owns = |node: &Arc<str>| if self.reaches_api { self.owned_by(node, &holders) } else { 0 };
        let heartbeat = Heartbeat {
            node: self.node.clone(),
            life: self.life,
            number: self.number,
            leaving: self.leaving && self.writing.is_empty(),
            hears: self.liveness.heard_nodes(now).map(|node| (id(node), owns(node))).collect(),
        };
        let nodes = self.known.nodes();
        let own = nodes.get(&self.node).map(|node| node.addresses.clone()).unwrap_or_default();
        let addresses = nodes.values().filter_map(|node| node.addresses.first().copied());
        let to = addresses.filter(|address| !own.contains(address)).collect();
        heartbeat::send(&self.parts.socket, &heartbeat::encode(&heartbeat, &self.parts.key), &to);
    }

    fn listen(&mut self, datagram: &[u8], from: IpAddr) {
        match heartbeat::decode(datagram, &self.parts.key) {
            Ok(heartbeat) => {
                let now = self.now();
                let is_news = !self.liveness.lives(&heartbeat.node, now) || heartbeat.leaving;
                self.liveness.heard(heartbeat, now);
                if is_news {
                    self.decide();
                }
            }
            Err(Unheard::Signature) if !self.rekeying => {
                debug!(%from, "a heartbeat with another key; looking whether the key changed");
                self.rekeying = true;
                let client = self.client.clone();
                self.work.spawn(async move {
                    let key = Key::get(&client).await.ok();
                    tokio::time::sleep(RETRY).await;
                    Done::Key(key)
                });
            }
            Err(_) => {}
        }
    }

    /// Who may have what, and where this node could answer.
    fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        let nodes = self.known.nodes();
        let own = nodes.get(&self.node).map(|node| node.addresses.clone()).unwrap_or_default();
        let served = self.served.borrow();
        for (name, one) in served.iter() {
            let Some(service) = self.known.services.get(name) else { continue };
            for address in &one.addresses {
                let Some(pool) = self.known.pool_of(service, *address) else { continue };
                let pool_labels = self.known.pool_labels(&pool);
                let announced = Announced {
                    service: name,
                    labels: &service.labels,
                    pool: &pool,
                    pool_labels: &pool_labels,
                    served: one,
                };
                let advertisements = &self.known.usable_advertisements;
                let Ok(found) = advertise::candidates(&announced, Family::of(*address), advertisements, &nodes) else {
                    continue;
                };
                if let Some(named) = found.nodes.get(&self.node) {
                    let on = interfaces::for_address(&self.interfaces, *address, named, &own);
                    let places = on.iter().map(|one| ((one.index, *address), one.name.clone(), one.mac));
                    wanted.places.insert(*address, places.collect());
                }
                let may: BTreeSet<Arc<str>> = found.nodes.into_keys().collect();
                // Services that share an address go to a node that all of them can have, if there is one.
                let both = wanted.candidates.get(address).map(|former| former & &may).filter(|both| !both.is_empty());
                wanted.candidates.insert(*address, both.unwrap_or(may));
                wanted.services.entry(*address).or_default().push((name.clone(), service.uid.clone(), pool));
            }
        }
        wanted
    }

    /// Brings records, answers and what is told in step with what is known.
    fn decide(&mut self) {
        if !self.known.is_whole() {
            return;
        }
        let now = self.now();
        let (wanted, others, holders) = (self.wanted(), self.others(), self.known.holders());
        let owns = self.owned_by(&self.node, &holders);
        let is_well = self.liveness.is_well(&others, owns, now);
        self.doubt(is_well);
        let able: BTreeSet<IpAddr> =
            wanted.places.iter().filter(|(_, places)| !places.is_empty()).map(|(address, _)| *address).collect();
        let lives = |node: &str| self.liveness.lives(node, now);
        let since = |address: IpAddr| self.ownerless_since.get(&address).map_or(Duration::ZERO, Instant::elapsed);
        let situation = Situation {
            me: &self.node,
            leaving: self.leaving,
            candidates: &wanted.candidates,
            holders: &holders,
            able: &able,
            lives: &lives,
            in_minority: self.liveness.is_in_minority(&others, now),
            ownerless: &since,
        };
        let (ownerless, steps) = (ownership::ownerless(&situation), ownership::steps(&situation));
        self.ownerless_since.retain(|address, _| ownerless.contains(address));
        for address in ownerless {
            self.ownerless_since.entry(address).or_insert_with(Instant::now);
        }
        steps.into_iter().for_each(|step| self.write(step));
        let fenced = !self.reaches_api && !self.liveness.may_answer_without_api(&others, owns, now);
        let mine = |address: &IpAddr| !fenced && holders.get(address) == Some(&self.node);
        let answers: Answers = wanted
            .places
            .iter()
            .filter(|(address, _)| mine(address))
            .flat_map(|(_, places)| places.iter().map(|(place, _, mac)| (*place, *mac)))
            .collect();
        let announced = announced(&wanted, &holders, &mine);
        self.set_answers(answers);
        self.announced.send_if_modified(|current| {
            let changed = *current != announced;
            *current = announced;
            changed
        });
    }

    /// While something is odd among the nodes, the API is asked whether it is there.
    fn doubt(&mut self, is_well: bool) {
        if is_well {
            self.reaches_api = true;
        } else if !self.probing && self.probe_at <= Instant::now() {
            self.probing = true;
            let api: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
            self.work.spawn(async move {
                let asked = tokio::time::timeout(PROBE, api.get_opt("l2-probe")).await;
                Done::Probe(matches!(asked, Ok(Ok(_))))
            });
        }
    }

    fn write(&mut self, step: Step) {
        let (Step::Claim(address) | Step::HandOver(address, _) | Step::Forget(address)) = &step;
        let address = *address;
        if !self.writing.insert(address) {
            return;
        }
        debug!(?step, "the record of an address is written");
        let seen = self.known.record(address).cloned();
        let writing = records::write(self.client.clone(), step, seen, self.node.clone());
        self.work.spawn(async move { Done::Step(address, writing.await) });
    }

    fn finished(&mut self, done: Done) {
        match done {
            Done::Step(address, result) => {
                self.writing.remove(&address);
                match result {
                    Ok(Written::Record(lease)) => self.known.wrote(lease),
                    Ok(Written::Gone(address)) => self.known.forgot(address),
                    Ok(Written::Lost(_, Some(lease))) => self.known.wrote(lease),
                    Ok(Written::Lost(address, None)) => self.known.forgot(address),
                    Err(error) => {
                        debug!(%address, %error, "the record of an address could not be written; trying again");
                        self.probe_at = Instant::now();
                    }
                }
            }
            Done::Probe(reaches) => {
                if reaches != self.reaches_api {
                    info!(reaches, "the API is asked whether it is there, as not all nodes are heard");
                }
                (self.probing, self.reaches_api) = (false, reaches);
                self.probe_at = Instant::now() + PROBE;
            }
            Done::Key(key) => {
                self.rekeying = false;
                if let Some(key) = key.filter(|key| *key != self.parts.key) {
                    info!("the key of heartbeats changed");
                    self.parts.key = key;
                }
            }
        }
    }

    fn set_answers(&mut self, answers: Answers) {
        if answers == self.answers {
            return;
        }
        let now = Instant::now();
        let new: Vec<Place> = answers.keys().filter(|place| !self.answers.contains_key(*place)).copied().collect();
        self.bursts.retain(|place, _| answers.contains_key(place));
        self.answers.clone_from(&answers);
        self.parts.responder.set(answers);
        self.bursts.extend(new.into_iter().map(|place| (place, (now, 0))));
        self.tell_segment();
    }

    /// Tells the segment of the addresses whose time has come.
    fn tell_segment(&mut self) {
        let now = Instant::now();
        for (place, (at, times)) in &mut self.bursts {
            if *at > now {
                continue;
            }
            if let Some(mac) = self.answers.get(place) {
                self.parts.responder.tell(*place, *mac);
            }
            let pause = BURST_MS.get(*times).map_or(REMIND, |pause_ms| Duration::from_millis(*pause_ms));
            (*at, *times) = (now + pause, *times + 1);
        }
    }
}

fn announced(wanted: &Wanted, holders: &BTreeMap<IpAddr, Arc<str>>, mine: &dyn Fn(&IpAddr) -> bool) -> AllAnnounced {
    let mut all = AllAnnounced::new();
    for (address, services) in &wanted.services {
        let places = wanted.places.get(address).map(Vec::as_slice).unwrap_or_default();
        if !mine(address) || places.is_empty() {
            continue;
        }
        for (name, uid, pool) in services {
            let one = all.entry(name.clone()).or_insert_with(|| told::Announced {
                uid: uid.clone(),
                addresses: BTreeSet::new(),
                pool: pool.clone(),
                interfaces: BTreeSet::new(),
                holders: BTreeSet::new(),
            });
            one.addresses.insert(*address);
            one.interfaces.extend(places.iter().map(|(_, name, _)| name.clone()));
        }
    }
    for (address, services) in &wanted.services {
        for (name, _, _) in services {
            if let (Some(one), Some(holder)) = (all.get_mut(name), holders.get(address)) {
                one.holders.insert(holder.clone());
            }
        }
    }
    all
}

async fn until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
}
