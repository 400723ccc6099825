//! A client of the API: from a kubeconfig file, or from the service account of the pod that this process is in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// A server that does not answer a connection for so long is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no client. Whether the server answers is not asked here.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file cannot be used.
    #[error("kubeconfig {path}: {}", reason(source), path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: KubeconfigError,
    },
    /// No kubeconfig given, and this is no pod.
    #[error("no way to the Kubernetes API: give --kubeconfig FILE, or run in a pod with a service account ({source})")]
    NoConfig {
        /// What a pod would have.
        #[source]
        source: InClusterError,
    },
    /// The server's address cannot be used.
    #[error("--master {url} is not a URL: {source}")]
    Master {
        /// As given.
        url: String,
        /// What is wrong with it.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// The client could not be made of the configuration.
    #[error("cannot make a client for {url}: {source}")]
    Client {
        /// The server.
        url: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// A client and the server it talks to.
pub struct Connection {
    /// The client.
    pub client: Client,
    /// The server's address, for a person.
    pub server: String,
}

/// What is wrong with a kubeconfig. A file that is none may hold anything, secrets too: of its content nothing is told.
fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => {
            "it is not a kubeconfig: YAML with clusters, users and contexts is expected".to_owned()
        }
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        other => other.to_string(),
    }
}

/// A client. `kubeconfig`: the file; without one, the pod's service account. `master` replaces the server's address.
///
/// # Errors
/// The configuration is missing or cannot be used. A server that does not answer is no error here.
pub async fn connect(kubeconfig: Option<&Path>, master: Option<&str>) -> Result<Connection, ClientError> {
    let mut config = match kubeconfig {
        Some(path) => from_file(path).await?,
        None => Config::incluster().map_err(|source| ClientError::NoConfig { source })?,
    };
    if let Some(url) = master {
        config.cluster_url = url.parse().map_err(|source| ClientError::Master { url: url.to_owned(), source })?;
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let url = config.cluster_url.to_string();
    match Client::try_from(config) {
        Ok(client) => Ok(Connection { client, server: url }),
        Err(source) => Err(ClientError::Client { url, source: Box::new(source) }),
    }
}

async fn from_file(path: &Path) -> Result<Config, ClientError> {
    let failed = |source| ClientError::Kubeconfig { path: path.to_path_buf(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    let wants_proxy =
        kubeconfig.clusters.iter().any(|named| named.cluster.as_ref().is_some_and(|c| c.proxy_url.is_some()));
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)?;
    if !wants_proxy {
        // Taken from the environment, where it is meant for other programs: a node talks to its API directly.
        config.proxy_url = None;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_kubeconfig_is_not_shown() {
        let path = std::env::temp_dir().join(format!("t-kubeconfig-{}", std::process::id()));
        for content in ["root:x:0:0:secret:/root\n", "a: [1\nsecret: b\n", "- secret\n", "clusters: secret\n"] {
            std::fs::write(&path, content).unwrap();
            let error = connect(Some(&path), None).await.err().map(|error| error.to_string());
            std::fs::remove_file(&path).unwrap();
            assert!(error.as_ref().is_some_and(|error| !error.contains("secret")), "{content}: {error:?}");
        }
    }
}
