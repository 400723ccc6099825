//! Pure. Which notes become an Event, which count one up, and which are too many: as client-go's correlator does it.
//!
//! The same note again counts up the Event that is there. Notes of one object and reason that differ only in their text
//! are told ten times within ten minutes, then as one "combined" Event. An object gets 25 Events at once and one more
//! every five minutes; the rest is dropped.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{Note, Severity};

const SAME_FOR: SignedDuration = SignedDuration::from_mins(10);
const DIFFERENT_TEXTS: usize = 10;
const BURST: f64 = 25.0;
const REFILL_S: f64 = 300.0;
/// Entries kept; beyond that the old ones go.
const KEPT: usize = 4096;

/// What to do with a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A new Event.
    Create {
        /// Its name.
        name: String,
        /// Its text.
        message: String,
    },
    /// The Event of this name happened again.
    Count {
        /// Its name.
        name: String,
        /// How often by now.
        count: i32,
    },
    /// Nothing.
    Drop,
}

type Key = (String, Severity, &'static str, &'static str);

struct Told {
    name: String,
    count: i32,
    last: Timestamp,
}

struct Bucket {
    tokens: f64,
    last: Timestamp,
}

/// What was told lately.
#[derive(Default)]
pub struct Aggregate {
    told: BTreeMap<(Key, String), Told>,
    buckets: BTreeMap<String, Bucket>,
}

impl Aggregate {
    /// Decides about a note; counts it as told.
    pub fn decide(&mut self, note: &Note, now: Timestamp) -> Decision {
        self.forget_old(now);
        let key = key(note);
        let differing = self
            .told
            .range((key.clone(), String::new())..)
            .take_while(|((other, _), _)| *other == key)
            .filter(|(_, told)| now.duration_since(told.last) < SAME_FOR);
        let known = self.told.contains_key(&(key.clone(), note.message.clone()));
        let message = if !known && differing.count() >= DIFFERENT_TEXTS {
            format!("(combined from similar events): {}", note.message)
        } else {
            note.message.clone()
        };
        // Combined events share one entry, whatever their text.
        let entry = if message == note.message { message.clone() } else { String::new() };
        if !self.may_speak(&key.0, now) {
            return Decision::Drop;
        }
        if let Some(told) = self.told.get_mut(&(key.clone(), entry.clone())) {
            told.count += 1;
            told.last = now;
            return Decision::Count { name: told.name.clone(), count: told.count };
        }
        let name = event_name(note, now);
        self.told.insert((key, entry), Told { name: name.clone(), count: 1, last: now });
        Decision::Create { name, message }
    }

    /// The Event of this note is gone: gives the name for a new one.
    pub fn forget(&mut self, note: &Note, now: Timestamp) -> String {
        let name = event_name(note, now);
        self.told.insert((key(note), note.message.clone()), Told { name: name.clone(), count: 1, last: now });
        name
    }

    fn may_speak(&mut self, object: &str, now: Timestamp) -> bool {
        let bucket = self.buckets.entry(object.to_owned()).or_insert(Bucket { tokens: BURST, last: now });
        bucket.tokens = (bucket.tokens + now.duration_since(bucket.last).as_secs_f64() / REFILL_S).min(BURST);
        bucket.last = now;
        let may = bucket.tokens >= 1.0;
        if may {
            bucket.tokens -= 1.0;
        }
        may
    }

    fn forget_old(&mut self, now: Timestamp) {
        if self.told.len() > KEPT {
            self.told.retain(|_, told| now.duration_since(told.last) < SAME_FOR);
        }
        if self.buckets.len() > KEPT {
            self.buckets.retain(|_, bucket| now.duration_since(bucket.last).as_secs_f64() < BURST * REFILL_S);
        }
    }
}

fn key(note: &Note) -> Key {
    let object = &note.object;
    let parts = [&object.kind, &object.namespace, &object.name, &object.uid];
    let object = parts.map(|part| part.as_deref().unwrap_or_default()).join("/");
    (object, note.severity, note.reason, note.component)
}

/// As Kubernetes names Events: the object's name and the time in hexadecimal nanoseconds.
fn event_name(note: &Note, now: Timestamp) -> String {
    format!("{}.{:x}", note.object.name.as_deref().unwrap_or("unknown"), now.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn note(name: &str, message: &str) -> Note {
        Note {
            object: ObjectReference { name: Some(name.into()), ..ObjectReference::default() },
            severity: Severity::Normal,
            reason: "SuccessfulCreate",
            message: message.into(),
            component: "test",
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).expect("a time")
    }

    #[test]
    fn the_same_note_counts_up() {
        let mut aggregate = Aggregate::default();
        let Decision::Create { name, .. } = aggregate.decide(&note("web", "x"), at(0)) else { panic!("not told") };
        assert_eq!(aggregate.decide(&note("web", "x"), at(1)), Decision::Count { name, count: 2 });
    }

    #[test]
    fn many_texts_are_combined() {
        let mut aggregate = Aggregate::default();
        for number in 0..10 {
            let decision = aggregate.decide(&note("web", &format!("pod {number}")), at(0));
            assert!(matches!(decision, Decision::Create { message, .. } if !message.starts_with('(')));
        }
        let decision = aggregate.decide(&note("web", "pod 11"), at(0));
        assert!(matches!(decision, Decision::Create { message, .. } if message.starts_with("(combined")));
        assert!(matches!(aggregate.decide(&note("web", "pod 12"), at(0)), Decision::Count { count: 2, .. }));
    }

    #[test]
    fn one_object_can_not_flood() {
        let mut aggregate = Aggregate::default();
        let told = (0..100).filter(|_| aggregate.decide(&note("web", "x"), at(0)) != Decision::Drop).count();
        assert_eq!(told, 25);
        assert!(aggregate.decide(&note("other", "x"), at(0)) != Decision::Drop);
        assert!(aggregate.decide(&note("web", "x"), at(301)) != Decision::Drop);
    }
}
