//! Pure. Rows of Pods: the status word is worked out from the containers' states.

use jiff::Timestamp;
use serde_json::Value;

use super::words::{age, or_none, since};
use super::{AGE, Column, NAME, shown, wide};
use crate::object;

pub const COLUMNS: &[Column] = &[
    NAME,
    shown("Ready"),
    shown("Status"),
    shown("Restarts"),
    AGE,
    wide("IP"),
    wide("Node"),
    wide("Nominated Node"),
    wide("Readiness Gates"),
];

struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<String>,
}

pub fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let total = object::items(pod, &["spec", "containers"]).len();
    let summary = summary(pod);
    let restarts = match (&summary.last_restart, summary.restarts) {
        (Some(time), 1..) => format!("{} ({} ago)", summary.restarts, since(Some(time), now)),
        (_, restarts) => restarts.to_string(),
    };
    let gates = object::items(pod, &["spec", "readinessGates"]);
    let met = gates.iter().filter(|gate| condition(pod, object::text(gate, &["conditionType"]).unwrap_or(""))).count();
    vec![
        object::name(pod).into(),
        format!("{}/{total}", summary.ready).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod, now),
        or_none(object::text(pod, &["status", "podIP"])),
        or_none(object::text(pod, &["spec", "nodeName"])),
        or_none(object::text(pod, &["status", "nominatedNodeName"])),
        if gates.is_empty() { or_none(None) } else { format!("{met}/{}", gates.len()).into() },
    ]
}

fn condition(pod: &Value, kind: &str) -> bool {
    object::items(pod, &["status", "conditions"])
        .iter()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn summary(pod: &Value) -> Summary {
    let text = |path: &[&str]| object::text(pod, path).unwrap_or("").to_owned();
    let phase = text(&["status", "phase"]);
    let own_reason = text(&["status", "reason"]);
    let reason = if own_reason.is_empty() { phase.clone() } else { own_reason.clone() };
    let mut summary = Summary { reason, ready: 0, restarts: 0, last_restart: None };
    let initializing = init_containers(pod, &mut summary);
    if !initializing || condition(pod, "Initialized") {
        containers(pod, &mut summary);
    }
    if object::is_terminating(pod) {
        if own_reason == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(phase.as_str(), "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

fn count_restarts(status: &Value, summary: &mut Summary) {
    summary.restarts += object::number(status, &["restartCount"]).unwrap_or(0);
    let ended = object::text(status, &["lastState", "terminated", "finishedAt"]).map(str::to_owned);
    // RFC 3339 in one zone: the later time is the greater text.
    summary.last_restart = summary.last_restart.take().max(ended);
}

fn ended(prefix: &str, terminated: &Value) -> String {
    let number = |key: &str| object::number(terminated, &[key]).unwrap_or(0);
    match (object::text(terminated, &["reason"]).unwrap_or(""), number("signal")) {
        ("", 0) => format!("{prefix}ExitCode:{}", number("exitCode")),
        ("", signal) => format!("{prefix}Signal:{signal}"),
        (reason, _) => format!("{prefix}{reason}"),
    }
}

/// Whether an init container is still at work (or failed).
fn init_containers(pod: &Value, summary: &mut Summary) -> bool {
    let declared = object::items(pod, &["spec", "initContainers"]);
    for (index, status) in object::items(pod, &["status", "initContainerStatuses"]).iter().enumerate() {
        count_restarts(status, summary);
        let sidecar = declared.get(index).is_some_and(|container| container["restartPolicy"] == "Always");
        let state = &status["state"];
        let terminated = object::at(state, &["terminated"]);
        if terminated.is_some_and(|terminated| terminated["exitCode"] == 0)
            || (sidecar && status["started"] == Value::Bool(true))
        {
            continue;
        }
        let waiting = object::text(state, &["waiting", "reason"]).unwrap_or("");
        summary.reason = match terminated {
            Some(terminated) => ended("Init:", terminated),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", declared.len()),
        };
        return true;
    }
    false
}

fn containers(pod: &Value, summary: &mut Summary) {
    (summary.restarts, summary.last_restart) = (0, None);
    let mut running = false;
    for status in object::items(pod, &["status", "containerStatuses"]).iter().rev() {
        count_restarts(status, summary);
        let state = &status["state"];
        let waiting = object::text(state, &["waiting", "reason"]).unwrap_or("");
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if let Some(terminated) = object::at(state, &["terminated"]) {
            summary.reason = ended("", terminated);
        } else if status["ready"] == Value::Bool(true) && object::at(state, &["running"]).is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" && running {
        summary.reason = if condition(pod, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
}
