//! The Leases of the lab's nodes, by which a cluster knows that a node's kubelet lives.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// Where nodes have their Leases.
const NAMESPACE: &str = "kube-node-lease";
/// How long a node is believed to live without another word.
const SECONDS: i32 = 40;
/// How often a Lease is renewed, as kubelets do.
const EVERY: Duration = Duration::from_secs(10);

/// Makes and renews the Leases of nodes for ever.
pub async fn keep(client: Client, nodes: Vec<String>) {
    loop {
        if let Err(error) = renew(&client, &nodes).await {
            tracing::debug!(%error, "leases not renewed");
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn renew(client: &Client, nodes: &[String]) -> kube::Result<()> {
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    for node in nodes {
        let now = MicroTime(Timestamp::now());
        let patch = json!({"spec": {"renewTime": now}});
        match api.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => create(&api, node, now).await?,
            other => drop(other?),
        }
    }
    Ok(())
}

async fn create(api: &Api<Lease>, node: &str, now: MicroTime) -> kube::Result<()> {
    let lease = Lease {
        metadata: ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(SECONDS),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    api.create(&PostParams::default(), &lease).await.map(drop)
}
