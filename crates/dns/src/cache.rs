//! Pure. What upstreams said, for as long as it holds, and after that for when they are silent. Time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};

use crate::config::{Cache as Settings, Keep, Prefetch};
use crate::labels::LowerName;
use crate::message::Response;
use crate::random::Random;

/// How many entries are looked at to find one that is given up when there is no room.
const SAMPLED: usize = 8;

/// Answers, and "no"s, each with a limit of its own.
pub struct Cache {
    settings: Settings,
    success: Shelf,
    denial: Shelf,
}

/// What was found.
#[derive(Debug, PartialEq)]
pub struct Hit {
    /// With the time that is left.
    pub response: Response,
    /// Its time is over.
    pub is_stale: bool,
    /// It is wanted, and to be asked for again before its time is over; told once.
    pub prefetch: bool,
}

/// A question as answers are kept by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    name: Box<[u8]>,
    kind: RecordType,
    /// With DNSSEC records, and with those that may not be valid: other answers.
    dnssec_ok: bool,
    checking_disabled: bool,
}

impl Key {
    /// The key of a question.
    pub fn new(name: &Name, kind: RecordType, dnssec_ok: bool, checking_disabled: bool) -> Key {
        let lower = LowerName::new(name);
        Key { name: lower.run(0, lower.count()).into(), kind, dnssec_ok, checking_disabled }
    }
}

#[derive(Default)]
struct Shelf {
    entries: Vec<Entry>,
    places: HashMap<Key, usize>,
}

struct Entry {
    key: Key,
    response: Response,
    stored: Duration,
    ttl: Duration,
    hits: u32,
    last_hit: Duration,
    refreshing: bool,
}

impl Cache {
    /// An empty one.
    pub fn new(settings: Settings) -> Cache {
        Cache { settings, success: Shelf::default(), denial: Shelf::default() }
    }

    /// How many answers and how many "no"s there are.
    pub fn len(&self) -> (usize, usize) {
        (self.success.entries.len(), self.denial.entries.len())
    }

    /// Whether there is none of either.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Looks up what is known at `now`, since any fixed point. Names in it are written as in `asked`.
    pub fn get(&mut self, key: &Key, asked: &Name, now: Duration) -> Option<Hit> {
        let stale = self.settings.serve_stale.map_or(Duration::ZERO, |stale| stale.lasts);
        let prefetch = self.settings.prefetch;
        [&mut self.success, &mut self.denial].into_iter().find_map(|shelf| shelf.get(key, asked, now, stale, prefetch))
    }

    /// Keeps an answer, if it is one to keep.
    pub fn put(&mut self, key: Key, response: &Response, now: Duration, random: &mut Random) {
        let Some((ttl, is_denial)) = lifetime(&self.settings, response) else { return };
        let (shelf, other, capacity) = match is_denial {
            false => (&mut self.success, &mut self.denial, self.settings.success.capacity),
            true => (&mut self.denial, &mut self.success, self.settings.denial.capacity),
        };
        other.remove(&key);
        if capacity > 0 && !ttl.is_zero() {
            let response = response.clone();
            let entry = Entry { key, response, stored: now, ttl, hits: 0, last_hit: now, refreshing: false };
            shelf.put(entry, capacity, random);
        }
    }

    /// A refresh that a hit asked for did not succeed: the next hit may ask again.
    pub fn not_refreshed(&mut self, key: &Key) {
        for shelf in [&mut self.success, &mut self.denial] {
            if let Some(place) = shelf.places.get(key) {
                shelf.entries[*place].refreshing = false;
            }
        }
    }
}

impl Shelf {
    fn get(
        &mut self,
        key: &Key,
        asked: &Name,
        now: Duration,
        stale: Duration,
        prefetch: Option<Prefetch>,
    ) -> Option<Hit> {
        let place = *self.places.get(key)?;
        let entry = &mut self.entries[place];
        let age = now.saturating_sub(entry.stored);
        let is_stale = age >= entry.ttl;
        if age >= entry.ttl + stale {
            self.remove(key);
            return None;
        }
        let wants = is_stale || prefetch.is_some_and(|prefetch| entry.is_popular(prefetch, age, now));
        let refresh = wants && !entry.refreshing;
        entry.refreshing |= refresh;
        let mut response = entry.response.clone();
        let age_s = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        let least_s = u32::from(!is_stale);
        for records in [&mut response.answers, &mut response.authorities, &mut response.additionals] {
            for record in records.iter_mut() {
                record.ttl = if is_stale { 0 } else { record.ttl.saturating_sub(age_s).max(least_s) };
                if record.name == *asked {
                    record.name = asked.clone();
                }
            }
        }
        Some(Hit { response, is_stale, prefetch: refresh })
    }

    fn put(&mut self, entry: Entry, capacity: usize, random: &mut Random) {
        if let Some(place) = self.places.get(&entry.key) {
            self.entries[*place] = entry;
            return;
        }
        while self.entries.len() >= capacity {
            let sampled = (0..SAMPLED).map(|_| random.below(self.entries.len()));
            let first_over = sampled.min_by_key(|at| self.entries[*at].stored + self.entries[*at].ttl);
            let key = self.entries[first_over.unwrap_or(0)].key.clone();
            self.remove(&key);
        }
        self.places.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry);
    }

    fn remove(&mut self, key: &Key) {
        let Some(place) = self.places.remove(key) else { return };
        self.entries.swap_remove(place);
        if let Some(moved) = self.entries.get(place) {
            *self.places.get_mut(&moved.key).expect("every entry has its place") = place;
        }
    }
}

impl Entry {
    /// Counts this hit.
    fn is_popular(&mut self, prefetch: Prefetch, age: Duration, now: Duration) -> bool {
        let pause = now.saturating_sub(self.last_hit);
        self.hits = if pause > prefetch.within { 1 } else { self.hits.saturating_add(1) };
        self.last_hit = now;
        let left = self.ttl.saturating_sub(age);
        let soon = self.ttl.mul_f64(f64::from(prefetch.percentage) / 100.0).max(Duration::from_secs(1));
        self.hits >= prefetch.amount && left <= soon
    }
}

/// How long a response is kept, and whether it is a "no". `None`: not at all.
fn lifetime(settings: &Settings, response: &Response) -> Option<(Duration, bool)> {
    if response.truncated {
        return None;
    }
    let within = |keep: &Keep, ttl_s: u32| Duration::from_secs(ttl_s.into()).max(keep.least_ttl).min(keep.most_ttl);
    let least = response.answers.iter().map(|record| record.ttl).min();
    match (response.code, least) {
        (ResponseCode::NoError, Some(ttl_s)) => Some((within(&settings.success, ttl_s), false)),
        (ResponseCode::NoError | ResponseCode::NXDomain, _) => {
            // RFC 2308: without an SOA record nobody says how long "no" holds.
            let soa = response.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            })?;
            Some((within(&settings.denial, soa.min(least.unwrap_or(soa))), true))
        }
        (ResponseCode::ServFail, _) => Some((settings.servfail, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
