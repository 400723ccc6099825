//! Pure. Rows of workloads.

use jiff::Timestamp;
use serde_json::Value;

use super::words::{age, containers, selector};
use super::{AGE, Column, NAME, count, shown, wide};
use crate::object;

pub const DEPLOYMENT: &[Column] = &[
    NAME,
    shown("Ready"),
    count("Up-to-date"),
    count("Available"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
pub const REPLICA_SET: &[Column] = &[
    NAME,
    count("Desired"),
    count("Current"),
    count("Ready"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
pub const STATEFUL_SET: &[Column] = &[NAME, shown("Ready"), AGE, wide("Containers"), wide("Images")];

fn status(workload: &Value, key: &str) -> i64 {
    object::number(workload, &["status", key]).unwrap_or(0)
}

fn desired(workload: &Value) -> i64 {
    object::number(workload, &["spec", "replicas"]).unwrap_or(0)
}

fn wide_cells(workload: &Value) -> [Value; 3] {
    let (names, images) = containers(workload);
    [names.into(), images.into(), selector(object::at(workload, &["spec", "selector"])).into()]
}

pub fn deployment(deployment: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![
        object::name(deployment).into(),
        format!("{}/{}", status(deployment, "readyReplicas"), desired(deployment)).into(),
        status(deployment, "updatedReplicas").into(),
        status(deployment, "availableReplicas").into(),
        age(deployment, now),
    ];
    cells.extend(wide_cells(deployment));
    cells
}

pub fn replica_set(set: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![
        object::name(set).into(),
        desired(set).into(),
        status(set, "replicas").into(),
        status(set, "readyReplicas").into(),
        age(set, now),
    ];
    cells.extend(wide_cells(set));
    cells
}

pub fn stateful_set(set: &Value, now: Timestamp) -> Vec<Value> {
    let ready = format!("{}/{}", status(set, "readyReplicas"), desired(set));
    let [names, images, _] = wide_cells(set);
    vec![object::name(set).into(), ready.into(), age(set, now), names, images]
}
