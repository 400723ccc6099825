//! Pure. The cluster's zone: what the API told, by the names under which it is asked for.
//!
//! ```text
//! Change ─▶ apply ─▶ services by name, addresses in order, namespaces, pods
//!                          │
//! name, type ─▶ answer ────┴─▶ Answer: records, or why there are none
//! ```
//!
//! It follows the Kubernetes DNS specification 1.1. A change costs work in proportion to itself: a Service has a place
//! of its own, and its slices stand in it. Text that many share (a Service's name) is stored once.

mod answer;
mod pods;
mod reverse;
mod services;

use std::collections::HashMap;

use hickory_proto::rr::Name;

use crate::labels::LowerName;
use crate::object::{Change, Kind};

pub use answer::{Answer, Outcome};
use pods::Pods;
use services::Services;

/// What becomes of names such as `10-244-1-7.default.pod.cluster.local`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodNames {
    /// There are none.
    #[default]
    Off,
    /// The address in the name is the answer, in any namespace that there is.
    Insecure,
    /// Only if a pod of that namespace has the address. Pods are watched.
    Verified,
}

/// How the zone is to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What it has authority for, such as `cluster.local.` and `in-addr.arpa.`; the first that is no reverse one is the cluster
    /// domain, which names in answers end with.
    pub zones: Vec<Name>,
    /// Of its records, in seconds.
    pub ttl_s: u32,
    /// See there.
    pub pods: PodNames,
    /// An endpoint without a hostname goes by its pod's name instead of its address.
    pub endpoint_pod_names: bool,
    /// A Service with cluster addresses but without a ready endpoint has no name.
    pub ignore_empty_service: bool,
    /// Endpoints are not looked at at all.
    pub no_endpoints: bool,
    /// Only these namespaces are to be seen; empty: all.
    pub namespaces: Vec<Box<str>>,
}

impl Settings {
    /// As CoreDNS has them when a Corefile says no more, for these zones.
    pub fn new(zones: Vec<Name>) -> Settings {
        Settings {
            zones,
            ttl_s: 5,
            pods: PodNames::Off,
            endpoint_pod_names: false,
            ignore_empty_service: false,
            no_endpoints: false,
            namespaces: Vec::new(),
        }
    }
}

/// One of the domains that the zone has authority for.
struct Apex {
    lower: LowerName,
    /// Under `in-addr.arpa` or `ip6.arpa`.
    is_reverse: bool,
}

/// See above.
pub struct Zone {
    settings: Settings,
    apexes: Vec<Apex>,
    /// The cluster domain.
    domain: Name,
    services: Services,
    /// By name; how many Services have names in each, and whether there is an object.
    namespaces: HashMap<Box<str>, Namespace>,
    pods: Pods,
    /// Counts the lists of each kind: what a list did not hold has an older number.
    lists: [u32; Kind::ALL.len()],
    synced: [bool; Kind::ALL.len()],
    /// A kind that is needed is not listed yet.
    waiting: bool,
    serial: u32,
}

struct Namespace {
    list: u32,
}

impl Zone {
    /// An empty one, which answers nothing but that it is not ready.
    pub fn new(settings: Settings) -> Zone {
        let is_reverse = |lower: &LowerName| lower.count() > 0 && lower.label(lower.count() - 1) == b"arpa";
        let apexes: Vec<Apex> = settings
            .zones
            .iter()
            .map(|zone| {
                let lower = LowerName::new(zone);
                Apex { is_reverse: is_reverse(&lower), lower }
            })
            .collect();
        let primary = apexes.iter().position(|apex| !apex.is_reverse);
        let domain = primary.map_or_else(Name::root, |at| settings.zones[at].clone());
        let services = Services::new(settings.endpoint_pod_names);
        let waiting = true;
        Zone {
            settings,
            apexes,
            domain,
            services,
            namespaces: HashMap::new(),
            pods: Pods::default(),
            lists: [0; Kind::ALL.len()],
            synced: [false; Kind::ALL.len()],
            waiting,
            serial: 1,
        }
    }

    /// How it answers.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cluster domain.
    pub fn domain(&self) -> &Name {
        &self.domain
    }

    /// The kinds that the settings need.
    pub fn kinds(settings: &Settings) -> Vec<Kind> {
        let needed = |kind: &Kind| match kind {
            Kind::Service | Kind::Namespace => true,
            Kind::EndpointSlice => !settings.no_endpoints,
            Kind::Pod => settings.pods == PodNames::Verified,
        };
        Kind::ALL.into_iter().filter(needed).collect()
    }

    /// Kinds that are needed and whose first list is not whole yet.
    pub fn waits_for(&self) -> Vec<Kind> {
        Zone::kinds(&self.settings).into_iter().filter(|kind| !self.synced[*kind as usize]).collect()
    }

    /// How many Services there are.
    pub fn services(&self) -> usize {
        self.services.len()
    }

    /// The number of the state, for the SOA record: grows with every change.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Takes in one change. `now_s`: seconds since 1970, for the serial number.
    pub fn apply(&mut self, change: Change, now_s: u32) {
        let list = |kind: Kind| self.lists[kind as usize];
        match change {
            Change::Nothing => return,
            Change::Reset(kind) => {
                self.lists[kind as usize] = list(kind).wrapping_add(1);
                return;
            }
            Change::Synced(kind) => {
                self.drop_older(kind);
                self.synced[kind as usize] = true;
                self.waiting = !self.waits_for().is_empty();
            }
            Change::Service(service) => self.services.apply(service, list(Kind::Service)),
            Change::ServiceGone(name) => self.services.remove(&name),
            Change::Slice(slice) => self.services.apply_slice(slice, list(Kind::EndpointSlice)),
            Change::SliceGone(name) => self.services.remove_slice(&name),
            Change::Namespace(name) => {
                let list = list(Kind::Namespace);
                self.namespaces.insert(name, Namespace { list });
            }
            Change::NamespaceGone(name) => {
                self.namespaces.remove(&name);
            }
            Change::Pod(pod) => self.pods.apply(pod, list(Kind::Pod)),
            Change::PodGone(name) => self.pods.remove(&name),
        }
        self.serial = now_s.max(self.serial.wrapping_add(1));
    }

    /// The namespace of the pod with this address. `None`: there is none, or pods are not watched.
    pub fn namespace_of(&self, address: std::net::IpAddr) -> Option<&str> {
        self.pods.namespaces(address).next()
    }

    /// Whether this Service stands for its endpoints.
    pub fn is_headless(&self, service: &str, namespace: &str) -> bool {
        let entry = self.services.get(&crate::labels::key([service, namespace]));
        entry.and_then(services::Entry::stands_for) == Some(&crate::object::StandsFor::Endpoints)
    }

    /// What the last list of the kind did not hold is gone.
    fn drop_older(&mut self, kind: Kind) {
        let list = self.lists[kind as usize];
        match kind {
            Kind::Service => self.services.drop_older(list),
            Kind::EndpointSlice => self.services.drop_older_slices(list),
            Kind::Namespace => self.namespaces.retain(|_, namespace| namespace.list == list),
            Kind::Pod => self.pods.drop_older(list),
        }
    }

    fn has_namespace(&self, label: &[u8]) -> bool {
        let Ok(name) = std::str::from_utf8(label) else { return false };
        self.shows_namespace(name) && (self.namespaces.contains_key(name) || self.services.has_namespace(name))
    }

    fn shows_namespace(&self, name: &str) -> bool {
        let shown = &self.settings.namespaces;
        shown.is_empty() || shown.iter().any(|shown| **shown == *name)
    }
}

#[cfg(test)]
mod tests;
