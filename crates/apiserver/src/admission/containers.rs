//! Pure. The inside of a container: environment, mounts, probes, resources.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::content::quantity_steps;
use crate::error::{Cause, Problem};
use crate::names;
use crate::object;

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];

/// Requests that are not said are the limits; only in pods, a template keeps what it says.
pub fn request_limits(container: &mut Map<String, Value>) {
    let Some(resources) = container.get_mut("resources") else { return };
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    if limits.is_empty() {
        return;
    }
    let requests = object::fields(resources).entry("requests").or_insert_with(|| json!({}));
    for (name, limit) in limits {
        object::fields(requests).entry(name).or_insert(limit);
    }
}

/// What is wrong inside a container at a path. `volumes`: the names of the pod's.
pub fn validate(container: &Value, path: &str, volumes: &BTreeSet<&str>) -> Vec<Cause> {
    let mut causes = Vec::new();
    environment(container, path, &mut causes);
    mounts(container, path, volumes, &mut causes);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(value) = container.get(probe) {
            self::probe(value, &format!("{path}.{probe}"), probe != "readinessProbe", &mut causes);
        }
    }
    match object::text(container, &["imagePullPolicy"]).unwrap_or("") {
        "" => causes.push(Cause::required(format!("{path}.imagePullPolicy"), "")),
        "Always" | "IfNotPresent" | "Never" => {}
        other => {
            let policies = ["Always", "IfNotPresent", "Never"];
            causes.push(Cause::not_supported(format!("{path}.imagePullPolicy"), other, &policies));
        }
    }
    resources(container, path, &mut causes);
    causes
}

fn environment(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (index, variable) in object::items(container, &["env"]).iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        let name = object::text(variable, &["name"]).unwrap_or("");
        if name.is_empty() {
            causes.push(Cause::required(format!("{path}.name"), ""));
        } else if !name.chars().all(|c| matches!(c, ' '..='~') && c != '=') {
            let detail =
                "a valid environment variable name must consist only of printable ASCII characters other than '='";
            causes.push(Cause::invalid(format!("{path}.name"), name, detail));
        }
        let Some(source) = variable.get("valueFrom").and_then(Value::as_object) else { continue };
        let path = format!("{path}.valueFrom");
        if source.is_empty() {
            let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            causes.push(Cause::invalid(path.as_str(), "", detail));
        }
        if object::text(variable, &["value"]).is_some_and(|value| !value.is_empty()) {
            causes.push(Cause::invalid(path, "", "may not be specified when `value` is not empty"));
        } else if source.len() > 1 {
            causes.push(Cause::invalid(path, "", "may not have more than one field specified at a time"));
        }
    }
}

fn mounts(container: &Value, path: &str, volumes: &BTreeSet<&str>, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, mount) in object::items(container, &["volumeMounts"]).iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        let text = |key: &str| object::text(mount, &[key]).unwrap_or("");
        let (name, place) = (text("name"), text("mountPath"));
        if name.is_empty() {
            causes.push(Cause::required(format!("{path}.name"), ""));
        } else if !volumes.contains(name) {
            causes.push(Cause::new(format!("{path}.name"), Problem::NotFound(name.into())));
        }
        if place.is_empty() {
            causes.push(Cause::required(format!("{path}.mountPath"), ""));
        } else if !seen.insert(place) {
            causes.push(Cause::invalid(format!("{path}.mountPath"), place, "must be unique"));
        }
    }
}

fn probe(probe: &Value, path: &str, succeeds_once: bool, causes: &mut Vec<Cause>) {
    let mut handlers = HANDLERS.into_iter().filter(|handler| probe.get(handler).is_some());
    match handlers.next() {
        None => causes.push(Cause::required(path, "must specify a handler type")),
        Some(handler) => handler_problems(&probe[handler], handler, &format!("{path}.{handler}"), causes),
    }
    let more = "may not specify more than 1 handler type";
    causes.extend(handlers.map(|handler| Cause::forbidden(format!("{path}.{handler}"), more)));
    let number = |key: &str| object::number(probe, &[key]).unwrap_or(0);
    for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        if number(key) < 0 {
            causes.push(Cause::invalid(format!("{path}.{key}"), number(key), NOT_NEGATIVE));
        }
    }
    if succeeds_once && number("successThreshold") != 1 {
        causes.push(Cause::invalid(format!("{path}.successThreshold"), number("successThreshold"), "must be 1"));
    }
}

fn handler_problems(value: &Value, handler: &str, path: &str, causes: &mut Vec<Cause>) {
    match handler {
        "exec" => {
            if object::items(value, &["command"]).is_empty() {
                causes.push(Cause::required(format!("{path}.command"), ""));
            }
            return;
        }
        "httpGet" => match object::text(value, &["scheme"]).unwrap_or("HTTP") {
            "HTTP" | "HTTPS" => {}
            other => causes.push(Cause::not_supported(format!("{path}.scheme"), other, &["HTTP", "HTTPS"])),
        },
        _ => {}
    }
    let path = format!("{path}.port");
    match value.get("port") {
        Some(Value::String(name)) => {
            causes.extend(names::port_name_problem(name).map(|problem| Cause::invalid(path, name.as_str(), problem)));
        }
        port => {
            let number = port.and_then(Value::as_i64).unwrap_or(0);
            if !(1..=65_535).contains(&number) {
                causes.push(Cause::invalid(path, number, PORT_RANGE));
            }
        }
    }
}

fn resources(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    let path = format!("{path}.resources");
    let amounts = |list: &str| object::at(container, &["resources", list]).and_then(Value::as_object);
    for list in ["limits", "requests"] {
        for (name, amount) in amounts(list).into_iter().flatten() {
            let amount = amount.as_str().unwrap_or("");
            if quantity_steps(amount).is_some_and(|steps| steps < 0) {
                causes.push(Cause::invalid(format!("{path}.{list}[{name}]"), amount, NOT_NEGATIVE));
            }
        }
    }
    for (name, request) in amounts("requests").into_iter().flatten() {
        let request = request.as_str().unwrap_or("");
        let limit = object::text(container, &["resources", "limits", name]).unwrap_or("");
        if let (Some(wanted), Some(most)) = (quantity_steps(request), quantity_steps(limit))
            && wanted > most
        {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            causes.push(Cause::invalid(format!("{path}.requests"), request, detail));
        }
    }
}
