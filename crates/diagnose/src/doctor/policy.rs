//! Pure. NetworkPolicies, as they would be enforced: after the Service's address was rewritten, on the pods' own addresses
//! and ports. Whether this cluster enforces them is not known here, and said so.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use signpost_core::object::Protocol;

use super::case::Case;
use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::{PodObject, text};
use crate::address::Source;
use crate::predict::{Answerer, Fate, Step};

/// One side of a connection.
#[derive(Clone, Copy)]
struct Side<'a> {
    pod: Option<PodObject<'a>>,
    address: IpAddr,
}

pub(super) fn judge(ground: &Ground<'_>, cases: &[Case<'_>]) -> Vec<Finding> {
    if ground.snapshot.objects.network_policies.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for case in cases {
        for way in &case.ways {
            let (Fate::Reached { .. }, Some(Step::Arrived { by: Some(Answerer::Pod(to)), packet, .. })) =
                (&way.fate, way.steps.last())
            else {
                continue;
            };
            let (Some(backend), Some(first)) = (ground.pod(&to.namespace, &to.name), way.steps.first()) else {
                continue;
            };
            let Step::Sent { by, packet: sent } = first else { continue };
            let client = match by {
                Source::Pod(pod) => ground.pod(&pod.namespace, &pod.name),
                Source::Node(_) | Source::Outside => None,
            };
            let flow = Flow {
                client: Side { pod: client, address: sent.source.ip() },
                backend: Side { pod: Some(backend), address: packet.destination.ip() },
                protocol: packet.protocol,
                pod_port: packet.destination.port(),
                service_port: sent.destination.port(),
            };
            found.extend(flow.judge(ground));
        }
    }
    found
}

struct Flow<'a> {
    client: Side<'a>,
    backend: Side<'a>,
    protocol: Protocol,
    pod_port: u16,
    service_port: u16,
}

impl Flow<'_> {
    fn judge(&self, ground: &Ground<'_>) -> Option<Finding> {
        let (backend, from) = (self.backend.pod?, self.client.address);
        let denied = self.denied(ground, backend, "Ingress", self.client, self.pod_port);
        if let Some(policies) = denied {
            let by_service_port = self.denied(ground, backend, "Ingress", self.client, self.service_port).is_none();
            let names = policies.join(", ");
            let finding = if by_service_port && self.service_port != self.pod_port {
                Finding::new(
                    Code::PolicyServicePort,
                    Severity::Degraded,
                    format!(
                        "policy {names} lets clients to port {}, and the pod's is {}",
                        self.service_port, self.pod_port
                    ),
                )
                .computed("policies are asked after the rewriting")
            } else {
                Finding::new(
                    Code::PolicyIngress,
                    Severity::Degraded,
                    format!("policy {names} does not let {from} to {} at {}", backend.full_name(), self.pod_port),
                )
            };
            return Some(self.told(finding));
        }
        let client = self.client.pod?;
        let policies = self.denied(ground, client, "Egress", self.backend, self.pod_port)?;
        Some(self.told(Finding::new(
            Code::PolicyEgress,
            Severity::Degraded,
            format!(
                "policy {} does not let {} out to {} at {}",
                policies.join(", "),
                client.full_name(),
                self.backend.address,
                self.pod_port
            ),
        )))
    }

    fn told(&self, finding: Finding) -> Finding {
        finding
            .computed("the policies' selectors, peers and ports were compared with this connection")
            .assumed("that this cluster's network enforces NetworkPolicies")
            .next("kubectl describe networkpolicies")
    }

    /// The policies that select a pod in a direction and none of whose rules lets the peer through; `None`: it may.
    fn denied(
        &self,
        ground: &Ground<'_>,
        pod: PodObject<'_>,
        direction: &str,
        peer: Side<'_>,
        port: u16,
    ) -> Option<Vec<String>> {
        let mut names = Vec::new();
        for policy in ground.policies_of(pod.namespace()) {
            let selected = policy.pointer("/spec/podSelector").is_some_and(|selector| fits(selector, &pod.labels()))
                && applies(policy, direction);
            if !selected {
                continue;
            }
            names.push(text(policy, "/metadata/name").unwrap_or_default().to_owned());
            let (rules, peers) =
                if direction == "Ingress" { ("/spec/ingress", "from") } else { ("/spec/egress", "to") };
            for rule in policy.pointer(rules).and_then(Value::as_array).into_iter().flatten() {
                if self.port_fits(rule, pod, port) && self.peer_fits(ground, rule.get(peers), pod.namespace(), peer) {
                    return None;
                }
            }
        }
        (!names.is_empty()).then_some(names)
    }

    fn port_fits(&self, rule: &Value, pod: PodObject<'_>, port: u16) -> bool {
        let Some(ports) = rule.get("ports").and_then(Value::as_array).filter(|ports| !ports.is_empty()) else {
            return true;
        };
        ports.iter().any(|one| {
            let protocol = text(one, "/protocol").unwrap_or("TCP").eq_ignore_ascii_case(&self.protocol.to_string());
            let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
            protocol
                && match one.get("port") {
                    None => true,
                    Some(Value::String(name)) => pod.named_port(name, self.protocol) == Some(port),
                    Some(value) => {
                        let from = number(value);
                        let to = one.get("endPort").and_then(number).or(from);
                        matches!((from, to), (Some(from), Some(to)) if (from..=to).contains(&port))
                    }
                }
        })
    }

    fn peer_fits(&self, ground: &Ground<'_>, peers: Option<&Value>, namespace: &str, peer: Side<'_>) -> bool {
        let Some(peers) = peers.and_then(Value::as_array).filter(|peers| !peers.is_empty()) else { return true };
        peers.iter().any(|one| {
            if let Some(block) = one.get("ipBlock") {
                let range = text(block, "/cidr").and_then(|cidr| cidr.parse::<IpNet>().ok());
                let except = block.get("except").and_then(Value::as_array).into_iter().flatten();
                let mut except = except.filter_map(|cidr| cidr.as_str()?.parse::<IpNet>().ok());
                return range.is_some_and(|range| range.contains(&peer.address))
                    && !except.any(|range| range.contains(&peer.address));
            }
            let Some(pod) = peer.pod else { return false };
            let in_namespace = match one.get("namespaceSelector") {
                // The label that every namespace has is known; others would need the Namespace objects.
                Some(selector) => {
                    let labels =
                        BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), pod.namespace().to_owned())]);
                    fits(selector, &labels) || ground.namespace_labels_unknown(selector)
                }
                None => pod.namespace() == namespace,
            };
            in_namespace && one.get("podSelector").is_none_or(|selector| fits(selector, &pod.labels()))
        })
    }
}

impl Ground<'_> {
    /// Whether a selector of namespaces asks for labels that are not known here: then it is taken to fit.
    fn namespace_labels_unknown(&self, selector: &Value) -> bool {
        let labels = selector.get("matchLabels").and_then(Value::as_object);
        let keys: BTreeSet<&str> = labels.into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        keys.iter().any(|key| *key != "kubernetes.io/metadata.name") || selector.get("matchExpressions").is_some()
    }
}

fn applies(policy: &Value, direction: &str) -> bool {
    match policy.pointer("/spec/policyTypes").and_then(Value::as_array) {
        Some(types) if !types.is_empty() => types.iter().any(|one| one.as_str() == Some(direction)),
        _ => direction == "Ingress" || policy.pointer("/spec/egress").is_some(),
    }
}

/// A label selector; an empty one fits everything.
fn fits(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let wanted = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let mut wanted = wanted.filter_map(|(key, value)| Some((key, value.as_str()?)));
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let holds = |one: &Value| {
        let (key, operator) = (text(one, "/key").unwrap_or_default(), text(one, "/operator").unwrap_or_default());
        let values = one.get("values").and_then(Value::as_array).into_iter().flatten();
        let values: BTreeSet<&str> = values.filter_map(Value::as_str).collect();
        let has = labels.get(key).map(String::as_str);
        match operator {
            "In" => has.is_some_and(|has| values.contains(has)),
            "NotIn" => has.is_none_or(|has| !values.contains(has)),
            "Exists" => has.is_some(),
            "DoesNotExist" => has.is_none(),
            _ => false,
        }
    };
    wanted.all(|(key, value)| labels.get(key).map(String::as_str) == Some(value)) && expressions.into_iter().all(holds)
}
