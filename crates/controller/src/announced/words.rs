//! Pure. Who announces a load balancer, and for every node that does not why not, in words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use signpost_core::announce::advertise::{
    Advertisement, Announced, Announcer, EXCLUDED, Objection, candidates, objection,
};
use signpost_core::announce::served::Served;
use signpost_core::labels::Labels;
use signpost_core::object::{Family, ObjectName};

/// So many nodes are named for one reason.
const NAMED: usize = 20;

/// What is known of a load balancer and of the nodes.
pub struct Scene<'a> {
    /// The Service.
    pub service: &'a ObjectName,
    /// Its labels.
    pub labels: &'a Labels,
    /// The pool of its addresses.
    pub pool: &'a str,
    /// The pool's labels.
    pub pool_labels: &'a Labels,
    /// Its addresses and where its endpoints are.
    pub served: &'a Served,
    /// All nodes.
    pub nodes: &'a BTreeMap<Arc<str>, Announcer>,
    /// The L2Advertisements.
    pub l2_advertisements: &'a [Advertisement],
    /// The BGPAdvertisements.
    pub bgp_advertisements: &'a [Advertisement],
    /// The nodes that answer ARP and NDP for it.
    pub layer2: &'a BTreeSet<Arc<str>>,
    /// The nodes that announce it by BGP, each with its peers.
    pub bgp: &'a BTreeMap<Arc<str>, Vec<String>>,
}

/// What the condition says.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether some node announces it.
    pub announced: bool,
    /// In a word.
    pub reason: &'static str,
    /// In a sentence or several.
    pub message: String,
}

/// The condition of a Service that has addresses.
pub fn tell(scene: &Scene<'_>) -> Told {
    let mut parts = Vec::new();
    if !scene.l2_advertisements.is_empty() {
        let by: Vec<&Arc<str>> = scene.layer2.iter().collect();
        if !by.is_empty() {
            parts.push(format!("layer2: {} answer{} for it", names(&by), s(&by)));
        }
        parts.extend(refusals(scene, scene.l2_advertisements, "layer2", |node| scene.layer2.contains(node), &|_| {
            if by.is_empty() {
                "no node has taken the address yet".to_owned()
            } else {
                format!("{} has it", names(&by))
            }
        }));
    }
    if !scene.bgp_advertisements.is_empty() {
        let mut by_peers: BTreeMap<&Vec<String>, Vec<&Arc<str>>> = BTreeMap::new();
        for (node, peers) in scene.bgp {
            by_peers.entry(peers).or_default().push(node);
        }
        for (peers, nodes) in by_peers {
            parts.push(format!("bgp: {} announce{} it to {}", names(&nodes), s(&nodes), peers.join(", ")));
        }
        parts.extend(refusals(scene, scene.bgp_advertisements, "bgp", |node| scene.bgp.contains_key(node), &|_| {
            "no session with a peer stands".to_owned()
        }));
    }
    let announced = !scene.layer2.is_empty() || !scene.bgp.is_empty();
    let reason = if announced { "Announced" } else { "NotAnnounced" };
    if parts.is_empty() {
        let message =
            "there is no L2Advertisement and no BGPAdvertisement: nobody outside learns where it is".to_owned();
        return Told { announced, reason: "NoAdvertisement", message };
    }
    Told { announced, reason, message: parts.join("; ") }
}

/// For the nodes that do not announce it: each reason with its nodes.
fn refusals(
    scene: &Scene<'_>,
    advertisements: &[Advertisement],
    protocol: &str,
    does: impl Fn(&Arc<str>) -> bool,
    otherwise: &dyn Fn(&Arc<str>) -> String,
) -> Vec<String> {
    let mut by_reason: BTreeMap<String, Vec<&Arc<str>>> = BTreeMap::new();
    for node in scene.nodes.keys().filter(|node| !does(node)) {
        let why =
            why_not(scene, advertisements, node).map_or_else(|| otherwise(node), |objection| objection.to_string());
        by_reason.entry(why).or_default().push(node);
    }
    let mut all: Vec<String> =
        by_reason.into_iter().map(|(why, nodes)| format!("{protocol}: not {}: {why}", names(&nodes))).collect();
    let ignores = |family| {
        candidates(&announced(scene), family, advertisements, scene.nodes).is_ok_and(|found| found.ignored_exclusion)
    };
    if families(scene).into_iter().any(ignores) {
        all.push(format!(
            "{protocol}: the label {EXCLUDED} is not heeded, as every node that could announce it has it"
        ));
    }
    all
}

fn announced<'a>(scene: &Scene<'a>) -> Announced<'a> {
    Announced {
        service: scene.service,
        labels: scene.labels,
        pool: scene.pool,
        pool_labels: scene.pool_labels,
        served: scene.served,
    }
}

fn families(scene: &Scene<'_>) -> BTreeSet<Family> {
    scene.served.addresses.iter().map(|address| Family::of(*address)).collect()
}

/// Why a node may announce none of the addresses.
fn why_not(scene: &Scene<'_>, advertisements: &[Advertisement], node: &Arc<str>) -> Option<Objection> {
    let mut first = None;
    for family in families(scene) {
        first = first.or(Some(objection(&announced(scene), family, advertisements, scene.nodes, node)?));
    }
    first
}

fn names(nodes: &[&Arc<str>]) -> String {
    let mut text = nodes.iter().take(NAMED).map(|node| node.as_ref()).collect::<Vec<_>>().join(", ");
    if nodes.len() > NAMED {
        text += &format!(" and {} more", nodes.len() - NAMED);
    }
    text
}

fn s(nodes: &[&Arc<str>]) -> &'static str {
    if nodes.len() == 1 { "s" } else { "" }
}

#[cfg(test)]
mod tests {
    use signpost_core::labels::{Requirement, Selector};
    use signpost_core::object::TrafficPolicy;

    use super::*;

    fn labels(pairs: &[&str]) -> Labels {
        pairs.iter().map(|key| (Arc::from(*key), Arc::from(""))).collect()
    }

    fn advertisement() -> Advertisement {
        Advertisement {
            name: "all".into(),
            pools: BTreeSet::new(),
            pool_selectors: vec![],
            node_selectors: vec![],
            service_selectors: vec![],
            interfaces: BTreeSet::new(),
        }
    }

    /// What differs from test to test.
    struct Given {
        l2: Vec<Advertisement>,
        bgp: Vec<Advertisement>,
        layer2: BTreeSet<Arc<str>>,
        peers: BTreeMap<Arc<str>, Vec<String>>,
        policy: TrafficPolicy,
    }

    fn nothing() -> Given {
        Given {
            l2: vec![],
            bgp: vec![],
            layer2: BTreeSet::new(),
            peers: BTreeMap::new(),
            policy: TrafficPolicy::Cluster,
        }
    }

    fn told(given: &Given) -> Told {
        let node = |labels: Labels, ready| Announcer { labels, ready, addresses: vec![] };
        let nodes = [
            ("n1", node(Labels::new(), true)),
            ("n2", node(Labels::new(), true)),
            ("n3", node(Labels::new(), false)),
            ("n4", node(labels(&[EXCLUDED]), true)),
        ];
        tell(&Scene {
            service: &ObjectName::new("default", "web"),
            labels: &Labels::new(),
            pool: "default",
            pool_labels: &Labels::new(),
            served: &Served {
                addresses: vec!["172.18.15.200".parse().unwrap()],
                policy: given.policy,
                nodes: [(Family::Ipv4, ["n1".into()].into())].into(),
            },
            nodes: &nodes.into_iter().map(|(name, node)| (Arc::from(name), node)).collect(),
            l2_advertisements: &given.l2,
            bgp_advertisements: &given.bgp,
            layer2: &given.layer2,
            bgp: &given.peers,
        })
    }

    #[test]
    fn every_node_that_does_not_announce_has_its_reason() {
        let told = told(&Given { l2: vec![advertisement()], layer2: ["n1".into()].into(), ..nothing() });
        assert!(told.announced);
        assert_eq!(
            told.message,
            "layer2: n1 answers for it; layer2: not n2: n1 has it; layer2: not n4: \
             the label node.kubernetes.io/exclude-from-external-load-balancers is on the node; layer2: not n3: the node is \
             not ready"
        );
    }

    #[test]
    fn by_bgp_the_peers_are_named_and_a_missing_session_is_a_reason() {
        let peers = [("n2".into(), vec!["router".to_owned()])].into();
        let told = told(&Given { bgp: vec![advertisement()], peers, ..nothing() });
        assert!(told.message.starts_with("bgp: n2 announces it to router; "), "{}", told.message);
        assert!(told.message.contains("bgp: not n1: no session with a peer stands"), "{}", told.message);
    }

    #[test]
    fn a_label_that_would_exclude_every_node_is_told_as_not_heeded() {
        let labelled = Selector { requirements: vec![Requirement::Exists(EXCLUDED.into())] };
        let on_n4 = Advertisement { node_selectors: vec![labelled], ..advertisement() };
        let told = told(&Given { l2: vec![on_n4], layer2: ["n4".into()].into(), ..nothing() });
        assert!(told.message.starts_with("layer2: n4 answers for it; "), "{}", told.message);
        let end = "exclude-from-external-load-balancers is not heeded, as every node that could announce it has it";
        assert!(told.message.ends_with(end), "{}", told.message);
    }

    #[test]
    fn a_local_policy_and_a_missing_advertisement_are_reasons() {
        let local = told(&Given { l2: vec![advertisement()], policy: TrafficPolicy::Local, ..nothing() });
        assert!(local.message.contains("layer2: not n2: it has no endpoint of the Service"), "{}", local.message);
        assert!(local.message.contains("layer2: not n1: no node has taken"), "{}", local.message);
        assert_eq!((local.announced, local.reason), (false, "NotAnnounced"));
        assert_eq!(told(&nothing()).reason, "NoAdvertisement");
        let other = Advertisement { pools: ["other".into()].into(), ..advertisement() };
        let other = told(&Given { l2: vec![other], ..nothing() });
        assert!(other.message.contains("no advertisement speaks of this Service's pool"), "{}", other.message);
    }
}
