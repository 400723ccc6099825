//! Pure. Rows of Events, in their stored (`v1`) form.

use jiff::Timestamp;
use serde_json::Value;

use super::words::{UNKNOWN, since};
use super::{Column, shown, wide};
use crate::object;

pub const COLUMNS: &[Column] = &[
    shown("Last Seen"),
    shown("Type"),
    shown("Reason"),
    shown("Object"),
    wide("Subobject"),
    wide("Source"),
    shown("Message"),
    wide("First Seen"),
    wide("Count"),
    Column { name: "Name", kind: "string", format: "name", wide: true },
];

pub fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let text = |path: &[&str]| object::text(event, path).unwrap_or("").to_owned();
    let time = |path: &[&str]| object::text(event, path);
    let created = || time(&["metadata", "creationTimestamp"]);
    let first = time(&["firstTimestamp"]).or_else(|| time(&["eventTime"])).or_else(created);
    let (last, count) = match object::at(event, &["series"]) {
        Some(series) => (object::text(series, &["lastObservedTime"]), object::number(series, &["count"]).unwrap_or(1)),
        None => (time(&["lastTimestamp"]), object::number(event, &["count"]).unwrap_or(1)),
    };
    let last = last.or(first);
    let seen = since(last, now);
    let last_seen = if count > 1 { format!("{seen} (x{count} over {})", since(first, now)) } else { seen };
    let kind = text(&["involvedObject", "kind"]).to_lowercase();
    let target = format!("{kind}/{}", text(&["involvedObject", "name"]));
    let component = match text(&["source", "component"]) {
        component if component.is_empty() => text(&["reportingComponent"]),
        component => component,
    };
    let host = text(&["source", "host"]);
    let source = if host.is_empty() { component } else { format!("{component}, {host}") };
    vec![
        last_seen.into(),
        text(&["type"]).into(),
        text(&["reason"]).into(),
        target.into(),
        text(&["involvedObject", "fieldPath"]).into(),
        source.into(),
        text(&["message"]).trim().into(),
        first.map_or_else(|| UNKNOWN.to_owned(), |first| since(Some(first), now)).into(),
        count.into(),
        object::name(event).into(),
    ]
}
