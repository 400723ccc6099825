//! Lists the API's objects.

use kube::Client;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use serde_json::Value;
use tokio::time::Instant;

use crate::listed::{ANNOUNCED, Listed};
use crate::snapshot::Unknown;

/// So many of one request.
const PAGE: u32 = 500;

/// Everything that a verdict may need. Read rights are enough; what is refused is told with the right that is missing, and
/// what has not come by `until` as what took too long.
pub async fn list(client: &Client, until: Instant) -> (Listed, Vec<Unknown>) {
    let mut listed = Listed::default();
    let mut unknown = Vec::new();
    let kinds = [
        ("", "v1", "Node", "nodes", &mut listed.nodes),
        ("", "v1", "Pod", "pods", &mut listed.pods),
        ("", "v1", "Service", "services", &mut listed.services),
        ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", &mut listed.slices),
        ("", "v1", "Endpoints", "endpoints", &mut listed.endpoints),
        ("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", &mut listed.service_cidrs),
        ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", &mut listed.network_policies),
        ("coordination.k8s.io", "v1", "Lease", "leases", &mut listed.leases),
        ("metallb.io", "v1beta1", "ServiceL2Status", "servicel2statuses", &mut listed.l2_statuses),
        ("metallb.io", "v1beta1", "ServiceBGPStatus", "servicebgpstatuses", &mut listed.bgp_statuses),
    ];
    for (group, version, kind, plural, into) in kinds {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        match tokio::time::timeout_at(until, pages(client, &resource)).await {
            Ok(Ok(objects)) => *into = objects,
            // A cluster without MetalLB's kinds has nobody who tells by them what is announced.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && group == "metallb.io" => {}
            Err(_) => {
                let why = "the API took too long; give it more time by --timeout".to_owned();
                unknown.push(Unknown { what: plural.to_owned(), why });
            }
            Ok(Err(error)) => unknown.push(Unknown { what: plural.to_owned(), why: why(&error, group, plural) }),
        }
    }
    listed.leases = listed.leases.into_iter().filter_map(announcement).collect();
    (listed, unknown)
}

/// Of a Lease that records who announces an address only that: its name has the address in it.
fn announcement(mut lease: Value) -> Option<Value> {
    lease.pointer("/metadata/annotations")?.get(ANNOUNCED)?;
    lease.pointer_mut("/metadata")?.as_object_mut()?.remove("name");
    Some(lease)
}

async fn pages(client: &Client, resource: &ApiResource) -> Result<Vec<Value>, kube::Error> {
    let api: kube::Api<DynamicObject> = kube::Api::all_with(client.clone(), resource);
    let mut all = Vec::new();
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&parameters).await?;
        all.extend(page.items.into_iter().map(slim));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Without what no verdict asks for and what may be secret: managed fields, environments, commands.
fn slim(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = object.data.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            for field in ["env", "envFrom", "command", "args", "volumeMounts", "resources"] {
                container.remove(field);
            }
        }
    }
    if let Some(spec) = object.data.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.remove("volumes");
    }
    // Objects of JSON are JSON.
    serde_json::to_value(object).unwrap_or_default()
}

fn why(error: &kube::Error, group: &str, plural: &str) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            let group = if group.is_empty() { "core" } else { group };
            format!("the API refuses: the right to list {plural} of group {group} is missing")
        }
        other => other.to_string(),
    }
}
