//! Pure. What a Service asks of load balancers, and what it has.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use signpost_core::labels::Labels;
use signpost_core::load_balancer::{Request, Sharing, Wish};
use signpost_core::object::{Family, Protocol};
use signpost_metallb::{ADDRESS_POOL, ALLOW_SHARED_IP, LOAD_BALANCER_IPS, convert};

use crate::cache::{Index, name_of};

/// On a Service: `Proxy`, if clients outside are to reach it through a proxy that keeps its own address, not by the nodes.
pub const IP_MODE: &str = "signpost.dev/ip-mode";

/// What MetalLB's annotations began with before 0.13.
const FORMER: &str = "metallb.universe.tf/";

/// An annotation; MetalLB's are found under their former names too.
pub fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    let annotations = service.metadata.annotations.as_ref()?;
    let former = key.strip_prefix("metallb.io/").map(|name| format!("{FORMER}{name}"));
    let found = annotations.get(key).or_else(|| annotations.get(&former?));
    found.map(|text| text.trim()).filter(|text| !text.is_empty())
}

fn is_load_balancer(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

/// Whether the Service is of type LoadBalancer or was one.
pub fn is_concerned(service: &Service) -> bool {
    is_load_balancer(service)
        || !ingress(service).is_empty()
        || annotation(service, signpost_metallb::ALLOCATED_FROM_POOL).is_some()
}

/// Whether it is to have an address of ours.
pub fn is_ours(service: &Service, class: Option<&str>) -> bool {
    is_load_balancer(service) && service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref()) == class
}

/// The addresses in its status.
pub fn ingress(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    entries.iter().filter_map(|entry| entry.ip.as_deref()?.parse().ok()).collect()
}

/// The entries of its status, as [`json!`] would write ours.
pub fn written_ingress(service: &Service) -> Vec<Value> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    entries.iter().map(|entry| json!({"ip": entry.ip, "ipMode": entry.ip_mode})).collect()
}

/// What its status is to say of how the address is served.
pub fn ip_mode(service: &Service) -> &'static str {
    if annotation(service, IP_MODE) == Some("Proxy") { "Proxy" } else { "VIP" }
}

/// What a Service is found by, if it is a load balancer.
pub fn indices(service: &Service) -> Vec<Index> {
    if !is_concerned(service) {
        return Vec::new();
    }
    let addresses = ingress(service).into_iter().map(Index::Ingress);
    let key = annotation(service, ALLOW_SHARED_IP).map(|key| Index::SharingKey(key.into()));
    addresses.chain(key).chain([Index::LoadBalancer]).collect()
}

/// With whom it may have an address in common.
pub fn sharing(service: &Service) -> Sharing {
    let spec = service.spec.as_ref();
    let is_local = spec.is_some_and(|spec| spec.external_traffic_policy.as_deref() == Some("Local"));
    let backends = if is_local {
        let pairs = spec.and_then(|spec| spec.selector.as_ref()).into_iter().flatten();
        let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
        format!("{}: {}", service.metadata.namespace.as_deref().unwrap_or_default(), pairs.join(","))
    } else {
        String::new()
    };
    let ports = spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports: BTreeSet<(Protocol, NonZeroU16)> = ports
        .filter_map(|port| {
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            Some((protocol, NonZeroU16::new(u16::try_from(port.port).ok()?)?))
        })
        .collect();
    Sharing { key: annotation(service, ALLOW_SHARED_IP).map(Into::into), backends: backends.into(), ports }
}

/// What it asks for.
///
/// # Errors
/// It asks for what cannot be: says why.
pub fn request(service: &Service, namespace_labels: &Labels) -> Result<Request, String> {
    let spec = service.spec.as_ref();
    let written = spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let mut families: Vec<Family> =
        written.iter().map(|family| if family == "IPv6" { Family::Ipv6 } else { Family::Ipv4 }).collect();
    if families.is_empty() {
        families.push(Family::Ipv4);
    }
    let policy = spec.and_then(|spec| spec.ip_family_policy.as_deref());
    Ok(Request {
        service: name_of(service),
        labels: convert::labels(service.metadata.labels.as_ref()),
        namespace_labels: namespace_labels.clone(),
        families,
        one_will_do: policy == Some("PreferDualStack"),
        wish: wish(service)?,
        current: ingress(service),
        sharing: sharing(service),
    })
}

fn wish(service: &Service) -> Result<Wish, String> {
    let field = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref()).filter(|text| !text.is_empty());
    let listed = match (annotation(service, LOAD_BALANCER_IPS), field) {
        (Some(_), Some(_)) => {
            return Err(format!(
                "the Service asks by {LOAD_BALANCER_IPS} and by spec.loadBalancerIP: one of them has to go"
            ));
        }
        (Some(text), None) | (None, Some(text)) => Some(text),
        (None, None) => None,
    };
    if let Some(text) = listed {
        let parse = |text: &str| {
            let address: Result<IpAddr, _> = text.trim().parse();
            address.map_err(|_| format!("the Service asks for {:?}, which is no address", shortened(text.trim())))
        };
        return Ok(Wish::Addresses(text.split(',').map(parse).collect::<Result<_, _>>()?));
    }
    Ok(annotation(service, ADDRESS_POOL).map_or(Wish::Any, |pool| Wish::Pool(Arc::from(pool))))
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(value: Value) -> Service {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn annotations_say_what_is_wanted_under_both_names() {
        let with = |annotations: Value, spec: Value| {
            service(json!({"metadata": {"name": "a", "namespace": "b", "annotations": annotations}, "spec": spec}))
        };
        let lb = json!({"type": "LoadBalancer"});
        let wish_of = |annotations| wish(&with(annotations, lb.clone()));
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(wish_of(json!({})), Ok(Wish::Any));
        assert_eq!(wish_of(json!({"metallb.io/address-pool": "p"})), Ok(Wish::Pool("p".into())));
        assert_eq!(wish_of(json!({"metallb.universe.tf/address-pool": "p"})), Ok(Wish::Pool("p".into())));
        assert_eq!(
            wish_of(json!({"metallb.io/loadBalancerIPs": "10.0.0.1, fd00::1"})),
            Ok(Wish::Addresses(vec![ip("10.0.0.1"), ip("fd00::1")]))
        );
        assert!(
            wish_of(json!({"metallb.io/loadBalancerIPs": "10.0.0.1,x"})).unwrap_err().contains("\"x\", which is no")
        );
        let both = with(
            json!({"metallb.io/loadBalancerIPs": "10.0.0.1"}),
            json!({"type": "LoadBalancer", "loadBalancerIP": "10.0.0.1"}),
        );
        assert!(wish(&both).unwrap_err().contains("one of them has to go"));
    }

    #[test]
    fn only_a_local_policy_ties_sharing_to_backends_and_their_namespace() {
        let spec = |policy: &str| {
            service(json!({
                "metadata": {"name": "a", "namespace": "shop", "annotations": {"metallb.io/allow-shared-ip": "k"}},
                "spec": {"type": "LoadBalancer", "externalTrafficPolicy": policy, "selector": {"app": "web"},
                    "ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]},
            }))
        };
        let (cluster, local) = (sharing(&spec("Cluster")), sharing(&spec("Local")));
        assert_eq!((&*cluster.backends, &*local.backends), ("", "shop: app=web"));
        assert_eq!((cluster.key.as_deref(), cluster.ports.len()), (Some("k"), 2));
    }

    #[test]
    fn the_class_decides_whose_service_it_is() {
        let of = |class: Option<&str>| {
            service(json!({"metadata": {"name": "a"}, "spec": {"type": "LoadBalancer", "loadBalancerClass": class}}))
        };
        assert!(is_ours(&of(None), None) && !is_ours(&of(Some("x")), None));
        assert!(is_ours(&of(Some("x")), Some("x")) && !is_ours(&of(None), Some("x")));
        let changed = service(json!({"metadata": {"name": "a"}, "spec": {"type": "ClusterIP"}}));
        assert!(!is_ours(&changed, None) && !is_concerned(&changed));
    }
}
