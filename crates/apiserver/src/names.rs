//! Pure. Names, labels and annotations: what may stand there, with the real server's texts.

use std::net::IpAddr;

use serde_json::Value;

use crate::error::{Cause, Problem};
use crate::object;
use crate::registry::NameRule;

const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED_TEXT: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
    with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
    for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const ANNOTATIONS_BYTES: usize = 256 * 1024;

fn is_lower(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_label_shaped(text: &str) -> bool {
    text.starts_with(is_lower) && text.ends_with(is_lower) && text.chars().all(|c| is_lower(c) || c == '-')
}

/// What is wrong with an RFC 1123 label; `None`: nothing.
pub fn label_problem(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    (!is_label_shaped(text)).then(|| LABEL_TEXT.to_owned())
}

/// What is wrong with an RFC 1123 subdomain.
pub fn subdomain_problem(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 bytes".to_owned());
    }
    (!text.split('.').all(is_label_shaped)).then(|| SUBDOMAIN_TEXT.to_owned())
}

/// What is wrong with an IANA service name, the name of a container's port.
pub fn port_name_problem(text: &str) -> Option<&'static str> {
    if text.len() > 15 {
        Some("must be no more than 15 characters")
    } else if !text.chars().all(|c| is_lower(c) || c == '-') {
        Some("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    } else if !text.contains(|c: char| c.is_ascii_lowercase()) {
        Some("must contain at least one letter (a-z)")
    } else if text.contains("--") {
        Some("must not contain consecutive hyphens")
    } else if text.starts_with('-') || text.ends_with('-') {
        Some("must not begin or end with a hyphen")
    } else {
        None
    }
}

fn is_qualified_part(text: &str) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(ends) && text.ends_with(ends) && text.chars().all(|c| ends(c) || "-_.".contains(c))
}

/// What is wrong with a key such as `app` or `kubernetes.io/hostname`.
pub fn qualified_problem(text: &str) -> Option<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Some("prefix part must be non-empty".to_owned());
        }
        if let Some(problem) = subdomain_problem(prefix) {
            return Some(format!("prefix part {problem}"));
        }
    }
    if name.is_empty() {
        Some("name part must be non-empty".to_owned())
    } else if name.len() > 63 {
        Some("name part must be no more than 63 bytes".to_owned())
    } else {
        (!is_qualified_part(name)).then(|| QUALIFIED_TEXT.to_owned())
    }
}

/// What is wrong with a label's value.
pub fn label_value_problem(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    (!text.is_empty() && !is_qualified_part(text)).then(|| LABEL_VALUE_TEXT.to_owned())
}

/// What is wrong with a map of labels at a path.
pub fn labels(field: &str, labels: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        if let Some(problem) = qualified_problem(key) {
            causes.push(Cause::invalid(field, key.as_str(), problem));
        }
        let value = value.as_str().unwrap_or("");
        if let Some(problem) = label_value_problem(value) {
            causes.push(Cause::invalid(field, value, problem));
        }
    }
    causes
}

fn name(rule: NameRule, value: &str) -> Option<String> {
    match rule {
        NameRule::Label => label_problem(value),
        NameRule::Subdomain => subdomain_problem(value),
        NameRule::IpAddress => match value.parse::<IpAddr>() {
            Ok(address) if address.to_string() == value => None,
            Ok(_) => Some("not a valid ip in canonical form".to_owned()),
            Err(_) => Some("not a valid ip".to_owned()),
        },
    }
}

/// What is wrong with an object's metadata.
pub fn metadata(rule: NameRule, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let given = object::name(value);
    if given.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else if let Some(problem) = name(rule, given) {
        causes.push(Cause::invalid("metadata.name", given, problem));
    }
    causes.extend(labels("metadata.labels", object::at(value, &["metadata", "labels"])));
    let annotations = object::at(value, &["metadata", "annotations"]).and_then(Value::as_object);
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        if let Some(problem) = qualified_problem(&key.to_ascii_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", key.as_str(), problem));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_BYTES {
        causes.push(Cause::new("metadata.annotations", Problem::TooLong(ANNOTATIONS_BYTES)));
    }
    for finalizer in object::finalizers(value) {
        if let Some(problem) = qualified_problem(finalizer) {
            causes.push(Cause::invalid("metadata.finalizers", finalizer, problem));
        }
    }
    causes.extend(owners(value));
    causes
}

fn owners(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut controllers = 0;
    for (index, owner) in object::items(value, &["metadata", "ownerReferences"]).iter().enumerate() {
        for (key, text) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if object::text(owner, &[key]).unwrap_or("").is_empty() {
                causes.push(Cause::invalid(format!("metadata.ownerReferences[{index}].{key}"), "", text));
            }
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        let references = object::at(value, &["metadata", "ownerReferences"]).cloned().unwrap_or(Value::Null);
        causes.push(Cause::invalid(
            "metadata.ownerReferences",
            references,
            "Only one reference can have Controller set to true",
        ));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_follow_their_kinds_rule() {
        for (rule, text, good) in [
            (NameRule::Label, "web-1", true),
            (NameRule::Label, "1web", true),
            (NameRule::Label, "web.1", false),
            (NameRule::Label, "Web", false),
            (NameRule::Label, "-web", false),
            (NameRule::Subdomain, "web.1", true),
            (NameRule::Subdomain, "web..1", false),
            (NameRule::IpAddress, "10.0.0.1", true),
            (NameRule::IpAddress, "fd00::1", true),
            (NameRule::IpAddress, "fd00:0::1", false),
            (NameRule::IpAddress, "x", false),
        ] {
            assert_eq!(name(rule, text).is_none(), good, "{text}");
        }
        assert!(label_problem(&"a".repeat(64)).is_some());
    }

    #[test]
    fn metadata_problems_name_their_field() {
        let causes = metadata(
            NameRule::Label,
            &json!({"metadata": {"name": "A_b", "labels": {"a/b/c": "x", "ok": "y z"}, "finalizers": ["/"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}}),
        );
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "metadata.labels",
                "metadata.labels",
                "metadata.finalizers",
                "metadata.ownerReferences[0].uid"
            ]
        );
    }
}
