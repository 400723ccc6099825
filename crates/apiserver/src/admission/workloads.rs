//! Deployments, ReplicaSets and StatefulSets: defaults, and selectors that must match and stay.

use serde_json::{Value, json};

use super::pods;
use crate::error::Cause;
use crate::names;
use crate::object::{self, set_default};

/// Fills in what a workload does not say.
pub fn defaults(kind: &str, workload: &mut Value) {
    let spec = object::child(workload, "spec");
    set_default(spec, "replicas", 1);
    let mut template = spec.remove("template").unwrap_or_else(|| json!({}));
    object::metadata(&mut template);
    pods::spec_defaults(object::child(&mut template, "spec"));
    spec.insert("template".to_owned(), template);
    match kind {
        "Deployment" => {
            set_default(spec, "revisionHistoryLimit", 10);
            set_default(spec, "progressDeadlineSeconds", 600);
            rolling(spec, "strategy", &[("maxSurge", json!("25%")), ("maxUnavailable", json!("25%"))]);
        }
        "StatefulSet" => {
            set_default(spec, "revisionHistoryLimit", 10);
            set_default(spec, "podManagementPolicy", "OrderedReady");
            set_default(spec, "serviceName", "");
            rolling(spec, "updateStrategy", &[("partition", json!(0))]);
            let retention = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            set_default(spec, "persistentVolumeClaimRetentionPolicy", retention);
        }
        _ => {}
    }
    if kind != "Deployment" {
        set_default(object::child(workload, "status"), "replicas", 0);
    } else {
        object::child(workload, "status");
    }
}

fn rolling(spec: &mut serde_json::Map<String, Value>, key: &str, settings: &[(&str, Value)]) {
    let mut strategy = spec.remove(key).unwrap_or_else(|| json!({}));
    let fields = object::fields(&mut strategy);
    set_default(fields, "type", "RollingUpdate");
    if fields.get("type") == Some(&json!("RollingUpdate")) {
        let rolling = object::child(&mut strategy, "rollingUpdate");
        for (name, value) in settings {
            set_default(rolling, name, value.clone());
        }
    }
    spec.insert(key.to_owned(), strategy);
}

/// What is wrong with a workload.
pub fn validate(kind: &str, workload: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let replicas = object::number(workload, &["spec", "replicas"]).unwrap_or(0);
    if replicas < 0 {
        causes.push(Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0"));
    }
    let labels = object::at(workload, &["spec", "template", "metadata", "labels"]);
    causes.extend(names::labels("spec.template.metadata.labels", labels));
    match object::at(workload, &["spec", "selector"]) {
        None => causes.push(Cause::required("spec.selector", "")),
        Some(selector) => {
            causes.extend(selector_problems(selector));
            if causes.is_empty() && !selects(selector, labels) {
                let labels = labels.cloned().unwrap_or_else(|| json!({}));
                let detail = "`selector` does not match template `labels`";
                causes.push(Cause::invalid("spec.template.metadata.labels", labels, detail));
            }
        }
    }
    causes.extend(pods::validate_spec(workload, "spec.template.spec"));
    let policy = object::text(workload, &["spec", "template", "spec", "restartPolicy"]).unwrap_or("");
    if policy != "Always" && causes.is_empty() {
        causes.push(Cause::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    let (key, types) = match kind {
        "Deployment" => ("strategy", ["Recreate", "RollingUpdate"]),
        _ => ("updateStrategy", ["RollingUpdate", "OnDelete"]),
    };
    let strategy = object::text(workload, &["spec", key, "type"]).unwrap_or("RollingUpdate");
    if !types.contains(&strategy) {
        causes.push(Cause::not_supported(format!("spec.{key}.type"), strategy, &types));
    }
    causes
}

fn selector_problems(selector: &Value) -> Vec<Cause> {
    let labels = object::at(selector, &["matchLabels"]);
    let expressions = object::items(selector, &["matchExpressions"]);
    let no_labels = labels.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
    if no_labels && expressions.is_empty() {
        return vec![Cause::invalid("spec.selector", selector.clone(), "empty selector is invalid for deployment")];
    }
    let mut causes = names::labels("spec.selector.matchLabels", labels);
    for (index, expression) in expressions.iter().enumerate() {
        let path = format!("spec.selector.matchExpressions[{index}]");
        let key = object::text(expression, &["key"]).unwrap_or("");
        if let Some(problem) = names::qualified_problem(key) {
            causes.push(Cause::invalid(format!("{path}.key"), key, problem));
        }
        let operator = object::text(expression, &["operator"]).unwrap_or("");
        let valued = !object::items(expression, &["values"]).is_empty();
        match operator {
            "In" | "NotIn" if !valued => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                causes.push(Cause::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if valued => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                causes.push(Cause::forbidden(format!("{path}.values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                causes.push(Cause::invalid(format!("{path}.operator"), other, "not a valid selector operator"));
            }
        }
    }
    causes
}

/// Whether a LabelSelector of the API matches labels.
fn selects(selector: &Value, labels: Option<&Value>) -> bool {
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let wanted = object::at(selector, &["matchLabels"]).and_then(Value::as_object);
    let all = wanted.into_iter().flatten().all(|(key, value)| label(key) == value.as_str());
    all && object::items(selector, &["matchExpressions"]).iter().all(|expression| {
        let found = label(object::text(expression, &["key"]).unwrap_or(""));
        let among = || {
            let values = object::items(expression, &["values"]);
            found.is_some_and(|found| values.iter().any(|value| value.as_str() == Some(found)))
        };
        match object::text(expression, &["operator"]) {
            Some("In") => among(),
            Some("NotIn") => !among(),
            Some("Exists") => found.is_some(),
            Some("DoesNotExist") => found.is_none(),
            _ => false,
        }
    })
}

/// What a workload can't become.
pub fn validate_update(kind: &str, old: &Value, workload: &Value) -> Vec<Cause> {
    if kind == "StatefulSet" {
        return stateful_set_update(old, workload);
    }
    let selector = |workload: &Value| object::at(workload, &["spec", "selector"]).cloned();
    if selector(old) == selector(workload) {
        return Vec::new();
    }
    vec![Cause::invalid("spec.selector", selector(workload).unwrap_or(Value::Null), "field is immutable")]
}

fn stateful_set_update(old: &Value, set: &Value) -> Vec<Cause> {
    const CHANGEABLE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let fixed = |set: &Value| {
        let mut spec = set.get("spec").cloned().unwrap_or(Value::Null);
        object::fields(&mut spec).retain(|key, _| !CHANGEABLE.contains(&key.as_str()));
        spec
    };
    if fixed(old) == fixed(set) {
        return Vec::new();
    }
    vec![Cause::forbidden(
        "spec",
        "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
         'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
    )]
}
