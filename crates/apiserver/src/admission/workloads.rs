//! Deployments, ReplicaSets and StatefulSets: defaults, and selectors that must match and stay.

use serde_json::{Value, json};

use super::pods;
use crate::error::Cause;
use crate::names;
use crate::object::{self, set_default};

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
    regex used for validation is '[0-9]+%')";

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
        causes.push(Cause::invalid("spec.replicas", replicas, NOT_NEGATIVE));
    }
    let labels = object::at(workload, &["spec", "template", "metadata", "labels"]);
    causes.extend(names::labels("spec.template.metadata.labels", labels));
    match object::at(workload, &["spec", "selector"]) {
        None => causes.push(Cause::required("spec.selector", "")),
        Some(selector) => {
            causes.extend(selector_problems(kind, selector));
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
    match kind {
        "Deployment" => deployment(workload, &mut causes),
        "StatefulSet" => stateful_set(workload, &mut causes),
        _ => {}
    }
    for key in ["minReadySeconds", "revisionHistoryLimit"] {
        let number = object::number(workload, &["spec", key]).unwrap_or(0);
        if number < 0 {
            causes.push(Cause::invalid(format!("spec.{key}"), number, NOT_NEGATIVE));
        }
    }
    causes
}

fn deployment(workload: &Value, causes: &mut Vec<Cause>) {
    let rolling = object::at(workload, &["spec", "strategy", "rollingUpdate"]);
    match object::text(workload, &["spec", "strategy", "type"]).unwrap_or("") {
        "Recreate" if rolling.is_some() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            causes.push(Cause::forbidden("spec.strategy.rollingUpdate", detail));
        }
        "Recreate" => {}
        "RollingUpdate" => rolling_update(rolling.unwrap_or(&Value::Null), causes),
        _ => {
            let strategy = object::at(workload, &["spec", "strategy"]).cloned().unwrap_or(Value::Null);
            causes.push(Cause::not_supported("spec.strategy", strategy, &["Recreate", "RollingUpdate"]));
        }
    }
    let ready = object::number(workload, &["spec", "minReadySeconds"]).unwrap_or(0);
    let deadline = object::number(workload, &["spec", "progressDeadlineSeconds"]).unwrap_or(i64::MAX);
    if deadline < 0 {
        causes.push(Cause::invalid("spec.progressDeadlineSeconds", deadline, NOT_NEGATIVE));
    }
    if deadline <= ready {
        let detail = "must be greater than minReadySeconds";
        causes.push(Cause::invalid("spec.progressDeadlineSeconds", deadline, detail));
    }
}

fn rolling_update(rolling: &Value, causes: &mut Vec<Cause>) {
    let path = |key: &str| format!("spec.strategy.rollingUpdate.{key}");
    let share = |key: &str| rolling.get(key).cloned().unwrap_or(json!(0));
    for key in ["maxUnavailable", "maxSurge"] {
        let share = share(key);
        match &share {
            Value::String(text) if !is_percent(text) => causes.push(Cause::invalid(path(key), share, PERCENT)),
            Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => {
                causes.push(Cause::invalid(path(key), share, NOT_NEGATIVE));
            }
            _ => {}
        }
    }
    let none = |share: &Value| match share {
        Value::String(text) => is_percent(text) && text.trim_end_matches('%').bytes().all(|digit| digit == b'0'),
        share => share == &json!(0),
    };
    let (unavailable, surge) = (share("maxUnavailable"), share("maxSurge"));
    if none(&unavailable) && none(&surge) {
        causes.push(Cause::invalid(path("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"));
    } else if percent(&unavailable).is_some_and(|percent| percent > 100) {
        causes.push(Cause::invalid(path("maxUnavailable"), unavailable, "must not be greater than 100%"));
    }
}

fn is_percent(text: &str) -> bool {
    text.strip_suffix('%').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()))
}

fn percent(share: &Value) -> Option<u64> {
    let text = share.as_str().filter(|text| is_percent(text))?;
    Some(text.trim_end_matches('%').parse().unwrap_or(u64::MAX))
}

fn stateful_set(workload: &Value, causes: &mut Vec<Cause>) {
    let policy = object::text(workload, &["spec", "podManagementPolicy"]).unwrap_or("");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        causes.push(Cause::invalid("spec.podManagementPolicy", policy, detail));
    }
    let strategy = object::at(workload, &["spec", "updateStrategy"]).unwrap_or(&Value::Null);
    match object::text(strategy, &["type"]).unwrap_or("") {
        "OnDelete" if strategy.get("rollingUpdate").is_some() => {
            let (path, detail) =
                ("spec.updateStrategy.rollingUpdate", "only allowed for updateStrategy 'RollingUpdate'");
            causes.push(Cause::invalid(path, strategy["rollingUpdate"].clone(), detail));
        }
        "OnDelete" | "RollingUpdate" => {}
        _ => {
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            causes.push(Cause::invalid("spec.updateStrategy", strategy.clone(), detail));
        }
    }
    let partition = object::number(strategy, &["rollingUpdate", "partition"]).unwrap_or(0);
    if partition < 0 {
        causes.push(Cause::invalid("spec.updateStrategy.rollingUpdate.partition", partition, NOT_NEGATIVE));
    }
}

fn selector_problems(kind: &str, selector: &Value) -> Vec<Cause> {
    let labels = object::at(selector, &["matchLabels"]);
    let expressions = object::items(selector, &["matchExpressions"]);
    let no_labels = labels.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
    if no_labels && expressions.is_empty() {
        // The real server says "deployment" of ReplicaSets too.
        let detail = match kind {
            "StatefulSet" => "empty selector is invalid for statefulset",
            _ => "empty selector is invalid for deployment",
        };
        return vec![Cause::invalid("spec.selector", selector.clone(), detail)];
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
