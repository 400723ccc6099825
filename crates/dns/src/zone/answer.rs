//! Pure. What a name of the cluster domain stands for.
//!
//! ```text
//! cluster.local                                  SOA, NS
//! dns-version                                    TXT
//! NAMESPACE.svc                                  nothing of its own
//! SERVICE.NAMESPACE.svc                          A, AAAA, SRV, or CNAME
//! ENDPOINT.SERVICE.NAMESPACE.svc                 A, AAAA
//! _PORT._PROTOCOL.SERVICE.NAMESPACE.svc          SRV
//! ADDRESS.NAMESPACE.pod                          A, AAAA
//! ```
//!
//! A name exists if a record has it or a name below it (RFC 8020): then a question for another type meets no data,
//! not "no such name".

use std::net::IpAddr;

use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::services::{Entry, KnownEndpoint};
use super::{PodNames, Zone};
use crate::labels::{LowerName, dashed, from_dashed};
use crate::object::{Port, StandsFor};
use crate::random::Random;

/// The version of the specification (its section 2.2 says where it is to be found, and for how long).
const SCHEMA_VERSION: &str = "1.1.0";
const SCHEMA_TTL_S: u32 = 28_800;
/// Of an SOA record: when secondaries ask again, try again, and give up. There are none.
const REFRESH_S: i32 = 7_200;
const RETRY_S: i32 = 1_800;
const EXPIRE_S: i32 = 86_400;
/// All weights of an SRV answer together.
const SRV_WEIGHTS: usize = 100;

/// Why there are records, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There are.
    Found,
    /// The name exists, but has none of this type.
    NoData,
    /// The name does not exist.
    NoName,
    /// Not known yet: the API's lists are not whole.
    NotReady,
}

/// What the zone says to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Why there are records, or none.
    pub outcome: Outcome,
    /// The records asked for.
    pub answers: Vec<Record>,
    /// Records that whoever asked will want next: addresses of SRV targets.
    pub additionals: Vec<Record>,
    /// The answer is a CNAME to this name, which is to be looked up too.
    pub chase: Option<Name>,
    /// Where there are no records: the one that says how long that holds.
    pub authority: Option<Record>,
}

/// A question about the zone. `most`: no more records of one type are of use to whoever asks.
pub(super) struct Question<'a> {
    pub(super) name: &'a Name,
    pub(super) lower: &'a LowerName,
    pub(super) kind: RecordType,
    pub(super) random: &'a mut Random,
    pub(super) most: usize,
}

/// What was found; `None` in place of it: the name does not exist.
#[derive(Default)]
pub(super) struct Found {
    pub(super) answers: Vec<Record>,
    pub(super) additionals: Vec<Record>,
    pub(super) chase: Option<Name>,
}

impl Found {
    pub(super) fn nothing() -> Option<Found> {
        Some(Found::default())
    }

    pub(super) fn only(answers: Vec<Record>) -> Option<Found> {
        Some(Found { answers, ..Found::default() })
    }
}

impl Zone {
    /// The answer to a question. `None`: the name is in none of the zones. At most `most` records of a type are given, chosen at
    /// random if there are more.
    pub fn answer(&self, name: &Name, kind: RecordType, random: &mut Random, most: usize) -> Option<Answer> {
        let lower = LowerName::new(name);
        let belongs = self.apexes.iter().filter_map(|apex| Some((lower.below(&apex.lower)?, apex)));
        let (left, apex) = belongs.min_by_key(|(left, _)| *left)?;
        let mut question = Question { name, lower: &lower, kind, random, most };
        let found = match (left, apex.is_reverse) {
            (0, _) => self.at_apex(&question),
            (_, true) => self.reverse(&question),
            (_, false) => self.below_apex(&mut question, left),
        };
        let outcome = match &found {
            Some(found) if !found.answers.is_empty() => Outcome::Found,
            // What is not known yet may exist; where nothing can be, nothing is waited for.
            _ if self.waiting => Outcome::NotReady,
            Some(_) => Outcome::NoData,
            None => Outcome::NoName,
        };
        let Found { answers, additionals, chase } = found.unwrap_or_default();
        let authority = (outcome != Outcome::Found).then(|| self.soa(&name.trim_to(apex.lower.count())));
        Some(Answer { outcome, answers, additionals, chase, authority })
    }

    /// Whether a name is in one of the zones.
    pub fn covers(&self, name: &Name) -> bool {
        let lower = LowerName::new(name);
        self.apexes.iter().any(|apex| lower.below(&apex.lower).is_some())
    }

    /// The record that says how long "no" holds, for the zone with this apex.
    fn soa(&self, apex: &Name) -> Record {
        let below = |labels: &[&str]| {
            let above = Name::from_labels(labels.iter().copied()).expect("the labels are short");
            // An apex so long that nothing fits below it has no names to answer for either.
            above.append_domain(apex).unwrap_or_else(|_| apex.clone())
        };
        let (server, person) = (below(&["ns", "dns"]), below(&["hostmaster"]));
        let ttl_s = self.settings.ttl_s;
        let soa = SOA::new(server, person, self.serial, REFRESH_S, RETRY_S, EXPIRE_S, ttl_s);
        Record::from_rdata(apex.clone(), ttl_s, RData::SOA(soa))
    }

    fn at_apex(&self, question: &Question) -> Option<Found> {
        match question.kind {
            RecordType::SOA => Found::only(vec![self.soa(question.name)]),
            RecordType::NS => {
                let server = Name::from_labels(["ns", "dns"]).expect("the labels are short");
                let server = server.append_domain(question.name).ok()?;
                let additionals = self.server_addresses().map(|to| self.address_record(server.clone(), to)).collect();
                let record = self.record(question.name, RData::NS(NS(server)));
                Some(Found { answers: vec![record], additionals, chase: None })
            }
            _ => Found::nothing(),
        }
    }

    /// `left`: how many labels stand to the left of the apex.
    fn below_apex(&self, question: &mut Question, left: usize) -> Option<Found> {
        let lower = question.lower;
        match (lower.label(left - 1), left) {
            (b"dns-version", 1) if question.kind == RecordType::TXT => {
                let text = RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_owned()]));
                Found::only(vec![Record::from_rdata(question.name.clone(), SCHEMA_TTL_S, text)])
            }
            (b"dns-version", 1) | (b"dns", 1) | (b"svc", 1) => Found::nothing(),
            (b"dns", 2) if lower.label(0) == b"ns" => {
                let addresses: Vec<IpAddr> = self.server_addresses().collect();
                self.addresses(question, addresses)
            }
            (b"svc", 2) => self.has_namespace(lower.label(0)).then(Found::default),
            (b"svc", _) => self.of_service(question, left),
            (b"pod", _) if self.settings.pods == PodNames::Off => None,
            (b"pod", 1) => Found::nothing(),
            (b"pod", 2) => self.has_namespace(lower.label(0)).then(Found::default),
            (b"pod", 3) => self.of_pod(question),
            _ => None,
        }
    }

    fn of_service(&self, question: &mut Question, left: usize) -> Option<Found> {
        let at = left - 3;
        let entry = self.services.get(question.lower.run(at, at + 2))?;
        if !self.shows_namespace(entry.namespace()) {
            return None;
        }
        let stands_for = entry.stands_for()?;
        if let StandsFor::Name(target) = stands_for {
            return if at == 0 { Some(self.alias(question, target)) } else { None };
        }
        let is_empty = || entry.endpoints().next().is_none();
        let hidden = match stands_for {
            StandsFor::Nothing => true,
            StandsFor::ClusterIps { .. } => self.settings.ignore_empty_service && is_empty(),
            StandsFor::Endpoints | StandsFor::Name(_) => is_empty(),
        };
        match at {
            _ if hidden => None,
            0 => self.at_service(question, entry, stands_for),
            1 => self.below_service(question, entry, stands_for),
            2 => self.srv_name(question, entry, stands_for),
            _ => None,
        }
    }

    /// `SERVICE.NAMESPACE.svc`
    fn at_service(&self, question: &mut Question, entry: &Entry, stands_for: &StandsFor) -> Option<Found> {
        match (question.kind, stands_for) {
            (RecordType::SRV, _) => self.srv(question, entry, stands_for, 0, |_| true),
            (RecordType::A | RecordType::AAAA, StandsFor::ClusterIps { addresses, .. }) => {
                self.addresses(question, addresses.clone())
            }
            (RecordType::A | RecordType::AAAA, _) => self.addresses(question, addresses_of(entry, entry.endpoints())),
            _ => Found::nothing(),
        }
    }

    /// `ENDPOINT.SERVICE.NAMESPACE.svc`, and `_PROTOCOL.SERVICE.NAMESPACE.svc`, which has nothing of its own.
    fn below_service(&self, question: &mut Question, entry: &Entry, stands_for: &StandsFor) -> Option<Found> {
        let label = question.lower.label(0);
        if label.first() == Some(&b'_') {
            return has_port(entry, stands_for, |port| port.protocol.label() == label).then(Found::default);
        }
        let as_address = from_dashed(label);
        let is_named = |known: &&KnownEndpoint| match &known.name {
            Some(name) => name.as_bytes() == label,
            None => as_address == Some(known.address),
        };
        let named = addresses_of(entry, entry.endpoints().filter(is_named));
        if named.is_empty() { None } else { self.addresses(question, named) }
    }

    /// `_PORT._PROTOCOL.SERVICE.NAMESPACE.svc`
    fn srv_name(&self, question: &mut Question, entry: &Entry, stands_for: &StandsFor) -> Option<Found> {
        let (name, protocol) = (question.lower.label(0).strip_prefix(b"_")?, question.lower.label(1));
        let wanted =
            |port: &Port| port.protocol.label() == protocol && port.name.as_bytes() == name && !name.is_empty();
        if !has_port(entry, stands_for, wanted) {
            return None;
        }
        if question.kind != RecordType::SRV {
            return Found::nothing();
        }
        self.srv(question, entry, stands_for, 2, wanted)
    }

    /// SRV records for the ports that are wanted, and the addresses of what they name. The Service's name stands `above` labels
    /// above the question's.
    fn srv(
        &self,
        question: &mut Question,
        entry: &Entry,
        stands_for: &StandsFor,
        above: usize,
        wanted: impl Fn(&Port) -> bool,
    ) -> Option<Found> {
        let service = question.name.trim_to(question.lower.count() - above);
        let mut targets: Vec<(Option<&KnownEndpoint>, u16)> = match stands_for {
            StandsFor::ClusterIps { ports, .. } => {
                ports.iter().filter(|port| wanted(port)).map(|port| (None, port.number)).collect()
            }
            _ => {
                let each = entry.slices().flat_map(|(slice, endpoints)| {
                    let endpoints: Vec<&KnownEndpoint> = endpoints.collect();
                    let ports = slice.ports.iter().filter(|port| wanted(port));
                    ports.flat_map(move |port| endpoints.clone().into_iter().map(|known| (Some(known), port.number)))
                });
                each.collect()
            }
        };
        let addresses = targets.iter().filter_map(|(known, _)| Some((*known)?.address)).collect::<Vec<_>>();
        // One name with an address in each family, or at two addresses, is one target.
        targets.sort_unstable_by_key(|(known, port)| (known.map(|known| (&known.name, unnamed(known))), *port));
        targets.dedup_by_key(|(known, port)| (known.map(|known| (&known.name, unnamed(known))), *port));
        let weight = (SRV_WEIGHTS / targets.len().max(1)).max(1) as u16;
        question.random.choose(&mut targets, question.most);
        let mut found = Found::default();
        for (known, port) in &targets {
            let target = match known {
                None => service.clone(),
                Some(known) => service.prepend_label(endpoint_name(known).as_str()).ok()?,
            };
            found.answers.push(self.record(question.name, RData::SRV(SRV::new(0, weight, *port, target))));
        }
        self.add_target_addresses(&mut found, entry, stands_for, &service, addresses.len());
        Some(found)
    }

    fn add_target_addresses(
        &self,
        found: &mut Found,
        entry: &Entry,
        stands_for: &StandsFor,
        service: &Name,
        endpoints: usize,
    ) {
        if let StandsFor::ClusterIps { addresses, .. } = stands_for {
            let records = addresses.iter().map(|to| self.address_record(service.clone(), *to));
            found.additionals.extend(records);
            return;
        }
        // They would not fit into any message.
        if endpoints > 1_000 {
            return;
        }
        let mut seen = Vec::new();
        for known in entry.endpoints() {
            let Ok(name) = service.prepend_label(endpoint_name(known).as_str()) else { continue };
            let is_target = |record: &Record| matches!(&record.data, RData::SRV(srv) if srv.target == name);
            if found.answers.iter().any(is_target) && !seen.contains(&known) {
                seen.push(known);
                found.additionals.push(self.address_record(name, known.address));
            }
        }
    }

    fn of_pod(&self, question: &mut Question) -> Option<Found> {
        let namespace = question.lower.label(1);
        let address = from_dashed(question.lower.label(0))?;
        let exists = match self.settings.pods {
            PodNames::Off => false,
            PodNames::Insecure => self.has_namespace(namespace),
            PodNames::Verified => {
                let mut of = self.pods.namespaces(address);
                self.has_namespace(namespace) && of.any(|of| of.as_bytes() == namespace)
            }
        };
        if exists { self.addresses(question, vec![address]) } else { None }
    }

    fn alias(&self, question: &Question, target: &Name) -> Found {
        let record = self.record(question.name, RData::CNAME(CNAME(target.clone())));
        let chase = (question.kind != RecordType::CNAME).then(|| target.clone());
        Found { answers: vec![record], additionals: Vec::new(), chase }
    }

    /// Those of the type that is asked for.
    fn addresses(&self, question: &mut Question, mut addresses: Vec<IpAddr>) -> Option<Found> {
        match question.kind {
            RecordType::A => addresses.retain(IpAddr::is_ipv4),
            RecordType::AAAA => addresses.retain(IpAddr::is_ipv6),
            _ => addresses.clear(),
        }
        question.random.choose(&mut addresses, question.most);
        Found::only(addresses.into_iter().map(|to| self.address_record(question.name.clone(), to)).collect())
    }

    pub(super) fn record(&self, name: &Name, data: RData) -> Record {
        Record::from_rdata(name.clone(), self.settings.ttl_s, data)
    }

    fn address_record(&self, name: Name, address: IpAddr) -> Record {
        let data = match address {
            IpAddr::V4(address) => RData::A(A(address)),
            IpAddr::V6(address) => RData::AAAA(AAAA(address)),
        };
        Record::from_rdata(name, self.settings.ttl_s, data)
    }

    /// Where this server is to be reached: the cluster addresses of the Service that every cluster gives it.
    fn server_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let entry = self.services.get(&crate::labels::key(["kube-dns", "kube-system"]));
        let addresses = match entry.and_then(Entry::stands_for) {
            Some(StandsFor::ClusterIps { addresses, .. }) => &addresses[..],
            _ => &[],
        };
        addresses.iter().copied()
    }
}

/// By what name an endpoint goes.
pub(super) fn endpoint_name(known: &KnownEndpoint) -> String {
    known.name.as_ref().map_or_else(|| dashed(known.address), |name| name.to_string())
}

/// What tells apart endpoints that have no names.
fn unnamed(known: &KnownEndpoint) -> Option<IpAddr> {
    known.name.is_none().then_some(known.address)
}

fn addresses_of<'a>(entry: &Entry, endpoints: impl Iterator<Item = &'a KnownEndpoint>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = endpoints.map(|known| known.address).collect();
    if entry.may_repeat() || addresses.len() > 1 {
        addresses.sort_unstable();
        addresses.dedup();
    }
    addresses
}

fn has_port(entry: &Entry, stands_for: &StandsFor, wanted: impl Fn(&Port) -> bool) -> bool {
    let named = |port: &Port| !port.name.is_empty() && wanted(port);
    match stands_for {
        StandsFor::ClusterIps { ports, .. } => ports.iter().any(named),
        _ => entry.slices().any(|(slice, mut endpoints)| endpoints.next().is_some() && slice.ports.iter().any(named)),
    }
}
