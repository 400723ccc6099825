//! Pure. From the name to the address: ports, headless and ExternalName Services, the client's own resolver.

use std::net::IpAddr;

use signpost_core::object::ObjectName;

use super::cause::Code;
use super::finding::{Finding, Severity};
use super::ground::Ground;
use super::object::{ServiceObject, endpoint_ready, text};
use super::{Question, To};
use crate::address::{Destination, PortRef, Source};

pub(super) fn judge(ground: &Ground<'_>, service: ServiceObject<'_>, question: &Question) -> Vec<Finding> {
    let mut found = Vec::new();
    if service.kind() == "ExternalName" {
        found.extend(external_name(service, question));
    }
    if service.is_headless() {
        found.extend(headless_port(service, question));
    } else {
        found.extend(unknown_name(service, question));
    }
    if let Some(Source::Pod(pod)) = &question.from
        && let Some(pod) = ground.pod(&pod.namespace, &pod.name)
    {
        found.extend(resolver(pod.0, &pod.name()));
        found.extend(dns(ground));
    }
    found
}

/// The port that was asked for, by number.
fn asked(question: &Question) -> Option<&PortRef> {
    match question.to.as_ref()? {
        To::Port(port, _) => Some(port),
        To::Target(target) => match &target.destination {
            Destination::Cluster(_, port) => Some(port),
            _ => None,
        },
    }
}

fn external_name(service: ServiceObject<'_>, question: &Question) -> Option<Finding> {
    let target = text(service.0, "/spec/externalName").unwrap_or_default();
    if target.trim_end_matches('.').parse::<IpAddr>().is_ok() {
        return Some(
            Finding::new(
                Code::ExternalNameAddress,
                Severity::Broken,
                format!("spec.externalName is the address {target}"),
            )
            .measured("an alias leads to a name; no resolver follows one to an address"),
        );
    }
    let port = asked(question)?;
    let port = match port {
        PortRef::Number(number) => number.to_string(),
        PortRef::Name(name) => name.clone(),
        PortRef::None => return None,
    };
    Some(
        Finding::new(
            Code::ExternalNameNoRules,
            Severity::Degraded,
            format!("port {port} of the Service means nothing: its name is an alias of {target}"),
        )
        .measured("spec.type is ExternalName")
        .fix(format!("dial {target} at its own port")),
    )
}

fn headless_port(service: ServiceObject<'_>, question: &Question) -> Option<Finding> {
    let asked = asked(question)?;
    let port = service.ports().into_iter().find(|port| match asked {
        PortRef::Number(number) => port.port == *number,
        PortRef::Name(name) => port.name == *name,
        PortRef::None => false,
    })?;
    let target = match &port.target {
        Ok(number) if *number == port.port => return None,
        Ok(number) => number.to_string(),
        Err(name) => name.clone(),
    };
    Some(
        Finding::new(
            Code::HeadlessPort,
            Severity::Broken,
            format!("the Service is headless: nobody maps its port {} to {target}", port.port),
        )
        .measured("spec.clusterIP is None, so that the client gets the pods' addresses")
        .fix(format!("dial {target}")),
    )
}

/// A port's name that the Service does not have has no number to send to.
fn unknown_name(service: ServiceObject<'_>, question: &Question) -> Option<Finding> {
    let Some(PortRef::Name(asked)) = asked(question) else { return None };
    let ports = service.ports();
    if service.kind() == "ExternalName" || ports.iter().any(|port| port.name == *asked) {
        return None;
    }
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).filter(|name| !name.is_empty()).collect();
    let names = if names.is_empty() { "no names".to_owned() } else { names.join(", ") };
    Some(
        Finding::new(Code::UndeclaredPort, Severity::Broken, format!("the Service has no port named {asked}"))
            .measured(format!("its ports have {names}")),
    )
}

fn resolver(pod: &serde_json::Value, name: &str) -> Option<Finding> {
    let policy = text(pod, "/spec/dnsPolicy").unwrap_or("ClusterFirst");
    let on_host = pod.pointer("/spec/hostNetwork").and_then(serde_json::Value::as_bool) == Some(true);
    let (cause, fix) = match policy {
        "Default" => (format!("pod {name} has dnsPolicy Default"), "dnsPolicy: ClusterFirst"),
        "ClusterFirst" if on_host => (
            format!("pod {name} is in the node's network, where ClusterFirst means Default"),
            "dnsPolicy: ClusterFirstWithHostNet",
        ),
        _ => return None,
    };
    Some(
        Finding::new(Code::NotClusterDns, Severity::Degraded, format!("{cause}: it does not ask cluster DNS"))
            .measured(format!("spec.dnsPolicy is {policy}"))
            .fix(fix),
    )
}

/// A cluster that has a DNS Service without an endpoint.
pub(super) fn dns(ground: &Ground<'_>) -> Option<Finding> {
    let name = ObjectName::new("kube-system", "kube-dns");
    ground.service(&name)?;
    let ready = ground.slices_of(&name).iter().any(|slice| slice.endpoints().any(endpoint_ready));
    (!ready).then(|| {
        Finding::new(Code::NoDns, Severity::Degraded, "kube-system/kube-dns has no ready endpoint: no name is resolved")
            .measured(format!("{} slices", ground.slices_of(&name).len()))
            .next("signpost doctor kube-dns -n kube-system")
    })
}
