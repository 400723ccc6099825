//! Pure. Why a Service port has no endpoint, and what is wrong with those that it has.

use std::collections::BTreeSet;
use std::net::IpAddr;

use signpost_core::object::{Family, ObjectName, ServicePortName};
use signpost_core::service_map::{Offer, offers};

use super::case::Case;
use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::{PodObject, PortObject, ServiceObject, endpoint_ready, selector_text, text};
use super::selector;
use crate::predict::{Answerer, Step};

/// Of ports that no packet was sent to: those of headless Services, and of families that were not asked for.
pub(super) fn judge(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    cases: &[Case<'_>],
) -> Vec<Finding> {
    let mut found = Vec::new();
    if service.kind() == "ExternalName" {
        return found;
    }
    if service.is_headless() {
        found.extend(headless(ground, service, name));
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        for port in service.ports() {
            let offered = offered(ground, name, &port, family);
            let ready = offered.iter().filter(|offer| offer.endpoint.ready).count();
            if ready == 0 && offered.iter().any(|offer| offer.endpoint.serving && offer.endpoint.terminating) {
                found.push(
                    Finding::new(Code::OnlyTerminating, Severity::Degraded, "only pods that end are left")
                        .measured(format!("{} {family} endpoints, none is ready, all terminate", offered.len()))
                        .next(format!(
                            "kubectl get pods -n {} -l {}",
                            name.namespace,
                            selector_text(&service.selector())
                        )),
                );
            }
        }
    }
    found.extend(unready_served(ground, service, name));
    found.extend(lost_nodes(ground, name));
    found.extend(twins(ground, cases));
    found
}

fn offered<'g>(ground: &'g Ground<'_>, name: &ObjectName, port: &PortObject, family: Family) -> Vec<Offer<'g>> {
    let Some(service) = ground.understood.store.service(name) else { return Vec::new() };
    let found = service.ports.iter().find(|one| *one.name == port.name && one.protocol == port.protocol);
    found.map(|port| offers(&ground.understood.store, name, port, family)).unwrap_or_default()
}

fn headless(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Option<Finding> {
    let slices = ground.slices_of(name);
    let endpoints = || slices.iter().flat_map(|slice| slice.endpoints());
    if endpoints().any(endpoint_ready) {
        return None;
    }
    let selector = service.selector();
    let pods = ground.pods_of(&name.namespace, &selector).len();
    let finding = if pods == 0 && !selector.is_empty() {
        selector::nothing(ground, service, name)
    } else {
        Finding::new(
            Code::HeadlessNoneReady,
            Severity::Broken,
            "the headless Service has no ready endpoint: its name has no address",
        )
        .measured(format!("{} endpoints in {} slices, none is ready", endpoints().count(), slices.len()))
        .measured(format!("{pods} pods fit the selector"))
    };
    Some(
        finding.next(format!(
            "kubectl get endpointslices -n {} -l kubernetes.io/service-name={}",
            name.namespace, name.name
        )),
    )
}

/// Why a Service port of one family leads to no endpoint; `None`: it does lead to some.
pub(super) fn none_for(ground: &Ground<'_>, port: &ServicePortName, family: Family) -> Option<Finding> {
    let name = &port.service;
    let service = ground.service(name)?;
    let ports = service.ports();
    let port = ports.iter().find(|one| *one.name == *port.port)?;
    let offered = offered(ground, name, port, family);
    if offered.iter().any(|offer| offer.endpoint.ready || offer.endpoint.serving) {
        return None;
    }
    let found = if service.selector().is_empty() {
        without_selector(ground, service, name, port, family)
    } else {
        with_selector(ground, service, name, port, family)
    };
    Some(found)
}

fn look_at_slices(name: &ObjectName) -> String {
    format!("kubectl get endpointslices -n {} -l kubernetes.io/service-name={} -o yaml", name.namespace, name.name)
}

fn without_selector(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    port: &PortObject,
    family: Family,
) -> Finding {
    let slices = ground.slices_of(name);
    if slices.is_empty() {
        return no_slices(ground, name);
    }
    in_slices(ground, service, name, port, family).unwrap_or_else(|| {
        let all: Vec<_> = slices.iter().flat_map(|slice| slice.endpoints()).collect();
        let by_hand = slices.iter().any(|slice| !slice.is_controllers());
        let cause = if all.is_empty() {
            "the slices of the Service are empty".to_owned()
        } else {
            format!("all {} endpoints of the slices say that they are not ready", all.len())
        };
        let finding = Finding::new(Code::SliceNotReady, Severity::Broken, cause).next(look_at_slices(name));
        if by_hand { finding.measured("they were written by hand, not by a controller") } else { finding }
    })
}

fn no_slices(ground: &Ground<'_>, name: &ObjectName) -> Finding {
    let orphan = |slice: &&super::object::SliceObject<'_>| match slice.service() {
        Some(service) => ground.service(&ObjectName::new(&name.namespace, service)).is_none(),
        None => true,
    };
    let orphans: Vec<String> = ground
        .slices_in(&name.namespace)
        .iter()
        .filter(orphan)
        .map(|slice| match slice.service() {
            Some(service) => format!("{} names {service}", slice.name()),
            None => format!("{} names none", slice.name()),
        })
        .collect();
    if orphans.is_empty() {
        return Finding::new(
            Code::NoSelectorNoSlices,
            Severity::Broken,
            "the Service has no selector and no EndpointSlice",
        )
        .measured("spec.selector is empty, and no slice has its name in the label kubernetes.io/service-name")
        .next(look_at_slices(name));
    }
    Finding::new(
        Code::SliceOfAnother,
        Severity::Broken,
        format!("no slice names this Service, but slice {}", orphans.join(", ")),
    )
    .measured("no Service has that name")
    .next(format!("kubectl get endpointslices -n {} --show-labels", name.namespace))
}

/// What is wrong with slices whose endpoints would do.
fn in_slices(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    port: &PortObject,
    family: Family,
) -> Option<Finding> {
    let slices = ground.slices_of(name);
    let of_family: Vec<_> =
        slices.iter().filter(|slice| slice.address_type().eq_ignore_ascii_case(&family.to_string())).collect();
    let has_ready =
        |slices: &[&super::object::SliceObject<'_>]| slices.iter().any(|slice| slice.endpoints().any(endpoint_ready));
    if of_family.is_empty()
        || !has_ready(&of_family) && of_family.iter().all(|slice| slice.endpoints().next().is_none())
    {
        let others: BTreeSet<&str> = slices
            .iter()
            .filter(|slice| slice.endpoints().next().is_some())
            .map(|slice| slice.address_type())
            .collect();
        if others.is_empty() {
            return None;
        }
        let others = others.into_iter().collect::<Vec<_>>().join(", ");
        if !service.selector().is_empty() {
            return Some(lacks_family(name, family, &others));
        }
        return Some(
            Finding::new(
                Code::SliceFamily,
                Severity::Broken,
                format!("the Service has an {family} address, and its slices have {others} ones only"),
            )
            .measured(format!("{} slices", slices.len()))
            .next(look_at_slices(name)),
        );
    }
    if !has_ready(&of_family) {
        return None;
    }
    let wanted = format!(
        "{}/{}",
        if port.name.is_empty() { "(no name)" } else { &port.name },
        port.protocol.to_string().to_uppercase()
    );
    let offered: BTreeSet<String> = of_family.iter().flat_map(|slice| slice.ports()).collect();
    if !offered.contains(&wanted) {
        let offered =
            if offered.is_empty() { "no port".to_owned() } else { offered.into_iter().collect::<Vec<_>>().join(", ") };
        return Some(
            Finding::new(
                Code::PortNames,
                Severity::Broken,
                format!("the slices offer {offered}, and the Service's port is {wanted}"),
            )
            .measured("a slice's port belongs to a Service's port if name and protocol are the same")
            .next(look_at_slices(name)),
        );
    }
    let malformed = ground.malformed(name).next()?;
    Some(
        Finding::new(Code::SliceFamily, Severity::Broken, "no address in the slices can be used")
            .measured(super::ground::said(malformed))
            .next(look_at_slices(name)),
    )
}

fn lacks_family(name: &ObjectName, family: Family, others: &str) -> Finding {
    Finding::new(Code::PodLacksFamily, Severity::Broken, format!("no pod of the Service has an {family} address"))
        .measured(format!("its slices have {others} addresses"))
        .next(format!("kubectl get pods -n {} -o jsonpath='{{.items[*].status.podIPs}}'", name.namespace))
}

fn with_selector(
    ground: &Ground<'_>,
    service: ServiceObject<'_>,
    name: &ObjectName,
    port: &PortObject,
    family: Family,
) -> Finding {
    let selector = service.selector();
    let pods: Vec<PodObject<'_>> =
        ground.pods_of(&name.namespace, &selector).into_iter().filter(|pod| !pod.is_over()).collect();
    if pods.is_empty() {
        return selector::nothing(ground, service, name);
    }
    let ready: Vec<&PodObject<'_>> = pods.iter().filter(|pod| pod.is_ready() && !pod.is_ending()).collect();
    if ready.is_empty() {
        return none_ready(name, &selector_text(&selector), &pods);
    }
    if let Err(target) = &port.target
        && ready.iter().all(|pod| pod.named_port(target, port.protocol).is_none())
    {
        let has: BTreeSet<&str> = ready.iter().flat_map(|pod| pod.port_names()).collect();
        let has = if has.is_empty() { "no names".to_owned() } else { has.into_iter().collect::<Vec<_>>().join(", ") };
        return Finding::new(
            Code::NamedPort,
            Severity::Broken,
            format!("no pod has a {} port named {target}", port.protocol),
        )
        .measured(format!("{} pods are ready; their ports have {has}", ready.len()))
        .next(format!(
            "kubectl get pods -n {} -l {} -o jsonpath='{{..ports}}'",
            name.namespace,
            selector_text(&selector)
        ));
    }
    let of_family = |pod: &&PodObject<'_>| pod.ips().into_iter().any(|ip| Family::of(ip) == family);
    if !ready.iter().any(of_family) {
        let others: BTreeSet<String> =
            ready.iter().flat_map(|pod| pod.ips()).map(|ip| Family::of(ip).to_string()).collect();
        return lacks_family(name, family, &others.into_iter().collect::<Vec<_>>().join(", "));
    }
    let listed: BTreeSet<IpAddr> = ground
        .slices_of(name)
        .iter()
        .flat_map(|slice| slice.addresses())
        .filter_map(|address| address.parse().ok())
        .collect();
    let missing: Vec<String> = ready
        .iter()
        .filter(|pod| pod.ips().into_iter().all(|ip| !listed.contains(&ip)))
        .map(|pod| pod.name())
        .collect();
    if missing.is_empty()
        && let Some(found) = in_slices(ground, service, name, port, family)
    {
        return found;
    }
    Finding::new(Code::SlicesBehind, Severity::Broken, "ready pods of the Service are in no slice")
        .measured(format!(
            "ready and not in a slice, or not ready there: {}",
            if missing.is_empty() { "all".to_owned() } else { missing.join(", ") }
        ))
        .next(look_at_slices(name))
}

fn none_ready(name: &ObjectName, selector: &str, pods: &[PodObject<'_>]) -> Finding {
    let look = |command: &str| format!("kubectl {command} -n {} -l {selector}", name.namespace);
    let count = pods.len();
    let staying: Vec<&PodObject<'_>> = pods.iter().filter(|pod| !pod.is_ending()).collect();
    if staying.is_empty() {
        return Finding::new(Code::OnlyTerminating, Severity::Broken, format!("all {count} pods of the Service end"))
            .measured("each has a deletionTimestamp")
            .next(look("get pods"));
    }
    if let Some((pod, gates)) = staying.iter().find_map(|pod| {
        Some((pod, pod.unmet_gates())).filter(|(pod, gates)| pod.containers_ready() && !gates.is_empty())
    }) {
        return Finding::new(
            Code::ReadinessGate,
            Severity::Broken,
            format!("pod {} waits for its readiness gate {}", pod.name(), gates.join(", ")),
        )
        .measured("all its containers are ready")
        .next(format!(
            "kubectl get pod -n {} {} -o jsonpath='{{.status.conditions}}'",
            name.namespace,
            pod.name()
        ));
    }
    if let Some((pod, why)) = staying.iter().find_map(|pod| Some((pod, pod.crash()?))) {
        return Finding::new(Code::PodsCrash, Severity::Broken, format!("pod {}: {why}", pod.name()))
            .measured(format!("none of {count} pods is ready"))
            // What never ran has left no log.
            .next(match why.contains("CrashLoopBackOff") || why.contains("ended with status") {
                true => format!("kubectl logs -n {} {} --previous", name.namespace, pod.name()),
                false => format!("kubectl describe pod -n {} {}", name.namespace, pod.name()),
            });
    }
    let without: Vec<String> = staying.iter().filter(|pod| pod.ips().is_empty()).map(|pod| pod.name()).collect();
    if without.len() == staying.len() {
        let why = staying
            .iter()
            .find_map(|pod| text(pod.condition("PodScheduled")?, "/message").map(str::to_owned))
            .unwrap_or_else(|| format!("phase {}", text(staying[0].0, "/status/phase").unwrap_or("unknown")));
        return Finding::new(
            Code::PodsPending,
            Severity::Broken,
            format!("none of {count} pods is scheduled and has an address"),
        )
        .measured(format!("{}: {why}", without.join(", ")))
        .next(look("describe pods"));
    }
    let why = staying
        .iter()
        .find_map(|pod| text(pod.condition("Ready")?, "/message").map(str::to_owned))
        .filter(|why| !why.is_empty())
        .unwrap_or_else(|| "the condition Ready is not True".to_owned());
    Finding::new(Code::NoneReady, Severity::Broken, format!("no ready pod: 0 of {count}"))
        .measured(format!("{}: {why}", staying[0].name()))
        .next(look("describe pods"))
}

fn unready_served(ground: &Ground<'_>, service: ServiceObject<'_>, name: &ObjectName) -> Option<Finding> {
    if !service.is_set("/spec/publishNotReadyAddresses") {
        return None;
    }
    let selector = service.selector();
    let pods = ground.pods_of(&name.namespace, &selector).into_iter().filter(|pod| !pod.is_over());
    let unready: Vec<String> =
        pods.filter(|pod| !pod.is_ready() && !pod.ips().is_empty()).map(|pod| pod.name()).collect();
    (!unready.is_empty() && !service.is_headless()).then(|| {
        Finding::new(
            Code::UnreadyServed,
            Severity::Degraded,
            format!("pods that are not ready get traffic: {}", unready.join(", ")),
        )
        .measured("spec.publishNotReadyAddresses is true")
    })
}

fn lost_nodes(ground: &Ground<'_>, name: &ObjectName) -> Option<Finding> {
    let mut lost = BTreeSet::new();
    for endpoint in ground.slices_of(name).iter().flat_map(|slice| slice.endpoints()).filter(|one| endpoint_ready(one))
    {
        let Some(node) = text(endpoint, "/nodeName") else { continue };
        let object = ground.nodes.get(node).map(|node| PodObject(node));
        let ready = object.and_then(|node| text(node.condition("Ready")?, "/status"));
        if ready.is_some_and(|ready| ready != "True") {
            lost.insert(node);
        }
    }
    let nodes = lost.into_iter().collect::<Vec<_>>().join(", ");
    (!nodes.is_empty()).then(|| {
        Finding::new(Code::NodeLost, Severity::Degraded, format!("ready endpoints are on {nodes}, which is not Ready"))
            .measured("the node's condition Ready is not True")
            .next("kubectl get nodes")
    })
}

/// Two pods at an address that a way leads to.
fn twins(ground: &Ground<'_>, cases: &[Case<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for case in cases {
        for way in &case.ways {
            let Some(Step::Arrived { by: Some(Answerer::Pod(_)), packet, .. }) = way.steps.last() else { continue };
            if case.index.pods_at(packet.destination.ip()).take(2).count() < 2 {
                continue;
            }
            let at: BTreeSet<String> = case
                .index
                .pods_at(packet.destination.ip())
                .filter(|pod| !pod.host_network)
                .filter(|pod| ground.pod(&pod.name.namespace, &pod.name.name).is_some_and(|pod| !pod.is_ending()))
                .map(|pod| pod.name.to_string())
                .collect();
            if at.len() > 1 {
                let pods = at.into_iter().collect::<Vec<_>>().join(" and ");
                let cause = format!("pods {pods} have one address, {}", packet.destination.ip());
                found
                    .push(Finding::new(Code::SameAddress, Severity::Degraded, cause).measured("status.podIPs of both"));
            }
        }
    }
    found
}
