//! Light pods: a network namespace, and echo servers in this process whose sockets were made inside it.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::container::grace;
use super::events::{Kind, tell};
use super::pod::{Attachment, Worker};
use super::status::{ContainerView, Ended, Phase};
use super::{LIGHT, LISTENING, READY};
use crate::echo::{self, EchoServer, Identity, Listen, Sockets};
use crate::images::{Image, Images, unmapped};
use crate::sandbox::Exit;

/// Whether a pod is a light one.
pub(super) fn is_light(pod: &Pod) -> bool {
    annotation(pod, LIGHT) == Some("true")
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(super) async fn run(mut worker: Worker, pod: Arc<Pod>) {
    let Some(attachment) = worker.attach().await else {
        worker.wait_for_deletion().await;
        return worker.goodbye().await;
    };
    let mut light = Light::new(&worker, &pod);
    let mut end: Option<Instant> = None;
    while let (told, Some(pod)) = worker.told() {
        let views = light.adjust(&pod, &attachment);
        if let Err(error) = &light.problem {
            tell(&worker.context.client, &pod, Kind::Warning, "Failed", error.clone());
        }
        worker.show(&pod, &[], &views).await;
        worker.entry.done(told);
        if pod.metadata.deletion_timestamp.is_some() {
            end.get_or_insert_with(|| Instant::now() + grace(&pod));
        }
        tokio::select! {
            changed = worker.pods.changed() => if changed.is_err() { break },
            () = until(end) => break,
        }
    }
    drop(light);
    worker.detach(attachment).await;
    worker.goodbye().await;
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

struct Light {
    server: EchoServer,
    /// What each container listens on; or why it cannot run, as reason and message.
    containers: Vec<Result<Vec<Listen>, (&'static str, String)>>,
    since: Timestamp,
    listening: bool,
    problem: Result<(), String>,
}

impl Light {
    fn new(worker: &Worker, pod: &Pod) -> Light {
        let identity = Identity {
            pod: worker.entry.name.clone(),
            namespace: worker.entry.namespace.clone(),
            node: worker.context.nodes[usize::from(worker.entry.node) - 1].clone(),
        };
        Light {
            server: EchoServer::new(identity),
            containers: containers(pod, &worker.context.images),
            since: Timestamp::now(),
            listening: false,
            problem: Ok(()),
        }
    }

    /// Makes the servers be as the pod's annotations say.
    fn adjust(&mut self, pod: &Pod, attachment: &Attachment) -> Vec<ContainerView> {
        let ready = annotation(pod, READY) != Some("false");
        let listening = annotation(pod, LISTENING) != Some("false");
        self.server.set_healthy(ready);
        self.problem = Ok(());
        if listening && !self.listening {
            if let Err(error) = self.listen(attachment) {
                self.problem = Err(format!("Error: cannot listen: {error}"));
            } else {
                self.listening = true;
            }
        } else if !listening && self.listening {
            self.server.deafen();
            self.listening = false;
        }
        self.containers.iter().map(|container| self.view(container, ready)).collect()
    }

    fn listen(&mut self, attachment: &Attachment) -> io::Result<()> {
        let listens: Vec<Listen> = self.containers.iter().flatten().flatten().copied().collect();
        let sockets = attachment.netns.run(|| Sockets::bind(&listens))?;
        self.server.listen(sockets)
    }

    fn view(&self, container: &Result<Vec<Listen>, (&'static str, String)>, ready: bool) -> ContainerView {
        match (container, &self.problem) {
            (Ok(_), Ok(())) => ContainerView::running(self.since, ready),
            (Ok(_), Err(problem)) => {
                let ended = Ended {
                    exit: Exit::Status(1),
                    since: self.since,
                    until: self.since,
                    problem: Some(problem.clone()),
                };
                ContainerView { phase: Phase::Ended(ended), ..ContainerView::creating() }
            }
            (Err((reason, message)), _) => {
                let phase = Phase::Waiting { reason, message: Some(message.clone()) };
                ContainerView { phase, ..ContainerView::creating() }
            }
        }
    }
}

fn containers(pod: &Pod, images: &Images) -> Vec<Result<Vec<Listen>, (&'static str, String)>> {
    let specs = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    let each = specs.iter().map(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        match images.find(image) {
            Some(Image::Echo) if container.command.is_none() => {
                echo::arguments(container.args.as_deref().unwrap_or_default())
                    .map_err(|error| ("CreateContainerError", error.to_string()))
            }
            Some(_) => Err(("CreateContainerError", "a light pod runs the echo server only".to_owned())),
            None => Err(("ErrImagePull", unmapped(image))),
        }
    });
    each.collect()
}
