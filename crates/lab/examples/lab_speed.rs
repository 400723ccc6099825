//! Times whole labs and prints one line of JSON: how long a lab of two nodes takes, and what a node daemon needs at a size.
//!
//! `cargo run --release -p signpost-lab --example lab_speed -- path/to/signpost [SERVICES [ENDPOINTS]]`. Needs root.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use signpost_lab::{Lab, LabSpec};

/// Labs that are started and stopped to time one.
const LABS: usize = 7;
/// Changes of one endpoint that are timed at the full size.
const CHANGES: usize = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = PathBuf::from(arguments.next().ok_or("usage: lab_speed path/to/signpost [SERVICES [ENDPOINTS]]")?);
    let services: usize = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let endpoints: usize = arguments.next().map_or(Ok(10), |text| text.parse())?;

    let up_s = lab_up_s(&program).await?;
    let size = at_size(&program, services, endpoints).await?;
    println!("{}", json!({ "bench": "lab", "labs": LABS, "lab_of_2_nodes_up_s": up_s, "at_size": size }));
    Ok(())
}

/// Minimum, median and maximum.
fn spread(mut samples: Vec<f64>) -> serde_json::Value {
    samples.sort_by(f64::total_cmp);
    let round = |value: f64| (value * 10_000.0).round() / 10_000.0;
    json!({ "min": round(samples[0]), "median": round(samples[samples.len() / 2]), "max": round(samples[samples.len() - 1]) })
}

async fn lab_up_s(program: &std::path::Path) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut samples = Vec::new();
    for _ in 0..LABS {
        let started = Instant::now();
        let lab = Lab::start(LabSpec::new("speed", 2, program.to_owned())).await?;
        lab.settle().await?;
        samples.push(started.elapsed().as_secs_f64());
        lab.stop().await?;
    }
    Ok(spread(samples))
}

/// One node daemon that serves so many Services: memory, and the time from a changed slice to the kernel.
async fn at_size(
    program: &std::path::Path,
    services: usize,
    endpoints: usize,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let lab = Lab::start(LabSpec::new("speed", 1, program.to_owned())).await?;
    let (service_api, slice_api) = (
        Api::<Service>::namespaced(lab.client(), "default"),
        Api::<EndpointSlice>::namespaced(lab.client(), "default"),
    );
    let started = Instant::now();
    stream::iter(0..services)
        .map(Ok::<_, Box<dyn Error>>)
        .try_for_each_concurrent(64, |number| {
            let (service_api, slice_api) = (service_api.clone(), slice_api.clone());
            async move {
                service_api.create(&PostParams::default(), &service(number)?).await?;
                slice_api.create(&PostParams::default(), &slice(number, endpoints, 0)?).await?;
                Ok(())
            }
        })
        .await?;
    let created_s = started.elapsed().as_secs_f64();
    let daemon = lab.daemon("n1")?;
    wait_programmed(&lab).await?;

    // A daemon that starts at this size: list, plan, adopt.
    daemon.stop().await?;
    let started = Instant::now();
    daemon.start().await?;
    wait_programmed(&lab).await?;
    let restart_s = started.elapsed().as_secs_f64();

    let mut change_ms = Vec::new();
    for round in 0..CHANGES {
        let number = (round * 331) % services;
        let current = slice_api.get(&format!("s{number}-hand")).await?;
        let mut changed = slice(number, endpoints, 1 + round)?;
        changed.metadata.resource_version = current.metadata.resource_version;
        let started = Instant::now();
        slice_api.replace(&format!("s{number}-hand"), &PostParams::default(), &changed).await?;
        wait_programmed(&lab).await?;
        change_ms.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    let pid = daemon.pid().await.ok_or("the daemon is not running")?;
    let memory = memory_mb(pid)?;
    lab.stop().await?;
    Ok(json!({
        "services": services, "endpoints_each": endpoints,
        "objects_created_s": (created_s * 100.0).round() / 100.0,
        "daemon_restart_to_programmed_s": (restart_s * 100.0).round() / 100.0,
        "one_endpoint_api_to_kernel_ms": spread(change_ms),
        "node_daemon_rss_mb": memory.0, "node_daemon_peak_rss_mb": memory.1,
    }))
}

/// Until the node's daemon has the last Service and slice in its kernel, looked at every millisecond.
async fn wait_programmed(lab: &Lab) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        let programmed = lab.daemon("n1")?.programmed().await?;
        let is_done = programmed.is_some_and(|programmed| {
            ["Service", "EndpointSlice"]
                .iter()
                .all(|kind| programmed.get(*kind).is_some_and(|revision| *revision >= lab.api().revision(kind)))
        });
        if is_done {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err("the node daemon did not program everything within 180 s".into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn service(number: usize) -> Result<Service, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": { "name": format!("s{number}") },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    }))
}

/// A hand-made slice whose first endpoint moves with `round`.
fn slice(number: usize, endpoints: usize, round: usize) -> Result<EndpointSlice, serde_json::Error> {
    let address = |at: usize| {
        let offset = number * endpoints + at + if at == 0 { 200_000 + round * 7 } else { 0 };
        format!("10.{}.{}.{}", 128 + offset / 62_500, (offset / 250) % 250, 1 + offset % 250)
    };
    serde_json::from_value(json!({
        "metadata": { "name": format!("s{number}-hand"), "labels": { "kubernetes.io/service-name": format!("s{number}") } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
        "endpoints": (0..endpoints).map(|at| json!({ "addresses": [address(at)], "conditions": { "ready": true } })).collect::<Vec<_>>(),
    }))
}

/// Resident memory now and at its peak, in MB of 10^6 bytes.
fn memory_mb(pid: u32) -> Result<(u64, u64), Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<u64, Box<dyn Error>> {
        let line = status.lines().find(|line| line.starts_with(name)).ok_or("no such line in /proc/PID/status")?;
        let kilobytes: u64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
        Ok(kilobytes * 1_024 / 1_000_000)
    };
    Ok((field("VmRSS")?, field("VmHWM")?))
}
