//! Takes questions from the network and sends the answers.
//!
//! ```text
//! packet ─▶ Request ─▶ Engine::answer ─▶ packet
//!              │ no question        │ must wait for an upstream: goes on in a task of its own
//!              └─▶ error answers, within the client's share
//! ```

mod tcp;
mod udp;

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use futures::FutureExt;
use hickory_proto::op::ResponseCode;
use tokio::task::JoinSet;
use tracing::info;

use crate::engine::Engine;
use crate::limit::ErrorLimit;
use crate::message::{Refusal, Request, Transport};
use crate::metrics::{Metrics, Scope, Served};

/// What all listeners share.
pub struct Shared {
    engine: RwLock<Arc<Engine>>,
    metrics: Arc<Metrics>,
    errors: Mutex<ErrorLimit>,
    began: Instant,
    /// Where questions are counted that belong to no zone.
    nowhere: Arc<Scope>,
}

/// Where one packet came from.
#[derive(Debug, Clone, Copy)]
struct Origin {
    listener: SocketAddr,
    client: SocketAddr,
    transport: Transport,
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {source}")]
pub struct ListenError {
    /// Where.
    address: SocketAddr,
    /// Why.
    source: io::Error,
}

/// All listeners. They end when this is dropped.
#[derive(Default)]
pub struct Listeners {
    running: BTreeMap<SocketAddr, JoinSet<()>>,
}

impl Listeners {
    /// Listens at these addresses and no others; those that there are stay as they are. An address with port 0 gets one that is free.
    ///
    /// # Errors
    /// An address cannot be had. Then those that there were stay.
    pub fn listen(&mut self, addresses: &[SocketAddr], shared: &Arc<Shared>) -> Result<(), ListenError> {
        let mut started = BTreeMap::new();
        for address in addresses {
            if !self.running.contains_key(address) && !started.contains_key(address) {
                let tasks = start(*address, shared).map_err(|source| ListenError { address: *address, source })?;
                info!(%address, "answering");
                started.insert(*address, tasks);
            }
        }
        self.running.retain(|address, _| addresses.contains(address));
        self.running.append(&mut started);
        Ok(())
    }
}

fn start(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let stream = tcp::listener(address)?;
    for socket in udp::sockets(address)? {
        tasks.spawn(udp::serve(socket, address, shared.clone()));
    }
    tasks.spawn(tcp::serve(stream, address, shared.clone()));
    Ok(tasks)
}

impl Shared {
    /// Answers by this engine.
    pub fn new(engine: Arc<Engine>, metrics: Arc<Metrics>) -> Shared {
        let nowhere = metrics.scope("", "dropped");
        let errors = Mutex::new(ErrorLimit::new(RandomState::new()));
        Shared { engine: RwLock::new(engine), metrics, errors, began: Instant::now(), nowhere }
    }

    /// The engine that answers now.
    pub fn engine(&self) -> Arc<Engine> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on another one answers.
    pub fn replace_engine(&self, engine: Arc<Engine>) {
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    /// The question of a packet; or what is sent at once, if anything.
    fn read(&self, packet: &[u8], origin: Origin) -> Result<Request, Option<Vec<u8>>> {
        match Request::read(packet, origin.transport) {
            Ok(request) => Ok(request),
            Err(Refusal::Silence) => Err(None),
            Err(Refusal::Reply(reply, code)) => {
                let served = Served {
                    kind: hickory_proto::rr::RecordType::ZERO,
                    code,
                    plugin: crate::metrics::Plugin::Server,
                    transport: origin.transport,
                    is_ipv6: origin.client.is_ipv6(),
                    request_size: packet.len(),
                    response_size: reply.len(),
                    dnssec_ok: false,
                    took: std::time::Duration::ZERO,
                };
                self.nowhere.served(&served);
                Err(Some(reply).filter(|_| self.may_send_error(origin, code)))
            }
        }
    }

    /// The answer to a question, as a packet. `None`: nothing is sent.
    async fn answer(&self, engine: Arc<Engine>, request: Request, origin: Origin) -> Option<Vec<u8>> {
        let began = Instant::now();
        // A client is known by one address, whatever the socket calls it.
        let client: IpAddr = origin.client.ip().to_canonical();
        let answering = AssertUnwindSafe(engine.answer(origin.listener, client, &request)).catch_unwind();
        let Ok(answered) = answering.await else {
            self.metrics.panicked();
            return None;
        };
        let packet = request.write(&answered.response);
        answered.scope.as_ref().unwrap_or(&self.nowhere).served(&Served {
            transport: origin.transport,
            is_ipv6: client.is_ipv6(),
            kind: request.kind,
            code: answered.response.code,
            plugin: answered.plugin,
            request_size: request.size,
            response_size: packet.len(),
            dnssec_ok: request.edns.is_some_and(|edns| edns.dnssec_ok),
            took: began.elapsed(),
        });
        Some(packet).filter(|_| self.may_send_error(origin, answered.response.code))
    }

    /// Whether an answer with this code is sent: errors only within the client's share. Who has a connection has no false address.
    fn may_send_error(&self, origin: Origin, code: ResponseCode) -> bool {
        if matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) || origin.transport == Transport::Tcp {
            return true;
        }
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = errors.allows(origin.client.ip(), now_ms);
        if !allowed {
            self.metrics.error_kept_back();
        }
        allowed
    }
}

#[cfg(test)]
mod tests;
