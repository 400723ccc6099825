//! ConfigMaps and Secrets that a pod's environment and volumes are made from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

/// What holds keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::ConfigMap => "ConfigMap",
            Origin::Secret => "Secret",
        })
    }
}

/// Keys and values of one object.
pub type Data = BTreeMap<String, Vec<u8>>;

/// Objects as they were read; what is not there is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    objects: BTreeMap<(Origin, String), Data>,
}

impl Sources {
    /// From objects that are known already.
    #[cfg(test)]
    pub fn of(objects: impl IntoIterator<Item = ((Origin, String), Data)>) -> Sources {
        Sources { objects: objects.into_iter().collect() }
    }

    /// Reads those that are wanted of a namespace.
    ///
    /// # Errors
    /// The API's; an object that is not there is none.
    pub async fn read(client: &Client, namespace: &str, wanted: BTreeSet<(Origin, String)>) -> kube::Result<Sources> {
        let mut sources = Sources::default();
        for (origin, name) in wanted {
            if let Some(data) = data(client, namespace, origin, &name).await? {
                sources.objects.insert((origin, name), data);
            }
        }
        Ok(sources)
    }

    /// Keys and values of an object.
    ///
    /// # Errors
    /// It is not there.
    pub fn find(&self, origin: Origin, name: &str) -> Result<&Data, NotFound> {
        let found = self.objects.get(&(origin, name.to_owned()));
        found.ok_or_else(|| NotFound { origin, name: name.to_owned() })
    }
}

/// An object that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {name:?} not found", origin.to_string().to_ascii_lowercase())]
pub struct NotFound {
    /// What it would be.
    pub origin: Origin,
    /// Its name.
    pub name: String,
}

async fn data(client: &Client, namespace: &str, origin: Origin, name: &str) -> kube::Result<Option<Data>> {
    match origin {
        Origin::ConfigMap => {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let map = api.get_opt(name).await?;
            Ok(map.map(|map| {
                let texts = map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
                let bytes = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
                texts.chain(bytes).collect()
            }))
        }
        Origin::Secret => {
            let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
            let secret = api.get_opt(name).await?;
            Ok(secret.map(|secret| secret.data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect()))
        }
    }
}
