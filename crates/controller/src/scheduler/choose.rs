//! Pure. The node for a pod: of those that take it, the one with the fewest pods of the same owner, then the fewest
//! pods, then the first by name. So the replicas of a workload spread over all nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration};

use crate::nodes;
use crate::selector::Labels;

/// How many pods a node has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// Of the pod's owner.
    pub same_owner: usize,
    /// Of anybody.
    pub all: usize,
}

/// The name of the node for a pod.
///
/// # Errors
/// Why no node takes it, as the event says it.
pub fn choose(pod: &Pod, nodes: &[Arc<Node>], load: &dyn Fn(&str) -> Load) -> Result<String, String> {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(Load, &str)> = None;
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        match refusal(&spec, node) {
            Some(reason) => *refusals.entry(reason).or_default() += 1,
            None => {
                let candidate = (load(name), name);
                if best.is_none_or(|best| candidate < best) {
                    best = Some(candidate);
                }
            }
        }
    }
    match best {
        Some((_, name)) => Ok(name.to_owned()),
        None if nodes.is_empty() => Err("no nodes available to schedule pods".to_owned()),
        None => {
            let reasons: Vec<String> =
                refusals.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            Err(format!("0/{} nodes are available: {}.", nodes.len(), reasons.join(", ")))
        }
    }
}

/// Why a node does not take a pod.
fn refusal(spec: &PodSpec, node: &Node) -> Option<String> {
    let node_spec = node.spec.clone().unwrap_or_default();
    if node.metadata.deletion_timestamp.is_some() || !nodes::is_ready(node) {
        return Some("node(s) were not ready".to_owned());
    }
    if node_spec.unschedulable == Some(true) {
        return Some("node(s) were unschedulable".to_owned());
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let mut taints = node_spec.taints.iter().flatten();
    if let Some(taint) = taints.find(|taint| keeps_away(taint) && !tolerations.iter().any(|t| tolerates(t, taint))) {
        let value = taint.value.as_deref().unwrap_or_default();
        return Some(format!("node(s) had untolerated taint {{{}: {value}}}", taint.key));
    }
    (!is_wanted(spec, node)).then(|| "node(s) didn't match Pod's node affinity/selector".to_owned())
}

fn keeps_away(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = |value: Option<&String>| value.cloned().unwrap_or_default();
    (effect.is_empty() || effect == taint.effect)
        && match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => key.is_empty() || key == taint.key,
            "Equal" => key == taint.key && value(toleration.value.as_ref()) == value(taint.value.as_ref()),
            _ => false,
        }
}

/// `nodeSelector` and the required part of `nodeAffinity`.
fn is_wanted(spec: &PodSpec, node: &Node) -> bool {
    let none = Labels::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let mut pairs = spec.node_selector.iter().flatten();
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    pairs.all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| required.node_selector_terms.iter().any(|term| meets(term, node, labels)))
}

fn meets(term: &NodeSelectorTerm, node: &Node, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = node.metadata.name.as_ref();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|expression| holds(expression, labels.get(&expression.key)))
        && fields.iter().all(|field| field.key == "metadata.name" && holds(field, name))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.contains(value));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((number(value), number(values.first())), (Some(has), Some(bound)) if has > bound),
        "Lt" => matches!((number(value), number(values.first())), (Some(has), Some(bound)) if has < bound),
        _ => false,
    }
}
