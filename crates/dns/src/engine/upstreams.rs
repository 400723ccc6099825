//! What upstreams say, from the cache or from themselves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use tracing::debug;

use super::block::{Block, SharedCache};
use super::with_random;
use crate::cache::{Cache, Hit, Key};
use crate::forward::{ForwardError, Forwarder, Question};
use crate::message::{Request, Response, Transport};
use crate::metrics::Plugin;
use crate::random::Random;

/// How often, and after what pause, it is tried whether questions come back, until an upstream answers.
const PROBES: usize = 5;
const PROBE_PAUSE: Duration = Duration::from_secs(2);

impl Block {
    /// Asks the upstreams for a name, or the cache for what they said. Nobody to ask: refused.
    pub(super) async fn upstream_answer(
        self: &Arc<Self>,
        request: &Request,
        name: &Name,
        kind: RecordType,
    ) -> (Response, Plugin) {
        let Some((forwarder, _)) = self.forwards.iter().find(|(forwarder, _)| forwarder.takes(name)) else {
            return (Response::code(ResponseCode::Refused), Plugin::Server);
        };
        let question = Question {
            name: name.clone(),
            kind,
            transport: request.transport,
            recursion: request.recursion,
            dnssec_ok: request.edns.is_some_and(|edns| edns.dnssec_ok),
            checking_disabled: request.checking_disabled,
        };
        let Some(cache) = self.cache_of(name) else {
            return (settled(forwarder.ask(&question, &mut own_random()).await), Plugin::Forward);
        };
        let key = Key::new(name, kind, question.dnssec_ok, question.checking_disabled);
        let hit = cache.get(&key, name);
        match hit {
            Some(hit) if !hit.is_stale || !self.verifies() => {
                if hit.is_stale {
                    cache.numbers.served_stale.fetch_add(1, Ordering::Relaxed);
                }
                if hit.prefetch {
                    self.refresh(forwarder.clone(), question, key);
                }
                (hit.response, Plugin::Cache)
            }
            hit => self.ask_and_keep(forwarder, &question, key, hit).await,
        }
    }

    /// `stale`: what may be answered if nobody answers now.
    async fn ask_and_keep(
        &self,
        forwarder: &Arc<Forwarder>,
        question: &Question,
        key: Key,
        stale: Option<Hit>,
    ) -> (Response, Plugin) {
        let asked = forwarder.ask(question, &mut own_random()).await;
        let failed = match &asked {
            Ok(response) => response.code == ResponseCode::ServFail,
            Err(_) => true,
        };
        if let Some(cache) = &self.cache {
            match (&asked, &stale) {
                (_, Some(_)) if failed => cache.locked().not_refreshed(&key),
                (Ok(response), _) => cache.put(key, response),
                (Err(_), _) => {}
            }
            if let (true, Some(stale)) = (failed, stale) {
                cache.numbers.served_stale.fetch_add(1, Ordering::Relaxed);
                return (stale.response, Plugin::Cache);
            }
        }
        (settled(asked), Plugin::Forward)
    }

    /// Asks again for what is in the cache, while the client has its answer already.
    fn refresh(self: &Arc<Self>, forwarder: Arc<Forwarder>, question: Question, key: Key) {
        let block = self.clone();
        tokio::spawn(async move {
            let Some(cache) = &block.cache else { return };
            cache.numbers.prefetches.fetch_add(1, Ordering::Relaxed);
            match forwarder.ask(&question, &mut own_random()).await {
                Ok(response) if response.code != ResponseCode::ServFail => cache.put(key, &response),
                _ => cache.locked().not_refreshed(&key),
            }
        });
    }

    /// Whether an answer whose time is over is given only when the upstreams are silent.
    fn verifies(&self) -> bool {
        let stale = self.config.cache.as_ref().and_then(|cache| cache.serve_stale);
        stale.is_none_or(|stale| stale.verify)
    }

    fn cache_of(&self, name: &Name) -> Option<&SharedCache> {
        let settings = self.config.cache.as_ref()?;
        let within = |zones: &[Name]| zones.iter().any(|zone| zone.zone_of(name));
        self.cache.as_ref().filter(|_| within(&settings.zones) && !within(&settings.except))
    }

    /// Sends each upstream a question that nobody else asks: if it comes back, the forward is taken out of service.
    pub async fn probe_for_loops(&self) {
        if !self.config.detect_loops {
            return;
        }
        for (forwarder, name) in &self.forwards {
            let question = Question {
                name: name.clone(),
                kind: RecordType::HINFO,
                transport: Transport::Udp,
                recursion: true,
                dnssec_ok: false,
                checking_disabled: false,
            };
            if !forwarder.takes(name) {
                continue;
            }
            for _ in 0..PROBES {
                match forwarder.ask(&question, &mut own_random()).await {
                    Ok(_) | Err(ForwardError::Loop) => break,
                    Err(error) => debug!(%error, "no upstream answers yet: whether it is a loop is not known"),
                }
                tokio::time::sleep(PROBE_PAUSE).await;
            }
        }
    }
}

impl SharedCache {
    fn locked(&self) -> MutexGuard<'_, Cache> {
        // An entry is whole or not there.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &Key, name: &Name) -> Option<Hit> {
        let hit = self.locked().get(key, name, self.began.elapsed());
        let number = match &hit {
            None | Some(Hit { is_stale: true, .. }) => &self.numbers.misses,
            Some(hit) if hit.response.answers.is_empty() => &self.numbers.denial_hits,
            Some(_) => &self.numbers.hits,
        };
        number.fetch_add(1, Ordering::Relaxed);
        hit
    }

    fn put(&self, key: Key, response: &Response) {
        let mut cache = self.locked();
        cache.put(key, response, self.began.elapsed(), &mut own_random());
        let (success, denial) = cache.len();
        self.numbers.entries.store(success as u64, Ordering::Relaxed);
        self.numbers.denial_entries.store(denial as u64, Ordering::Relaxed);
    }
}

/// The answer to a client. Too many wait: refused, as CoreDNS does; nobody answers: a failure.
fn settled(asked: Result<Response, ForwardError>) -> Response {
    asked.unwrap_or_else(|error| {
        Response::code(match error {
            ForwardError::Busy => ResponseCode::Refused,
            ForwardError::Loop | ForwardError::Unanswered => ResponseCode::ServFail,
        })
    })
}

/// Numbers for one question, which may go from thread to thread.
fn own_random() -> Random {
    Random::new(with_random(Random::draw))
}
