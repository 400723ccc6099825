//! The announcer on the nodes' own network: takes in what is known, decides by `signpost_core::announce`, and acts.

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
use signpost_core::announce::liveness::{Heartbeat, INTERVAL, Liveness, digest, id};
use signpost_core::announce::ownership::{self, Situation, Step};
use signpost_core::announce::served::AllServed;
use signpost_metallb::NAMESPACE;
use signpost_metallb::state::{ADDRESSES_FREE, in_use};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::RETRY;
use super::configuration::{self, Report};
use super::heartbeat::{self, Key, Unheard};
use super::interfaces::{self, Interface};
use super::known::{Known, Word};
use super::numbers::Numbers;
use super::records::{self, Written};
use super::responder::{Answers, Place, Responder, Sighting};
use super::rivals::{Rivals, Verdict};
use super::told::{self, AllAnnounced};
use super::wanted::{self, Wanted};

/// When the segment is told of a new address, after the first time: devices drop single frames.
const BURST_MS: [u64; 6] = [30, 150, 500, 1_000, 2_000, 4_000];
/// And how often later: tables of switches forget.
const REMIND: Duration = Duration::from_secs(30);
/// A round that takes longer is sleep: nobody was heard meanwhile.
const SLEEP: Duration = INTERVAL.saturating_mul(3);
/// How long the API may take to show that it is there.
const PROBE: Duration = Duration::from_millis(400);

pub(super) type Words = SelectAll<Pin<Box<dyn Stream<Item = Word> + Send>>>;

/// What the machine and the cluster must give.
pub(super) struct Parts {
    responder: Responder,
    sightings: mpsc::Receiver<Sighting>,
    socket: UdpSocket,
    key: Key,
    changes: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

impl Parts {
    /// Tries until there is all of it.
    pub(super) async fn get(client: &Client, numbers: &Numbers) -> Parts {
        let mut said = String::new();
        loop {
            match Parts::try_get(client, numbers).await {
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

    async fn try_get(client: &Client, numbers: &Numbers) -> Result<Parts, String> {
        let (seen, sightings) = mpsc::channel(64);
        let told = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        Ok(Parts {
            sightings,
            responder: Responder::start(numbers.clone(), seen).map_err(told("no packet sockets (CAP_NET_RAW)"))?,
            socket: heartbeat::listen().await.map_err(told("no socket for heartbeats"))?,
            changes: interfaces::changes().map_err(told("interfaces cannot be followed"))?,
            key: Key::get(client).await.map_err(|error| error.to_string())?,
        })
    }
}

/// Decides and acts, for this node.
pub(super) struct Speaker {
    client: Client,
    node: Arc<str>,
    known: Known,
    served: watch::Receiver<AllServed>,
    parts: Parts,
    announced: watch::Sender<AllAnnounced>,
    reports: watch::Sender<Report>,
    numbers: Numbers,
    rivals: Rivals,
    /// The Services, by uid, that were told that somebody else has an address of theirs.
    told_in_use: BTreeSet<(IpAddr, String)>,
    interfaces: Vec<Interface>,
    /// The daemon has said what it serves. Before, it would seem to be nothing, and the records would be given up.
    published: bool,
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
    Told,
}

impl Speaker {
    #[allow(clippy::too_many_arguments)] // each is something else, and there is one caller
    pub(super) fn new(
        client: Client,
        node: Arc<str>,
        known: Known,
        served: watch::Receiver<AllServed>,
        parts: Parts,
        announced: watch::Sender<AllAnnounced>,
        reports: watch::Sender<Report>,
        numbers: Numbers,
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
            reports,
            numbers,
            rivals: Rivals::default(),
            told_in_use: BTreeSet::new(),
            interfaces: Vec::new(),
            published: false,
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

    pub(super) async fn run(mut self, mut words: Words, mut leave: mpsc::Receiver<oneshot::Sender<()>>) {
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
            let probed = self.rivals.next(self.now()).map(|at| self.born + at);
            tokio::select! {
                chunk = words.next() => match chunk {
                    Some(chunk) => {
                        chunk.into_iter().for_each(|word| self.known.hear(word));
                        self.tell_problems();
                    }
                    None => return,
                },
                changed = self.served.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.published = true;
                }
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
                Some(sighting) = self.parts.sightings.recv() => {
                    if !self.sighted(sighting) {
                        continue;
                    }
                }
                () = super::until(probed), if probed.is_some() => {}
                () = super::until(burst), if burst.is_some() => {
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
                done.take().into_iter().for_each(super::answer);
                return;
            }
        }
    }

    /// What cannot be used of the configuration is told.
    fn tell_problems(&self) {
        let faults = configuration::problems(&configuration::of_kind("L2Advertisement", &self.known.faults));
        let others = self.rivals.problems();
        let problems = std::iter::once(faults).filter(|faults| !faults.is_empty()).chain(others);
        let now = report(problems.collect::<Vec<_>>().join("; "), in_use(self.rivals.in_use()));
        self.reports.send_if_modified(|current| {
            let changed = *current != now;
            if changed || !self.numbers.is_configured("l2") {
                self.numbers.configured("l2", self.known.faults.len());
            }
            *current = now;
            changed
        });
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

    /// Whether it knows the records and what this node serves.
    fn is_ready(&self) -> bool {
        self.published && self.known.is_whole()
    }

    /// Tells the other nodes that this one lives, once it is ready: before, it would seem to keep what it does not know that
    /// it has, or cannot answer for.
    fn say(&mut self) {
        if !self.is_ready() {
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

    fn wanted(&self) -> Wanted {
        wanted::wanted(&self.known, &self.served.borrow(), &self.interfaces, &self.node)
    }

    /// Brings records, answers and what is told in step with what is known.
    fn decide(&mut self) {
        if !self.is_ready() {
            return;
        }
        // What was heard of others comes before what silence allows.
        while let Ok(sighting) = self.parts.sightings.try_recv() {
            self.sighted(sighting);
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
        steps.into_iter().for_each(|step| self.write(step, &wanted));
        let fenced = !self.reaches_api && !self.liveness.may_answer_without_api(&others, owns, now);
        let mine = |address: &IpAddr| !fenced && holders.get(address) == Some(&self.node);
        let answers: Answers = wanted
            .places
            .iter()
            .filter(|(address, _)| mine(address))
            .flat_map(|(_, places)| places.iter().map(|(place, _, mac)| (*place, *mac)))
            .collect();
        let announced = wanted.announced(&holders, &mine);
        let owned = answers.keys().map(|(_, address)| *address).collect();
        self.rivals.own(&owned, |address| wanted.services.contains_key(address), now);
        self.parts.responder.watch(self.rivals.watched());
        self.told_in_use.retain(|(address, _)| wanted.services.contains_key(address));
        self.tell_problems();
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

    /// Somebody else claims an address. `true`: something may have to be done about it.
    fn sighted(&mut self, Sighting { address, mac }: Sighting) -> bool {
        let is_own = self.interfaces.iter().any(|interface| interface.mac == mac);
        let now = self.now();
        if is_own || !self.rivals.heard(address, mac, now) {
            return false;
        }
        warn!(%address, %mac, "somebody else on the segment has a load-balancer address");
        self.told_in_use.retain(|(of, _)| *of != address);
        let wanted = self.wanted();
        self.tell_in_use(address, &wanted);
        // Whoever heard the other one is told again.
        for (place, next) in &mut self.bursts {
            if place.1 == address {
                *next = (Instant::now(), 0);
            }
        }
        true
    }

    /// Tells the Services of an address who else has it, each once.
    fn tell_in_use(&mut self, address: IpAddr, wanted: &Wanted) {
        let Some(mac) = self.rivals.holder(address) else { return };
        for (name, uid, _) in wanted.services.get(&address).into_iter().flatten() {
            if !self.told_in_use.insert((address, uid.clone())) {
                continue;
            }
            let (client, node, name, uid) = (self.client.clone(), self.node.clone(), name.clone(), uid.clone());
            let message = format!("{address} is in use on the segment of node {node}: {mac} says that it has it");
            self.work.spawn(async move {
                let told = told::post(&client, &node, &name, &uid, ("Warning", "AddressInUse"), message).await;
                if let Err(error) = told {
                    debug!(service = %name, %error, "an event could not be written");
                }
                Done::Told
            });
        }
    }

    /// Whether an address without a record is free: nobody on the segment answers for it.
    fn is_free(&mut self, address: IpAddr, wanted: &Wanted) -> bool {
        let now = self.now();
        match self.rivals.may_claim(address, now) {
            Verdict::Free => true,
            Verdict::Wait => false,
            Verdict::InUse => {
                self.tell_in_use(address, wanted);
                false
            }
            Verdict::Probe => {
                self.parts.responder.watch(self.rivals.watched());
                for (place, _, mac) in wanted.places.get(&address).into_iter().flatten() {
                    self.parts.responder.probe(*place, *mac);
                }
                false
            }
        }
    }

    fn write(&mut self, step: Step, wanted: &Wanted) {
        if let Step::Claim(address) = step
            && self.known.record(address).is_none()
            && !self.writing.contains(&address)
            && !self.is_free(address, wanted)
        {
            return;
        }
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
            Done::Told => {}
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

/// What this part says of itself.
pub(super) fn report(problems: String, in_use: String) -> Report {
    Report { problems, aspect: (ADDRESSES_FREE, "AddressInUse"), trouble: in_use }
}
