//! The objects that every cluster has. Made at each start if they are not there.

use serde_json::{Value, json};

use crate::admission;
use crate::error::ApiError;
use crate::registry;
use crate::server::ApiServer;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes what is missing.
///
/// # Errors
/// When the store can't take it.
pub async fn run(server: &ApiServer) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let namespace = json!({"metadata": {"name": name}});
        ensure(server, "Namespace", "", name, namespace).await?;
    }
    Ok(())
}

async fn ensure(
    server: &ApiServer,
    kind: &'static str,
    namespace: &str,
    name: &str,
    mut object: Value,
) -> Result<(), ApiError> {
    let kind = registry::known(kind);
    server
        .store
        .write(|transaction| {
            if transaction.get(kind, namespace, name).is_none() {
                admission::create(transaction, kind, namespace, &mut object)?;
                transaction.put(kind, object);
            }
            Ok(())
        })
        .await
}
