//! Pods with a sandbox: their containers are programs, with probes, logs, restarts and a graceful end.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::command::{self, Surroundings};
use super::container::{Board, CurrentLog, Runner, Slot, grace};
use super::events::{Kind, tell};
use super::pod::{Attachment, Worker};
use super::probes::Target;
use super::status::{ContainerView, Phase, RestartPolicy, restart_policy};
use super::{Context, Handle, Inside, RETRY, hosts};
use crate::cgroup::Cgroup;
use crate::images::{Image, unmapped};
use crate::sandbox::{Sandbox, Start, View};
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
    loop {
        let told = worker.entry.told();
        let pod = worker.pod().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
        let context = worker.context.clone();
        let made = async {
            cgroup.create()?;
            let root = state(worker).join("root");
            std::fs::create_dir_all(&root)?;
            let view = view(worker, &pod, attachment, root);
            Sandbox::start(&context.spawner, &context.program, &attachment.netns, cgroup, view).await
        };
        match made.await {
            Ok(sandbox) => return Some(sandbox),
            Err(error) => {
                tracing::warn!(pod = worker.entry.name, %error, "pod has no sandbox");
                let message = format!("Failed to create pod sandbox: {error}");
                tell(&context.client, &pod, Kind::Warning, "FailedCreatePodSandBox", message);
                worker.entry.done(told);
                // The sender lives in the entry that we hold.
                let _ = tokio::time::timeout(RETRY, worker.pods.changed()).await;
            }
        }
    }
}

fn view(worker: &Worker, pod: &Pod, attachment: &Attachment, root: PathBuf) -> View {
    let context = &worker.context;
    let mut programs = vec![(context.program.clone(), "signpost".to_owned())];
    for container in all_containers(pod) {
        if let Some(path) = container.image.as_deref().and_then(|image| context.images.program(image)) {
            programs.push((path.to_owned(), command::program_name(&container.name, path)));
        }
    }
    View {
        root,
        hostname: hosts::hostname(pod),
        hosts: hosts::hosts(pod, &attachment.addresses),
        resolv_conf: hosts::resolv_conf(pod, context.dns),
        masks: masks(context),
        programs,
    }
}

/// The state of every lab of this machine. What is in `/run` no pod sees anyway.
fn masks(context: &Context) -> Vec<PathBuf> {
    let mut masks: Vec<PathBuf> = labs::records().into_iter().map(|record| record.dir).collect();
    masks.push(context.state.clone());
    masks
}

fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// From the first start of a container to the end of the last.
async fn live(worker: &mut Worker, pod: &Arc<Pod>, attachment: &Attachment, sandbox: Arc<Sandbox>) {
    let spec = pod.spec.clone().unwrap_or_default();
    let board = Arc::new(Board::new(spec.init_containers.as_ref().map_or(0, Vec::len), spec.containers.len()));
    let (stop, stopping) = watch::channel(None);
    tell_of_volumes(worker, pod);
    let mut plan =
        Plan { worker, pod, attachment, sandbox: &sandbox, board: &board, stopping, handles: BTreeMap::new() };
    let init: Vec<Runner> = plan.runners(spec.init_containers.as_deref().unwrap_or_default(), Slot::Init);
    let main: Vec<Runner> = plan.runners(&spec.containers, Slot::Main);
    let first = spec.containers.first().map(|container| container.name.clone()).unwrap_or_default();
    let inside = Inside { sandbox: sandbox.clone(), containers: plan.handles, first };
    let _ = worker.entry.inside.set(inside); // the entry is new: nothing else has set it
    let mut running = JoinSet::new();
    running.spawn(sequence(init, main, spec.containers.len(), stop.subscribe()));
    loop {
        let told = worker.entry.told();
        let Some(pod) = worker.pod() else { return }; // forced away: what runs is killed with the sandbox
        if pod.metadata.deletion_timestamp.is_some() {
            let deadline = Instant::now() + grace(&pod);
            stop.send_if_modified(|stop| {
                let earlier = stop.is_none_or(|known: Instant| deadline < known);
                *stop = if earlier { Some(deadline) } else { *stop };
                earlier
            });
        }
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

/// Says that what a container expects at these paths is not there.
fn tell_of_volumes(worker: &Worker, pod: &Pod) {
    let mounts = all_containers(pod).flat_map(|container| container.volume_mounts.iter().flatten());
    let paths: Vec<&str> = mounts.map(|mount| mount.mount_path.as_str()).collect();
    if !paths.is_empty() {
        let message = format!("the lab mounts no volumes; not there: {}", paths.join(", "));
        tell(&worker.context.client, pod, Kind::Warning, "FailedMount", message);
    }
}

/// Init containers one after another, then all others at once; until the last has ended.
async fn sequence(init: Vec<Runner>, main: Vec<Runner>, specified: usize, stop: watch::Receiver<Option<Instant>>) {
    for runner in init {
        if !runner.run().await {
            return;
        }
    }
    let waiting_for_images = main.len() < specified;
    let mut running = JoinSet::new();
    for runner in main {
        running.spawn(runner.run());
    }
    while running.join_next().await.is_some() {}
    if waiting_for_images {
        let mut stop = stop;
        // Those without an image wait until the pod is deleted; the sender is gone only with the pod.
        let _ = stop.wait_for(Option::is_some).await;
    }
}

/// Makes the runners of a pod.
struct Plan<'a> {
    worker: &'a Worker,
    pod: &'a Arc<Pod>,
    attachment: &'a Attachment,
    sandbox: &'a Arc<Sandbox>,
    board: &'a Arc<Board>,
    stopping: watch::Receiver<Option<Instant>>,
    handles: BTreeMap<String, Handle>,
}

impl Plan<'_> {
    /// Runners of those containers that can run; the others' places on the board say why they cannot.
    fn runners(&mut self, containers: &[Container], slot: impl Fn(usize) -> Slot) -> Vec<Runner> {
        let places = containers.iter().enumerate().map(|(index, container)| (slot(index), container));
        places.filter_map(|(slot, container)| self.runner(container, slot)).collect()
    }

    fn runner(&mut self, container: &Container, slot: Slot) -> Option<Runner> {
        let name = container.image.as_deref().unwrap_or_default();
        let Some(image) = self.worker.context.images.find(name) else {
            self.refuse(slot, "ErrImagePull", unmapped(name));
            return None;
        };
        let template = match self.start(container, &image) {
            Ok(start) => start,
            Err(problem) => {
                self.refuse(slot, "CreateContainerConfigError", problem.to_string());
                return None;
            }
        };
        let folder = state(self.worker).join(&container.name);
        let log = Arc::new(CurrentLog::default());
        let handle = Handle { template: template.clone(), folder: folder.clone(), log: log.clone() };
        self.handles.insert(container.name.clone(), handle);
        let policy = match (slot, restart_policy(self.pod)) {
            (Slot::Init(_), RestartPolicy::Always) => RestartPolicy::OnFailure,
            (_, policy) => policy,
        };
        Some(Runner {
            client: self.worker.context.client.clone(),
            pod: self.pod.clone(),
            board: self.board.clone(),
            slot,
            target: Target {
                address: *self.attachment.addresses.first()?,
                node: self.worker.context.network.nodes[usize::from(self.worker.entry.node) - 1].clone(),
                sandbox: self.sandbox.clone(),
                template,
                container: container.clone(),
            },
            folder,
            log,
            policy,
            stop: self.stopping.clone(),
        })
    }

    fn start(&self, container: &Container, image: &Image) -> Result<Start, command::Unrunnable> {
        let host_addresses = self.worker.context.network.topology.node(self.worker.entry.node);
        let around = Surroundings {
            addresses: &self.attachment.addresses,
            host_addresses: &host_addresses,
            kubernetes: self.worker.context.kubernetes,
        };
        command::start(self.pod, container, image, &around)
    }

    fn refuse(&self, slot: Slot, reason: &'static str, message: String) {
        tell(&self.worker.context.client, self.pod, Kind::Warning, "Failed", message.clone());
        self.board.update(slot, |view| view.phase = Phase::Waiting { reason, message: Some(message) });
    }
}
