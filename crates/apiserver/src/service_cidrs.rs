//! Keeps ServiceCIDR objects as kube-controller-manager's service-cidr-controller does (KEP-1880): a new one becomes Ready, and
//! one that is deleted stays until no Service has an address of its ranges that no other range has.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::json;

use crate::clock;
use crate::error::ApiError;
use crate::handlers;
use crate::object;
use crate::registry;
use crate::state::ServerState;
use crate::store::allocations::{CONFIGURED, Holding, holdings, ranges};
use crate::store::{Objects, Transaction};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// Runs as long as the server is there.
pub fn spawn(server: &Arc<ServerState>) {
    let mut changed = server.store.changed(registry::known("ServiceCIDR"));
    let mut services = server.store.changed(registry::known("Service"));
    let closing = server.closing.clone();
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        loop {
            let (gone, waits) = match server.upgrade() {
                Some(server) => (false, look(&server).await),
                None => (true, false),
            };
            let gone = gone
                || tokio::select! {
                    () = closing.cancelled() => true,
                    changed = changed.changed() => changed.is_err(),
                    // Only while one waits for its Services.
                    changed = services.changed(), if waits => changed.is_err(),
                };
            if gone {
                return;
            }
        }
    });
}

/// One look at each; whether one is to be deleted and still in use.
async fn look(server: &ServerState) -> bool {
    let names: Vec<String> = {
        let read = server.store.read();
        let all = read.list(registry::known("ServiceCIDR"), None).map(|range| object::name(&range.value).to_owned());
        all.filter(|name| name != CONFIGURED).collect()
    };
    let mut waits = false;
    for name in names {
        match server.store.write(|transaction| adjust(transaction, &name)).await {
            Ok(in_use) => waits |= in_use,
            Err(error) => tracing::warn!(name, %error, "cannot keep a ServiceCIDR"),
        }
    }
    waits
}

/// Whether it is to be deleted and still in use.
fn adjust(transaction: &mut Transaction<'_>, name: &str) -> Result<bool, ApiError> {
    let kind = registry::known("ServiceCIDR");
    let Some(old) = transaction.get(kind, "", name) else { return Ok(false) };
    let mut value = old.value.clone();
    let ends = object::is_terminating(&value);
    let in_use = ends && is_in_use(transaction.base(), name, &ranges(&value));
    let (status, reason, message) = match ends {
        false => ("True", "", "Kubernetes Service CIDR is ready"),
        true if in_use => ("False", "Terminating", "There are still IPAddresses referencing the ServiceCIDR"),
        true => ("False", "Terminating", "Kubernetes Service CIDR is going away"),
    };
    let is_so = object::items(&value, &["status", "conditions"]).iter().any(|condition| {
        condition["type"] == "Ready" && condition["status"] == status && condition["message"] == message
    });
    if !is_so {
        let condition = json!({
            "type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": clock::now(),
        });
        object::child(&mut value, "status").insert("conditions".to_owned(), json!([condition]));
    }
    let metadata = object::metadata(&mut value);
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(finalizers) = finalizers.as_array_mut() {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if !ends || in_use {
            finalizers.push(FINALIZER.into());
        }
    }
    if metadata.get("finalizers") == Some(&json!([])) {
        metadata.remove("finalizers");
    }
    if handlers::is_finished(kind, &value) {
        transaction.delete(kind, value);
    } else if value != old.value {
        transaction.put(kind, value);
    }
    Ok(in_use)
}

/// Whether a Service has an address that these ranges have and no other does.
fn is_in_use(objects: &Objects, name: &str, of: &[IpNet]) -> bool {
    let others: Vec<IpNet> = objects
        .list(registry::known("ServiceCIDR"), None)
        .filter(|range| object::name(&range.value) != name && !object::is_terminating(&range.value))
        .flat_map(|range| ranges(&range.value))
        .collect();
    let has = |all: &[IpNet], address: IpAddr| all.iter().any(|range| range.contains(&address));
    let services = objects.list(registry::known("Service"), None);
    services.flat_map(|service| holdings(&service.value)).any(|holding| match holding {
        Holding::Address(address) => has(of, address) && !has(&others, address),
        Holding::Port(_) => false,
    })
}
