//! Pods and pod templates: defaults, and the rules that keep what a kubelet gets meaningful.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{containers, tolerations, volumes};
use crate::error::{Cause, Problem};
use crate::names;
use crate::object::{self, set_default};

const UPDATABLE: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
    additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
    previously negative)";
const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// Fills in what a Pod does not say, the part of admission (service account, tolerations) too.
pub fn defaults(pod: &mut Value) {
    let spec = object::child(pod, "spec");
    spec_defaults(spec);
    for key in ["containers", "initContainers"] {
        for container in spec.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
            containers::request_limits(object::fields(container));
        }
    }
    set_default(spec, "serviceAccountName", "default");
    let account = spec.get("serviceAccountName").cloned().unwrap_or(Value::Null);
    set_default(spec, "serviceAccount", account);
    set_default(spec, "enableServiceLinks", true);
    set_default(spec, "priority", 0);
    set_default(spec, "preemptionPolicy", "PreemptLowerPriority");
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    for condition in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = |toleration: &Value| object::text(toleration, &["key"]).is_none_or(|key| key == condition);
        if let Some(list) = tolerations.as_array_mut()
            && !list.iter().any(tolerated)
        {
            list.push(json!({"key": condition, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    let class = qos_class(pod);
    let status = object::child(pod, "status");
    set_default(status, "phase", "Pending");
    set_default(status, "qosClass", class);
}

/// What Pods and templates have in common.
pub fn spec_defaults(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "securityContext", json!({}));
    volumes::defaults(spec);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for key in ["containers", "initContainers"] {
        for container in spec.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
            container_defaults(object::fields(container), host_network);
        }
    }
}

fn container_defaults(container: &mut Map<String, Value>, host_network: bool) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or("");
    let name = image.rsplit('/').next().unwrap_or("");
    let latest = !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
    set_default(container, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let port = object::fields(port);
        set_default(port, "protocol", "TCP");
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            set_default(port, "hostPort", number);
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(key) {
            probe_defaults(object::fields(probe));
        }
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(reference) = variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef")) {
            set_default(object::fields(reference), "apiVersion", "v1");
        }
    }
}

fn probe_defaults(probe: &mut Map<String, Value>) {
    for (key, value) in [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        if probe.get(key).is_none_or(|given| given == &json!(0)) {
            probe.insert(key.to_owned(), value.into());
        }
    }
    if let Some(get) = probe.get_mut("httpGet") {
        let get = object::fields(get);
        set_default(get, "path", "/");
        set_default(get, "scheme", "HTTP");
    }
    if let Some(grpc) = probe.get_mut("grpc") {
        set_default(object::fields(grpc), "service", "");
    }
}

fn qos_class(pod: &Value) -> &'static str {
    let (mut any, mut all) = (false, true);
    for container in object::items(pod, &["spec", "containers"]) {
        let resource = |list: &str, name: &str| object::at(container, &["resources", list, name]);
        for name in ["cpu", "memory"] {
            let (limit, request) = (resource("limits", name), resource("requests", name));
            any |= limit.is_some() || request.is_some();
            all &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// What is wrong with a Pod's specification at a path (`spec`, `spec.template.spec`).
pub fn validate_spec(owner: &Value, path: &str) -> Vec<Cause> {
    let keys: Vec<&str> = path.split('.').collect();
    let mut causes = Vec::new();
    let empty = json!({});
    let spec = object::at(owner, &keys).unwrap_or(&empty);
    causes.extend(volumes::validate(spec, path));
    let volumes =
        object::items(spec, &["volumes"]).iter().filter_map(|volume| object::text(volume, &["name"])).collect();
    let list = object::items(spec, &["containers"]);
    if list.is_empty() {
        causes.push(Cause::required(format!("{path}.containers"), ""));
    }
    let mut seen = BTreeSet::new();
    for (key, list) in [("initContainers", object::items(spec, &["initContainers"])), ("containers", list)] {
        for (index, container) in list.iter().enumerate() {
            let path = format!("{path}.{key}[{index}]");
            let name = object::text(container, &["name"]).unwrap_or("");
            if name.is_empty() {
                causes.push(Cause::required(format!("{path}.name"), ""));
            } else if let Some(problem) = names::label_problem(name) {
                causes.push(Cause::invalid(format!("{path}.name"), name, problem));
            } else if !seen.insert(name) {
                causes.push(Cause::new(format!("{path}.name"), Problem::Duplicate(name.into())));
            }
            if object::text(container, &["image"]).unwrap_or("").is_empty() {
                causes.push(Cause::required(format!("{path}.image"), ""));
            }
            container_ports(container, &path, &mut causes);
            causes.extend(containers::validate(container, &path, &volumes));
        }
    }
    one_of(spec, path, "restartPolicy", &["Always", "OnFailure", "Never"], &mut causes);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(spec, path, "dnsPolicy", &policies, &mut causes);
    let grace = object::number(spec, &["terminationGracePeriodSeconds"]).unwrap_or(0);
    if grace < 0 {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid(format!("{path}.terminationGracePeriodSeconds"), grace, detail));
    }
    for key in ["hostname", "subdomain"] {
        let name = object::text(spec, &[key]).unwrap_or("");
        if let Some(problem) = (!name.is_empty()).then(|| names::label_problem(name)).flatten() {
            causes.push(Cause::invalid(format!("{path}.{key}"), name, problem));
        }
    }
    let node = object::text(spec, &["nodeName"]).unwrap_or("");
    if let Some(problem) = (!node.is_empty()).then(|| names::subdomain_problem(node)).flatten() {
        causes.push(Cause::invalid(format!("{path}.nodeName"), node, problem));
    }
    causes.extend(names::labels(&format!("{path}.nodeSelector"), object::at(spec, &["nodeSelector"])));
    causes.extend(tolerations::validate(spec, path));
    causes
}

fn one_of(spec: &Value, path: &str, key: &str, allowed: &[&str], causes: &mut Vec<Cause>) {
    let value = object::text(spec, &[key]).unwrap_or("");
    if !allowed.contains(&value) {
        causes.push(Cause::not_supported(format!("{path}.{key}"), value, allowed));
    }
}

fn container_ports(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, port) in object::items(container, &["ports"]).iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        let name = object::text(port, &["name"]).unwrap_or("");
        if !name.is_empty() {
            if let Some(problem) = names::port_name_problem(name) {
                causes.push(Cause::invalid(format!("{path}.name"), name, problem));
            } else if !seen.insert(name) {
                causes.push(Cause::new(format!("{path}.name"), Problem::Duplicate(name.into())));
            }
        }
        match object::number(port, &["containerPort"]).unwrap_or(0) {
            0 => causes.push(Cause::required(format!("{path}.containerPort"), "")),
            1..=65_535 => {}
            number => causes.push(Cause::invalid(format!("{path}.containerPort"), number, PORT_RANGE)),
        }
        let protocol = object::text(port, &["protocol"]).unwrap_or("");
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            let protocols = ["SCTP", "TCP", "UDP"];
            causes.push(Cause::not_supported(format!("{path}.protocol"), protocol, &protocols));
        }
    }
}

/// What a Pod can't become: its specification is fixed but for a few fields.
pub fn validate_update(old: &Value, pod: &Value) -> Vec<Cause> {
    let fixed = |pod: &Value| {
        let mut spec = pod.get("spec").cloned().unwrap_or(Value::Null);
        let fields = object::fields(&mut spec);
        for key in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"] {
            fields.remove(key);
        }
        for key in ["containers", "initContainers"] {
            for container in fields.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                object::fields(container).remove("image");
            }
        }
        spec
    };
    if fixed(old) == fixed(pod) { Vec::new() } else { vec![Cause::forbidden("spec", UPDATABLE)] }
}
