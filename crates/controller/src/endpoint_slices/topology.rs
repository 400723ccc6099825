//! Pure. Topology-aware hints (KEP-2433): each zone gets as large a part of a Service's endpoints as it has of the cluster's CPU,
//! preferably of its own. Asked for by the annotation `service.kubernetes.io/topology-mode: Auto`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};

use super::desired::Groups;
use crate::nodes;

const MODE: &str = "service.kubernetes.io/topology-mode";
/// Its older name.
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// So much more than its share an endpoint may get for the sake of staying in the zone.
const OVERLOAD: f64 = 0.2;

/// The part of the cluster's CPU that each zone has; they add up to 1.
pub type Shares = BTreeMap<String, f64>;

/// Whether a Service asks for such hints.
pub fn is_asked_for(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|annotations| annotations.get(MODE).or_else(|| annotations.get(HINTS)));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// The zones' shares. `None`: there are fewer than two zones, or a node that takes pods does not say its zone and its CPU,
/// and then no hints can be given.
pub fn shares<'a>(all: impl Iterator<Item = &'a Node>) -> Option<Shares> {
    let mut cpus = Shares::new();
    for node in all.filter(|node| takes_pods(node)) {
        *cpus.entry(nodes::facts(node).zone?).or_default() += cpu(node)?;
    }
    let total: f64 = cpus.values().sum();
    cpus.values_mut().for_each(|cpu| *cpu /= total);
    (cpus.len() >= 2).then_some(cpus)
}

fn takes_pods(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let controls = |label: &str| labels.is_some_and(|labels| labels.contains_key(label));
    nodes::is_ready(node)
        && !controls("node-role.kubernetes.io/control-plane")
        && !controls("node-role.kubernetes.io/master")
}

/// Cores: `2`, `1500m`.
fn cpu(node: &Node) -> Option<f64> {
    let quantity = &node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?.0;
    let cores = match quantity.strip_suffix('m') {
        Some(milli) => milli.parse::<f64>().ok()? / 1000.0,
        None => quantity.parse().ok()?,
    };
    (cores > 0.0).then_some(cores)
}

/// Gives every ready endpoint the zone that is to use it; none at all if it cannot be done evenly enough, or if an endpoint
/// is in no known zone.
pub fn hint(groups: &mut Groups, shares: &Shares) {
    let mut ready: Vec<&mut Endpoint> = groups
        .values_mut()
        .flat_map(BTreeMap::values_mut)
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true))
        .collect();
    let zones: Option<Vec<String>> = ready.iter().map(|endpoint| endpoint.zone.clone()).collect();
    let given = zones.and_then(|zones| allocate(&zones, shares));
    let given = given.map(|zones| zones.into_iter().map(Some).collect()).unwrap_or(vec![None; ready.len()]);
    for (endpoint, zone) in ready.iter_mut().zip(given) {
        endpoint.hints =
            zone.map(|name| EndpointHints { for_zones: Some(vec![ForZone { name }]), ..EndpointHints::default() });
    }
}

/// For endpoints in these zones, the zone that each is given to.
fn allocate(zones: &[String], shares: &Shares) -> Option<Vec<String>> {
    let total = zones.len() as f64;
    let least = |share: f64| (share * total / (1.0 + OVERLOAD)).ceil() as usize;
    let mut count: BTreeMap<&str, usize> = shares.keys().map(|zone| (zone.as_str(), 0)).collect();
    for zone in zones {
        *count.get_mut(zone.as_str())? += 1;
    }
    if shares.values().map(|share| least(*share)).sum::<usize>() > zones.len() {
        return None;
    }
    let mut given: Vec<String> = zones.to_vec();
    while let Some(poor) = shares.keys().find(|zone| count[zone.as_str()] < least(shares[*zone])).cloned() {
        // The one that has most above what it needs gives; as the least of all fit into the total, there is one.
        let spare = |zone: &str| count[zone] as f64 - shares[zone] * total;
        let rich = shares.keys().filter(|zone| count[zone.as_str()] > least(shares[*zone]));
        let rich = rich.max_by(|a, b| spare(a).total_cmp(&spare(b)))?.clone();
        // The last, so that the others stay whose they are.
        let moved = given.iter().rposition(|zone| *zone == rich)?;
        given[moved].clone_from(&poor);
        *count.get_mut(rich.as_str())? -= 1;
        *count.get_mut(poor.as_str())? += 1;
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(of: &[(&str, f64)]) -> Shares {
        of.iter().map(|(zone, share)| ((*zone).to_owned(), *share)).collect()
    }

    fn allocated(zones: &[&str], of: &[(&str, f64)]) -> Option<Vec<String>> {
        allocate(&zones.iter().map(|zone| (*zone).to_owned()).collect::<Vec<_>>(), &shares(of))
    }

    const HALVES: [(&str, f64); 2] = [("a", 0.5), ("b", 0.5)];

    #[test]
    fn endpoints_stay_in_their_zone_when_they_are_spread_as_the_cpu_is() {
        assert_eq!(allocated(&["a", "b"], &HALVES).unwrap(), ["a", "b"]);
        // 7 and 5 of 12: within what may be more.
        let uneven = [["a"; 7].as_slice(), ["b"; 5].as_slice()].concat();
        assert_eq!(allocated(&uneven, &HALVES).unwrap(), uneven);
    }

    #[test]
    fn a_zone_with_too_few_gets_some_of_one_with_too_many() {
        assert_eq!(allocated(&["a", "a", "a", "a"], &HALVES).unwrap(), ["a", "a", "b", "b"]);
        let thirds = [("a", 1.0 / 3.0), ("b", 1.0 / 3.0), ("c", 1.0 / 3.0)];
        assert_eq!(allocated(&["a", "a", "a", "b", "b", "b"], &thirds).unwrap(), ["a", "a", "c", "b", "b", "c"]);
    }

    #[test]
    fn too_few_endpoints_or_unknown_zones_give_no_hints() {
        assert_eq!(allocated(&["a"], &HALVES), None);
        assert_eq!(allocated(&["a", "x"], &HALVES), None);
        // 2.5 each are at least 3 each, of 5.
        assert_eq!(allocated(&["a", "a", "a", "b", "b"], &HALVES), None);
        assert_eq!(
            allocated(&["b"; 20], &[("a", 0.9), ("b", 0.1)]).unwrap().iter().filter(|zone| *zone == "a").count(),
            15
        );
    }

    #[test]
    fn a_node_without_zone_or_two_nodes_in_one_zone_leave_no_shares() {
        let node = |zone: Option<&str>, cpu: &str| -> Node {
            let labels: BTreeMap<&str, &str> = zone.iter().map(|zone| (nodes::ZONE, *zone)).collect();
            let object = serde_json::json!({
                "metadata": {"labels": labels},
                "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]},
            });
            serde_json::from_value(object).unwrap()
        };
        let of = |all: &[Node]| super::shares(all.iter());
        assert_eq!(of(&[node(Some("a"), "3"), node(Some("b"), "1000m")]), Some(shares(&[("a", 0.75), ("b", 0.25)])));
        assert_eq!(of(&[node(Some("a"), "1"), node(Some("a"), "1")]), None);
        assert_eq!(of(&[node(Some("a"), "1"), node(Some("b"), "1"), node(None, "1")]), None);
    }
}
