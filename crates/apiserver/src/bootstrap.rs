//! The objects that every cluster has. Made at each start if they are not there, or not as configured.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::admission;
use crate::clock;
use crate::error::ApiError;
use crate::object;
use crate::registry;
use crate::state::ServerState;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const HTTPS: u16 = 443;
const DEFAULT_PORT: u16 = 6443;

/// Makes what is missing.
///
/// # Errors
/// When the store can't take it.
pub async fn run(server: &ServerState) -> Result<(), ApiError> {
    for name in NAMESPACES {
        ensure(server, "Namespace", json!({"metadata": {"name": name}}), &[]).await?;
        ensure(server, "ServiceAccount", json!({"metadata": {"name": "default", "namespace": name}}), &[]).await?;
    }
    let cidrs: Vec<IpNet> = server.config.service_cidrs.iter().map(IpNet::trunc).collect();
    let ready = json!([{
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
        "lastTransitionTime": clock::now(),
    }]);
    let range = json!({
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}, "status": {"conditions": ready},
    });
    ensure(server, "ServiceCIDR", range, &["spec"]).await?;

    let endpoints = endpoints(server);
    let port = endpoints.first().map_or(DEFAULT_PORT, SocketAddr::port);
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "spec": {
            "clusterIP": first_address(cidrs[0]).to_string(),
            "ports": [{"name": "https", "port": HTTPS, "protocol": "TCP", "targetPort": port}],
        },
    });
    ensure(server, "Service", service, &[]).await?;
    if endpoints.is_empty() {
        return Ok(());
    }
    publish(server, &endpoints, port, cidrs[0].addr().is_ipv4()).await
}

/// Where the Service leads: only the primary family, as the real server has it, and nothing on the loopback, which
/// would lead each pod to itself.
fn endpoints(server: &ServerState) -> Vec<SocketAddr> {
    let primary_v4 = server.config.service_cidrs[0].addr().is_ipv4();
    let advertised = server.config.advertise.iter().copied();
    advertised.filter(|address| address.is_ipv4() == primary_v4 && !address.ip().is_loopback()).collect()
}

/// Makes them again when somebody deletes them (`kubectl delete services --all`).
pub fn spawn_keeper(server: &Arc<ServerState>) {
    let mut services = server.store.changed(registry::known("Service"));
    let mut slices = server.store.changed(registry::known("EndpointSlice"));
    let closing = server.closing.clone();
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        loop {
            let changed = tokio::select! {
                () = closing.cancelled() => return,
                changed = services.changed() => changed,
                changed = slices.changed() => changed,
            };
            let (Ok(()), Some(server)) = (changed, server.upgrade()) else { return };
            if is_whole(&server) {
                continue;
            }
            if let Err(error) = run(&server).await {
                tracing::warn!(%error, "cannot make the Service kubernetes again");
            }
        }
    });
}

fn is_whole(server: &ServerState) -> bool {
    let read = server.store.read();
    let is_there = |kind| read.get(registry::known(kind), "default", "kubernetes").is_some();
    is_there("Service") && (endpoints(server).is_empty() || is_there("EndpointSlice"))
}

async fn publish(server: &ServerState, endpoints: &[SocketAddr], port: u16, v4: bool) -> Result<(), ApiError> {
    let addresses: Vec<String> = endpoints.iter().map(|endpoint| endpoint.ip().to_string()).collect();
    let slice_endpoints: Vec<Value> =
        addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
    let slice = json!({
        "metadata": {
            "name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": if v4 { "IPv4" } else { "IPv6" },
        "endpoints": slice_endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    ensure(server, "EndpointSlice", slice, &["addressType", "endpoints", "ports"]).await?;
    let listed: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    let old_kind = json!({
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            // The slice above is its mirror already.
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": listed, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    });
    ensure(server, "Endpoints", old_kind, &["subsets"]).await
}

/// The address after the network's.
fn first_address(range: IpNet) -> IpAddr {
    match range.network() {
        IpAddr::V4(network) => IpAddr::V4((u32::from(network).saturating_add(1)).into()),
        IpAddr::V6(network) => IpAddr::V6((u128::from(network).saturating_add(1)).into()),
    }
}

/// Creates an object, or makes these fields of it what they should be. A status that is given is kept.
async fn ensure(server: &ServerState, kind: &'static str, mut object: Value, fields: &[&str]) -> Result<(), ApiError> {
    let kind = registry::known(kind);
    let (namespace, name) = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
    server
        .store
        .write(|transaction| {
            let Some(old) = transaction.get(kind, &namespace, &name) else {
                let status = object.get("status").cloned();
                admission::create(transaction, kind, &namespace, &mut object)?;
                if let Some(status) = status {
                    object::fields(&mut object).insert("status".to_owned(), status);
                }
                transaction.put(kind, object);
                return Ok(());
            };
            let mut changed = old.value.clone();
            for field in fields {
                object::fields(&mut changed).insert((*field).to_owned(), object[*field].clone());
            }
            if changed != old.value {
                transaction.put(kind, changed);
            }
            Ok(())
        })
        .await
}
