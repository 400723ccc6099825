//! Pure. What a lab shall be: its name, nodes, families and what its images mean. The command line and the scenario
//! runner make one, `Lab::start` reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use signpost_core::object::Family;

/// Which address families a lab has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// Both; IPv4 is the primary one.
    Dual,
}

impl Families {
    /// The families, the primary one first.
    pub fn list(self) -> &'static [Family] {
        match self {
            Families::Ipv4 => &[Family::Ipv4],
            Families::Ipv6 => &[Family::Ipv6],
            Families::Dual => &[Family::Ipv4, Family::Ipv6],
        }
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Families::Ipv4 => "ipv4",
            Families::Ipv6 => "ipv6",
            Families::Dual => "dual",
        })
    }
}

impl FromStr for Families {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Families, SpecError> {
        match text {
            "ipv4" => Ok(Families::Ipv4),
            "ipv6" => Ok(Families::Ipv6),
            "dual" => Ok(Families::Dual),
            _ => Err(SpecError::Families { given: text.to_owned() }),
        }
    }
}

/// How a lab announces load-balancer addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadBalancing {
    /// Nodes answer ARP and NDP for them.
    L2,
    /// Nodes tell the router by BGP.
    Bgp,
}

impl FromStr for LoadBalancing {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<LoadBalancing, SpecError> {
        match text {
            "l2" => Ok(LoadBalancing::L2),
            "bgp" => Ok(LoadBalancing::Bgp),
            _ => Err(SpecError::LoadBalancing { given: text.to_owned() }),
        }
    }
}

/// A node of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// The Node object's name, also its host name. An RFC 1123 label.
    pub name: String,
    /// Labels besides `kubernetes.io/hostname`, which is always there.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What `Lab::start` builds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabSpec {
    /// The lab's name: labs of different names run side by side.
    pub name: String,
    /// Where the state goes; `None`: `/run/signpost/labs/NAME`.
    pub dir: Option<PathBuf>,
    /// Whether API objects are kept on disk, so that they outlive a crash of the lab. Scenarios do without.
    pub durable: bool,
    /// The nodes, numbered from 1 in this order.
    pub nodes: Vec<NodeSpec>,
    /// The address families.
    pub families: Families,
    /// The node daemons' mode, as `--proxy-mode` takes it: `auto`, `ebpf`, `nftables`, `iptables`, `ipvs`.
    pub mode: String,
    /// Further configuration of the node daemons, with the field names of KubeProxyConfiguration. Null: none.
    pub node_config: serde_json::Value,
    /// Image names and the programs on this machine that they stand for. `signpost/echo` and `signpost/dns` are built in.
    pub images: BTreeMap<String, PathBuf>,
    /// Whether there is a pool of load-balancer addresses from the start, and how they are announced.
    pub load_balancing: Option<LoadBalancing>,
    /// Whether the cluster has its name service: Service `kube-dns` and the pods behind it.
    pub dns: bool,
    /// Whether each node has a cache of its own for names, before that Service.
    pub node_cache: bool,
    /// Whether the router speaks BGP; with [`LoadBalancing::Bgp`] it does anyway.
    pub bgp_router: bool,
    /// The signpost binary: node daemons, pods' first processes and the echo server are runs of it.
    pub program: PathBuf,
}

impl LabSpec {
    /// A lab of nodes `n1` to `nN`, IPv4, mode auto, without a name service, objects in memory only.
    pub fn new(name: &str, nodes: usize, program: PathBuf) -> LabSpec {
        LabSpec {
            name: name.to_owned(),
            dir: None,
            durable: false,
            nodes: (1..=nodes).map(|n| NodeSpec { name: format!("n{n}"), labels: BTreeMap::new() }).collect(),
            families: Families::Ipv4,
            mode: "auto".to_owned(),
            node_config: serde_json::Value::Null,
            images: BTreeMap::new(),
            load_balancing: None,
            dns: false,
            node_cache: false,
            bgp_router: false,
            program,
        }
    }

    /// Refuses names that could not be an interface's, a directory's or an object's, and too many nodes.
    ///
    /// # Errors
    /// What is wrong, with what is allowed.
    pub fn check(&self) -> Result<(), SpecError> {
        if !is_label(&self.name) {
            return Err(SpecError::Name { what: "lab", given: self.name.clone() });
        }
        if !MODES.contains(&self.mode.as_str()) {
            return Err(SpecError::Mode { given: self.mode.clone() });
        }
        if self.nodes.is_empty() || self.nodes.len() > MAX_NODES {
            return Err(SpecError::NodeCount { given: self.nodes.len() });
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if !is_label(&node.name) {
                return Err(SpecError::Name { what: "node", given: node.name.clone() });
            }
            if self.nodes[..index].iter().any(|other| other.name == node.name) {
                return Err(SpecError::NodeTwice { name: node.name.clone() });
            }
        }
        Ok(())
    }
}

/// The modes of the node daemon that are built.
pub const MODES: [&str; 5] = ["auto", "ebpf", "nftables", "iptables", "ipvs"];

/// The node segment's addresses 11 to 254 are the nodes'.
pub const MAX_NODES: usize = 244;

/// A place in the lab from which packets are sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// A node.
    Node(String),
    /// A pod: namespace, name.
    Pod(String, String),
    /// The client beyond the router.
    Outside,
    /// The router.
    Router,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Node(name) => write!(f, "node/{name}"),
            Place::Pod(namespace, name) => write!(f, "pod/{namespace}/{name}"),
            Place::Outside => f.write_str("outside"),
            Place::Router => f.write_str("router"),
        }
    }
}

impl FromStr for Place {
    type Err = SpecError;

    /// `node/NAME`, `pod/NAME` (namespace default), `pod/NAMESPACE/NAME`, `outside`, `router`.
    fn from_str(text: &str) -> Result<Place, SpecError> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            ["outside"] => Ok(Place::Outside),
            ["router"] => Ok(Place::Router),
            ["node", name] if !name.is_empty() => Ok(Place::Node((*name).to_owned())),
            ["pod", name] if !name.is_empty() => Ok(Place::Pod("default".to_owned(), (*name).to_owned())),
            ["pod", namespace, name] if !namespace.is_empty() && !name.is_empty() => {
                Ok(Place::Pod((*namespace).to_owned(), (*name).to_owned()))
            }
            _ => Err(SpecError::Place { given: text.to_owned() }),
        }
    }
}

/// Why a lab's description is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not an RFC 1123 label.
    #[error(
        "{what} name {given:?} is not usable: take lower case letters, digits and '-', at most 63, a letter or digit first and last"
    )]
    Name {
        /// lab or node.
        what: &'static str,
        /// The name.
        given: String,
    },
    /// Two nodes with one name.
    #[error("node name {name:?} stands twice: give each node a name of its own")]
    NodeTwice {
        /// The name.
        name: String,
    },
    /// Not a mode.
    #[error("there is no mode {given:?}: take auto, ebpf, nftables, iptables or ipvs")]
    Mode {
        /// What was given.
        given: String,
    },
    /// None or too many.
    #[error("a lab has 1 to {MAX_NODES} nodes, not {given}")]
    NodeCount {
        /// How many were asked for.
        given: usize,
    },
    /// Not one of the three.
    #[error("families {given:?} are unknown: take ipv4, ipv6 or dual")]
    Families {
        /// What was given.
        given: String,
    },
    /// No way of announcing addresses.
    #[error("load balancing {given:?} is unknown: take l2 or bgp")]
    LoadBalancing {
        /// What was given.
        given: String,
    },
    /// Not a place.
    #[error("{given:?} is no place in a lab: take node/NAME, pod/NAME, pod/NAMESPACE/NAME, outside or router")]
    Place {
        /// What was given.
        given: String,
    },
    /// Not NAME=PATH.
    #[error(
        "image {given:?} is not of the form NAME=PATH, for example --image registry.example/web=/usr/local/bin/web"
    )]
    Image {
        /// What was given.
        given: String,
    },
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back_as_written() {
        for text in ["node/n1", "pod/kube-system/dns", "outside", "router"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        assert_eq!("pod/web".parse::<Place>().unwrap(), Place::Pod("default".into(), "web".into()));
        for bad in ["", "pod/", "pod/a/b/c", "node", "elsewhere", "pod//x"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        for bad in ["", "../x", "a b", "A", "-a", "a-", "a/b", &"x".repeat(64)] {
            let spec = LabSpec::new(bad, 1, PathBuf::new());
            assert!(matches!(spec.check(), Err(SpecError::Name { .. })), "{bad}");
        }
        assert!(matches!(LabSpec::new("a", 0, PathBuf::new()).check(), Err(SpecError::NodeCount { .. })));
        let mut later = LabSpec::new("a", 1, PathBuf::new());
        later.mode = "userspace".into();
        assert!(matches!(later.check(), Err(SpecError::Mode { .. })));
        let mut twice = LabSpec::new("a", 2, PathBuf::new());
        twice.nodes[1].name = "n1".into();
        assert!(matches!(twice.check(), Err(SpecError::NodeTwice { .. })));
    }
}
