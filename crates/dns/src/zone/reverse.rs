//! Pure. Names of addresses: a Service's cluster address, the endpoints' addresses, pods'.

use std::net::IpAddr;

use hickory_proto::rr::rdata::PTR;
use hickory_proto::rr::{Name, RData, RecordType};

use super::Zone;
use super::answer::{Found, Question, endpoint_name};
use super::services::Entry;
use crate::labels::{dashed, reverse};
use crate::object::StandsFor;

impl Zone {
    /// A name under `in-addr.arpa` or `ip6.arpa`.
    pub(super) fn reverse(&self, question: &Question) -> Option<Found> {
        let range = reverse(question.lower)?;
        let Some(address) = range.address() else {
            let (first, last) = (range.first, range.last);
            let mut known = self.services.between(first, last).chain(self.pods.between(first, last));
            return known.any(|address| !self.names_of(address).is_empty()).then(Found::default);
        };
        let mut names = self.names_of(address);
        if names.is_empty() {
            return None;
        }
        if question.kind != RecordType::PTR {
            return Found::nothing();
        }
        names.truncate(question.most);
        let record = |name: Name| self.record(question.name, RData::PTR(PTR(name)));
        Found::only(names.into_iter().map(record).collect())
    }

    /// A cluster address has its Service's name; the address of endpoints one name per Service; that of other pods their own.
    fn names_of(&self, address: IpAddr) -> Vec<Name> {
        let shown = |entry: &&Entry| self.shows_namespace(entry.namespace());
        let entries: Vec<&Entry> = self.services.of_address(address).filter(shown).collect();
        let is_cluster_ip = |entry: &&Entry| matches!(entry.stands_for(), Some(StandsFor::ClusterIps { addresses, .. }) if addresses.contains(&address));
        // Two Services with one address are a mistake of somebody; which one is told does not depend on who came first.
        let of_cluster_ip = entries.iter().copied().filter(is_cluster_ip);
        if let Some(entry) = of_cluster_ip.min_by_key(|entry| (entry.namespace(), entry.name())) {
            return self.name(&[entry.name(), entry.namespace(), "svc"]).into_iter().collect();
        }
        let mut names = Vec::new();
        for entry in entries {
            let offers = matches!(entry.stands_for(), Some(StandsFor::ClusterIps { .. } | StandsFor::Endpoints));
            if !offers {
                continue;
            }
            for known in entry.endpoints().filter(|known| known.address == address) {
                let name = self.name(&[&endpoint_name(known), entry.name(), entry.namespace(), "svc"]);
                names.extend(name.filter(|name| !names.contains(name)));
            }
        }
        if names.is_empty() {
            // Pods on a node's own network share its address.
            for namespace in self.pods.namespaces(address).filter(|namespace| self.has_namespace(namespace.as_bytes()))
            {
                let name = self.name(&[&dashed(address), namespace, "pod"]);
                names.extend(name.filter(|name| !names.contains(name)));
            }
        }
        names
    }

    /// A name in the cluster domain.
    fn name(&self, labels: &[&str]) -> Option<Name> {
        Name::from_labels(labels.iter().copied()).ok()?.append_domain(&self.domain).ok()
    }
}
