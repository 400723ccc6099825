//! `signpost trace --measure`: asks the lab for its places and has the packet sent from there.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use signpost_diagnose::address::Source;
use signpost_diagnose::snapshot::Snapshot;
use signpost_diagnose::trace::Trace;
use signpost_diagnose::trace::measured::Measured;
use signpost_lab::control::{self, Answer, Conversation, Question};
use signpost_lab::measure::{place_of, places};
use signpost_lab::sockets::Sockets;
use signpost_lab::{Netns, Place};

/// Measures, and compares with what was computed.
///
/// # Errors
/// The lab, tcpdump or nft is missing.
pub(super) fn measure(lab: &str, snapshot: &Snapshot, from: &Source, computed: &Trace) -> anyhow::Result<Measured> {
    let spaces = namespaces(lab, &places(snapshot, from, computed))?;
    let sockets = sockets(lab, snapshot, from)?;
    Ok(signpost_lab::measure::measure(&spaces, &sockets, from, computed)?)
}

pub(super) fn namespaces(lab: &str, places: &BTreeMap<String, Place>) -> anyhow::Result<BTreeMap<String, Netns>> {
    let asked: Vec<Place> = places.values().cloned().collect();
    let Answer::Namespaces(paths) = control::ask(lab, &Question::Namespaces(asked))? else {
        bail!("the lab does not say where its namespaces are")
    };
    let opened = places.keys().zip(paths).filter_map(|(name, path)| Some((name.clone(), Netns::open(&path?).ok()?)));
    Ok(opened.collect())
}

/// Where a sender's sockets are made. The programs of the mode eBPF see what is made in the node's control group, so this
/// process joins it, and stays there until it ends or asks for another's.
pub(super) fn sockets(lab: &str, snapshot: &Snapshot, from: &Source) -> anyhow::Result<Sockets> {
    let place = place_of(from);
    let node = match from {
        Source::Node(node) => Some(node.clone()),
        Source::Outside => None,
        Source::Pod(pod) => snapshot.objects.pods.iter().find_map(|object| {
            let text = |pointer| object.pointer(pointer).and_then(serde_json::Value::as_str);
            let is_it =
                text("/metadata/namespace") == Some(&*pod.namespace) && text("/metadata/name") == Some(&*pod.name);
            is_it.then(|| text("/spec/nodeName").map(str::to_owned)).flatten()
        }),
    };
    let group = node.map_or(Place::Outside, Place::Node);
    let question = Question::Exec { place: group, container: None, command: vec!["true".to_owned()], terminal: None };
    let mut conversation = Conversation::begin(lab, &question, &[])?;
    let cgroup = loop {
        match conversation.answer()?.0 {
            Answer::Enter { cgroup, .. } => break cgroup,
            Answer::Heard | Answer::Waiting(_) => {}
            other => bail!("the lab answered {other:?}"),
        }
    };
    std::fs::write(cgroup.join("cgroup.procs"), "0").context("cannot join the node's control group")?;
    let spaces = namespaces(lab, &BTreeMap::from([(String::new(), place)]))?;
    let netns = spaces.into_values().next().with_context(|| format!("{from} has no network"))?;
    Ok(Sockets::of_netns(netns))
}
