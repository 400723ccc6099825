//! Pure. How tables say ages, labels and lists.

use jiff::Timestamp;
use serde_json::Value;

use crate::object;

pub const NONE: &str = "<none>";
pub const UNKNOWN: &str = "<unknown>";

/// A span of seconds in at most two units, the way kubectl prints ages.
pub fn duration(seconds: i64) -> String {
    let two = |first: i64, unit: &str, second: i64, small: &str| {
        if second == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{second}{small}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// How long ago a time is.
pub fn since(time: Option<&str>, now: Timestamp) -> String {
    match time.and_then(|time| time.parse::<Timestamp>().ok()) {
        Some(time) => duration(now.as_second() - time.as_second()),
        None => UNKNOWN.to_owned(),
    }
}

/// The age of an object.
pub fn age(value: &Value, now: Timestamp) -> Value {
    since(object::text(value, &["metadata", "creationTimestamp"]), now).into()
}

/// A map of labels as `a=b,c=d`.
pub fn labels(labels: Option<&Value>) -> String {
    let pairs: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

/// A LabelSelector of the API as text.
pub fn selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return NONE.to_owned() };
    let mut parts: Vec<String> = object::at(selector, &["matchLabels"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    for expression in object::items(selector, &["matchExpressions"]) {
        let key = object::text(expression, &["key"]).unwrap_or("");
        let values: Vec<&str> = object::items(expression, &["values"]).iter().filter_map(Value::as_str).collect();
        let values = values.join(",");
        parts.push(match object::text(expression, &["operator"]) {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if parts.is_empty() { NONE.to_owned() } else { parts.join(",") }
}

/// At most three of a list, and how many more.
pub fn first_three(items: &[String], empty: &str) -> String {
    match items.len() {
        0 => empty.to_owned(),
        1..=3 => items.join(","),
        more => format!("{} + {} more...", items[..3].join(","), more - 3),
    }
}

/// A text, or `<none>`.
pub fn or_none(text: Option<&str>) -> Value {
    text.filter(|text| !text.is_empty()).unwrap_or(NONE).into()
}

/// Names and images of a template's containers.
pub fn containers(workload: &Value) -> (String, String) {
    let containers = object::items(workload, &["spec", "template", "spec", "containers"]);
    let of = |key: &str| {
        let texts: Vec<&str> = containers.iter().filter_map(|container| object::text(container, &[key])).collect();
        texts.join(",")
    };
    (of("name"), of("image"))
}
