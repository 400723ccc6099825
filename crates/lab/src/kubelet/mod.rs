//! The lab's kubelet, one for all nodes: takes up the pods that are bound to a node of the lab, runs them, shows their
//! status, lets them end.
//!
//! ```text
//!  API ─ feed ─▶ Kubelet ─▶ a worker per pod ─┬─ sandboxed: network, sandbox, containers, probes
//!   ▲                                         └─ light: network, echo servers in this process
//!   └──────────── status, events ◀────────────┘
//! ```
//!
//! **Light pods**, with the annotation `lab.signpost.dev/light: "true"`, are for scenarios: no process, no sandbox, only
//! a network namespace in which echo servers listen as the pod's containers of image `signpost/echo` say. The
//! annotations `lab.signpost.dev/ready: "false"` and `lab.signpost.dev/listening: "false"` switch their readiness and
//! their listening sockets, also later. A light pod that is deleted serves until the end of its grace period.

mod command;
mod container;
mod events;
mod feed;
mod hosts;
mod leases;
mod light;
mod logs;
mod mirror;
mod names;
mod pod;
mod probes;
mod recipe;
mod sandboxed;
mod sources;
mod status;
mod streams;
mod threshold;
mod volumes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use signpost_apiserver::pod_streams::{ContainerRef, PodStreamError, PodStreams};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::container::CurrentLog;
use self::feed::News;
use self::hosts::HostPool;
pub use self::names::searches;
pub use self::streams::Ending;
use crate::cgroup::Cgroup;
use crate::images::Images;
use crate::netns::Netns;
use crate::network::Network;
use crate::sandbox::{Sandbox, Start};
use crate::spawner::Spawner;

/// The annotation of light pods.
pub const LIGHT: &str = "lab.signpost.dev/light";
/// The annotation of pods that stand for what the lab runs itself; its value `daemon`: the node's daemon.
pub const MIRROR: &str = "lab.signpost.dev/mirror";
/// The annotation that switches a light pod's readiness.
pub const READY: &str = "lab.signpost.dev/ready";
/// The annotation that switches a light pod's listening sockets.
pub const LISTENING: &str = "lab.signpost.dev/listening";

/// What all pods need.
pub struct Context {
    /// To the API.
    pub client: kube::Client,
    /// The namespaces of nodes.
    pub network: Arc<Network>,
    /// Starts processes.
    pub spawner: Spawner,
    /// What images mean.
    pub images: Images,
    /// The signpost binary.
    pub program: PathBuf,
    /// The lab's state directory.
    pub state: PathBuf,
    /// The lab's control group.
    pub cgroup: Cgroup,
    /// The nodes' names; the first is node 1.
    pub nodes: Vec<String>,
    /// The cluster's name service.
    pub dns: Option<IpAddr>,
    /// The cluster address of the Service `kubernetes`.
    pub kubernetes: Option<IpAddr>,
    /// The addresses that are given out, by node.
    pub hosts: Mutex<Vec<HostPool>>,
}

impl Context {
    fn hosts(&self) -> MutexGuard<'_, Vec<HostPool>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pools of addresses for so many nodes.
pub fn pools(nodes: usize) -> Mutex<Vec<HostPool>> {
    Mutex::new(vec![HostPool::default(); nodes])
}

/// A pod that the kubelet has taken up.
struct Entry {
    namespace: String,
    name: String,
    uid: String,
    /// The node's number, from 1.
    node: u8,
    pod: watch::Sender<Option<Arc<Pod>>>,
    handled: watch::Sender<Handled>,
    netns: OnceLock<Netns>,
    inside: OnceLock<Inside>,
}

/// How much of what was told of a pod is done: changes told and changes whose outcome stands in the status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Handled {
    told: u64,
    done: u64,
}

/// A sandboxed pod's inside, for exec and logs.
struct Inside {
    sandbox: Arc<Sandbox>,
    containers: BTreeMap<String, Handle>,
    /// The container that is meant when none is named.
    first: String,
}

struct Handle {
    name: String,
    /// What was started last; none before the first start.
    template: watch::Receiver<Option<Start>>,
    folder: PathBuf,
    log: Arc<CurrentLog>,
}

#[derive(Default)]
struct Pods {
    by_uid: BTreeMap<String, Arc<Entry>>,
}

/// The kubelet. Dropped: its pods' processes are killed and their namespaces go, their objects stay.
pub struct Kubelet {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    context: Arc<Context>,
    pods: Mutex<Pods>,
    workers: Mutex<JoinSet<()>>,
    seen: watch::Sender<u64>,
}

impl Kubelet {
    /// Starts it on the current runtime.
    pub fn start(context: Context) -> Kubelet {
        let client = context.client.clone();
        let shared = Arc::new(Shared {
            context: Arc::new(context),
            pods: Mutex::default(),
            workers: Mutex::default(),
            seen: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(leases::keep(client.clone(), shared.context.nodes.clone()));
        let listener = shared.clone();
        tasks.spawn(async move { feed::follow(client, |news| listener.take(news)).await });
        Kubelet { shared, _tasks: tasks }
    }

    /// The network namespace of a pod, once it has one.
    pub fn namespace_of(&self, namespace: &str, name: &str) -> Option<Netns> {
        self.shared.find(namespace, name)?.netns.get().cloned()
    }

    /// The name of the node that a pod is on.
    pub fn node_of(&self, namespace: &str, name: &str) -> Option<String> {
        let number = usize::from(self.shared.find(namespace, name)?.node);
        self.shared.context.nodes.get(number.checked_sub(1)?).cloned()
    }

    /// Whether a pod has a sandbox, in which programs can be run.
    pub fn has_sandbox(&self, namespace: &str, name: &str) -> bool {
        self.shared.find(namespace, name).is_some_and(|entry| entry.inside.get().is_some())
    }

    /// Whether a pod has no sandbox: its programs would be those of the machine.
    pub fn is_light(&self, namespace: &str, name: &str) -> bool {
        self.shared
            .find(namespace, name)
            .is_some_and(|entry| entry.pod.borrow().as_ref().is_some_and(|pod| light::is_light(pod)))
    }

    /// Runs a program in a pod (namespace, name, container) on file descriptors of this machine until it ends; when the
    /// future is dropped, the program is ended.
    ///
    /// # Errors
    /// The pod does not run, or has no such program.
    pub async fn run(
        &self,
        (namespace, pod, container): (&str, &str, Option<&str>),
        command: Vec<String>,
        streams: [OwnedFd; 3],
    ) -> Result<i32, PodStreamError> {
        streams::run(&self.shared, &reference(namespace, pod, container), command, streams).await
    }

    /// Runs a program in a terminal of the pod, of this size (columns, rows). Gives the program, which ends when
    /// nobody waits for it any more, and our side of the terminal.
    ///
    /// # Errors
    /// As for [`Kubelet::run`].
    pub async fn run_in_terminal(
        &self,
        (namespace, pod, container): (&str, &str, Option<&str>),
        command: Vec<String>,
        size: (u16, u16),
    ) -> Result<(Ending, OwnedFd), PodStreamError> {
        streams::run_in_terminal(&self.shared, &reference(namespace, pod, container), command, size).await
    }

    /// Answers exec and logs.
    pub fn streams(&self) -> Arc<dyn PodStreams> {
        Arc::new(streams::Streams { shared: self.shared.clone() })
    }

    /// The revision up to which pods' changes were taken up.
    pub fn seen(&self) -> u64 {
        *self.shared.seen.borrow()
    }

    /// Pods whose last change is not yet in effect and in their status, as `namespace/name`.
    pub fn busy(&self) -> Vec<String> {
        let pods = self.shared.pods();
        let busy = pods.by_uid.values().filter(|entry| {
            let handled = *entry.handled.borrow();
            handled.done < handled.told
        });
        busy.map(|entry| format!("{}/{}", entry.namespace, entry.name)).collect()
    }

    /// Ends all pods at once, and waits for it.
    pub async fn stop(self) {
        let Kubelet { shared, mut _tasks } = self;
        _tasks.shutdown().await;
        let mut workers = std::mem::take(&mut *shared.workers.lock().unwrap_or_else(PoisonError::into_inner));
        workers.shutdown().await;
        shared.pods().by_uid.clear();
    }
}

fn reference(namespace: &str, pod: &str, container: Option<&str>) -> ContainerRef {
    ContainerRef { namespace: namespace.to_owned(), pod: pod.to_owned(), container: container.map(str::to_owned) }
}

impl Shared {
    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Entry>> {
        let pods = self.pods();
        let mut found = pods.by_uid.values().filter(|entry| entry.name == name && entry.namespace == namespace);
        // Two of a name: one ends while its successor begins. The successor is meant.
        let first = found.next()?;
        let living = std::iter::once(first).chain(found).find(|entry| entry.pod.borrow().is_some());
        Some(living.unwrap_or(first).clone())
    }

    fn take(self: &Arc<Self>, news: News) {
        match news {
            News::Applied(pod) => self.applied(pod),
            News::Gone(uid) => {
                if let Some(entry) = self.pods().by_uid.get(&uid) {
                    entry.tell(None);
                }
            }
            News::Seen(revision) => {
                self.seen.send_if_modified(|seen| std::mem::replace(seen, revision.max(*seen)) < revision);
            }
        }
    }

    fn applied(self: &Arc<Self>, pod: Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        if let Some(entry) = self.pods().by_uid.get(&uid) {
            entry.tell(Some(pod));
            return;
        }
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let index = bound.and_then(|node| self.context.nodes.iter().position(|known| known == node));
        let Some(node) = index.and_then(|index| u8::try_from(index + 1).ok()) else { return };
        let (sender, receiver) = watch::channel(Some(pod.clone()));
        let entry = Arc::new(Entry {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid.clone(),
            node,
            pod: sender,
            handled: watch::Sender::new(Handled { told: 1, done: 0 }),
            netns: OnceLock::new(),
            inside: OnceLock::new(),
        });
        self.pods().by_uid.insert(uid.clone(), entry.clone());
        let (context, shared) = (self.context.clone(), Arc::downgrade(self));
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        while workers.try_join_next().is_some() {}
        workers.spawn(async move {
            pod::run(context, entry, receiver).await;
            if let Some(shared) = shared.upgrade() {
                shared.pods().by_uid.remove(&uid);
            }
        });
    }
}

impl Entry {
    fn tell(&self, pod: Option<Arc<Pod>>) {
        // Both at once: whoever reads them in between would take the new pod for the one before.
        self.handled.send_modify(|handled| {
            handled.told += 1;
            self.pod.send_replace(pod);
        });
    }

    /// How often it was told, and what last: the number is to be given to `done` when that is in effect.
    fn told(&self, pods: &mut watch::Receiver<Option<Arc<Pod>>>) -> (u64, Option<Arc<Pod>>) {
        let handled = self.handled.borrow();
        (handled.told, pods.borrow_and_update().clone())
    }

    fn done(&self, told: u64) {
        self.handled.send_if_modified(|handled| {
            let more = told > handled.done;
            handled.done = handled.done.max(told);
            more
        });
    }
}

/// How long a worker waits before it tries again what the kernel or the API refused.
const RETRY: Duration = Duration::from_millis(500);
