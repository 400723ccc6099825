//! Reads what a snapshot is made of: the API, each node, each pod. It changes nothing and sends nothing but questions to the
//! API and to node daemons.
//!
//! ```text
//! kube client ─▶ api ─▶ Listed ─┐
//! Reach.nodes ─▶ node ──────────┼─▶ Snapshot
//! Reach.pods ──▶ sockets ───────┘
//! ```
//!
//! How a place is reached is the caller's: a function that moves the calling thread into its network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::Value;

use crate::listed::Listed;
use crate::network::Listener;
use crate::planned::plan_anew;
use crate::snapshot::{API_VERSION, KIND, NodeState, PodState, Snapshot, Unknown};

pub mod api;
mod daemon;
mod flows;
mod host;
mod node;
mod rules;

/// Moves the calling thread into a place; says why it cannot.
pub type Enter = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Finds the ways into places of these names; those that cannot be entered are left out.
pub type Find = Box<dyn Fn(&[String]) -> BTreeMap<String, Enter> + Send + Sync>;

/// The places that can be looked at.
pub struct Reach {
    /// Nodes, by name.
    pub nodes: Find,
    /// Pods in networks of their own, by `namespace/name`.
    pub pods: Find,
    /// Whether it is a lab.
    pub lab: bool,
    /// `lab NAME`, or the API's address.
    pub origin: String,
    /// The addresses of a client outside.
    pub outside: Vec<IpAddr>,
    /// What else listens on the nodes' network.
    pub others: BTreeSet<SocketAddr>,
    /// Addresses on no interface that the router sends to a node, by its name.
    pub routes: BTreeMap<IpAddr, String>,
}

/// A difference may be a change on its way: it counts if it is there again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// So often it is looked.
const LOOKS: usize = 4;

/// What a node tells of itself, of the network namespace that the calling thread is in: no API and no daemon is asked, and
/// the rules of Services are not read.
pub fn glance() -> NodeState {
    node::glance()
}

/// Takes a snapshot. `list` gives the API's objects, and what of them could not be read, each time it is called.
pub fn snapshot(reach: &Reach, mut list: impl FnMut() -> (Listed, Vec<Unknown>)) -> Snapshot {
    let mut looks = 0;
    loop {
        let (objects, unknown) = list();
        let names: Vec<String> = objects.nodes.iter().filter_map(crate::listed::name).map(str::to_owned).collect();
        let nodes = nodes(&(reach.nodes)(&names), &objects);
        looks += 1;
        let differs = nodes.values().any(NodeState::differs);
        if !differs || looks == LOOKS {
            return Snapshot {
                api_version: API_VERSION.to_owned(),
                kind: KIND.to_owned(),
                taken_at: k8s_openapi::jiff::Timestamp::now().to_string(),
                looks,
                taken_by: env!("CARGO_PKG_VERSION").to_owned(),
                origin: reach.origin.clone(),
                lab: reach.lab,
                unknown,
                nodes,
                pods: pods(&(reach.pods)(&own_network(&objects))),
                outside: reach.outside.clone(),
                others: reach.others.clone(),
                routes: reach.routes.clone(),
                objects,
            };
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Every node, reached or not.
fn nodes(ways_in: &BTreeMap<String, Enter>, objects: &Listed) -> BTreeMap<String, NodeState> {
    let mut states: BTreeMap<String, NodeState> = std::thread::scope(|scope| {
        let looks: Vec<_> = ways_in
            .iter()
            .map(|(name, enter)| (name.clone(), scope.spawn(|| enter().map(|()| node::look()))))
            .collect();
        let state = |look: std::thread::ScopedJoinHandle<'_, Result<NodeState, String>>| match look.join() {
            Ok(Ok(state)) => state,
            Ok(Err(why)) => unreached(why),
            Err(_) => unreached("looking at it broke off".to_owned()),
        };
        looks.into_iter().map(|(name, look)| (name, state(look))).collect()
    });
    for name in objects.nodes.iter().filter_map(crate::listed::name) {
        states.entry(name.to_owned()).or_insert_with(|| {
            unreached("this program does not run on it; what its kernel holds is not known from here".to_owned())
        });
    }
    compare(ways_in, objects, &mut states);
    states
}

fn unreached(why: String) -> NodeState {
    NodeState { unreached: Some(why), ..NodeState::default() }
}

/// Compares the kernel of each node that was reached with what it should hold: by its daemon, or, if that is silent, by
/// the objects.
fn compare(ways_in: &BTreeMap<String, Enter>, objects: &Listed, states: &mut BTreeMap<String, NodeState>) {
    plan_anew(objects, states);
    for (name, state) in states.iter_mut().filter(|(_, state)| state.unreached.is_none()) {
        let Some(enter) = ways_in.get(name) else { continue };
        let compared = std::thread::scope(|scope| {
            let work = scope.spawn(|| enter().map(|()| rules::compare(state)));
            work.join().unwrap_or_else(|_| Err("reading its rules broke off".to_owned()))
        });
        match compared {
            Ok((kernel, unknown)) => {
                state.kernel = kernel;
                state.unknown.extend(unknown);
            }
            Err(why) => state.unknown.push(Unknown { what: "the kernel's rules".to_owned(), why }),
        }
    }
}

/// The living pods with a network of their own.
fn own_network(objects: &Listed) -> Vec<String> {
    let text = |pod: &Value, pointer: &str| pod.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let lives = |pod: &&Value| {
        !matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
            && pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) != Some(true)
            && pod.pointer("/status/podIP").is_some()
    };
    let name = |pod: &Value| Some(format!("{}/{}", text(pod, "/metadata/namespace")?, text(pod, "/metadata/name")?));
    objects.pods.iter().filter(lives).filter_map(name).collect()
}

fn pods(ways_in: &BTreeMap<String, Enter>) -> BTreeMap<String, PodState> {
    // One thread for all: it is in one pod after the other.
    std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            let state = |enter: &Enter| match enter() {
                Ok(()) => PodState { unreached: None, listeners: host::listeners() },
                Err(why) => PodState { unreached: Some(why), listeners: BTreeSet::<Listener>::new() },
            };
            ways_in.iter().map(|(name, enter)| (name.clone(), state(enter))).collect()
        });
        look.join().unwrap_or_default()
    })
}
