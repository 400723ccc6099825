//! Prints one line of JSON: how long after the API's event a name follows a pod's readiness, asked of each name server of a lab.
//!
//! `cargo run --release -p signpost-lab --example names_speed -- path/to/signpost [CHANGES]`. Needs root.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use hickory_proto::rr::RecordType;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use signpost_lab::scenario::lookup::{Lookup, look_up};
use signpost_lab::sockets::Sockets;
use signpost_lab::{Families, Lab, LabSpec, Place, cluster_dns};

/// Longer than that, something is wrong.
const LIMIT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = PathBuf::from(arguments.next().ok_or("usage: names_speed path/to/signpost [CHANGES]")?);
    let changes: usize = arguments.next().map_or(Ok(50), |text| text.parse())?;
    let mut spec = LabSpec::new("names-speed", 2, program);
    spec.families = Families::Ipv4;
    spec.dns = true;
    let lab = Lab::start(spec).await?;
    let mut samples = Vec::new();
    let result = measure(&lab, changes, &mut samples).await;
    lab.stop().await?;
    result?;
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a few hundred samples"
        )]
        let index = ((samples.len() - 1) as f64 * part) as usize;
        (samples[index] * 100.0).round() / 100.0
    };
    let figures = json!({"bench": "dns_readiness", "changes": changes, "event_to_answer_ms": {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)}});
    println!("{figures}");
    Ok(())
}

async fn measure(lab: &Lab, changes: usize, samples: &mut Vec<f64>) -> Result<(), Box<dyn Error>> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), "default");
    let services: Api<Service> = Api::namespaced(lab.client(), "default");
    let service = json!({"metadata": {"name": "db"}, "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 80}]}});
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let pod = json!({
        "metadata": {"name": "db-1", "labels": {"app": "db"}, "annotations": {"lab.signpost.dev/light": "true"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "echo", "image": "signpost/echo", "args": ["tcp/80"]}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    lab.settle().await?;
    let servers = name_servers(lab).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(lab.client(), "default");
    let of_db = "kubernetes.io/service-name=db";
    for change in 0..changes {
        let ready = change % 2 == 1;
        let version = slices.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        let mut events = slices.watch(&WatchParams::default().labels(of_db), &version).await?.boxed();
        let patch = json!({"metadata": {"annotations": {"lab.signpost.dev/ready": ready.to_string()}}});
        pods.patch("db-1", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        while let Some(event) = events.try_next().await? {
            if let WatchEvent::Modified(slice) = event
                && slice
                    .endpoints
                    .iter()
                    .flatten()
                    .all(|one| one.conditions.as_ref().and_then(|of| of.ready) == Some(ready))
            {
                break;
            }
        }
        let began = Instant::now();
        for server in &servers {
            until_right(lab, *server, ready, began).await?;
            samples.push(began.elapsed().as_secs_f64() * 1000.0);
        }
    }
    Ok(())
}

async fn name_servers(lab: &Lab) -> Result<Vec<SocketAddr>, Box<dyn Error>> {
    let pods: Api<Pod> = Api::namespaced(lab.client(), cluster_dns::NAMESPACE);
    let found = pods.list(&ListParams::default().labels("k8s-app=kube-dns")).await?;
    let addresses = found.items.into_iter().filter_map(|pod| pod.status?.pod_ip?.parse().ok());
    Ok(addresses.map(|address| SocketAddr::new(address, 53)).collect())
}

async fn until_right(lab: &Lab, server: SocketAddr, ready: bool, began: Instant) -> Result<(), Box<dyn Error>> {
    let netns = lab.namespace_of(&Place::Pod("default".into(), "db-1".into()))?;
    let right = move || {
        let lookup = Lookup {
            name: "db.default.svc.cluster.local.".to_owned(),
            kind: RecordType::A,
            by_tcp: false,
            server,
            searches: Vec::new(),
            timeout: Duration::from_secs(1),
        };
        let sockets = Sockets::of_netns(netns);
        while began.elapsed() < LIMIT {
            match look_up(&sockets, &lookup) {
                Ok(found) if found.answers.is_empty() != ready => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("{server} does not follow within {LIMIT:?}"))
    };
    Ok(tokio::task::spawn_blocking(right).await??)
}
