//! Pure. What a snapshot would be if an object were otherwise: the object is changed, controllers and daemons are taken to
//! have done their work.
//!
//! Slices of Services with a selector are made anew, and each node is taken to hold what the objects then ask for.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::{Value, json};
use signpost_datapath::{iptables, ipvs, nftables};

use crate::planned::plan_anew;
use crate::program::Program;
use crate::snapshot::{NodeState, Snapshot};

/// A change of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    kind: String,
    namespace: String,
    name: String,
    patch: Value,
}

/// Why a change cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhatIfError {
    /// Not of the form.
    #[error(
        "--what-if {0}: write KIND/[NAMESPACE/]NAME=MERGE-PATCH, such as service/web={{\"spec\":{{\"externalTrafficPolicy\":\"Local\"}}}}"
    )]
    Form(String),
    /// The patch is no JSON.
    #[error("--what-if: the patch is no JSON: {0}")]
    Patch(String),
    /// A kind that is not in snapshots.
    #[error(
        "--what-if: {0} is not a kind of a snapshot: service, pod, node, endpointslice, networkpolicy, servicecidr"
    )]
    Kind(String),
    /// No such object.
    #[error("--what-if: there is no {kind} {namespace}/{name}")]
    Missing {
        /// Its kind.
        kind: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl FromStr for Change {
    type Err = WhatIfError;

    fn from_str(text: &str) -> Result<Change, WhatIfError> {
        let wrong = || WhatIfError::Form(text.to_owned());
        let (object, patch) = text.split_once('=').ok_or_else(wrong)?;
        let parts: Vec<&str> = object.split('/').collect();
        let (kind, namespace, name) = match parts.as_slice() {
            [kind, name] => (*kind, "default", *name),
            [kind, namespace, name] => (*kind, *namespace, *name),
            _ => return Err(wrong()),
        };
        let patch = serde_json::from_str(patch).map_err(|error| WhatIfError::Patch(error.to_string()))?;
        Ok(Change { kind: kind.to_lowercase(), namespace: namespace.to_owned(), name: name.to_owned(), patch })
    }
}

impl Change {
    /// Changes a snapshot.
    ///
    /// # Errors
    /// There is no such object.
    pub fn apply(&self, snapshot: &mut Snapshot) -> Result<(), WhatIfError> {
        let objects = &mut snapshot.objects;
        let (list, has_namespace) = match self.kind.trim_end_matches('s') {
            "service" | "svc" => (&mut objects.services, true),
            "pod" => (&mut objects.pods, true),
            "node" => (&mut objects.nodes, false),
            "endpointslice" => (&mut objects.slices, true),
            "networkpolicy" | "networkpolicie" => (&mut objects.network_policies, true),
            "servicecidr" => (&mut objects.service_cidrs, false),
            _ => return Err(WhatIfError::Kind(self.kind.clone())),
        };
        let text = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let is_it = |object: &Value| {
            text(object, "/metadata/name").as_ref() == Some(&self.name)
                && (!has_namespace || text(object, "/metadata/namespace").as_ref() == Some(&self.namespace))
        };
        let found = list.iter().position(is_it).ok_or_else(|| WhatIfError::Missing {
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        })?;
        if self.patch.is_null() {
            list.remove(found);
        } else {
            merge(&mut list[found], &self.patch);
        }
        if self.kind.starts_with("service") || self.kind.starts_with("svc") || self.kind.starts_with("pod") {
            slices(snapshot);
        }
        plan_anew(&snapshot.objects, &mut snapshot.nodes);
        snapshot.nodes.values_mut().for_each(follow);
        Ok(())
    }
}

/// RFC 7396.
fn merge(into: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let Some(fields) = into.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The node does what the objects ask for.
fn follow(state: &mut NodeState) {
    let mode = state.programs.values().next().map(Program::mode);
    state.plans.clone_from(&state.wanted);
    state.kernel.values_mut().for_each(|kernel| kernel.differences.clear());
    let program = |plan| match mode {
        Some("nftables") => Some(Program::Nftables(nftables::Program::of(plan))),
        Some("ipvs") => Some(Program::Ipvs(ipvs::Program::of(plan, ipvs::Scheduler::default()))),
        Some("iptables") => Some(Program::Iptables(iptables::Program::of(plan))),
        _ => None,
    };
    state.programs =
        state.plans.iter().filter_map(|(family, plan)| Some((*family, program(plan)?))).collect::<BTreeMap<_, _>>();
}

/// Makes the slices of Services with a selector anew.
fn slices(snapshot: &mut Snapshot) {
    let objects = &mut snapshot.objects;
    let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let selects =
        |service: &Value| service.pointer("/spec/selector").and_then(Value::as_object).is_some_and(|s| !s.is_empty());
    let selecting: Vec<(String, String)> = objects
        .services
        .iter()
        .filter(|service| selects(service))
        .filter_map(|service| Some((text(service, "/metadata/namespace")?, text(service, "/metadata/name")?)))
        .collect();
    objects.slices.retain(|slice| {
        let of =
            slice.pointer("/metadata/labels").and_then(|labels| labels.get("kubernetes.io/service-name")?.as_str());
        let namespace = text(slice, "/metadata/namespace");
        !selecting.iter().any(|(space, name)| Some(name.as_str()) == of && Some(space) == namespace.as_ref())
    });
    for service in objects.services.iter().filter(|service| selects(service)) {
        for family in ["IPv4", "IPv6"] {
            objects.slices.extend(slices_of(service, &objects.pods, family));
        }
    }
}

/// One slice for each way in which a named port is resolved.
fn slices_of(service: &Value, pods: &[Value], family: &str) -> Vec<Value> {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object).cloned().unwrap_or_default();
    let namespace = service.pointer("/metadata/namespace").cloned().unwrap_or_default();
    let name = service.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let publish = service.pointer("/spec/publishNotReadyAddresses").and_then(Value::as_bool) == Some(true);
    let mut by_ports: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    for pod in pods {
        let labels = pod.pointer("/metadata/labels");
        let fits = selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value));
        let over = matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
        if !fits || over || pod.pointer("/metadata/namespace") != Some(&namespace) {
            continue;
        }
        let ips = pod.pointer("/status/podIPs").and_then(Value::as_array).into_iter().flatten();
        let mut ips = ips.filter_map(|entry| entry.get("ip")?.as_str());
        let Some(ip) = ips.find(|ip| ip.contains(':') == (family == "IPv6")) else { continue };
        let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let ready = conditions
            .into_iter()
            .any(|one| one.get("type") == Some(&json!("Ready")) && one.get("status") == Some(&json!("True")));
        let ending = pod.pointer("/metadata/deletionTimestamp").is_some();
        let ports = ports_of(service, pod);
        let endpoint = json!({
            "addresses": [ip],
            "conditions": {"ready": publish || (ready && !ending), "serving": publish || ready, "terminating": ending},
            "nodeName": pod.pointer("/spec/nodeName"),
            "targetRef": {"kind": "Pod", "name": pod.pointer("/metadata/name"), "namespace": namespace},
        });
        by_ports.entry(ports.to_string()).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
    }
    let slice = |(number, (ports, endpoints)): (usize, (Value, Vec<Value>))| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": family,
            "metadata": {
                "namespace": namespace,
                "name": format!("{name}-what-if-{}-{number}", family.to_lowercase()),
                "labels": {
                    "kubernetes.io/service-name": name,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "ports": ports,
            "endpoints": endpoints,
        })
    };
    by_ports.into_values().enumerate().map(slice).collect()
}

fn ports_of(service: &Value, pod: &Value) -> Value {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let of_pod = |name: &str, protocol: &Value| {
        let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
        let mut ports = containers.filter_map(|container| container.get("ports")?.as_array()).flatten();
        let found = ports.find(|port| {
            port.get("name").and_then(Value::as_str) == Some(name)
                && port.get("protocol").unwrap_or(&json!("TCP")) == protocol
        });
        found.and_then(|port| port.get("containerPort").cloned())
    };
    let resolved = ports.filter_map(|port| {
        let protocol = port.get("protocol").cloned().unwrap_or_else(|| json!("TCP"));
        let number = match port.get("targetPort") {
            Some(Value::String(name)) => of_pod(name, &protocol)?,
            Some(number) if *number != json!(0) => number.clone(),
            _ => port.get("port")?.clone(),
        };
        Some(json!({"name": port.get("name").cloned().unwrap_or_else(|| json!("")), "protocol": protocol, "port": number}))
    });
    Value::Array(resolved.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_checked() {
        let change: Change = r#"service/shop/web={"spec":{"a":null}}"#.parse().unwrap();
        assert_eq!((change.namespace.as_str(), change.name.as_str()), ("shop", "web"));
        assert!(matches!("service/web".parse::<Change>(), Err(WhatIfError::Form(_))));
        assert!(matches!("service/web={".parse::<Change>(), Err(WhatIfError::Patch(_))));
        let wheel: Change = "wheel/a=null".parse().unwrap();
        assert!(matches!(wheel.apply(&mut Snapshot::default()), Err(WhatIfError::Kind(_))));
        let missing: Change = "pod/a=null".parse().unwrap();
        assert!(matches!(missing.apply(&mut Snapshot::default()), Err(WhatIfError::Missing { .. })));
    }

    #[test]
    fn a_pod_whose_label_changes_joins_the_service() {
        let mut snapshot = Snapshot::default();
        snapshot.objects.services = vec![json!({
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        })];
        snapshot.objects.pods = vec![json!({
            "metadata": {"namespace": "default", "name": "web-1", "labels": {"app": "wbe"}},
            "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {"podIPs": [{"ip": "10.244.1.2"}], "conditions": [{"type": "Ready", "status": "True"}]},
        })];
        let change: Change = r#"pod/web-1={"metadata":{"labels":{"app":"web"}}}"#.parse().unwrap();
        change.apply(&mut snapshot).unwrap();
        let slices = &snapshot.objects.slices;
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0]["ports"][0]["port"], 8080);
        assert_eq!(slices[0]["endpoints"][0]["addresses"][0], "10.244.1.2");
    }
}
