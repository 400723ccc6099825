//! The server blocks at work: which one a question belongs to, and what its plugins make of it.
//!
//! ```text
//! name, type ─▶ block ─▶ rewrite ─▶ autopath ─▶ hosts ─▶ kubernetes ─▶ cache ─▶ forward
//!                 ▲                                          │ CNAME
//!                 └──────────────────────────────────────────┘
//! ```

mod block;
mod upstreams;

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::message::{Request, Response};
use crate::metrics::{Plugin, Scope};
use crate::random::Random;
use crate::rewrite::rewrite;
use crate::zone::Outcome;

pub use block::{Block, SetupError, SharedHosts};

/// A CNAME that leads to a CNAME, and so on: no further than this.
const MOST_ALIASES: usize = 8;

/// All server blocks.
pub struct Engine {
    blocks: Vec<Arc<Block>>,
}

/// An answer, with who gave it and where it is counted.
pub struct Answered {
    /// The answer.
    pub response: Response,
    /// By whom.
    pub plugin: Plugin,
    /// `None`: the question belongs to no server block.
    pub scope: Option<Arc<Scope>>,
}

/// Who asks, and how.
struct Asker<'a> {
    listener: SocketAddr,
    client: IpAddr,
    request: &'a Request,
}

impl Engine {
    /// Of these blocks.
    pub fn new(blocks: Vec<Arc<Block>>) -> Engine {
        Engine { blocks }
    }

    /// Its blocks.
    pub fn blocks(&self) -> &[Arc<Block>] {
        &self.blocks
    }

    /// Answers a question that came to this listener from this client.
    pub async fn answer(&self, listener: SocketAddr, client: IpAddr, request: &Request) -> Answered {
        let Some((block, scope)) = self.block(listener, &request.name) else {
            let response = Response::code(ResponseCode::Refused);
            return Answered { response, plugin: Plugin::Server, scope: None };
        };
        let asker = Asker { listener, client, request };
        let (mut response, plugin) = match rewrite(&block.config.rewrites, &request.name) {
            None => self.search(&asker, block, &request.name).await,
            Some(rewritten) => {
                let (mut response, plugin) = self.search(&asker, block, &rewritten.name).await;
                for records in [&mut response.answers, &mut response.authorities, &mut response.additionals] {
                    rewritten.turn_back(records);
                }
                (response, plugin)
            }
        };
        if block.config.loadbalance && !response.authoritative {
            shuffle_addresses(&mut response.answers);
        }
        if block.config.log {
            tracing::info!(%client, name = %request.name, kind = %request.kind, code = %response.code, "question");
        }
        Answered { response, plugin, scope: Some(scope.clone()) }
    }

    /// The block whose zone is the longest that the name ends in, of those at this listener.
    fn block(&self, listener: SocketAddr, name: &Name) -> Option<(&Arc<Block>, &Arc<Scope>)> {
        let here = self.blocks.iter().filter(|block| block.listen.contains(&listener));
        let zones = here.flat_map(|block| block.zones.iter().map(move |(zone, scope)| (zone, scope, block)));
        let fits = zones.filter(|(zone, _, _)| zone.zone_of(name));
        let (_, scope, block) = fits.max_by_key(|(zone, _, _)| zone.num_labels())?;
        Some((block, scope))
    }

    /// Looks a name up; with autopath, along the client's search path at once.
    async fn search(&self, asker: &Asker<'_>, block: &Arc<Block>, name: &Name) -> (Response, Plugin) {
        let Some(path) = block.search_path(asker.client, name, asker.request.kind) else {
            return self.lookup(asker, block, name, 0).await;
        };
        let mut first = None;
        for candidate in path {
            let (mut response, plugin) = self.chased(asker, &candidate, 0).await;
            if response.code == ResponseCode::NoError && !response.answers.is_empty() {
                if candidate != *name {
                    let ttl_s = response.answers.iter().map(|record| record.ttl).min().unwrap_or(0);
                    let alias = Record::from_rdata(name.clone(), ttl_s, RData::CNAME(CNAME(candidate)));
                    response.answers.insert(0, alias);
                }
                return (response, plugin);
            }
            first = first.or(Some((response, plugin)));
        }
        first.unwrap_or((Response::code(ResponseCode::ServFail), Plugin::Server))
    }

    /// Looks a name up in the block that it belongs to.
    fn chased<'a>(&'a self, asker: &'a Asker<'a>, name: &'a Name, aliases: usize) -> BoxFuture<'a, (Response, Plugin)> {
        Box::pin(async move {
            match self.block(asker.listener, name) {
                Some((block, _)) if aliases < MOST_ALIASES => self.lookup(asker, block, name, aliases).await,
                Some(_) => (Response::code(ResponseCode::ServFail), Plugin::Server),
                None => (Response::code(ResponseCode::Refused), Plugin::Server),
            }
        })
    }

    async fn lookup(&self, asker: &Asker<'_>, block: &Arc<Block>, name: &Name, aliases: usize) -> (Response, Plugin) {
        let kind = asker.request.kind;
        if block.is_own_probe(name, kind) {
            return (Response::code(ResponseCode::ServFail), Plugin::Loop);
        }
        if let Some(response) = block.hosts_answer(name, kind) {
            return (response, Plugin::Hosts);
        }
        if let Some(zone) = &block.zone {
            // No lock is held while something is waited for.
            let answer = with_random(|random| zone.read().answer(name, kind, random, asker.request.most_records()));
            match answer {
                Some(answer) if answer.outcome == Outcome::NoName && block.falls_through(name) => {}
                Some(answer) => {
                    let mut response = Response {
                        authoritative: true,
                        answers: answer.answers,
                        additionals: answer.additionals,
                        authorities: answer.authority.into_iter().collect(),
                        ..Response::code(match answer.outcome {
                            Outcome::Found | Outcome::NoData => ResponseCode::NoError,
                            Outcome::NoName => ResponseCode::NXDomain,
                            Outcome::NotReady => ResponseCode::ServFail,
                        })
                    };
                    if let Some(target) = answer.chase {
                        let (chased, _) = self.chased(asker, &target, aliases + 1).await;
                        add_chased(&mut response, chased);
                    }
                    return (response, Plugin::Kubernetes);
                }
                None => {}
            }
        }
        block.upstream_answer(asker.request, name, kind).await
    }
}

/// What the alias leads to becomes a part of the answer.
fn add_chased(response: &mut Response, chased: Response) {
    response.answers.extend(chased.answers);
    response.truncated |= chased.truncated;
    // That nobody may be asked for the name leaves the alias itself true.
    if chased.code != ResponseCode::Refused {
        response.code = chased.code;
        response.authorities = chased.authorities;
    }
}

/// Addresses in random order, after the names that lead to them.
fn shuffle_addresses(records: &mut Vec<Record>) {
    let is_address = |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
    if records.iter().filter(|record| is_address(record)).count() < 2 {
        return;
    }
    let (mut addresses, mut others): (Vec<Record>, Vec<Record>) = records.drain(..).partition(is_address);
    with_random(|random| random.choose(&mut addresses, usize::MAX));
    others.append(&mut addresses);
    *records = others;
}

/// Random numbers of this thread.
pub(crate) fn with_random<T>(use_them: impl FnOnce(&mut Random) -> T) -> T {
    thread_local!(static OWN: RefCell<Random> = RefCell::new(Random::new(RandomState::new().hash_one(0))));
    OWN.with(|own| use_them(&mut own.borrow_mut()))
}

#[cfg(test)]
mod tests;
