//! Waits for a pod in which a program shall run: `kubectl run` returns before the pod is made.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::Api;
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::{Answer, PodPlace, say};
use crate::lab::Lab;
use crate::spec::Place;

/// How long a pod may take until a program can run in it.
const LIMIT: Duration = Duration::from_secs(10);
/// A longer wait is told to the asker.
const TELL: Duration = Duration::from_secs(1);
/// How long a pod's status may take to tell why a container does not run.
const STATUS: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Reasons for which no container of a lab stops waiting by itself.
const HOPELESS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// What kind of pod is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// It has a sandbox, in which the lab runs the program.
    Sandbox,
    /// It is a light one: the asker runs the program in its network.
    Light,
}

/// Waits until a program can run in a pod. `asker` is told when it takes a while.
///
/// # Errors
/// There is no such pod or container, or it does not come to run: says why, for a person.
pub(super) async fn until_ready(
    lab: &Lab,
    (namespace, name, container): PodPlace<'_>,
    asker: &mut UnixStream,
) -> Result<Ready, String> {
    let place = Place::Pod(namespace.to_owned(), name.to_owned());
    let began = Instant::now();
    let mut told = false;
    loop {
        if lab.kubelet().is_light(namespace, name) {
            if lab.namespace_of(&place).is_ok() {
                return Ok(Ready::Light);
            }
        } else if lab.kubelet().has_sandbox(namespace, name) {
            return Ok(Ready::Sandbox);
        }
        let pods: Api<Pod> = Api::namespaced(lab.client(), namespace);
        let pod = pods.get_opt(name).await.map_err(|error| format!("cannot look for {place}: {error}"))?;
        let pod = pod.ok_or_else(|| format!("there is no {place} in the lab"))?;
        check_container(&pod, &place, container)?;
        let (why, hopeless) = why(&pod, container);
        if hopeless {
            return Err(format!("{place} does not run: {why}"));
        }
        if began.elapsed() > LIMIT {
            return Err(format!("{place} does not run after {} s: {why}", LIMIT.as_secs()));
        }
        if !told && began.elapsed() > TELL {
            told = true;
            let text = Answer::Waiting(format!("waiting for {place}: {why}"));
            // An asker that left is noticed when it gets its answer.
            let _ = say(asker, &text).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Why a program cannot run in a container of a pod that is there, for a person.
pub(super) async fn why_not(lab: &Lab, (namespace, name, container): PodPlace<'_>, otherwise: String) -> String {
    let pods: Api<Pod> = Api::namespaced(lab.client(), namespace);
    let place = Place::Pod(namespace.to_owned(), name.to_owned());
    let began = Instant::now();
    loop {
        let pod = match pods.get_opt(name).await {
            Ok(Some(pod)) => pod,
            Ok(None) => return format!("there is no {place} in the lab"),
            Err(_) => return otherwise,
        };
        if let Err(problem) = check_container(&pod, &place, container) {
            return problem;
        }
        let (why, hopeless) = why(&pod, container);
        // The pod's status tells it a moment after the kubelet knows it.
        if hopeless || began.elapsed() > STATUS {
            return format!("{place} runs no program: {why}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn check_container(pod: &Pod, place: &Place, container: Option<&str>) -> Result<(), String> {
    let (Some(wanted), Some(spec)) = (container, &pod.spec) else { return Ok(()) };
    let init = spec.init_containers.iter().flatten();
    let names: Vec<&str> = init.chain(&spec.containers).map(|container| container.name.as_str()).collect();
    if names.contains(&wanted) {
        return Ok(());
    }
    Err(format!("{place} has no container named {wanted}; it has {}", names.join(", ")))
}

/// What a pod waits for, as its status says; and whether it waits in vain.
fn why(pod: &Pod, container: Option<&str>) -> (String, bool) {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    if matches!(phase, "Succeeded" | "Failed") {
        return (format!("it has ended ({phase})"), true);
    }
    let init = status.init_container_statuses.iter().flatten();
    let states = init.chain(status.container_statuses.iter().flatten());
    let mut waiting = states.filter(|state| container.is_none_or(|wanted| state.name == wanted)).filter_map(|status| {
        let ContainerState { waiting, .. } = status.state.clone()?;
        let waiting = waiting?;
        let reason = waiting.reason.unwrap_or_else(|| "Waiting".to_owned());
        let message = waiting.message.map(|message| format!(": {message}")).unwrap_or_default();
        let hopeless = HOPELESS.contains(&reason.as_str());
        Some((format!("container {} is waiting, {reason}{message}", status.name), hopeless))
    });
    if let Some(found) = waiting.next() {
        return found;
    }
    let unscheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    match unscheduled.and_then(|condition| condition.message.clone()) {
        Some(message) => (format!("it is not scheduled: {message}"), false),
        None if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) => {
            ("it is on no node yet".to_owned(), false)
        }
        None => (format!("it is being made ({phase})"), false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web"}, "status": status,
            "spec": {"nodeName": "n1", "containers": [{"name": "web"}, {"name": "log"}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_pods_own_reason_is_told() {
        let waiting = |reason| {
            pod(
                json!({"containerStatuses": [{"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": "no nginx here"}}}]}),
            )
        };
        let text = "container web is waiting, ErrImagePull: no nginx here".to_owned();
        assert_eq!(why(&waiting("ErrImagePull"), None), (text, true));
        assert!(!why(&waiting("ContainerCreating"), Some("web")).1);
        assert_eq!(why(&pod(json!({"phase": "Failed"})), None), ("it has ended (Failed)".to_owned(), true));
        assert_eq!(why(&pod(json!({})), None).0, "it is being made (Pending)");
    }

    #[test]
    fn a_container_that_is_not_there_is_named_with_those_that_are() {
        let place = "pod/web".parse().unwrap();
        assert_eq!(check_container(&pod(json!({})), &place, Some("log")), Ok(()));
        let problem = check_container(&pod(json!({})), &place, Some("lgo")).unwrap_err();
        assert_eq!(problem, "pod/default/web has no container named lgo; it has web, log");
    }
}
