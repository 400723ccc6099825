//! What holds whatever happens: changes in any order lead where the objects themselves lead, and names exist as RFC 8020 says.

use std::collections::BTreeMap;

use hickory_proto::rr::RecordType;
use proptest::prelude::*;
use signpost_core::object::ObjectName;

use super::*;
use crate::object::{Endpoint, Pod, Port, Protocol, Service, Slice, StandsFor};

/// Few names, so that changes meet.
fn object_name() -> impl Strategy<Value = ObjectName> {
    ("[ab]", "[xy]").prop_map(|(name, namespace)| ObjectName { namespace: namespace.into(), name: name.into() })
}

fn an_address() -> impl Strategy<Value = std::net::IpAddr> {
    prop_oneof![
        (0u8..6).prop_map(|n| std::net::Ipv4Addr::new(10, 0, n % 2, n).into()),
        (0u16..3).prop_map(|n| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into()),
    ]
}

fn ports() -> impl Strategy<Value = Vec<Port>> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let port = (prop_oneof!["", "http"], protocol, 1u16..3);
    prop::collection::vec(port.prop_map(|(name, protocol, number)| Port { name: name.into(), protocol, number }), 0..3)
}

fn change() -> impl Strategy<Value = Change> {
    let stands_for = prop_oneof![
        (prop::collection::vec(an_address(), 1..3), ports())
            .prop_map(|(addresses, ports)| StandsFor::ClusterIps { addresses, ports }),
        Just(StandsFor::Endpoints),
        Just(StandsFor::Nothing),
        Just(StandsFor::Name(Box::new(super::name("a.x.svc.cluster.local.")))),
    ];
    let service = (object_name(), any::<bool>(), stands_for).prop_map(|(name, publish_not_ready, stands_for)| {
        Change::Service(Service { name, publish_not_ready, stands_for })
    });
    let hostname = || prop::option::of(prop_oneof!["h-0", "h-1"].prop_map(|name: String| name.into()));
    let endpoint = (an_address(), hostname(), hostname(), any::<bool>())
        .prop_map(|(address, hostname, pod, ready)| Endpoint { address, hostname, pod, ready });
    let slice = (object_name(), "[ab]", prop::collection::vec(endpoint, 0..4), ports()).prop_map(
        |(name, service, endpoints, ports)| {
            Change::Slice(Slice { name, service: service.into(), endpoints, ports, triggered_ms: None })
        },
    );
    let pod = (object_name(), prop::collection::vec(an_address(), 1..3))
        .prop_map(|(name, addresses)| Change::Pod(Pod { name, addresses }));
    prop_oneof![
        3 => service,
        4 => slice,
        1 => pod,
        1 => "[xy]".prop_map(|name| Change::Namespace(name.into())),
        1 => "[xy]".prop_map(|name| Change::NamespaceGone(name.into())),
        1 => object_name().prop_map(Change::ServiceGone),
        1 => object_name().prop_map(Change::SliceGone),
        1 => object_name().prop_map(Change::PodGone),
    ]
}

/// The objects that are there after these changes.
fn remaining(changes: &[Change]) -> Vec<Change> {
    let mut there: BTreeMap<(u8, String), Change> = BTreeMap::new();
    let id = |name: &ObjectName| format!("{}/{}", name.namespace, name.name);
    for change in changes {
        match change {
            Change::Service(service) => drop(there.insert((0, id(&service.name)), change.clone())),
            Change::ServiceGone(name) => drop(there.remove(&(0, id(name)))),
            Change::Slice(slice) => drop(there.insert((1, id(&slice.name)), change.clone())),
            Change::SliceGone(name) => drop(there.remove(&(1, id(name)))),
            Change::Namespace(name) => drop(there.insert((2, name.to_string()), change.clone())),
            Change::NamespaceGone(name) => drop(there.remove(&(2, name.to_string()))),
            Change::Pod(pod) => drop(there.insert((3, id(&pod.name)), change.clone())),
            Change::PodGone(name) => drop(there.remove(&(3, id(name)))),
            Change::Reset(_) | Change::Synced(_) | Change::Nothing => {}
        }
    }
    there.into_values().collect()
}

fn of(changes: impl IntoIterator<Item = Change>) -> Zone {
    let mut zone = Zone::new(Settings { pods: PodNames::Verified, ..settings() });
    for change in changes {
        zone.apply(change, NOW_S);
    }
    sync(&mut zone);
    zone
}

/// Every name that such a zone may have, and some that it cannot.
fn names() -> Vec<String> {
    let mut names: Vec<String> =
        ["", "svc.", "pod.", "dns-version.", "w.dns-version.", "v.svc."].map(String::from).to_vec();
    for namespace in ["x", "y"] {
        names.extend([format!("{namespace}.svc."), format!("{namespace}.pod."), format!("10-0-1-1.{namespace}.pod.")]);
        for service in ["a", "b", "c"] {
            let service = format!("{service}.{namespace}.svc.");
            for below in [
                "",
                "h-0.",
                "h-1.",
                "10-0-0-0.",
                "10-0-1-1.",
                "fd00--1.",
                "_tcp.",
                "_udp.",
                "_http._tcp.",
                "_http._udp.",
                "z._tcp.",
            ] {
                names.push(format!("{below}{service}"));
            }
        }
    }
    names.iter_mut().for_each(|name| name.push_str("cluster.local."));
    names.extend((0..6).map(|n| format!("{n}.{}.0.10.in-addr.arpa.", n % 2)));
    names.extend(["0.0.10.in-addr.arpa.", "10.in-addr.arpa.", "in-addr.arpa.", "ip6.arpa."].map(String::from));
    names
}

/// The first answers that differ.
fn difference(one: &Zone, other: &Zone) -> Option<(String, String)> {
    all_answers(one).into_iter().zip(all_answers(other)).find(|(one, other)| one != other)
}

fn all_answers(zone: &Zone) -> Vec<String> {
    let kinds = ["A", "AAAA", "SRV", "PTR", "CNAME"];
    names()
        .iter()
        .flat_map(|name| kinds.map(|kind| format!("{name} {kind}")))
        .map(|q| format!("{q}: {}", ask(zone, &q)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn changes_lead_where_the_remaining_objects_lead(changes in prop::collection::vec(change(), 0..30)) {
        let whole = of(remaining(&changes));
        prop_assert_eq!(difference(&of(changes.clone()), &whole), None);
        // A new list of what is there changes nothing, and neither do objects told twice.
        let mut relisted = of(changes.clone());
        Kind::ALL.into_iter().for_each(|kind| relisted.apply(Change::Reset(kind), NOW_S));
        let all: Vec<Change> = remaining(&changes).into_iter().flat_map(|change| [change.clone(), change]).collect();
        all.into_iter().for_each(|change| relisted.apply(change, NOW_S));
        sync(&mut relisted);
        prop_assert_eq!(difference(&relisted, &whole), None);
    }

    #[test]
    fn below_a_name_that_does_not_exist_there_is_none(changes in prop::collection::vec(change(), 0..30)) {
        let zone = of(changes);
        let outcome = |asked: &str| zone.answer(&super::name(asked), RecordType::TXT, &mut Random::new(1), 9).unwrap().outcome;
        for asked in &names() {
            let mut below = super::name(asked);
            let exists = outcome(asked) != Outcome::NoName;
            while exists && below.num_labels() > 2 {
                below = below.base_name();
                prop_assert_ne!(outcome(&below.to_string()), Outcome::NoName, "{} exists, {} above it does not", asked, below);
            }
        }
    }

    #[test]
    fn any_name_of_any_bytes_gets_an_answer(
        changes in prop::collection::vec(change(), 0..10),
        labels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..64), 0..120),
        below in prop::sample::select(names()),
        kind in any::<u16>(),
    ) {
        let zone = of(changes);
        let labels: Vec<&[u8]> = labels.iter().map(Vec::as_slice).collect();
        // Of the labels so many that the name is not too long.
        let own = (0..=labels.len()).rev().find_map(|count| {
            Name::from_labels(labels[..count].iter().copied()).ok()?.append_domain(&super::name(&below)).ok()
        });
        let Some(asked) = own else { return Ok(()) };
        let kind = RecordType::from(kind);
        let answer = zone.answer(&asked, kind, &mut Random::new(1), 9).unwrap();
        prop_assert!(answer.answers.iter().all(|record| record.name.eq_case(&asked)));
        let response = crate::message::Response {
            answers: answer.answers,
            authorities: answer.authority.into_iter().collect(),
            ..crate::message::Response::code(hickory_proto::op::ResponseCode::NoError)
        };
        let mut message = hickory_proto::op::Message::query();
        message.add_query(hickory_proto::op::Query::query(asked, RecordType::A));
        let request = crate::message::Request::read(&message.to_vec().unwrap(), crate::message::Transport::Udp).unwrap();
        let packet = request.write(&response);
        prop_assert!(packet.len() <= 512);
        prop_assert!(hickory_proto::op::Message::from_vec(&packet).is_ok());
    }
}
