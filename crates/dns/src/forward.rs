//! Questions of others' names, asked of upstream servers.
//!
//! ```text
//! question ─▶ choose ─▶ exchange ─▶ answer
//!               ▲          │ failed
//!               └──────────┴─▶ the next one; a health check until it answers again
//! ```

mod exchange;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tracing::{info, warn};

use crate::config::{Forward, Policy};
use crate::message::{Response, Transport};
use crate::metrics::Metrics;
use crate::random::Random;
use exchange::{Exchange, exchange};

/// A question has no longer, over all upstreams: then its client has given up.
const DEADLINE: Duration = Duration::from_secs(5);
/// The most questions that wait for one `forward`, where it sets no limit itself.
const MOST_WAITING: usize = 10_000;

/// One `forward`, at work.
pub struct Forwarder {
    settings: Forward,
    upstreams: Vec<Arc<Upstream>>,
    waiting: AtomicUsize,
    next: AtomicUsize,
    /// Our own questions came back to us.
    looping: AtomicBool,
    metrics: Arc<Metrics>,
}

struct Upstream {
    address: SocketAddr,
    /// Checks that failed since the last answer.
    fails: AtomicU32,
    checking: AtomicBool,
}

/// A question for an upstream.
#[derive(Debug, Clone)]
pub struct Question {
    /// The name.
    pub name: Name,
    /// The type.
    pub kind: RecordType,
    /// How the client asked.
    pub transport: Transport,
    /// It wants a recursive answer.
    pub recursion: bool,
    /// It wants DNSSEC records.
    pub dnssec_ok: bool,
    /// It validates itself.
    pub checking_disabled: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// Too many wait already.
    #[error("too many questions wait for upstreams")]
    Busy,
    /// The upstreams send our own questions back to us.
    #[error("the upstreams send our questions back to us")]
    Loop,
    /// None answered in time.
    #[error("no upstream answers")]
    Unanswered,
}

impl Forwarder {
    /// `addresses`: the upstreams.
    pub fn new(settings: Forward, addresses: Vec<SocketAddr>, metrics: Arc<Metrics>) -> Forwarder {
        let upstream =
            |address| Arc::new(Upstream { address, fails: AtomicU32::new(0), checking: AtomicBool::new(false) });
        let upstreams = addresses.into_iter().map(upstream).collect();
        let (waiting, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Forwarder { settings, upstreams, waiting, next, looping: AtomicBool::new(false), metrics }
    }

    /// How it is set up.
    pub fn settings(&self) -> &Forward {
        &self.settings
    }

    /// Whether names in its domain go to it.
    pub fn takes(&self, name: &Name) -> bool {
        !self.upstreams.is_empty()
            && self.settings.from.zone_of(name)
            && !self.settings.except.iter().any(|except| except.zone_of(name))
    }

    /// Says that a question of ours came back: from now on none is sent, as each would come back again.
    pub fn is_a_loop(&self) {
        if !self.looping.swap(true, Ordering::Relaxed) {
            let upstreams: Vec<SocketAddr> = self.upstreams.iter().map(|upstream| upstream.address).collect();
            warn!(
                domain = %self.settings.from,
                ?upstreams,
                "an upstream sends our questions back to us; this forward is out of service: name the real upstreams in the Corefile"
            );
        }
    }

    /// Asks.
    ///
    /// # Errors
    /// Nobody answered.
    pub async fn ask(self: &Arc<Self>, question: &Question, random: &mut Random) -> Result<Response, ForwardError> {
        if self.looping.load(Ordering::Relaxed) {
            return Err(ForwardError::Loop);
        }
        let most = if self.settings.max_concurrent == 0 { MOST_WAITING } else { self.settings.max_concurrent };
        let _place = Place::take(&self.waiting, most).ok_or_else(|| {
            self.metrics.forward_rejected();
            ForwardError::Busy
        })?;
        let deadline = Instant::now() + DEADLINE;
        let mut last = None;
        for upstream in self.order(random) {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = self.settings.read_timeout.min(left);
            if timeout.is_zero() {
                break;
            }
            let began = Instant::now();
            match exchange(&self.exchange_of(question, upstream.address, timeout)).await {
                Ok(message) => {
                    upstream.fails.store(0, Ordering::Relaxed);
                    let code = message.metadata.response_code;
                    self.metrics.forwarded(upstream.address, code, began.elapsed());
                    let response = response(message);
                    if !self.settings.failover.contains(&code) {
                        return Ok(response);
                    }
                    last = Some(response);
                }
                Err(error) => {
                    tracing::debug!(upstream = %upstream.address, name = %question.name, %error, "an upstream did not answer");
                    self.check(&upstream);
                }
            }
        }
        last.ok_or(ForwardError::Unanswered)
    }

    /// Those that are not down, in the order of the policy; if all are down, all of them at random.
    fn order(&self, random: &mut Random) -> Vec<Arc<Upstream>> {
        let most_fails = self.settings.max_fails;
        let is_up = |upstream: &&Arc<Upstream>| most_fails == 0 || upstream.fails.load(Ordering::Relaxed) < most_fails;
        let mut up: Vec<Arc<Upstream>> = self.upstreams.iter().filter(is_up).cloned().collect();
        if up.is_empty() {
            self.metrics.all_upstreams_down();
            if self.settings.fail_fast {
                return Vec::new();
            }
            up = self.upstreams.clone();
            random.choose(&mut up, usize::MAX);
            return up;
        }
        match self.settings.policy {
            Policy::Random => random.choose(&mut up, usize::MAX),
            Policy::RoundRobin => {
                let first = self.next.fetch_add(1, Ordering::Relaxed) % up.len();
                up.rotate_left(first);
            }
            Policy::Sequential => {}
        }
        up
    }

    fn exchange_of<'a>(&self, question: &'a Question, upstream: SocketAddr, timeout: Duration) -> Exchange<'a> {
        let by_tcp = question.transport == Transport::Tcp && !self.settings.prefer_udp;
        Exchange { question, upstream, timeout, by_tcp: by_tcp || self.settings.force_tcp }
    }

    /// Checks an upstream until it answers: one check at a time.
    fn check(self: &Arc<Self>, upstream: &Arc<Upstream>) {
        if self.settings.max_fails == 0 || upstream.checking.swap(true, Ordering::AcqRel) {
            return;
        }
        // The checks end with the forward: after a reload nobody asks for them any more.
        let (forwarder, upstream) = (Arc::downgrade(self), upstream.clone());
        tokio::spawn(async move {
            loop {
                let Some(this) = forwarder.upgrade() else { return };
                let (every, most_fails) = (this.settings.health_check, this.settings.max_fails);
                if this.is_well(&upstream).await {
                    if upstream.fails.swap(0, Ordering::Relaxed) >= most_fails {
                        info!(upstream = %upstream.address, "the upstream answers again");
                    }
                    break;
                }
                this.metrics.health_check_failed(upstream.address);
                if upstream.fails.fetch_add(1, Ordering::Relaxed) + 1 == most_fails {
                    warn!(upstream = %upstream.address, "the upstream is down");
                }
                drop(this);
                tokio::time::sleep(every).await;
            }
            upstream.checking.store(false, Ordering::Release);
        });
    }

    /// Any answer will do.
    async fn is_well(&self, upstream: &Upstream) -> bool {
        let question = Question {
            name: self.settings.health_domain.clone(),
            kind: RecordType::NS,
            transport: Transport::Udp,
            recursion: self.settings.health_recursion,
            dnssec_ok: false,
            checking_disabled: false,
        };
        exchange(&self.exchange_of(&question, upstream.address, Duration::from_secs(1))).await.is_ok()
    }
}

/// One of the places of questions that wait.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, most: usize) -> Option<Place<'a>> {
        let place = Place(waiting);
        // Dropped again if there were too many.
        (waiting.fetch_add(1, Ordering::Relaxed) < most).then_some(()).map(|()| place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn response(message: Message) -> Response {
    let mut additionals = message.additionals;
    additionals.retain(|record| record.record_type() != RecordType::OPT);
    Response {
        code: ResponseCode::from(0, message.metadata.response_code.low()),
        authoritative: false,
        authentic: message.metadata.authentic_data,
        truncated: message.metadata.truncation,
        answers: message.answers,
        authorities: message.authorities,
        additionals,
    }
}
