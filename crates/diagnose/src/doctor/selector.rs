//! Pure. Selectors that find nothing or too much, and objects that stand in each other's way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use signpost_cluster::convert::SERVICE_PROXY_NAME;
use signpost_core::object::{ObjectName, Protocol};

use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::{PodObject, ServiceObject, endpoint_ready, selector_text, text};

/// A selector that no pod of its namespace fits.
pub(super) fn nothing(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Finding {
    let selector = service.selector();
    let words = selector_text(&selector);
    let has_pods = |namespace: &&str| ground.pods_of(namespace, &selector).iter().any(|pod| !pod.is_over());
    let others = ground.namespaces_with(&selector).into_iter().filter(|namespace| *namespace != &*name.namespace);
    let elsewhere: BTreeSet<&str> = others.filter(has_pods).collect();
    if !elsewhere.is_empty() {
        let namespaces = elsewhere.into_iter().collect::<Vec<_>>().join(", ");
        return Finding::new(
            Code::PodsElsewhere,
            Severity::Broken,
            format!("{words} finds no pod in namespace {}, but in {namespaces}", name.namespace),
        )
        .measured("a Service finds pods of its own namespace alone")
        .next(format!("kubectl get pods -A -l {words}"));
    }
    let mut finding =
        Finding::new(Code::SelectorMatchesNothing, Severity::Broken, format!("the selector {words} finds no pod"));
    match nearest_pod(ground, name, &selector) {
        Some((pod, differs)) => {
            finding.cause = format!("the selector {words} finds no pod; nearest is {}, {differs}", pod.name());
            finding = finding.measured(format!("labels of {}: {}", pod.name(), selector_text(&pod.labels())));
        }
        None => {
            let count = ground.pods_in(&name.namespace).count();
            finding = finding
                .measured(format!("none of {count} pods in namespace {} has any of these labels", name.namespace));
        }
    }
    finding.next(format!("kubectl get pods -n {} --show-labels", name.namespace))
}

/// The pod that most of the selector fits, or whose labels read most alike, and what differs.
fn nearest_pod<'a>(
    ground: &Ground<'a>,
    name: &ObjectName,
    selector: &BTreeMap<String, String>,
) -> Option<(PodObject<'a>, String)> {
    let alike = |a: &str, b: &str| a == b || crate::nearest::distance(a, b) <= (a.len() / 3).max(1);
    let score = |pod: &PodObject<'_>| -> (usize, usize) {
        let labels = pod.labels();
        let same = selector.iter().filter(|(key, value)| labels.get(*key) == Some(value)).count();
        let near = selector.iter().filter(|(key, value)| {
            labels.iter().any(|(other, has)| alike(key, other) && alike(value, has) || *other == **key)
        });
        (same, near.count())
    };
    let best = ground.pods_in(&name.namespace).filter(|pod| !pod.is_over()).map(|pod| (score(&pod), pod));
    let ((same, near), pod) = best.max_by_key(|(score, _)| *score)?;
    if same + near == 0 {
        return None;
    }
    let labels = pod.labels();
    let differs: Vec<String> = selector
        .iter()
        .filter(|(key, value)| labels.get(*key) != Some(value))
        .map(|(key, _)| match labels.get(key) {
            Some(has) => format!("which has {key}={has}"),
            None => match labels.iter().find(|(other, _)| alike(key, other)) {
                Some((other, has)) => format!("which has {other}={has}"),
                None => format!("which has no label {key}"),
            },
        })
        .collect();
    Some((pod, differs.join(", ")))
}

/// What stands in the way of the Service as an object.
pub(super) fn judge(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(proxy) = service.label(SERVICE_PROXY_NAME) {
        found.push(
            Finding::new(Code::ForeignProxy, Severity::Broken, format!("the Service is left to the proxy {proxy:?}"))
                .measured(format!("its label {SERVICE_PROXY_NAME}"))
                .next(format!("kubectl get service -n {} {} --show-labels", name.namespace, name.name)),
        );
    }
    if service.kind() != "ExternalName" && !service.is_headless() && service.cluster_ips().is_empty() {
        found.push(
            Finding::new(Code::NoClusterIp, Severity::Broken, "the Service has no cluster address")
                .measured("spec.clusterIPs is empty")
                .next(format!("kubectl describe service -n {} {}", name.namespace, name.name)),
        );
    }
    for malformed in ground.malformed(name) {
        found.push(
            Finding::new(
                Code::Malformed,
                Severity::Degraded,
                format!("a part of it is malformed: {}", super::ground::said(malformed)),
            )
            .measured("as the node daemon reads it"),
        );
    }
    found.extend(outside_cidr(ground, service));
    found.extend(taken(ground, service, name));
    found.extend(too_broad(ground, service, name));
    found.extend(starved(ground, name));
    found.extend(behind(ground, service, name));
    found
}

/// Ready pods that the slices do not have, while others serve.
fn behind(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Option<Finding> {
    let selector = service.selector();
    if selector.is_empty() {
        return None;
    }
    let listed: BTreeSet<&str> = ground.slices_of(name).iter().flat_map(|slice| slice.addresses()).collect();
    let missing: Vec<String> = ground
        .pods_of(&name.namespace, &selector)
        .into_iter()
        .filter(|pod| pod.is_ready() && !pod.is_ending() && !pod.is_over())
        .filter(|pod| !pod.ips().is_empty() && pod.ips().iter().all(|ip| !listed.contains(ip.to_string().as_str())))
        .map(|pod| pod.name())
        .collect();
    (!missing.is_empty()).then(|| {
        Finding::new(
            Code::SlicesBehind,
            Severity::Degraded,
            format!("ready pods are in no slice: {}", missing.join(", ")),
        )
        .measured(format!("{} slices have {} addresses", ground.slices_of(name).len(), listed.len()))
    })
}

fn service_cidrs(ground: &Ground<'_>) -> Vec<IpNet> {
    let objects = ground.snapshot.objects.service_cidrs.iter();
    objects
        .flat_map(|object| object.pointer("/spec/cidrs").and_then(serde_json::Value::as_array).into_iter().flatten())
        .filter_map(|cidr| cidr.as_str()?.parse().ok())
        .collect()
}

fn outside_cidr(ground: &Ground<'_>, service: ServiceObject<'_>) -> Option<Finding> {
    let cidrs = service_cidrs(ground);
    let of_family = |ip: &IpAddr| cidrs.iter().any(|cidr| cidr.addr().is_ipv4() == ip.is_ipv4());
    let strays = service.cluster_ips().into_iter().filter(|ip| of_family(ip));
    let strays: Vec<String> =
        strays.filter(|ip| !cidrs.iter().any(|cidr| cidr.contains(ip))).map(|ip| ip.to_string()).collect();
    let ranges: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    (!strays.is_empty()).then(|| {
        Finding::new(
            Code::OutsideServiceCidr,
            Severity::Degraded,
            format!("{} lies in no ServiceCIDR", strays.join(", ")),
        )
        .measured(format!("the ranges are {}", ranges.join(", ")))
    })
}

/// Ranges of Services that overlap pods or nodes.
pub(super) fn overlaps(ground: &Ground<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for cidr in service_cidrs(ground) {
        let overlap = |range: &IpNet| cidr.contains(&range.network()) || range.contains(&cidr.network());
        for (name, node) in &ground.nodes {
            let ranges = node.pointer("/spec/podCIDRs").and_then(serde_json::Value::as_array).into_iter().flatten();
            let ranges = ranges.filter_map(|range| range.as_str()?.parse::<IpNet>().ok());
            let addresses = crate::listed::internal_addresses(node).into_iter().map(IpNet::from);
            for range in ranges.chain(addresses).filter(overlap) {
                found.push(
                    Finding::new(
                        Code::CidrOverlap,
                        Severity::Degraded,
                        format!("the Service range {cidr} overlaps {range} of node {name}"),
                    )
                    .measured("ServiceCIDR and Node objects")
                    .on(name),
                );
            }
        }
    }
    found
}

/// Addresses and ports that a stronger claim of another Service takes.
fn taken(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut check = |address: Option<IpAddr>, protocol: Protocol, port: u16| {
        let Some(first) = ground.claims.get(&(address, protocol, port)).and_then(|claims| claims.first()) else {
            return;
        };
        if first.service != *name {
            let at =
                address.map_or_else(|| format!("node port {port}/{protocol}"), |ip| format!("{ip} {port}/{protocol}"));
            found.push(
                Finding::new(Code::FrontendTaken, Severity::Degraded, format!("{at} is {}'s", first.service))
                    .measured("both Services claim it; the other claim is the stronger one"),
            );
        }
    };
    for port in service.ports() {
        for address in service.cluster_ips().into_iter().chain(service.external_ips()).chain(service.ingress()) {
            check(Some(address), port.protocol, port.port);
        }
        if let Some(number) = port.node_port {
            check(None, port.protocol, number);
        }
    }
    found
}

/// Endpoints of several makers, of which some do not listen where others do.
fn too_broad(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Option<Finding> {
    let selector = service.selector();
    if selector.is_empty() || service.is_headless() {
        return None;
    }
    let mut listening: BTreeSet<String> = BTreeSet::new();
    let mut silent: BTreeMap<String, String> = BTreeMap::new();
    for pod in ground.pods_of(&name.namespace, &selector).into_iter().filter(|pod| pod.is_ready()) {
        let Some(state) = ground.snapshot.pods.get(&pod.full_name()).filter(|state| state.unreached.is_none()) else {
            continue;
        };
        let listens = service.ports().iter().any(|port| {
            let number = match &port.target {
                Ok(number) => Some(*number),
                Err(name) => pod.named_port(name, port.protocol),
            };
            number.is_some_and(|number| {
                state.listeners.iter().any(|one| one.port == number && one.protocol == port.protocol)
            })
        });
        if listens {
            listening.insert(pod.maker());
        } else {
            silent.insert(pod.maker(), pod.name());
        }
    }
    let (maker, pod) = silent.into_iter().find(|(maker, _)| !listening.contains(maker))?;
    let other = listening.into_iter().next()?;
    Some(
        Finding::new(
            Code::SelectorTooBroad,
            Severity::Degraded,
            format!(
                "the selector {} finds pods of {maker} too, such as {pod}, which do not listen there",
                selector_text(&selector)
            ),
        )
        .measured(format!("pods of {other} do")),
    )
}

/// A zone whose hints lead to less than half of its even share.
fn starved(ground: &Ground<'_>, name: &ObjectName) -> Option<Finding> {
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all = 0;
    for endpoint in ground.slices_of(name).iter().flat_map(|slice| slice.endpoints()).filter(|one| endpoint_ready(one))
    {
        let hints = endpoint.pointer("/hints/forZones").and_then(serde_json::Value::as_array)?;
        all += 1;
        for zone in hints.iter().filter_map(|hint| text(hint, "/name")) {
            *zones.entry(zone).or_default() += 1;
        }
    }
    let (zone, count) = zones.iter().min_by_key(|(_, count)| **count)?;
    let even = all / zones.len().max(1);
    (zones.len() > 1 && count * 2 < even).then(|| {
        Finding::new(
            Code::HintsStarve,
            Severity::Degraded,
            format!("all traffic of zone {zone} goes to {count} of {all} endpoints"),
        )
        .measured(format!("hints of the slices; even would be {even}"))
    })
}
