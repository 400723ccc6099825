//! Pure. Events have two versions of the same stored objects: `v1`, which is stored, and `events.k8s.io/v1`.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::object::fields;
use crate::registry::KindInfo;

/// Field names of `events.k8s.io/v1` and of `v1`, at the top level.
const NAMES: [(&str, &str); 6] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
];

fn is_view(kind: &KindInfo) -> bool {
    kind.group == "events.k8s.io"
}

/// An object of a request's kind as it is stored.
pub fn to_stored(kind: &KindInfo, value: &mut Value) {
    if is_view(kind) {
        let event = fields(value);
        for (view, stored) in NAMES.into_iter().chain([("deprecatedCount", "count")]) {
            rename(event, view, stored);
        }
        event.insert("apiVersion".to_owned(), "v1".into());
    }
}

/// A stored object as a request's kind shows it.
pub fn to_served<'a>(kind: &KindInfo, value: &'a Value) -> Cow<'a, Value> {
    if !is_view(kind) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    let event = fields(&mut value);
    for (view, stored) in NAMES.into_iter().chain([("deprecatedCount", "count")]) {
        rename(event, stored, view);
    }
    event.insert("apiVersion".to_owned(), "events.k8s.io/v1".into());
    Cow::Owned(value)
}

fn rename(fields: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::by_plural;

    #[test]
    fn an_event_survives_the_way_through_the_other_version() {
        let kind = by_plural("events.k8s.io", "v1", "events").unwrap();
        let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "regarding": {"name": "w"},
            "reportingController": "c", "action": "a", "deprecatedCount": 2});
        let mut stored = event.clone();
        to_stored(kind, &mut stored);
        assert_eq!(stored["involvedObject"]["name"], "w");
        assert_eq!(
            (&stored["message"], &stored["apiVersion"], &stored["count"]),
            (&json!("n"), &json!("v1"), &json!(2))
        );
        assert_eq!(*to_served(kind, &stored), event);
    }
}
