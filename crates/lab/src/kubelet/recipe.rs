//! From a container's specification to what is started: its image, and the ConfigMaps and Secrets of its environment.
//! What is missing may come: a container waits for it, and asks again.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::Context;
use super::command::{self, Surroundings};
use super::sources::Sources;
use crate::sandbox::Start;

/// What the containers of a pod have in common.
pub struct Recipe {
    /// Images, API.
    pub context: Arc<Context>,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// Its node's.
    pub host_addresses: Vec<IpAddr>,
}

/// Why a container cannot be started.
#[derive(Debug)]
pub enum Unready {
    /// Its image means nothing here.
    Image,
    /// Its environment cannot be made.
    Config(String),
}

impl Recipe {
    /// What to start for a container.
    ///
    /// # Errors
    /// Something that it needs is not there.
    pub async fn start(&self, pod: &Pod, container: &Container) -> Result<Start, Unready> {
        let image = container.image.as_deref().unwrap_or_default();
        let image = self.context.images.find(image).ok_or(Unready::Image)?;
        let wanted = command::sources(container);
        let sources = if wanted.is_empty() {
            Sources::default()
        } else {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let read = Sources::read(&self.context.client, namespace, wanted).await;
            read.map_err(|error| Unready::Config(format!("cannot read what its environment is made from: {error}")))?
        };
        let around = Surroundings {
            addresses: &self.addresses,
            host_addresses: &self.host_addresses,
            kubernetes: self.context.kubernetes,
        };
        command::start(pod, container, &image, &around, &sources).map_err(|error| Unready::Config(error.to_string()))
    }
}
