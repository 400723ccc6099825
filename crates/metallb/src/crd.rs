//! Pure. The CustomResourceDefinitions of all kinds, for a cluster whose API server does not know them by itself.

use serde_json::{Map, Value, json};

use crate::kind::Column;
use crate::schema::{SERVED, Served, definitions};

const REFERENCE: &str = "#/components/schemas/";

/// One CustomResourceDefinition per kind.
pub fn crds() -> Vec<Value> {
    let definitions = definitions();
    SERVED.iter().map(|served| crd(served, &definitions)).collect()
}

fn crd(served: &Served, definitions: &Map<String, Value>) -> Value {
    let group: Vec<&str> = served.group.split('.').rev().collect();
    let name = format!("{}.{}.{}", group.join("."), served.version, served.kind);
    let mut schema = definitions.get(&name).cloned().unwrap_or_default();
    // The API server knows metadata itself.
    schema["properties"]["metadata"] = json!({"type": "object"});
    inline(&mut schema, definitions);
    let columns: Vec<Value> = served.columns.iter().map(column).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", served.plural, served.group)},
        "spec": {
            "group": served.group,
            "scope": "Namespaced",
            "names": {
                "kind": served.kind,
                "listKind": format!("{}List", served.kind),
                "plural": served.plural,
                "singular": served.kind.to_lowercase(),
            },
            "versions": [{
                "name": served.version,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
            }],
        },
    })
}

fn column(column: &Column) -> Value {
    let path = format!(".{}", column.path.join("."));
    json!({"name": column.name, "type": column.kind, "jsonPath": path, "priority": if column.wide { 10 } else { 0 }})
}

/// Puts definitions in the place of references: a CRD's schema has none. No kind refers to itself.
fn inline(schema: &mut Value, definitions: &Map<String, Value>) {
    match schema {
        Value::Object(fields) => {
            let target = fields.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(REFERENCE));
            if let Some(Value::Object(definition)) = target.and_then(|name| definitions.get(name)).cloned() {
                fields.remove("$ref");
                for (key, value) in definition {
                    fields.entry(key).or_insert(value);
                }
            }
            fields.values_mut().for_each(|value| inline(value, definitions));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| inline(value, definitions)),
        _ => {}
    }
}
