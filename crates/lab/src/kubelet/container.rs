//! The life of one container: what it needs, start, probes, end, back-off, start anew.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use nix::sys::signal::Signal;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::events::{Kind, tell};
use super::logs::RunLog;
use super::probes::{self, Target};
use super::recipe::{Recipe, Unready};
use super::status::{ContainerView, Ended, Phase, RestartPolicy, stays};
use super::streams::start_problem;
use super::threshold::{BackOff, Patience};
use crate::images::unmapped;
use crate::sandbox::{Exit, Program, Start};

/// The containers of a pod as its status will show them.
#[derive(Default)]
pub struct Board {
    views: Mutex<(Vec<ContainerView>, Vec<ContainerView>)>,
    /// Told at each change.
    pub changed: Notify,
    /// Told at each change as well, for those who wait for a container to start.
    steps: watch::Sender<()>,
}

/// A place on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// An init container.
    Init(usize),
    /// A container.
    Main(usize),
}

impl Board {
    /// All are to be created.
    pub fn new(init: usize, main: usize) -> Board {
        let views = (vec![ContainerView::creating(); init], vec![ContainerView::creating(); main]);
        Board { views: Mutex::new(views), changed: Notify::new(), steps: watch::Sender::default() }
    }

    /// Waits until an init container has started.
    pub async fn started(&self, index: usize) {
        let mut steps = self.steps.subscribe();
        let has_started = |board: &Board| board.lock().0.get(index).is_some_and(|view| view.started);
        while !has_started(self) {
            if steps.changed().await.is_err() {
                return;
            }
        }
    }

    /// Init containers, containers.
    pub fn views(&self) -> (Vec<ContainerView>, Vec<ContainerView>) {
        self.lock().clone()
    }

    /// Changes a view.
    pub fn update(&self, slot: Slot, change: impl FnOnce(&mut ContainerView)) {
        let mut views = self.lock();
        let view = match slot {
            Slot::Init(index) => views.0.get_mut(index),
            Slot::Main(index) => views.1.get_mut(index),
        };
        if let Some(view) = view {
            change(view);
        }
        drop(views);
        self.changed.notify_one();
        self.steps.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<ContainerView>, Vec<ContainerView>)> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a container's readers of logs need: which run is on, and its announcements.
#[derive(Default)]
pub struct CurrentLog {
    current: Mutex<Option<(u32, std::sync::Weak<RunLog>)>>,
}

impl CurrentLog {
    /// Run and, while it goes on, its announcements; `None`: it never ran.
    pub fn get(&self) -> Option<(u32, Option<watch::Receiver<u64>>)> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(run, log)| (*run, log.upgrade().map(|log| log.subscribe())))
    }

    fn set(&self, run: u32, log: &Arc<RunLog>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some((run, Arc::downgrade(log)));
    }
}

/// Everything that a container's life needs.
pub struct Runner {
    /// For events.
    pub client: kube::Client,
    /// The pod as it was first told of.
    pub pod: Arc<Pod>,
    /// The pod with the images of its containers as they are now.
    pub images: watch::Receiver<Arc<Pod>>,
    /// How a start is made of a specification.
    pub recipe: Arc<Recipe>,
    /// What was started last, for exec.
    pub template: watch::Sender<Option<Start>>,
    /// Where its states are shown.
    pub board: Arc<Board>,
    /// Its place there.
    pub slot: Slot,
    /// Sandbox, command, address.
    pub target: Target,
    /// Its logs' folder.
    pub folder: PathBuf,
    /// Its log now.
    pub log: Arc<CurrentLog>,
    /// When it is started anew.
    pub policy: RestartPolicy,
    /// The pod shall end: by then everything must be over.
    pub stop: watch::Receiver<Option<Instant>>,
}

impl Runner {
    /// Whether it is an init container that stays beside the others.
    pub fn stays(&self) -> bool {
        matches!(self.slot, Slot::Init(index) if stays(&self.pod, index))
    }
}

/// How long a pull that fails is seen as such.
const PULL: Duration = Duration::from_secs(5);

enum RunEnd {
    Exited(Exit),
    Unhealthy,
    /// Another image is wanted.
    Replaced,
    Stopped(Instant),
}

impl Runner {
    /// Runs until the container has ended for good; whether with status 0.
    pub async fn run(mut self) -> bool {
        let mut back_off = BackOff::default();
        let mut runs = 0;
        loop {
            if !self.prepare().await {
                return false;
            }
            let since = Timestamp::now();
            let began = Instant::now();
            let mut replaced = false;
            let (exit, problem) = match self.start(runs).await {
                Ok((program, log)) => {
                    self.board.update(self.slot, |view| {
                        view.phase = Phase::Running { since };
                        view.restarts = runs;
                    });
                    let exit;
                    (exit, replaced) = self.attend(&program).await;
                    drop(log); // its followers have read all
                    (exit, None)
                }
                Err(error) => (Exit::Status(128), Some(self.start_problem(&error))),
            };
            let ended = Ended { exit, since, until: Timestamp::now(), problem };
            let again = (replaced || self.policy.restarts(exit)) && self.stop.borrow().is_none();
            let wait = if replaced { Duration::ZERO } else { back_off.after(began.elapsed()) };
            self.board.update(self.slot, |view| {
                view.ready = false;
                view.started = false;
                view.restarts = runs;
                if let (true, Some(problem)) = (again && wait.is_zero(), &ended.problem) {
                    view.phase = Phase::Waiting { reason: "RunContainerError", message: Some(problem.clone()) };
                    view.last = Some(ended);
                } else if again && !wait.is_zero() {
                    view.phase = Phase::Waiting { reason: "CrashLoopBackOff", message: Some(self.back_off_text(wait)) };
                    view.last = Some(ended);
                } else if again {
                    view.last = Some(ended.clone());
                    view.phase = Phase::Ended(ended);
                } else {
                    view.phase = Phase::Ended(ended);
                }
            });
            if !again {
                return exit == Exit::Status(0);
            }
            if !wait.is_zero() {
                let container = &self.target.container.name;
                let text = format!("Back-off restarting failed container {container} in pod {}", self.pod_text());
                self.tell(Kind::Warning, "BackOff", text);
            }
            if self.stopped_within(wait).await {
                return self.end_in_back_off();
            }
            runs += 1;
        }
    }

    /// Waits until there is what the container needs; not when the pod shall end first.
    async fn prepare(&mut self) -> bool {
        let (mut patience, mut pulls) = (Patience::default(), BackOff::default());
        let _ = pulls.after(Duration::ZERO); // the first back-off is none, and a pull always has one
        loop {
            let pod = self.images.borrow_and_update().clone();
            if let Some(container) = specified(&pod, &self.target.container.name) {
                self.target.container = container.clone();
            }
            let on = match self.recipe.start(&self.pod, &self.target.container).await {
                Ok(start) => {
                    let image = self.target.container.image.as_deref().unwrap_or_default();
                    let text = format!("Container image {image:?} already present on machine");
                    self.tell(Kind::Normal, "Pulled", text);
                    self.tell(Kind::Normal, "Created", format!("Created container: {}", self.target.container.name));
                    self.template.send_replace(Some(start.clone()));
                    self.target.template = start;
                    return true;
                }
                Err(Unready::Image) => self.lack_image(pulls.after(Duration::ZERO)).await,
                Err(Unready::Config(problem)) => {
                    self.tell(Kind::Warning, "Failed", format!("Error: {problem}"));
                    self.wait_as("CreateContainerConfigError", problem);
                    self.idle(patience.next()).await
                }
            };
            if !on {
                return false;
            }
        }
    }

    /// A pull that fails, and the wait for the next.
    async fn lack_image(&mut self, wait: Duration) -> bool {
        let image = self.target.container.image.clone().unwrap_or_default();
        let problem = unmapped(&image);
        self.tell(Kind::Normal, "Pulling", format!("Pulling image {image:?}"));
        self.tell(Kind::Warning, "Failed", problem.clone());
        self.tell(Kind::Warning, "Failed", "Error: ErrImagePull".to_owned());
        self.wait_as("ErrImagePull", problem.clone());
        if !self.idle(PULL).await {
            return false;
        }
        self.tell(Kind::Normal, "BackOff", format!("Back-off pulling image {image:?}"));
        self.tell(Kind::Warning, "Failed", "Error: ImagePullBackOff".to_owned());
        self.wait_as("ImagePullBackOff", format!("Back-off pulling image {image:?}: ErrImagePull: {problem}"));
        self.idle(wait).await
    }

    fn wait_as(&self, reason: &'static str, message: String) {
        self.board.update(self.slot, |view| view.phase = Phase::Waiting { reason, message: Some(message) });
    }

    /// Waits so long or until another image is wanted; not when the pod shall end.
    async fn idle(&mut self, wait: Duration) -> bool {
        let mut stop = self.stop.clone();
        tokio::select! {
            Ok(_) = stop.wait_for(Option::is_some) => false,
            Ok(()) = self.images.changed() => true,
            () = tokio::time::sleep(wait) => true,
        }
    }

    async fn start(&self, run: u32) -> io::Result<(Program, Arc<RunLog>)> {
        let log = RunLog::begin(&self.folder, run)?;
        self.log.set(run, &log);
        let null: OwnedFd = File::open("/dev/null")?.into();
        let streams = [null, log.pipe("stdout")?, log.pipe("stderr")?];
        let program = self.target.sandbox.start_program(self.target.template.clone(), streams).await?;
        self.tell(Kind::Normal, "Started", format!("Started container {}", self.target.container.name));
        Ok((program, log))
    }

    /// Probes a running program until it ends, of itself or because it must.
    /// Whether it is to be followed by another of another image.
    async fn attend(&mut self, program: &Program) -> (Exit, bool) {
        let unhealthy = Arc::new(Notify::new());
        let mut probing = JoinSet::new();
        probing.spawn(self.probing(unhealthy.clone()));
        let mut stop = self.stop.clone();
        let mut images = self.images.clone();
        let (name, image) = (self.target.container.name.clone(), self.target.container.image.clone());
        let end = tokio::select! {
            exit = program.exit() => RunEnd::Exited(exit),
            () = unhealthy.notified() => RunEnd::Unhealthy,
            Ok(deadline) = stop.wait_for(Option::is_some) => RunEnd::Stopped((*deadline).unwrap_or_else(Instant::now)),
            Ok(_) = images.wait_for(|pod| specified(pod, &name).is_some_and(|now| now.image != image)) => RunEnd::Replaced,
        };
        let replaced = matches!(end, RunEnd::Replaced);
        let exit = match end {
            RunEnd::Exited(exit) => exit,
            RunEnd::Unhealthy => {
                let container = &self.target.container.name;
                self.tell(
                    Kind::Normal,
                    "Killing",
                    format!("Container {container} failed its probe, will be restarted"),
                );
                let deadline = Instant::now() + grace(&self.pod);
                self.end(program, deadline).await
            }
            RunEnd::Replaced => {
                let text = format!("Container {name} definition changed, will be restarted");
                self.tell(Kind::Normal, "Killing", text);
                self.end(program, Instant::now() + grace(&self.pod)).await
            }
            // The readiness probe goes on meanwhile: an ending pod may serve until it is gone.
            RunEnd::Stopped(deadline) => {
                self.tell(Kind::Normal, "Killing", format!("Stopping container {}", self.target.container.name));
                self.end(program, deadline).await
            }
        };
        probing.shutdown().await; // none of them may speak after the end
        (exit, replaced)
    }

    /// `preStop`, SIGTERM, and SIGKILL at the deadline.
    async fn end(&self, program: &Program, deadline: Instant) -> Exit {
        let gentle = async {
            self.pre_stop().await;
            // The pod may have ended meanwhile: then its exit comes next.
            let _ = program.signal(Signal::SIGTERM, false).await;
            program.exit().await
        };
        if let Ok(exit) = tokio::time::timeout_at(deadline, gentle).await {
            return exit;
        }
        let _ = program.signal(Signal::SIGKILL, true).await; // as above
        program.exit().await
    }

    async fn pre_stop(&self) {
        let Some(hook) = self.target.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) else { return };
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        }
        if let Some(exec) = &hook.exec
            && let Err(problem) = self.run_hook(exec.command.clone().unwrap_or_default()).await
        {
            self.tell(Kind::Warning, "FailedPreStopHook", format!("PreStopHook failed: {problem}"));
        }
    }

    async fn run_hook(&self, argv: Vec<String>) -> Result<(), String> {
        let null = || -> io::Result<OwnedFd> { Ok(File::options().read(true).write(true).open("/dev/null")?.into()) };
        let start = Start { argv, ..self.target.template.clone() };
        let run = async { self.target.sandbox.start_program(start, [null()?, null()?, null()?]).await };
        match run.await.map_err(|error| error.to_string())?.exit().await {
            Exit::Status(0) => Ok(()),
            exit => Err(format!("exit code {}", exit.code())),
        }
    }

    /// The container's probes, as a task of their own: startup first, then readiness and liveness side by side.
    fn probing(&self, unhealthy: Arc<Notify>) -> impl Future<Output = ()> + Send + 'static {
        let (board, slot, target) = (self.board.clone(), self.slot, self.target.clone());
        let (client, pod) = (self.client.clone(), self.pod.clone());
        async move {
            let container = &target.container;
            let complain = |what: &str, problem: &str| {
                tell(&client, &pod, Kind::Warning, "Unhealthy", format!("{what} probe failed: {problem}"));
            };
            if let Some(probe) = &container.startup_probe {
                let passed = Arc::new(Notify::new());
                let startup = probes::observe(probe, &target, |result, belief| {
                    if let Err(problem) = result {
                        complain("Startup", problem);
                    }
                    match belief {
                        Some(true) => passed.notify_one(),
                        Some(false) => unhealthy.notify_one(),
                        None => {}
                    }
                });
                tokio::select! {
                    () = startup => {}
                    () = passed.notified() => {}
                }
            }
            board.update(slot, |view| {
                view.started = true;
                view.ready = container.readiness_probe.is_none();
            });
            let readiness = async {
                if let Some(probe) = &container.readiness_probe {
                    let show = |result: &Result<(), String>, belief: Option<bool>| {
                        if let Err(problem) = result {
                            complain("Readiness", problem);
                        }
                        if let Some(ready) = belief {
                            board.update(slot, |view| view.ready = ready);
                        }
                    };
                    probes::observe(probe, &target, show).await;
                }
            };
            let liveness = async {
                if let Some(probe) = &container.liveness_probe {
                    let act = |result: &Result<(), String>, belief: Option<bool>| {
                        if let Err(problem) = result {
                            complain("Liveness", problem);
                        }
                        if belief == Some(false) {
                            unhealthy.notify_one();
                        }
                    };
                    probes::observe(probe, &target, act).await;
                }
            };
            tokio::join!(readiness, liveness);
        }
    }

    async fn stopped_within(&mut self, wait: Duration) -> bool {
        let stopped = self.stop.wait_for(Option::is_some);
        tokio::time::timeout(wait, stopped).await.is_ok()
    }

    fn end_in_back_off(&self) -> bool {
        self.board.update(self.slot, |view| {
            if let (Phase::Waiting { .. }, Some(last)) = (&view.phase, view.last.take()) {
                view.phase = Phase::Ended(last);
            }
        });
        false
    }

    fn start_problem(&self, error: &io::Error) -> String {
        let program = self.target.template.argv.first().map_or("", String::as_str);
        let mut text = start_problem(program, error);
        if error.kind() == io::ErrorKind::NotFound {
            text.push_str(" (the pod sees this machine's files without /root, /home, /run and /tmp)");
        }
        self.tell(Kind::Warning, "Failed", format!("Error: {text}"));
        text
    }

    fn back_off_text(&self, wait: Duration) -> String {
        let (seconds, container) = (wait.as_secs(), &self.target.container.name);
        format!("back-off {seconds}s restarting failed container={container} pod={}", self.pod_text())
    }

    /// The pod as the kubelet writes it.
    fn pod_text(&self) -> String {
        let meta = &self.pod.metadata;
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}_{}({})", part(&meta.name), part(&meta.namespace), part(&meta.uid))
    }

    fn tell(&self, kind: Kind, reason: &str, message: String) {
        tell(&self.client, &self.pod, kind, reason, message);
    }
}

/// A container of a pod by its name.
fn specified<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|container| container.name == name)
}

/// How long a pod may take to end.
pub fn grace(pod: &Pod) -> Duration {
    let of_spec = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod.metadata.deletion_grace_period_seconds.or(of_spec).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
