//! Pure. A pod's volumes: each has a name of its own and one source.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::error::{Cause, Problem};
use crate::names;
use crate::object::{self, set_default};

/// Files are readable for all and writable for their owner where nothing else is said.
const FILE_MODE: i64 = 0o644;

/// A volume without a source is an empty folder; files have a mode.
pub fn defaults(spec: &mut Map<String, Value>) {
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        let volume = object::fields(volume);
        if volume.keys().all(|key| key == "name") {
            volume.insert("emptyDir".to_owned(), json!({}));
        }
        for source in ["configMap", "downwardAPI", "projected", "secret"] {
            if let Some(source) = volume.get_mut(source) {
                set_default(object::fields(source), "defaultMode", FILE_MODE);
            }
        }
        if let Some(host_path) = volume.get_mut("hostPath") {
            set_default(object::fields(host_path), "type", "");
        }
    }
}

/// What is wrong with the volumes of a specification at a path.
pub fn validate(spec: &Value, path: &str) -> Vec<Cause> {
    let (mut causes, mut seen) = (Vec::new(), BTreeSet::new());
    for (index, volume) in object::items(spec, &["volumes"]).iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        let name = object::text(volume, &["name"]).unwrap_or("");
        if name.is_empty() {
            causes.push(Cause::required(format!("{path}.name"), ""));
        } else if let Some(problem) = names::label_problem(name) {
            causes.push(Cause::invalid(format!("{path}.name"), name, problem));
        } else if !seen.insert(name) {
            causes.push(Cause::new(format!("{path}.name"), Problem::Duplicate(name.into())));
        }
        let mut sources = sources(volume).into_iter();
        if sources.next().is_none() {
            causes.push(Cause::required(path.as_str(), "must specify a volume type"));
        }
        let more = "may not specify more than 1 volume type";
        causes.extend(sources.map(|source| Cause::forbidden(format!("{path}.{source}"), more)));
        source_problems(volume, &path, &mut causes);
    }
    causes
}

/// The sources that a volume names, in the order in which the real server looks at them.
fn sources(volume: &Value) -> Vec<&str> {
    const FIRST: [&str; 2] = ["emptyDir", "hostPath"];
    let named: Vec<&str> = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    let first = FIRST.into_iter().filter(|source| named.contains(source));
    first.chain(named.iter().copied().filter(|key| *key != "name" && !FIRST.contains(key))).collect()
}

fn source_problems(volume: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (source, key) in [("hostPath", "path"), ("secret", "secretName"), ("configMap", "name"), ("nfs", "server")] {
        let named =
            volume.get(source).is_none_or(|source| object::text(source, &[key]).is_some_and(|it| !it.is_empty()));
        if !named {
            causes.push(Cause::required(format!("{path}.{source}.{key}"), ""));
        }
    }
}
