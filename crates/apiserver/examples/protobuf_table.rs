//! Writes `src/content/protobuf/fields.txt` anew: the field numbers of our kinds' protobuf messages.
//!
//! ```text
//! cargo run -p signpost-apiserver --example protobuf_table -- K8S_PB_SOURCE > crates/apiserver/src/content/protobuf/fields.txt
//! ```
//!
//! K8S_PB_SOURCE is the folder `src` of the crate `k8s-pb` 0.9, as cargo unpacks it. The numbers are
//! read there; the JSON names come from the schemas, so that no rule for `clusterIP` and its like is needed.

use regex::Regex;
use signpost_apiserver::content::schema::{Struct, schemas};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Field numbers of the protobuf messages of our kinds (Kubernetes 1.36), written by examples/protobuf_table.rs.
# A line without indent names a message; the lines below it its fields: number and JSON name, or number and \"*\" with the
# message whose fields stand in the outer object.";

/// Fields of Kubernetes 1.36 that k8s-pb 0.9 does not have yet, from its `generated.proto` files.
const NEWER: &[(&str, &[&str])] = &[
    ("io.k8s.api.core.v1.ImageVolumeStatus", &["1 imageRef"]),
    ("io.k8s.api.core.v1.NodeAllocatableResourceClaimStatus", &["1 resourceClaimName", "2 containers"]),
    ("io.k8s.api.core.v1.PodSchedulingGroup", &["1 podGroupName"]),
    ("io.k8s.api.core.v1.PodSpec", &["43 schedulingGroup"]),
    ("io.k8s.api.core.v1.PodStatus", &["21 nodeAllocatableResourceClaimStatuses"]),
    ("io.k8s.api.core.v1.ResourceHealth", &["6 message"]),
    ("io.k8s.api.core.v1.VolumeMountStatus", &["5 volumeStatus"]),
    ("io.k8s.api.core.v1.VolumeStatus", &["1 image"]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta", &["5 shardInfo"]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ShardInfo", &["1 selector"]),
];

/// Messages of one file: name in small letters to fields.
type Messages = HashMap<String, Vec<Field>>;

#[derive(Clone)]
struct Field {
    number: u32,
    name: String,
    rust_type: String,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = PathBuf::from(std::env::args().nth(1).ok_or("usage: protobuf_table K8S_PB_SOURCE")?);
    let mut files: HashMap<PathBuf, Messages> = HashMap::new();
    let mut table: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for structure in schemas().structs() {
        let (package, message) = structure.name.rsplit_once('.').ok_or("a name without package")?;
        let file = source.join(package.trim_start_matches("io.k8s.").replace('.', "/")).join("mod.rs");
        if !files.contains_key(&file) {
            files.insert(file.clone(), read(&file)?);
        }
        write(&mut table, &files[&file], structure, package, message)?;
    }
    for (message, rows) in NEWER {
        table.entry((*message).into()).or_default().extend(rows.iter().map(|row| (*row).to_owned()));
    }
    println!("{HEAD}");
    for (message, rows) in table.iter().filter(|(_, rows)| !rows.is_empty()) {
        println!("{message}");
        rows.iter().for_each(|row| println!(" {row}"));
    }
    Ok(())
}

fn flat(name: &str) -> String {
    name.trim_start_matches("r#").replace('_', "").to_lowercase()
}

fn read(file: &Path) -> Result<Messages, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let field = Regex::new(r#"(?s)#\[prost\([^\]]*?tag = "(\d+)",?\s*\)\]\s*pub ([\w#]+):\s*(.*?),\n"#)?;
    let structures = text.split("pub struct ").skip(1);
    Ok(structures
        .map(|structure| {
            let name = structure.split_once(' ').map_or("", |(name, _)| name);
            let fields = field.captures_iter(structure).map(|found| Field {
                number: found[1].parse().unwrap_or_default(),
                name: found[2].into(),
                rust_type: found[3].split_whitespace().collect(),
            });
            (flat(name), fields.collect())
        })
        .collect())
}

/// Writes a message, and those whose fields stand in it. `structure` is what JSON sees.
fn write(
    table: &mut BTreeMap<String, Vec<String>>,
    messages: &Messages,
    structure: &Struct,
    package: &str,
    message: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let Some(fields) = messages.get(&flat(message)) else {
        eprintln!("no message {package}.{message}");
        return Ok(());
    };
    let mut rows = vec![];
    for field in fields {
        let json = structure.fields.keys().find(|name| flat(name) == flat(&field.name));
        if let Some(json) = json {
            rows.push(format!("{} {json}", field.number));
            continue;
        }
        let inner = field.rust_type.rsplit_once("Option<").map_or("", |(_, inner)| inner).trim_end_matches('>');
        if !messages.contains_key(&flat(inner)) {
            eprintln!("{package}.{message}: {} has no JSON field", field.name);
            continue;
        }
        write(table, messages, structure, package, inner)?;
        let inner = format!("{package}.{inner}");
        // A message of which JSON sees nothing belongs to another version.
        if table.get(&inner).is_some_and(|rows| !rows.is_empty()) {
            rows.push(format!("{} *{inner}", field.number));
        }
    }
    let rows_before = table.entry(format!("{package}.{message}")).or_default();
    // A message that stands alone as well as within others: what JSON sees alone is the whole.
    if rows.len() > rows_before.len() {
        *rows_before = rows;
    }
    Ok(())
}
