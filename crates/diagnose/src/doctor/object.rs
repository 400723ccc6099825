//! Pure. Services and pods of the API, as judges ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;
use signpost_core::object::{ObjectName, Protocol};

pub(super) use crate::field::text;
use crate::field::{at, list};

fn map(value: &Value, pointer: &str) -> BTreeMap<String, String> {
    let fields = at(value, pointer).and_then(Value::as_object).into_iter().flatten();
    fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Namespace and name.
pub(super) fn object_name(value: &Value) -> Option<ObjectName> {
    Some(ObjectName::new(text(value, "/metadata/namespace").unwrap_or_default(), text(value, "/metadata/name")?))
}

/// A Service.
#[derive(Clone, Copy)]
pub(super) struct ServiceObject<'a>(pub(super) &'a Value);

/// One of its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortObject {
    pub(super) name: String,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) node_port: Option<u16>,
    /// A number or a name; unset: the port's own number.
    pub(super) target: Result<u16, String>,
}

impl<'a> ServiceObject<'a> {
    pub(super) fn kind(self) -> &'a str {
        text(self.0, "/spec/type").unwrap_or("ClusterIP")
    }

    pub(super) fn selector(self) -> BTreeMap<String, String> {
        map(self.0, "/spec/selector")
    }

    pub(super) fn is_headless(self) -> bool {
        text(self.0, "/spec/clusterIP") == Some("None")
    }

    pub(super) fn cluster_ips(self) -> Vec<IpAddr> {
        list(self.0, "/spec/clusterIPs").iter().filter_map(|ip| ip.as_str()?.parse().ok()).collect()
    }

    pub(super) fn external_ips(self) -> Vec<IpAddr> {
        list(self.0, "/spec/externalIPs").iter().filter_map(|ip| ip.as_str()?.parse().ok()).collect()
    }

    pub(super) fn ingress(self) -> Vec<IpAddr> {
        let all = list(self.0, "/status/loadBalancer/ingress").iter();
        all.filter_map(|entry| text(entry, "/ip")?.parse().ok()).collect()
    }

    pub(super) fn label(self, name: &str) -> Option<&'a str> {
        at(self.0, "/metadata/labels")?.get(name)?.as_str()
    }

    pub(super) fn is_set(self, pointer: &str) -> bool {
        at(self.0, pointer).and_then(Value::as_bool) == Some(true)
    }

    pub(super) fn ports(self) -> Vec<PortObject> {
        let number = |value: Option<&Value>| value?.as_u64().and_then(|number| u16::try_from(number).ok());
        let port = |port: &Value| {
            let own = number(port.get("port"))?;
            let protocol = match text(port, "/protocol") {
                None | Some("TCP") => Protocol::Tcp,
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                Some(_) => return None,
            };
            let target = match port.get("targetPort") {
                Some(Value::String(name)) => name.parse().map_err(|_| name.clone()),
                other => Ok(number(other).filter(|number| *number != 0).unwrap_or(own)),
            };
            Some(PortObject {
                name: text(port, "/name").unwrap_or_default().to_owned(),
                protocol,
                port: own,
                node_port: number(port.get("nodePort")).filter(|number| *number != 0),
                target,
            })
        };
        list(self.0, "/spec/ports").iter().filter_map(port).collect()
    }
}

/// A pod.
#[derive(Clone, Copy)]
pub(super) struct PodObject<'a>(pub(super) &'a Value);

impl<'a> PodObject<'a> {
    pub(super) fn name(self) -> String {
        text(self.0, "/metadata/name").unwrap_or_default().to_owned()
    }

    pub(super) fn namespace(self) -> &'a str {
        text(self.0, "/metadata/namespace").unwrap_or_default()
    }

    pub(super) fn full_name(self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    pub(super) fn labels(self) -> BTreeMap<String, String> {
        map(self.0, "/metadata/labels")
    }

    pub(super) fn has_all(self, selector: &BTreeMap<String, String>) -> bool {
        let labels = at(self.0, "/metadata/labels");
        selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)?.as_str()) == Some(value))
    }

    pub(super) fn is_over(self) -> bool {
        matches!(text(self.0, "/status/phase"), Some("Succeeded" | "Failed"))
    }

    pub(super) fn is_ending(self) -> bool {
        at(self.0, "/metadata/deletionTimestamp").is_some()
    }

    pub(super) fn ips(self) -> Vec<IpAddr> {
        list(self.0, "/status/podIPs").iter().filter_map(|entry| text(entry, "/ip")?.parse().ok()).collect()
    }

    pub(super) fn condition(self, kind: &str) -> Option<&'a Value> {
        list(self.0, "/status/conditions").iter().find(|condition| text(condition, "/type") == Some(kind))
    }

    pub(super) fn is_ready(self) -> bool {
        self.condition("Ready").and_then(|ready| text(ready, "/status")) == Some("True")
    }

    /// The readiness gates that are not met.
    pub(super) fn unmet_gates(self) -> Vec<&'a str> {
        let gates = list(self.0, "/spec/readinessGates").iter().filter_map(|gate| text(gate, "/conditionType"));
        gates.filter(|gate| self.condition(gate).and_then(|found| text(found, "/status")) != Some("True")).collect()
    }

    pub(super) fn containers_ready(self) -> bool {
        let statuses = list(self.0, "/status/containerStatuses");
        !statuses.is_empty() && statuses.iter().all(|one| one.get("ready").and_then(Value::as_bool) == Some(true))
    }

    /// Why a container does not run, if one does not for a reason that does not pass.
    pub(super) fn crash(self) -> Option<String> {
        let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"];
        let mut statuses = statuses.iter().flat_map(|pointer| list(self.0, pointer));
        statuses.find_map(|status| {
            let name = text(status, "/name").unwrap_or_default();
            let waiting = text(status, "/state/waiting/reason").filter(|reason| {
                matches!(
                    *reason,
                    "CrashLoopBackOff"
                        | "ErrImagePull"
                        | "ImagePullBackOff"
                        | "InvalidImageName"
                        | "CreateContainerConfigError"
                        | "CreateContainerError"
                        | "RunContainerError"
                )
            });
            let ended = status.pointer("/state/terminated/exitCode").and_then(Value::as_i64).filter(|code| *code != 0);
            waiting
                .map(|reason| format!("container {name}: {reason}"))
                .or_else(|| ended.map(|code| format!("container {name} ended with status {code}")))
        })
    }

    /// The number of a container port by its name and protocol.
    pub(super) fn named_port(self, name: &str, protocol: Protocol) -> Option<u16> {
        self.ports()
            .find(|port| {
                let of = text(port, "/protocol").unwrap_or("TCP");
                text(port, "/name") == Some(name) && of.eq_ignore_ascii_case(&protocol.to_string())
            })
            .and_then(|port| port.get("containerPort")?.as_u64().and_then(|number| u16::try_from(number).ok()))
    }

    /// The names of its ports.
    pub(super) fn port_names(self) -> BTreeSet<&'a str> {
        self.ports().filter_map(|port| text(port, "/name")).collect()
    }

    fn ports(self) -> impl Iterator<Item = &'a Value> {
        // A sidecar is an init container that stays.
        let all = list(self.0, "/spec/containers").iter().chain(list(self.0, "/spec/initContainers"));
        all.flat_map(|container| list(container, "/ports"))
    }

    /// What made it: an owner's name, or what its labels say without the marks of one template.
    pub(super) fn maker(self) -> String {
        let owner = list(self.0, "/metadata/ownerReferences").first();
        if let Some(name) = owner.and_then(|owner| text(owner, "/name")) {
            let hash = self.labels().get("pod-template-hash").cloned().unwrap_or_default();
            return name.trim_end_matches(&hash).trim_end_matches('-').to_owned();
        }
        let labels = self.labels();
        let kept = labels.iter().filter(|(key, _)| !key.ends_with("-hash") && !key.contains("pod-index"));
        kept.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }
}

/// A slice.
#[derive(Clone, Copy)]
pub(super) struct SliceObject<'a>(pub(super) &'a Value);

impl<'a> SliceObject<'a> {
    pub(super) fn service(self) -> Option<&'a str> {
        at(self.0, "/metadata/labels")?.get("kubernetes.io/service-name")?.as_str()
    }

    pub(super) fn name(self) -> &'a str {
        text(self.0, "/metadata/name").unwrap_or_default()
    }

    pub(super) fn is_controllers(self) -> bool {
        let by = at(self.0, "/metadata/labels").and_then(|labels| labels.get("endpointslice.kubernetes.io/managed-by"));
        by.and_then(Value::as_str).is_some_and(|by| by.starts_with("endpointslice"))
    }

    pub(super) fn endpoints(self) -> impl Iterator<Item = &'a Value> {
        list(self.0, "/endpoints").iter()
    }

    pub(super) fn addresses(self) -> impl Iterator<Item = &'a str> {
        self.endpoints().filter_map(|endpoint| at(endpoint, "/addresses/0")?.as_str())
    }

    pub(super) fn address_type(self) -> &'a str {
        text(self.0, "/addressType").unwrap_or_default()
    }

    /// `name/PROTOCOL` of each port.
    pub(super) fn ports(self) -> Vec<String> {
        let ports = list(self.0, "/ports").iter();
        ports
            .map(|port| {
                let name = text(port, "/name").filter(|name| !name.is_empty()).unwrap_or("(no name)");
                format!("{name}/{}", text(port, "/protocol").unwrap_or("TCP"))
            })
            .collect()
    }
}

/// Whether an endpoint of a slice is ready; unset counts as ready.
pub(super) fn endpoint_ready(endpoint: &Value) -> bool {
    at(endpoint, "/conditions/ready").and_then(Value::as_bool).unwrap_or(true)
}

/// A selector as `kubectl -l` takes it.
pub(super) fn selector_text(selector: &BTreeMap<String, String>) -> String {
    selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}
