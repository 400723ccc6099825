//! Pure. Which nodes may announce an address, by advertisements, node labels and traffic policies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::labels::{Labels, Selector, any_selects};
use crate::object::{Family, ObjectName, TrafficPolicy};

use super::served::Served;

/// A node with this label, whatever its value, is to get no traffic of load balancers.
pub const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Says that addresses of pools are announced, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// Its name.
    pub name: Arc<str>,
    /// Of these pools. Neither these nor selectors: of all.
    pub pools: BTreeSet<Arc<str>>,
    /// Of pools with such labels.
    pub pool_selectors: Vec<Selector>,
    /// By nodes with labels that one of these wants; none: by all.
    pub node_selectors: Vec<Selector>,
    /// Of Services with labels that one of these wants; none: of all.
    pub service_selectors: Vec<Selector>,
    /// On these interfaces; none: on those whose network has the address.
    pub interfaces: BTreeSet<Arc<str>>,
}

impl Advertisement {
    /// Whether it speaks of a Service's addresses of a pool.
    pub fn covers(&self, pool: &str, pool_labels: &Labels, service_labels: &Labels) -> bool {
        let all = self.pools.is_empty() && self.pool_selectors.is_empty();
        let chosen = self.pools.contains(pool) || self.pool_selectors.iter().any(|one| one.selects(pool_labels));
        (all || chosen) && any_selects(&self.service_selectors, service_labels)
    }

    /// Whether it speaks of a node.
    pub fn selects(&self, node: &Labels) -> bool {
        any_selects(&self.node_selectors, node)
    }
}

/// A node as an announcer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcer {
    /// Its labels.
    pub labels: Labels,
    /// It is ready and has its network.
    pub ready: bool,
    /// Where other nodes reach it.
    pub addresses: Vec<IpAddr>,
}

/// A load balancer as it is to be announced.
#[derive(Debug, Clone)]
pub struct Announced<'a> {
    /// The Service.
    pub service: &'a ObjectName,
    /// Its labels.
    pub labels: &'a Labels,
    /// The pool that its addresses are of.
    pub pool: &'a str,
    /// The pool's labels.
    pub pool_labels: &'a Labels,
    /// Its addresses and endpoints.
    pub served: &'a Served,
}

/// Why nobody may announce an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nobody {
    /// No advertisement speaks of it.
    NoAdvertisement,
    /// The advertisements select no node that is ready.
    NoNode,
    /// There is no endpoint.
    NoEndpoint,
    /// The policy is Local, and no node that may announce it has an endpoint.
    NoLocalEndpoint,
}

/// Who may announce an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The nodes, each with the interfaces that it is limited to; an empty set: no limit.
    pub nodes: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// The label [`EXCLUDED`] was not heeded, as it would exclude every node.
    pub ignored_exclusion: bool,
}

/// Who may announce a Service's address of a family.
///
/// # Errors
/// Nobody, and why.
pub fn candidates(
    announced: &Announced<'_>,
    family: Family,
    advertisements: &[Advertisement],
    nodes: &BTreeMap<Arc<str>, Announcer>,
) -> Result<Candidates, Nobody> {
    let covers = |one: &&Advertisement| one.covers(announced.pool, announced.pool_labels, announced.labels);
    let covering: Vec<&Advertisement> = advertisements.iter().filter(covers).collect();
    if covering.is_empty() {
        return Err(Nobody::NoAdvertisement);
    }
    let mut candidates = Candidates::default();
    for (name, node) in nodes.iter().filter(|(_, node)| node.ready) {
        let mut selecting = covering.iter().filter(|one| one.selects(&node.labels)).peekable();
        if selecting.peek().is_some() {
            let mut interfaces = BTreeSet::new();
            let mut limited = true;
            for one in selecting {
                limited &= !one.interfaces.is_empty();
                interfaces.extend(one.interfaces.iter().cloned());
            }
            candidates.nodes.insert(name.clone(), if limited { interfaces } else { BTreeSet::new() });
        }
    }
    if candidates.nodes.is_empty() {
        return Err(Nobody::NoNode);
    }
    let is_excluded = |name: &Arc<str>| nodes.get(name).is_some_and(|node| node.labels.contains_key(EXCLUDED));
    if candidates.nodes.keys().all(is_excluded) {
        candidates.ignored_exclusion = true;
    } else {
        candidates.nodes.retain(|name, _| !is_excluded(name));
    }
    let Some(endpoints) = announced.served.nodes.get(&family) else { return Err(Nobody::NoEndpoint) };
    if announced.served.policy == TrafficPolicy::Local {
        candidates.nodes.retain(|name, _| endpoints.contains(name));
        if candidates.nodes.is_empty() {
            return Err(Nobody::NoLocalEndpoint);
        }
    }
    Ok(candidates)
}

/// Why a node may not announce an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection {
    /// It is not ready, or has no network.
    NotReady,
    /// No advertisement speaks of the address.
    NotCovered,
    /// Those that do select other nodes.
    NotSelected,
    /// It has the label [`EXCLUDED`].
    Excluded,
    /// The Service has no endpoint at all.
    NoEndpoint,
    /// The policy is Local, and none is on the node.
    NoLocalEndpoint,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objection::NotReady => f.write_str("the node is not ready"),
            Objection::NotCovered => f.write_str("no advertisement speaks of this Service's pool"),
            Objection::NotSelected => f.write_str("the advertisements select other nodes"),
            Objection::Excluded => write!(f, "the label {EXCLUDED} is on the node"),
            Objection::NoEndpoint => f.write_str("the Service has no endpoint"),
            Objection::NoLocalEndpoint => {
                f.write_str("it has no endpoint of the Service, whose externalTrafficPolicy is Local")
            }
        }
    }
}

/// Why a node is none of the [`candidates`]; `None`: it is one.
pub fn objection(
    announced: &Announced<'_>,
    family: Family,
    advertisements: &[Advertisement],
    nodes: &BTreeMap<Arc<str>, Announcer>,
    node: &Arc<str>,
) -> Option<Objection> {
    if candidates(announced, family, advertisements, nodes).is_ok_and(|found| found.nodes.contains_key(node)) {
        return None;
    }
    let covers = |one: &&Advertisement| one.covers(announced.pool, announced.pool_labels, announced.labels);
    let mut covering = advertisements.iter().filter(covers).peekable();
    let Some(of_node) = nodes.get(node).filter(|of_node| of_node.ready) else { return Some(Objection::NotReady) };
    Some(if covering.peek().is_none() {
        Objection::NotCovered
    } else if !covering.any(|one| one.selects(&of_node.labels)) {
        Objection::NotSelected
    } else if !announced.served.nodes.contains_key(&family) {
        Objection::NoEndpoint
    } else if of_node.labels.contains_key(EXCLUDED) {
        Objection::Excluded
    } else {
        Objection::NoLocalEndpoint
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::Requirement;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
    }

    fn has(key: &str) -> Selector {
        Selector { requirements: vec![Requirement::Exists(key.into())] }
    }

    fn advertisement(name: &str) -> Advertisement {
        Advertisement {
            name: name.into(),
            pools: BTreeSet::new(),
            pool_selectors: vec![],
            node_selectors: vec![],
            service_selectors: vec![],
            interfaces: BTreeSet::new(),
        }
    }

    fn node(pairs: &[(&str, &str)], ready: bool) -> Announcer {
        Announcer { labels: labels(pairs), ready, addresses: vec![] }
    }

    struct Case {
        advertisements: Vec<Advertisement>,
        nodes: BTreeMap<Arc<str>, Announcer>,
        policy: TrafficPolicy,
        endpoints: Vec<&'static str>,
    }

    impl Case {
        fn new() -> Case {
            let nodes = [("n1", node(&[("rack", "a")], true)), ("n2", node(&[], true)), ("n3", node(&[], false))];
            Case {
                advertisements: vec![advertisement("all")],
                nodes: nodes.into_iter().map(|(name, node)| (Arc::from(name), node)).collect(),
                policy: TrafficPolicy::Cluster,
                endpoints: vec!["n2"],
            }
        }

        fn decide(&self) -> Result<Candidates, Nobody> {
            let endpoints: BTreeSet<Arc<str>> = self.endpoints.iter().map(|name| Arc::from(*name)).collect();
            let nodes =
                if endpoints.is_empty() { BTreeMap::new() } else { BTreeMap::from([(Family::Ipv4, endpoints)]) };
            let served = Served { addresses: vec![], policy: self.policy, nodes };
            let announced = Announced {
                service: &ObjectName::new("default", "web"),
                labels: &labels(&[("app", "web")]),
                pool: "default",
                pool_labels: &labels(&[("zone", "x")]),
                served: &served,
            };
            candidates(&announced, Family::Ipv4, &self.advertisements, &self.nodes)
        }

        fn names(&self) -> Vec<String> {
            self.decide().unwrap().nodes.keys().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn every_ready_node_that_an_advertisement_selects_may() {
        let mut case = Case::new();
        assert_eq!(case.names(), ["n1", "n2"]);
        case.advertisements[0].node_selectors = vec![has("rack")];
        assert_eq!(case.names(), ["n1"]);
        case.advertisements[0].node_selectors = vec![has("nothing")];
        assert_eq!(case.decide(), Err(Nobody::NoNode));
        case.advertisements.clear();
        assert_eq!(case.decide(), Err(Nobody::NoAdvertisement));
    }

    #[test]
    fn advertisements_choose_pools_and_services() {
        let mut case = Case::new();
        case.advertisements[0].pools = ["other".into()].into();
        assert_eq!(case.decide(), Err(Nobody::NoAdvertisement));
        case.advertisements[0].pool_selectors = vec![has("zone")];
        assert_eq!(case.names(), ["n1", "n2"]);
        case.advertisements[0].service_selectors = vec![has("tier")];
        assert_eq!(case.decide(), Err(Nobody::NoAdvertisement));
    }

    #[test]
    fn a_local_policy_wants_endpoints_on_the_node() {
        let mut case = Case { policy: TrafficPolicy::Local, ..Case::new() };
        assert_eq!(case.names(), ["n2"]);
        case.endpoints = vec!["n3"];
        assert_eq!(case.decide(), Err(Nobody::NoLocalEndpoint));
        case.endpoints.clear();
        assert_eq!(case.decide(), Err(Nobody::NoEndpoint));
        case.policy = TrafficPolicy::Cluster;
        assert_eq!(case.decide(), Err(Nobody::NoEndpoint));
    }

    #[test]
    fn the_exclusion_label_is_heeded_unless_it_would_exclude_every_node() {
        let mut case = Case::new();
        case.nodes.insert("n1".into(), node(&[(EXCLUDED, "")], true));
        assert_eq!(case.names(), ["n2"]);
        case.nodes.insert("n2".into(), node(&[(EXCLUDED, "true")], true));
        assert_eq!(case.names(), ["n1", "n2"]);
        assert!(case.decide().unwrap().ignored_exclusion);
    }

    #[test]
    fn a_node_that_is_no_candidate_has_an_objection_and_only_such_a_one() {
        let mut case = Case::new();
        case.nodes.insert("n4".into(), node(&[(EXCLUDED, "")], true));
        case.policy = TrafficPolicy::Local;
        let objections = |case: &Case| -> Vec<Option<Objection>> {
            let endpoints: BTreeSet<Arc<str>> = case.endpoints.iter().map(|name| Arc::from(*name)).collect();
            let nodes = [(Family::Ipv4, endpoints)].into_iter().filter(|(_, nodes)| !nodes.is_empty()).collect();
            let served = Served { addresses: vec![], policy: case.policy, nodes };
            let announced = Announced {
                service: &ObjectName::new("default", "web"),
                labels: &labels(&[("app", "web")]),
                pool: "default",
                pool_labels: &labels(&[("zone", "x")]),
                served: &served,
            };
            let each = case.nodes.keys();
            each.map(|name| objection(&announced, Family::Ipv4, &case.advertisements, &case.nodes, name)).collect()
        };
        let (local, not_ready, excluded) = (Objection::NoLocalEndpoint, Objection::NotReady, Objection::Excluded);
        assert_eq!(objections(&case), [Some(local), None, Some(not_ready), Some(excluded)]);
        case.endpoints.clear();
        assert_eq!(objections(&case)[..2], [Some(Objection::NoEndpoint); 2]);
        case.advertisements[0].node_selectors = vec![has("nothing")];
        assert_eq!(objections(&case)[0], Some(Objection::NotSelected));
        case.advertisements.clear();
        assert_eq!(objections(&case)[0], Some(Objection::NotCovered));
    }

    #[test]
    fn interfaces_limit_a_node_only_if_every_advertisement_names_some() {
        let mut case = Case::new();
        case.advertisements[0].interfaces = ["eth1".into()].into();
        assert_eq!(case.decide().unwrap().nodes[&Arc::from("n1")], ["eth1".into()].into());
        case.advertisements.push(advertisement("second"));
        assert_eq!(case.decide().unwrap().nodes[&Arc::from("n1")], BTreeSet::new());
    }
}
