//! Pods whose sockets are left alone in the mode eBPF: they said so by annotation, on themselves or on their namespace. What they
//! send to Services is rewritten as packets then.
//!
//! ```text
//! Pods of this node, Namespaces ─▶ wishes ─▶ uids ─▶ control groups ─▶ network namespaces ─▶ the kernel's map left_out
//!                                     └▶ pods that look as if they should have said so: log, Event
//! ```

mod wishes;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use signpost_cluster::ObjectReference;
use signpost_cluster::events::{Notice, Reporter};
use signpost_cluster::watch::{Told, Watches};
use signpost_core::object::ObjectName;
use signpost_datapath::ebpf::{KernelError, Node, pods};
use tracing::{info, warn};

use crate::announce::known::Table;
use wishes::{PodWish, SOCKETS, Wish};

/// How soon it is looked again for the network of a pod that begins, and for one that has a new one.
const AGAIN: Duration = Duration::from_secs(2);

#[allow(clippy::large_enum_variant)] // each is moved once, from a queue into a table
enum Word {
    Pod(Told<Pod>),
    Namespace(Told<Namespace>),
}

#[derive(Default)]
struct Known {
    pods: Table<PodWish>,
    namespaces: Table<Wish>,
}

impl Known {
    fn hear(&mut self, word: Word) {
        match word {
            Word::Pod(told) => self.pods.hear(told, |pod| Some(wishes::of_pod(&pod))),
            Word::Namespace(told) => {
                self.namespaces.hear(told, |namespace| wishes::of_annotations(&namespace.metadata))
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.pods.is_synced() && self.namespaces.is_synced()
    }

    fn is_left_out(&self, pod: &PodWish) -> bool {
        let of_namespace = || self.namespaces.get(&ObjectName::new("", &pod.namespace)).map(|wish| **wish);
        let wish = pod.wish.or_else(of_namespace);
        wish == Some(Wish::Leave) && !pod.on_host_network
    }

    fn left_out(&self) -> BTreeSet<String> {
        self.pods.all().filter(|pod| self.is_left_out(pod)).map(|pod| pod.uid.clone()).collect()
    }

    /// Those that work by the addresses which their sockets would not show any more, and did not ask to be left out.
    fn suspects(&self) -> impl Iterator<Item = (&Arc<PodWish>, &'static str)> {
        let suspects = self.pods.all().filter(|pod| pod.wish.is_none() && !self.is_left_out(pod));
        suspects.filter_map(|pod| Some((pod, pod.works_by_address?)))
    }
}

/// Follows the wishes until it is dropped. `cgroup`: the node's control group.
pub async fn follow(client: Client, server: String, name: Arc<str>, node: Node, cgroup: PathBuf, reporter: Reporter) {
    let mut watches = Watches::new(client, &server);
    watches.add_optional("Pod", Some(format!("spec.nodeName={name}")), |told| vec![Word::Pod(told)]);
    watches.add_optional("Namespace", None, |told| vec![Word::Namespace(told)]);
    let mut words = watches.into_stream();
    let mut ticks = tokio::time::interval(AGAIN);
    let (mut known, mut told, mut before) = (Known::default(), BTreeSet::new(), None);
    loop {
        let again = before.as_ref().is_none_or(|uids: &BTreeSet<String>| !uids.is_empty());
        tokio::select! {
            word = words.next() => match word {
                Some(word) => known.hear(word),
                None => return,
            },
            _ = ticks.tick(), if again => {}
        }
        while let Some(Some(word)) = words.next().now_or_never() {
            known.hear(word);
        }
        if !known.is_whole() {
            continue;
        }
        for (pod, what) in known.suspects() {
            if !told.contains(&pod.uid) && reporter.report(notice(pod, what)) {
                told.insert(pod.uid.clone());
                warn!(pod = %pod.name, namespace = %pod.namespace, what, annotation = SOCKETS, "a pod works by addresses, and its sockets are rewritten");
            }
        }
        let uids = known.left_out();
        if before.as_ref() == Some(&uids) && uids.is_empty() {
            continue;
        }
        match leave_out(node.clone(), cgroup.clone(), uids.clone()).await {
            Ok(Some(networks)) => {
                if before.as_ref() != Some(&uids) {
                    info!(pods = uids.len(), networks, "the sockets of these pods are left alone");
                }
                before = Some(uids);
            }
            Ok(None) => {} // the programs are not loaded yet
            Err(error) => warn!(%error, "pods that ask for it are not left out"),
        }
    }
}

/// How many networks are left out now; `None`: it cannot be said to the kernel yet.
async fn leave_out(node: Node, cgroup: PathBuf, uids: BTreeSet<String>) -> Result<Option<usize>, KernelError> {
    let work = move || {
        let networks = pods::networks(&cgroup, &uids);
        node.kernel().leave_out(&networks).map(|done| done.then_some(networks.len()))
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn notice(pod: &PodWish, what: &str) -> Notice {
    let object = ObjectReference {
        api_version: "v1",
        kind: "Pod",
        namespace: pod.namespace.as_str().into(),
        name: pod.name.as_str().into(),
        uid: pod.uid.as_str().into(),
    };
    let message = format!(
        "{what} works by the addresses that a connection goes to, and the sockets of this pod are rewritten to backends before it sees \
         them; the annotation {SOCKETS}: leave, on the pod or its namespace, leaves them alone ({SOCKETS}: rewrite says that this is right)"
    );
    Notice { object, reason: "SocketsRewritten", message }
}
