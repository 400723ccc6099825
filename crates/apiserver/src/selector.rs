//! Pure. Label and field selectors of list, watch and deletecollection.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::object;

/// One demand on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

/// A label selector as a query string has it: `app=web,tier in (a,b),!canary`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// A selector that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text breaks off or holds something unexpected.
    #[error("unable to parse requirement: {problem} in {text:?}")]
    Syntax {
        /** What is wrong. */
        problem: &'static str,
        /** The requirement. */
        text: String,
    },
    /// A field that objects of the kind can't be chosen by.
    #[error("field label not supported: {field}")]
    Field {
        /** Its path. */
        field: String,
    },
}

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// When a requirement is malformed.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if !part.is_empty() {
                requirements.push(requirement(part)?);
            } else if !text.trim().is_empty() {
                return Err(SelectorError::Syntax { problem: "empty requirement", text: text.to_owned() });
            }
        }
        Ok(LabelSelector { requirements })
    }

    /// Whether an object's labels meet every requirement.
    pub fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object.get("metadata")?.get("labels")?.get(key)?.as_str();
        self.requirements.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => label(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => label(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
            Requirement::Greater(key, bound) => number(label(key)).is_some_and(|value| value > *bound),
            Requirement::Less(key, bound) => number(label(key)).is_some_and(|value| value < *bound),
        })
    }
}

fn number(label: Option<&str>) -> Option<i64> {
    label?.parse().ok()
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0usize);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let syntax = |problem| SelectorError::Syntax { problem, text: text.to_owned() };
    if let Some(key) = text.strip_prefix('!') {
        return Ok(Requirement::Absent(label_key(key, text)?));
    }
    let key_end = text.find(|c: char| c.is_whitespace() || "=!<>(".contains(c)).unwrap_or(text.len());
    let key = label_key(&text[..key_end], text)?;
    let rest = text[key_end..].trim();
    let one = |value: &str| label_value(value, text).map(|value| BTreeSet::from([value]));
    if rest.is_empty() {
        Ok(Requirement::Exists(key))
    } else if let Some(value) = rest.strip_prefix("!=") {
        Ok(Requirement::NotIn(key, one(value)?))
    } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        Ok(Requirement::In(key, one(value)?))
    } else if let Some(value) = rest.strip_prefix('>') {
        Ok(Requirement::Greater(key, value.trim().parse().map_err(|_| syntax("an integer is needed"))?))
    } else if let Some(value) = rest.strip_prefix('<') {
        Ok(Requirement::Less(key, value.trim().parse().map_err(|_| syntax("an integer is needed"))?))
    } else if let Some(list) = rest.strip_prefix("notin") {
        Ok(Requirement::NotIn(key, value_list(list, text)?))
    } else if let Some(list) = rest.strip_prefix("in") {
        Ok(Requirement::In(key, value_list(list, text)?))
    } else {
        Err(syntax("an operator is needed"))
    }
}

fn label_key(key: &str, text: &str) -> Result<String, SelectorError> {
    let key = key.trim();
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    if name.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c)) {
        return Err(SelectorError::Syntax { problem: "invalid label key", text: text.to_owned() });
    }
    Ok(key.to_owned())
}

fn label_value(value: &str, text: &str) -> Result<String, SelectorError> {
    let value = value.trim();
    if value.len() > 63 || !value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(SelectorError::Syntax { problem: "invalid label value", text: text.to_owned() });
    }
    Ok(value.to_owned())
}

fn value_list(list: &str, text: &str) -> Result<BTreeSet<String>, SelectorError> {
    let inner = list.trim().strip_prefix('(').and_then(|list| list.strip_suffix(')'));
    let inner =
        inner.ok_or(SelectorError::Syntax { problem: "a list in parentheses is needed", text: text.to_owned() })?;
    inner.split(',').map(|value| label_value(value, text)).collect()
}

/// A field selector: `metadata.name=web,spec.nodeName!=n1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<(Vec<String>, bool, String)>,
}

impl FieldSelector {
    /// Reads a field selector for objects of a kind.
    ///
    /// # Errors
    /// When a term has no operator or names a field that the kind is not chosen by.
    pub fn parse(kind: &str, text: &str) -> Result<FieldSelector, SelectorError> {
        let mut terms = Vec::new();
        for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (field, equal, value) = if let Some((field, value)) = term.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (field, true, value)
            } else {
                return Err(SelectorError::Syntax { problem: "an operator is needed", text: term.to_owned() });
            };
            if !selectable(kind, field) {
                return Err(SelectorError::Field { field: field.to_owned() });
            }
            terms.push((field.split('.').map(str::to_owned).collect(), equal, value.to_owned()));
        }
        Ok(FieldSelector { terms })
    }

    /// Whether an object's fields meet every term. An absent field is an empty string.
    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|(path, equal, wanted)| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let found = match object::at(object, &path) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Bool(flag)) => flag.to_string(),
                Some(Value::Number(number)) => number.to_string(),
                Some(_) => return false,
                None if path == ["spec", "unschedulable"] || path == ["spec", "hostNetwork"] => "false".to_owned(),
                None => String::new(),
            };
            (found == *wanted) == *equal
        })
    }
}

fn selectable(kind: &str, field: &str) -> bool {
    matches!(field, "metadata.name" | "metadata.namespace")
        || match kind {
            "Pod" => matches!(
                field,
                "spec.nodeName"
                    | "spec.restartPolicy"
                    | "spec.schedulerName"
                    | "spec.serviceAccountName"
                    | "spec.hostNetwork"
                    | "status.phase"
                    | "status.podIP"
                    | "status.nominatedNodeName"
            ),
            "Service" => matches!(field, "spec.clusterIP" | "spec.type"),
            "Node" => field == "spec.unschedulable",
            "Namespace" => field == "status.phase",
            "Secret" => field == "type",
            "ReplicaSet" => field == "status.replicas",
            "Event" => {
                matches!(field, "reason" | "type" | "source" | "reportingComponent")
                    || field.strip_prefix("involvedObject.").or_else(|| field.strip_prefix("regarding.")).is_some_and(
                        |name| {
                            let names =
                                ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];
                            names.contains(&name)
                        },
                    )
            }
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(selector: &str) -> bool {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "a", "n": "5"}}});
        LabelSelector::parse(selector).expect(selector).matches(&object)
    }

    #[test]
    fn label_requirements_choose_as_kubectl_documents_them() {
        for selector in
            ["", "app=web", "app==web,tier", "app!=db", "x!=y", "tier in (a, b)", "x notin (a)", "!x", "n>4", "n < 6"]
        {
            assert!(selects(selector), "{selector}");
        }
        for selector in ["app=db", "x", "!app", "tier in (b)", "tier notin (a,b)", "n>5", "x in (a)", "app!=web"] {
            assert!(!selects(selector), "{selector}");
        }
    }

    #[test]
    fn malformed_label_selectors_are_errors() {
        for selector in ["=a", "a in b", "a in (b", "a b", "n>x", ",", "a=b,,c=d", "a=$(x)"] {
            assert!(LabelSelector::parse(selector).is_err(), "{selector}");
        }
    }

    #[test]
    fn field_terms_compare_and_unknown_fields_are_errors() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}});
        let matches = |text| FieldSelector::parse("Pod", text).unwrap().matches(&pod);
        assert!(matches("metadata.name=p,spec.nodeName=n1"));
        assert!(matches("status.phase!=Running"));
        assert!(!matches("spec.nodeName!=n1"));
        assert!(matches("status.podIP="));
        assert!(FieldSelector::parse("Pod", "spec.image=x").is_err());
        assert!(FieldSelector::parse("Service", "spec.nodeName=x").is_err());
    }
}
