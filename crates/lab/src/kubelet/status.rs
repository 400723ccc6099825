//! Pure. What a pod's status says, from the states of its containers: phase, conditions, container statuses, as the
//! kubelet computes them and `kubectl get pods` shows them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::sandbox::Exit;

/// Where a container is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not running, and why.
    Waiting {
        /// One word: `ContainerCreating`, `CrashLoopBackOff`, `ErrImagePull`.
        reason: &'static str,
        /// More words.
        message: Option<String>,
    },
    /// Running since.
    Running {
        /// When it was started.
        since: Timestamp,
    },
    /// Ended.
    Ended(Ended),
}

/// How a run of a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Status or signal.
    pub exit: Exit,
    /// When it was started.
    pub since: Timestamp,
    /// When it ended.
    pub until: Timestamp,
    /// Why it could not even be started.
    pub problem: Option<String>,
}

/// A container as its pod's status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    /// Where it is.
    pub phase: Phase,
    /// How the run before ended.
    pub last: Option<Ended>,
    /// Whether it takes traffic.
    pub ready: bool,
    /// Whether its startup probe has passed.
    pub started: bool,
    /// How often it was started anew.
    pub restarts: u32,
}

impl ContainerView {
    /// One that was not started yet.
    pub fn creating() -> ContainerView {
        ContainerView {
            phase: Phase::Waiting { reason: "ContainerCreating", message: None },
            last: None,
            ready: false,
            started: false,
            restarts: 0,
        }
    }

    /// One that runs and takes traffic.
    pub fn running(since: Timestamp, ready: bool) -> ContainerView {
        ContainerView { phase: Phase::Running { since }, last: None, ready, started: true, restarts: 0 }
    }

    /// Ended, and not by being between two runs.
    fn ended(&self) -> Option<&Ended> {
        match (&self.phase, &self.last) {
            (Phase::Ended(ended), _) | (Phase::Waiting { .. }, Some(ended)) => Some(ended),
            _ => None,
        }
    }

    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// Whether it ended with status 0.
    pub fn succeeded(&self) -> bool {
        matches!(&self.phase, Phase::Ended(ended) if ended.exit == Exit::Status(0))
    }
}

/// What a status is made from.
pub struct Facts<'a> {
    /// The pod as the API has it.
    pub pod: &'a Pod,
    /// Its addresses; none before its network is there.
    pub addresses: &'a [IpAddr],
    /// Its node's.
    pub host_addresses: &'a [IpAddr],
    /// When the kubelet took it up.
    pub start: Timestamp,
    /// Its init containers, in the order of the specification.
    pub init: &'a [ContainerView],
    /// Its containers.
    pub containers: &'a [ContainerView],
    /// The clock.
    pub now: Timestamp,
}

/// The whole status. Conditions of others are kept; a condition that stays as it was keeps its time.
pub fn pod_status(facts: &Facts<'_>) -> PodStatus {
    let spec = facts.pod.spec.as_ref();
    let specs = spec.map_or(&[][..], |spec| &spec.containers);
    let init_specs = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let phase = phase(facts);
    let ips = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let old = facts.pod.status.as_ref();
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions(facts, specs, phase)),
        pod_ip: ips(facts.addresses).into_iter().next(),
        pod_ips: (!facts.addresses.is_empty())
            .then(|| ips(facts.addresses).into_iter().map(|ip| PodIP { ip }).collect()),
        host_ip: ips(facts.host_addresses).into_iter().next(),
        host_ips: Some(ips(facts.host_addresses).into_iter().map(|ip| HostIP { ip }).collect()),
        start_time: Some(Time(facts.start)),
        container_statuses: Some(container_statuses(facts.pod, specs, facts.containers)),
        init_container_statuses: (!init_specs.is_empty()).then(|| {
            let mut statuses = container_statuses(facts.pod, init_specs, facts.init);
            for (status, view) in statuses.iter_mut().zip(facts.init) {
                status.ready |= view.succeeded(); // it has done what the others wait for
            }
            statuses
        }),
        qos_class: old.and_then(|status| status.qos_class.clone()).or_else(|| Some("BestEffort".to_owned())),
        observed_generation: facts.pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// `Pending`, `Running`, `Succeeded` or `Failed`, by the kubelet's rules.
fn phase(facts: &Facts<'_>) -> &'static str {
    let policy = restart_policy(facts.pod);
    let once = facts.init.iter().enumerate().filter(|(index, _)| !stays(facts.pod, *index)).map(|(_, init)| init);
    if let Some(failed) = once.into_iter().find(|init| init.ended().is_some() && !init.succeeded()) {
        let over = policy == RestartPolicy::Never && matches!(failed.phase, Phase::Ended(_));
        return if over { "Failed" } else { "Pending" };
    }
    if !is_initialized(facts) {
        return "Pending";
    }
    let containers = facts.containers;
    if containers.iter().any(|c| matches!(c.phase, Phase::Waiting { .. }) && c.last.is_none()) {
        return "Pending";
    }
    if containers.iter().any(ContainerView::is_running) {
        return "Running";
    }
    let deleted = facts.pod.metadata.deletion_timestamp.is_some();
    let all_succeeded = containers.iter().all(ContainerView::succeeded);
    match policy {
        RestartPolicy::Always if !deleted => "Running",
        RestartPolicy::OnFailure if !deleted && !all_succeeded => "Running",
        _ if all_succeeded => "Succeeded",
        _ => "Failed",
    }
}

fn conditions(facts: &Facts<'_>, specs: &[Container], phase: &str) -> Vec<PodCondition> {
    let old = facts.pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let initialized = is_initialized(facts);
    let init_specs = facts.pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let staying = init_specs.iter().zip(facts.init).enumerate().filter(|(index, _)| stays(facts.pod, *index));
    let unready: Vec<&str> = staying
        .map(|(_, both)| both)
        .chain(specs.iter().zip(facts.containers))
        .filter(|(_, view)| !view.ready)
        .map(|(spec, _)| spec.name.as_str())
        .collect();
    let over = matches!(phase, "Succeeded" | "Failed");
    let (reason, message) = if phase == "Succeeded" {
        (Some("PodCompleted"), None)
    } else if over {
        (Some("PodFailed"), None)
    } else if unready.is_empty() {
        (None, None)
    } else {
        (Some("ContainersNotReady"), Some(format!("containers with unready status: [{}]", unready.join(" "))))
    };
    let ready = reason.is_none();
    let closed_gate = readiness_gates(facts.pod)
        .find(|gate| !old.iter().any(|condition| condition.type_ == *gate && condition.status == "True"));
    let (pod_reason, pod_message) = match closed_gate {
        Some(gate) if ready => (
            Some("ReadinessGatesNotReady"),
            Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist or is not True.")),
        ),
        _ => (reason, message.clone()),
    };
    let own = [
        ("Initialized", initialized, (!initialized).then_some("ContainersNotInitialized"), None),
        ("Ready", pod_reason.is_none(), pod_reason, pod_message),
        ("ContainersReady", ready, reason, message),
        ("PodScheduled", true, None, None),
    ];
    let mut all: Vec<PodCondition> =
        old.iter().filter(|condition| own.iter().all(|(name, ..)| *name != condition.type_)).cloned().collect();
    for (name, holds, reason, message) in own {
        let status = if holds { "True" } else { "False" };
        let before = old.iter().find(|condition| condition.type_ == name && condition.status == status);
        all.push(PodCondition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason: reason.map(str::to_owned),
            message,
            last_transition_time: before
                .and_then(|condition| condition.last_transition_time.clone())
                .or(Some(Time(facts.now))),
            ..PodCondition::default()
        });
    }
    all
}

/// Whether an init container stays beside the others, once it has started (KEP-753).
pub fn stays(pod: &Pod, index: usize) -> bool {
    let specs = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    specs.get(index).is_some_and(|container| container.restart_policy.as_deref() == Some("Always"))
}

fn is_initialized(facts: &Facts<'_>) -> bool {
    let mut all = facts.init.iter().enumerate();
    all.all(|(index, init)| init.succeeded() || (stays(facts.pod, index) && init.started))
}

fn readiness_gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    gates.iter().map(|gate| gate.condition_type.as_str())
}

fn container_statuses(pod: &Pod, specs: &[Container], views: &[ContainerView]) -> Vec<ContainerStatus> {
    specs.iter().zip(views).map(|(spec, view)| container_status(pod, spec, view)).collect()
}

/// The name of one run of a container, the same each time that it is asked for.
fn container_id(pod: &Pod, container: &Container, run: u32) -> String {
    let part = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &pod.metadata.uid, &container.name, run).hash(&mut hasher);
        hasher.finish()
    };
    format!("signpost://{:016x}{:016x}{:016x}{:016x}", part(0), part(1), part(2), part(3))
}

fn container_status(pod: &Pod, spec: &Container, view: &ContainerView) -> ContainerStatus {
    let last_run = if view.is_running() { view.restarts.saturating_sub(1) } else { view.restarts };
    let ran = !matches!(view.phase, Phase::Waiting { .. }) || view.last.is_some();
    let id = |run| Some(container_id(pod, spec, run));
    let state = match &view.phase {
        Phase::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some((*reason).to_owned()), message: message.clone() }),
            ..ContainerState::default()
        },
        Phase::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(*since)) }),
            ..ContainerState::default()
        },
        Phase::Ended(ended) => terminated(ended, id(view.restarts)),
    };
    let image = spec.image.clone().unwrap_or_default();
    ContainerStatus {
        name: spec.name.clone(),
        image_id: if matches!(view.phase, Phase::Waiting { .. }) { String::new() } else { image.clone() },
        image,
        ready: view.ready,
        started: Some(view.started),
        restart_count: i32::try_from(view.restarts).unwrap_or(i32::MAX),
        container_id: if ran { id(view.restarts) } else { None },
        state: Some(state),
        last_state: Some(view.last.as_ref().map(|last| terminated(last, id(last_run))).unwrap_or_default()),
        ..ContainerStatus::default()
    }
}

fn terminated(ended: &Ended, container_id: Option<String>) -> ContainerState {
    let reason = match (&ended.problem, ended.exit) {
        (Some(_), _) => "StartError",
        (None, Exit::Status(0)) => "Completed",
        (None, _) => "Error",
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: ended.exit.code(),
            reason: Some(reason.to_owned()),
            message: ended.problem.clone(),
            started_at: Some(Time(ended.since)),
            finished_at: Some(Time(ended.until)),
            container_id,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// When a container that has ended is started anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Always.
    Always,
    /// Unless it ended with status 0.
    OnFailure,
    /// Never.
    Never,
}

impl RestartPolicy {
    /// Whether a run that ended so is followed by another.
    pub fn restarts(self, exit: Exit) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit != Exit::Status(0),
            RestartPolicy::Never => false,
        }
    }
}

/// A pod's.
pub fn restart_policy(pod: &Pod) -> RestartPolicy {
    match pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

#[cfg(test)]
#[path = "status/tests.rs"]
mod tests;
