//! Pure. Rows of kinds that on a real cluster are custom resources: a field per column, as their definition names them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::Value;
use signpost_metallb::schema::{SERVED, Served};

use super::{AGE, Column, NAME, words};
use crate::object;

/// The name, then the columns of the definition; without any, the age.
pub fn columns(kind: &str) -> &'static [Column] {
    static COLUMNS: LazyLock<BTreeMap<&str, Vec<Column>>> =
        LazyLock::new(|| SERVED.iter().map(|served| (served.kind, shown(served))).collect());
    COLUMNS.get(kind).map_or(&[], Vec::as_slice)
}

fn shown(served: &Served) -> Vec<Column> {
    let own = served.columns.iter().map(|column| Column {
        name: column.name,
        kind: column.kind,
        format: "",
        wide: column.wide,
    });
    let age = served.columns.is_empty().then_some(AGE);
    [NAME].into_iter().chain(own).chain(age).collect()
}

pub fn cells(kind: &str, value: &Value, now: Timestamp) -> Vec<Value> {
    let Some(served) = SERVED.iter().find(|served| served.kind == kind) else { return Vec::new() };
    let own = served.columns.iter().map(|column| match object::at(value, column.path) {
        Some(Value::String(time)) if column.kind == "date" => words::since(Some(time), now).into(),
        Some(text @ Value::String(_)) => text.clone(),
        // The real server prints lists and objects as JSON.
        Some(other) if column.kind == "string" => other.to_string().into(),
        Some(other) => other.clone(),
        None if column.kind == "string" => "".into(),
        None => Value::Null,
    });
    let age = served.columns.is_empty().then(|| words::age(value, now));
    [object::name(value).into()].into_iter().chain(own).chain(age).collect()
}
