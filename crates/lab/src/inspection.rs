//! A lab's places as doctor and trace enter them: from the lab's own process, or from another one of root.

use std::collections::BTreeMap;

use signpost_diagnose::collect::{Enter, Find, Reach};

use crate::control::{self, Answer, Question};
use crate::error::LabError;
use crate::netns::Netns;
use crate::spec::Place;
use crate::state::Record;
use crate::topology::Topology;

/// So many places are asked for at once: a question has a longest length.
const PLACES: usize = 500;

/// From inside of the lab's process: the places as they are now.
pub fn of_places(record: &Record, nodes: BTreeMap<String, Netns>, pods: BTreeMap<String, Netns>) -> Reach {
    let find = |places: BTreeMap<String, Netns>| -> Find {
        Box::new(move |names| {
            let found = names.iter().filter_map(|name| Some((name.clone(), enter(places.get(name)?.clone()))));
            found.collect()
        })
    };
    reach(record, find(nodes), find(pods))
}

/// From another process: the lab is asked where its namespaces are.
pub fn of_record(record: &Record) -> Reach {
    let find = |place: fn(&str) -> Place| -> Find {
        let lab = record.name.clone();
        Box::new(move |names| {
            let mut found = BTreeMap::new();
            for names in names.chunks(PLACES) {
                match paths(&lab, names.iter().map(|name| place(name)).collect()) {
                    Ok(paths) => {
                        let opened = names.iter().zip(paths).filter_map(|(name, path)| {
                            // A pod may have gone since.
                            Some((name.clone(), enter(Netns::open(&path?).ok()?)))
                        });
                        found.extend(opened);
                    }
                    Err(error) => {
                        let why = error.to_string();
                        let refuse = |name: &String| {
                            let why = why.clone();
                            (name.clone(), Box::new(move || Err(why.clone())) as Enter)
                        };
                        found.extend(names.iter().map(refuse));
                    }
                }
            }
            found
        })
    };
    reach(record, find(node), find(pod))
}

fn node(name: &str) -> Place {
    Place::Node(name.to_owned())
}

/// Of `namespace/name`.
fn pod(name: &str) -> Place {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    Place::Pod(namespace.to_owned(), name.to_owned())
}

fn paths(lab: &str, places: Vec<Place>) -> Result<Vec<Option<std::path::PathBuf>>, LabError> {
    match control::ask(lab, &Question::Namespaces(places))? {
        Answer::Namespaces(paths) => Ok(paths),
        // A lab of another version does not know the question.
        _ => Ok(Vec::new()),
    }
}

fn enter(netns: Netns) -> Enter {
    Box::new(move || netns.enter().map_err(|error| error.to_string()))
}

fn reach(record: &Record, nodes: Find, pods: Find) -> Reach {
    let count = u8::try_from(record.nodes.len()).unwrap_or(u8::MAX);
    let topology = Topology { families: record.families, nodes: count };
    Reach {
        nodes,
        pods,
        lab: true,
        origin: format!("lab {}", record.name),
        outside: record.outside.clone(),
        others: topology.api().into_iter().collect(),
        routes: BTreeMap::new(),
    }
}
