//! Pure. What taints a pod tolerates.

use serde_json::Value;

use crate::error::Cause;
use crate::names;
use crate::object;

const ALL_KEYS: &str = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";

/// What is wrong with the tolerations of a specification at a path.
pub fn validate(spec: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, toleration) in object::items(spec, &["tolerations"]).iter().enumerate() {
        let path = format!("{path}.tolerations[{index}]");
        let text = |key: &str| object::text(toleration, &[key]).unwrap_or("");
        let (key, operator, effect) = (text("key"), text("operator"), text("effect"));
        if let Some(problem) = (!key.is_empty()).then(|| names::qualified_problem(key)).flatten() {
            causes.push(Cause::invalid(format!("{path}.key"), key, problem));
        }
        if key.is_empty() && operator != "Exists" {
            causes.push(Cause::invalid(format!("{path}.operator"), operator, ALL_KEYS));
        }
        if object::number(toleration, &["tolerationSeconds"]).is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            causes.push(Cause::invalid(format!("{path}.effect"), effect, detail));
        }
        match operator {
            "Equal" | "" => {
                if let Some(problem) = names::label_value_problem(text("value")) {
                    causes.push(Cause::invalid(format!("{path}.operator"), text("value"), problem));
                }
            }
            "Exists" if !text("value").is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                causes.push(Cause::invalid(format!("{path}.operator"), toleration.clone(), detail));
            }
            "Exists" => {}
            other => causes.push(Cause::not_supported(format!("{path}.operator"), other, &["Equal", "Exists"])),
        }
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            causes.push(Cause::not_supported(format!("{path}.effect"), effect, &effects));
        }
    }
    causes
}
