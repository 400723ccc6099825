//! Pods with a sandbox: their containers are programs, with probes, logs, restarts and a graceful end.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::command;
use super::container::{Board, CurrentLog, Runner, Slot, grace};
use super::events::{Kind, tell};
use super::pod::{Attachment, Worker};
use super::probes::Target;
use super::recipe::Recipe;
use super::status::{ContainerView, Phase, RestartPolicy, restart_policy, stays};
use super::threshold::Patience;
use super::volumes::{self, VolumeError};
use super::{Context, Handle, Inside, names};
use crate::cgroup::Cgroup;
use crate::sandbox::{Mount, Sandbox, Start, View};
use crate::state as labs;

pub(super) async fn run(mut worker: Worker, pod: Arc<Pod>) {
    let Some(attachment) = worker.attach().await else {
        worker.wait_for_deletion().await;
        return worker.goodbye().await;
    };
    let node = &worker.context.nodes[usize::from(worker.entry.node) - 1];
    let cgroup = worker.context.cgroup.child(node).child(&format!("pod-{}", worker.entry.uid));
    if let Some(sandbox) = make_sandbox(&mut worker, &attachment, &cgroup).await {
        live(&mut worker, &pod, &attachment, Arc::new(sandbox)).await;
    } else {
        worker.wait_for_deletion().await;
    }
    let state = state(&worker);
    let group = cgroup.clone();
    let cleaned = tokio::task::spawn_blocking(move || {
        group.kill()?;
        group.remove()?;
        match std::fs::remove_dir_all(&state) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    });
    if let Ok(Err(error)) = cleaned.await {
        tracing::warn!(pod = worker.entry.name, %error, "a pod left something behind");
    }
    worker.detach(attachment).await;
    worker.goodbye().await;
}

/// The pod's folder in the lab's state.
fn state(worker: &Worker) -> PathBuf {
    worker.context.state.join("pods").join(&worker.entry.uid)
}

async fn make_sandbox(worker: &mut Worker, attachment: &Attachment, cgroup: &Cgroup) -> Option<Sandbox> {
    let mut patience = Patience::default();
    loop {
        let pod = worker.pod().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
        let context = worker.context.clone();
        let mounts = match volumes::mounts(&context.client, &pod, &state(worker)).await {
            Ok(mounts) => mounts,
            Err(VolumeError::Unsupported(problem)) => {
                refuse(worker, &pod, problem).await;
                return None;
            }
            Err(error) => {
                tell(&context.client, &pod, Kind::Warning, "FailedMount", error.to_string());
                show_creating(worker, &pod).await;
                worker.rest(patience.next()).await;
                continue;
            }
        };
        let made = async {
            cgroup.create()?;
            let root = state(worker).join("root");
            std::fs::create_dir_all(&root)?;
            let view = view(worker, &pod, attachment, root, mounts);
            Sandbox::start(&context.spawner, &context.program, &attachment.netns, cgroup, view).await
        };
        match made.await {
            Ok(sandbox) => return Some(sandbox),
            Err(error) => {
                tracing::warn!(pod = worker.entry.name, %error, "pod has no sandbox");
                let message = format!("Failed to create pod sandbox: {error}");
                tell(&context.client, &pod, Kind::Warning, "FailedCreatePodSandBox", message);
                show_creating(worker, &pod).await;
                worker.rest(patience.next()).await;
            }
        }
    }
}

/// Shows containers that wait for their pod.
async fn show_creating(worker: &mut Worker, pod: &Pod) {
    show_all(worker, pod, ContainerView::creating()).await;
}

/// Shows containers that never can run, and why.
async fn refuse(worker: &mut Worker, pod: &Pod, problem: String) {
    tell(&worker.context.client, pod, Kind::Warning, "Failed", format!("Error: {problem}"));
    let phase = Phase::Waiting { reason: "CreateContainerConfigError", message: Some(problem) };
    show_all(worker, pod, ContainerView { phase, ..ContainerView::creating() }).await;
}

async fn show_all(worker: &mut Worker, pod: &Pod, view: ContainerView) {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).map_or(0, Vec::len);
    let main = spec.map_or(0, |spec| spec.containers.len());
    worker.show(pod, &vec![view.clone(); init], &vec![view; main]).await;
}

fn view(worker: &Worker, pod: &Pod, attachment: &Attachment, root: PathBuf, mounts: Vec<Mount>) -> View {
    let context = &worker.context;
    let mut programs = vec![(context.program.clone(), "signpost".to_owned())];
    // All of them: a container may get another image while its pod runs.
    programs.extend(context.images.programs().into_iter().map(|path| (path.to_owned(), command::program_name(path))));
    View {
        root,
        hostname: names::kernel_hostname(pod),
        hosts: names::hosts(pod, &attachment.addresses),
        resolv_conf: names::resolv_conf(pod, context.dns),
        masks: masks(context),
        programs,
        mounts,
    }
}

/// The state of every lab of this machine. What is in `/run` no pod sees anyway.
fn masks(context: &Context) -> Vec<PathBuf> {
    let mut masks: Vec<PathBuf> = labs::records().into_iter().map(|record| record.dir).collect();
    masks.push(context.state.clone());
    masks
}

fn images_of(pod: &Pod) -> impl Iterator<Item = Option<&str>> {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.map(|container| container.image.as_deref())
}

/// From the first start of a container to the end of the last.
async fn live(worker: &mut Worker, pod: &Arc<Pod>, attachment: &Attachment, sandbox: Arc<Sandbox>) {
    let spec = pod.spec.clone().unwrap_or_default();
    let board = Arc::new(Board::new(spec.init_containers.as_ref().map_or(0, Vec::len), spec.containers.len()));
    let (stop, stopping) = watch::channel(None);
    let (images, wanted) = watch::channel(pod.clone());
    let recipe = Arc::new(Recipe {
        context: worker.context.clone(),
        addresses: attachment.addresses.clone(),
        host_addresses: worker.context.network.topology.node(worker.entry.node),
    });
    let mut plan = Plan {
        worker,
        pod,
        attachment,
        sandbox: &sandbox,
        board: &board,
        stopping,
        images: wanted,
        recipe,
        handles: BTreeMap::new(),
    };
    let init: Vec<Runner> = plan.runners(spec.init_containers.as_deref().unwrap_or_default(), Slot::Init);
    let main: Vec<Runner> = plan.runners(&spec.containers, Slot::Main);
    let first = spec.containers.first().map(|container| container.name.clone()).unwrap_or_default();
    let inside = Inside { sandbox: sandbox.clone(), containers: plan.handles, first };
    let _ = worker.entry.inside.set(inside); // the entry is new: nothing else has set it
    let mut running = JoinSet::new();
    running.spawn(sequence(init, main, board.clone()));
    loop {
        let (told, Some(pod)) = worker.told() else { return }; // forced away: what runs is killed with the sandbox
        if pod.metadata.deletion_timestamp.is_some() {
            let deadline = Instant::now() + grace(&pod);
            stop.send_if_modified(|stop| {
                let earlier = stop.is_none_or(|known: Instant| deadline < known);
                *stop = if earlier { Some(deadline) } else { *stop };
                earlier
            });
        }
        images.send_if_modified(|known| {
            let other = images_of(known).ne(images_of(&pod));
            if other {
                *known = pod.clone();
            }
            other
        });
        let (init, main) = board.views();
        worker.show(&pod, &init, &main).await;
        if init.iter().chain(&main).any(|view| *view != ContainerView::creating()) {
            worker.entry.done(told);
        }
        tokio::select! {
            changed = worker.pods.changed() => if changed.is_err() { return },
            () = board.changed.notified() => {}
            Some(_) = running.join_next() => {
                let (init, main) = board.views();
                worker.show(&pod, &init, &main).await;
                worker.entry.done(told);
                return worker.wait_for_deletion().await;
            }
        }
    }
}

/// Init containers one after another, then all others at once; until the last of these has ended. An init container that
/// stays is waited for until it has started; it ends with the pod.
async fn sequence(init: Vec<Runner>, main: Vec<Runner>, board: Arc<Board>) {
    let mut staying = JoinSet::new();
    for (index, runner) in init.into_iter().enumerate() {
        if runner.stays() {
            staying.spawn(runner.run());
            tokio::select! {
                () = board.started(index) => {}
                // Told to end before it had started.
                Some(_) = staying.join_next() => return,
            }
        } else if !runner.run().await {
            return;
        }
    }
    let mut running = JoinSet::new();
    for runner in main {
        running.spawn(runner.run());
    }
    while running.join_next().await.is_some() {}
}

/// Makes the runners of a pod.
struct Plan<'a> {
    worker: &'a Worker,
    pod: &'a Arc<Pod>,
    attachment: &'a Attachment,
    sandbox: &'a Arc<Sandbox>,
    board: &'a Arc<Board>,
    stopping: watch::Receiver<Option<Instant>>,
    images: watch::Receiver<Arc<Pod>>,
    recipe: Arc<Recipe>,
    handles: BTreeMap<String, Handle>,
}

impl Plan<'_> {
    fn runners(&mut self, containers: &[Container], slot: impl Fn(usize) -> Slot) -> Vec<Runner> {
        let places = containers.iter().enumerate().map(|(index, container)| (slot(index), container));
        places.filter_map(|(slot, container)| self.runner(container, slot)).collect()
    }

    fn runner(&mut self, container: &Container, slot: Slot) -> Option<Runner> {
        let folder = state(self.worker).join(&container.name);
        let log = Arc::new(CurrentLog::default());
        let template = watch::Sender::new(None);
        let handle = Handle {
            name: container.name.clone(),
            template: template.subscribe(),
            folder: folder.clone(),
            log: log.clone(),
        };
        self.handles.insert(container.name.clone(), handle);
        let policy = match (slot, restart_policy(self.pod)) {
            (Slot::Init(index), _) if stays(self.pod, index) => RestartPolicy::Always,
            (Slot::Init(_), RestartPolicy::Always) => RestartPolicy::OnFailure,
            (_, policy) => policy,
        };
        Some(Runner {
            client: self.worker.context.client.clone(),
            pod: self.pod.clone(),
            images: self.images.clone(),
            recipe: self.recipe.clone(),
            template,
            board: self.board.clone(),
            slot,
            target: Target {
                address: *self.attachment.addresses.first()?,
                node: self.worker.context.network.nodes[usize::from(self.worker.entry.node) - 1].clone(),
                sandbox: self.sandbox.clone(),
                template: Start::default(),
                container: container.clone(),
            },
            folder,
            log,
            policy,
            stop: self.stopping.clone(),
        })
    }
}
